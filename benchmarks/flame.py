"""One flame graph per kind of worker, from a training run as users start it.

    python benchmarks/flame.py task=cartpole out=docs/images/flame seconds=15
    python benchmarks/flame.py task=cartpole out=docs/images/flame name=before source=PATH   # another checkout's code

Writes OUT/NAME_KIND.svg and prints where each worker's samples lie. Needs py-spy (pip install py-spy), and the right to
look into other processes.
"""

from __future__ import annotations

import collections
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from srl_ray.benchmark.tasks import task_overrides
from srl_ray.benchmark.training import QUIET
from srl_ray.evaluation.command import Option, positive_float, read_options, run_command

KINDS = {"actor": "ray::ActorWorker", "policy_worker": "ray::PolicyWorker", "trainer": "ray::TrainerWorker"}
OPTIONS = {
    "task": Option(str, "a task of the benchmark", "cartpole"),
    "seconds": Option(positive_float, "a number above 0", 15.0),
    "out": Option(Path, "a folder", Path("docs/images/flame")),
    "name": Option(str, "a word", "after"),
    "source": Option(Path, "a checkout whose code is run", Path(__file__).parents[1]),
}
REMOTE = ("actors.inference=remote", "policy_workers.count=1")
SETTLE_S = 12.0


def main() -> int:
    return run_command(_main, None, __doc__ or "")


def _main(argv: list[str]) -> int:
    options, extra = read_options(argv, OPTIONS, positional="task")
    options["out"].mkdir(parents=True, exist_ok=True)
    for layout, kinds in (((), ("actor", "trainer")), (REMOTE, ("policy_worker",))):
        with tempfile.TemporaryDirectory(prefix="srl_ray_flame_") as folder:
            command = [sys.executable, "-m", "srl_ray.train", *task_overrides(options["task"]), *QUIET, *layout, *extra]
            command += [f"run.dir={folder}/run", "stop.env_steps=null", "stop.episode_return=null"]
            source = options["source"].resolve()
            process = subprocess.Popen(
                command,
                cwd=source,
                env={**os.environ, "PYTHONPATH": str(source)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                workers = {kind: _wait_for(process, KINDS[kind]) for kind in kinds}
                time.sleep(SETTLE_S)
                for kind, worker in workers.items():
                    _record(worker, options["out"] / f"{options['name']}_{kind}", options["seconds"])
            finally:
                process.terminate()
                process.wait()
    return 0


def _wait_for(run: subprocess.Popen[bytes], title: str, deadline_s: float = 60.0) -> int:
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        for process in psutil.Process(run.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it ended in between
                if (process.cmdline() or [""])[0].startswith(title):
                    return process.pid
        time.sleep(0.2)
    raise TimeoutError(f"no {title} within {deadline_s} s")


def _record(pid: int, path: Path, seconds: float) -> None:
    """Sample one process; only threads that use the processor count."""
    raw = path.with_suffix(".txt")
    sample = [str(Path(sys.executable).with_name("py-spy")), "record", "--nonblocking", "--rate=200"]
    sample += [f"--pid={pid}", f"--duration={seconds:.0f}"]
    for kind, file in (("flamegraph", path.with_suffix(".svg")), ("raw", raw)):
        subprocess.run([*sample, f"--format={kind}", f"--output={file}"], check=True, capture_output=True)
    own: collections.Counter[str] = collections.Counter()
    for line in raw.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        for frame in {frame.split(" (")[0] + " (" + frame.split(" (")[-1].split(":")[0] for frame in stack.split(";")}:
            own[frame] += int(count)
    raw.unlink()
    total = max(own.values())
    print(f"{path.name}: share of samples at or below")
    for frame, count in own.most_common(40):
        print(f"  {count / total:6.1%}  {frame})")


if __name__ == "__main__":
    sys.exit(main())
