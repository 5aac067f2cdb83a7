"""Lidar and line of sight without a simulator: analytic intersections of rays with the few shapes of the game.

Every body only yaws, so the shapes are upright: walls are axis-aligned boxes, boxes are boxes with a yaw, a ramp is a
box cut by the plane through its slope, an agent is three spheres. The floor can block neither kind of ray. Results
equal those of MuJoCo's own ray casting (a test compares them); numpy on float32 is about twice as fast here.

In the arrays below the last axis runs over viewers (lidar) or over viewer-target pairs (sight) of all simulations, so
that numpy's inner loops are long. Misses are pushed away by arithmetic (see `_hit`) because selecting by a mask costs
numpy several times more.
"""

from __future__ import annotations

import numpy as np

from srl_ray.envs.hide_and_seek.config import (
    AGENT_RADIUS,
    ARM_OFFSETS,
    ARM_RADIUS,
    CYLINDER_HEIGHT,
    LIDAR_MISS,
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
STEEP = np.float32(1e20)
"""Turns any excess above 0 into a distance beyond HORIZON, without overflow."""
RAMP_HALF = np.array(RAMP_SIZE / 2, np.float32)
SPHERES = 1 + len(ARM_OFFSETS)
SPHERE_RADII = np.array([AGENT_RADIUS] + [ARM_RADIUS] * len(ARM_OFFSETS), np.float32)


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
        self._viewers: _Viewers | None = None
        self._exists = np.zeros((self.num_targets, num_envs), bool)
        self._extents = np.full(
            (self.num_targets, num_envs), RAMP_SIZE, np.float32
        )  # no point is farther from a centre
        self._others = np.zeros((self.num_agents - 1, self.num_agents, num_envs), np.int64)  # present ones first
        self._walls = np.zeros((5, config.max_walls, num_envs), np.float32)  # centre x, y, half x, y, height
        self._half = np.full((3, self.num_targets - self.num_agents, num_envs), RAMP_HALF)
        self._cylinders = np.zeros((3, config.num_cylinders, num_envs), np.float32)  # x, y, radius

    def set_world(
        self,
        sim: int,
        *,
        walls: np.ndarray,
        wall_heights: np.ndarray,
        box_sizes: np.ndarray,
        exists: np.ndarray,
        cylinders: np.ndarray,
    ) -> None:
        """Take over one simulation's new world.

        Args:
            sim: Simulation.
            walls: [w, 4] rectangles (x_min, y_min, x_max, y_max).
            wall_heights: [w].
            box_sizes: [b, 3] full side lengths.
            exists: bool [A + O]; agents, boxes, ramps.
            cylinders: [c, 3]; x, y, radius.
        """
        count, boxes = len(walls), len(box_sizes)
        self._walls[:, :, sim] = np.array([FAR, FAR, 0.0, 0.0, 0.0])[:, None]
        self._walls[:2, :count, sim] = (walls[:, :2] + walls[:, 2:]).T / 2
        self._walls[2:4, :count, sim] = (walls[:, 2:] - walls[:, :2]).T / 2
        self._walls[4, :count, sim] = wall_heights
        self._half[:, :boxes, sim] = box_sizes.T / 2
        self._extents[self.num_agents : self.num_agents + boxes, sim] = np.linalg.norm(box_sizes, axis=1) / 2
        self._exists[:, sim] = exists
        self._cylinders[:, :, sim] = cylinders.T
        self._viewers = None
        for slot in range(self.num_agents):
            others = np.delete(np.arange(self.num_agents), slot)
            self._others[:, slot, sim] = others[np.argsort(~exists[others], kind="stable")]

    def cast(self, pose: np.ndarray, ids: np.ndarray | None = None) -> None:
        """Update `lidar` and `sees` for the poses [E, N, 4] (x, y, z, yaw); only for the simulations `ids` if given."""
        world = _World(self, pose)
        viewers = _Viewers(self, ids) if self._viewers is None or ids is not None else self._viewers
        if ids is None:
            self._viewers = viewers
            self.sees[...] = False
        else:
            self.sees[ids] = False
        self._cast_lidar(world, viewers)
        self._cast_sight(world, viewers)

    # --- lidar ----------------------------------------------------------------------------------------------------

    def _cast_lidar(self, world: _World, viewers: _Viewers) -> None:
        origin = world.agents.take(viewers.flat, axis=1)  # [3, P]
        nearest = self._lidar_walls(origin, viewers)
        np.minimum(nearest, self._lidar_objects(world, origin, viewers), out=nearest)
        if len(viewers.others):
            np.minimum(nearest, self._lidar_agents(world, origin, viewers), out=nearest)
        if self._cylinders.size:
            np.minimum(nearest, self._lidar_cylinders(origin, viewers), out=nearest)
        nearest[nearest > HORIZON] = LIDAR_MISS
        self.lidar[viewers.env, viewers.slot] = nearest.T

    def _lidar_walls(self, origin: np.ndarray, viewers: _Viewers) -> np.ndarray:
        x, y, half_x, half_y, height = viewers.walls  # each [W, P]
        x = x - origin[0] + FAR * (origin[2] > height)
        return _slab_rays(x, y - origin[1], half_x, half_y, self._per_x, self._per_y)

    def _lidar_objects(self, world: _World, origin: np.ndarray, viewers: _Viewers) -> np.ndarray:
        x, y, z, cos, sin = world.objects.take(viewers.env, axis=2)  # each [O, P]
        half_x, half_y, half_z = viewers.half
        x, y = _into_frame(x - origin[0], y - origin[1], cos, sin)
        height = origin[2] - z
        # at a height above its centre, a ramp is the rectangle |x| < half, -half < y < -height
        ramps = slice(self.num_boxes, None)
        half_y = half_y.copy()
        half_y[ramps] = (RAMP_HALF - height[ramps]) / 2
        y[ramps] -= (height[ramps] + RAMP_HALF) / 2
        x += FAR * (np.abs(height) > half_z)
        per_x, per_y = (per.take(viewers.env, axis=2) for per in (world.per_x, world.per_y))
        return _slab_rays(x, y, half_x, half_y, per_x, per_y)

    def _lidar_agents(self, world: _World, origin: np.ndarray, viewers: _Viewers) -> np.ndarray:
        x, y, z = self._spheres_around(world, origin, viewers.others)  # each [3 spheres * M, P]
        power = x * x + y * y + z * z
        power -= np.repeat(SPHERE_RADII * SPHERE_RADII, len(x) // SPHERES)[:, None]
        along = x[:, None] * self._cos  # [3 spheres * M, K, P]
        along += y[:, None] * self._sin
        root = along * along
        root -= power[:, None]
        return _sphere_hit(along, root).min(axis=0)

    def _lidar_cylinders(self, origin: np.ndarray, viewers: _Viewers) -> np.ndarray:
        x, y, radius = self._cylinders.take(viewers.env, axis=2)  # each [C, P]
        x = x - origin[0] + FAR * (origin[2] > CYLINDER_HEIGHT)
        y = y - origin[1]
        along = x[:, None] * self._cos + y[:, None] * self._sin  # [C, K, P]
        root = along * along - (x * x + y * y - radius * radius)[:, None]
        return _sphere_hit(along, root).min(axis=0)

    # --- sight ----------------------------------------------------------------------------------------------------

    def _cast_sight(self, world: _World, viewers: _Viewers) -> None:
        pair, target = self._pairs_in_view(world, viewers)
        env, viewer = viewers.env.take(pair), viewers.slot.take(pair)
        origin = world.agents.take(viewers.flat.take(pair), axis=1)  # [3, Q]
        aim = self.flat(target, env)
        ray = world.sight_points.take(aim, axis=1)
        ray -= origin
        wall = self._sight_walls(origin, ray, viewers.walls.take(pair, axis=2))
        if self._cylinders.size:
            np.minimum(wall, self._sight_cylinders(origin, ray, self._cylinders.take(env, axis=2)), out=wall)
        # a wall hides for sure what it is in front of; only the rest is tested against the moving bodies
        length = np.sqrt(ray[0] * ray[0] + ray[1] * ray[1] + ray[2] * ray[2])
        kept = np.nonzero(wall * length > length - self._extents.take(aim))[0]
        pair, env, viewer, target, wall = (each.take(kept) for each in (pair, env, viewer, target, wall))
        origin, ray = origin.take(kept, axis=1), ray.take(kept, axis=1)
        row = np.arange(len(kept))
        bodies = np.full((self.num_targets, len(kept)), FAR)
        others = viewers.other_slots.take(pair, axis=1)
        if len(others):
            bodies[others, row] = self._sight_agents(world, origin, ray, self.flat(others, env))
        bodies[self.num_agents :] = self._sight_objects(world, origin, ray, env, viewers.half.take(pair, axis=2))
        first = np.minimum(bodies.min(axis=0), wall)
        self.sees[env, viewer, target] = bodies[target, row] <= first
        diagonal = np.arange(self.num_agents)
        self.sees[:, diagonal, diagonal] = self._exists[: self.num_agents].T

    def _pairs_in_view(self, world: _World, viewers: _Viewers) -> tuple[np.ndarray, np.ndarray]:
        """Viewers (by position in the list) and their targets, which exist and lie in the horizontal field of view."""
        me = viewers.flat
        x, y = world.centres.take(viewers.env, axis=2)  # each [N, P]
        x -= world.agents[0].take(me)
        y -= world.agents[1].take(me)
        yaw = world.agent_yaw.take(me)
        ahead = x * np.sin(yaw) - y * np.cos(yaw)
        distance = np.sqrt(x * x + y * y)
        candidate = ahead >= distance * np.float32(np.cos(VIEW_HALF_ANGLE))
        candidate &= viewers.can_see
        target, pair = np.nonzero(candidate)
        return pair, target

    def _sight_walls(self, origin: np.ndarray, ray: np.ndarray, walls: np.ndarray) -> np.ndarray:
        x, y, half_x, half_y, height = walls  # each [W, Q]
        half_height = height / 2
        per_x, per_y, per_z = _inverse(ray)
        near, far = _slab(x - origin[0], half_x, per_x)
        _clip(near, far, _slab(y - origin[1], half_y, per_y))
        _clip(near, far, _slab(half_height - origin[2], half_height, per_z))
        return _hit(near, far).min(axis=0)

    def _sight_objects(
        self, world: _World, origin: np.ndarray, ray: np.ndarray, env: np.ndarray, half: np.ndarray
    ) -> np.ndarray:
        x, y, z, cos, sin = world.objects.take(env, axis=2)  # each [O, Q]
        half_x, half_y, half_z = half
        x, y = _into_frame(x - origin[0], y - origin[1], cos, sin)
        z -= origin[2]
        ray_x, ray_y = _into_frame(ray[0], ray[1], cos, sin)
        near, far = _slab(x, half_x, _inverse(ray_x))
        _clip(near, far, _slab(y, half_y, _inverse(ray_y)))
        _clip(near, far, _slab(z, half_z, _inverse(ray[2])))
        # a ramp is the part of its cube where y + z <= 0 in its own frame, which is linear along the ray
        ramps = slice(self.num_boxes, None)
        rate = ray_y[ramps] + ray[2]
        crossing = (y[ramps] + z[ramps]) * _inverse(rate)
        np.minimum(far[ramps], np.where(rate > 0, crossing, FAR), out=far[ramps])
        np.maximum(near[ramps], np.where(rate > 0, -FAR, crossing), out=near[ramps])
        return _hit(near, far)

    def _sight_agents(self, world: _World, origin: np.ndarray, ray: np.ndarray, others: np.ndarray) -> np.ndarray:
        x, y, z = self._spheres_around(world, origin, others)  # each [3 spheres * M, Q]
        length2 = ray[0] * ray[0] + ray[1] * ray[1] + ray[2] * ray[2]
        along = x * ray[0] + y * ray[1] + z * ray[2]
        power = x * x + y * y + z * z
        power -= np.repeat(SPHERE_RADII * SPHERE_RADII, len(x) // SPHERES)[:, None]
        root = along * along - length2 * power
        hits = _sphere_hit(along, root).reshape(SPHERES, *others.shape).min(axis=0)
        hits /= length2
        return hits

    def _sight_cylinders(self, origin: np.ndarray, ray: np.ndarray, cylinders: np.ndarray) -> np.ndarray:
        x, y, radius = cylinders  # each [C, Q]
        x, y = x - origin[0], y - origin[1]
        length2 = ray[0] * ray[0] + ray[1] * ray[1]
        middle = x * ray[0] + y * ray[1]
        root = middle * middle - length2 * (x * x + y * y - radius * radius)
        half, per = np.sqrt(np.maximum(root, 0)), _inverse(length2)
        near, far = (middle - half) * per, (middle + half) * per
        half_height = np.full_like(x, CYLINDER_HEIGHT / 2)
        _clip(near, far, _slab(half_height - origin[2], half_height, _inverse(ray[2])))
        far[root < 0] = -FAR
        return _hit(near, far).min(axis=0)

    # --- gathering ------------------------------------------------------------------------------------------------

    def flat(self, body: np.ndarray, env: np.ndarray) -> np.ndarray:
        """Indices into arrays whose last axis runs over bodies and simulations."""
        return body * self._exists.shape[1] + env

    def _spheres_around(self, world: _World, origin: np.ndarray, others: np.ndarray) -> np.ndarray:
        """[3, 3 spheres * M, P]; spheres of the other agents (flat indices [M, P]) relative to the viewers' origins."""
        spheres = world.spheres.take(others, axis=2).reshape(3, SPHERES * len(others), others.shape[1])
        spheres -= origin[:, None]
        return spheres


class _Viewers:
    """The present agents of some simulations, and what of their worlds stays the same during an episode.

    Attributes:
        env: int [P]; simulation.
        slot: int [P].
        flat: int [P]; index into arrays over agents and simulations.
        walls: float32 [5, W, P]; centre x, y, half x, y, height.
        half: float32 [3, O, P]; half sizes of the objects.
        can_see: bool [N, P]; what exists, except the viewer itself.
        other_slots: int [M, P]; slots of the other agents, as many as the fullest simulation has; absent ones fill up.
        others: int [M, P]; the same as flat indices.
    """

    def __init__(self, caster: RayCaster, ids: np.ndarray | None) -> None:
        present = caster._exists[: caster.num_agents].T
        self.env, self.slot = np.nonzero(present if ids is None else present[ids])
        if ids is not None:
            self.env = ids[self.env]
        self.flat = caster.flat(self.slot, self.env)
        self.walls = caster._walls.take(self.env, axis=2)
        self.half = caster._half.take(self.env, axis=2)
        self.can_see = caster._exists.take(self.env, axis=1)
        self.can_see[self.slot, np.arange(len(self.slot))] = False
        most = int(present.sum(axis=1).max()) - 1
        self.other_slots = caster._others[:most, self.slot, self.env]
        self.others = caster.flat(self.other_slots, self.env)


class _World:
    """Poses as float32 with the simulation innermost; what does not exist lies far away.

    Attributes:
        centres: [2, N, E].
        agents: [3, A * E].
        agent_yaw: [A * E].
        objects: [5, O, E]; x, y, z, cos yaw, sin yaw.
        per_x: [O, K, E]; inverse x component of the lidar's directions in the object's frame.
        per_y: [O, K, E].
        sight_points: [3, N * E]; what rays of sight aim at: centres, but of ramps the centre of mass.
        spheres: [3, 3 spheres, A * E].
    """

    def __init__(self, caster: RayCaster, pose: np.ndarray) -> None:
        agents, boxes = caster.num_agents, caster.num_boxes
        poses = np.empty((5, caster.num_targets, len(pose)), np.float32)
        poses[:3] = pose[..., :3].transpose(2, 1, 0)
        yaw = pose[..., 3].T.astype(np.float32)
        np.cos(yaw, out=poses[3])
        np.sin(yaw, out=poses[4])
        poses[0] += FAR * ~caster._exists
        self.centres = poses[:2]
        self.objects = np.ascontiguousarray(poses[:, agents:])
        self.agents = poses[:3, :agents].reshape(3, -1)
        self.agent_yaw = yaw[:agents].reshape(-1)
        cos, sin = self.objects[3][:, None], self.objects[4][:, None]
        self.per_x = _inverse(caster._cos * cos + caster._sin * sin)
        self.per_y = _inverse(caster._sin * cos - caster._cos * sin)
        points = poses[:3].copy()
        ramp_cos, ramp_sin = poses[3:, agents + boxes :]
        _, com_y, com_z = RAMP_CENTRE_OF_MASS
        points[0, agents + boxes :] -= np.float32(com_y) * ramp_sin
        points[1, agents + boxes :] += np.float32(com_y) * ramp_cos
        points[2, agents + boxes :] += np.float32(com_z)
        self.sight_points = points.reshape(3, -1)
        agent_cos, agent_sin = poses[3:, :agents].reshape(2, -1)
        self.spheres = np.empty((3, SPHERES, self.agents.shape[1]), np.float32)
        self.spheres[:, 0] = self.agents
        for index, (x, y, z) in enumerate(ARM_OFFSETS, start=1):
            self.spheres[0, index] = self.agents[0] + np.float32(x) * agent_cos - np.float32(y) * agent_sin
            self.spheres[1, index] = self.agents[1] + np.float32(x) * agent_sin + np.float32(y) * agent_cos
            self.spheres[2, index] = self.agents[2] + np.float32(z)


def _inverse(values: np.ndarray) -> np.ndarray:
    """1 / values, finite where they are zero."""
    inverse: np.ndarray = 1 / (values + np.copysign(TINY, values))
    return inverse


def _into_frame(x: np.ndarray, y: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """World vectors in the frame with the given yaw."""
    return x * cos + y * sin, y * cos - x * sin


def _slab_rays(
    x: np.ndarray, y: np.ndarray, half_x: np.ndarray, half_y: np.ndarray, per_x: np.ndarray, per_y: np.ndarray
) -> np.ndarray:
    """Nearest entry [K, P] of K rays into rectangles [S, P] whose centres relative to the origins are (x, y)."""
    near = x[:, None] * per_x  # [S, K, P]
    width = half_x[:, None] * np.abs(per_x)
    far = near + width
    near -= width
    other = y[:, None] * per_y
    width = half_y[:, None] * np.abs(per_y)
    np.minimum(far, other + width, out=far)
    other -= width
    np.maximum(near, other, out=near)
    return _hit(near, far).min(axis=0)


def _slab(centre: np.ndarray, half: np.ndarray, per: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ray parameters at which a ray enters and leaves |coordinate - centre| < half."""
    middle = centre * per
    width = half * np.abs(per)
    return middle - width, middle + width


def _clip(near: np.ndarray, far: np.ndarray, other: tuple[np.ndarray, np.ndarray]) -> None:
    np.maximum(near, other[0], out=near)
    np.minimum(far, other[1], out=far)


def _hit(near: np.ndarray, far: np.ndarray) -> np.ndarray:
    """`near` where a ray that is inside a shape from `near` to `far` meets it ahead, huge elsewhere; reuses both."""
    np.maximum(near, 0, out=near)
    np.subtract(near, far, out=far)
    far *= STEEP
    np.maximum(far, 0, out=far)
    near += far
    return near


def _sphere_hit(along: np.ndarray, root: np.ndarray) -> np.ndarray:
    """along - sqrt(root), huge where the sphere lies aside (root < 0) or behind (along < 0); reuses both."""
    miss = np.minimum(along, root)
    np.minimum(miss, 0, out=miss)
    miss *= STEEP
    np.maximum(root, 0, out=root)
    np.sqrt(root, out=root)
    along -= root
    along -= miss
    return along
