"""The autocurriculum of hide-and-seek, read off a run: which of the published stages it went through, and when.

The stages are those of Baker et al. 2019, section 5. `TABLE` tells each by levels of behaviour statistics. A level has
two values: the first is needed for a stage to begin, the weaker one for it to last, so that noise between the two
changes nothing; and every change has to last for `HOLD` bins in a row. The levels are those of the random-walls game:
elsewhere chance already passes some (in the quadrant a hider is seen in 0.58 of the main phase by chance).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml
from matplotlib.axes import Axes

from srl_ray.core.errors import ConfigError
from srl_ray.plotting.curves import (
    INK,
    PANELS,
    SOFT_INK,
    align,
    banded,
    decorate,
    new_figure,
    panel_color,
    save_figure,
    short_number,
    title_of,
)
from srl_ray.plotting.records import Records, read_records

GAME = "randomwalls"
BEFORE = "before chasing"
BINS, EPISODES_PER_BIN, HOLD = 60, 50, 3
"""Most bins; episodes in each on average, at least (one interval, where no episodes were kept); bins a change lasts."""


@dataclass(frozen=True)
class Level:
    """A condition on one statistic: at least, or (`is_ceiling`) at most, a value.

    Attributes:
        name: Of the statistic, see `srl_ray.envs.hide_and_seek.statistics`.
        begin: Value that is needed for the stage to begin.
        last: Weaker value that is enough for it to last; None: it is not looked at once the stage has begun.
    """

    name: str
    begin: float
    last: float | None
    is_ceiling: bool = False

    def holds(self, value: float, *, has_begun: bool) -> bool:
        needed = self.last if has_begun else self.begin
        return needed is None or (value <= needed if self.is_ceiling else value >= needed)


TABLE: dict[str, tuple[Level, ...]] = {
    # Seekers see a hider in half of the main phase; by chance in 0.38 of it.
    "chasing": (Level("hiders_seen_fraction", 0.5, 0.45),),
    # More boxes than the 0.6 that chance locks in the preparation, and they hide somebody.
    "forts": (Level("num_box_lock_prep", 1.0, 0.85), Level("hiders_seen_fraction", 0.46, None, is_ceiling=True)),
    # Ramps are brought to the walls in the main phase; chance moves one by 0.6 m.
    "ramp use": (Level("max_ramp_move_main", 1.5, 1.2),),
    # Both ramps are locked before the seekers move; chance locks 0.2.
    "ramp defence": (Level("num_ramp_lock_prep", 1.5, 1.2),),
    # Agents ride on what they hold; 0.02 of all agent steps are 7 % of what two of four agents do in the main phase.
    "box surfing": (Level("surfing_fraction", 0.02, 0.012), Level("max_box_move_main", 1.5, None)),
    # Most boxes are locked in the preparation; ramp defenders lock 2 to 3.
    "surf defence": (Level("num_box_lock_prep", 4.0, 3.4),),
}
"""Stage → levels that all have to hold. Of several stages whose levels hold, the last in this order counts."""
REQUIRES = {"surf defence": "box surfing"}
"""Stage → stage that must have been there: without surfers, locking all boxes is no defence against them."""
COLORS = {
    BEFORE: "#ffffff",
    "chasing": "#fbe3df",
    "forts": "#dcebf7",
    "ramp use": "#fbecd2",
    "ramp defence": "#dff0e4",
    "box surfing": "#f3dfee",
    "surf defence": "#e4e0f4",
}
STAGE_PANELS = (
    "return per episode",
    "share of main steps with a hider seen",
    "boxes moved furthest (m)",
    "ramps moved furthest (m)",
    "boxes locked",
    "ramps locked",
    "share of agent steps",
)


@dataclass(frozen=True)
class Stage:
    """A stretch of a run.

    Attributes:
        name: A stage of `TABLE`, or `BEFORE`.
        begin: Environment steps at which it began.
        end: Environment steps at which the next one began, or the newest ones.
    """

    name: str
    begin: float
    end: float


def read_stages(records: Records) -> list[Stage]:
    """The stages of a run in order, without gaps; nothing where the run is not of hide-and-seek or has just begun."""
    names = sorted({level.name for levels in TABLE.values() for level in levels} & records.summary_names)
    if "hiders_seen_fraction" not in names:
        return []
    points = [records.summary(name) for name in names]
    count = min(len(x) for x, _ in points)
    per_bin = EPISODES_PER_BIN if records.episodes else 1
    if count < HOLD * per_bin:
        return []
    steps, values = align(points, bins=min(BINS, count // per_bin))
    first, newest = max(x[0] for x, _ in points), min(x[-1] for x, _ in points)
    half = (steps[1] - steps[0]) / 2
    marks = [(BEFORE, float(first))]
    waiting, since, been = BEFORE, 0, {BEFORE}
    for index in range(len(steps)):
        found = _stage_at(dict(zip(names, values[:, index].tolist())), marks[-1][0], been)
        if found != waiting:
            waiting, since = found, index
        if waiting != marks[-1][0] and index - since + 1 >= HOLD:
            marks.append((waiting, float(steps[since] - half if since else first)))
            been.add(waiting)
    ends = [begin for _, begin in marks[1:]] + [float(newest)]
    return [Stage(name, begin, end) for (name, begin), end in zip(marks, ends) if end > begin]


def _stage_at(value: dict[str, float], current: str, been: set[str]) -> str:
    """The last stage of the table whose levels hold; those up to the current one have begun."""
    order = [BEFORE, *TABLE]
    found = BEFORE
    for name, levels in TABLE.items():
        has_begun = order.index(name) <= order.index(current) and name in been
        if REQUIRES.get(name, BEFORE) in been and all(
            level.name in value and level.holds(value[level.name], has_begun=has_begun) for level in levels
        ):
            found = name
    return found


def tell_stages(run_dir: Path | str, records: Records) -> tuple[list[Stage], str]:
    """The stages of a run directory, and one line that says which is the newest, or why none can be told."""
    scenario = _scenario(Path(run_dir))
    if scenario != GAME:
        return [], f"stage: not told for scenario={scenario}, the levels are those of {GAME}"
    stages = read_stages(records)
    return stages, describe(stages)


def _scenario(folder: Path) -> str:
    """Of hide-and-seek, from the run's configuration; the published game's where there is none."""
    file = folder / "config.yaml"
    config = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else None
    env = (config or {}).get("env") or {}
    return str((env.get("kwargs") or {}).get("scenario", GAME))


def describe(stages: list[Stage]) -> str:
    """One line: the newest stage and since when."""
    if not stages:
        return "stage: not enough episodes to tell"
    newest = stages[-1]
    return f"stage: {newest.name}" + ("" if newest.name == BEFORE else f" since {short_number(newest.begin)} steps")


def draw_stages(run_dir: Path | str, out: Path | str | None = None) -> Path:
    """Draw plots/stages.png of a run directory: behaviour over environment steps, with the stages as shaded spans.

    Raises:
        ConfigError: it is no run directory of hide-and-seek.
    """
    folder = Path(run_dir)
    records = read_records(folder)
    if "hiders_seen_fraction" not in records.summary_names:
        raise ConfigError(f"run={run_dir}: it has no statistics of hide-and-seek.")
    stages, line = tell_stages(folder, records)
    figure = new_figure(13.0, 11.5, f"{title_of(folder)}   {line}")
    panels = [panel for name in STAGE_PANELS for panel in PANELS if panel.title == name]
    shared: Axes | None = None
    for index, panel in enumerate(panels):
        axes = figure.add_subplot(4, 2, index + 1, sharex=shared)
        shared = shared or axes
        decorate(axes, panel.title)
        for number, (label, x, y) in enumerate(panel.find(records)):
            banded(axes, label, x, y, panel_color(label, number))
        if panel.floor is not None:
            axes.set_ylim(bottom=panel.floor)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, frameon=False, loc="best", labelcolor=INK)
        if index >= len(panels) - 2:
            axes.set_xlabel("environment steps", fontsize=8, color=SOFT_INK)
        _shade(axes, stages, is_named=index < 2)
    if stages:
        _explain(figure.add_subplot(4, 2, 8), stages)
    return save_figure(figure, Path(out) if out else folder / "plots" / "stages.png")


def _shade(axes: Axes, stages: list[Stage], *, is_named: bool) -> None:
    for stage in stages:
        axes.axvspan(stage.begin, stage.end, color=COLORS[stage.name], zorder=0, linewidth=0)
        if is_named and stage.end - stage.begin > 0.06 * (stages[-1].end - stages[0].begin):
            at = (stage.begin + stage.end) / 2
            axes.text(at, 0.985, stage.name.replace(" ", "\n"), transform=axes.get_xaxis_transform(), fontsize=7,
                      color=SOFT_INK, ha="center", va="top")  # fmt: skip


def _explain(axes: Axes, stages: list[Stage]) -> None:
    """The table in words, and when each stage began."""
    axes.axis("off")
    begins = {stage.name: stage.begin for stage in reversed(stages)}
    for row, (name, levels) in enumerate(TABLE.items()):
        y = 0.93 - 0.155 * row
        needs = ", ".join(f"{level.name} {'≤' if level.is_ceiling else '≥'} {level.begin:g}" for level in levels)
        since = f"from {short_number(begins[name])} steps" if name in begins else "not seen"
        axes.text(0.0, y, "      ", fontsize=9, backgroundcolor=COLORS[name], transform=axes.transAxes)
        axes.text(0.07, y, f"{name}: {since}", fontsize=9, transform=axes.transAxes,
                  color=INK if name in begins else SOFT_INK)  # fmt: skip
        axes.text(0.07, y - 0.065, needs, fontsize=7, color=SOFT_INK, transform=axes.transAxes)
