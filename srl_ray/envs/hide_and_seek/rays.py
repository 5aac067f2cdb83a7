"""Lidar and line of sight without a simulator: analytic intersections of rays with the few shapes of the game.

Every body only yaws, so the shapes are upright: walls are axis-aligned boxes, boxes are boxes with a yaw, a ramp is a
box cut by the plane through its slope, an agent is three spheres. The floor can block neither kind of ray. Results
equal those of MuJoCo's own ray casting (a test compares them); numpy on float32 is about twice as fast here.

In the arrays below the last axis runs over viewers (lidar) or over viewer-target pairs (sight) of all simulations, so
that numpy's inner loops are long.
"""

from __future__ import annotations

import numpy as np

from srl_ray.envs.hide_and_seek.config import (
    AGENT_RADIUS,
    ARM_OFFSETS,
    ARM_RADIUS,
    LIDAR_MISS,
    MAX_WALLS,
    RAMP_CENTRE_OF_MASS,
    RAMP_SIZE,
    VIEW_HALF_ANGLE,
    HideAndSeekConfig,
)

FAR = np.float32(1e6)
"""Distance of what a ray misses, and place of what does not exist."""
HORIZON = np.float32(1e5)
"""Lidar distances beyond are misses."""
TINY = np.float32(1e-7)
RAMP_HALF = np.array(RAMP_SIZE / 2, np.float32)
SPHERE_RADII = np.array([AGENT_RADIUS] + [ARM_RADIUS] * len(ARM_OFFSETS), np.float32)[:, None, None]


class RayCaster:
    """Lidar distances and the matrix of who sees what, for a block of simulations.

    Letters: E simulations, A agent slots, B box slots, R ramp slots, O = B + R, K lidar rays, W walls, P viewers,
    Q viewer-target pairs.

    Attributes:
        lidar: float32 [E, A, K]; distance to the first hit, `LIDAR_MISS` where there is none. Directions are fixed in
            the world, counter-clockwise from +x. Rows of absent agents are meaningless.
        sees: bool [E, A, A + O]; whether the agent sees the agent or object. Every agent sees itself; nobody sees, and
            nothing is seen by, what does not exist.
    """

    def __init__(self, num_envs: int, config: HideAndSeekConfig) -> None:
        self.num_agents = config.max_agents
        self.num_boxes = config.box_range[1]
        self.num_ramps = config.ramps
        self.num_targets = self.num_agents + self.num_boxes + self.num_ramps
        angles = np.arange(config.lidar_rays) * (2 * np.pi / config.lidar_rays)
        self._cos = np.cos(angles).astype(np.float32)[:, None]  # [K, 1]
        self._sin = np.sin(angles).astype(np.float32)[:, None]
        self._per_x, self._per_y = _inverse(self._cos), _inverse(self._sin)
        self.lidar = np.zeros((num_envs, self.num_agents, config.lidar_rays), np.float32)
        self.sees = np.zeros((num_envs, self.num_agents, self.num_targets), bool)
        self._exists = np.zeros((self.num_targets, num_envs), bool)
        self._wall_centre = np.full((2, MAX_WALLS, num_envs), FAR, np.float32)
        self._wall_half = np.zeros((2, MAX_WALLS, num_envs), np.float32)
        self._wall_height = np.zeros((MAX_WALLS, num_envs), np.float32)
        self._box_half = np.zeros((3, self.num_boxes, num_envs), np.float32)

    def set_world(
        self,
        sim: int,
        *,
        walls: np.ndarray,
        wall_heights: np.ndarray,
        box_sizes: np.ndarray,
        exists: np.ndarray,
    ) -> None:
        """Take over one simulation's new world.

        Args:
            sim: Simulation.
            walls: [w, 4] rectangles (x_min, y_min, x_max, y_max).
            wall_heights: [w].
            box_sizes: [b, 3] full side lengths.
            exists: bool [A + O]; agents, boxes, ramps.
        """
        count = len(walls)
        self._wall_centre[:, :, sim] = FAR
        self._wall_half[:, :, sim] = 0.0
        self._wall_height[:, sim] = 0.0
        self._wall_centre[:, :count, sim] = (walls[:, :2] + walls[:, 2:]).T / 2
        self._wall_half[:, :count, sim] = (walls[:, 2:] - walls[:, :2]).T / 2
        self._wall_height[:count, sim] = wall_heights
        self._box_half[:, :, sim] = 0.0
        self._box_half[:, : len(box_sizes), sim] = box_sizes.T / 2
        self._exists[:, sim] = exists

    def cast(self, pose: np.ndarray, ids: np.ndarray | None = None) -> None:
        """Update `lidar` and `sees` for the poses [E, N, 4] (x, y, z, yaw); only for the simulations `ids` if given."""
        world = _World(self, pose)
        present = self._exists[: self.num_agents].T
        env, slot = np.nonzero(present if ids is None else present[ids])
        if ids is not None:
            env = ids[env]
        self._cast_lidar(world, env, slot)
        self._cast_sight(world, env, slot, ids)

    # --- lidar ----------------------------------------------------------------------------------------------------

    def _cast_lidar(self, world: _World, env: np.ndarray, slot: np.ndarray) -> None:
        origin = world.agents[:, slot, env]  # [3, P]
        nearest = self._lidar_walls(origin, env)
        np.minimum(nearest, self._lidar_boxes(world, origin, env), out=nearest)
        if self.num_ramps:
            np.minimum(nearest, self._lidar_ramps(world, origin, env), out=nearest)
        np.minimum(nearest, self._lidar_agents(world, origin, env, slot), out=nearest)
        nearest[nearest > HORIZON] = LIDAR_MISS
        self.lidar[env, slot] = nearest.T

    def _lidar_walls(self, origin: np.ndarray, env: np.ndarray) -> np.ndarray:
        relative = self._wall_centre[:, :, env] - origin[:2, None]  # [2, W, P]
        relative[:, origin[2] > self._wall_height[:, env]] = FAR
        half = self._wall_half[:, :, env]
        return _slab_rays(relative[0], relative[1], half[0], half[1], self._per_x, self._per_y)

    def _lidar_boxes(self, world: _World, origin: np.ndarray, env: np.ndarray) -> np.ndarray:
        relative = world.boxes[:, :, env] - origin[:, None]  # [3, B, P]
        half = self._box_half[:, :, env]
        x, y = _into_frame(relative, world.box_cos[:, env], world.box_sin[:, env])
        x[np.abs(relative[2]) > half[2]] = FAR
        return _slab_rays(x, y, half[0], half[1], world.box_per_x[..., env], world.box_per_y[..., env])

    def _lidar_ramps(self, world: _World, origin: np.ndarray, env: np.ndarray) -> np.ndarray:
        relative = world.ramps[:, :, env] - origin[:, None]  # [3, R, P]
        x, y = _into_frame(relative, world.ramp_cos[:, env], world.ramp_sin[:, env])
        # at the height h above the ramp's centre the wedge is the rectangle |x| < half, -half < y < -h
        height = -relative[2]
        half_y = (RAMP_HALF - height) / 2
        y -= (height + RAMP_HALF) / 2
        x[np.abs(height) > RAMP_HALF] = FAR
        return _slab_rays(x, y, RAMP_HALF, half_y, world.ramp_per_x[:, :, env], world.ramp_per_y[:, :, env])

    def _lidar_agents(self, world: _World, origin: np.ndarray, env: np.ndarray, slot: np.ndarray) -> np.ndarray:
        relative = world.spheres[:, :, :, env] - origin[:, None, None]  # [3, 3 spheres, A, P]
        relative[0, :, slot, np.arange(len(slot))] = FAR
        x, y, z = relative.reshape(3, -1, len(slot))
        radius = np.broadcast_to(SPHERE_RADII, relative.shape[1:]).reshape(-1, len(slot))
        power = x * x + y * y + z * z - radius * radius  # [3 A, P]
        along = x[:, None] * self._cos  # [3 A, K, P]
        along += y[:, None] * self._sin
        root = along * along
        root -= power[:, None]
        np.copyto(root, FAR * FAR, where=root < 0)
        np.sqrt(root, out=root)
        np.subtract(along, root, out=along)
        np.copyto(along, FAR, where=along < 0)
        return along.min(axis=0)

    # --- sight ----------------------------------------------------------------------------------------------------

    def _cast_sight(self, world: _World, env: np.ndarray, slot: np.ndarray, ids: np.ndarray | None) -> None:
        if ids is None:
            self.sees[...] = False
        else:
            self.sees[ids] = False
        pair, target = self._pairs_in_view(world, env, slot)
        env, viewer = env[pair], slot[pair]
        origin = world.agents[:, viewer, env]  # [3, Q]
        ray = world.sight_points[:, target, env] - origin
        bodies = np.empty((self.num_targets, len(env)), np.float32)
        agents, boxes = self.num_agents, self.num_boxes
        walls = self._sight_walls(origin, ray, env)
        bodies[:agents] = self._sight_agents(world, origin, ray, env)
        bodies[viewer, np.arange(len(env))] = FAR
        bodies[agents : agents + boxes] = self._sight_boxes(world, origin, ray, env)
        if self.num_ramps:
            bodies[agents + boxes :] = self._sight_ramps(world, origin, ray, env)
        first = np.minimum(bodies.min(axis=0), walls)
        self.sees[env, viewer, target] = bodies[target, np.arange(len(env))] <= first
        diagonal = np.arange(agents)
        self.sees[:, diagonal, diagonal] = self._exists[:agents].T

    def _pairs_in_view(self, world: _World, env: np.ndarray, slot: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Viewers and their targets that exist and lie in the horizontal field of view around the heading."""
        offset = world.centres[:2, :, env] - world.agents[:2, slot, env][:, None]  # [2, targets, P]
        yaw = world.agent_yaw[slot, env]
        ahead = offset[0] * np.sin(yaw) - offset[1] * np.cos(yaw)
        distance = np.sqrt(offset[0] * offset[0] + offset[1] * offset[1])
        candidate = (ahead >= distance * np.float32(np.cos(VIEW_HALF_ANGLE))) & self._exists[:, env]
        candidate[slot, np.arange(len(slot))] = False
        target, pair = np.nonzero(candidate)
        return pair, target

    def _sight_walls(self, origin: np.ndarray, ray: np.ndarray, env: np.ndarray) -> np.ndarray:
        relative = self._wall_centre[:, :, env] - origin[:2, None]
        half = self._wall_half[:, :, env]
        half_height = self._wall_height[:, env] / 2
        per_x, per_y, per_z = _inverse(ray)
        near, far = _slab(relative[0], half[0], per_x)
        _clip(near, far, _slab(relative[1], half[1], per_y))
        _clip(near, far, _slab(half_height - origin[2], half_height, per_z))
        return _entry(near, far).min(axis=0)

    def _sight_boxes(self, world: _World, origin: np.ndarray, ray: np.ndarray, env: np.ndarray) -> np.ndarray:
        cos, sin = world.box_cos[:, env], world.box_sin[:, env]
        half = self._box_half[:, :, env]
        near, far = _upright_box(world.boxes[:, :, env] - origin[:, None], ray, cos, sin, half)[:2]
        return _entry(near, far)

    def _sight_ramps(self, world: _World, origin: np.ndarray, ray: np.ndarray, env: np.ndarray) -> np.ndarray:
        cos, sin = world.ramp_cos[:, env], world.ramp_sin[:, env]
        half = np.full(3, RAMP_HALF)
        near, far, centre, direction = _upright_box(world.ramps[:, :, env] - origin[:, None], ray, cos, sin, half)
        # inside the slope: (y + z of the point in the ramp's frame) <= 0, linear along the ray
        start = -(centre[1] + centre[2])
        rate = direction[1] + direction[2]
        crossing = -start * _inverse(rate)
        np.copyto(far, np.minimum(far, crossing), where=rate > 0)
        np.copyto(near, np.maximum(near, crossing), where=rate <= 0)
        return _entry(near, far)

    def _sight_agents(self, world: _World, origin: np.ndarray, ray: np.ndarray, env: np.ndarray) -> np.ndarray:
        relative = world.spheres[:, :, :, env] - origin[:, None, None]  # [3, 3 spheres, A, Q]
        length2 = (ray * ray).sum(axis=0)
        along = (relative * ray[:, None, None]).sum(axis=0)
        power = (relative * relative).sum(axis=0) - SPHERE_RADII * SPHERE_RADII
        root = along * along - length2 * power
        hit = (along - np.sqrt(np.maximum(root, 0))) / np.maximum(length2, TINY)
        np.copyto(hit, FAR, where=(root < 0) | (hit < 0))
        return hit.min(axis=0)


class _World:
    """Poses as float32 with the simulation innermost; what does not exist lies far away."""

    def __init__(self, caster: RayCaster, pose: np.ndarray) -> None:
        agents, boxes = caster.num_agents, caster.num_boxes
        poses = np.ascontiguousarray(pose.transpose(2, 1, 0), np.float32)  # [4, N, E]
        poses[0, ~caster._exists] = FAR
        cos, sin = np.cos(poses[3]), np.sin(poses[3])
        self.centres = poses[:3]
        self.agents = poses[:3, :agents]
        self.boxes = poses[:3, agents : agents + boxes]
        self.ramps = poses[:3, agents + boxes :]
        self.agent_yaw = poses[3, :agents]
        self.box_cos, self.box_sin = cos[agents : agents + boxes], sin[agents : agents + boxes]
        self.ramp_cos, self.ramp_sin = cos[agents + boxes :], sin[agents + boxes :]
        self.box_per_x, self.box_per_y = _inverse_in_frame(caster, self.box_cos, self.box_sin)
        self.ramp_per_x, self.ramp_per_y = _inverse_in_frame(caster, self.ramp_cos, self.ramp_sin)
        self.sight_points = self.centres.copy()  # rays aim at the centre of mass, which differs for ramps
        _, com_y, com_z = RAMP_CENTRE_OF_MASS
        self.sight_points[0, agents + boxes :] -= np.float32(com_y) * self.ramp_sin
        self.sight_points[1, agents + boxes :] += np.float32(com_y) * self.ramp_cos
        self.sight_points[2, agents + boxes :] += np.float32(com_z)
        self.spheres = np.empty((3, 1 + len(ARM_OFFSETS), agents, pose.shape[0]), np.float32)
        self.spheres[:, 0] = self.agents
        agent_cos, agent_sin = cos[:agents], sin[:agents]
        for index, (x, y, z) in enumerate(ARM_OFFSETS, start=1):
            self.spheres[0, index] = self.agents[0] + np.float32(x) * agent_cos - np.float32(y) * agent_sin
            self.spheres[1, index] = self.agents[1] + np.float32(x) * agent_sin + np.float32(y) * agent_cos
            self.spheres[2, index] = self.agents[2] + np.float32(z)


def _inverse(values: np.ndarray) -> np.ndarray:
    """1 / values, finite where they are (nearly) zero."""
    return 1 / np.where(np.abs(values) < TINY, TINY, values)


def _inverse_in_frame(caster: RayCaster, cos: np.ndarray, sin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inverse components of the lidar's directions in frames with the given yaws [S, E]: two [S, K, E]."""
    cos, sin = cos[:, None], sin[:, None]
    return _inverse(caster._cos * cos + caster._sin * sin), _inverse(caster._sin * cos - caster._cos * sin)


def _into_frame(relative: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x and y of world vectors [2+, S, P] in the frame with the given yaw."""
    return relative[0] * cos + relative[1] * sin, relative[1] * cos - relative[0] * sin


def _slab_rays(
    x: np.ndarray, y: np.ndarray, half_x: np.ndarray, half_y: np.ndarray, per_x: np.ndarray, per_y: np.ndarray
) -> np.ndarray:
    """Nearest entry [K, P] of K rays into rectangles [S, P] whose centres relative to the origins are (x, y)."""
    near = x[:, None] * per_x  # [S, K, P]
    width = _column(half_x) * np.abs(per_x)
    far = near + width
    near -= width
    other = y[:, None] * per_y
    width = _column(half_y) * np.abs(per_y)
    np.minimum(far, other + width, out=far)
    other -= width
    np.maximum(near, other, out=near)
    return _entry(near, far).min(axis=0)


def _column(half: np.ndarray) -> np.ndarray:
    """[S, P] → [S, 1, P]; scalars stay."""
    return half[:, None] if half.ndim else half


def _slab(centre: np.ndarray, half: np.ndarray, per: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ray parameters at which a ray enters and leaves |coordinate - centre| < half."""
    middle = centre * per
    width = half * np.abs(per)
    return middle - width, middle + width


def _clip(near: np.ndarray, far: np.ndarray, other: tuple[np.ndarray, np.ndarray]) -> None:
    np.maximum(near, other[0], out=near)
    np.minimum(far, other[1], out=far)


def _entry(near: np.ndarray, far: np.ndarray) -> np.ndarray:
    """`near` where the ray hits from outside, FAR elsewhere; overwrites `near`."""
    np.copyto(near, FAR, where=(near > far) | (near < 0))
    return near


def _upright_box(
    relative: np.ndarray, ray: np.ndarray, cos: np.ndarray, sin: np.ndarray, half: np.ndarray
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Entry and exit parameters [S, Q] of rays [3, Q] into boxes with a yaw; also centre and ray in the box's frame."""
    x, y = _into_frame(relative, cos, sin)
    ray_x, ray_y = _into_frame(ray[:, None], cos, sin)
    ray_z = np.broadcast_to(ray[2], ray_x.shape)
    near, far = _slab(x, half[0], _inverse(ray_x))
    _clip(near, far, _slab(y, half[1], _inverse(ray_y)))
    _clip(near, far, _slab(relative[2], half[2], _inverse(ray[2])))
    return near, far, (x, y, relative[2]), (ray_x, ray_y, ray_z)
