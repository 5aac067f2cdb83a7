"""Hide-and-seek from above, drawn with Pillow from a `Snapshot`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from PIL import Image, ImageDraw

from srl_ray.envs.hide_and_seek.snapshot import SEEKERS, Snapshot
from srl_ray.envs.hide_and_seek.transfer.blueprint import SITE_SIZE
from srl_ray.rendering.bars import frame, is_hider_seen
from srl_ray.rendering.geometry import Camera, cameras, heading, nearest_point, outlines, rectangle, sight
from srl_ray.rendering.palette import (
    BOX,
    BOX_EDGE,
    FLOOR,
    FLOOR_EDGE,
    GRID_LINE,
    GROUND,
    INK,
    INNER_WALL,
    OUTER_WALL,
    PAPER,
    PREPARATION,
    RAMP_EDGE,
    RAMP_HIGH,
    RAMP_LOW,
    SCALE,
    SHADOW,
    SOFT_INK,
    TEAM_COLORS,
    WAITING_GROUND,
    Color,
    Style,
    darker,
    font,
    lighter,
    mix,
)


def draw_frames(snapshots: Sequence[Snapshot], style: Style | None = None, outcome: str = "") -> Iterator[Image.Image]:
    """Frames of an episode, one per snapshot, with a camera that follows smoothly.

    Args:
        snapshots: In order, of one episode.
        style: What is drawn.
        outcome: Written across the last frame.
    """
    style = style or Style()
    seen = [is_hider_seen(snapshot) for snapshot in snapshots]
    for index, (snapshot, camera) in enumerate(zip(snapshots, cameras(snapshots))):
        is_last = index == len(snapshots) - 1
        yield draw(snapshot, style, camera, outcome=outcome if is_last else "", seen=seen[: index + 1])


def draw(
    snapshot: Snapshot,
    style: Style | None = None,
    camera: Camera | None = None,
    *,
    outcome: str = "",
    seen: Sequence[bool] = (),
) -> Image.Image:
    """One frame, RGB; `outcome` and `seen` as in `bars.frame`."""
    style = style or Style()
    view = _Painter(snapshot, style, camera or cameras([snapshot])[0]).paint()
    return frame(view, snapshot, style, outcome=outcome, seen=seen)


ROUND = np.linspace(0, 2 * np.pi, 64, endpoint=False)


class _Painter:
    """Draws one snapshot as a square, back to front: floor, fields of view, things by height, lines, agents."""

    def __init__(self, snapshot: Snapshot, style: Style, camera: Camera) -> None:
        self.world = snapshot
        self.style = style
        self.camera = camera
        ground = WAITING_GROUND if snapshot.phase == "preparation" else GROUND
        self.image = Image.new("RGB", (style.size * SCALE, style.size * SCALE), ground)
        self.pen = ImageDraw.Draw(self.image, "RGBA")
        self.zoom = style.size * SCALE / (2 * camera.half)
        self.line = max(1.0, self.zoom / 90)
        """Width of a thin line; grows with the zoom."""

    def paint(self) -> Image.Image:
        self._floor()
        if self.style.show_sight:
            self._sights()
        if self.style.show_lidar:
            self._lidar()
        self._things()
        if self.style.show_seen:
            self._seen_lines()
        self._agents()
        return self.image.reduce(SCALE)

    # ------------------------------------------------------------------------------------------------------ helpers

    def to_pixels(self, points: np.ndarray) -> list[tuple[float, float]]:
        """World [n, 2] → pixels; y points up in the world."""
        points = np.asarray(points, np.float64)
        middle = self.style.size * SCALE / 2
        x = (points[:, 0] - self.camera.x) * self.zoom + middle
        y = (self.camera.y - points[:, 1]) * self.zoom + middle
        return list(zip(x.tolist(), y.tolist()))

    def polygon(self, points: np.ndarray, fill: tuple[int, ...] | None, edge: Color | None = None) -> None:
        pixels = self.to_pixels(points)
        if fill is not None:
            self.pen.polygon(pixels, fill=fill)
        if edge is not None:
            self.pen.line([*pixels, pixels[0], pixels[1]], fill=edge, width=round(1.4 * self.line), joint="curve")

    def shadow(self, points: np.ndarray, bottom: float, top: float) -> None:
        """A soft shadow to the lower right; the higher the thing, the longer and the further off it lies."""
        for share, alpha in ((1.0, 22), (0.7, 22), (0.4, 22)):
            low, high = np.array([0.09, -0.11]) * bottom, np.array([0.22, -0.26]) * min(top, 0.9) * share
            swept = np.concatenate([points + low, points + high])
            self.polygon(_hull(swept), (*SHADOW, alpha))

    def circle(
        self, centre: tuple[float, float], radius: float, fill: tuple[int, ...], edge: Color | None = None
    ) -> None:
        x, y = centre
        width = round(1.6 * self.line) if edge is not None else 0
        self.pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill, outline=edge, width=width)

    def text(
        self, at: tuple[float, float], text: str, size: float, fill: Color, anchor: str = "lm", bold: bool = False
    ) -> float:
        """Returns the text's width in pixels."""
        letters = font(round(size * SCALE), bold)
        self.pen.text(at, text, font=letters, fill=fill, anchor=anchor)
        return float(letters.getlength(text))

    # -------------------------------------------------------------------------------------------------------- world

    def _floor(self) -> None:
        side = self.world.floor_size
        corners = np.array([[0, 0], [side, 0], [side, side], [0, side]])
        self.polygon(corners, FLOOR)
        for at in np.arange(1, int(np.ceil(side))):
            for line in ([[at, 0], [at, side]], [[0, at], [side, at]]):
                self.pen.line(self.to_pixels(np.array(line)), fill=GRID_LINE, width=round(self.line))
        self.polygon(corners, None, FLOOR_EDGE)
        for site in self.world.sites:
            corners = rectangle(site, 0.0, SITE_SIZE, SITE_SIZE)
            self.polygon(corners, (*PREPARATION, 40))
            self._dashes(np.concatenate([corners, corners[:1]]), (*PREPARATION, 255), 0.06, 1.6)
        x0, y0, x1, y1 = self.world.legal_area
        self._dashes(np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1], [x0, y0]]), (190, 90, 80, 150), 0.16)

    def _dashes(self, path: np.ndarray, fill: tuple[int, ...], dash: float, width: float = 1.0) -> None:
        for start, end in pairwise(path):
            length = float(np.hypot(*(end - start)))
            marks = np.arange(0, length, 2 * dash)
            for mark in marks:
                piece = start + (end - start) * np.array([[mark], [min(mark + dash, length)]]) / max(length, 1e-9)
                self.pen.line(self.to_pixels(piece), fill=fill, width=max(1, round(width * self.line)))

    def _sights(self) -> None:
        world = self.world
        for slot in self._present():
            position = world.agent_positions[slot]
            edges = outlines(world, float(position[2]))
            area = sight(
                position[:2], float(world.agent_yaws[slot]), world.view_half_angle, 1.45 * world.floor_size, edges
            )
            alpha = 14 if self._is_frozen(slot) else 30
            self.polygon(area, (*TEAM_COLORS[int(world.agent_teams[slot])], alpha))

    def _lidar(self) -> None:
        world, rays = self.world, self.world.lidar.shape[1]
        angles = np.arange(rays) * 2 * np.pi / max(rays, 1)
        directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        for slot in self._present():
            color = TEAM_COLORS[int(world.agent_teams[slot])]
            origin = world.agent_positions[slot, :2]
            ends = origin + directions * world.lidar[slot, :, None]
            begins = origin + directions * np.minimum(world.lidar[slot, :, None], 2.2 * world.agent_radius)
            for begin, end in zip(self.to_pixels(begins), self.to_pixels(ends)):
                self.pen.line([begin, end], fill=(*color, 26), width=max(1, round(0.7 * self.line)))
                self.circle(end, 2.0 * self.line, (*color, 130))

    def _things(self) -> None:
        """Walls, boxes and ramps from the lowest top to the highest."""
        world = self.world
        for x, y, radius in world.cylinders:
            rim = np.array([x, y]) + radius * np.stack([np.cos(ROUND), np.sin(ROUND)], axis=1)
            self.shadow(rim, 0.0, 0.5)
            self.polygon(rim, lighter(INNER_WALL, 0.35), darker(INNER_WALL))
        jobs: list[tuple[float, int, int]] = []
        jobs += [(float(height), 0, index) for index, height in enumerate(world.wall_heights)]
        jobs += [(float(c[2] + s[2] / 2), 1, i) for i, (c, s) in enumerate(zip(world.box_centres, world.box_sizes))]
        jobs += [(float(c[2] + world.ramp_size / 2), 2, index) for index, c in enumerate(world.ramp_centres)]
        for _, kind, index in sorted(jobs):
            (self._wall, self._box, self._ramp)[kind](index)

    def _wall(self, index: int) -> None:
        x0, y0, x1, y1 = self.world.walls[index]
        height = float(self.world.wall_heights[index])
        corners = np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]])
        is_high = height > 1.0
        color = OUTER_WALL if is_high else INNER_WALL
        self.shadow(corners, 0.0, 0.5)
        self.polygon(corners, color, darker(color))
        if not is_high:
            inset = 0.025
            inner = np.array([[x0 + inset, y0 + inset], [x1 - inset, y0 + inset]])
            inner = np.concatenate([inner, [[x1 - inset, y1 - inset], [x0 + inset, y1 - inset]]])
            self.polygon(inner, lighter(color, 0.18))

    def _box(self, index: int) -> None:
        world = self.world
        centre, yaw, size = world.box_centres[index], float(world.box_yaws[index]), world.box_sizes[index]
        lift = 1.0 + 0.18 * max(0.0, float(centre[2] - size[2] / 2))
        corners = rectangle(centre, yaw, size[0] * lift, size[1] * lift)
        self.shadow(corners, float(centre[2] - size[2] / 2), float(centre[2] + size[2] / 2))
        fill, edge = BOX, BOX_EDGE
        if world.box_locked[index]:
            fill, edge = self._locked(corners, int(world.box_owner_teams[index]), BOX)
        self.polygon(corners, fill, edge)
        border = 0.07 if min(size[:2]) > 0.3 else 0.04
        plank = rectangle(centre, yaw, size[0] * lift - 2 * border, size[1] * lift - 2 * border)
        self.polygon(plank, lighter(fill, 0.22))
        if min(size[:2]) > 0.3 and not world.box_locked[index]:
            for a, b in ((0, 2), (1, 3)):
                self.pen.line(self.to_pixels(plank[[a, b]]), fill=(*darker(fill, 0.12), 255), width=round(self.line))
        if world.box_locked[index]:
            self._padlock(centre, 0.16 if min(size[:2]) > 0.3 else 0.085, edge)

    def _ramp(self, index: int) -> None:
        world = self.world
        centre, yaw, side = world.ramp_centres[index], float(world.ramp_yaws[index]), world.ramp_size
        cos, sin = np.cos(yaw), np.sin(yaw)
        turn = np.array([[cos, sin], [-sin, cos]])
        corners = rectangle(centre, yaw, side, side)
        bottom = float(centre[2] - side / 2)
        high_half = np.array([[-1, -1], [1, -1], [1, 0.2], [-1, 0.2]]) * side / 2 @ turn + centre[:2]
        self.shadow(high_half, bottom, bottom + side)
        low, high, edge = RAMP_LOW, RAMP_HIGH, RAMP_EDGE
        if world.ramp_locked[index]:
            high, edge = self._locked(corners, int(world.ramp_owner_teams[index]), RAMP_HIGH)
            low = lighter(high, 0.5)
        strips = 12
        for strip in range(strips):
            y0, y1 = (-0.5 + strip / strips) * side, (-0.5 + (strip + 1) / strips) * side
            piece = np.array([[-side / 2, y0], [side / 2, y0], [side / 2, y1], [-side / 2, y1]]) @ turn + centre[:2]
            self.polygon(piece, mix(high, low, (strip + 0.5) / strips))
        self.polygon(corners, None, edge)
        face = np.array([[-side / 2, -side / 2], [side / 2, -side / 2]]) @ turn + centre[:2]
        self.pen.line(self.to_pixels(face), fill=edge, width=round(4.5 * self.line))
        for at in (-0.02, 0.1):  # chevrons that point up the slope
            chevron = np.array([[-0.1, at + 0.1], [0.0, at], [0.1, at + 0.1]]) @ turn + centre[:2]
            self.pen.line(self.to_pixels(chevron), fill=(*edge, 220), width=round(2.2 * self.line), joint="curve")
        if world.ramp_locked[index]:
            at = np.array([[0.0, -0.13]]) @ turn + centre[:2]
            self._padlock(at[0], 0.12, edge)

    def _locked(self, corners: np.ndarray, team: int, base: Color) -> tuple[Color, Color]:
        """Draw a glow in the team's colour; returns fill and edge of the locked thing."""
        color = TEAM_COLORS.get(team, SOFT_INK)
        along, across = _unit(corners[1] - corners[0]), _unit(corners[3] - corners[0])
        outward = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) @ np.stack([along, across])
        for width, alpha in ((0.12, 45), (0.08, 70), (0.04, 130)):
            self.polygon(corners + width * outward, (*color, alpha))
        return mix(base, color, 0.45), darker(color, 0.25)

    def _padlock(self, centre: np.ndarray, size: float, color: Color) -> None:
        (x, y), unit = self.to_pixels(np.asarray(centre)[None, :2])[0], size * self.zoom
        width = max(2, round(0.2 * unit))
        self.pen.arc((x - 0.34 * unit, y - 0.85 * unit, x + 0.34 * unit, y + 0.1 * unit), 180, 360, color, width)
        self.pen.line([(x - 0.27 * unit, y - 0.4 * unit), (x - 0.27 * unit, y)], fill=color, width=width)
        self.pen.line([(x + 0.27 * unit, y - 0.4 * unit), (x + 0.27 * unit, y)], fill=color, width=width)
        self.pen.rounded_rectangle(
            (x - 0.5 * unit, y - 0.2 * unit, x + 0.5 * unit, y + 0.6 * unit), radius=0.12 * unit, fill=color
        )

    # ------------------------------------------------------------------------------------------------------- agents

    def _present(self) -> list[int]:
        return [int(slot) for slot in np.flatnonzero(self.world.agent_present)]

    def _is_frozen(self, slot: int) -> bool:
        return self.world.phase == "preparation" and int(self.world.agent_teams[slot]) == SEEKERS

    def _seen_lines(self) -> None:
        world = self.world
        for viewer in self._present():
            for target in self._present():
                if not world.sees_agents[viewer, target] or world.agent_teams[viewer] == world.agent_teams[target]:
                    continue
                path = np.stack([world.agent_positions[viewer, :2], world.agent_positions[target, :2]])
                if int(world.agent_teams[viewer]) == SEEKERS and not self._is_frozen(viewer):
                    pixels = self.to_pixels(path)
                    self.pen.line(pixels, fill=(*TEAM_COLORS[SEEKERS], 70), width=round(6 * self.line))
                    self.pen.line(pixels, fill=(*TEAM_COLORS[SEEKERS], 220), width=round(2 * self.line))
                else:
                    self._dashes(path, (*TEAM_COLORS[int(world.agent_teams[viewer])], 150), 0.07, 1.3)

    def _agents(self) -> None:
        world = self.world
        for slot in sorted(self._present(), key=lambda slot: float(world.agent_positions[slot, 2])):
            self._grab(slot)
            self._agent(slot)
            self._far_away(slot)

    def _grab(self, slot: int) -> None:
        """A line to the near edge of what the agent holds; a ring where it stands on that."""
        world, held = self.world, int(self.world.agent_grabs[slot])
        if held < 0:
            return
        ramp = held - len(world.box_centres)
        if ramp < 0:
            centre, yaw, (width, depth, _) = world.box_centres[held], world.box_yaws[held], world.box_sizes[held]
        else:
            centre, yaw, width, depth = (
                world.ramp_centres[ramp],
                world.ramp_yaws[ramp],
                world.ramp_size,
                world.ramp_size,
            )
        position = world.agent_positions[slot, :2]
        edge = nearest_point(position, centre[:2], float(yaw), float(width), float(depth))
        start, end = self.to_pixels(np.stack([position, edge]))
        if np.allclose(edge, position):
            self.circle(start, 1.55 * self.world.agent_radius * self.zoom, INK)
            return
        end = (end[0] + 0.3 * (end[0] - start[0]), end[1] + 0.3 * (end[1] - start[1]))
        self.pen.line([start, end], fill=INK, width=round(4 * self.line))
        self.circle(end, 4.5 * self.line, INK)
        self.circle(end, 2.2 * self.line, PAPER)

    def _agent(self, slot: int) -> None:
        world = self.world
        x, y, z = (float(number) for number in world.agent_positions[slot])
        team = int(world.agent_teams[slot])
        color = TEAM_COLORS[team]
        if self._is_frozen(slot):
            color = mix(color, (225, 222, 216), 0.55)
        bottom = max(0.0, z - world.agent_radius)
        radius = world.agent_radius * (1 + 0.35 * bottom) * self.zoom
        drop = np.array([[x + 0.02 + 0.3 * bottom, y - 0.03 - 0.36 * bottom]])
        for grow, alpha in ((1.25, 30), (1.08, 45)):
            self.circle(self.to_pixels(drop)[0], radius * grow, (*SHADOW, alpha))
        centre = self.to_pixels(np.array([[x, y]]))[0]
        ahead = heading(float(world.agent_yaws[slot])) * (1, -1)  # pixels: y points down
        side = np.array([-ahead[1], ahead[0]])
        self.circle(centre, radius * 1.12, PAPER)
        self.circle(centre, radius, color)
        nose = [centre + ahead * 1.62 * radius, centre + (ahead * 0.95 + side * 0.42) * radius]
        nose += [centre + (ahead * 0.95 - side * 0.42) * radius]
        self.pen.polygon([tuple(point) for point in nose], fill=color)
        for sign in (-1, 1):
            eye = np.asarray(centre) + (ahead * 0.5 + side * 0.38 * sign) * radius
            self.circle((eye[0], eye[1]), 0.24 * radius, PAPER)
            pupil = eye + ahead * 0.09 * radius
            if not self._is_frozen(slot):
                self.circle((pupil[0], pupil[1]), 0.13 * radius, INK)
        number = world.agent_names[slot].rpartition("_")[2]
        label = np.asarray(centre) - ahead * 0.38 * radius
        self.text((label[0], label[1]), number, 0.62 * radius / SCALE, PAPER, "mm", bold=True)
        if bottom > 0.1:
            self._height_mark(centre, radius, bottom)

    def _far_away(self, slot: int) -> None:
        """An arrow at the edge of the picture for an agent outside of it."""
        offset = self.world.agent_positions[slot, :2] - (self.camera.x, self.camera.y)
        reach = float(np.abs(offset).max())
        if reach <= self.camera.half:
            return
        unit = SCALE
        edge = offset * (self.camera.half / reach) + (self.camera.x, self.camera.y)
        tip = np.asarray(self.to_pixels(edge[None])[0])
        ahead = offset / np.hypot(*offset) * (1, -1)
        side = np.array([-ahead[1], ahead[0]])
        tip = tip - ahead * 3 * unit
        base = tip - ahead * 16 * unit
        color = TEAM_COLORS[int(self.world.agent_teams[slot])]
        self.pen.polygon([tuple(tip), tuple(base + side * 8 * unit), tuple(base - side * 8 * unit)], fill=color)
        label = base - ahead * 14 * unit
        self.text((label[0], label[1]), f"{reach - self.camera.half:.0f} m", 10, color, "mm", bold=True)

    def _height_mark(self, centre: tuple[float, float], radius: float, height: float) -> None:
        text, size = f"+{height:.1f} m", 9.5
        letters = font(round(size * SCALE), True)
        width = letters.getlength(text)
        x, y = centre[0] + 1.1 * radius, centre[1] - 1.3 * radius
        box = (x - 4 * SCALE, y - 7 * SCALE, x + width + 4 * SCALE, y + 7 * SCALE)
        self.pen.rounded_rectangle(box, radius=4 * SCALE, fill=(255, 255, 255, 225))
        self.text((x, y), text, size, INK, "lm", bold=True)


# ------------------------------------------------------------------------------------------------------------- helpers


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.hypot(*vector)


def _hull(points: np.ndarray) -> np.ndarray:
    """Convex hull, counter-clockwise (Andrew's monotone chain)."""
    ordered = sorted(set(map(tuple, np.round(points, 9).tolist())))
    if len(ordered) < 3:
        return np.array(ordered)

    def chain(sequence: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
        kept: list[tuple[float, ...]] = []
        for p in sequence:
            while len(kept) >= 2 and _turn(kept[-2], kept[-1], p) <= 0:
                kept.pop()
            kept.append(p)
        return kept[:-1]

    return np.array(chain(ordered) + chain(ordered[::-1]))


def _turn(a: tuple[float, ...], b: tuple[float, ...], c: tuple[float, ...]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
