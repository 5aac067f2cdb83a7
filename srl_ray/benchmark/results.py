"""The results file, and the tables and figures that are made from it alone."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from srl_ray.benchmark.intervals import Estimate, estimate, ratio
from srl_ray.benchmark.limits import PARTS

SUITES = ("limits", "throughput", "ablation", "peers")
OURS = "ours"
"""The variant of the suite `peers` that is this project."""


@dataclass(frozen=True)
class Measurement:
    """One repeat of one variant of one task.

    Attributes:
        suite: One of SUITES.
        task: See `tasks`.
        variant: Name in the suite.
        values: Metric → number.
        version: Commit it was measured at.
        machine: Where.
        time_unix_s: When it ended.
    """

    suite: str
    task: str
    variant: str
    values: dict[str, float]
    version: str
    machine: str
    time_unix_s: float


def measurement(suite: str, task: str, variant: str, values: dict[str, float]) -> Measurement:
    return Measurement(suite, task, variant, values, _version(), _machine(), time.time())


def load(path: Path) -> list[Measurement]:
    """What the file holds; nothing where there is none."""
    if not path.exists():
        return []
    return [Measurement(**entry) for entry in json.loads(path.read_text())]


def append(path: Path, new: Measurement) -> None:
    """Add one measurement; the file is replaced at once, so that an interruption cannot cut it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [asdict(entry) for entry in [*load(path), new]]
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(entries, indent=1) + "\n")
    aside.replace(path)


def _estimates(entries: Iterable[Measurement]) -> dict[str, Estimate]:
    values: dict[str, list[float]] = defaultdict(list)
    for entry in entries:
        for name, value in entry.values.items():
            values[name].append(value)
    return {name: estimate(numbers) for name, numbers in values.items()}


def _grouped(entries: Iterable[Measurement], suite: str) -> dict[tuple[str, str], list[Measurement]]:
    groups: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    for entry in entries:
        if entry.suite == suite:
            groups[entry.task, entry.variant].append(entry)
    return groups


def table(entries: list[Measurement], suite: str) -> str:
    """A Markdown table of a suite; empty when nothing was measured."""
    groups = _grouped(entries, suite)
    if not groups:
        return ""
    match suite:
        case "limits":
            lines = _limits(groups)
        case "peers":
            lines = _peers(groups, entries)
        case _:
            lines = _rates(groups, entries)
    stamp = max((entry for group in groups.values() for entry in group), key=lambda entry: entry.time_unix_s)
    day = time.strftime("%Y-%m-%d", time.gmtime(stamp.time_unix_s))
    return "\n".join([*lines, "", f"Median [95 % interval]; {stamp.machine}; {day}; commit {stamp.version}."])


def _limits(groups: dict[tuple[str, str], list[Measurement]]) -> list[str]:
    lines = ["| task | environment alone | inference alone | update alone | limit |", "|---|---|---|---|---|"]
    for (task, _), group in groups.items():
        found = _estimates(group)
        lines.append(f"| {task} | " + " | ".join(str(found[part]) for part in (*PARTS, "limit")) + " |")
    return lines


def _rates(groups: dict[tuple[str, str], list[Measurement]], entries: list[Measurement]) -> list[str]:
    limits = _limit_by_task(entries)
    lines = [
        "| task | variant | agent steps/s | fresh rows/s | share of the limit | against the first | start-up, s "
        "| cores | memory, MiB | staleness | runs |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    reference: dict[str, list[float]] = {}
    for (task, variant), group in groups.items():
        found = _estimates(group)
        rows = _fresh_rates(group)
        against = ratio(rows, reference.setdefault(task, rows))
        share = _share(found, limits.get(task))
        lines.append(
            f"| {task} | {variant} | {found['agent_steps_per_s']} | {found['fresh_rows_per_s']} | {share} "
            f"| {_shown(against)} | {found['startup_s'].center:.1f} "
            f"| {found['cores'].center:.2f} | {found['peak_mib'].center:,.0f} | {found['staleness'].center:.1f} "
            f"| {len(group)} |"
        )
    return lines


def _peers(groups: dict[tuple[str, str], list[Measurement]], entries: list[Measurement]) -> list[str]:
    """Agent steps are those that the learner consumed; every one of them once."""
    limits = _limit_by_task(entries)
    lines = [
        "| task | system | agent steps/s | ours / it | share of the limit | start-up, s | cores | memory, MiB | runs |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (task, variant), group in groups.items():
        found = _estimates(group)
        against = "–"
        if variant != OURS and (task, OURS) in groups:
            against = _shown(ratio(_fresh_rates(groups[task, OURS]), _fresh_rates(group)))
        lines.append(
            f"| {task} | {variant} | {found['fresh_rows_per_s']} | {against} | {_share(found, limits.get(task))} "
            f"| {found['startup_s'].center:.1f} | {found['cores'].center:.2f} | {found['peak_mib'].center:,.0f} "
            f"| {len(group)} |"
        )
    return lines


def _fresh_rates(group: list[Measurement]) -> list[float]:
    return [entry.values["fresh_rows_per_s"] for entry in group]


def _limit_by_task(entries: list[Measurement]) -> dict[str, float]:
    return {task: _estimates(group)["limit"].center for (task, _), group in _grouped(entries, "limits").items()}


def _shown(found: Estimate) -> str:
    return f"{found.center:.2f} [{found.low:.2f}, {found.high:.2f}]"


def _share(found: dict[str, Estimate], limit: float | None) -> str:
    return "–" if limit is None else f"{found['fresh_rows_per_s'].center / limit:.0%}"


def write_tables(page: Path, entries: list[Measurement]) -> list[str]:
    """Replace the tables of a Markdown page that have a place there; returns their suites."""
    made = {suite: table(entries, suite) for suite in SUITES}
    return [suite for suite, text in made.items() if text and replace_marked(page, suite, text + "\n")]


def replace_marked(page: Path, name: str, text: str) -> bool:
    """Put `text` between `<!-- name -->` and `<!-- /name -->` of a Markdown page; False: there is no such place."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if found and closed:
        page.write_text(f"{before}{begin}{text}{end}{after}")
    return bool(found and closed)


def _machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores, {platform.machine()}, Python {platform.python_version()}"


def _version() -> str:
    here = Path(__file__).parent
    found = subprocess.run(["git", "-C", here, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return found.stdout.strip() or "unknown"
