"""The driver's counters: exact sums over all workers and all their lives, and the record of each log interval."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_RECENT_EPISODES = 100
COUNTERS = (
    "env_steps",
    "agent_steps",
    "frames",
    "chunks",
    "lost_chunks",
    "unrecorded_rows",
    "resends",
    "discarded_episodes",
)

"""Cumulative counters of an ActorReport that are summed up."""
ROW_COUNTERS = ("rows_trained_fresh", "rows_trained_total")
"""The same of a TrainerReport."""
PROCESSOR = "processor"
"""The stage of a report that is no stage of its thread: processor seconds of all threads of the worker's process."""


class Tally:
    """Adds up the deltas of cumulative reports per (role, index, epoch); pure, no Ray.

    Example:
        tally = Tally(team_of={"hider_0": "hiders", "seeker_0": "seekers"}, now=time.monotonic)
        tally.add_actor(report)
        metrics.write(tally.record())
    """

    def __init__(self, *, team_of: Mapping[str, str], now: Callable[[], float]) -> None:
        self.team_of = team_of
        self.counts: dict[str, int] = dict.fromkeys((*COUNTERS, *ROW_COUNTERS), 0)
        self.episodes = 0
        self.version = 0
        self.recent_returns: deque[float] = deque(maxlen=_RECENT_EPISODES)
        self.restarts: dict[str, int] = {}
        self._now = now
        self._start_s = now()
        self._seen: dict[tuple[str, int, int], dict[str, float]] = {}
        self._stages: dict[str, dict[str, float]] = {}
        self._buffers: dict[int, dict[str, Any]] = {}
        self._latency_s: dict[int, tuple[float, float]] = {}
        self._queue_s: dict[int, tuple[float, float]] = {}
        self._sharing: dict[int, int] = {}
        self._begin_interval()

    def _begin_interval(self) -> None:
        self._interval_s = self._now()
        self._at_interval = {**self.counts, "version": self.version}
        self._returns: dict[str, list[float]] = defaultdict(list)
        self._lengths: list[int] = []
        self._summaries: dict[str, list[float]] = defaultdict(list)
        self._updates: list[dict[str, float]] = []
        self._stages_before = {role: dict(stages) for role, stages in self._stages.items()}

    # ------------------------------------------------------------------------------------------------------- reports

    def add_actor(self, report: Any) -> list[dict[str, Any]]:
        """Take in an ActorReport; returns its new episodes as mappings for episodes.jsonl."""
        delta = self._delta("actor", report, {name: getattr(report, name) for name in COUNTERS})
        for name, value in delta.items():
            self.counts[name] += int(value)
        self._add_stages("actor", report)
        return [self._add_episode(episode) for episode in report.episodes]

    def add_trainer(self, report: Any) -> None:
        """Take in a TrainerReport; rows and buffers are everybody's, version and update metrics rank 0's."""
        rows = {name: getattr(report, name) for name in ROW_COUNTERS}
        for name, value in self._delta("trainer", report, rows).items():
            self.counts[name] += int(value)
        self._add_stages("trainer", report)
        self._buffers[report.rank] = report.buffer
        if report.rank == 0:
            self.version = report.version
            self._updates += [update.metrics for update in report.updates]

    def add_policy_worker(self, report: Any) -> None:
        self._add_stages("policy_worker", report)
        self._latency_s[report.index], self._queue_s[report.index] = report.latency_s, report.queue_s
        self._sharing[report.index] = report.shared_memory_clients
        delta = self._delta("policy_worker", report, {"rows": report.rows, "batches": report.batches})
        for name, value in delta.items():
            self.counts[f"inference_{name}"] = self.counts.get(f"inference_{name}", 0) + int(value)

    def _delta(self, role: str, report: Any, values: dict[str, float]) -> dict[str, float]:
        key = (role, report.index if hasattr(report, "index") else report.rank, report.epoch)
        before = self._seen.get(key, {})
        self._seen[key] = {**before, **values}
        return {name: value - before.get(name, 0) for name, value in values.items()}

    def _add_stages(self, role: str, report: Any) -> None:
        delta = self._delta(role, report, {f"seconds/{name}": value for name, value in report.seconds.items()})
        stages = self._stages.setdefault(role, {})
        for name, value in delta.items():
            stage = name.removeprefix("seconds/")
            stages[stage] = stages.get(stage, 0.0) + value

    def _add_episode(self, episode: Any) -> dict[str, Any]:
        record = episode.record
        row = {
            "time_unix_s": round(episode.time_s, 3),
            "worker": episode.worker,
            "slot": episode.slot,
            "policy_version": episode.policy_version,
            "length": record.length,
            "returns": record.returns,
            "summary": record.summary,
        }
        if record.discarded:
            return {**row, "discarded": True}
        self.episodes += 1
        self._lengths.append(record.length)
        by_team: dict[str, list[float]] = defaultdict(list)
        for agent, value in record.returns.items():
            by_team[self.team_of.get(agent, "agents")].append(value)
        for team, values in by_team.items():
            self._returns[team].append(float(np.mean(values)))
        for name, value in record.summary.items():
            self._summaries[name].append(value)
        if record.returns:
            self.recent_returns.append(float(np.mean(list(record.returns.values()))))
        return row

    # ------------------------------------------------------------------------------------------------------- records

    @property
    def updates_pending(self) -> int:
        """Updates that no record has covered yet."""
        return len(self._updates)

    def record(self, *, only_update: int | None = None) -> dict[str, Any]:
        """One flat record of the interval since the last one. Numbers that do not exist yet are absent.

        Args:
            only_update: Make the record of this one of the pending updates (a line per update).
        """
        now = self._now()
        seconds = max(1e-9, now - self._interval_s)
        updates = self._updates if only_update is None else [self._updates[only_update]]
        pending = [] if only_update is None else self._updates[only_update + 1 :]
        record: dict[str, Any] = {
            "seconds": now - self._start_s,
            **{name: self.counts[name] for name in ("env_steps", "agent_steps", "frames")},
            "episodes": self.episodes,
            "policy_version": self.version - len(pending),
            **{name: self.counts[name] for name in ROW_COUNTERS},
        }
        before = self._at_interval
        for name in ("env_steps", "agent_steps"):
            record[f"rate/{name}_per_s"] = (self.counts[name] - before[name]) / seconds
        record["rate/updates_per_s"] = (self.version - before["version"]) / seconds
        record["rate/rows_trained_per_s"] = (self.counts["rows_trained_total"] - before["rows_trained_total"]) / seconds
        for team, values in self._returns.items():
            record[f"return/{team}"] = float(np.mean(values))
            record[f"return_std/{team}"] = float(np.std(values))
        if self._lengths:
            record["episode/count"] = len(self._lengths)
            record["episode/length"] = float(np.mean(self._lengths))
        for name, values in self._summaries.items():
            record[f"summary/{name}"] = float(np.mean(values))
        for name in sorted({name for metrics in updates for name in metrics}):
            value = [metrics[name] for metrics in updates if name in metrics]
            if name.startswith("staleness_"):
                kind = name.removeprefix("staleness_")
                record[f"staleness/{kind}"] = float(np.max(value) if kind == "max" else np.mean(value))
            else:
                record[f"train/{name}"] = float(np.mean(value))
        record |= self._buffer_record()
        record |= self._stage_record(seconds)
        for role, count in self.restarts.items():
            record[f"restarts/{role}"] = count
        self._begin_interval()
        self._updates = pending
        return record

    def _buffer_record(self) -> dict[str, Any]:
        if not self._buffers:
            return {}
        names = next(iter(self._buffers.values()))
        return {f"buffer/{name}": sum(b[name] for b in self._buffers.values()) for name in names} | {
            f"lost/{name}": self.counts[name] for name in ("lost_chunks", "unrecorded_rows", "discarded_episodes")
        }

    def _stage_record(self, seconds: float) -> dict[str, Any]:
        """Share of the interval that workers of a role spent in each stage, and cores they used; means over workers."""
        record = {}
        for role, stages in self._stages.items():
            workers = len({index for r, index, _ in self._seen if r == role})
            before = self._stages_before.get(role, {})
            for stage, total in stages.items():
                name = f"cores/{role}" if stage == PROCESSOR else f"share/{role}/{stage}"
                record[name] = (total - before.get(stage, 0.0)) / seconds / max(1, workers)
        if self.counts.get("inference_batches"):
            record["inference/batch_rows"] = self.counts["inference_rows"] / self.counts["inference_batches"]
            record["inference/shared_memory_clients"] = sum(self._sharing.values())
            for name, taken_s in (("latency", self._latency_s), ("queue", self._queue_s)):
                record[f"inference/{name}_p50_s"] = max(p50 for p50, _ in taken_s.values())
                record[f"inference/{name}_p99_s"] = max(p99 for _, p99 in taken_s.values())
        return record

    # ---------------------------------------------------------------------------------------------------- checkpoints

    def facts(self) -> dict[str, Any]:
        """What a checkpoint keeps of the counters."""
        return {**{name: self.counts[name] for name in (*COUNTERS, *ROW_COUNTERS)}, "episodes": self.episodes}

    def rewind(self, facts: Mapping[str, Any]) -> None:
        """Set the counters to a checkpoint's; later deltas are added to them."""
        for name in (*COUNTERS, *ROW_COUNTERS):
            self.counts[name] = int(facts.get(name, 0))
        self.episodes = int(facts.get("episodes", 0))
        self.version = int(facts.get("policy_version", 0))
        self._begin_interval()
