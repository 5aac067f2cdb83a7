"""Hide-and-seek as a PettingZoo parallel environment.

    env = parallel_env(scenario="quadrant")
    observations, infos = env.reset(seed=0)
    while env.agents:
        actions = {agent: env.action_space(agent).sample() for agent in env.agents}
        observations, rewards, terminations, truncations, infos = env.step(actions)

It is one environment of a block and plays exactly as environment 0 of any block with the same seed.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from srl_ray.core.types import Arrays
from srl_ray.envs.hide_and_seek.block import NO_ACTION, make_block
from srl_ray.envs.hide_and_seek.gym_spaces import action_space, members, observation_space
from srl_ray.envs.hide_and_seek.picture import RENDER_FPS, check_render_mode, picture

try:
    from pettingzoo import ParallelEnv
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}; install it with `pip install 'srl_ray[pettingzoo]'`") from error


class HideAndSeekParallelEnv(ParallelEnv):  # type: ignore[type-arg]
    """Agents are "hider_0" …, "seeker_0" …; an episode has those that its team sizes leave present, all until its end.

    Observations are the block's fields (see the package docstring) with masks as int8, actions (x force, y force, yaw
    torque, pull, lock). Episodes are truncated at the horizon for everybody at once. The last step's infos hold
    `summary`, the episode's behaviour statistics, or `discarded` if the simulation failed.

    Args:
        render_mode: "rgb_array" or None.
        settings: Arguments of `make_block`.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "name": "hide_and_seek_v0",
        "render_modes": ["rgb_array"],
        "render_fps": RENDER_FPS,
        "is_parallelizable": True,
    }

    def __init__(self, *, render_mode: str | None = None, **settings: Any) -> None:
        check_render_mode(render_mode)
        self.render_mode = render_mode
        self.block = make_block(1, **settings)
        group = self.block.spec.group
        self.possible_agents = list(group.agent_ids)
        self.agents: list[str] = []
        self.observation_spaces = {agent: observation_space(group.obs) for agent in self.possible_agents}
        self.action_spaces = {agent: action_space(self.block) for agent in self.possible_agents}
        self._slots = {agent: slot for slot, agent in enumerate(self.possible_agents)}
        self._is_begun = False
        self._is_fresh = False  # the block has begun an episode that nobody has been shown
        self._last: dict[str, Arrays] = {}

    def observation_space(self, agent: str) -> spaces.Dict:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.MultiDiscrete:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Arrays], dict[str, dict[str, Any]]]:
        """Begin an episode: the first of `seed`, or the next of the last seed (at first, of a random one)."""
        if seed is not None or not self._is_begun:
            self.block.reset(int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed)
            self._is_begun = True
        elif not self._is_fresh:
            self.block.start_in(0)
        self._is_fresh = False
        present = self.block.episodes.present[0]
        self.agents = [agent for agent, slot in self._slots.items() if present[slot]]
        self._last = self._observations(self.block.observation.fields)
        return self._last, {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Arrays], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        agents = self.agents
        if not agents:
            return {}, {}, {}, {}, {}
        rows = np.tile(NO_ACTION, (1, len(self.possible_agents), 1))
        for agent in agents:
            rows[0, self._slots[agent]] = actions[agent]
        answer = self.block.step(rows)
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in agents}
        self._is_fresh = bool(answer.episodes)
        if self._is_fresh:
            record = answer.episodes[0]
            if not record.discarded:  # of a failed simulation there is no last observation: repeat the one before
                slots = [self._slots[agent] for agent in agents]
                assert answer.final_lanes.tolist() == slots
                self._last = {
                    agent: members({name: field[row] for name, field in answer.final_obs.items()})
                    for row, agent in enumerate(agents)
                }
            for info in infos.values():
                info.update({"discarded": True} if record.discarded else {"summary": record.summary})
            self.agents = []
        else:
            self._last = self._observations(answer.obs)
        reward, terminated, truncated = (
            {agent: values[0, self._slots[agent]].item() for agent in agents}
            for values in (answer.reward, answer.terminated, answer.truncated)
        )
        return self._last, reward, terminated, truncated, infos

    def render(self) -> np.ndarray | None:
        """uint8 [height, width, 3] in the mode "rgb_array"; after an episode's end already the next one's start."""
        return None if self.render_mode is None else picture(self.block, 0)

    def close(self) -> None:
        self.block.close()

    def _observations(self, obs: Arrays) -> dict[str, Arrays]:
        return {
            agent: members({name: field[0, self._slots[agent]] for name, field in obs.items()}) for agent in self.agents
        }


def parallel_env(**settings: Any) -> HideAndSeekParallelEnv:
    """A parallel environment; arguments as of `make_block`, and `render_mode`."""
    return HideAndSeekParallelEnv(**settings)
