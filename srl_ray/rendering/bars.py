"""What stands around a view of hide-and-seek: phase, score and time above, the legend below, the outcome across it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from PIL import Image, ImageDraw

from srl_ray.envs.hide_and_seek.snapshot import HIDERS, SEEKERS, Snapshot
from srl_ray.rendering.palette import (
    BOX,
    BOX_EDGE,
    INK,
    PAPER,
    PREPARATION,
    RAMP_EDGE,
    RAMP_HIGH,
    RAMP_LOW,
    SCALE,
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

MARGIN = 16 * SCALE
TRACK = (236, 234, 228)


def frame(
    view: Image.Image, world: Snapshot, style: Style, *, outcome: str = "", seen: Sequence[bool] = ()
) -> Image.Image:
    """A view with its bars.

    Args:
        view: Square, `style.size` pixels.
        world: What it shows.
        style: Whether there are bars.
        outcome: Written across the view.
        seen: Whether a seeker saw a hider, at steps 0, 1, ... up to now; colours the time bar.
    """
    width, height = style.frame_size
    image = Image.new("RGB", (width, height), PAPER)
    image.paste(view, (0, style.header))
    if outcome:
        _banner(image, style, outcome)
    if style.show_bars:
        image.paste(_Bar(width, style.header, style.bar_scale).header(world, seen), (0, 0))
        image.paste(_Bar(width, style.footer, style.bar_scale).legend(), (0, height - style.footer))
    return image


def is_hider_seen(world: Snapshot) -> bool:
    """Whether a seeker sees a hider, which is what is rewarded."""
    present = np.asarray(world.agent_present, bool)
    hiders, seekers = (world.agent_teams == HIDERS) & present, (world.agent_teams == SEEKERS) & present
    return bool(world.sees_agents[np.ix_(seekers, hiders)].any())


class _Bar:
    """A white strip; everything on it is laid out for a frame of full width and shrunk by `scale`."""

    def __init__(self, width: int, height: int, scale: float) -> None:
        self.size = (width, height)
        self.image = Image.new("RGB", (round(width * SCALE / scale), round(height * SCALE / scale)), PAPER)
        self.pen = ImageDraw.Draw(self.image, "RGBA")

    def _finish(self) -> Image.Image:
        return self.image.resize(self.size, Image.Resampling.BOX)

    def _text(
        self, at: tuple[float, float], text: str, size: float, fill: Color, anchor: str, bold: bool = False
    ) -> float:
        """Returns the text's width in pixels."""
        letters = font(round(size * SCALE), bold)
        self.pen.text(at, text, font=letters, fill=fill, anchor=anchor)
        return float(letters.getlength(text))

    # ------------------------------------------------------------------------------------------------------- header

    def header(self, world: Snapshot, seen: Sequence[bool]) -> Image.Image:
        unit, right = SCALE, self.image.width - MARGIN
        is_preparing = world.phase == "preparation"
        has_seekers = bool((world.agent_teams[np.asarray(world.agent_present, bool)] == SEEKERS).any())
        if is_preparing:
            label, color, status = "PREPARATION", PREPARATION, "seekers wait, nobody scores"
        elif has_seekers:
            label, color, status = "SEEK", TEAM_COLORS[SEEKERS], "all hidden"
        else:
            label, color, status = "TASK", SOFT_INK, ""
        middle = 20 * unit
        length = font(round(12 * unit), True).getlength(label)
        chip = (MARGIN, 9 * unit, MARGIN + length + 20 * unit, 31 * unit)
        self.pen.rounded_rectangle(chip, radius=11 * unit, fill=color)
        self._text((MARGIN + 10 * unit, middle), label, 12, PAPER, "lm", bold=True)
        tone = SOFT_INK if is_preparing else TEAM_COLORS[HIDERS]
        if not is_preparing and is_hider_seen(world):
            status, tone = "a hider is seen", TEAM_COLORS[SEEKERS]
        self._text((MARGIN + length + 30 * unit, middle), status, 12, tone, "lm")
        x = right - self._text((right, middle), f"step {world.step} / {world.horizon}", 12, SOFT_INK, "rm") - 16 * unit
        score = f"{'hiders' if has_seekers else 'return'} {world.hiders_reward:+.0f}"
        self._text((x, middle), score, 14, TEAM_COLORS[HIDERS], "rm", bold=True)
        self._time(world, seen if has_seekers else ())
        return self._finish()

    def _time(self, world: Snapshot, seen: Sequence[bool]) -> None:
        """How far the episode is: preparation violet, then blue where all were hidden and red where one was seen."""
        unit, left, right = SCALE, MARGIN, self.image.width - MARGIN
        top, bottom = 41 * unit, 48 * unit

        def at(step: float) -> float:
            return left + (right - left) * step / max(world.horizon, 1)

        prepared = min(world.preparation_steps, world.step)
        self.pen.rounded_rectangle((left, top, right, bottom), radius=3 * unit, fill=TRACK)
        if world.preparation_steps:
            self.pen.rectangle((left, top, at(world.preparation_steps), bottom), fill=WAITING_GROUND)
        if prepared:
            self.pen.rectangle((left, top, at(prepared), bottom), fill=PREPARATION)
        main = [bool(flag) for flag in seen[world.preparation_steps + 1 : world.step + 1]]
        begin = world.preparation_steps
        for is_seen, group in groupby(main):
            end = begin + len(list(group))
            self.pen.rectangle((at(begin), top, at(end), bottom), fill=TEAM_COLORS[SEEKERS if is_seen else HIDERS])
            begin = end
        if not main and world.step > prepared:
            self.pen.rectangle((at(prepared), top, at(world.step), bottom), fill=SOFT_INK)
        self.pen.line([(at(world.step), top - 3 * unit), (at(world.step), bottom + 3 * unit)], fill=INK, width=2 * unit)

    # ------------------------------------------------------------------------------------------------------- legend

    def legend(self) -> Image.Image:
        unit = SCALE
        middle, x = self.image.height / 2, float(MARGIN)
        for kind, text in (
            ("hider", "hider"),
            ("seeker", "seeker"),
            ("box", "box"),
            ("locked", "locked (its team's colour)"),
            ("ramp", "ramp, dark end up"),
            ("grab", "holds"),
            ("seen", "sees"),
        ):
            x = self._symbol(kind, x, middle) + 5 * unit
            x += self._text((x, middle), text, 10, INK, "lm") + 11 * unit
        return self._finish()

    def _symbol(self, kind: str, x: float, y: float) -> float:
        """Draw a symbol whose left end is x; returns its right end."""
        unit = SCALE
        box = (x, y - 6 * unit, x + 12 * unit, y + 6 * unit)
        if kind in ("hider", "seeker"):
            self.pen.ellipse(box, fill=TEAM_COLORS[HIDERS if kind == "hider" else SEEKERS])
        elif kind == "box":
            self.pen.rectangle(box, fill=lighter(BOX, 0.22), outline=BOX_EDGE, width=round(1.5 * unit))
        elif kind == "locked":
            for team, half in ((HIDERS, (x, y - 6 * unit, x + 6 * unit, y + 6 * unit)),
                               (SEEKERS, (x + 6 * unit, y - 6 * unit, x + 12 * unit, y + 6 * unit))):  # fmt: skip
                self.pen.rectangle(
                    half, fill=mix(BOX, TEAM_COLORS[team], 0.55), outline=darker(TEAM_COLORS[team], 0.25)
                )
        elif kind == "ramp":
            for strip in range(6):
                piece = (x + 2 * strip * unit, y - 6 * unit, x + 2 * (strip + 1) * unit, y + 6 * unit)
                self.pen.rectangle(piece, fill=mix(RAMP_LOW, RAMP_HIGH, (strip + 0.5) / 6))
            edge = [(x + 12 * unit, y - 6 * unit), (x + 12 * unit, y + 6 * unit)]
            self.pen.line(edge, fill=RAMP_EDGE, width=2 * unit)
        elif kind == "grab":
            self.pen.line([(x, y), (x + 14 * unit, y)], fill=INK, width=2 * unit)
            self.pen.ellipse((x + 11 * unit, y - 3 * unit, x + 17 * unit, y + 3 * unit), fill=INK)
            return x + 17 * unit
        else:
            self.pen.line([(x, y), (x + 16 * unit, y)], fill=(*TEAM_COLORS[SEEKERS], 70), width=5 * unit)
            self.pen.line([(x, y), (x + 16 * unit, y)], fill=TEAM_COLORS[SEEKERS], width=2 * unit)
            return x + 16 * unit
        return x + 12 * unit


def _banner(image: Image.Image, style: Style, outcome: str) -> None:
    size = max(10, round(20 * style.bar_scale))
    letters = font(size, True)
    length = letters.getlength(outcome)
    x, y = style.size / 2, style.header + 0.88 * style.size
    pen = ImageDraw.Draw(image, "RGBA")
    box = (x - length / 2 - size, y - 1.2 * size, x + length / 2 + size, y + 1.2 * size)
    pen.rounded_rectangle(box, radius=round(0.6 * size), fill=(255, 255, 255, 225), outline=(*INK, 60), width=1)
    pen.text((x, y), outcome, font=letters, fill=INK, anchor="mm")
