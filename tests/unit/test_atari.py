"""Atari's preset: the same game in every implementation, true scores beside what the learner sees."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from srl_ray.core.errors import ConfigError
from srl_ray.core.types import FrameStack
from srl_ray.envs.atari import AtariOptions, FireReset
from srl_ray.envs.config import EnvConfig
from srl_ray.envs.contract import check_contract
from srl_ray.envs.factory import make_block

pytestmark = pytest.mark.unit

KINDS = ["sync", "native", "envpool"]


def config(kind, game="Breakout", num_envs=1, **options):
    pytest.importorskip("ale_py", reason="ale-py is not installed: pip install 'srl_ray[atari]'")
    pytest.importorskip("cv2", reason="OpenCV is not installed: pip install 'srl_ray[atari]'")
    if kind == "envpool":
        pytest.importorskip("envpool", reason="EnvPool is not installed: pip install 'srl_ray[envpool]'")
    kwargs = options.pop("kwargs", {})
    return EnvConfig(
        id=f"ALE/{game}-v5", preset="atari", vectorization=kind, envs_per_block=num_envs, kwargs=kwargs, **options
    )


@pytest.mark.parametrize("kind", KINDS)
def test_observations_are_four_grey_frames_stored_one_by_one(kind):
    block = make_block(config(kind))
    pad = "zero" if kind == "native" else "repeat"
    assert block.spec.group.obs["obs"].shape == (4, 84, 84)
    assert block.spec.group.obs["obs"].stack == FrameStack(0, 4, pad)
    assert block.spec.frame_skip == 4
    assert block.spec.group.action.nvec == (4,)
    check_contract(config(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_options_reach_every_implementation(kind):
    kwargs = {"stack": 2, "screen": 40, "full_action_space": True, "frame_skip": 2}
    block = make_block(config(kind, kwargs=kwargs))
    assert block.spec.group.obs["obs"].shape == (2, 40, 40)
    assert block.spec.group.action.nvec == (18,)
    assert block.spec.frame_skip == 2


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_reported_unclipped_and_time_limits_truncate(kind):
    chosen = config(kind, "MsPacman", clip_rewards=True, kwargs={"max_frames": 400, "noop_max": 0})
    block = make_block(chosen)
    block.reset(0)
    signs, episode = [], None
    for _ in range(105):  # the limit is 100 steps, less the frames of the reset; the game begins after 65
        answer = block.step(np.full((1, 1, 1), 3))
        signs.append(float(answer.reward[0, 0]))
        if answer.episodes:
            (episode,) = answer.episodes
            break
    assert episode is not None
    assert answer.truncated.all()
    assert not answer.terminated.any()
    assert set(signs) == {0.0, 1.0}
    assert episode.returns["agent"] == 10 * sum(signs)  # a pellet is ten points
    assert episode.length == len(signs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_life_ends_the_learners_episode_and_not_the_game(kind):
    block = make_block(config(kind, episodic_life=True, kwargs={"sticky_actions": 0.0}))
    assert block.spec.group.obs["obs"].stack is None
    block.reset(0)
    for _ in range(100):
        answer = block.step(np.ones((1, 1, 1), np.int64))
        if answer.terminated.any():
            break
    assert answer.terminated.all()
    assert answer.on_reset.all()
    assert answer.present.all()
    assert answer.final_lanes.tolist() == [0]
    np.testing.assert_array_equal(answer.final_obs["obs"], answer.obs["obs"][:, 0])
    assert not answer.episodes
    lives, games = 1, []
    for _ in range(600):
        answer = block.step(np.ones((1, 1, 1), np.int64))
        lives += int(answer.terminated.sum())
        games += answer.episodes
        if games:
            break
    assert lives == 5
    assert games[0].length > 100


def test_fire_is_pressed_once_after_a_reset():
    class Game(gymnasium.Env):
        observation_space = spaces.Box(0, 255, (1,), np.uint8)
        action_space = spaces.Discrete(3)
        pressed: list = []  # noqa: RUF012
        ends_at_once = False

        def get_action_meanings(self):
            return ["NOOP", "UP", "FIRE"]

        def reset(self, *, seed=None, options=None):
            self.pressed.append("reset")
            return np.zeros(1, np.uint8), {"lives": 3}

        def step(self, action):
            self.pressed.append(action)
            return np.ones(1, np.uint8), 0.0, self.ends_at_once, False, {"lives": 2}

    env = FireReset(Game())
    assert env.reset(seed=1) == (np.ones(1, np.uint8), {"lives": 2})
    assert Game.pressed == ["reset", 2]
    Game.ends_at_once = True
    assert env.reset() == (np.zeros(1, np.uint8), {"lives": 3})


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match=r"env\.kwargs.*\['sticky'\].*sticky_actions"):
        AtariOptions.read({"sticky": 1})
    with pytest.raises(ValueError, match=r"env\.preset must be none, atari or minigrid, got 'ale'"):
        EnvConfig(id="ALE/Pong-v5", preset="ale")
    with pytest.raises(ValueError, match=r"env\.preset=atari is for env\.id"):
        EnvConfig(factory="m:f", preset="atari")
