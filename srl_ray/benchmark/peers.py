"""Other systems, each in a virtual environment of its own, measured from outside like a run of this project.

A peer is a script below `benchmarks/peers` that trains a task with the common settings and writes one line of JSON per
finished update. What differs from peer to peer, and why, is in `benchmarks/peers/README.md`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from srl_ray.benchmark.results import OURS
from srl_ray.benchmark.tasks import NARROW, WIDE
from srl_ray.benchmark.training import SETTLE_S, run_watched, steady_state
from srl_ray.core.errors import ConfigError, SrlError

FOLDER = Path(__file__).parents[2] / "benchmarks" / "peers"
VENVS = Path.home() / ".cache" / "srl_ray" / "peers"
LIMIT_S = 240.0
"""Longest time for the start and the end of a peer, besides what is measured."""


@dataclass(frozen=True)
class Peer:
    """Attributes:
    folder: Of its script and its requirements; the name of its virtual environment.
    options: What the script is told besides task, environments and seconds.
    not_for: Task → why it makes no sense there.
    """

    folder: str
    options: tuple[str, ...] = ()
    not_for: Mapping[str, str] = field(default_factory=dict)


PEERS: Mapping[str, Peer] = {
    "cleanrl_envpool": Peer("cleanrl", ("envs=envpool",)),
    "cleanrl_native": Peer(
        "cleanrl", ("envs=native",), {"cheetah": "HalfCheetah brings no vector environment of its own"}
    ),
    "cleanrl_sync": Peer("cleanrl", ("envs=sync",)),
    "sb3": Peer("sb3"),
    "rllib_ppo": Peer("rllib", ("algorithm=ppo",)),
    "rllib_appo": Peer("rllib", ("algorithm=appo",)),
    "rllib_impala": Peer("rllib", ("algorithm=impala",)),
    "sample_factory": Peer("sample_factory"),
}
NAMES = (OURS, *PEERS)


def reason_to_skip(name: str, task: str) -> str | None:
    """Why a peer (or `ours`) is not measured at a task; None: it is."""
    plain = task.removesuffix("-wide")
    if name == OURS:
        return None
    if plain == "hide_and_seek":
        return "hide-and-seek is an environment of this project"
    if plain == "cheetah-envpool":
        return "it is `cheetah` with this project's use of EnvPool"
    return PEERS[name].not_for.get(plain)


def check_names(names: list[str]) -> None:
    """Raises:
    ConfigError: there is no such peer, or no scripts here because the package was installed without its repository.
    """
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"no peer {name!r}; there are {', '.join(NAMES)}.")
    if not FOLDER.is_dir():
        raise ConfigError(f"the peers' scripts are not at {FOLDER}; run this suite in a checkout of the repository.")


def prepare(name: str, venvs: Path) -> Path:
    """Make a peer's virtual environment, unless it is there with the same requirements; returns its Python.

    Blocks while packages are installed, minutes the first time.

    Raises:
        SrlError: pip failed; the end of its output is in the text.
    """
    folder = PEERS[name].folder
    requirements, venv = FOLDER / folder / "requirements.txt", venvs / folder
    python, installed = venv / "bin" / "python", venv / "requirements.txt"
    if installed.is_file() and installed.read_text() == requirements.read_text():
        return python
    print(f"{folder}: installing {requirements} into {venv}", flush=True)
    shutil.rmtree(venv, ignore_errors=True)
    for command in (
        [sys.executable, "-m", "venv", str(venv)],
        [str(python), "-m", "pip", "install", "--quiet", "--requirement", str(requirements)],
    ):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise SrlError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}")
    shutil.copy(requirements, installed)  # last: a venv without it is not complete
    return python


def measure_peer(name: str, task: str, *, seconds: float, venvs: Path) -> dict[str, float]:
    """Run a peer's script until `seconds` of steady state are over.

    Blocks for start-up + SETTLE_S + `seconds`.

    Returns:
        `fresh_rows_per_s` (env steps that the learner consumed per second), `startup_s`, `cores`, `peak_mib`.

    Raises:
        SrlError: the virtual environment could not be made, or the run failed or was too short.
    """
    peer, plain = PEERS[name], task.removesuffix("-wide")
    command = [
        str(prepare(name, venvs)),
        str(FOLDER / peer.folder / "train.py"),
        f"task={plain}",
        f"environments={NARROW if task == plain else WIDE}",
        f"seconds={SETTLE_S + seconds}",
        *peer.options,
    ]
    with tempfile.TemporaryDirectory(prefix="peer_", ignore_cleanup_errors=True) as scratch:
        environment = {**os.environ, "PYTHONPATH": str(FOLDER), "TMPDIR": scratch}
        # RLlib's asynchronous learners live in the driver, which starves runners at the niceness of 15 that Ray gives.
        environment["RAY_worker_niceness"] = "0"
        finished = run_watched(command, limit_s=LIMIT_S + SETTLE_S + seconds, environment=environment)
    steady = steady_state(progress(finished.output), finished, at_least_s=seconds / 2)
    return {
        "fresh_rows_per_s": steady.rate("env_steps"),
        "startup_s": steady.startup_s,
        "cores": steady.cores,
        "peak_mib": finished.watch.peak_mib,
    }


def progress(output: str) -> list[dict[str, Any]]:
    """The progress lines of a script, among whatever else its libraries wrote."""
    records, decoder = [], json.JSONDecoder()
    for line in output.splitlines():
        begin = line.find('{"time_unix_s"')
        if begin >= 0:
            with contextlib.suppress(ValueError):  # another process wrote into the middle of it
                records.append(decoder.raw_decode(line, begin)[0])
    return records
