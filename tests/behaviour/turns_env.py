"""An environment of PettingZoo's parallel kind in which agents take turns."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces


class Turns:
    """Four agents; agent (t mod 4) has an observation at step t, every tenth step nobody has one. Action 1 pays 1."""

    def __init__(self, length: int = 40) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(4)]
        self.agents: list[str] = []
        self.length = length

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0.0, 1.0, (1,))

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.t, self.agents = 0, list(self.possible_agents)
        self.asked = {"agent_0"}
        return {"agent_0": np.zeros(1, np.float32)}, {"agent_0": {}}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        if set(actions) != self.asked:
            raise AssertionError(f"asked {sorted(self.asked)}, but {sorted(actions)} acted")
        self.t += 1
        rewards = {agent: float(action == 1) for agent, action in actions.items()}
        is_over = self.t == self.length
        self.asked = set() if self.t % 10 == 9 else {f"agent_{self.t % 4}"}
        shown = self.possible_agents if is_over else sorted(self.asked)
        observations = {agent: np.full(1, self.t / self.length, np.float32) for agent in shown}
        truncations = dict.fromkeys(self.possible_agents, is_over)
        if is_over:
            self.agents = []
        return observations, rewards, dict.fromkeys(self.possible_agents, False), truncations, {}

    def close(self) -> None:
        pass
