"""One training run in a process of its own, measured from outside: rates, start-up, processor time and memory."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from srl_ray.core.errors import SrlError

SETTLE_S = 5.0
"""Seconds after the first update that do not count."""
START_S = 10.0
"""Allowed for the start of a run, whose time begins before its first update."""
QUIET = ("run.video=false", "run.plots=false", "run.tensorboard=false", "run.log_interval_s=0.5")
_SAMPLE_S = 2.0


@dataclass(frozen=True)
class Measured:
    """Attributes:
    env_steps_per_s: Steady state, counted by the environments.
    agent_steps_per_s: The same, one per agent.
    fresh_rows_per_s: Rows trained for the first time.
    rows_per_s: Rows trained, with every use.
    startup_s: From the start of the command to the end of the first update.
    cores: Processor time of the run's processes in the steady state, in cores.
    peak_mib: Largest proportional set size of all its processes together.
    staleness: Mean staleness of trained chunks.
    """

    env_steps_per_s: float
    agent_steps_per_s: float
    fresh_rows_per_s: float
    rows_per_s: float
    startup_s: float
    cores: float
    peak_mib: float
    staleness: float

    def to_mapping(self) -> dict[str, float]:
        return asdict(self)


def measure_training(overrides: Sequence[str], *, seconds: float) -> Measured:
    """Run `srl_ray.train` with these overrides until `seconds` of steady state are over.

    Blocks for start-up + SETTLE_S + `seconds`.

    Raises:
        SrlError: the run failed, or made no update; the end of its output is in the text.
    """
    with tempfile.TemporaryDirectory(prefix="srl_ray_benchmark_") as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "srl_ray.train", *overrides, *QUIET, f"run.dir={run_dir}"]
        command += [f"stop.seconds={START_S + SETTLE_S + seconds}", "stop.env_steps=null", "stop.episode_return=null"]
        finished = run_watched(command, limit_s=None)
        return _summary(_records(run_dir / "metrics.jsonl"), finished, seconds)


def _records(path: Path) -> list[dict[str, Any]]:
    """Those in which an update had ended since the one before."""
    lines = path.read_text().splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]
    versions = [0, *(record.get("policy_version", 0) for record in records)]
    return [record for record, before in zip(records, versions) if record.get("policy_version", 0) > before]


def _summary(records: list[dict[str, Any]], finished: Finished, seconds: float) -> Measured:
    steady = steady_state(records, finished, at_least_s=seconds / 2)
    staleness = [record["staleness/mean"] for record in records if "staleness/mean" in record]
    return Measured(
        env_steps_per_s=steady.rate("env_steps"),
        agent_steps_per_s=steady.rate("agent_steps"),
        fresh_rows_per_s=steady.rate("rows_trained_fresh"),
        rows_per_s=steady.rate("rows_trained_total"),
        startup_s=steady.startup_s,
        cores=steady.cores,
        peak_mib=finished.watch.peak_mib,
        staleness=sum(staleness) / max(1, len(staleness)),
    )


@dataclass(frozen=True)
class Finished:
    """A process that has ended.

    Attributes:
        command: What was run.
        status: Its exit status; None: it was ended because its time was over.
        output: Standard output and error.
        watch: Processor time and memory of it and its descendants.
        begin_unix_s: When it was started.
    """

    command: Sequence[str]
    status: int | None
    output: str
    watch: Watch
    begin_unix_s: float


def run_watched(
    command: Sequence[str], *, limit_s: float | None, environment: Mapping[str, str] | None = None
) -> Finished:
    """Run a command to its end and watch it. Blocks for as long, at most `limit_s`; leaves no process behind.

    Args:
        command: Its words.
        limit_s: Seconds after which it is ended with all its descendants; None: never.
        environment: Variables of the process; default: those of this one.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        begin_unix_s = time.time()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        watch = Watch(process.pid)
        try:
            status: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            watch.stop()
            watch.end_all()
        output.seek(0)
        return Finished(command, status, output.read(), watch, begin_unix_s)


@dataclass(frozen=True)
class SteadyState:
    """Attributes:
    start: First record that counts: the first one SETTLE_S or more after the first finished update.
    last: Last record.
    startup_s: From the start of the command to the end of the first update.
    cores: Processor time between the two, in cores.
    """

    start: Mapping[str, Any]
    last: Mapping[str, Any]
    startup_s: float
    cores: float

    def rate(self, name: str) -> float:
        """Growth of a counter per second."""
        return float(self.last[name] - self.start[name]) / float(self.last["time_unix_s"] - self.start["time_unix_s"])


def steady_state(records: Sequence[Mapping[str, Any]], finished: Finished, *, at_least_s: float) -> SteadyState:
    """Where a run was steady, from its records, one per finished update, with `time_unix_s` each.

    Raises:
        SrlError: the run failed, or was steady for less than `at_least_s`; the end of its output is in the text.
    """
    first_unix_s = float(records[0]["time_unix_s"]) if records else 0.0
    steady = [record for record in records if record["time_unix_s"] >= first_unix_s + SETTLE_S]
    steady_s = float(steady[-1]["time_unix_s"] - steady[0]["time_unix_s"]) if steady else 0.0
    if finished.status != 0 or len(steady) < 2 or steady_s < at_least_s:
        how = "was ended because its time was over" if finished.status is None else f"status {finished.status}"
        raise SrlError(
            f"the run ended ({how}) after {len(records)} updates, {len(steady)} of them in {steady_s:.1f} s of steady "
            "state: "
            f"{' '.join(finished.command)}\n{finished.output[-2000:]}"
        )
    start, last = steady[0], steady[-1]
    return SteadyState(
        start,
        last,
        startup_s=first_unix_s - finished.begin_unix_s,
        cores=finished.watch.cores(start["time_unix_s"], last["time_unix_s"]),
    )


class Watch:
    """Samples processor time and memory of a process and all its descendants in a thread."""

    def __init__(self, pid: int) -> None:
        self.peak_mib = 0.0
        self._root = psutil.Process(pid)
        self._samples: list[tuple[float, float]] = []  # (unix seconds, processor seconds)
        self._used: dict[int, float] = {}  # by process; those that ended keep their last value
        self._seen: set[psutil.Process] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def end_all(self) -> None:
        """End what is left of the process and its descendants."""
        with contextlib.suppress(psutil.Error):
            self._seen |= {self._root, *self._root.children(recursive=True)}
        for process in self._seen:
            with contextlib.suppress(psutil.Error):  # it has ended, or another process has its number
                process.kill()
        psutil.wait_procs(self._seen, timeout=_SAMPLE_S)

    def cores(self, begin_unix_s: float, end_unix_s: float) -> float:
        """Mean processor use between the samples next inside the interval; 0 when it holds fewer than two."""
        inside = [sample for sample in self._samples if begin_unix_s <= sample[0] <= end_unix_s]
        if len(inside) < 2:
            return 0.0
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])

    def _run(self) -> None:
        while not self._stop.is_set():
            self._sample()
            self._stop.wait(_SAMPLE_S)

    def _sample(self) -> None:
        memory = 0.0
        with contextlib.suppress(psutil.Error):
            for process in [self._root, *self._root.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    self._seen.add(process)
                    times = process.cpu_times()
                    self._used[process.pid] = times.user + times.system
                    memory += process.memory_full_info().pss / 2**20
        self._samples.append((time.time(), sum(self._used.values())))
        self.peak_mib = max(self.peak_mib, memory)
