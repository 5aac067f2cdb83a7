"""A training run as a user starts it, watched from outside: its lines, its processes, its files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

QUICK = ("run.plots=false", "run.video=false", "run.tensorboard=false", "run.log_interval_s=1", "cluster.num_cpus=2")


class Training:
    """`python -m srl_ray.train` in a process of its own, with a local Ray of its own."""

    def __init__(self, run_dir: Path, *overrides: str, env: dict[str, str] | None = None, quick: bool = True) -> None:
        self.run_dir = run_dir
        command = [sys.executable, "-m", "srl_ray.train", *overrides, f"run.dir={run_dir}"]
        self.process = subprocess.Popen(
            [*command, *(QUICK if quick else ())],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=run_dir.parent,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._seen: dict[int, psutil.Process] = {}

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def tree(self) -> list[psutil.Process]:
        """Every process of the run that was ever seen and still lives."""
        try:
            found = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            found = []
        for process in found:
            self._seen.setdefault(process.pid, process)
        return [p for p in self._seen.values() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def workers(self, role: str) -> list[psutil.Process]:
        """Processes of ActorWorker, PolicyWorker, TrainerWorker or ParameterService, oldest first."""
        found = []
        for process in self.tree():
            try:
                if process.cmdline() and process.cmdline()[0].startswith(f"ray::{role}"):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
        return sorted(found, key=lambda p: p.create_time())

    def records(self) -> list[dict]:
        path = self.run_dir / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def env_steps(self) -> int:
        records = self.records()
        return records[-1]["env_steps"] if records else 0

    def wait_for(self, condition: Callable[[], object], deadline_s: float, what: str) -> float:
        """Seconds until the condition held."""
        begin = time.monotonic()
        while not condition():
            self.tree()
            if self.process.poll() is not None and not condition():
                raise AssertionError(f"the run ended ({self.process.returncode}) before {what}:\n{self.text}")
            assert time.monotonic() - begin < deadline_s, f"no {what} within {deadline_s} s:\n{self.text}"
            time.sleep(0.1)
        return time.monotonic() - begin

    def wait(self, deadline_s: float) -> int:
        """Exit status."""
        until = time.monotonic() + deadline_s
        while self.process.poll() is None:
            self.tree()
            assert time.monotonic() < until, f"still running after {deadline_s} s:\n{self.text}"
            time.sleep(0.1)
        self._reader.join(5)
        return self.process.returncode

    def assert_nothing_is_left(self, deadline_s: float = 15.0) -> float:
        """No process of the run lives; returns the seconds it took."""
        begin = time.monotonic()
        while left := self.tree():
            names = [(p.pid, " ".join(p.cmdline())[:60]) for p in left]
            assert time.monotonic() - begin < deadline_s, f"left after {deadline_s} s: {names}"
            time.sleep(0.1)
        return time.monotonic() - begin

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        """Clean up whatever a failed test left."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
        for process in self.tree():
            process.kill()
