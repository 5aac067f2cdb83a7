"""Read what a run wrote down: metrics and episodes, complete or cut short, of this version or an older one."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from srl_ray.core.errors import ConfigError


@dataclass
class Records:
    """The numbers of a run, as columns.

    Attributes:
        metrics: One mapping per log interval, in order of env_steps.
        episodes: Finished episodes, in order of env_steps.
    """

    metrics: list[dict[str, Any]] = field(default_factory=list)
    episodes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def keys(self) -> set[str]:
        """Names of all metrics that ever had a number."""
        return {key for record in self.metrics for key, value in record.items() if _is_number(value)}

    def series(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """(env_steps, value) of one metric, at the intervals that have it."""
        points = [
            (record["env_steps"], record[key])
            for record in self.metrics
            if _is_number(record.get(key)) and _is_number(record.get("env_steps"))
        ]
        array = np.array(points, np.float64).reshape(-1, 2)
        return array[:, 0], array[:, 1]

    def matching(self, pattern: str) -> list[str]:
        """Metrics whose whole name matches, in alphabetical order."""
        return sorted(key for key in self.keys if re.fullmatch(pattern, key))

    def returns_by_team(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Team → (env_steps, mean return of its agents in that episode). `hider_0` belongs to `hider`."""
        points: dict[str, list[tuple[float, float]]] = {}
        for episode in self.episodes:
            teams: dict[str, list[float]] = {}
            for agent, value in (episode.get("returns") or {}).items():
                if _is_number(value):
                    teams.setdefault(re.sub(r"_?\d+$", "", agent) or agent, []).append(value)
            for team, values in teams.items():
                points.setdefault(team, []).append((episode["env_steps"], float(np.mean(values))))
        return {team: _columns(rows) for team, rows in points.items()}

    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """(env_steps, length) of the episodes."""
        return _columns([(e["env_steps"], e["length"]) for e in self.episodes if _is_number(e.get("length"))])

    def summary(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(env_steps, value) of one of the environment's own numbers: of every episode, else the intervals' means."""
        points = [
            (episode["env_steps"], episode["summary"][name])
            for episode in self.episodes
            if _is_number((episode.get("summary") or {}).get(name))
        ]
        return _columns(points) if points else self.series(f"summary/{name}")

    @property
    def summary_names(self) -> set[str]:
        """The environment's own numbers that occur anywhere."""
        names = {name for episode in self.episodes for name in episode.get("summary") or {}}
        return names | {key.removeprefix("summary/") for key in self.matching("summary/.+")}


def read_records(run_dir: Path | str) -> Records:
    """Read metrics.jsonl and episodes.jsonl (rotated ones too) of a run directory.

    Lines that are cut, numbers that are missing and episodes that the environment declared broken are left out.

    Raises:
        ConfigError: there is no such directory, or neither file.
    """
    folder = Path(run_dir)
    if not folder.is_dir():
        raise ConfigError(f"run={run_dir}: no such directory.")
    episode_files = sorted(folder.glob("episodes.*.jsonl"), reverse=True)
    episode_files += [folder / "episodes.jsonl"]
    files = [folder / "metrics.jsonl", *episode_files]
    if not any(file.exists() for file in files):
        raise ConfigError(f"run={run_dir}: it has neither metrics.jsonl nor episodes.jsonl, so it is no run directory.")
    metrics = [record for record in _lines(files[0]) if _is_number(record.get("env_steps"))]
    metrics.sort(key=lambda record: record["env_steps"])
    episodes = [record for file in episode_files for record in _lines(file) if not record.get("discarded")]
    _add_env_steps(episodes, metrics)
    episodes = [episode for episode in episodes if _is_number(episode.get("env_steps"))]
    episodes.sort(key=lambda episode: episode["env_steps"])
    return Records(metrics, episodes)


def _add_env_steps(episodes: Sequence[dict[str, Any]], metrics: Sequence[dict[str, Any]]) -> None:
    """Place episodes that do not say at which step they ended by their time, else by their policy version."""
    for key in ("time_unix_s", "policy_version"):
        known = [(record[key], record["env_steps"]) for record in metrics if _is_number(record.get(key))]
        if not known:
            continue
        at, steps = np.array(sorted(known), np.float64).T
        slack = (at[-1] - at[0]) + 60.0
        for episode in episodes:
            value: Any = episode.get(key)
            if (
                not _is_number(episode.get("env_steps"))
                and _is_number(value)
                and at[0] - slack <= value <= at[-1] + slack
            ):
                episode["env_steps"] = float(np.interp(value, at, steps))


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    if not file.exists():
        return
    with file.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record


def _columns(points: Sequence[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    array = np.array(points, np.float64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
