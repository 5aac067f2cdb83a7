"""A Ray cluster's head as an operator starts it, in processes of its own: `ray start --head --block`."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

RAY = str(Path(sys.executable).with_name("ray"))


class RayHead:
    """One head with its own ports, token and temporary folder; `end` leaves nothing of it."""

    def __init__(self, num_cpus: int) -> None:
        self.port, self.dashboard_port, *rest = free_ports(6)
        self.address = f"127.0.0.1:{self.port}"
        self.dashboard = f"http://127.0.0.1:{self.dashboard_port}"
        self.temp_dir = Path(tempfile.mkdtemp(prefix="h", dir="/tmp"))
        # `ray.init` writes a token once and `ray start` then demands it: a shared cluster has one of its own
        self.environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        for name in ("RAY_ADDRESS", "CUDA_VISIBLE_DEVICES"):
            self.environment.pop(name, None)
        options = {
            "node-ip-address": "127.0.0.1",
            "port": self.port,
            "dashboard-port": self.dashboard_port,
            "dashboard-agent-listen-port": rest[0],
            "dashboard-agent-grpc-port": rest[1],
            "ray-client-server-port": rest[2],
            "metrics-export-port": rest[3],
            "num-cpus": num_cpus,
            "object-store-memory": 200_000_000,
            "temp-dir": self.temp_dir,
            "include-dashboard": "true",
        }
        command = [RAY, "start", "--head", "--block", "--disable-usage-stats"]
        self.process = subprocess.Popen(
            [*command, *(f"--{name}={value}" for name, value in options.items())],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._seen: dict[int, psutil.Process] = {}

    def wait_until_up(self, deadline_s: float = 90.0) -> None:
        until = time.monotonic() + deadline_s
        while time.monotonic() < until:
            assert self.process.poll() is None, self.process.stdout.read() if self.process.stdout else ""
            if self.job("list", deadline_s=60).returncode == 0:
                return
            time.sleep(1)
        raise AssertionError(f"the dashboard did not answer within {deadline_s} s")

    def job(self, *arguments: str, deadline_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """`ray job …` against this cluster."""
        first, *rest = arguments
        command = [RAY, "job", first, "--address", self.dashboard, *rest]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=deadline_s)

    def ask(self, expression: str) -> Any:
        """The value of a Python expression in a process that is connected to the cluster (`ray` is imported)."""
        code = (
            "import json, logging, ray; "
            f"ray.init(address={self.address!r}, log_to_driver=False, logging_level=logging.ERROR); "
            f"print('answer', json.dumps({expression}))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], env=self.environment, capture_output=True, text=True, timeout=60
        )
        (answer,) = [line for line in done.stdout.splitlines() if line.startswith("answer ")] or [done.stderr]
        return json.loads(answer.removeprefix("answer "))

    def workers(self) -> list[str]:
        """Names of the processes of srl_ray's workers on this cluster."""
        names = [" ".join(p.cmdline()) for p in self.tree() if p.status() != psutil.STATUS_ZOMBIE]
        ours = ("ActorWorker", "PolicyWorker", "TrainerWorker", "ParameterService")
        return [name for name in names if name.startswith(tuple(f"ray::{worker}" for worker in ours))]

    def tree(self) -> list[psutil.Process]:
        """Every process of the cluster that was ever seen and still lives."""
        try:
            found = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            found = []
        for process in found:
            self._seen.setdefault(process.pid, process)
        return [p for p in self._seen.values() if p.is_running()]

    def end(self) -> None:
        self.tree()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(8)
        except subprocess.TimeoutExpired:
            self.process.kill()
        psutil.wait_procs(self.tree(), timeout=3)
        for process in self.tree():
            process.kill()
        psutil.wait_procs(self.tree(), timeout=5)
        shutil.rmtree(self.temp_dir, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
