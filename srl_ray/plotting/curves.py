"""One picture of a run, or of several that differ in their seed: how they learned, how fast, what the agents did."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from srl_ray.core.errors import ConfigError
from srl_ray.plotting.records import Records, read_records

COLORS = (
    "#2684c4",
    "#d63e34",
    "#3a9a5b",
    "#8a63b8",
    "#d98a1f",
    "#4b5563",
    "#1fa3a3",
    "#b8467f",
    "#8a8f2a",
    "#7fb6e6",
    "#e89a94",
    "#86c99c",
)
LABEL_COLORS = {
    "hider": "#2684c4", "hiders": "#2684c4", "seeker": "#d63e34", "seekers": "#d63e34",
    "at the end, by hiders": "#2684c4", "at the end, by seekers": "#d63e34", "after preparation": "#8a63b8",
    "at the end": "#4b5563", "in preparation": "#8a63b8", "in the main phase": "#d98a1f", "whole episode": "#4b5563",
}  # fmt: skip
"""Colour of a curve by its label, where the same label stands for the same thing in several panels."""
INK, SOFT_INK, PAPER = "#2d3034", "#787a7c", "#fffefb"
COLUMNS = 3
BINS = 60
SEED_BINS = 40

Curve = tuple[str, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Panel:
    """One set of axes.

    Attributes:
        title: Above it.
        find: Gives the curves; a panel without any is left out.
        is_banded: Draw means of bins with the middle 80 % around them, for numbers of single episodes.
        floor: Lowest value of the axis, where there is one.
    """

    title: str
    find: Callable[[Records], list[Curve]]
    is_banded: bool = False
    floor: float | None = None


def draw_curves(
    run_dir: Path | str | Sequence[Path | str], out: Path | str | None = None, *, only: Sequence[str] = ()
) -> Path:
    """Draw the curves of a run directory from its metrics and episodes; may be called while it runs.

    Args:
        run_dir: One run, or several: then means over the runs and their 95 % confidence band, as far as all got.
        out: A picture's name; by default plots/curves.png in the run, or beside the first of several.
        only: Panels to draw: those whose title contains one of these texts, whatever their case.

    Raises:
        ConfigError: one is no run directory, or no panel is named like that.
    """
    folders = [Path(run_dir)] if isinstance(run_dir, str | Path) else [Path(folder) for folder in run_dir]
    runs = [read_records(folder) for folder in folders]
    if len(folders) == 1:
        path, title = folders[0] / "plots" / "curves.png", title_of(folders[0])
    else:
        path = folders[0].resolve().parent / "plots" / "curves.png"
        title = f"{folders[0].resolve().parent.name}, {len(folders)} runs: mean and its 95 % confidence band"
    return save_figure(make_figure(*runs, title=title, only=only), Path(out or path))


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a PNG beside its name and put it there when it is complete.

    Raises:
        ConfigError: the name does not end in .png.
    """
    if path.suffix != ".png":
        raise ConfigError(f"out={path}: a picture's name ends in .png.")
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{os.getpid()}.{path.name}")
    figure.savefig(aside, format="png", dpi=110, facecolor=PAPER)
    aside.replace(path)
    return path


def make_figure(*runs: Records, title: str = "", only: Sequence[str] = ()) -> Figure:
    """The same as a matplotlib figure, for a notebook.

    Raises:
        ConfigError: `only` names no panel.
    """
    panels = [panel for panel in PANELS if not only or any(text.lower() in panel.title.lower() for text in only)]
    if not panels:
        names = ", ".join(panel.title for panel in PANELS)
        raise ConfigError(f"only={','.join(only)}: no panel is named like that. There are: {names}.")
    found = [(panel, curves) for panel in panels if (curves := _curves_of_runs(panel, runs))]
    columns = min(COLUMNS, max(1, len(found)))
    rows = max(1, math.ceil(len(found) / columns))
    figure = new_figure(5.0 * columns, 3.1 * rows, title)
    if not found:
        figure.text(0.5, 0.5, "nothing was recorded yet", ha="center", color=SOFT_INK)
        return figure
    for index, (panel, curves) in enumerate(found):
        axes = figure.add_subplot(rows, columns, index + 1)
        decorate(axes, panel.title)
        for number, (label, points) in enumerate(curves.items()):
            color = panel_color(label, number)
            if len(runs) > 1:
                _over_runs(axes, label, points, color)
            else:
                (banded if panel.is_banded else _plain)(axes, label, *points[0], color)
        if panel.floor is not None:
            axes.set_ylim(bottom=panel.floor)
        if len(curves) > 1 or next(iter(curves)) not in panel.title:
            axes.legend(fontsize=8, frameon=False, loc="best", labelcolor=INK)
        if index >= len(found) - columns:
            axes.set_xlabel("environment steps", fontsize=8, color=SOFT_INK)
    return figure


def panel_color(label: str, number: int) -> str:
    """Of the curve with this number in its panel; labels that occur in several panels have their own."""
    return LABEL_COLORS.get(label, COLORS[number % len(COLORS)])


def new_figure(width: float, height: float, title: str) -> Figure:
    """A figure of this size in inches, and a title above that."""
    figure = Figure(figsize=(width, height + 0.6), layout="constrained", facecolor=PAPER)
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=13, color=INK, fontweight="bold")
    return figure


def _curves_of_runs(panel: Panel, runs: Sequence[Records]) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
    """Label → (x, y) of every run that has such a curve."""
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for records in runs:
        for label, x, y in panel.find(records):
            if len(x):
                found.setdefault(label, []).append((x, y))
    return found


# --------------------------------------------------------------------------------------------------- what is looked for


def _returns(records: Records) -> list[Curve]:
    """Of single episodes, else the intervals' means."""
    teams = records.returns_by_team()
    if teams:
        return [(team, *points) for team, points in sorted(teams.items())]
    return _metrics({"": "return/.+"})(records)


def _lengths(records: Records) -> list[Curve]:
    x, y = records.lengths()
    return [("length", x, y)] if len(x) else _metrics({"length": "episode/length"})(records)


def _metrics(patterns: dict[str, str]) -> Callable[[Records], list[Curve]]:
    """Label → pattern; an empty label takes the last part of each name that matches."""

    def find(records: Records) -> list[Curve]:
        curves = []
        for label, pattern in patterns.items():
            for key in records.matching(pattern):
                curves.append((label or key.rpartition("/")[2], *records.series(key)))
        return curves

    return find


def _behaviour(names: dict[str, str]) -> Callable[[Records], list[Curve]]:
    """Label → name of one of the environment's own numbers."""
    return lambda records: [
        (label, *records.summary(name)) for label, name in names.items() if name in records.summary_names
    ]


_KNOWN_BEHAVIOUR = {
    "max_box_move", "max_box_move_prep", "max_box_move_main", "max_ramp_move", "max_ramp_move_prep",
    "max_ramp_move_main", "num_box_lock", "num_box_lock_prep", "num_ramp_lock", "num_ramp_lock_prep",
    "num_box_lock_hiders", "num_box_lock_seekers", "num_ramp_lock_hiders", "num_ramp_lock_seekers", "hider_return",
    "seeker_return", "hiders_seen_fraction", "raised_fraction", "surfing_fraction", "holding_fraction",
    "out_of_area_steps", "num_hiders", "num_seekers", "num_boxes",
}  # fmt: skip


def _other_behaviour(records: Records) -> list[Curve]:
    names = sorted(records.summary_names - _KNOWN_BEHAVIOUR)
    return [(name, *records.summary(name)) for name in names[: len(COLORS)]]


PANELS: Sequence[Panel] = (
    Panel("return per episode", _returns, is_banded=True),
    Panel("episode length", _lengths, is_banded=True),
    Panel("boxes moved furthest (m)", _behaviour({"in preparation": "max_box_move_prep",
                                                  "in the main phase": "max_box_move_main",
                                                  "whole episode": "max_box_move"}), is_banded=True, floor=0.0),
    Panel("ramps moved furthest (m)", _behaviour({"in preparation": "max_ramp_move_prep",
                                                  "in the main phase": "max_ramp_move_main",
                                                  "whole episode": "max_ramp_move"}), is_banded=True, floor=0.0),
    Panel("boxes locked", _behaviour({"after preparation": "num_box_lock_prep", "at the end": "num_box_lock",
                                      "at the end, by hiders": "num_box_lock_hiders",
                                      "at the end, by seekers": "num_box_lock_seekers"}), is_banded=True, floor=0.0),
    Panel("ramps locked", _behaviour({"after preparation": "num_ramp_lock_prep", "at the end": "num_ramp_lock",
                                      "at the end, by hiders": "num_ramp_lock_hiders",
                                      "at the end, by seekers": "num_ramp_lock_seekers"}), is_banded=True, floor=0.0),
    Panel("share of main steps with a hider seen", _behaviour({"seen": "hiders_seen_fraction"}),
          is_banded=True, floor=0.0),
    Panel("share of agent steps", _behaviour({"holding something": "holding_fraction",
                                              "standing on something": "raised_fraction",
                                              "surfing": "surfing_fraction"}), is_banded=True, floor=0.0),
    Panel("agent steps outside the area", _behaviour({"outside": "out_of_area_steps"}), is_banded=True, floor=0.0),
    Panel("the environment's own numbers", _other_behaviour, is_banded=True),
    Panel("steps per second", _metrics({"environment steps": "rate/env_steps_per_s",
                                        "agent steps": "rate/agent_steps_per_s",
                                        "rows trained": "rate/rows_trained_per_s"}), floor=0.0),
    Panel("updates per second", _metrics({"updates": "rate/updates_per_s"}), floor=0.0),
    Panel("policy loss", _metrics({"policy loss": "train/policy_loss"})),
    Panel("value loss", _metrics({"value loss": "train/value_loss"})),
    Panel("other losses", _metrics({"": "train/(?!policy_loss|value_loss).*loss"})),
    Panel("entropy", _metrics({"entropy": "train/entropy"})),
    Panel("explained variance", _metrics({"explained variance": "train/explained_variance"})),
    Panel("KL divergence per update", _metrics({"KL": "train/(approx_)?kl"})),
    Panel("clipped rows (share)", _metrics({"clipped": "train/clip_fraction"}), floor=0.0),
    Panel("gradient norm", _metrics({"gradient norm": "train/grad_norm"}), floor=0.0),
    Panel("learning rate", _metrics({"learning rate": "train/learning_rate"}), floor=0.0),
    Panel("staleness (policy versions)", _metrics({"mean": "staleness/mean", "max": "staleness/max"}), floor=0.0),
    Panel("chunks waiting in the sample buffer", _metrics({"waiting": "buffer/waiting"}), floor=0.0),
    Panel("chunks and rows left out", _metrics({"": "buffer/(expired|lost)|lost/.+"}), floor=0.0),
    Panel("time of actor workers (share)", _metrics({"": "share/actor/.+"}), floor=0.0),
    Panel("time of policy workers (share)", _metrics({"": "share/policy_worker/.+"}), floor=0.0),
    Panel("time of trainer workers (share)", _metrics({"": "share/trainer/.+"}), floor=0.0),
    Panel("restarts", _metrics({"": "restarts/.+"}), floor=0.0),
)  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- drawing


def banded(axes: Axes, label: str, x: np.ndarray, y: np.ndarray, color: str) -> None:
    """Means of bins of about equally many episodes, and the middle 80 % of each.

    Episodes are written down several at a time, with the same number of steps; a bin never divides such a group.
    """
    bins = max(1, min(BINS, len(x) // 5))
    if len(x) < 10:
        _plain(axes, label, x, y, color)
        return
    edges = np.linspace(0, len(x), bins + 1).round().astype(int)[:-1]
    edges = np.append(np.unique(np.searchsorted(x, x[edges])), len(x))
    parts = [slice(begin, end) for begin, end in pairwise(edges.tolist())]
    middle = np.array([x[part].mean() for part in parts])
    mean = np.array([y[part].mean() for part in parts])
    low, high = (np.array([np.quantile(y[part], q) for part in parts]) for q in (0.1, 0.9))
    if len(parts) > 1:
        axes.fill_between(middle, low, high, color=color, alpha=0.15, linewidth=0)
        axes.plot(middle, mean, color=color, linewidth=1.8, label=label)
    else:
        axes.errorbar(middle, mean, [mean - low, high - mean], color=color, fmt="o", label=label)


def _plain(axes: Axes, label: str, x: np.ndarray, y: np.ndarray, color: str) -> None:
    """The values faintly and their smoothed course; a few values as points."""
    if len(x) < 3:
        axes.plot(x, y, "o", color=color, markersize=4, label=label)
        return
    if len(x) < 20:
        axes.plot(x, y, color=color, linewidth=1.6, label=label)
        return
    axes.plot(x, y, color=color, alpha=0.25, linewidth=0.8)
    axes.plot(x, smooth(y, max(3, len(y) // 25)), color=color, linewidth=1.8, label=label)


def _over_runs(axes: Axes, label: str, points: Sequence[tuple[np.ndarray, np.ndarray]], color: str) -> None:
    """Every run faintly, the mean of the runs, and its confidence band."""
    x, values = align(points)
    mean, half_width = mean_over_runs(values)
    for run in values:
        axes.plot(x, run, color=color, alpha=0.25, linewidth=0.7)
    axes.fill_between(x, mean - half_width, mean + half_width, color=color, alpha=0.18, linewidth=0)
    axes.plot(x, mean, "o" if len(x) < 3 else "-", color=color, linewidth=1.8, markersize=4, label=label)


def align(points: Sequence[tuple[np.ndarray, np.ndarray]], bins: int = SEED_BINS) -> tuple[np.ndarray, np.ndarray]:
    """Bring several curves to the same steps: from where the last begins to where the first ends, in equal bins.

    Args:
        points: (x, y) of each run R, x ascending.
        bins: At most so many; fewer where a curve has fewer points.

    Returns:
        Middles of the bins [K], and the mean of each run's points in each bin [R, K]; a bin without a point gets the
        value between its neighbours.
    """
    begin, end = max(x[0] for x, _ in points), min(x[-1] for x, _ in points)
    bins = max(1, min(bins, *(int(((x >= begin) & (x <= end)).sum()) for x, _ in points)))
    edges = np.linspace(begin, max(end, begin), bins + 1)
    middle = (edges[1:] + edges[:-1]) / 2
    rows = []
    for x, y in points:
        bin_of = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, bins - 1)
        inside = (x >= begin) & (x <= end)
        count = np.bincount(bin_of[inside], minlength=bins)
        total = np.bincount(bin_of[inside], weights=y[inside], minlength=bins)
        full = count > 0
        rows.append(
            np.interp(middle, middle[full], total[full] / count[full]) if full.any() else np.interp(middle, x, y)
        )
    return middle, np.array(rows)


_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""97.5 % quantile of Student's t for 1, 2, ... degrees of freedom."""


def mean_over_runs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the runs, and half the width of its 95 % confidence interval by Student's t.

    Args:
        values: [R, K]; with one run the width is 0.

    Returns:
        Two arrays [K].
    """
    runs = len(values)
    if runs < 2:
        return values.mean(axis=0), np.zeros(values.shape[1])
    quantile = _T_975[runs - 2] if runs - 2 < len(_T_975) else 1.96
    return values.mean(axis=0), quantile * values.std(axis=0, ddof=1) / math.sqrt(runs)


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Mean over a centred window that is cut at both ends."""
    window = window // 2 * 2 + 1
    kernel = np.ones(window)
    return np.convolve(values, kernel, mode="same") / np.convolve(np.ones(len(values)), kernel, mode="same")


def decorate(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.set_facecolor(PAPER)
    axes.grid(True, color="#e9e5db", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, colors=SOFT_INK, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#c8c2b5")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(short_number))
    axes.yaxis.set_major_formatter(FuncFormatter(short_number))


def short_number(value: float, _: Any = None) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    if 0 < abs(value) < 1e-3:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:.4g}"


def title_of(folder: Path) -> str:
    folder = folder.resolve()
    return f"{folder.parent.name} / {folder.name}" if folder.parent.name else folder.name
