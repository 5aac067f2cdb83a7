"""kill -9 of any worker: the run goes on, everything is counted, nothing is left at the end."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.fault.training import Training

pytestmark = [pytest.mark.fault, pytest.mark.timeout(420)]


def memories(worker: psutil.Process) -> int:
    """Pieces of inference memory that a process holds."""
    held = 0
    with contextlib.suppress(OSError):  # the process ended in between
        for descriptor in Path(f"/proc/{worker.pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed in between
                held += "memfd:srl_ray_inference" in os.readlink(descriptor)
    return held


def ports(worker: psutil.Process | None = None) -> set[str]:
    """Names of the sockets at which a process (None: anybody on this machine) offers to share memory."""
    links = Path(f"/proc/{worker.pid}/fd").iterdir() if worker else []
    own = {os.readlink(link) for link in links if link.exists()}
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    named = [line for line in lines if line[-1].startswith("@srl_ray_inference")]
    return {line[-1] for line in named if worker is None or f"socket:[{line[6]}]" in own}


def sharing(training: Training) -> tuple[list[int], list[int], float]:
    """Inference memories of each policy worker, of each actor worker, and the clients last reported."""
    policy_workers, actors = (
        [memories(worker) for worker in training.workers(role)] for role in ("PolicyWorker", "ActorWorker")
    )
    return policy_workers, actors, training.records()[-1]["inference/shared_memory_clients"]


def test_killed_workers_are_replaced_and_the_run_reaches_its_goal(train: Callable[..., Training]) -> None:
    training = train(
        "+experiment=cartpole",
        "actors.count=2",
        "actors.inference=remote",
        "policy_workers.count=1",
        "trainers.count=2",
        "trainers.batch_chunks=16",
        "run.checkpoint_interval_s=3",
        "stop.env_steps=10000000",
    )
    training.wait_for(lambda: training.env_steps() > 3000, 120, "3000 env steps")
    training.wait_for(lambda: len(list(training.run_dir.glob("checkpoints/step_*"))) > 1, 30, "second checkpoint")
    victims = {
        "ActorWorker": "actor",
        "PolicyWorker": "policy_worker",
        "ParameterService": "service",
        "TrainerWorker": "trainer",
    }
    seen: set[str] = set()
    for worker, role in victims.items():
        before = set(training.workers(worker))
        victim = training.workers(worker)[0]
        victim.send_signal(signal.SIGKILL)
        took_s = training.wait_for(
            lambda r=role: f"{r} 0 is back" in training.text or f"{r} 1 is back" in training.text, 60, f"new {role}"
        )
        at = training.env_steps()
        more_s = training.wait_for(lambda a=at: training.env_steps() > a + 2000, 60, f"steps after the new {role}")
        print(f"{worker}: back after {took_s:.1f} s, 2000 env steps later after {more_s:.1f} s more")
        assert set(training.workers(worker)) != before
        training.wait_for(
            lambda: sharing(training) == ([2], [1, 1], 2),
            30,
            "memory between the policy worker and each actor worker, none with those that died",
        )
        seen |= ports(*training.workers("PolicyWorker"))
    training.send(signal.SIGTERM)
    assert training.wait(60) == 143
    last = training.records()[-1]
    print({k: v for k, v in last.items() if k.split("/")[0] in ("restarts", "buffer", "lost")})
    assert {last[f"restarts/{role}"] for role in victims.values()} == {1}
    assert last["buffer/accepted"] == sum(last[f"buffer/{k}"] for k in ("finished", "expired", "waiting", "lost"))
    steps = [record["env_steps"] for record in training.records()]
    assert steps == sorted(steps)
    print(f"nothing left after {training.assert_nothing_is_left():.1f} s")
    assert seen
    assert not seen & ports()
    assert not [path for path in Path("/dev/shm").iterdir() if "srl_ray" in path.name]
