"""Lidar and line of sight without a simulator: analytic intersections of rays with the few shapes of the game.

Every body only yaws, so the shapes are upright: walls are axis-aligned boxes, boxes are boxes with a yaw, a ramp is a
box cut by the plane through its slope, an agent is three spheres. The floor can block neither kind of ray. Results
equal those of MuJoCo's own ray casting (a test compares them).

A lidar ray meets few shapes and a shape is met by few rays: the bearings of a convex shape's outermost corners say by
which. Only these meetings are computed, as flat lists over all simulations. Line of sight is computed for every shape,
with the last axis over viewer-target pairs; misses are pushed away by arithmetic (see `_hit`) because selecting by a
mask costs numpy several times more.
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
SLACK = np.float32(1e-4)
"""m; by how much bounds are widened against rounding."""
HORIZON = np.float32(1e5)
"""Lidar distances beyond are misses."""
TINY = np.float32(1e-7)
STEEP = np.float32(1e20)
"""Turns any excess above 0 into a distance beyond HORIZON, without overflow."""
RAMP_HALF = np.array(RAMP_SIZE / 2, np.float32)
SPHERES = 1 + len(ARM_OFFSETS)
SPHERE_RADII = np.array([AGENT_RADIUS] + [ARM_RADIUS] * len(ARM_OFFSETS), np.float32)
AGENT_BOUND = np.float32(max(AGENT_RADIUS, *(np.hypot(x, y) + ARM_RADIUS for x, y, _ in ARM_OFFSETS))) + SLACK
"""Radius of a circle around all spheres of an agent, m."""


class RayCaster:
    """Lidar distances and the matrix of who sees what, for a block of simulations.

    Letters: E simulations, A agent slots, B box slots, R ramp slots, O = B + R, N = A + O, W walls, K lidar rays,
    P viewers, Q viewer-target pairs, M meetings of viewers and shapes, T meetings of rays and shapes.

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
        self.num_rays = config.lidar_rays
        angles = np.arange(self.num_rays) * (2 * np.pi / self.num_rays)
        self._cos, self._sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        self.lidar = np.zeros((num_envs, self.num_agents, config.lidar_rays), np.float32)
        self.sees = np.zeros((num_envs, self.num_agents, self.num_targets), bool)
        self._viewers: _Viewers | None = None
        self._world = _World(self, num_envs, config.max_walls)
        shapes = self.num_targets + config.max_walls
        self._exists = np.zeros((shapes, num_envs), bool)
        self._half = np.full((3, shapes, num_envs), RAMP_HALF)
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
        first_wall, boxes = self.num_targets, slice(self.num_agents, self.num_agents + len(box_sizes))
        built = slice(first_wall, first_wall + len(walls))
        self._world.bodies[:3, first_wall:, sim] = FAR
        self._world.bodies[:2, built, sim] = (walls[:, :2] + walls[:, 2:]).T / 2
        self._world.bodies[2, built, sim] = wall_heights / 2
        self._half[:2, built, sim] = (walls[:, 2:] - walls[:, :2]).T / 2
        self._half[2, built, sim] = wall_heights / 2
        self._half[:, boxes, sim] = box_sizes.T / 2
        self._exists[:first_wall, sim] = exists
        self._exists[first_wall:, sim] = np.arange(self._exists.shape[0] - first_wall) < len(walls)
        self._cylinders[:, :, sim] = cylinders.T
        self._viewers = None

    def cast(self, pose: np.ndarray, ids: np.ndarray | None = None) -> None:
        """Update `lidar` and `sees` for the poses [E, N, 4] (x, y, z, yaw); only for the simulations `ids` if given."""
        self._world.update(pose)
        viewers = _Viewers(self, ids) if self._viewers is None or ids is not None else self._viewers
        if ids is None:
            self._viewers = viewers
            self.sees[...] = False
        else:
            self.sees[ids] = False
        self._cast_lidar(self._world, viewers)
        self._cast_sight(self._world, viewers)

    # --- lidar ----------------------------------------------------------------------------------------------------

    def _cast_lidar(self, world: _World, viewers: _Viewers) -> None:
        nearest = np.full(self.lidar.size, FAR)
        for ray, distance in (self._lidar_boxes(world, viewers), self._lidar_agents(world, viewers)):
            np.minimum.at(nearest, ray, distance)
        rows = viewers.env, viewers.slot
        lidar = nearest.reshape(self.lidar.shape)[rows]
        if self._cylinders.size:
            np.minimum(lidar, self._lidar_cylinders(world, viewers), out=lidar)
        lidar[lidar > HORIZON] = LIDAR_MISS
        self.lidar[rows] = lidar

    def _lidar_boxes(self, world: _World, viewers: _Viewers) -> tuple[np.ndarray, np.ndarray]:
        """Walls, boxes and ramps: indices into the flat lidar array and distances, both [T]."""
        meetings = viewers.boxes
        x, y, z, yaw, cos, sin = world.flat.take(meetings.shape, axis=1)  # each [M]
        me_x, me_y, me_z = world.flat[:3].take(meetings.viewer, axis=1)
        half_x, half_y, half_z = meetings.half
        x, y = _into_frame(x - me_x, y - me_y, cos, sin)
        height = me_z - z
        # at a height above its centre, a ramp is the rectangle |x| < half, -half < y < -height
        ramps = meetings.ramps
        half_y = half_y.copy()
        half_y[ramps] = (RAMP_HALF - height[ramps]) / 2
        y[ramps] -= (height[ramps] + RAMP_HALF) / 2
        bearing, width, gap_x, gap_y = _outline(x, y, half_x, half_y)
        width[np.abs(height) > half_z] = -1.0
        meeting, ray = self._rays_between(bearing + yaw, width)
        cos, sin = cos.take(meeting), sin.take(meeting)
        along_x, along_y = _into_frame(self._cos.take(ray), self._sin.take(ray), cos, sin)
        gap_x, gap_y = gap_x.take(meeting), gap_y.take(meeting)
        gap_x /= along_x + np.copysign(TINY, along_x)
        gap_y /= along_y + np.copysign(TINY, along_y)
        ray += meetings.row.take(meeting)
        return ray, np.maximum(gap_x, gap_y, out=gap_x)

    def _lidar_agents(self, world: _World, viewers: _Viewers) -> tuple[np.ndarray, np.ndarray]:
        """As `_lidar_boxes`."""
        meetings = viewers.agents
        me = world.flat[:3].take(meetings.viewer, axis=1)
        x, y = world.flat[:2].take(meetings.shape, axis=1) - me[:2]
        distance = np.sqrt(x * x + y * y)
        width = np.arcsin(AGENT_BOUND / np.maximum(distance, AGENT_BOUND))
        width[distance <= AGENT_BOUND] = np.pi
        meeting, ray = self._rays_between(np.arctan2(y, x), width)
        x, y, z = world.spheres.take(meetings.shape.take(meeting), axis=2) - me.take(meeting, axis=1)[:, None]
        power = x * x + y * y + z * z  # [3 spheres, T]
        power -= (SPHERE_RADII * SPHERE_RADII)[:, None]
        along = x * self._cos.take(ray) + y * self._sin.take(ray)
        ray += meetings.row.take(meeting)
        return ray, _sphere_hit(along, along * along - power).min(axis=0)

    def _lidar_cylinders(self, world: _World, viewers: _Viewers) -> np.ndarray:
        """[P, K]; distances."""
        me_x, me_y, me_z = world.flat[:3].take(viewers.flat, axis=1)
        x, y, radius = self._cylinders.take(viewers.env, axis=2)  # each [C, P]
        x = x - me_x + FAR * (me_z > CYLINDER_HEIGHT)
        y = y - me_y
        along = x[..., None] * self._cos + y[..., None] * self._sin  # [C, P, K]
        root = along * along - (x * x + y * y - radius * radius)[..., None]
        return _sphere_hit(along, root).min(axis=0)

    def _rays_between(self, bearing: np.ndarray, width: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rays within `width` [M] of the world bearings `bearing` [M], rad; none where `width` is negative.

        Returns:
            Index into M and ray, both int [T].
        """
        per_ray = np.float32(self.num_rays / (2 * np.pi))
        first = np.ceil((bearing - width) * per_ray).astype(np.int64)
        count = np.floor((bearing + width) * per_ray).astype(np.int64) - first + 1
        np.clip(count, 0, self.num_rays, out=count)
        end = np.cumsum(count)
        meeting = np.repeat(np.arange(len(count)), count)
        ray = np.arange(len(meeting)) + (first % self.num_rays - end + count).take(meeting)
        ray -= self.num_rays * (ray >= self.num_rays)
        return meeting, ray

    # --- sight ----------------------------------------------------------------------------------------------------

    def _cast_sight(self, world: _World, viewers: _Viewers) -> None:
        x, y = world.bodies[:2].take(viewers.env, axis=2)  # each [N + W, P]
        me_x, me_y, _, _, cos, sin = world.flat.take(viewers.flat, axis=1)
        x -= me_x
        y -= me_y
        target, pair = _where(self._is_in_view(x[: self.num_targets], y[: self.num_targets], cos, sin, viewers))
        env = viewers.env.take(pair)
        origin = world.flat[:3].take(viewers.flat.take(pair), axis=1)  # [3, Q]
        ray = world.sight_points.take(self.flat(target, env), axis=1)
        ray -= origin
        shape, row = _where(self._is_near(x.take(pair, axis=1), y.take(pair, axis=1), ray, viewers, pair))
        first_box, first_ramp, first_wall = np.searchsorted(
            shape, (self.num_agents, self.num_agents + self.num_boxes, self.num_targets)
        )
        flat = self.flat(shape, env.take(row))
        origin, ray_to = origin.take(row, axis=1), ray.take(row, axis=1)
        hit = np.empty(len(row), np.float32)
        hit[:first_box] = self._sight_agents(world, flat[:first_box], origin[:, :first_box], ray_to[:, :first_box])
        ramps = slice(first_ramp - first_box, first_wall - first_box)
        hit[first_box:] = self._sight_boxes(
            world, flat[first_box:], ramps, origin[:, first_box:], ray_to[:, first_box:]
        )
        first = np.full(len(pair), FAR)
        np.minimum.at(first, row, hit)
        if self._cylinders.size:
            me = world.flat[:3].take(viewers.flat.take(pair), axis=1)
            np.minimum(first, self._sight_cylinders(me, ray, self._cylinders.take(env, axis=2)), out=first)
        is_own = shape == target.take(row)
        row = row[is_own]
        self.sees[env.take(row), viewers.slot.take(pair.take(row)), target.take(row)] = hit[is_own] <= first.take(row)
        diagonal = np.arange(self.num_agents)
        self.sees[:, diagonal, diagonal] = self._exists[: self.num_agents].T

    def _is_in_view(
        self, x: np.ndarray, y: np.ndarray, cos: np.ndarray, sin: np.ndarray, viewers: _Viewers
    ) -> np.ndarray:
        """bool [N, P]; what exists and lies in the horizontal field of view, given its place (x, y) from the viewer."""
        ahead = x * sin - y * cos
        is_in_view: np.ndarray = ahead >= np.sqrt(x * x + y * y) * np.float32(np.cos(VIEW_HALF_ANGLE))
        is_in_view &= viewers.can_see
        return is_in_view

    def _is_near(
        self, x: np.ndarray, y: np.ndarray, ray: np.ndarray, viewers: _Viewers, pair: np.ndarray
    ) -> np.ndarray:
        """bool [N + W, Q]; shapes at (x, y) from the viewers whose circles, of walls rectangles, the rays may cross."""
        length = np.sqrt(ray[0] * ray[0] + ray[1] * ray[1])
        per = _inverse(length)
        ray_x, ray_y = ray[0] * per, ray[1] * per
        bound = viewers.bound.take(pair, axis=1)
        along = x * ray_x
        along += y * ray_y
        along -= length / 2
        is_near: np.ndarray = np.abs(along, out=along) <= bound + length / 2
        half_x, half_y = viewers.wall_half.take(pair, axis=2)
        bound[self.num_targets :] = half_x * np.abs(ray_y) + half_y * np.abs(ray_x) + SLACK
        x *= ray_y
        x -= y * ray_x
        is_near &= np.abs(x, out=x) <= bound
        return is_near

    def _sight_boxes(
        self, world: _World, flat: np.ndarray, ramps: slice, origin: np.ndarray, ray: np.ndarray
    ) -> np.ndarray:
        """float32 [n]; where rays meet boxes, ramps and walls (flat indices)."""
        x, y, z, _, cos, sin = world.flat.take(flat, axis=1)
        half_x, half_y, half_z = self._half.reshape(3, -1).take(flat, axis=1)
        x, y = _into_frame(x - origin[0], y - origin[1], cos, sin)
        z -= origin[2]
        ray_x, ray_y = _into_frame(ray[0], ray[1], cos, sin)
        near, far = _slab(x, half_x, _inverse(ray_x))
        _clip(near, far, _slab(y, half_y, _inverse(ray_y)))
        _clip(near, far, _slab(z, half_z, _inverse(ray[2])))
        # a ramp is the part of its cube where y + z <= 0 in its own frame, which is linear along the ray
        rate = ray_y[ramps] + ray[2, ramps]
        crossing = (y[ramps] + z[ramps]) * _inverse(rate)
        np.minimum(far[ramps], np.where(rate > 0, crossing, FAR), out=far[ramps])
        np.maximum(near[ramps], np.where(rate > 0, -FAR, crossing), out=near[ramps])
        return _hit(near, far)

    def _sight_agents(self, world: _World, flat: np.ndarray, origin: np.ndarray, ray: np.ndarray) -> np.ndarray:
        """float32 [n]; where rays meet agents (flat indices)."""
        x, y, z = world.spheres.take(flat, axis=2) - origin[:, None]  # each [3 spheres, n]
        length2 = ray[0] * ray[0] + ray[1] * ray[1] + ray[2] * ray[2]
        along = x * ray[0] + y * ray[1] + z * ray[2]
        power = x * x + y * y + z * z
        power -= (SPHERE_RADII * SPHERE_RADII)[:, None]
        hits: np.ndarray = _sphere_hit(along, along * along - length2 * power).min(axis=0)
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

    def flat(self, body: np.ndarray, env: np.ndarray) -> np.ndarray:
        """Indices into arrays whose last axis runs over bodies and simulations."""
        return body * self._exists.shape[1] + env


class _Meetings:
    """Which viewer can meet which shapes, for the length of an episode.

    Attributes:
        viewer: int [M]; flat index of the viewer's body.
        shape: int [M]; flat index of the shape's body, ramps last.
        row: int [M]; where the viewer's rays begin in the flat lidar array.
        half: float32 [3, M]; half sizes.
        ramps: The part of M that is ramps.
    """

    def __init__(self, caster: RayCaster, viewers: _Viewers, bodies: np.ndarray) -> None:
        exists = caster._exists[bodies].take(viewers.env, axis=1)
        exists[bodies[:, None] == viewers.slot] = False
        index, viewer = np.nonzero(exists)
        body, env = bodies[index], viewers.env[viewer]
        self.viewer = viewers.flat[viewer]
        self.shape = caster.flat(body, env)
        self.row = (env * caster.num_agents + viewers.slot[viewer]) * caster.num_rays
        self.half = caster._half[:, body, env]
        is_ramp = (body >= caster.num_agents + caster.num_boxes) & (body < caster.num_targets)
        self.ramps = slice(len(body) - int(is_ramp.sum()), None)


class _Viewers:
    """The present agents of some simulations, and what of their worlds stays the same during an episode.

    Attributes:
        env: int [P]; simulation.
        slot: int [P].
        flat: int [P]; index into arrays over bodies and simulations.
        wall_half: float32 [2, W, P]; half sizes x and y.
        bound: float32 [N + W, P]; radii of circles around all shapes, negative for what does not exist and the viewer.
        can_see: bool [N, P]; what exists, except the viewer itself.
        boxes: Meetings with boxes, walls and ramps.
        agents: Meetings with other agents.
    """

    def __init__(self, caster: RayCaster, ids: np.ndarray | None) -> None:
        agents, boxes, targets = caster.num_agents, caster.num_boxes, caster.num_targets
        exists = caster._exists
        self.env, self.slot = np.nonzero((exists[:agents] if ids is None else exists[:agents, ids]).T)
        if ids is not None:
            self.env = ids[self.env]
        self.flat = caster.flat(self.slot, self.env)
        self.wall_half = caster._half[:2, targets:].take(self.env, axis=2)
        self.can_see = exists[:targets].take(self.env, axis=1)
        self.can_see[self.slot, np.arange(len(self.slot))] = False
        self.bound = np.hypot(*caster._half[:2]).take(self.env, axis=1) + SLACK
        self.bound[:agents] = AGENT_BOUND
        self.bound[~exists.take(self.env, axis=1)] = -FAR
        self.bound[self.slot, np.arange(len(self.slot))] = -FAR
        shapes = np.r_[agents : agents + boxes, targets : len(exists), agents + boxes : targets]
        self.boxes = _Meetings(caster, self, shapes)
        self.agents = _Meetings(caster, self, np.arange(agents))


class _World:
    """Poses as float32 with the simulation innermost; what does not exist lies far away.

    Attributes:
        bodies: [6, N + W, E]; x, y, z, yaw, cos yaw, sin yaw of agents, boxes, ramps and walls.
        flat: [6, (N + W) * E], the same memory.
        sight_points: [3, N * E]; what rays of sight aim at: centres, but of ramps the centre of mass.
        spheres: [3, 3 spheres, A * E].
    """

    def __init__(self, caster: RayCaster, num_envs: int, max_walls: int) -> None:
        self._caster = caster
        agents, targets = caster.num_agents, caster.num_targets
        self.bodies = np.zeros((6, targets + max_walls, num_envs), np.float32)
        self.bodies[4] = 1.0
        self.flat = self.bodies.reshape(6, -1)
        self._points = np.zeros((3, targets, num_envs), np.float32)
        self.sight_points = self._points.reshape(3, -1)
        self.spheres = np.zeros((3, SPHERES, agents * num_envs), np.float32)

    def update(self, pose: np.ndarray) -> None:
        """Take over the poses [E, N, 4]."""
        agents, boxes, targets = self._caster.num_agents, self._caster.num_boxes, self._caster.num_targets
        moving = self.bodies[:, :targets]
        moving[:4] = pose.transpose(2, 1, 0)
        np.cos(moving[3], out=moving[4])
        np.sin(moving[3], out=moving[5])
        moving[0] += FAR * ~self._caster._exists[:targets]
        self._points[...] = moving[:3]
        ramp_cos, ramp_sin = moving[4:, agents + boxes :]
        _, com_y, com_z = RAMP_CENTRE_OF_MASS
        self._points[0, agents + boxes :] -= np.float32(com_y) * ramp_sin
        self._points[1, agents + boxes :] += np.float32(com_y) * ramp_cos
        self._points[2, agents + boxes :] += np.float32(com_z)
        x, y, z, _, cos, sin = moving[:, :agents].reshape(6, -1)
        self.spheres[0, 0], self.spheres[1, 0], self.spheres[2, 0] = x, y, z
        for index, (arm_x, arm_y, arm_z) in enumerate(ARM_OFFSETS, start=1):
            self.spheres[0, index] = x + np.float32(arm_x) * cos - np.float32(arm_y) * sin
            self.spheres[1, index] = y + np.float32(arm_x) * sin + np.float32(arm_y) * cos
            self.spheres[2, index] = z + np.float32(arm_z)


def _outline(
    x: np.ndarray, y: np.ndarray, half_x: np.ndarray, half_y: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What rectangles centred at (x, y) in their own frames cover of the horizon around the origin.

    Returns:
        bearing: Direction of the middle of the covered sector, rad.
        width: Half the sector, rad; more than pi where the origin is inside.
        gap_x: Signed distance to the nearer of the two sides across x, 0 if the origin lies between them. A ray in the
            sector enters at the larger of the gaps, each divided by the ray's component.
        gap_y: Likewise.
    """
    # seen as if the centre were in the first quadrant: the sector ends at two corners, either both of the one side that
    # faces the origin or the far ones of the two sides that do
    far_x, far_y = np.abs(x), np.abs(y)
    near_x, near_y = far_x - half_x, far_y - half_y
    far_x += half_x
    far_y += half_y
    is_beside_x, is_beside_y = near_x > 0, near_y > 0
    right = np.arctan2(near_y, np.where(is_beside_y, far_x, near_x))
    left = np.arctan2(np.where(is_beside_x, far_y, near_y), near_x)
    width = (left - right) / 2
    width[~(is_beside_x | is_beside_y)] = 2 * np.pi
    bearing = np.copysign(left + right, x) / 2
    bearing += np.float32(np.pi) * (x < 0)
    return (
        np.copysign(1, y) * bearing,
        width,
        np.copysign(np.maximum(near_x, 0), x),
        np.copysign(np.maximum(near_y, 0), y),
    )


def _where(condition: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of what is true in a matrix, row by row: `np.nonzero` in half the time."""
    row, column = np.divmod(np.flatnonzero(condition), max(1, condition.shape[1]))
    return row, column


def _inverse(values: np.ndarray) -> np.ndarray:
    """1 / values, finite where they are zero."""
    inverse: np.ndarray = 1 / (values + np.copysign(TINY, values))
    return inverse


def _into_frame(x: np.ndarray, y: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """World vectors in the frame with the given yaw."""
    return x * cos + y * sin, y * cos - x * sin


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
