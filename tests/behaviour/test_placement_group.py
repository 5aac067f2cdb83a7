"""Placement on a pretend cluster: a node with GPUs and two without. Each node is a raylet on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import ray
from ray.cluster_utils import Cluster

from srl_ray.core.errors import PlacementError
from srl_ray.placement.config import ClusterConfig, PlacementConfig
from srl_ray.placement.groups import cluster_nodes, reserve
from srl_ray.placement.plan import RoleRequest, make_plan
from srl_ray.runtime.cluster import connect
from srl_ray.runtime.worker_group import WorkerGroup, WorkerOptions

pytestmark = pytest.mark.behaviour


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test file
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "num_gpus": 2, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


class Probe:
    """A worker that says where it is."""

    def __init__(self, index: int) -> None:
        self.index = index

    def setup(self, fails: bool = False) -> int:
        if fails:
            raise RuntimeError("licence server not reachable")
        return self.index

    def run(self) -> int:
        time.sleep(60)
        return self.index

    def status(self) -> tuple[str, str, str]:
        node_id = ray.get_runtime_context().get_node_id()
        return node_id, os.environ.get("CUDA_VISIBLE_DEVICES", "all"), os.environ["OMP_NUM_THREADS"]

    def stop(self) -> None: ...


def wait_until_free(cpus: float, gpus: float) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        free = ray.available_resources()
        if free.get("CPU", 0) == cpus and free.get("GPU", 0) == gpus:
            return
        time.sleep(0.2)
    raise AssertionError(f"still taken: {ray.available_resources()}")


def test_cpu_workers_land_off_the_gpu_node_and_trainers_on_it(cluster: Cluster):
    nodes = cluster_nodes()
    gpu_node = next(n.node_id for n in nodes if n.gpus)
    plan = make_plan([RoleRequest("trainer", 2, gpus=0.5), RoleRequest("actor", 6)], nodes, PlacementConfig())
    with reserve(plan, timeout_s=30) as reservation:
        actors = WorkerGroup("actor", Probe, reservation, WorkerOptions(control_threads=2))
        trainers = WorkerGroup("trainer", Probe, reservation)
        for group in (trainers, actors):
            for i in range(len(plan.bundle_indices(group.role))):
                group.start(i, i)
        assert trainers.setup({0: (), 1: ()}, deadline_s=60) == {0: 0, 1: 1}
        assert len(actors.setup({i: () for i in actors.handles}, deadline_s=60)) == 6
        busy = [handle.run.remote() for handle in actors.handles.values()]
        where = actors.call_all("status", deadline_s=20)
        assert {node for node, _, _ in where.values()} == {n.node_id for n in nodes if not n.gpus}
        assert {(devices, threads) for _, devices, threads in where.values()} == {("", "1")}
        at = trainers.call_all("status", deadline_s=20)
        assert {node for node, _, _ in at.values()} == {gpu_node}
        assert len({devices for _, devices, _ in at.values()}) == 1
        assert reservation.node_of("trainer", 0) == gpu_node
        assert ray.wait(busy, timeout=0)[0] == []
        with pytest.raises(RuntimeError, match="licence server not reachable"):
            trainers.setup({1: (True,)}, deadline_s=20)
    wait_until_free(8, 2)


def test_amounts_that_no_node_has_are_explained_before_anything_is_reserved(cluster: Cluster):
    nodes = cluster_nodes()
    with pytest.raises(PlacementError, match="no single node"):
        make_plan([RoleRequest("trainer", 1, cpus=5)], nodes)
    with pytest.raises(PlacementError, match="3 GPU in all, the cluster has 2"):
        make_plan([RoleRequest("trainer", 3, gpus=1)], [n for n in nodes if n.gpus])


def test_resources_held_by_others_end_in_a_diagnosis_and_nothing_stays_reserved(cluster: Cluster):
    nodes = cluster_nodes()
    plan = make_plan([RoleRequest("trainer", 2, gpus=1)], nodes)
    with reserve(plan, timeout_s=30):
        start = time.monotonic()
        with pytest.raises(PlacementError) as caught, reserve(plan, timeout_s=2):
            pass
        assert time.monotonic() - start < 10
        text = str(caught.value)
        assert "within 2 s" in text
        assert "trainer" in text
        assert "0 GPU" in text
    wait_until_free(8, 2)
    with reserve(plan, timeout_s=30):
        pass


def test_an_error_inside_frees_the_group(cluster: Cluster):
    plan = make_plan([RoleRequest("actor", 4)], cluster_nodes())
    with pytest.raises(KeyError), reserve(plan, timeout_s=30):
        raise KeyError
    wait_until_free(8, 2)


def test_a_ray_of_this_process_is_used_and_left_running(cluster: Cluster, caplog: pytest.LogCaptureFixture):
    with connect(ClusterConfig(num_cpus=100)) as handle:
        assert handle.kind == "existing"
        assert "this process" in handle.found_by
    assert ray.is_initialized()
    assert "asks for more than the running Ray has" in caplog.text


def test_ray_address_is_followed_and_the_cluster_stays(cluster: Cluster):
    code = """
import ray
from srl_ray.placement.config import ClusterConfig
from srl_ray.runtime.cluster import connect
with connect(ClusterConfig(), namespace="somebody") as handle:
    print(handle)
assert not ray.is_initialized()
"""
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=90, check=True
    )
    assert done.stdout.strip() == f"existing Ray at {cluster.address} (environment variable RAY_ADDRESS)"
    assert len(cluster_nodes()) == 3


def test_a_driver_killed_hard_leaves_nothing_and_the_next_run_starts_at_once(cluster: Cluster):
    code = """
import time
from srl_ray.param_server.service import start_parameter_service
from srl_ray.placement.config import ClusterConfig
from srl_ray.placement.groups import cluster_nodes, reserve
from srl_ray.placement.plan import RoleRequest, make_plan
from srl_ray.runtime.cluster import connect
from srl_ray.runtime.worker_group import WorkerGroup

class Worker:
    def setup(self): pass

with connect(ClusterConfig()):
    plan = make_plan([RoleRequest("actor", 4, cpus=1)], cluster_nodes())
    with reserve(plan, timeout_s=30) as reservation:
        service = start_parameter_service("same-run-id")
        workers = WorkerGroup("actor", Worker, reservation)
        for i in range(2):
            workers.start(i)
        workers.setup({0: (), 1: ()}, deadline_s=60)
        print("up", flush=True)
        time.sleep(600)
"""
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    for _ in range(2):
        driver = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline().strip() == "up"
            assert ray.available_resources()["CPU"] == 4
        finally:
            driver.kill()
            driver.wait()
        wait_until_free(8, 2)
        assert not [a for a in ray.util.list_named_actors(all_namespaces=True) if a["namespace"] == "same-run-id"]
