"""Functional JAX environments as a block: episodes, ends, spaces, copies."""

import importlib
import os
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from srl_ray.actors.lanes import LaneTable
from srl_ray.core.errors import ConfigError, EnvironmentFault
from srl_ray.core.types import ACTION_MASK, ChunkLayout, ContinuousActions, DiscreteActions
from srl_ray.envs import jax_block
from srl_ray.envs.block import BlockStep
from srl_ray.envs.config import EnvConfig
from srl_ray.envs.contract import check_block, check_contract, random_actions
from srl_ray.envs.factory import make_block
from srl_ray.envs.gymnasium_block import env_seed
from srl_ray.envs.jax_block import JaxBlock
from srl_ray.models.config import ActorCriticConfig
from srl_ray.models.factory import make_policy
from srl_ray.streams.inference import InferenceRequest
from srl_ray.streams.inline import act

jax = pytest.importorskip("jax", reason="the package jax is missing: pip install 'srl_ray[jax]'")
jnp = jax.numpy

pytestmark = pytest.mark.unit


class WalkParams(NamedTuple):
    max_steps_in_episode: int = 6
    goal: int = 3


class Walk:
    """Integers only, so that every order of computing gives the same bits. The wind is random; the goal ends.

    Observation: float32 [2] = [position, time]. `done` does not know the time limit.
    """

    default_params = WalkParams()

    def observation_space(self, params: WalkParams) -> spaces.Box:
        return spaces.Box(-100, 100, (2,), np.float32)

    def action_space(self, params: WalkParams) -> spaces.Discrete:
        return spaces.Discrete(3, start=-1)

    def reset(self, key: Any, params: WalkParams) -> tuple[Any, Any]:
        state = {"position": jax.random.randint(key, (), -1, 2), "time": 0}
        return self.observe(state), state

    def step(self, key: Any, state: Any, action: Any, params: WalkParams) -> tuple[Any, ...]:
        wind = jax.random.randint(key, (), -1, 2)
        state = {"position": state["position"] + action + wind, "time": state["time"] + 1}
        done = jnp.abs(state["position"]) >= params.goal
        info = {"summary": {"distance": jnp.abs(state["position"])}, "discount": 1.0 - done}
        return self.observe(state), state, state["position"], done, info

    def observe(self, state: Any) -> Any:
        return jnp.array([state["position"], state["time"]], jnp.float32)


class March(Walk):
    """One forward per action 1, no wind: at `goal` after `goal` steps."""

    def reset(self, key: Any, params: WalkParams) -> tuple[Any, Any]:
        state = {"position": jnp.int32(0), "time": 0}
        return self.observe(state), state

    def step(self, key: Any, state: Any, action: Any, params: WalkParams) -> tuple[Any, ...]:
        state = {"position": state["position"] + action, "time": state["time"] + 1}
        return self.observe(state), state, 1.0, state["position"] >= params.goal, {}


class MarchOldGymnax(March):
    """As gymnax 0.0: `step_env` is done at the limit too, and `step` restarts by itself."""

    def step_env(self, key: Any, state: Any, action: Any, params: WalkParams) -> tuple[Any, ...]:
        obs, state, reward, done, info = super().step(key, state, action, params)
        return obs, state, reward, done | (state["time"] >= params.max_steps_in_episode), info

    def reset_env(self, key: Any, params: WalkParams) -> tuple[Any, Any]:
        return super().reset(key, params)

    def step(self, key: Any, state: Any, action: Any, params: WalkParams) -> tuple[Any, ...]:
        raise AssertionError("restarts by itself: must not be used")


class MarchNewGymnax(March):
    """As gymnax 1: the limit is asked for separately."""

    def is_truncated(self, state: Any, params: WalkParams) -> Any:
        return state["time"] >= params.max_steps_in_episode


class MarchSixValues(March):
    def step(self, key: Any, state: Any, action: Any, params: WalkParams) -> tuple[Any, ...]:
        obs, state, reward, done, info = super().step(key, state, action, params)
        return obs, state, reward, done, state["time"] >= params.max_steps_in_episode, info


def make(env: Any, num_envs: int = 4, params: Any = None, **settings: Any) -> JaxBlock:
    return JaxBlock(env, num_envs, params, env_id="test", **settings)


def play(block: JaxBlock, seed: int, steps: int) -> list[BlockStep]:
    rng = np.random.default_rng(seed)
    lanes = (block.spec.num_envs, 1)
    answers = [block.reset(seed)]
    for _ in range(steps):
        action = random_actions(block.spec.group.action, block.spec.num_lanes, rng)
        answers.append(block.step(action.reshape(*lanes, -1)))
    return answers


def stream(answers: list[BlockStep], name: str) -> np.ndarray:
    return np.stack([answer.obs["obs"] if name == "obs" else getattr(answer, name) for answer in answers])


# ---------------------------------------------------------------------------------------------------------- episodes


def test_the_same_seed_plays_the_same_episodes_and_another_seed_others():
    block = make(Walk())
    first, again, other = play(block, 5, 40), play(make(Walk()), 5, 40), play(block, 6, 40)
    for name in ("obs", "reward", "terminated", "truncated", "on_reset"):
        np.testing.assert_array_equal(stream(first, name), stream(again, name))
    assert [a.episodes for a in first] == [a.episodes for a in again]
    assert (stream(first, "obs") != stream(other, "obs")).any()
    beginnings = {tuple(row) for row in stream(first, "obs")[:10, :, 0].transpose(1, 0, 2).reshape(4, -1).tolist()}
    assert len(beginnings) == 4, "environments have streams of their own"


def test_a_block_equals_a_plain_loop_over_the_same_environment():
    count, steps, limit = 4, 50, WalkParams().max_steps_in_episode
    env, params = Walk(), Walk.default_params
    answers = play(make(env, count), 3, steps)
    episodes = [record for answer in answers for record in answer.episodes]
    rng = np.random.default_rng(3)
    actions = [random_actions(DiscreteActions((3,), (-1,)), count, rng)[:, 0] - 1 for _ in range(steps)]
    one_step, one_reset = jax.jit(env.step), jax.jit(env.reset)
    for e in range(count):
        key, key_reset = jax.random.split(jax.random.key(env_seed(3, e)))
        obs, state = one_reset(key_reset, params)
        expected, rewards = [np.asarray(obs)], [0.0]
        returns, lengths, distances, episode_rewards = [], [], [], []
        for action in actions:
            key, key_step, key_reset = jax.random.split(key, 3)
            obs, state, reward, done, info = one_step(key_step, state, int(action[e]), params)
            episode_rewards.append(float(reward))
            if done or len(episode_rewards) == limit:
                returns.append(sum(episode_rewards))
                lengths.append(len(episode_rewards))
                distances.append(float(info["summary"]["distance"]))
                obs, state = one_reset(key_reset, params)
                episode_rewards = []
            expected.append(np.asarray(obs))
            rewards.append(float(reward))
        np.testing.assert_array_equal(stream(answers, "obs")[:, e, 0], np.stack(expected))
        np.testing.assert_array_equal(stream(answers, "reward")[:, e, 0], np.array(rewards, np.float32))
        mine = [record for record in episodes if record.env_index == e]
        assert len(mine) > 5
        assert [record.returns["agent"] for record in mine] == returns
        assert [record.length for record in mine] == lengths == [record.lengths["agent"] for record in mine]
        assert [record.summary["distance"] for record in mine] == distances


def test_cartpole_moves_as_gymnasiums_does():
    functional = pytest.importorskip("srl_ray.envs.functional")
    block = make(functional.CartPole(), 3)
    oracle = gymnasium.make("CartPole-v1").unwrapped
    answers = play(block, 0, 40)
    rng = np.random.default_rng(0)
    actions = [random_actions(DiscreteActions((2,)), 3, rng)[:, 0] for _ in range(40)]
    obs, ends = stream(answers, "obs")[:, :, 0], stream(answers, "terminated")[:, :, 0]
    assert ends.any()
    for t, action in enumerate(actions):
        for e in range(3):
            oracle.reset()
            oracle.state = obs[t, e].astype(np.float64)
            after, reward, terminated, _, _ = oracle.step(int(action[e]))
            found = (
                answers[t + 1].final_obs["obs"][list(answers[t + 1].final_lanes).index(e)]
                if terminated
                else obs[t + 1, e]
            )
            np.testing.assert_allclose(found, after, atol=1e-5)
            assert bool(ends[t + 1, e]) == terminated
            assert answers[t + 1].reward[e, 0] == reward


def test_returns_of_long_episodes_lose_nothing_to_rounding():
    class Cents(March):
        def step(self, key: Any, state: Any, action: Any, params: WalkParams) -> tuple[Any, ...]:
            obs, state, _, done, info = super().step(key, state, action, params)
            return obs, state, 0.01 + 1000.0 * (state["time"] == 1), done, info

    block = make(Cents(), 1, WalkParams(3000, goal=10**6))
    answers = play(block, 0, 3000)
    exact = 1000.0 + 3000 * float(np.float32(0.01))
    assert answers[-1].episodes[0].returns["agent"] == pytest.approx(exact, abs=1e-3)


# -------------------------------------------------------------------------------------------------------------- ends


@pytest.mark.parametrize("kind", [March, MarchOldGymnax, MarchNewGymnax, MarchSixValues])
@pytest.mark.parametrize(("goal", "terminated"), [(3, True), (6, True), (7, False)])
def test_an_end_by_the_rules_is_terminated_and_one_by_the_limit_truncated(kind, goal, terminated):
    block = make(kind(), 2, WalkParams(max_steps_in_episode=6, goal=goal))
    forward, steps = np.full((2, 1, 1), 2), min(goal, 6)
    block.reset(0)
    for _ in range(2):  # the second episode counts anew
        for t in range(1, steps):
            answer = block.step(forward)
            assert not (answer.terminated | answer.truncated | answer.on_reset).any()
            np.testing.assert_array_equal(answer.obs["obs"][:, 0], [[t, t]] * 2)
        answer = block.step(forward)
        assert answer.terminated.all() == terminated
        assert answer.truncated.all() != terminated
        assert answer.on_reset.all()
        np.testing.assert_array_equal(answer.final_lanes, [0, 1])
        np.testing.assert_array_equal(answer.final_obs["obs"], [[steps, steps]] * 2)  # before the restart
        np.testing.assert_array_equal(answer.obs["obs"][:, 0], np.zeros((2, 2)))
        assert [(r.length, r.returns["agent"], r.discarded) for r in answer.episodes] == [(steps, steps, False)] * 2


def test_without_a_limit_an_episode_only_ends_by_the_rules():
    class Endless(March):
        default_params = None

        def step(self, key: Any, state: Any, action: Any, params: Any) -> tuple[Any, ...]:
            return super().step(key, state, action, WalkParams(goal=30))

    answers = play(make(Endless(), 1), 0, 1)
    assert len(answers) == 2
    block = make(Endless(), 1)
    block.reset(0)
    ends = [bool(block.step(np.full((1, 1, 1), 2)).terminated) for _ in range(30)]
    assert ends == [False] * 29 + [True]


def test_a_wrapper_that_hides_the_last_observation_is_refused():
    class Wrapper:
        def __init__(self, env: Any) -> None:
            self._env = env

        def __getattr__(self, name: str) -> Any:
            return getattr(self._env, name)

    with pytest.raises(ConfigError, match="wraps an environment that restarts by itself"):
        make(Wrapper(MarchOldGymnax()))


# ------------------------------------------------------------------------------------------------------------- faults


class Breaks(March):
    """NaN in the observation of the second step when the action was 1."""

    def step(self, key: Any, state: Any, action: Any, params: WalkParams) -> tuple[Any, ...]:
        obs, state, reward, done, info = super().step(key, state, action, params)
        return jnp.where((state["time"] == 2) & (action == 1), jnp.nan, obs), state, reward, done, info


def test_nan_ends_the_run_or_drops_the_episode():
    mixed = np.array([2, 1]).reshape(2, 1, 1)  # environment 0 breaks, 1 stands still
    block = make(Breaks(), 2)
    block.reset(0)
    block.step(mixed)
    with pytest.raises(EnvironmentFault, match=r"index 0.*obs.*nan.*step 2 of the episode"):
        block.step(mixed)

    block = make(Breaks(), 2, on_nonfinite="drop", max_faults=2)
    block.reset(0)
    for _ in range(2):
        block.step(mixed)
        answer = block.step(mixed)
        np.testing.assert_array_equal(answer.truncated[:, 0], [True, False])
        np.testing.assert_array_equal(answer.on_reset[:, 0], [True, False])
        assert len(answer.final_lanes) == 0
        assert answer.reward[0, 0] == 0
        assert np.isfinite(answer.obs["obs"]).all()
        assert [(r.env_index, r.length, r.discarded) for r in answer.episodes] == [(0, 2, True)]
    block.step(mixed)
    with pytest.raises(EnvironmentFault, match="failed 3 times"):
        block.step(mixed)


def test_a_reset_to_nan_always_ends_the_run():
    class Born(March):
        def reset(self, key: Any, params: WalkParams) -> tuple[Any, Any]:
            obs, state = super().reset(key, params)
            return obs * jnp.nan, state

    with pytest.raises(EnvironmentFault, match=r"reset: .*obs"):
        make(Born(), on_nonfinite="drop").reset(0)


# ------------------------------------------------------------------------------------------------------------- spaces


class GymnaxDiscrete:
    def __init__(self, n: int) -> None:
        self.n = n


class GymnaxBox:
    def __init__(self, low: Any, high: Any, shape: tuple[int, ...], dtype: Any = jnp.float32) -> None:
        self.low, self.high, self.shape, self.dtype = low, high, shape, dtype


class GymnaxDict:
    def __init__(self, parts: dict[str, Any]) -> None:
        self.spaces = parts


class Still:
    """Returns the observation that it is given and nothing else; `spaces` as gymnax declares them."""

    def __init__(self, observation: Any, action: Any, value: Any) -> None:
        self._spaces = (observation, action)
        self._value = value

    def observation_space(self, params: Any) -> Any:
        return self._spaces[0]

    def action_space(self, params: Any) -> Any:
        return self._spaces[1]

    def reset(self, key: Any, params: Any) -> tuple[Any, Any]:
        return self._value, jnp.zeros(self._spaces[1].shape if hasattr(self._spaces[1], "shape") else ())

    def step(self, key: Any, state: Any, action: Any, params: Any) -> tuple[Any, ...]:
        return self._value, jnp.float32(action), jnp.sum(action), False, {}


def test_spaces_of_gymnax_become_fields():
    space = GymnaxDict(
        {
            "image": GymnaxBox(0, 255, (2, 2), jnp.uint8),
            "half": GymnaxBox(jnp.zeros(2), 1.0, (2,), jnp.bfloat16),
            "where": GymnaxDiscrete(3),
            ACTION_MASK: GymnaxBox(0, 1, (2,), jnp.bool_),
        }
    )
    value = {
        "image": jnp.arange(4, dtype=jnp.uint8).reshape(2, 2),
        "half": jnp.ones(2, jnp.bfloat16),
        "where": jnp.int32(2),
        ACTION_MASK: jnp.array([True, False]),
    }
    block = make(Still(space, GymnaxDiscrete(2), value), 2)
    check_block(block)
    answer = block.reset(0)
    expected = {"image": [[0, 1], [2, 3]], "half": [1, 1], "where": [0, 0, 1], ACTION_MASK: [True, False]}
    for name, row in expected.items():
        np.testing.assert_array_equal(answer.obs[name][1, 0], row)
    assert {name: str(field.dtype) for name, field in block.spec.group.obs.items()} == {
        "image": "uint8", "half": "float32", "where": "float32", ACTION_MASK: "bool",
    }  # fmt: skip


def test_continuous_actions_are_clipped():
    block = make(Still(GymnaxBox(-1, 1, (1,)), GymnaxBox(-2.0, 2.0, (3,)), jnp.zeros(1)), 2)
    assert isinstance(block.spec.group.action, ContinuousActions)
    block.reset(0)
    answer = block.step(np.array([[[9.0, 0.5, -9.0]], [[1.0, 1.0, 1.0]]], np.float32))
    np.testing.assert_array_equal(answer.reward[:, 0], [0.5, 3.0])


@pytest.mark.parametrize(
    ("observation", "action", "text"),
    [
        (object(), GymnaxDiscrete(2), "the observation space holds object"),
        (GymnaxBox(0, 1, (1,)), object(), "the action space holds object"),
        (spaces.Text(3), GymnaxDiscrete(2), "Text"),
        (GymnaxBox(0, 1, (1,)), spaces.Sequence(spaces.Discrete(2)), "Sequence"),
    ],
)
def test_other_spaces_are_refused_by_name(observation, action, text):
    with pytest.raises(ConfigError, match=text):
        make(Still(observation, action, jnp.zeros(1)))


def test_an_observation_of_another_shape_is_named():
    with pytest.raises(EnvironmentFault, match=r"field 'obs': expected shape \(2,\).*found \(1,\)"):
        make(Still(GymnaxBox(0, 1, (2,)), GymnaxDiscrete(2), jnp.zeros(1)))


# ------------------------------------------------------------------------------------------------------------ factory


def walk_with_params(limit: int = 6) -> tuple[Any, Any]:
    return Walk(), WalkParams(max_steps_in_episode=limit)


def test_a_factory_may_return_an_environment_or_a_pair():
    for factory in (Walk, walk_with_params):
        config = EnvConfig(factory=factory, envs_per_block=4)
        check_contract(config)
        block = make_block(config)
        assert isinstance(block, JaxBlock)
        assert block.spec.num_envs == 4
        assert block.spec.env_id == factory.__name__
    block = make_block(EnvConfig(factory=walk_with_params, kwargs={"limit": 2}, vectorization="jax"), 3)
    assert max(record.length for answer in play(block, 0, 20) for record in answer.episodes) == 2


def test_a_factory_of_something_else_is_refused_where_jax_was_asked_for():
    config = EnvConfig(factory="srl_ray.envs.testing:MemoryCue", vectorization="jax")
    with pytest.raises(ConfigError, match=r"MemoryCue; expected a functional environment: reset\(key, params\)"):
        make_block(config)


@pytest.mark.parametrize("missing", ["jax", "gymnax"])
def test_a_missing_package_names_the_extra(monkeypatch, missing):
    def load(name: str) -> Any:
        if name == missing:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name)

    real = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", load)
    with pytest.raises(ConfigError) as caught:
        make_block(EnvConfig(id="gymnax/CartPole-v1"))
    assert f"needs the package {missing!r}" in str(caught.value)
    assert "pip install 'srl_ray[jax]'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_of_the_user_stay_in_force(monkeypatch):
    for name in ("PJRT_NPROC", "NPROC", "XLA_PYTHON_CLIENT_PREALLOCATE", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    jax_block.load_jax("test")
    assert (os.environ["PJRT_NPROC"], os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"]) == ("1", "false")
    monkeypatch.setenv("PJRT_NPROC", "3")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
    jax_block.load_jax("test")
    assert (os.environ["PJRT_NPROC"], os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"]) == ("3", "true")
    monkeypatch.delenv("PJRT_NPROC")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    jax_block.load_jax("test")
    assert os.environ["PJRT_NPROC"] == "2"
    monkeypatch.delenv("PJRT_NPROC")
    monkeypatch.setenv("NPROC", "4")
    jax_block.load_jax("test")
    assert "PJRT_NPROC" not in os.environ


# -------------------------------------------------------------------------------------------------------------- gymnax


def test_gymnax_environments_have_their_limit_apart_from_their_rules():
    pytest.importorskip("gymnax", reason="the package gymnax is missing: pip install 'srl_ray[jax]'")
    config = EnvConfig(id="gymnax/CartPole-v1", envs_per_block=16, kwargs={"params": {"max_steps_in_episode": 12}})
    check_contract(config)
    answers = play(make_block(config), 0, 60)
    ended = [answer for answer in answers if answer.episodes]
    lengths = {(r.length, bool(a.truncated[r.env_index, 0])) for a in ended for r in a.episodes}
    assert (12, True) in lengths
    assert all(cut == (length == 12) for length, cut in lengths if length != 12)
    for answer in ended:  # a pole that fell is beyond the angle at which it falls, one that was cut is not
        angle = np.abs(answer.final_obs["obs"][:, 2])
        fell = answer.terminated[answer.final_lanes, 0]
        np.testing.assert_array_equal(angle > 12 * 2 * np.pi / 360, fell)
    same = make_block(EnvConfig(id="CartPole-v1", vectorization="jax"))
    assert isinstance(same, JaxBlock)
    with pytest.raises(ConfigError, match=r"no environment 'Cartpole-v1'.*Nearest: CartPole-v1"):
        make_block(EnvConfig(id="gymnax/Cartpole-v1"))
    with pytest.raises(ConfigError, match=r"cannot take \['lenght'\].*'length'"):
        make_block(EnvConfig(id="gymnax/CartPole-v1", kwargs={"params": {"lenght": 1.0}}))


# -------------------------------------------------------------------------------------------------------------- copies


def pointer(array: Any) -> int:
    return int(array.unsafe_buffer_pointer())


class Watching:
    """A policy that notes where the observations that it is asked about lie."""

    array_actor = None  # asked in torch, whatever the number of threads

    def __init__(self, spec: Any) -> None:
        self._policy = make_policy(ActorCriticConfig(hidden=[8]), spec.group.obs, spec.group.action, 0)
        self.seen: list[torch.Tensor] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def act(self, obs: Any, *rest: Any) -> Any:
        self.seen.append(obs["obs"])
        return self._policy.act(obs, *rest)


def ask(block: JaxBlock, table: LaneTable, step: BlockStep, policy: Watching) -> InferenceRequest:
    asked = table.observe(step)
    nobody = np.zeros(asked.num_rows, np.bool_)
    request = InferenceRequest(asked.obs, asked.state, asked.on_reset, nobody, asked.device_obs)
    table.answer(asked, act(policy, [request], None, (0, 0)))  # type: ignore[arg-type]
    table.grant(table.ungranted(), 0)
    return request


def test_the_policy_reads_the_simulations_memory(monkeypatch):
    buffers: list[int] = []
    block = make(March(), 4, WalkParams(goal=100))
    answer = block.reset(0)
    real = block._advance

    def advance(carry: Any, actions: Any) -> Any:
        carry, result = real(carry, actions)
        buffers.append(pointer(result.obs["obs"]))
        return carry, result

    monkeypatch.setattr(block, "_advance", advance)
    policy = Watching(block.spec)
    table = LaneTable(block.spec, ChunkLayout(0, 16, 1, 16), policy.action_spec.field, 0)
    ask(block, table, answer, policy)
    answer = block.step(table.actions)
    assert answer.obs["obs"].ctypes.data == buffers[-1]
    assert not answer.obs["obs"].flags.writeable
    ask(block, table, answer, policy)
    assert policy.seen[-1].data_ptr() == buffers[-1]


def test_observations_on_the_device_of_the_policy_do_not_move():
    block = make(March(), 4, WalkParams(max_steps_in_episode=3, goal=100))
    block.shares_device = True  # the CPU plays the accelerator
    policy = Watching(block.spec)
    table = LaneTable(block.spec, ChunkLayout(0, 16, 1, 16), policy.action_spec.field, 0)
    answer = block.reset(0)
    for _ in range(7):
        assert answer.device_obs is not None
        request = ask(block, table, answer, policy)
        asked = policy.seen[-1]
        np.testing.assert_array_equal(asked.numpy(), request.obs["obs"])
        if len(answer.final_lanes):  # the final rows of truncated lanes come from the host, below
            assert len(asked) == 8
        else:
            assert asked.data_ptr() == pointer(answer.device_obs["obs"])
        answer = block.step(table.actions)


def test_several_blocks_on_a_device_are_joined_there():
    blocks = [make(Walk()), make(Walk())]
    requests = []
    for seed, block in enumerate(blocks):
        block.shares_device = True
        step = block.reset(seed)
        host = {name: array[:, 0] for name, array in step.obs.items()}
        nothing = np.zeros(4, np.bool_)
        requests.append(InferenceRequest(host, np.zeros((4, 0), np.float32), nothing, nothing, step.device_obs))
    policy = Watching(blocks[0].spec)
    reply = act(policy, requests, None, (0, 0))  # type: ignore[arg-type]
    np.testing.assert_array_equal(policy.seen[-1].numpy(), np.concatenate([r.obs["obs"] for r in requests]))
    assert reply.action.shape == (8, 1)


@pytest.mark.skipif(
    not torch.cuda.is_available() or jax.default_backend() == "cpu",
    reason="needs a GPU and a JAX that computes on it: pip install 'jax[cuda12]'",
)
def test_observations_stay_on_the_gpu():
    block = make(Walk(), 4)
    step = block.reset(0)
    assert block.shares_device
    assert step.device_obs is not None
    tensor = torch.from_dlpack(step.device_obs["obs"])
    assert tensor.device.type == "cuda"
    assert tensor.data_ptr() == pointer(step.device_obs["obs"])
    np.testing.assert_array_equal(tensor.cpu().numpy(), step.obs["obs"][:, 0])
