"""The block's simulations: one `mujoco.batch.Batch` of the padded model with its per-simulation fields."""

from __future__ import annotations

import mujoco
import numpy as np
from mujoco.batch import Batch, SimulationError

from srl_ray.envs.hide_and_seek.config import (
    AGENT_RADIUS,
    CUBE_SIZE,
    CYLINDER_HEIGHT,
    RAMP_SIZE,
    HideAndSeekConfig,
)
from srl_ray.envs.hide_and_seek.layout import Layout
from srl_ray.envs.hide_and_seek.model import make_model
from srl_ray.envs.hide_and_seek.walls import wall_shapes

MAX_SPEED = 20.0
"""m/s; what moves faster has been flung by a broken contact. Sound play stays below 16."""
PARKED_GROUP = 3
"""Geom group of what an episode does not use; rays leave it out."""
NEVER, ALLOWED = int(mujoco.mjtSleepPolicy.mjSLEEP_AUTO_NEVER), int(mujoco.mjtSleepPolicy.mjSLEEP_ALLOWED)


class Physics:
    """Steps all simulations and gives live views of their state. One thread owns it.

    Letters: E simulations, A agent slots, O object slots (boxes, then ramps), N = A + O bodies.

    Attributes:
        pose: float64 [E, N, 4], live; x, y, z of the centre and the yaw (not wrapped).
        velocity: float64 [E, N, 4], live; the time derivatives of `pose`.
        control: float64 [E, A, 3], live; x force, y force and yaw torque, -0.9 to 0.9 of the motors' 100 N (N m).
        weld_active: float64 [E, A], live; 1 while the agent's weld holds.
        weld_object: int32 [E, A], live; body that the agent's weld ties.
        weld_data: float64 [E, A, 11], live; MuJoCo's parameters of the welds.
        joint_limited: [E, N, 4], live; whether the joint is held at `joint_range`.
        joint_range: float64 [E, N, 4, 2], live.
    """

    def __init__(self, num_envs: int, config: HideAndSeekConfig) -> None:
        self.model = make_model(config)
        self.batch = Batch(self.model, num_envs, nthread=config.threads, persistent=True)
        self.substeps = config.integration.substeps
        self.num_agents = config.max_agents
        self.num_boxes = config.box_range[1]
        self.num_ramps = config.ramps
        self.num_bodies = self.num_agents + self.num_boxes + self.num_ramps
        bodies = (num_envs, self.num_bodies, 4)
        self.pose = self.batch.bind("qpos").reshape(bodies)
        self.velocity = self.batch.bind("qvel").reshape(bodies)
        self.control = self.batch.bind("ctrl").reshape(num_envs, self.num_agents, 3)
        self.weld_active = self.batch.bind("eq_active")
        self.weld_object = self.batch.expand("eq_obj2id")
        self.weld_data = self.batch.expand("eq_data")
        self.joint_limited = self.batch.expand("jnt_limited").reshape(bodies)
        self.joint_range = self.batch.expand("jnt_range").reshape(*bodies, 2)
        self._geom_pos = self.batch.expand("geom_pos")
        self._geom_size = self.batch.expand("geom_size")
        self._geom_rbound = self.batch.expand("geom_rbound")
        self._geom_aabb = self.batch.expand("geom_aabb").reshape(num_envs, self.model.ngeom, 6)
        self._geom_group = self.batch.expand("geom_group")
        self._body_inertia = self.batch.expand("body_inertia")
        self._sleep_policy = self.batch.expand("tree_sleep_policy")
        self._geom_body = self.model.geom_bodyid
        self._box_geoms = [int(self.model.body(f"box_{i}").geomadr[0]) for i in range(self.num_boxes)]
        self._wall_geoms = [self.model.geom(f"wall_{i}").id for i in range(config.max_walls)]
        self._cylinder_geoms = [self.model.geom(f"cylinder_{i}").id for i in range(config.num_cylinders)]
        self._parked = self._parking_lot()
        self._middle = np.zeros((num_envs, 1, 1))  # of the floor, on both axes
        self._border = np.full((num_envs, self.num_bodies, 1), np.inf)  # how far from it a body can be, if walled in
        self._warnings_before = self.batch.warning[:, :, 1].sum(axis=1)

    def step(self) -> np.ndarray:
        """Advance every simulation by one environment step.

        Returns:
            bool [E]; simulations that failed: MuJoCo warned (among others of non-finite numbers, after which it has
            reset them by itself), raised, or left a state that MuJoCo does not warn about but cannot be: non-finite,
            faster than `MAX_SPEED`, or beyond the outer walls. Their state is to be thrown away.
        """
        failed = np.zeros(len(self.pose), bool)
        try:
            self.batch.step(nstep=self.substeps)
        except SimulationError as error:
            failed[error.ids] = True
        failed |= self.batch.warning[:, :, 1].sum(axis=1) != self._warnings_before
        is_slow = np.abs(self.velocity[..., :3]).max(axis=(1, 2)) <= MAX_SPEED  # false for NaN
        is_finite = np.isfinite(self.pose).all(axis=(1, 2)) & np.isfinite(self.velocity).all(axis=(1, 2))
        is_beyond = np.abs(self.pose[..., :2] - self._middle) > self._border
        failed |= ~(is_slow & is_finite) | is_beyond.any(axis=(1, 2))
        return failed

    def reset(self, ids: np.ndarray, layouts: list[Layout], slots: list[np.ndarray]) -> None:
        """Put simulations into the worlds of new episodes.

        Args:
            ids: [n] simulations.
            layouts: Their worlds.
            slots: Per simulation the agent slots of the present agents, hiders first.
        """
        poses = np.empty((len(ids), self.num_bodies, 4))
        for row, (sim, layout, present) in enumerate(zip(ids, layouts, slots, strict=True)):
            poses[row] = self._write_world(int(sim), layout, present)
        self.joint_limited[ids] = 0
        self.weld_object[ids] = 1 + self.num_agents
        self.batch.set_const(ids)
        self.batch.reset(ids, stage=int(mujoco.mjtStage.mjSTAGE_NONE))
        self.pose[ids] = poses
        self.batch.forward(ids, stage=int(mujoco.mjtStage.mjSTAGE_POS))
        self._warnings_before[ids] = self.batch.warning[ids, :, 1].sum(axis=1)

    def _write_world(self, sim: int, layout: Layout, present: np.ndarray) -> np.ndarray:
        """Shape the walls, boxes and cylinders of one simulation; returns [N, 4], where its bodies are to stand."""
        agents, boxes = self.num_agents, self.num_boxes
        walls, built = len(self._wall_geoms), len(layout.walls)
        half = np.full((walls + boxes, 3), 0.01)
        centre = np.zeros((walls, 3))
        centre[:, 2] = -10.0
        if built:
            rectangles, height = wall_shapes(layout.walls)
            low_x, low_y, high_x, high_y = rectangles.T
            half[:built] = np.stack([(high_x - low_x) / 2, (high_y - low_y) / 2, height / 2], axis=1)
            centre[:built] = np.stack([(low_x + high_x) / 2, (low_y + high_y) / 2, height / 2], axis=1)
        half[walls:] = np.array(CUBE_SIZE) / 2
        half[walls : walls + len(layout.box_sizes)] = layout.box_sizes / 2
        self._set_boxes(sim, self._wall_geoms + self._box_geoms, half)
        self._geom_pos[sim, self._wall_geoms] = centre
        square = (2 * half[walls:]) ** 2
        self._body_inertia[sim, 1 + agents : 1 + agents + boxes] = (square.sum(axis=1, keepdims=True) - square) / 12
        if self._cylinder_geoms:
            x, y, radius = layout.cylinders.T
            tall = np.full_like(radius, CYLINDER_HEIGHT / 2)
            self._set_boxes(sim, self._cylinder_geoms, np.stack([radius, radius, tall], axis=1))
            self._geom_size[sim, self._cylinder_geoms] = np.stack([radius, tall, 0 * radius], axis=1)
            self._geom_pos[sim, self._cylinder_geoms] = np.stack([x, y, tall], axis=1)
        pose = self._parked.copy()
        pose[present, :2] = np.concatenate([layout.hiders, layout.seekers])
        pose[agents : agents + len(layout.boxes), :2] = layout.boxes
        pose[agents + boxes : agents + boxes + len(layout.ramps), :2] = layout.ramps
        is_used = np.zeros(1 + self.num_bodies, bool)
        is_used[0] = True
        is_used[1 + present] = True
        is_used[1 + agents : 1 + agents + len(layout.boxes)] = True
        is_used[1 + agents + boxes : 1 + agents + boxes + len(layout.ramps)] = True
        self._middle[sim] = layout.floor_size / 2
        self._border[sim, :, 0] = np.where(is_used[1:] & layout.has_outer_walls, layout.floor_size / 2, np.inf)
        self._geom_group[sim] = np.where(is_used[self._geom_body], 0, PARKED_GROUP)
        self._geom_group[sim, self._wall_geoms[built:]] = PARKED_GROUP
        self._sleep_policy[sim, :agents] = np.where(is_used[1 : 1 + agents], NEVER, ALLOWED)
        return pose

    def _set_boxes(self, sim: int, geoms: list[int], half: np.ndarray) -> None:
        """Give geoms half sizes [n, 3]."""
        self._geom_size[sim, geoms] = half
        self._geom_rbound[sim, geoms] = np.sqrt((half * half).sum(axis=1))
        self._geom_aabb[sim, geoms, 3:] = half

    def _parking_lot(self) -> np.ndarray:
        """[N, 4] resting places for everything, all far from the floor and from each other."""
        agents, boxes = self.num_agents, self.num_boxes
        pose = np.zeros((self.num_bodies, 4))
        pose[:, 0] = 60.0 + 4.0 * np.arange(self.num_bodies)
        pose[:, 1] = 60.0
        pose[:agents, 2] = AGENT_RADIUS
        pose[agents : agents + boxes, 2] = CUBE_SIZE[2] / 2
        pose[agents + boxes :, 2] = RAMP_SIZE / 2
        return pose
