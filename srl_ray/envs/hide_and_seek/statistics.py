"""Behaviour statistics of an episode: the detectors of the published stages (Baker et al. 2019, section 5)."""

from __future__ import annotations

import numpy as np

from srl_ray.envs.hide_and_seek.config import HideAndSeekConfig
from srl_ray.envs.hide_and_seek.episode import Episodes

RAISED_HEIGHT = 0.4
"""Centre height above which an agent stands on something, m."""


class Statistics:
    """Counts during the episode and the summary at its end.

    The "prep" values are taken at the first step whose observed preparation progress is exactly 1, which is the first
    after the preparation phase (step 97 of 240), as in the published numbers; the others at the last step.

    Keys of a summary:
        max_box_move, max_ramp_move: Largest displacement of a box (ramp) from where it started, m; with `_prep`, at the
            end of the preparation; with `_main`, since then.
        num_box_lock, num_ramp_lock: Boxes (ramps) that are locked at the end; with `_prep`, at the end of the
            preparation (hiders alone can lock then); with `_hiders` and `_seekers`, at the end, by whoever locked
            them last.
        hider_return, seeker_return: Undiscounted return of the first hider and of the last seeker.
        hiders_seen_fraction: Share of the rewarded steps in which a seeker sees a hider.
        raised_fraction: Share of agent steps above 0.4 m: on a box, a ramp or a wall.
        surfing_fraction: Share of agent steps in which an agent holds the object it stands on.
        holding_fraction: Share of agent steps in which an agent holds something.
        out_of_area_steps: Agent steps outside the legal area, the preparation included.
        num_hiders, num_seekers, num_boxes: Of this episode.
    """

    def __init__(self, num_envs: int, config: HideAndSeekConfig) -> None:
        self._boxes = config.box_range[1]
        self._agents = config.max_agents
        self._prep_steps = config.prep_steps
        objects = self._boxes + config.ramps
        self._start = np.zeros((num_envs, objects, 3))
        self._middle = np.zeros((num_envs, objects, 3))
        self._prep_locked = np.zeros((num_envs, objects), bool)
        self._seen = np.zeros(num_envs)
        self._raised = np.zeros(num_envs)
        self._surfing = np.zeros(num_envs)
        self._holding = np.zeros(num_envs)
        self._out = np.zeros(num_envs)

    def reset(self, ids: np.ndarray, pose: np.ndarray) -> None:
        self._start[ids] = self._middle[ids] = pose[ids, self._agents :, :3]
        self._prep_locked[ids] = False
        for counter in (self._seen, self._raised, self._surfing, self._holding, self._out):
            counter[ids] = 0.0

    def update(
        self,
        episodes: Episodes,
        pose: np.ndarray,
        *,
        held: np.ndarray,
        locked: np.ndarray,
        is_seen: np.ndarray,
        is_agent_out: np.ndarray,
    ) -> None:
        """Count a step; shapes as in `Grabbing`, `Locking` and `Reward`."""
        is_middle = episodes.step == self._prep_steps + 1
        if is_middle.any():
            self._middle[is_middle] = pose[is_middle, self._agents :, :3]
            self._prep_locked[is_middle] = locked[is_middle]
        self._seen += is_seen & (episodes.step > self._prep_steps)
        self._out += is_agent_out.sum(axis=1)
        is_raised = (pose[:, : self._agents, 2] > RAISED_HEIGHT) & episodes.present
        is_holding = held >= 0
        self._raised += is_raised.sum(axis=1)
        self._holding += is_holding.sum(axis=1)
        env, agent = np.nonzero(is_raised & is_holding)
        if len(env):
            me, other = pose[env, agent], pose[env, self._agents + held[env, agent]]
            x, y = (me[:, axis] - other[:, axis] for axis in (0, 1))
            cos, sin = np.cos(other[:, 3]), np.sin(other[:, 3])
            half = episodes.half_sizes[env, held[env, agent]]
            is_above = (np.abs(x * cos + y * sin) <= half[:, 0]) & (np.abs(y * cos - x * sin) <= half[:, 1])
            is_above &= me[:, 2] > other[:, 2]
            np.add.at(self._surfing, env, is_above)

    def summary(
        self,
        env: int,
        episodes: Episodes,
        pose: np.ndarray,
        *,
        locked: np.ndarray,
        owner: np.ndarray,
        returns: np.ndarray,
    ) -> dict[str, float]:
        """Numbers of the episode that ends in environment `env` now.

        Args:
            env: Environment.
            episodes: Its clock and who takes part.
            pose: [E, N, 4] after the last step.
            locked: [E, O] after the last step.
            owner: [E, O] agent slot of whoever locked an object last.
            returns: [A] of the episode.
        """
        now = pose[env, self._agents :, :3]
        start, middle = self._start[env], self._middle[env]
        exists = episodes.exists[env]
        moves = {"": now - start, "_prep": middle - start, "_main": now - middle}
        distances = {key: np.where(exists, np.linalg.norm(move, axis=1), 0.0) for key, move in moves.items()}
        is_locked, is_by_hider = locked[env] & exists, episodes.is_hider[owner[env]]
        locks = {
            "": is_locked,
            "_prep": self._prep_locked[env] & exists,
            "_hiders": is_locked & is_by_hider,
            "_seekers": is_locked & ~is_by_hider,
        }
        kinds = {"box": slice(0, self._boxes), "ramp": slice(self._boxes, None)}
        result = {
            f"max_{kind}_move{key}": float(distances[key][rows].max(initial=0.0))
            for kind, rows in kinds.items()
            for key in moves
        }
        result |= {
            f"num_{kind}_lock{key}": float(lock[rows].sum())
            for kind, rows in kinds.items()
            for key, lock in locks.items()
        }
        present = episodes.present[env]
        steps = int(episodes.step[env])
        agent_steps = max(1, steps * int(present.sum()))
        hiders = int((present & episodes.is_hider).sum())
        return result | {
            "hider_return": float(returns[0]),
            "seeker_return": float(returns[np.nonzero(present)[0][-1]]),
            "hiders_seen_fraction": float(self._seen[env]) / max(1, steps - self._prep_steps),
            "raised_fraction": float(self._raised[env]) / agent_steps,
            "surfing_fraction": float(self._surfing[env]) / agent_steps,
            "holding_fraction": float(self._holding[env]) / agent_steps,
            "out_of_area_steps": float(self._out[env]),
            "num_hiders": float(hiders),
            "num_seekers": float(present.sum() - hiders),
            "num_boxes": float(exists[: self._boxes].sum()),
        }
