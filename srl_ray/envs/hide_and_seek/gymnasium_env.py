"""The transfer tasks as Gymnasium environments, one at a time or many at once. The package registers their ids.

    env = gymnasium.make("srl_ray/LockAndReturn-v0", render_mode="rgb_array")
    envs = gymnasium.make_vec("srl_ray/LockAndReturn-v0", num_envs=64)  # one block, stepped together

An environment plays exactly as environment 0 of a block with the same seed, and environment e of a vector as
environment e of that block.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from srl_ray.core.types import Arrays
from srl_ray.envs.hide_and_seek.block import HideAndSeekBlock, make_block
from srl_ray.envs.hide_and_seek.gym_spaces import action_space, members, observation_space
from srl_ray.envs.hide_and_seek.picture import RENDER_FPS, check_render_mode, picture

IDS = {
    "srl_ray/ObjectCounting-v0": "object_counting",
    "srl_ray/LockAndReturn-v0": "lock_and_return",
    "srl_ray/SequentialLock-v0": "sequential_lock",
    "srl_ray/Blueprint-v0": "blueprint",
    "srl_ray/Shelter-v0": "shelter",
}
"""Gymnasium id → task."""


class SingleAgentEnv(gymnasium.Env[Arrays, np.ndarray]):
    """A task of one agent.

    Observations are the block's fields (see the package docstring) with masks as int8, actions (x force, y force, yaw
    torque, pull, lock). The last step's info holds `summary`, the episode's numbers, or `discarded` if the simulation
    failed.

    Args:
        render_mode: "rgb_array" or None.
        settings: Arguments of `make_block`, `task` among them.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": RENDER_FPS}  # type: ignore[misc]

    def __init__(self, *, render_mode: str | None = None, **settings: Any) -> None:
        check_render_mode(render_mode)
        self.render_mode = render_mode
        self.block = make_lone_block(1, **settings)
        self.observation_space: gymnasium.Space[Any] = observation_space(self.block.spec.group.obs)
        self.action_space = action_space(self.block)
        self._is_begun = False
        self._is_fresh = False  # the block has begun an episode that nobody has been shown
        self._last: Arrays = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Arrays, dict[str, Any]]:
        """Begin an episode: the first of `seed`, or the next of the last seed (at first, of a random one)."""
        super().reset(seed=seed)
        if seed is not None or not self._is_begun:
            self.block.reset(int(self.np_random.integers(2**31)) if seed is None else seed)
            self._is_begun = True
        elif not self._is_fresh:
            self.block.start_in(0)
        self._is_fresh = False
        self._last = self._observation(self.block.observation.fields)
        return self._last, {}

    def step(self, action: np.ndarray) -> tuple[Arrays, float, bool, bool, dict[str, Any]]:
        assert self._is_begun, "reset comes before step"
        answer = self.block.step(np.asarray(action, np.int64).reshape(1, 1, -1))
        info: dict[str, Any] = {}
        self._is_fresh = bool(answer.episodes)
        if not self._is_fresh:
            self._last = self._observation(answer.obs)
        elif answer.episodes[0].discarded:  # there is no last observation: repeat the one before
            info["discarded"] = True
        else:
            self._last = members({name: field[0] for name, field in answer.final_obs.items()})
            info["summary"] = answer.episodes[0].summary
        terminated, truncated = bool(answer.terminated[0, 0]), bool(answer.truncated[0, 0])
        return self._last, float(answer.reward[0, 0]), terminated, truncated, info

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """uint8 [height, width, 3] in the mode "rgb_array"; after an episode's end already the next one's start."""
        return None if self.render_mode is None else picture(self.block, 0)

    def close(self) -> None:
        self.block.close()

    def _observation(self, obs: Arrays) -> Arrays:
        return members({name: field[0, 0] for name, field in obs.items()})


class SingleAgentVectorEnv(VectorEnv[Arrays, np.ndarray, np.ndarray]):
    """Many environments of a task of one agent, stepped together by one block; each restarts in the step that ends it.

    `infos` of a step with ends hold `final_obs` and `final_info` as Gymnasium's own vector environments do.

    Args:
        num_envs: E.
        render_mode: "rgb_array" or None.
        settings: Arguments of `make_block`, `task` among them.
    """

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "render_modes": ["rgb_array"],
        "render_fps": RENDER_FPS,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(self, num_envs: int = 1, *, render_mode: str | None = None, **settings: Any) -> None:
        check_render_mode(render_mode)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.block = make_lone_block(num_envs, **settings)
        self.single_observation_space = observation_space(self.block.spec.group.obs)
        self.single_action_space = action_space(self.block)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Begin anew everywhere; environment e draws from a stream of its own derived from (seed, e)."""
        super().reset(seed=seed)
        self.block.reset(int(self.np_random.integers(2**31)) if seed is None else seed)
        return self._observations(), {}

    def step(self, actions: np.ndarray) -> tuple[Arrays, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        before = self._observations()
        answer = self.block.step(np.asarray(actions, np.int64)[:, None])
        infos: dict[str, Any] = {}
        row_of = {int(lane): row for row, lane in enumerate(answer.final_lanes)}
        for record in answer.episodes:
            env = record.env_index
            fields, row = (before, env) if record.discarded else (answer.final_obs, row_of[env])
            info = {"discarded": True} if record.discarded else {"summary": record.summary}
            last = members({name: field[row] for name, field in fields.items()})
            infos = self._add_info(infos, {"final_obs": last, "final_info": info}, env)
        return (
            self._observations(),
            answer.reward[:, 0].astype(np.float64),
            answer.terminated[:, 0].copy(),
            answer.truncated[:, 0].copy(),
            infos,
        )

    def render(self) -> tuple[np.ndarray, ...] | None:
        """A picture per environment."""
        return None if self.render_mode is None else tuple(picture(self.block, env) for env in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        self.block.close()

    def _observations(self) -> Arrays:
        return members({name: field[:, 0] for name, field in self.block.observation.fields.items()})


def make_lone_block(num_envs: int, **settings: Any) -> HideAndSeekBlock:
    """`make_block`, for tasks of one agent only."""
    block = make_block(num_envs, **settings)
    if block.spec.group.num_agents != 1:
        raise ValueError(
            f"{block.spec.env_id} has {block.spec.group.num_agents} agents, a Gymnasium environment has one; use "
            "srl_ray.envs.hide_and_seek.parallel.parallel_env or make_block"
        )
    return block


def register_ids() -> None:
    """Tell Gymnasium the ids; harmless when it knows them."""
    for env_id, task in IDS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(
                env_id,
                entry_point=f"{__name__}:{SingleAgentEnv.__name__}",
                vector_entry_point=f"{__name__}:{SingleAgentVectorEnv.__name__}",
                kwargs={"task": task},
            )
