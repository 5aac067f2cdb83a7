"""One training run in a process of its own, measured from outside: rates, start-up, processor time and memory."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from srl_ray.core.errors import SrlError

SETTLE_S = 5.0
"""Seconds after the first update that do not count."""
QUIET = ("run.video=false", "run.plots=false", "run.tensorboard=false", "run.log_interval_s=0")
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
        command += [f"stop.seconds={SETTLE_S + seconds + 3.0}", "stop.env_steps=null", "stop.episode_return=null"]
        begin_unix_s = time.time()
        with (Path(folder) / "output").open("w+") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            watch = _Watch(process.pid)
            status = process.wait()
            watch.stop()
            output.seek(0)
            tail = output.read()[-2000:]
        records = _records(run_dir / "metrics.jsonl")
        if status or len(records) < 2:
            raise SrlError(
                f"the run ended with status {status} and {len(records)} updates: {' '.join(command)}\n{tail}"
            )
        return _summary(records, watch, begin_unix_s)


def _records(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]
    return [record for record in records if record.get("policy_version", 0) >= 1]


def _summary(records: list[dict[str, Any]], watch: _Watch, begin_unix_s: float) -> Measured:
    first, last = records[0], records[-1]
    start = next((r for r in records if r["time_unix_s"] >= first["time_unix_s"] + SETTLE_S), first)
    elapsed_s = max(1e-9, last["time_unix_s"] - start["time_unix_s"])

    def rate(name: str) -> float:
        return float(last[name] - start[name]) / elapsed_s

    staleness = [record["staleness/mean"] for record in records if "staleness/mean" in record]
    return Measured(
        env_steps_per_s=rate("env_steps"),
        agent_steps_per_s=rate("agent_steps"),
        fresh_rows_per_s=rate("rows_trained_fresh"),
        rows_per_s=rate("rows_trained_total"),
        startup_s=float(first["time_unix_s"]) - begin_unix_s,
        cores=watch.cores(start["time_unix_s"], last["time_unix_s"]),
        peak_mib=watch.peak_mib,
        staleness=sum(staleness) / max(1, len(staleness)),
    )


class _Watch:
    """Samples processor time and memory of a process and all its descendants in a thread."""

    def __init__(self, pid: int) -> None:
        self.peak_mib = 0.0
        self._root = psutil.Process(pid)
        self._samples: list[tuple[float, float]] = []  # (unix seconds, processor seconds)
        self._used: dict[int, float] = {}  # by process; those that ended keep their last value
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

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
                    times = process.cpu_times()
                    self._used[process.pid] = times.user + times.system
                    memory += process.memory_full_info().pss / 2**20
        self._samples.append((time.time(), sum(self._used.values())))
        self.peak_mib = max(self.peak_mib, memory)
