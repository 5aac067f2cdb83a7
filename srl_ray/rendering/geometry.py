"""Plane geometry for the top-down view: outlines, sight lines and where the camera looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from srl_ray.envs.hide_and_seek.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Camera:
    """The square of the world that a frame shows: centre and half side, metres."""

    x: float
    y: float
    half: float


def rectangle(centre: np.ndarray, yaw: float, width: float, depth: float) -> np.ndarray:
    """Corners [4, 2] of a turned rectangle; `width` is along its own x axis."""
    cos, sin = np.cos(yaw), np.sin(yaw)
    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * (width / 2, depth / 2)
    return corners @ np.array([[cos, sin], [-sin, cos]]) + np.asarray(centre)[:2]


def nearest_point(point: np.ndarray, centre: np.ndarray, yaw: float, width: float, depth: float) -> np.ndarray:
    """The point [2] of a turned rectangle that is nearest to `point`, which is itself where it lies inside."""
    turn = np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
    half = np.array([width, depth]) / 2
    inside: np.ndarray = turn @ np.clip((point - centre) @ turn, -half, half) + centre
    return inside


def heading(yaw: float) -> np.ndarray:
    """Unit vector along which an agent looks."""
    return np.array([np.sin(yaw), -np.cos(yaw)])


def outlines(snapshot: Snapshot, eye_height: float, without: int = -1) -> np.ndarray:
    """Edges [K, 2, 2] of everything that stops a horizontal look at this height.

    Args:
        snapshot: The world.
        eye_height: Height of the look, m.
        without: Object that does not count (an agent sees along what it stands on or holds closely).
    """
    shapes = [
        np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]])
        for (x0, y0, x1, y1), height in zip(snapshot.walls, snapshot.wall_heights)
        if height > eye_height
    ]
    for index, (centre, yaw, size) in enumerate(zip(snapshot.box_centres, snapshot.box_yaws, snapshot.box_sizes)):
        if index != without and abs(eye_height - centre[2]) < size[2] / 2:
            shapes.append(rectangle(centre, yaw, size[0], size[1]))
    for x, y, radius in snapshot.cylinders:  # squares within the circle, turned
        side = radius * np.sqrt(2)
        shapes += [rectangle(np.array([x, y]), yaw, side, side) for yaw in np.arange(6) * np.pi / 12]
    side, first_ramp = snapshot.ramp_size, len(snapshot.box_centres)
    for index, (centre, yaw) in enumerate(zip(snapshot.ramp_centres, snapshot.ramp_yaws)):
        rise = eye_height - centre[2]
        if first_ramp + index != without and abs(rise) < side / 2:
            depth = side / 2 - rise  # at this height the wedge reaches from its vertical face to y = -rise
            offset = np.array([0.0, -side / 2 + depth / 2])
            turned = np.array([-np.sin(yaw) * offset[1], np.cos(yaw) * offset[1]])
            shapes.append(rectangle(centre[:2] + turned, yaw, side, depth))
    if not shapes:
        return np.zeros((0, 2, 2))
    corners = np.stack(shapes)
    return np.stack([corners, np.roll(corners, -1, axis=1)], axis=2).reshape(-1, 2, 2)


def sight(origin: np.ndarray, yaw: float, half_angle: float, reach: float, edges: np.ndarray) -> np.ndarray:
    """Outline [K, 2] of what lies open to a look from `origin`: the origin, then points along the field of view.

    Rays go through every corner of the edges and a little to both of its sides, so that shadows have sharp borders.
    """
    middle = yaw - np.pi / 2
    angles = np.linspace(-half_angle, half_angle, 25)
    if len(edges):
        toward = edges[:, 0] - origin
        corner = np.arctan2(toward[:, 1], toward[:, 0]) - middle
        corner = (corner + np.pi) % (2 * np.pi) - np.pi
        near = np.concatenate([corner - 1e-4, corner + 1e-4])
        angles = np.concatenate([angles, near[np.abs(near) <= half_angle]])
    angles = np.sort(angles) + middle
    rays = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    distance = np.full(len(rays), reach)
    if len(edges):
        start = edges[None, :, 0] - origin
        along = (edges[:, 1] - edges[:, 0])[None]
        cross = rays[:, None, 0] * along[..., 1] - rays[:, None, 1] * along[..., 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            t = (start[..., 0] * along[..., 1] - start[..., 1] * along[..., 0]) / cross
            u = (start[..., 0] * rays[:, None, 1] - start[..., 1] * rays[:, None, 0]) / cross
        hit = (np.abs(cross) > 1e-12) & (t > 0) & (u >= 0) & (u <= 1)
        distance = np.minimum(distance, np.where(hit, t, np.inf).min(axis=1))
    return np.concatenate([[origin], origin + rays * distance[:, None]])


def cameras(
    snapshots: Sequence[Snapshot], margin: float = 0.35, window: int = 24, most_outside: float = 1.5
) -> list[Camera]:
    """One camera per snapshot: the whole floor, drawn back smoothly where somebody or something leaves it.

    Args:
        snapshots: In order.
        margin: Seen around everything, m.
        window: Frames that a movement of the camera is spread over.
        most_outside: Whoever is further away from the floor than this is not followed, m.
    """
    middle = snapshots[0].floor_size / 2
    reach = np.array([_reach(snapshot) for snapshot in snapshots])
    half = _hold(np.clip(reach, middle, middle + most_outside) + margin, window)
    return [Camera(middle, middle, float(number)) for number in half]


def _reach(snapshot: Snapshot) -> float:
    """How far, along an axis, things and agents are from the middle of the floor."""
    points = [snapshot.agent_positions[snapshot.agent_present], snapshot.box_centres, snapshot.ramp_centres]
    offsets = np.abs(np.concatenate(points)[:, :2] - snapshot.floor_size / 2)
    return float(offsets.max(initial=0.0))


def _hold(values: np.ndarray, window: int) -> np.ndarray:
    """A smooth curve that is nowhere below `values`: the mean of the maxima over windows that contain the moment."""
    padded = np.pad(values, window, mode="edge")
    maxima = np.lib.stride_tricks.sliding_window_view(padded, window + 1).max(axis=1)
    return np.convolve(maxima, np.full(window + 1, 1 / (window + 1)), mode="valid")
