"""Turn-based (PettingZoo AEC) environments, told as environments in which only the agent on turn has an observation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Answer = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]


class TurnsAsSteps:
    """The parallel API over an AEC environment: a step is one agent's action.

    Observations are there for the agent whose turn it is, and once more for every agent that ended. The reward that
    comes with an agent's observation is everything it received since its last action, others' turns included.

    Args:
        env: With `possible_agents`, `agents`, `agent_selection`, `reset`, `last`, `step`.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.possible_agents = list(env.possible_agents)
        self.observation_space = env.observation_space
        self.action_space = env.action_space

    @property
    def agents(self) -> list[str]:
        return list(self.env.agents)

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.env.reset(seed=seed)
        observations, *_, infos = self._until_asked()
        return observations, infos

    def step(self, actions: Mapping[str, Any]) -> Answer:
        """Take the action of the agent on turn; go on to the next agent that needs one."""
        self.env.step(actions[self.env.agent_selection])
        return self._until_asked()

    def close(self) -> None:
        self.env.close()

    def _until_asked(self) -> Answer:
        observations: dict[str, Any] = {}
        rewards: dict[str, float] = {}
        terminations: dict[str, bool] = {}
        truncations: dict[str, bool] = {}
        infos: dict[str, Any] = {}
        while self.env.agents:
            agent = self.env.agent_selection
            observation, rewards[agent], terminated, truncated, infos[agent] = self.env.last()
            terminations[agent], truncations[agent] = bool(terminated), bool(truncated)
            if observation is not None:
                observations[agent] = observation
            if not (terminated or truncated):
                break
            self.env.step(None)
        return observations, rewards, terminations, truncations, infos
