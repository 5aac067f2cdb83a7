"""Hide-and-seek from above, drawn with Pillow from a `Snapshot`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from srl_ray.envs.hide_and_seek.snapshot import HIDERS, SEEKERS, Snapshot
from srl_ray.rendering.geometry import Camera, cameras, heading, outlines, rectangle, sight

Color = tuple[int, int, int]

GROUND, FLOOR, GRID_LINE, FLOOR_EDGE = (226, 222, 213), (247, 245, 239), (233, 229, 219), (200, 194, 181)
INNER_WALL, OUTER_WALL = (139, 158, 132), (70, 84, 82)
BOX, BOX_EDGE = (222, 186, 132), (139, 104, 58)
RAMP_LOW, RAMP_HIGH, RAMP_EDGE = (250, 222, 150), (226, 148, 52), (150, 92, 24)
TEAM_COLORS: dict[int, Color] = {HIDERS: (38, 132, 196), SEEKERS: (214, 62, 52)}
INK, SOFT_INK, PAPER = (45, 48, 52), (120, 122, 124), (255, 255, 255)
SHADOW = (40, 36, 28)
SCALE = 2
"""Supersampling: frames are drawn this many times larger and averaged down."""


@dataclass(frozen=True)
class Style:
    """What is drawn, and how large.

    Attributes:
        size: Width of a frame and side of the square view, pixels; the bars above and below make it higher.
        show_sight: The open part of every field of view.
        show_lidar: Where the range rays end.
        show_seen: Lines from seekers to the hiders they see, and dotted ones the other way.
        show_bars: Phase, score and legend.
    """

    size: int = 592
    show_sight: bool = True
    show_lidar: bool = True
    show_seen: bool = True
    show_bars: bool = True

    @property
    def header(self) -> int:
        return 56 if self.show_bars else 0

    @property
    def footer(self) -> int:
        return 40 if self.show_bars else 0

    @property
    def frame_size(self) -> tuple[int, int]:
        """Width and height of a frame, pixels; even, as video encoders ask."""
        return self.size // 2 * 2, (self.size + self.header + self.footer) // 2 * 2


def draw_frames(snapshots: Sequence[Snapshot], style: Style | None = None, outcome: str = "") -> Iterator[Image.Image]:
    """Frames of an episode, one per snapshot, with a camera that follows smoothly.

    Args:
        snapshots: In order, of one episode.
        style: What is drawn.
        outcome: Written across the last frame.
    """
    style = style or Style()
    for index, (snapshot, camera) in enumerate(zip(snapshots, cameras(snapshots))):
        yield draw(snapshot, style, camera, outcome if index == len(snapshots) - 1 else "")


def draw(
    snapshot: Snapshot, style: Style | None = None, camera: Camera | None = None, outcome: str = ""
) -> Image.Image:
    """One frame, RGB."""
    style = style or Style()
    return _Painter(snapshot, style, camera or cameras([snapshot])[0]).paint(outcome)


class _Painter:
    """Draws one snapshot, back to front: floor, fields of view, things by height, agents, lines, bars."""

    def __init__(self, snapshot: Snapshot, style: Style, camera: Camera) -> None:
        self.world = snapshot
        self.style = style
        self.camera = camera
        width, height = style.frame_size
        self.image = Image.new("RGB", (width * SCALE, height * SCALE), GROUND)
        self.pen = ImageDraw.Draw(self.image, "RGBA")
        self.zoom = style.size * SCALE / (2 * camera.half)
        self.line = max(1.0, self.zoom / 90)
        """Width of a thin line; grows with the zoom."""

    def paint(self, outcome: str) -> Image.Image:
        self._floor()
        if self.style.show_sight:
            self._sights()
        if self.style.show_lidar:
            self._lidar()
        self._things()
        if self.style.show_seen:
            self._seen_lines()
        self._agents()
        if self.style.show_bars:
            self._header()
            self._footer()
        if outcome:
            self._banner(outcome)
        return self.image.reduce(SCALE)

    # ------------------------------------------------------------------------------------------------------ helpers

    def to_pixels(self, points: np.ndarray) -> list[tuple[float, float]]:
        """World [n, 2] → pixels; y points up in the world."""
        points = np.asarray(points, np.float64)
        middle = self.style.size * SCALE / 2
        x = (points[:, 0] - self.camera.x) * self.zoom + middle
        y = (self.camera.y - points[:, 1]) * self.zoom + middle + self.style.header * SCALE
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
        font = _font(round(size * SCALE), bold)
        self.pen.text(at, text, font=font, fill=fill, anchor=anchor)
        return float(font.getlength(text))

    # -------------------------------------------------------------------------------------------------------- world

    def _floor(self) -> None:
        side = self.world.floor_size
        corners = np.array([[0, 0], [side, 0], [side, side], [0, side]])
        self.polygon(corners, FLOOR)
        for at in np.arange(1, int(np.ceil(side))):
            for line in ([[at, 0], [at, side]], [[0, at], [side, at]]):
                self.pen.line(self.to_pixels(np.array(line)), fill=GRID_LINE, width=round(self.line))
        self.polygon(corners, None, FLOOR_EDGE)
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
        self.polygon(corners, color, _darker(color))
        if not is_high:
            inset = 0.025
            inner = np.array([[x0 + inset, y0 + inset], [x1 - inset, y0 + inset]])
            inner = np.concatenate([inner, [[x1 - inset, y1 - inset], [x0 + inset, y1 - inset]]])
            self.polygon(inner, _lighter(color, 0.18))

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
        self.polygon(plank, _lighter(fill, 0.22))
        if min(size[:2]) > 0.3 and not world.box_locked[index]:
            for a, b in ((0, 2), (1, 3)):
                self.pen.line(self.to_pixels(plank[[a, b]]), fill=(*_darker(fill, 0.12), 255), width=round(self.line))
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
            low = _lighter(high, 0.5)
        strips = 12
        for strip in range(strips):
            y0, y1 = (-0.5 + strip / strips) * side, (-0.5 + (strip + 1) / strips) * side
            piece = np.array([[-side / 2, y0], [side / 2, y0], [side / 2, y1], [-side / 2, y1]]) @ turn + centre[:2]
            self.polygon(piece, _mix(high, low, (strip + 0.5) / strips))
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
        pixels = self.to_pixels(corners)
        for width, alpha in ((0.26, 40), (0.18, 55), (0.1, 90)):
            self.pen.line(
                [*pixels, pixels[0], pixels[1]], fill=(*color, alpha), width=round(width * self.zoom), joint="curve"
            )
        return _mix(base, color, 0.45), _darker(color, 0.25)

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
        held = int(self.world.agent_grabs[slot])
        if held < 0:
            return
        objects = np.concatenate([self.world.box_centres, self.world.ramp_centres])
        path = np.stack([self.world.agent_positions[slot, :2], objects[held, :2]])
        pixels = self.to_pixels(path)
        self.pen.line(pixels, fill=INK, width=round(4 * self.line))
        self.circle(pixels[1], 4.5 * self.line, INK)
        self.circle(pixels[1], 2.2 * self.line, PAPER)

    def _agent(self, slot: int) -> None:
        world = self.world
        x, y, z = (float(number) for number in world.agent_positions[slot])
        team = int(world.agent_teams[slot])
        color = TEAM_COLORS[team]
        if self._is_frozen(slot):
            color = _mix(color, (225, 222, 216), 0.55)
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
        font = _font(round(size * SCALE), True)
        width = font.getlength(text)
        x, y = centre[0] + 1.1 * radius, centre[1] - 1.3 * radius
        box = (x - 4 * SCALE, y - 7 * SCALE, x + width + 4 * SCALE, y + 7 * SCALE)
        self.pen.rounded_rectangle(box, radius=4 * SCALE, fill=(255, 255, 255, 225))
        self.text((x, y), text, size, INK, "lm", bold=True)

    # --------------------------------------------------------------------------------------------------------- bars

    def _header(self) -> None:
        world, width, unit = self.world, self.style.size * SCALE, SCALE
        self.pen.rectangle((0, 0, width, self.style.header * unit), fill=PAPER)
        is_preparing = world.phase == "preparation"
        label = "PREPARATION" if is_preparing else "SEEK"
        color = (120, 113, 160) if is_preparing else TEAM_COLORS[SEEKERS]
        left, middle = 16 * unit, 20 * unit
        length = _font(round(12 * unit), True).getlength(label)
        self.pen.rounded_rectangle((left, 9 * unit, left + length + 20 * unit, 31 * unit), radius=11 * unit, fill=color)
        self.text((left + 10 * unit, middle), label, 12, PAPER, "lm", bold=True)
        at = left + length + 32 * unit
        status, tone = self._status()
        self.text((at, middle), status, 12, tone, "lm")
        right = width - 16 * unit
        step = f"step {world.step} / {world.horizon}"
        self.text((right, middle), step, 12, SOFT_INK, "rm")
        score = f"hiders {world.hiders_reward:+.0f}"
        offset = _font(round(12 * unit), False).getlength(f"step {world.horizon} / {world.horizon}") + 18 * unit
        self.text((right - offset, middle), score, 14, TEAM_COLORS[HIDERS], "rm", bold=True)
        top, bottom = 41 * unit, 47 * unit
        share = width - 32 * unit
        prepared = left + share * world.preparation_steps / max(world.horizon, 1)
        now = left + share * world.step / max(world.horizon, 1)
        self.pen.rounded_rectangle((left, top, right, bottom), radius=3 * unit, fill=(236, 234, 228))
        self.pen.rounded_rectangle((left, top, prepared, bottom), radius=3 * unit, fill=(219, 215, 235))
        if now > left + 6 * unit:
            self.pen.rounded_rectangle((left, top, now, bottom), radius=3 * unit, fill=color)
        self.pen.line([(prepared, top - 2 * unit), (prepared, bottom + 2 * unit)], fill=SOFT_INK, width=unit)

    def _status(self) -> tuple[str, Color]:
        world = self.world
        if world.phase == "preparation":
            return "seekers wait, nobody scores", SOFT_INK
        hiders, seekers = world.agent_teams == HIDERS, world.agent_teams == SEEKERS
        present = np.asarray(world.agent_present, bool)
        seen = world.sees_agents[np.ix_(seekers & present, hiders & present)].any()
        return ("a hider is seen", TEAM_COLORS[SEEKERS]) if seen else ("all hiders hidden", TEAM_COLORS[HIDERS])

    def _footer(self) -> None:
        unit, width, height = SCALE, self.style.frame_size[0] * SCALE, self.style.frame_size[1] * SCALE
        top = height - self.style.footer * unit
        self.pen.rectangle((0, top, width, height), fill=PAPER)
        middle, x = top + self.style.footer * unit / 2, 16.0 * unit
        for kind, text in (
            ("hider", "hider"),
            ("seeker", "seeker"),
            ("box", "box"),
            ("locked", "locked, by hiders"),
            ("ramp", "ramp, dark end up"),
            ("grab", "holds"),
            ("seen", "sees"),
        ):
            x = self._symbol(kind, x, middle) + 6 * unit
            x += self.text((x, middle), text, 10.5, INK) + 13 * unit

    def _symbol(self, kind: str, x: float, y: float) -> float:
        """Draw a legend symbol whose left end is x; returns its right end."""
        unit = SCALE
        box = (x, y - 6 * unit, x + 12 * unit, y + 6 * unit)
        if kind in ("hider", "seeker"):
            self.pen.ellipse(box, fill=TEAM_COLORS[HIDERS if kind == "hider" else SEEKERS])
        elif kind == "box":
            self.pen.rectangle(box, fill=_lighter(BOX, 0.22), outline=BOX_EDGE, width=round(1.5 * unit))
        elif kind == "locked":
            color = TEAM_COLORS[HIDERS]
            self.pen.rectangle(box, fill=_mix(BOX, color, 0.45), outline=_darker(color, 0.25), width=2 * unit)
        elif kind == "ramp":
            for strip in range(6):
                piece = (x + 2 * strip * unit, y - 6 * unit, x + 2 * (strip + 1) * unit, y + 6 * unit)
                self.pen.rectangle(piece, fill=_mix(RAMP_LOW, RAMP_HIGH, (strip + 0.5) / 6))
            self.pen.line(
                [(x + 12 * unit, y - 6 * unit), (x + 12 * unit, y + 6 * unit)], fill=RAMP_EDGE, width=2 * unit
            )
        elif kind == "grab":
            self.pen.line([(x, y), (x + 14 * unit, y)], fill=INK, width=2 * unit)
            self.circle((x + 14 * unit, y), 3 * unit, INK)
            return x + 17 * unit
        else:
            self.pen.line([(x, y), (x + 16 * unit, y)], fill=(*TEAM_COLORS[SEEKERS], 70), width=5 * unit)
            self.pen.line([(x, y), (x + 16 * unit, y)], fill=TEAM_COLORS[SEEKERS], width=2 * unit)
            return x + 16 * unit
        return x + 12 * unit

    def _banner(self, outcome: str) -> None:
        unit, size = SCALE, 20
        length = _font(size * unit, True).getlength(outcome)
        x, y = self.style.size * unit / 2, (self.style.header + 0.88 * self.style.size) * unit
        box = (x - length / 2 - 20 * unit, y - 24 * unit, x + length / 2 + 20 * unit, y + 24 * unit)
        self.pen.rounded_rectangle(box, radius=12 * unit, fill=(255, 255, 255, 235), outline=(*INK, 60), width=unit)
        self.text((x, y), outcome, size, INK, "mm", bold=True)


# ------------------------------------------------------------------------------------------------------------- helpers


@cache
def _font(size: int, bold: bool) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which comes with matplotlib; Pillow's own font where that is missing."""
    try:
        import matplotlib

        folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
        return ImageFont.truetype(str(folder / ("DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf")), max(size, 6))
    except (ImportError, OSError):
        font = ImageFont.load_default(max(size, 6))
        assert isinstance(font, ImageFont.FreeTypeFont)
        return font


def _mix(a: Color, b: Color, share: float) -> Color:
    """`a` with `share` of `b`."""
    red, green, blue = (round(p + (q - p) * share) for p, q in zip(a, b))
    return red, green, blue


def _darker(color: Color, share: float = 0.3) -> Color:
    return _mix(color, (0, 0, 0), share)


def _lighter(color: Color, share: float) -> Color:
    return _mix(color, (255, 255, 255), share)


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
