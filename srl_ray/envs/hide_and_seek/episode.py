"""What stays the same during an episode, and its clock, for all simulations of a block."""

from __future__ import annotations

import numpy as np

from srl_ray.envs.hide_and_seek.config import HideAndSeekConfig
from srl_ray.envs.hide_and_seek.layout import Layout
from srl_ray.envs.hide_and_seek.snapshot import HIDERS, SEEKERS


class Episodes:
    """Arrays over E simulations, A agent slots, B box slots, R ramp slots, O = B + R.

    Attributes:
        team: int [A]; HIDERS or SEEKERS.
        is_hider: bool [A].
        step: int [E]; steps done in the running episode.
        limit: int [E]; steps after which the running episode is truncated.
        present: bool [E, A]; agents that take part.
        exists: bool [E, O]; boxes and ramps that take part.
        half_sizes: float64 [E, O, 3]; half extents of the objects (ramps: of their bounding cube).
        legal_area: float64 [E, 4]; x_min, y_min, x_max, y_max of where nobody is penalised.
        tie_keys: uint64 [E]; drawn per episode, decides ties among agents that lock the same object.
        layouts: The running episodes' worlds.
    """

    def __init__(self, num_envs: int, config: HideAndSeekConfig) -> None:
        self.config = config
        self.num_boxes = config.box_range[1]
        self.max_hiders = config.max_hiders
        self.team = np.array([HIDERS] * config.max_hiders + [SEEKERS] * config.max_seekers)
        self.is_hider = self.team == HIDERS
        objects = self.num_boxes + config.ramps
        self.step = np.zeros(num_envs, np.int64)
        self.limit = np.full(num_envs, config.steps)
        self.present = np.zeros((num_envs, config.max_agents), bool)
        self.exists = np.zeros((num_envs, objects), bool)
        self.half_sizes = np.full((num_envs, objects, 3), 0.25)
        self.legal_area = np.zeros((num_envs, 4))
        self.tie_keys = np.zeros(num_envs, np.uint64)
        self.layouts: list[Layout | None] = [None] * num_envs

    def begin(self, env: int, layout: Layout, tie_key: int) -> None:
        """Start environment `env` in a new world."""
        self.step[env] = 0
        self.limit[env] = self.config.steps
        self.tie_keys[env] = tie_key
        self.layouts[env] = layout
        self.legal_area[env] = self.config.legal_area(layout.floor_size)
        self.present[env] = False
        self.present[env, : len(layout.hiders)] = True
        self.present[env, self.max_hiders : self.max_hiders + len(layout.seekers)] = True
        self.exists[env] = False
        self.exists[env, : len(layout.boxes)] = True
        self.exists[env, self.num_boxes : self.num_boxes + len(layout.ramps)] = True
        self.half_sizes[env, : self.num_boxes] = 0.25
        self.half_sizes[env, : len(layout.boxes)] = layout.box_sizes / 2
