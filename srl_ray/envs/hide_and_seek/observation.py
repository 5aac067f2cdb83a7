"""What each agent observes, as named fields of equal shape in all scenarios (see the package docstring)."""

from __future__ import annotations

import numpy as np

from srl_ray.core.types import Arrays, FieldSpec
from srl_ray.envs.hide_and_seek.config import BOX_ROWS, OBJECT_DIM, SELF_DIM, HideAndSeekConfig
from srl_ray.envs.hide_and_seek.episode import Episodes

LOCKED_BY_ME, LOCKED_BY_TEAM, LOCKED = 12, 13, 14
"""Last columns of an object; before them x, y, z, cos, sin, 4 velocities, 3 sizes."""


def observation_specs(config: HideAndSeekConfig) -> dict[str, FieldSpec]:
    others, ramps = config.other_rows, config.ramp_rows
    number, flag = np.dtype(np.float32), np.dtype(bool)
    return {
        "self": FieldSpec((SELF_DIM + config.is_team_size_observed,), number),
        "others": FieldSpec((others, SELF_DIM), number),
        "boxes": FieldSpec((BOX_ROWS, OBJECT_DIM + config.are_box_ids_observed), number),
        "ramps": FieldSpec((ramps, OBJECT_DIM), number),
        "lidar": FieldSpec((config.lidar_rays,), number),
        "mask_others": FieldSpec((others,), flag),
        "mask_boxes": FieldSpec((BOX_ROWS,), flag),
        "mask_ramps": FieldSpec((ramps,), flag),
        "exists_others": FieldSpec((others,), flag),
        "exists_boxes": FieldSpec((BOX_ROWS,), flag),
        "exists_ramps": FieldSpec((ramps,), flag),
    }


class Observation:
    """Writes observations into arrays of its own.

    Attributes:
        fields: Field → [E, A, ...]; rows of absent agents are meaningless.
    """

    def __init__(self, num_envs: int, config: HideAndSeekConfig) -> None:
        self._agents, self._boxes, self._ramps = config.max_agents, config.box_range[1], config.ramps
        self._prep_steps = config.prep_steps
        self._config = config
        self.fields: Arrays = {
            name: spec.zeros(num_envs, self._agents) for name, spec in observation_specs(config).items()
        }
        slots = np.arange(self._agents)
        self._others = (slots[:, None] - 1 - np.arange(self._agents - 1)) % self._agents  # [A, A - 1]: i-1, i-2, ...
        targets = self._agents + self._boxes + self._ramps
        self._sees_others = slots[:, None] * targets + self._others  # in `sees` with its last two axes flattened

    def write(
        self,
        episodes: Episodes,
        pose: np.ndarray,
        velocity: np.ndarray,
        *,
        locked: np.ndarray,
        owner: np.ndarray,
        sees: np.ndarray,
        lidar: np.ndarray,
    ) -> None:
        """Refresh `fields`; shapes as in `Physics`, `Locking` and `RayCaster`."""
        agents, fields = self._agents, self.fields
        own = self._agent_features(episodes, pose[:, :agents], velocity[:, :agents])
        fields["self"][..., :SELF_DIM] = own
        if self._config.is_team_size_observed:
            fields["self"][..., SELF_DIM] = self._team_sizes(episodes)
        others = slice(0, agents - 1)
        fields["others"][:, :, others] = own.take(self._others, axis=1)
        fields["mask_others"][:, :, others] = sees.reshape(len(sees), -1).take(self._sees_others, axis=1)
        fields["exists_others"][:, :, others] = episodes.present.take(self._others, axis=1)
        scale = self._config.lidar_scale
        fields["lidar"][...] = scale * np.tanh(lidar / scale) if scale else lidar
        objects = self._object_features(episodes, pose[:, agents:], velocity[:, agents:], locked)
        holder = owner[locked]
        mates = episodes.team[holder][:, None] == episodes.team
        env, locked_object = np.nonzero(locked)
        for name, rows in (("boxes", slice(0, self._boxes)), ("ramps", slice(self._boxes, self._boxes + self._ramps))):
            count = rows.stop - rows.start
            fields[name][:, :, :count, :OBJECT_DIM] = objects[:, None, rows]
            mine = (rows.start <= locked_object) & (locked_object < rows.stop)
            row = locked_object[mine] - rows.start
            fields[name][env[mine], holder[mine], row, LOCKED_BY_ME] = 1.0
            fields[name][env[mine], :, row, LOCKED_BY_TEAM] = mates[mine]
            fields[f"mask_{name}"][:, :, :count] = sees[:, :, agents + rows.start : agents + rows.stop]
            fields[f"exists_{name}"][:, :, :count] = episodes.exists[:, None, rows]
        if self._config.are_box_ids_observed:
            ids = np.arange(self._boxes) * episodes.exists[:, None, : self._boxes]
            fields["boxes"][:, :, : self._boxes, OBJECT_DIM] = ids

    def _team_sizes(self, episodes: Episodes) -> np.ndarray:
        """[E, A]; present agents of each agent's team, 0 for absent agents."""
        is_mate = episodes.team[:, None] == episodes.team
        return (episodes.present @ is_mate.astype(np.int64)) * episodes.present

    def _agent_features(self, episodes: Episodes, pose: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        features = np.empty((*pose.shape[:2], SELF_DIM), np.float32)
        features[..., :3] = pose[..., :3]
        features[..., 3] = np.remainder(pose[..., 3] + np.pi, 2 * np.pi) - np.pi
        features[..., 4:8] = velocity
        features[..., 8] = episodes.is_hider
        features[..., 9] = np.minimum(1.0, episodes.step / (self._prep_steps + 1e-5))[:, None]
        features *= episodes.present[..., None]
        return features

    def _object_features(
        self, episodes: Episodes, pose: np.ndarray, velocity: np.ndarray, locked: np.ndarray
    ) -> np.ndarray:
        """[E, O, OBJECT_DIM]; what does not depend on who looks: the columns LOCKED_BY_ME and _TEAM are 0."""
        features = np.zeros((*pose.shape[:2], OBJECT_DIM), np.float32)
        features[..., :3] = pose[..., :3]
        features[..., 3] = np.cos(pose[..., 3])
        features[..., 4] = np.sin(pose[..., 3])
        features[..., 5:9] = velocity
        features[:, : self._boxes, 9:12] = 2 * episodes.half_sizes[:, : self._boxes]
        features[..., LOCKED] = locked
        features *= episodes.exists[..., None]
        return features
