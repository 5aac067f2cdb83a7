"""The game's reward: hide and seek between two teams, from line of sight alone (Baker et al. 2019, section 3)."""

from __future__ import annotations

import numpy as np

from srl_ray.envs.hide_and_seek.config import OUT_OF_AREA_REWARD, HideAndSeekConfig
from srl_ray.envs.hide_and_seek.episode import Episodes


class Reward:
    """+1 or -1 for every agent and step, by the config's `reward`.

    - joint_zero_sum: hiders get +1 in a step in which no seeker sees any hider and -1 otherwise; seekers the opposite.
    - selfish: a hider gets +1 if no seeker sees it and -1 otherwise; a seeker +1 if it sees any hider and -1 otherwise.
    - joint_mean: everybody gets the mean of the selfish rewards of its team.

    An agent outside the legal area has its reward replaced by -10; where objects outside are penalised too, everybody's
    is. During the preparation phase all rewards are 0.

    Attributes:
        is_seen: bool [E]; whether any seeker sees any hider after the step.
        is_agent_out: bool [E, A]; present agents outside the legal area.
    """

    def __init__(self, num_envs: int, config: HideAndSeekConfig) -> None:
        self._kind = config.reward
        self._are_objects_penalised = config.rules.are_objects_penalised
        self._prep_steps = config.prep_steps
        self.is_seen: np.ndarray = np.zeros(num_envs, bool)
        self.is_agent_out = np.zeros((num_envs, config.max_agents), bool)

    def update(self, episodes: Episodes, pose: np.ndarray, sees: np.ndarray) -> np.ndarray:
        """float32 [E, A]; rewards of the step that led to the poses [E, N, 4] and sights [E, A, N]."""
        agents = len(episodes.team)
        hiders = int(episodes.is_hider.sum())
        self.is_seen = np.asarray(sees[:, hiders:, :hiders].any(axis=(1, 2)))
        low, high = episodes.legal_area[:, None, :2], episodes.legal_area[:, None, 2:]
        is_beyond = np.abs(pose[..., :2] - (low + high) / 2) > (high - low) / 2
        is_out = is_beyond[..., 0] | is_beyond[..., 1]
        self.is_agent_out = is_out[:, :agents] & episodes.present
        if self._kind == "joint_zero_sum":
            hiders_reward = np.where(self.is_seen, -1.0, 1.0)[:, None]
            reward = np.where(episodes.is_hider, hiders_reward, -hiders_reward)
        else:
            reward = self._selfish(episodes, sees[:, hiders:, :hiders])
        reward[self.is_agent_out] = OUT_OF_AREA_REWARD
        if self._are_objects_penalised:
            reward[(is_out[:, agents:] & episodes.exists).any(axis=1)] = OUT_OF_AREA_REWARD
        is_playing = episodes.present & (episodes.step > self._prep_steps)[:, None]
        return np.where(is_playing, reward, 0.0).astype(np.float32)

    def _selfish(self, episodes: Episodes, is_caught: np.ndarray) -> np.ndarray:
        """[E, A]; each agent's own success, or its team's mean of that. `is_caught`: [E, S, H], seeker sees hider."""
        success = np.concatenate([~is_caught.any(axis=1), is_caught.any(axis=2)], axis=1)
        reward = np.where(success, 1.0, -1.0)
        if self._kind == "joint_mean":
            for team in (episodes.is_hider, ~episodes.is_hider):
                present = episodes.present & team
                mean = (reward * present).sum(axis=1) / np.maximum(1, present.sum(axis=1))
                reward = np.where(team, mean[:, None], reward)
        return reward
