"""From configuration to block, and the check before a run."""

import logging
import time
from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from srl_ray.core.errors import ConfigError, EnvironmentFault
from srl_ray.envs import spaces as env_spaces
from srl_ray.envs.block import EnvBlock
from srl_ray.envs.config import EnvConfig
from srl_ray.envs.contract import check_block, check_contract
from srl_ray.envs.factory import make_block
from srl_ray.envs.gymnasium_block import GymBlock
from srl_ray.envs.testing import (
    BrokenContract,
    Catch,
    CountingEnv,
    CrashingEnv,
    MaskedEnv,
    MemoryCue,
    NonFiniteEnv,
    RaggedBlock,
    SlowEnv,
    UnbuildableEnv,
    agents_end_one_by_one,
    changing_teams,
    turn_based,
)
from srl_ray.envs.vector_block import VectorBlock

pytestmark = pytest.mark.unit


def test_gymnasium_id_becomes_a_block():
    block = make_block(EnvConfig(id="CartPole-v1", envs_per_block=3))
    assert isinstance(block, GymBlock)
    assert isinstance(block, EnvBlock)
    assert block.spec.num_envs == 3
    assert block.spec.env_id == "CartPole-v1"
    assert make_block(EnvConfig(id="CartPole-v1"), 2).spec.num_envs == 2


def test_native_vectorisation_uses_the_vector_entry_point():
    block = make_block(EnvConfig(id="CartPole-v1", vectorization="native"), 5)
    assert isinstance(block, VectorBlock)
    assert block.spec.num_envs == 5
    with pytest.raises(ConfigError, match=r"env\.vectorization=sync"):
        make_block(EnvConfig(id="Acrobot-v1", vectorization="native"))


def test_kwargs_reach_the_environment():
    block = make_block(EnvConfig(factory="srl_ray.envs.testing:CountingEnv", kwargs={"length": 2}), 1)
    block.reset(0)
    block.step(np.zeros((1, 1, 1), np.int64))
    assert block.step(np.zeros((1, 1, 1), np.int64)).terminated.all()


def test_module_prefix_registers_the_id(tmp_path, monkeypatch):
    (tmp_path / "my_envs_for_test.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('MyCounting-v0', entry_point='srl_ray.envs.testing:CountingEnv', max_episode_steps=4)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    block = make_block(EnvConfig(id="my_envs_for_test:MyCounting-v0"), 1)
    block.reset(0)
    for _ in range(4):
        answer = block.step(np.zeros((1, 1, 1), np.int64))
    assert answer.truncated.all()


def vector_factory(num_envs, length=3):
    return SyncVectorEnv([lambda: CountingEnv(length)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def block_factory(num_envs):
    return changing_teams(num_envs)


@pytest.mark.parametrize(
    ("factory", "kind"), [(CountingEnv, GymBlock), (vector_factory, VectorBlock), (block_factory, RaggedBlock)]
)
def test_factory_may_return_an_environment_a_vector_environment_or_a_block(factory, kind):
    block = make_block(EnvConfig(factory=factory), 3)
    assert isinstance(block, kind)
    assert block.spec.num_envs == 3


def test_factory_builds_no_environment_too_many():
    built = []

    def factory():
        built.append(CountingEnv())
        return built[-1]

    make_block(EnvConfig(factory=factory), 3)
    assert len(built) == 3


def test_wrong_number_of_environments_is_said():
    with pytest.raises(ConfigError, match=r"2 environments where 8 were asked.*envs_per_block"):
        make_block(EnvConfig(factory=lambda: vector_factory(2)), 8)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (EnvConfig(), ["env.id", "env.factory"]),
        (EnvConfig(id="CartPoll-v1"), ["CartPoll-v1", "CartPole-v1"]),
        (EnvConfig(id="cartpole-v1"), ["CartPole-v1"]),
        (EnvConfig(id="no_such_module_here:Env-v0"), ["no_such_module_here"]),
        (EnvConfig(factory="srl_ray.envs.testing:Nothing"), ["env.factory", "Nothing"]),
        (EnvConfig(factory=lambda: 7), ["env.factory", "int", "EnvBlock"]),
        (EnvConfig(factory=7), ["env.factory", "callable"]),
    ],
)
def test_mistakes_in_the_configuration_are_named(config, words):
    with pytest.raises(ConfigError) as caught:
        make_block(config)
    for word in words:
        assert word in str(caught.value)


def test_missing_packages_name_what_to_install():
    with pytest.raises(ConfigError, match=r"no_such_package_x"):
        make_block(EnvConfig(factory=lambda: __import__("no_such_package_x")))
    try:
        import ale_py  # noqa: F401
    except ImportError:
        with pytest.raises(ConfigError) as caught:
            make_block(EnvConfig(id="ALE/Pong-v5"))
        assert "pip install 'srl_ray[atari]'" in str(caught.value)


@pytest.mark.parametrize("module", ["vizdoom", "overcooked.mdp", "Box2D"])
def test_missing_packages_of_examples_name_the_extra(monkeypatch, module):
    def factory():
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    with pytest.raises(ConfigError, match=rf"pip install 'srl_ray\[{module.partition('.')[0].lower()}\]'"):
        make_block(EnvConfig(factory=factory))


def test_constructor_that_raises_is_a_fault_with_its_own_text():
    with pytest.raises(EnvironmentFault, match="licence server not reachable"):
        make_block(EnvConfig(factory=UnbuildableEnv))


# ------------------------------------------------------------------------------------------------------- contract check

EXPECTED = {
    "reset_without_info": ["reset", "(observation, info dict)", "ndarray alone"],
    "four_values": ["step", "five values", "4 values"],
    "reset_refuses_seed": ["reset", "seed"],
    "wrong_shape": ["'obs'", "(4,)", "(3,)"],
    "none_obs": ["'obs'", "None"],
    "outside_space": ["'obs'", "-1 to 1", "1.5"],
    "float_for_uint8": ["'obs'", "uint8", "float64"],
    "nan_obs": ["'obs'", "nan"],
    "missing_key": ["'y'", "['x']"],
    "reward_none": ["reward", "None"],
    "flag_is_float": ["terminated", "bool", "0.5"],
}


@pytest.mark.parametrize("defect", EXPECTED)
def test_broken_contract_is_one_readable_message(defect):
    config = EnvConfig(factory="srl_ray.envs.testing:BrokenContract", kwargs={"defect": defect})
    with pytest.raises(EnvironmentFault) as caught:
        check_contract(config)
    text = str(caught.value)
    assert "\n" not in text
    for word in ["srl_ray.envs.testing:BrokenContract", *EXPECTED[defect]]:
        assert word in text, text


@pytest.mark.parametrize("defect", [name for name in EXPECTED if name not in ("outside_space", "flag_is_float")])
def test_block_catches_the_same_breaches_without_the_check(defect):
    config = EnvConfig(factory="srl_ray.envs.testing:BrokenContract", kwargs={"defect": defect})
    block = make_block(config, 2)

    def run():
        block.reset(0)
        block.step(np.zeros((2, 1, 1), np.int64))

    with pytest.raises(EnvironmentFault) as caught:
        run()
    for word in ["index 0", *EXPECTED[defect]]:
        assert word in str(caught.value), str(caught.value)


def test_every_defect_has_its_expectation():
    assert set(BrokenContract.DEFECTS) == set(EXPECTED) | {"float64"}


def test_float64_for_float32_is_one_warning(caplog):
    env_spaces._warned.clear()
    config = EnvConfig(factory="srl_ray.envs.testing:BrokenContract", kwargs={"defect": "float64"})
    with caplog.at_level(logging.WARNING):
        check_contract(config)
        make_block(config, 2).reset(0)
    assert len(caplog.records) == 1
    assert "float64" in caplog.text


@pytest.mark.parametrize(
    "config",
    [
        EnvConfig(id="CartPole-v1"),
        EnvConfig(id="Pendulum-v1"),
        EnvConfig(id="Blackjack-v1"),
        EnvConfig(id="FrozenLake-v1"),
        EnvConfig(id="CartPole-v1", vectorization="native"),
        EnvConfig(factory=Catch, kwargs={"is_image": True}),
        EnvConfig(factory=MemoryCue),
        EnvConfig(factory=MaskedEnv, on_error="stop"),
        EnvConfig(factory=vector_factory),
        EnvConfig(factory=block_factory),
        EnvConfig(factory=CrashingEnv, kwargs={"at_step": 2}),
        EnvConfig(factory=NonFiniteEnv, on_nonfinite="drop"),
    ],
    ids=lambda config: str(config.id or getattr(config.factory, "__name__", "")),
)
def test_good_environments_pass(config):
    check_contract(config)


def test_check_resets_no_running_environment_and_closes_it(tmp_path):
    path = tmp_path / "log"
    check_contract(EnvConfig(factory="srl_ray.envs.testing:ProbeEnv", kwargs={"path": str(path)}))
    assert '"close"' in path.read_text().splitlines()[-1]


def test_exception_in_step_is_left_to_on_error():
    with pytest.raises(EnvironmentFault, match="sim diverged"):
        check_contract(EnvConfig(factory=CrashingEnv, kwargs={"at_step": 2}, on_error="stop"))


def test_hanging_environment_does_not_hang_the_check():
    begin = time.monotonic()
    with pytest.raises(EnvironmentFault, match=r"step 0 did not return within 0.2 s"):
        check_contract(EnvConfig(factory=SlowEnv, kwargs={"step_s": 5.0}, step_timeout_s=0.2))
    assert time.monotonic() - begin < 3


def test_block_check_finds_a_wrong_shape():
    block = changing_teams()
    block.spec.group.obs["obs"] = env_spaces.FieldSpec((4,), np.dtype(np.float32))
    with pytest.raises(
        EnvironmentFault, match=r"obs\['obs'\]: expected float32 \(1, 4, 4\), found float32 \(1, 4, 3\)"
    ):
        check_block(block)


# ---------------------------------------------------------------------------------------------------------------- fakes


def run_block(block, steps, seed=0):
    answers = [block.reset(seed)]
    for _ in range(steps):
        actions = np.where(answers[-1].present[..., None], 1, -5)
        answers.append(block.step(actions))
    return answers


def test_agents_that_end_one_by_one_have_exact_returns():
    answers = run_block(agents_end_one_by_one(), 90)
    episodes = [episode for answer in answers for episode in answer.episodes]
    assert len(episodes) == 10
    for episode in episodes:
        assert episode.returns == {"agent_0": 6.0, "agent_1": 9.0, "agent_2": 14.0}
        assert episode.lengths == {"agent_0": 1, "agent_1": 4, "agent_2": 9}
    assert answers[1].terminated.tolist() == [[True, False, False]]
    assert answers[1].present.tolist() == [[False, True, True]]
    assert not len(answers[1].final_lanes)


def test_turn_based_block_asks_one_agent_or_nobody():
    asked = [answer.present[0].sum() for answer in run_block(turn_based(), 39)]
    assert asked == [0 if t % 10 == 9 else 1 for t in range(40)]


def test_absent_agents_are_in_no_statistics():
    episodes = [episode for answer in run_block(changing_teams(), 300) for episode in answer.episodes]
    assert [len(episode.returns) for episode in episodes[:4]] == [2, 3, 4, 2]
    assert all(value == 10.0 for episode in episodes for value in episode.returns.values())


def test_memory_cue_pays_who_remembers():
    env = MemoryCue(delay=4, cues=3)
    obs, _ = env.reset(seed=1)
    cue = int(obs[:3].argmax())
    rewards, hidden = [], []
    for _ in range(5):
        obs, reward, terminated, _, _ = env.step(cue)
        rewards.append(reward)
        hidden.append(not obs[:3].any())
    assert rewards == [0, 0, 0, 0, 1]
    assert terminated
    assert all(hidden)


def test_catch_can_be_solved_by_following_the_ball():
    env = Catch()
    obs, _ = env.reset(seed=0)
    total = 0.0
    for _ in range(200):
        board = obs.reshape(6, 5)
        ball = int(board[:-1].argmax()) % 5 if board[:-1].any() else None
        paddle = int(board[-1].argmax())
        action = 1 if ball is None else int(np.sign(ball - paddle)) + 1
        obs, reward, terminated, _, _ = env.step(action)
        total += reward
        if terminated:
            obs, _ = env.reset()
    assert total == 40


def test_fakes_pass_gymnasiums_own_checker():
    from gymnasium.utils.env_checker import check_env

    for env in (Catch(), Catch(is_image=True), MemoryCue()):
        check_env(env, skip_render_check=True)


def test_example_of_the_documentation_is_a_block():
    page = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    names: dict = {}
    exec(code, names)
    config = EnvConfig(factory=names["GuessBlock"])
    check_contract(config)
    block = make_block(config, 8)
    seen = block.reset(0).obs["number"].argmax(axis=-1)
    answer = block.step(seen[..., None])
    assert answer.reward.tolist() == [[1.0]] * 8
    assert [episode.returns["guesser"] for episode in answer.episodes] == [1.0] * 8
