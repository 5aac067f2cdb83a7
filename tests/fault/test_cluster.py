"""Clusters that others started: several nodes, submitted jobs, neighbours, and requests that cannot be met."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster

from srl_ray.runtime.checkpoint import list_checkpoints
from tests.fault.head import RayHead
from tests.fault.training import Training

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

QUIET = ("run.plots=false", "run.video=false", "run.tensorboard=false", "run.log_interval_s=1")
OURS = ("ActorWorker", "PolicyWorker", "TrainerWorker", "ParameterService")


@pytest.fixture(scope="module")
def head() -> Iterator[RayHead]:
    shared_memory = {path.name for path in Path("/dev/shm").iterdir()}
    head = RayHead(num_cpus=4)
    try:
        head.wait_until_up()
        yield head
    finally:
        head.end()
    assert not head.tree()
    assert not {p.name for p in Path("/dev/shm").iterdir() if "plasma" in p.name or "ray" in p.name} - shared_memory


def wait_for(condition: Callable[[], object], deadline_s: float, what: str) -> float:
    """Seconds until the condition held."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < deadline_s, f"no {what} within {deadline_s} s"
        time.sleep(0.2)
    return time.monotonic() - begin


def env_steps(run_dir: Path) -> int:
    path = run_dir / "metrics.jsonl"
    records = path.read_text().splitlines() if path.exists() else []
    return json.loads(records[-1])["env_steps"] if records else 0


def test_submitted_jobs_share_a_cluster_and_nothing_else(head: RayHead, tmp_path: Path) -> None:
    """One job runs until it is stopped; a second one with another network starts and ends beside it."""
    code_dir = tmp_path / "code"
    code_dir.mkdir()
    entry = f"{sys.executable} -m srl_ray.train experiment=cartpole {' '.join(QUIET)}"
    long_dir, short_dir = tmp_path / "long" / "run", tmp_path / "short" / "run"
    long = f"{entry} run.dir={long_dir} stop.env_steps=100000000"
    submitted = head.job(
        "submit", "--no-wait", "--submission-id=long", f"--working-dir={code_dir}", "--", *long.split()
    )
    assert submitted.returncode == 0, submitted.stderr
    wait_for(lambda: env_steps(long_dir) > 2000, 120, "2000 env steps of the long job")

    short = f"{entry} run.dir={short_dir} stop.env_steps=6000 policy.hidden=[32]"
    done = head.job("submit", f"--working-dir={code_dir}", "--", *short.split(), deadline_s=180)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "the job's cluster" in done.stdout
    assert "stop.env_steps=6000 reached" in done.stdout
    assert "failed" not in (short_dir / "logs" / "driver.log").read_text()
    assert "failed" not in (long_dir / "logs" / "driver.log").read_text()
    named = head.ask("[a['namespace'] for a in ray.util.list_named_actors(all_namespaces=True)]")
    ours = [namespace for namespace in named if namespace.startswith("srl_ray-")]
    assert len(ours) == 1, "the short job's service is gone, the long one's is there"
    before = env_steps(long_dir)
    wait_for(lambda: env_steps(long_dir) > before, 30, "progress of the long job")

    asked = time.monotonic()
    stopped = head.job("stop", "long")
    assert stopped.returncode == 0, stopped.stderr
    wait_for(lambda: len(list_checkpoints(long_dir / "checkpoints")) > 1, 10, "checkpoint of the stopped job")
    wait_for(lambda: not head.workers(), 15, "end of the stopped job's workers")
    print(f"ray job stop: no worker is left after {time.monotonic() - asked:.1f} s")
    assert "STOPPED" in head.job("status", "long").stdout.upper()
    assert head.ask("ray.available_resources()['CPU']") == 4

    failing = f"{entry} run.dir={tmp_path / 'failing'} actors.count=64 actors.cpus=1"
    failed = head.job("submit", f"--working-dir={code_dir}", "--", *failing.split())
    assert failed.returncode != 0, "the job's status says that the run failed"
    assert "actor asks for 64 workers with 1 CPU each" in failed.stdout


@pytest.mark.parametrize(
    ("overrides", "asked"),
    [
        (("trainers.gpus=1",), "trainer asks for 1 worker with"),
        (("actors.count=64", "actors.cpus=1"), "actor asks for 64 workers with 1 CPU each"),
    ],
)
def test_what_cannot_be_placed_is_refused_in_words(
    train: Callable[..., Training], overrides: tuple[str, ...], asked: str
) -> None:
    """C10."""
    training = train("experiment=cartpole", "cluster.placement_timeout_s=20", *overrides)
    begin = time.monotonic()
    assert training.wait(60) == 1
    print(f"refused after {time.monotonic() - begin:.1f} s")
    tail = "\n".join(training.lines[-30:])
    assert asked in tail
    assert "2 CPU" in tail
    assert "0 GPU" in tail
    assert "Traceback" not in tail
    training.assert_nothing_is_left()


# ---------------------------------------------------------------------------------------------------- several nodes


@pytest.fixture
def nodes() -> Iterator[tuple[Cluster, dict[str, str]]]:
    """A head with one CPU, a node with two and one that says it has a GPU too; node id → name."""
    store = {"object_store_memory": 100_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **store})
    started = {"head": cluster.head_node}
    started["cpu"] = cluster.add_node(num_cpus=2, wait=False, **store)
    started["gpu"] = cluster.add_node(num_cpus=2, num_gpus=1, wait=False, **store)
    cluster.wait_for_nodes()
    yield cluster, {node.node_id: name for name, node in started.items()}
    ray.shutdown()
    for node in list(cluster.worker_nodes):
        cluster.remove_node(node, allow_graceful=False)
    cluster.shutdown()  # also takes back the note that makes `ray.init` elsewhere look for this cluster


def workers_by_node(names: dict[str, str]) -> dict[str, list[tuple[str, int]]]:
    """Node → (kind, pid) of the run's workers on it: a worker is its raylet's child."""
    found: dict[str, list[tuple[str, int]]] = {name: [] for name in names.values()}
    for process in psutil.Process().children(recursive=True):
        try:
            command = process.cmdline()
            kind = next((k for k in OURS if command and command[0].startswith(f"ray::{k}")), None)
            parent = process.parent()
            if kind and parent is not None:
                flag = next(word for word in parent.cmdline() if word.startswith("--node_id="))
                name = names.get(flag.removeprefix("--node_id="))
                if name is not None:
                    found[name].append((kind, process.pid))
        except (psutil.NoSuchProcess, StopIteration):
            continue
    return found


def test_cpu_workers_stay_off_the_accelerator_and_a_lost_node_is_survived(
    train: Callable[..., Training], nodes: tuple[Cluster, dict[str, str]]
) -> None:
    cluster, names = nodes
    training = train(
        "experiment=cartpole",
        f"cluster.address={cluster.address}",
        "placement=spread",
        "actors.count=2",
        "actors.cpus=0.25",
        "trainers.cpus=0.5",
        "trainers.batch_chunks=16",
        "run.checkpoint_interval_s=3",
        "stop.env_steps=100000000",
    )
    training.wait_for(lambda: training.env_steps() > 2000, 120, "2000 env steps")
    where = workers_by_node(names)
    print({node: [kind for kind, _ in workers] for node, workers in where.items()})
    # the service is no pool: it lives where the driver does, which attaches to any of these nodes
    assert not [kind for kind, _ in where["gpu"] if kind != "ParameterService"]
    assert sum(len(workers) for workers in where.values()) == 4
    lost = sorted(kind for kind, _ in where["cpu"])
    assert {"ActorWorker", "TrainerWorker"} & set(lost)
    training.wait_for(lambda: len(list_checkpoints(training.run_dir / "checkpoints")) > 1, 30, "a checkpoint")
    node = next(n for n in cluster.list_all_nodes() if names[n.node_id] == "cpu")
    begin, at = time.monotonic(), training.env_steps()
    cluster.remove_node(node, allow_graceful=False)

    def is_settled() -> bool:
        goes_on = " is back" in training.text and training.env_steps() > at + 3000
        return goes_on or training.process.poll() is not None

    training.wait_for(is_settled, 120, "life after the loss of a node")
    took_s = time.monotonic() - begin
    if training.process.poll() is None:
        print(f"node with {lost} lost: training goes on after {took_s:.1f} s")
        assert not [kind for kind, _ in workers_by_node(names)["gpu"] if kind != "ParameterService"]
        training.send(15)
        assert training.wait(60) == 143
    else:
        print(f"node with {lost} lost: ended after {took_s:.1f} s\n{training.lines[-5:]}")
        assert training.process.returncode == 1
    assert wait_for(lambda: not any(workers_by_node(names).values()), 15, "end of all workers") < 15
