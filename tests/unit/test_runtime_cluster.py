"""Which Ray is meant, what a worker's environment is, and how classes become actors; no Ray is started."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import ray

from srl_ray.core.errors import ConfigError, StreamError
from srl_ray.placement.config import ClusterConfig
from srl_ray.runtime import cluster
from srl_ray.runtime.cluster import connect, default_object_store_bytes, expected_local_nodes, usable_cpus
from srl_ray.runtime.worker_group import is_asyncio, make_shell, worker_env

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_a_dead_address_fails_at_once_and_says_where_it_came_from(monkeypatch: pytest.MonkeyPatch):
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(StreamError) as caught, connect(ClusterConfig()):
        pass
    assert address in str(caught.value)
    assert "environment variable RAY_ADDRESS" in str(caught.value)
    assert "cluster.address=local" in str(caught.value)


def test_something_else_at_the_address_is_noticed():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        config = ClusterConfig(address=f"127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(StreamError, match="something else than Ray"), connect(config):
            pass
        thread.join()


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "nonsense", "host:port"])
def test_addresses_that_cannot_work_are_configuration_errors(address: str):
    with pytest.raises(ConfigError, match="address"), connect(ClusterConfig(address=address)):
        pass


def test_local_inside_a_job_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    with pytest.raises(ConfigError, match="inside a submitted Ray job"), connect(ClusterConfig(address="local")):
        pass


def test_rules_of_the_address(monkeypatch: pytest.MonkeyPatch):
    assert cluster._resolve(ClusterConfig())[0] == "local"
    assert cluster._resolve(ClusterConfig(address="local"))[0] == "local"
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert cluster._resolve(ClusterConfig()) == ("head:6379", "environment variable RAY_ADDRESS")
    assert cluster._resolve(ClusterConfig(address="local"))[0] == "local"
    assert cluster._resolve(ClusterConfig(address="other:1"))[0] == "other:1"
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert cluster._resolve(ClusterConfig()) == ("head:6379", "the job's cluster")


def test_a_plan_can_be_made_before_a_local_ray_exists(monkeypatch: pytest.MonkeyPatch):
    (node,) = expected_local_nodes(ClusterConfig(num_cpus=3, num_gpus=0)) or []
    assert (node.cpus, node.gpus) == (3, 0)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert expected_local_nodes(ClusterConfig()) is None


def test_small_shared_memory_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
):
    class Usage:
        free = 64 * 2**20

    monkeypatch.setattr(cluster.shutil, "disk_usage", lambda _: Usage)
    assert default_object_store_bytes(tmp_path) == 80 * 2**20
    assert len(caplog.records) == 1
    assert "57 MiB free" in caplog.text
    assert "--shm-size" in caplog.text


def test_temporary_folders_of_killed_processes_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(cluster, "_LONGEST_TEMP_PATH", 1000)
    gone = tmp_path / "srl999999999_abc"
    alive = tmp_path / f"srl{os.getpid()}_abc"
    for folder in (gone, alive):
        folder.mkdir()
    made = cluster._make_temp_dir(str(tmp_path))
    assert made.parent == tmp_path
    assert alive.exists()
    assert not gone.exists()


def test_paths_too_long_for_sockets_are_not_used(caplog: pytest.LogCaptureFixture):
    made = cluster._make_temp_dir("/tmp/" + "x" * 40)
    made.rmdir()
    assert made.parent == Path("/tmp")
    assert "too long" in caplog.text


def test_the_object_store_is_at_most_2_gib():
    assert 80 * 2**20 <= default_object_store_bytes() <= 2 * 2**30
    assert usable_cpus() >= 1


def test_cpu_workers_get_one_math_thread_and_no_device():
    env = worker_env(0.25, 0.0, user={"CUDA_VISIBLE_DEVICES": "0"})
    assert env["OMP_NUM_THREADS"] == env["MKL_NUM_THREADS"] == "1"
    assert env["CUDA_VISIBLE_DEVICES"] == ""


def test_the_users_thread_number_is_honoured():
    env = worker_env(4.0, 1.0, user={"OMP_NUM_THREADS": "2"})
    assert env["OMP_NUM_THREADS"] == env["MKL_NUM_THREADS"] == "2"
    assert "CUDA_VISIBLE_DEVICES" not in env
    assert worker_env(4.0, 1.0, user={})["OMP_NUM_THREADS"] == "4"


class Threaded:
    """Doc."""

    def run(self) -> str:
        return "ran"

    def stop(self, hard: bool = False) -> bool:
        return hard


class Child(Threaded):
    def stop(self, hard: bool = False) -> bool:
        return not super().stop(hard)


class Async:
    async def act(self) -> None: ...


def test_a_shell_forwards_to_a_worker_made_where_the_shell_is_constructed():
    shell = make_shell(Child, {"control": ("stop", "status")}, "actor", 3)
    assert shell.__name__ == "Child"
    assert shell.stop.__ray_concurrency_group__ == "control"
    assert not hasattr(Child.stop, "__ray_concurrency_group__")
    made = shell()
    assert made.stop(hard=True) is False
    assert made.run() == "ran"
    assert isinstance(made.worker, Child)
    assert is_asyncio(make_shell(Async, {}, "actor", 0))


def test_what_a_worker_logs_says_which_worker_it_was(capsys: pytest.CaptureFixture[str]):
    logger = logging.getLogger("srl_ray")
    before = (logger.handlers[:], logger.level, logger.propagate)
    try:
        make_shell(Child, {}, "actor", 3)()
        logging.getLogger("srl_ray.streams.remote").info("hello")
        assert capsys.readouterr().err.endswith("I actor 3 | hello\n")
    finally:
        logger.handlers, logger.propagate = before[0], before[2]
        logger.setLevel(before[1])


def test_loading_the_shell_of_a_trainer_worker_imports_no_torch():
    from srl_ray.trainer.worker import TrainerWorker

    packed = ray.cloudpickle.dumps(make_shell(TrainerWorker, {"control": ("stop",)}, "trainer", 0))
    code = "import sys, pickle; pickle.load(sys.stdin.buffer); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], input=packed, check=True, timeout=60)


def test_asyncio_classes_are_recognised():
    assert is_asyncio(Async)
    assert not is_asyncio(Child)
