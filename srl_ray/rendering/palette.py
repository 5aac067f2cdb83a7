"""Colours, fonts and the frame's measures, shared by the views of hide-and-seek."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from PIL import ImageFont

from srl_ray.envs.hide_and_seek.snapshot import HIDERS, SEEKERS

Color = tuple[int, int, int]

GROUND, WAITING_GROUND, FLOOR = (226, 222, 213), (219, 215, 235), (247, 245, 239)
GRID_LINE, FLOOR_EDGE = (233, 229, 219), (200, 194, 181)
INNER_WALL, OUTER_WALL = (139, 158, 132), (70, 84, 82)
BOX, BOX_EDGE = (222, 186, 132), (139, 104, 58)
RAMP_LOW, RAMP_HIGH, RAMP_EDGE = (250, 222, 150), (226, 148, 52), (150, 92, 24)
TEAM_COLORS: dict[int, Color] = {HIDERS: (38, 132, 196), SEEKERS: (214, 62, 52)}
PREPARATION = (120, 113, 160)
INK, SOFT_INK, PAPER = (45, 48, 52), (120, 122, 124), (255, 255, 255)
SHADOW = (40, 36, 28)
SCALE = 2
"""Supersampling: what Pillow draws is drawn this many times larger and averaged down."""


FULL_WIDTH = 592


@dataclass(frozen=True)
class Style:
    """What is drawn, and how large.

    Attributes:
        size: Width of a frame and side of the square view, pixels; the bars above and below make it higher.
        show_sight: The open part of every field of view (from above only).
        show_lidar: Where the range rays end (from above only).
        show_seen: Lines from seekers to the hiders they see, and from above dotted ones the other way.
        show_bars: Phase, score and legend.
    """

    size: int = FULL_WIDTH
    show_sight: bool = True
    show_lidar: bool = False
    show_seen: bool = True
    show_bars: bool = True

    @property
    def bar_scale(self) -> float:
        """Of the bars, whose words have their full size in frames of `FULL_WIDTH` and more."""
        return min(1.0, self.size / FULL_WIDTH)

    @property
    def header(self) -> int:
        return round(56 * self.bar_scale) if self.show_bars else 0

    @property
    def footer(self) -> int:
        return round(40 * self.bar_scale) if self.show_bars else 0

    @property
    def frame_size(self) -> tuple[int, int]:
        """Width and height of a frame, pixels; even, as video encoders ask."""
        return self.size // 2 * 2, (self.size + self.header + self.footer) // 2 * 2


@cache
def font(size: int, bold: bool) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which comes with matplotlib; Pillow's own font where that is missing."""
    try:
        import matplotlib

        folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
        return ImageFont.truetype(str(folder / ("DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf")), max(size, 6))
    except (ImportError, OSError):
        plain = ImageFont.load_default(max(size, 6))
        assert isinstance(plain, ImageFont.FreeTypeFont)
        return plain


def mix(a: Color, b: Color, share: float) -> Color:
    """`a` with `share` of `b`."""
    red, green, blue = (round(p + (q - p) * share) for p, q in zip(a, b))
    return red, green, blue


def darker(color: Color, share: float = 0.3) -> Color:
    return mix(color, (0, 0, 0), share)


def lighter(color: Color, share: float) -> Color:
    return mix(color, (255, 255, 255), share)
