"""Blocks of gymnasium environments: the same rows in every autoreset mode, exact episodes, faults, seeds."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from srl_ray.core.errors import EnvironmentFault
from srl_ray.core.types import ACTION_MASK
from srl_ray.envs.block import EnvBlock
from srl_ray.envs.gymnasium_block import GymBlock, env_seed
from srl_ray.envs.spaces import MaskFromInfo
from srl_ray.envs.testing import (
    CountingEnv,
    CrashingEnv,
    Episode,
    NonFiniteEnv,
    ProbeEnv,
    ScriptedEnv,
    SlowEnv,
    UnbuildableEnv,
)
from srl_ray.envs.vector_block import VectorBlock

pytestmark = pytest.mark.unit

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]
KINDS = ["plain", *MODES]

# The worked example of the row convention: A truncated after 3 steps, B terminated after 2, C begins.
EXAMPLE = [
    Episode(obs=[10, 11, 12, 13], rewards=[1, 2, 3], terminated=False, truncated=True),
    Episode(obs=[20, 21, 22], rewards=[4, 5]),
    Episode(obs=[30, 31, 32], rewards=[6, 7]),
]
EXAMPLE_ROWS = [
    # obs, on_reset, reward, terminated, truncated
    (10, 1, 1, 0, 0),
    (11, 0, 2, 0, 0),
    (12, 0, 3, 0, 0),
    (13, 0, 0, 0, 1),
    (20, 1, 4, 0, 0),
    (21, 0, 5, 0, 0),
    (22, 0, 0, 1, 0),
    (30, 1, 6, 0, 0),
]


def make(kind, make_env, num_envs=1, **options):
    if kind == "plain":
        return GymBlock(make_env, num_envs, env_id="test", **options)
    return VectorBlock(lambda: SyncVectorEnv([make_env] * num_envs, autoreset_mode=kind), env_id="test", **options)


class Rows:
    """Slow reference: the rows of every lane from the answers of a block."""

    def __init__(self, block):
        self.block = block
        self.lanes = [[] for _ in range(block.spec.num_lanes)]
        self.episodes = []
        self.present = None

    def reset(self, seed=0):
        self._add(self.block.reset(seed))
        return self

    def step(self, action=0):
        spec = self.block.spec
        actions = np.full((spec.num_envs, spec.group.num_agents, len(spec.group.action.nvec)), action, np.int64)
        actions[~self.present] = 10**6  # never looked at
        self._add(self.block.step(actions))

    def run(self, steps, seed=0, action=0):
        self.reset(seed)
        for _ in range(steps):
            self.step(action)
        return self

    def _add(self, answer):
        assert not (answer.on_reset & ~answer.present).any()
        finals = {lane: index for index, lane in enumerate(answer.final_lanes.tolist())}
        for lane, rows in enumerate(self.lanes):
            at = np.unravel_index(lane, answer.present.shape)
            if rows and not rows[-1]["final"]:
                rows[-1]["reward"] += float(answer.reward[at])
            if answer.terminated[at] or answer.truncated[at]:
                assert rows
                assert not rows[-1]["final"]
                terminated = bool(answer.terminated[at])
                if lane in finals:
                    obs = {name: values[finals[lane]].copy() for name, values in answer.final_obs.items()}
                else:
                    obs = {name: values * (not terminated) for name, values in rows[-1]["obs"].items()}
                rows.append(self._row(obs, False, terminated, not terminated))
            if answer.present[at]:
                obs = {name: values[at].copy() for name, values in answer.obs.items()}
                rows.append(self._row(obs, bool(answer.on_reset[at]), False, False))
        self.episodes += answer.episodes
        self.present = answer.present.copy()

    @staticmethod
    def _row(obs, on_reset, terminated, truncated):
        return {
            "obs": obs,
            "on_reset": on_reset,
            "reward": 0.0,
            "terminated": terminated,
            "truncated": truncated,
            "final": terminated or truncated,
        }

    def table(self, lane=0):
        return [
            (row["obs"]["obs"][0], row["on_reset"], row["reward"], row["terminated"], row["truncated"])
            for row in self.lanes[lane]
        ]


# ---------------------------------------------------------------------------------------------------- row convention


@pytest.mark.parametrize("kind", KINDS)
def test_worked_example_gives_these_rows_in_every_autoreset_mode(kind):
    rows = Rows(make(kind, lambda: ScriptedEnv(EXAMPLE))).run(8 if kind is AutoresetMode.NEXT_STEP else 6)
    assert rows.table()[: len(EXAMPLE_ROWS)] == EXAMPLE_ROWS
    assert [(episode.length, episode.returns["agent"]) for episode in rows.episodes[:2]] == [(3, 6.0), (2, 9.0)]


@pytest.mark.parametrize("mode", MODES)
def test_random_lengths_give_identical_rows_in_every_mode(mode):
    def make_env():
        return CountingEnv(length=(1, 6), is_strict=True)

    expected = Rows(make("plain", make_env, 3)).run(200, seed=5)
    found = Rows(make(mode, make_env, 3)).run(200, seed=5)
    for lane in range(3):
        common = min(len(expected.lanes[lane]), len(found.lanes[lane])) - 1
        assert common > 100
        assert expected.table(lane)[:common] == found.table(lane)[:common]


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_steps_or_resets_an_ended_environment(kind):
    envs = []

    def make_env():
        envs.append(ScriptedEnv([Episode(range(n + 1), [1.0] * n) for n in (1, 3, 1, 1, 7, 2)], is_strict=True))
        return envs[-1]

    rows = Rows(make(kind, make_env, 2)).run(500)
    for e, env in enumerate(envs):
        ended = [episode for episode in rows.episodes if episode.env_index == e]
        assert env.num_resets - len(ended) in ((0, 1) if kind is AutoresetMode.NEXT_STEP else (1,))
        acting = sum(not row["final"] for row in rows.lanes[e]) - rows.present[e, 0]
        assert env.num_steps == acting


@pytest.mark.parametrize("kind", KINDS)
def test_returns_and_lengths_of_all_episodes_are_exact(kind):
    script = [Episode(range(n + 1), [0.1 * n] * n) for n in (3, 1, 2, 5)]
    rows = Rows(make(kind, lambda: ScriptedEnv(script))).run(40)
    assert len(rows.episodes) >= 10
    for index, episode in enumerate(rows.episodes):
        n = (3, 1, 2, 5)[index % 4]
        assert episode.length == n
        assert episode.lengths == {"agent": n}
        assert episode.returns["agent"] == pytest.approx(0.1 * n * n, abs=1e-12)
        assert not episode.discarded


@pytest.mark.parametrize("kind", KINDS)
def test_both_flags_set_means_terminated(kind):
    script = [Episode([1, 2], [1.0], terminated=True, truncated=True)]
    rows = Rows(make(kind, lambda: ScriptedEnv(script))).run(3)
    assert rows.table()[:3] == [(1, 1, 1, 0, 0), (2, 0, 0, 1, 0), (1, 1, 1, 0, 0)]


@pytest.mark.parametrize("terminated", [True, False])
def test_same_step_without_final_obs_ends_without_one(terminated):
    class Forgetful(SyncVectorEnv):
        def step(self, actions):
            *answer, infos = super().step(actions)
            infos.pop("final_obs", None)
            return (*answer, infos)

    script = [Episode([1, 2, 3], [1, 1], terminated, not terminated)]
    block = VectorBlock(
        lambda: Forgetful([lambda: ScriptedEnv(script)], autoreset_mode=AutoresetMode.SAME_STEP), env_id="test"
    )
    rows = Rows(block).run(4)
    stand_in = 0 if terminated else 2
    assert rows.table()[:4] == [
        (1, 1, 1, 0, 0),
        (2, 0, 1, 0, 0),
        (stand_in, 0, 0, terminated, not terminated),
        (1, 1, 1, 0, 0),
    ]


def test_final_obs_may_come_as_one_batched_array():
    class Batched(SyncVectorEnv):
        def step(self, actions):
            *answer, infos = super().step(actions)
            if "final_obs" in infos:
                given = infos["final_obs"]
                infos["final_obs"] = np.stack([np.zeros(1, np.float32) if one is None else one for one in given])
            return (*answer, infos)

    block = VectorBlock(
        lambda: Batched([lambda: ScriptedEnv(EXAMPLE)] * 2, autoreset_mode=AutoresetMode.SAME_STEP), env_id="test"
    )
    assert Rows(block).run(6).table(1)[: len(EXAMPLE_ROWS)] == EXAMPLE_ROWS


def test_next_step_lane_is_absent_for_one_step_and_its_reward_is_discarded():
    class Noisy(SyncVectorEnv):
        def step(self, actions):
            was_ended = self._autoreset_envs.copy()
            obs, rewards, *rest = super().step(actions)
            return obs, rewards + 100.0 * was_ended, *rest

    block = VectorBlock(
        lambda: Noisy([lambda: ScriptedEnv(EXAMPLE)], autoreset_mode=AutoresetMode.NEXT_STEP), env_id="test"
    )
    rows = Rows(block).run(3)
    assert not rows.present[0, 0]
    rows.step()
    assert rows.present[0, 0]
    rows.step()
    assert rows.table()[3:6] == [*EXAMPLE_ROWS[3:5], (21, 0, 0, 0, 0)]


def test_mode_comes_from_the_metadata_else_from_the_argument():
    class Silent(SyncVectorEnv):
        def __init__(self):
            super().__init__([lambda: ScriptedEnv(EXAMPLE)], autoreset_mode=AutoresetMode.DISABLED)
            del self.metadata["autoreset_mode"]

    rows = Rows(VectorBlock(Silent, env_id="test", autoreset="disabled")).run(6)
    assert rows.table()[: len(EXAMPLE_ROWS)] == EXAMPLE_ROWS


def test_native_cartpole_and_ours_are_blocks():
    block = VectorBlock(
        lambda: gymnasium.make_vec("CartPole-v1", num_envs=4, vectorization_mode="vector_entry_point"),
        env_id="CartPole",
    )
    assert isinstance(block, EnvBlock)
    rows = Rows(block).run(300)
    assert len(rows.episodes) > 50
    assert all(episode.returns["agent"] == episode.length for episode in rows.episodes)
    # Each episode of n actions is n acting rows and one final row.
    for e in range(4):
        lengths = [episode.length for episode in rows.episodes if episode.env_index == e]
        finals = [index for index, row in enumerate(rows.lanes[e]) if row["final"]]
        assert np.diff([-1, *finals]).tolist() == [n + 1 for n in lengths]


def test_summary_numbers_of_the_last_info_are_kept():
    class Telling(CountingEnv):
        def step(self, action):
            *answer, _ = super().step(action)
            return (*answer, {"is_success": True, "summary": {"speed": 2.5}, "other": 1})

    for kind in KINDS:
        rows = Rows(make(kind, lambda: Telling(length=2))).run(6)
        assert rows.episodes[0].summary == {"speed": 2.5, "is_success": 1.0}


# -------------------------------------------------------------------------------------------------------------- spaces


class Strict(gymnasium.Env):
    """Raises unless its action is inside the action space; pays 1; ends after 4 steps."""

    observation_space = spaces.Dict({"x": spaces.Box(-1, 1, (2,)), "img": spaces.Box(0, 255, (2, 2, 3), np.uint8)})

    def __init__(self, action_space):
        self.action_space = action_space
        self.seen = []
        self._flip = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return self._obs(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.seen.append(action)
        self._t += 1
        return self._obs(), 1, self._t == 4, False, {}

    def _obs(self):
        x, img = np.full(2, 0.5, np.float32), np.full((2, 2, 3), 255, np.uint8)
        self._flip = not self._flip
        return {"x": x, "img": img} if self._flip else {"img": img, "x": x}


ACTION_SPACES = [
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 3], start=[5, -7]),
    spaces.MultiBinary(3),
    spaces.Box(np.array([0, -2], np.float32), np.array([1, 5], np.float32)),
    spaces.Box(-1, 1, (5,), np.int32),
    spaces.Dict({"move": spaces.Discrete(3, start=1), "hand": spaces.MultiBinary(2)}),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("action_space", ACTION_SPACES, ids=str)
def test_environment_gets_actions_inside_its_space(kind, action_space):
    envs = []

    def make_env():
        envs.append(Strict(action_space))
        return envs[-1]

    block = make(kind, make_env, 2)
    rng = np.random.default_rng(0)
    answer = block.reset(0)
    action = block.spec.group.action
    for _ in range(60):
        if action.field.dtype == np.int64:
            actions = rng.integers(0, action.nvec, (2, 1, len(action.nvec)))
        else:
            actions = rng.normal(0, 5, (2, 1, len(action.low))).astype(np.float32)
        answer = block.step(actions)
        assert answer.obs["img"].dtype == np.uint8
        assert answer.obs["img"].min() == 255
        np.testing.assert_array_equal(answer.obs["x"], 0.5)
    if isinstance(action_space, spaces.Box) and action_space.dtype == np.float32:
        seen = np.stack(envs[0].seen)
        middle = (action_space.low + action_space.high) / 2
        assert (seen < middle).any(axis=0).all()
        assert (seen > middle).any(axis=0).all()


class Masked(CountingEnv):
    metadata = {"action_mask": "info"}  # noqa: RUF012
    action_space = spaces.Discrete(3)
    is_stuck = False

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed, options=options)
        return obs, {"action_mask": np.array([1, 0, 1], np.int8)}

    def step(self, action):
        *answer, _ = super().step(action)
        is_stuck = self.is_stuck and self._t == 3
        return (*answer, {"action_mask": np.array([0, 0, 0] if is_stuck else [0, 1, 1], np.int8)})


def test_action_mask_of_the_info_becomes_an_observation_field():
    block = GymBlock(Masked, 2, env_id="test")
    assert set(block.spec.group.obs) == {"obs", ACTION_MASK}
    assert block.reset(0).obs[ACTION_MASK].tolist() == [[[True, False, True]]] * 2
    assert block.step(np.zeros((2, 1, 1), np.int64)).obs[ACTION_MASK].tolist() == [[[False, True, True]]] * 2


def test_mask_without_a_legal_action_names_environment_agent_and_step():
    class Stuck(Masked):
        is_stuck = True

    with pytest.raises(EnvironmentFault, match=r"'stuck' \(index 0\).*'agent'.*step 3"):
        Rows(GymBlock(Stuck, 2, env_id="stuck")).run(5, action=2)


@pytest.mark.parametrize("kind", KINDS)
def test_illegal_action_is_never_sent(kind):
    envs = []

    def make_env():
        envs.append(MaskFromInfo(Masked()))
        return envs[-1]

    block = make(kind, make_env, 2)
    block.reset(0)
    block.step(np.array([[[0]], [[2]]]))
    with pytest.raises(EnvironmentFault, match=r"index 1.*illegal action \[0\].*'agent' at step 1"):
        block.step(np.array([[[1]], [[0]]]))
    assert [env.unwrapped._t for env in envs] == [1, 1]


def test_failing_masked_reset_ends_all_lanes():
    built = []

    def make_env():
        built.append(CrashingEnv(at_step=0, only_episode=1, length=2) if not built else CountingEnv(length=3))
        return built[-1]

    rows = Rows(make(AutoresetMode.DISABLED, make_env, 2)).run(3)
    assert rows.table(0)[:4] == [(0, 1, 1, 0, 0), (1, 0, 1, 0, 0), (2, 0, 0, 1, 0), (0, 1, 1, 0, 0)]
    assert rows.table(1)[:5] == [(0, 1, 1, 0, 0), (1, 0, 1, 0, 0), (1, 0, 0, 0, 1), (0, 1, 1, 0, 0), (1, 0, 0, 0, 0)]
    assert [(episode.env_index, episode.discarded) for episode in rows.episodes] == [(0, False), (1, True)]


# --------------------------------------------------------------------------------------------------------------- seeds


def resets(path):
    return [line for line in map(json.loads, path.read_text().splitlines()) if line["event"] == "reset"]


@pytest.mark.parametrize("kind", ["plain", AutoresetMode.SAME_STEP])
def test_every_environment_has_its_own_seed_and_later_resets_have_none(kind, tmp_path):
    found = {}
    for name, seed in (("first", 7), ("again", 7), ("other", 8)):
        path = tmp_path / name
        block = make(kind, lambda path=path: ProbeEnv(str(path), length=3), 4)
        Rows(block).run(20, seed=seed)
        block.close()
        found[name] = resets(path)
    seeds = {name: [line["seed"] for line in lines[:4]] for name, lines in found.items()}
    assert len(set(seeds["first"])) == 4
    assert seeds["first"] == seeds["again"] == [env_seed(7, e) for e in range(4)]
    assert not set(seeds["first"]) & set(seeds["other"])
    assert all(line["seed"] is None for line in found["first"][4:])
    numbers = [line["first_random"] for line in found["first"]]
    assert len(set(numbers)) == len(numbers)
    assert numbers == [line["first_random"] for line in found["again"]]


# --------------------------------------------------------------------------------------------------------------- faults


def test_environment_that_raises_is_rebuilt_and_its_siblings_go_on(tmp_path):
    log = tmp_path / "crashes"
    built = []

    def make_env():
        built.append(CrashingEnv(probability=0.3, length=(1, 20), log_path=str(log)))
        return built[-1]

    block = GymBlock(make_env, 2, env_id="crashing", max_faults=50)
    rows = Rows(block).run(2000, seed=3)
    crashes = len(log.read_text().splitlines())
    discarded = [episode for episode in rows.episodes if episode.discarded]
    assert crashes > 20
    assert len(discarded) == crashes == block.num_faults == len(built) - 2
    good = [episode for episode in rows.episodes if not episode.discarded]
    assert all(episode.returns["agent"] == episode.length for episode in good)
    # Every episode that began is accounted for, so nothing but its own fault or end reset an environment.
    for e in range(2):
        begun = sum(row["on_reset"] for row in rows.lanes[e])
        assert begun == sum(episode.env_index == e for episode in rows.episodes) + 1


@pytest.mark.parametrize("kind", KINDS)
def test_crash_ends_the_lane_truncated_on_the_last_observation_seen(kind):
    def make_env():
        return CrashingEnv(at_step=3, only_episode=0, length=5)

    built = []

    def once():
        built.append(make_env() if not built else CountingEnv(length=5))
        return built[-1]

    rows = Rows(make(kind, once)).run(4)
    table = rows.table()
    assert [row[0] for row in table[:5]] == [0, 1, 2, 2, 0]
    assert table[3] == (2, 0, 0, 0, 1)
    assert table[4][:2] == (0, 1)
    assert [(episode.length, episode.discarded) for episode in rows.episodes] == [(2, True)]


def test_crash_in_a_later_reset_keeps_the_finished_episode():
    built = []

    def make_env():
        built.append(CrashingEnv(at_step=0, only_episode=1, length=2) if not built else CountingEnv(length=2))
        return built[-1]

    rows = Rows(GymBlock(make_env, 1, env_id="test")).run(3)
    assert [(episode.length, episode.discarded) for episode in rows.episodes] == [(2, False), (0, True)]
    assert rows.table()[2] == (2, 0, 0, 1, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_without_recovery_the_original_traceback_is_in_the_fault(kind):
    block = make(kind, lambda: CrashingEnv(at_step=2), 2, on_error="stop")
    with pytest.raises(EnvironmentFault) as caught:
        Rows(block).run(5)
    text = str(caught.value)
    assert "ValueError: sim diverged" in text
    assert "_maybe_crash" in text
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("kind", KINDS)
def test_environment_that_always_raises_ends_the_run_after_max_faults(kind):
    block = make(kind, lambda: CrashingEnv(at_step=1), max_faults=3)
    with pytest.raises(EnvironmentFault, match=r"4 times.*sim diverged"):
        Rows(block).run(10)
    assert block.num_faults == 4


def test_constructor_that_raises_says_so_at_once():
    with pytest.raises(EnvironmentFault, match="licence server not reachable"):
        GymBlock(UnbuildableEnv, 2, env_id="licensed")


@pytest.mark.parametrize("kind", KINDS)
def test_slow_step_is_a_fault(kind):
    block = make(kind, lambda: SlowEnv(step_s=0.05), step_timeout_s=0.02, max_faults=1)
    with pytest.raises(EnvironmentFault, match=r"step took .* s \(env.step_timeout_s=0.02\)"):
        Rows(block).run(3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["obs", "reward"])
def test_nonfinite_numbers_stop_the_run_and_name_the_place(kind, what):
    block = make(kind, lambda: NonFiniteEnv(what, at_step=3), 2)
    with pytest.raises(EnvironmentFault) as caught:
        Rows(block).run(10)
    text = str(caught.value)
    assert "index 0" in text
    assert "became nan" in text
    assert "step 3" in text
    assert what in text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["obs", "reward"])
@pytest.mark.parametrize("at_step", [2, 5])
def test_nonfinite_episode_can_be_dropped(kind, what, at_step):
    block = make(kind, lambda: NonFiniteEnv(what, at_step=at_step, every=2), 2, on_nonfinite="drop")
    rows = Rows(block).run(60)
    for e in range(2):
        mine = [episode for episode in rows.episodes if episode.env_index == e]
        assert [episode.discarded for episode in mine[:4]] == [True, False, True, False]
        assert all(episode.returns["agent"] == 5 for episode in mine if not episode.discarded)
        for row in rows.lanes[e]:
            assert np.isfinite(row["obs"]["obs"]).all()
            assert np.isfinite(row["reward"])
    assert block.num_faults == sum(episode.discarded for episode in rows.episodes)


@pytest.mark.parametrize("kind", KINDS)
def test_nonfinite_first_observation_is_dropped_too(kind):
    block = make(kind, lambda: NonFiniteEnv("obs", at_step=0, every=2), on_nonfinite="drop")
    rows = Rows(block).run(60)
    assert [episode.discarded for episode in rows.episodes[:4]] == [True, False, True, False]
    assert all(np.isfinite(row["obs"]["obs"]).all() for row in rows.lanes[0])


def test_close_closes_every_environment_and_may_be_called_twice(tmp_path):
    path = tmp_path / "log"
    block = GymBlock(lambda: ProbeEnv(str(path)), 3, env_id="probe")
    block.reset(0)
    block.close()
    block.close()
    assert sum(json.loads(line)["event"] == "close" for line in path.read_text().splitlines()) == 3


def test_failed_environment_is_closed_before_it_is_replaced(tmp_path):
    path = tmp_path / "log"

    class Crashing(ProbeEnv):
        def step(self, action):
            raise ValueError("sim diverged")

    built = []

    def make_env():
        built.append(Crashing(str(path)) if not built else CountingEnv())
        return built[-1]

    Rows(GymBlock(make_env, 1, env_id="probe")).run(2)
    assert json.loads(path.read_text().splitlines()[-1])["event"] == "close"


# ----------------------------------------------------------------------------------- what only the learner should see


class ThreeLives(gymnasium.Env):
    """Observes its step; a life is lost at steps 2 and 4, the last one ends the game at step 6."""

    observation_space = spaces.Box(0, 10, (1,), np.float32)
    action_space = spaces.Discrete(2)
    rewards = (5.0, -2.0, 0.5, 0.0, 7.0, -3.0)

    def reset(self, *, seed=None, options=None):
        self._t = 0
        return self._obs(), {"lives": 3}

    def step(self, action):
        self._t += 1
        return self._obs(), self.rewards[self._t - 1], self._t == 6, False, {"lives": 3 - self._t // 2}

    def _obs(self):
        return np.array([self._t], np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_lives_are_episodes_and_signs_are_rewards_for_the_learner_only(kind):
    rows = Rows(make(kind, ThreeLives, 2, clip_rewards=True, episodic_life=True)).run(16)
    expected = [
        *[(0, 1, 1, 0, 0), (1, 0, -1, 0, 0), (2, 0, 0, 1, 0)],
        *[(2, 1, 1, 0, 0), (3, 0, 0, 0, 0), (4, 0, 0, 1, 0)],
        *[(4, 1, 1, 0, 0), (5, 0, -1, 0, 0), (6, 0, 0, 1, 0)],
    ]
    for lane in range(2):
        assert rows.table(lane)[:18] == expected * 2
    assert [(episode.length, episode.returns["agent"]) for episode in rows.episodes[:4]] == [(6, 7.5)] * 4


@pytest.mark.parametrize("kind", KINDS)
def test_without_these_options_rewards_and_games_are_whole(kind):
    rows = Rows(make(kind, ThreeLives)).run(6)
    assert [row[2] for row in rows.table()[:7]] == [*ThreeLives.rewards, 0.0]


@pytest.mark.parametrize("kind", KINDS)
def test_lives_that_are_not_told_are_missed_by_name(kind):
    with pytest.raises(EnvironmentFault, match=r"env\.episodic_life=true needs info\['lives'\]"):
        Rows(make(kind, CountingEnv, episodic_life=True)).run(3)


@pytest.mark.parametrize("at_step", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_life_lost_in_a_step_with_nan_is_dropped_with_its_episode(kind, at_step):
    class Broken(ThreeLives):
        def _obs(self):
            return np.array([np.nan if self._t == at_step else self._t], np.float32)

    rows = Rows(make(kind, Broken, episodic_life=True, on_nonfinite="drop", max_faults=99)).run(30)
    assert all(np.isfinite(row["obs"]["obs"]).all() for row in rows.lanes[0])
    assert all(episode.discarded for episode in rows.episodes)
    assert len(rows.episodes) >= 3
