"""One picture per suite: a panel per task, a bar per variant, the machine's limit as a line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from matplotlib.axes import Axes

from srl_ray.benchmark.intervals import Estimate, estimate
from srl_ray.benchmark.results import Measurement
from srl_ray.plotting.curves import COLORS, INK, SOFT_INK, decorate, new_figure, save_figure, short_number

SUITES = ("ablation", "peers")
"""Those that compare."""
_COLUMNS = 2
_BAR_INCHES = 0.3


def draw_suite(entries: Iterable[Measurement], suite: str, out: Path) -> Path | None:
    """Draw what was measured of a suite of training runs; None: nothing was."""
    rates: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    limits: dict[str, list[float]] = defaultdict(list)
    for entry in entries:
        if entry.suite == suite:
            rates[entry.task][entry.variant].append(entry.values["fresh_rows_per_s"])
        elif entry.suite == "limits":
            limits[entry.task].append(entry.values["limit"])
    if not rates:
        return None
    rows = -(-len(rates) // _COLUMNS)
    bars = max(len(variants) for variants in rates.values())
    figure = new_figure(13.0, rows * (1.0 + _BAR_INCHES * bars), f"{suite}: agent steps trained per second")
    for number, (task, variants) in enumerate(rates.items()):
        axes = figure.add_subplot(rows, min(len(rates), _COLUMNS), number + 1)
        decorate(axes, task)
        found = {name: estimate(values) for name, values in variants.items()}
        _draw_bars(axes, found)
        longest = max(rate.high for rate in found.values())
        if task in limits:
            limit = estimate(limits[task]).center
            longest = max(longest, limit)
            axes.axvline(limit, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
            axes.text(limit, -0.66, "limit ", ha="right", va="center", fontsize=8, color=INK)
        axes.set_xlim(0.0, 1.12 * longest)
    return save_figure(figure, out)


def _draw_bars(axes: Axes, found: dict[str, Estimate]) -> None:
    """Medians as bars with their intervals, the first variant in the colour of its own."""
    for place, rate in enumerate(found.values()):
        axes.barh(place, rate.center, height=0.62, color=COLORS[0] if place == 0 else "#b9c7d3")
        axes.plot([rate.low, rate.high], [place, place], color=INK, linewidth=1.4)
        axes.text(rate.high, place, f"  {short_number(round(rate.center))}", va="center", fontsize=8, color=SOFT_INK)
    axes.set_yticks(range(len(found)), list(found), fontsize=8, color=INK)
    axes.set_ylim(len(found) - 0.4, -0.9)
    axes.grid(False, axis="y")
