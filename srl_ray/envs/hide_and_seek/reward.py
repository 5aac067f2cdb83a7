"""The game's reward: hide and seek between two teams, from line of sight alone (Baker et al. 2019, section 3)."""

from __future__ import annotations

import numpy as np

from srl_ray.envs.hide_and_seek.config import OUT_OF_AREA_REWARD, HideAndSeekConfig
from srl_ray.envs.hide_and_seek.episode import Episodes


class Reward:
    """Every hider gets +1 in a step in which no seeker sees any hider and -1 otherwise; every seeker the opposite.

    An agent outside the legal area has its reward replaced by -10; where objects outside are penalised too, everybody's
    is. During the preparation phase all rewards are 0.

    Attributes:
        is_seen: bool [E]; whether any seeker sees any hider after the step.
        is_agent_out: bool [E, A]; present agents outside the legal area.
    """

    def __init__(self, num_envs: int, config: HideAndSeekConfig) -> None:
        x_min, y_min, x_max, y_max = config.rules.legal_area
        self._centre = np.array([(x_min + x_max) / 2, (y_min + y_max) / 2])
        self._half = np.array([(x_max - x_min) / 2, (y_max - y_min) / 2])
        self._are_objects_penalised = config.rules.are_objects_penalised
        self._prep_steps = config.prep_steps
        self.is_seen: np.ndarray = np.zeros(num_envs, bool)
        self.is_agent_out = np.zeros((num_envs, config.max_agents), bool)

    def update(self, episodes: Episodes, pose: np.ndarray, sees: np.ndarray) -> np.ndarray:
        """float32 [E, A]; rewards of the step that led to the poses [E, N, 4] and sights [E, A, N]."""
        agents = len(episodes.team)
        hiders = int(episodes.is_hider.sum())
        self.is_seen = np.asarray(sees[:, hiders:, :hiders].any(axis=(1, 2)))
        is_out = (np.abs(pose[..., :2] - self._centre) > self._half).any(axis=2)
        self.is_agent_out = is_out[:, :agents] & episodes.present
        hiders_reward = np.where(self.is_seen, -1.0, 1.0)[:, None]
        reward = np.where(episodes.is_hider, hiders_reward, -hiders_reward)
        reward[self.is_agent_out] = OUT_OF_AREA_REWARD
        if self._are_objects_penalised:
            reward[(is_out[:, agents:] & episodes.exists).any(axis=1)] = OUT_OF_AREA_REWARD
        is_playing = episodes.present & (episodes.step > self._prep_steps)[:, None]
        return np.where(is_playing, reward, 0.0).astype(np.float32)
