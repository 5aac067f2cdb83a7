"""The parameter service with real Ray: long polls, ownership, death, disk."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from srl_ray.core.errors import StreamError
from srl_ray.param_server.client import ParameterClient
from srl_ray.param_server.relay import relay_name, start_parameter_relay
from srl_ray.param_server.service import start_parameter_service, stop_parameter_service
from srl_ray.param_server.weights import FlatWeights, flatten

pytestmark = pytest.mark.behaviour


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test file
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    return f"run-{request.node.name}"


@pytest.fixture
def services() -> Iterator[list[Any]]:
    started: list[Any] = []
    yield started
    for handle in started:
        ray.kill(handle)


SMALL, LARGE = 100, 50_000
"""Numbers: those that travel in messages and those that go through the object store."""
either_size = pytest.mark.parametrize("size", [SMALL, LARGE])


def weights(value: float, size: int = LARGE) -> FlatWeights:
    return flatten({"w": np.full(size, value, np.float32)})


def value_of(flat: FlatWeights) -> float:
    return float(flat.arrays()["w"][0])


@either_size
def test_waiting_clients_get_the_newest_version_when_it_is_published(namespace: str, services: list[Any], size: int):
    services.append(start_parameter_service(namespace))
    client = ParameterClient(namespace, "main")
    assert client.latest() is None
    assert client.fetch_newer(deadline_s=0.2) is None
    waiting = [client.start_wait() for _ in range(50)]
    assert ray.wait(waiting, timeout=0.1)[0] == []
    assert client.publish(weights(1.0, size), epoch=0, version=1).accepted
    ready, _ = ray.wait(waiting, num_returns=50, timeout=10)
    assert len(ready) == 50
    fetched = client.finish_wait(ready[0], deadline_s=10)
    assert fetched is not None
    assert fetched.stamp == (0, 1)
    assert value_of(fetched.flat) == 1.0
    assert client.fetch_newer(than=(0, 1), deadline_s=0.1) is None


@either_size
def test_an_asyncio_caller_waits_without_blocking(namespace: str, services: list[Any], size: int):
    services.append(start_parameter_service(namespace))
    client = ParameterClient(namespace, "main")

    async def both() -> tuple[Any, int]:
        fetch = asyncio.create_task(client.fetch_newer_async(deadline_s=10))
        turns = 0
        while not fetch.done():
            turns += 1
            if turns == 5:
                await asyncio.to_thread(client.publish, weights(3.0, size), epoch=0, version=3)
            await asyncio.sleep(0.02)
        return fetch.result(), turns

    fetched, turns = asyncio.run(both())
    assert value_of(fetched.flat) == 3.0
    assert turns >= 5


def test_weights_outlive_the_trainer_that_published_them(namespace: str, services: list[Any]):
    services.append(start_parameter_service(namespace))

    @ray.remote(num_cpus=0.1)
    class Trainer:
        def publish(self) -> None:
            ParameterClient(namespace, "main").publish(weights(7.0), epoch=0, version=7)

    trainer = Trainer.remote()
    ray.get(trainer.publish.remote(), timeout=30)
    ray.kill(trainer)
    time.sleep(0.5)
    fetched = ParameterClient(namespace, "main").fetch_newer(deadline_s=10)
    assert fetched is not None
    assert value_of(fetched.flat) == 7.0


@either_size
def test_tags_versions_and_metadata(namespace: str, services: list[Any], tmp_path: Path, size: int):
    services.append(start_parameter_service(namespace, tmp_path, keep=2, write_interval_s=0.0))
    client = ParameterClient(namespace, "main")
    for version in range(5):
        client.publish(weights(version, size), epoch=0, version=version, tags=("first",) if version == 0 else ())
    client.tag("best", version=4)
    client.update_metadata({"return": 2.0}, version=4, count=10)
    ray.get(services[0].flush.remote(), timeout=30)
    assert value_of(client.get(tag="first").flat) == 0.0
    assert client.get(tag="best").version == 4
    with pytest.raises(LookupError, match=r"version 1 .* not kept"):
        client.get(version=1)
    infos = {v.version: v for v in client.versions()}
    assert sorted(infos) == [0, 3, 4]
    assert infos[4].means == {"return": (2.0, 10)}
    assert not client.publish(weights(0), epoch=0, version=2).accepted


def test_a_service_killed_from_outside_can_be_replaced_and_every_process_finds_the_new_one(
    namespace: str, services: list[Any], tmp_path: Path
):
    @ray.remote(num_cpus=0.1)
    class Reader:
        def __init__(self) -> None:
            self.client = ParameterClient(namespace, "main")

        def read(self, than: tuple[int, int]) -> float:
            fetched = self.client.fetch_newer(than, deadline_s=30)
            assert fetched is not None
            return value_of(fetched.flat)

    first = start_parameter_service(namespace, tmp_path)
    trainer = ParameterClient(namespace, "main")
    trainer.publish(weights(1), epoch=0, version=1)
    reader = Reader.remote()
    assert ray.get(reader.read.remote((-1, -1)), timeout=30) == 1.0
    waiting = trainer.start_wait(than=(0, 1))
    os.kill(ray.get(first.status.remote(), timeout=10)["pid"], signal.SIGKILL)
    asleep = reader.read.remote((0, 1))
    assert trainer.finish_wait(waiting, deadline_s=20) is None
    services.append(start_parameter_service(namespace, tmp_path))
    trainer.publish(weights(2), epoch=0, version=2)
    assert ray.get(asleep, timeout=30) == 2.0


def test_clients_survive_the_death_of_the_service_and_it_reads_its_disk(
    namespace: str, services: list[Any], tmp_path: Path
):
    first = start_parameter_service(namespace, tmp_path)
    client = ParameterClient(namespace, "main")
    for version in (1, 2):
        client.publish(weights(version), epoch=0, version=version, tags=("mark",) if version == 1 else ())
    ray.get(first.flush.remote(), timeout=30)
    ray.kill(first)
    client = ParameterClient(namespace, "main")  # the publisher is gone too: only the disk knows

    def restart() -> None:
        services.append(start_parameter_service(namespace, tmp_path))

    later = threading.Timer(1.0, restart)
    later.start()
    fetched = client.fetch_newer(deadline_s=30)
    later.join()
    assert fetched is not None
    assert fetched.stamp == (0, 2)
    assert value_of(fetched.flat) == 2.0
    assert value_of(client.get(tag="mark").flat) == 1.0
    assert client.publish(weights(3), epoch=0, version=3).accepted


def test_a_service_that_came_back_with_less_is_given_the_last_version_again(
    namespace: str, services: list[Any], tmp_path: Path
):
    first = start_parameter_service(namespace, tmp_path, write_interval_s=3600.0)
    trainer = ParameterClient(namespace, "main")
    for version in (1, 2, 3):
        trainer.publish(weights(version), epoch=0, version=version)
    ray.kill(first)
    services.append(start_parameter_service(namespace, tmp_path))
    trainer.publish_again(deadline_s=20)
    fetched = ParameterClient(namespace, "main").fetch_newer(than=(0, 2), deadline_s=20)
    assert fetched is not None
    assert fetched.stamp == (0, 3)
    assert value_of(fetched.flat) == 3.0


def test_a_service_that_stays_away_is_an_error_within_the_deadline(namespace: str):
    start = time.monotonic()
    with pytest.raises(StreamError, match="parameter service"):
        ParameterClient(namespace, "main").fetch_newer(deadline_s=1.0)
    with pytest.raises(StreamError):
        ParameterClient(namespace, "main").start_wait()
    assert time.monotonic() - start < 5.0


def test_a_restarted_trainer_group_is_newer_although_its_version_is_lower(namespace: str, services: list[Any]):
    services.append(start_parameter_service(namespace))
    client = ParameterClient(namespace, "main")
    client.publish(weights(57), epoch=0, version=57)
    client.publish(weights(40), epoch=1, version=40)
    fetched = client.fetch_newer(than=(0, 57), deadline_s=5)
    assert fetched is not None
    assert fetched.stamp == (1, 40)
    assert not client.publish(weights(58), epoch=0, version=58).accepted


def test_a_resumed_run_starts_below_what_is_on_disk_and_is_still_the_newest(
    namespace: str, services: list[Any], tmp_path: Path
):
    first = start_parameter_service(namespace, tmp_path)
    client = ParameterClient(namespace, "main")
    client.publish(weights(30), epoch=0, version=30, tags=("best",))
    client.publish(weights(57), epoch=0, version=57)
    stop_parameter_service(first)
    resumed = namespace + "-resumed"
    services.append(start_parameter_service(resumed, tmp_path))
    client = ParameterClient(resumed, "main")
    assert client.latest() is None
    assert client.publish(weights(40), epoch=0, version=40).accepted
    newest = client.latest()
    assert newest is not None
    assert newest.stamp == (0, 40)
    assert value_of(client.get(tag="best").flat) == 30.0


def test_runs_are_apart_and_a_taken_run_id_is_refused(namespace: str, services: list[Any]):
    services.append(start_parameter_service(namespace))
    services.append(start_parameter_service(namespace + "-other"))
    ParameterClient(namespace, "main").publish(weights(1), epoch=0, version=1)
    assert ParameterClient(namespace + "-other", "main").latest() is None
    with pytest.raises(StreamError, match="another run uses this run id"):
        start_parameter_service(namespace)


def test_a_relay_serves_its_node_and_its_clients_fall_back_to_the_service(namespace: str, services: list[Any]):
    services.append(start_parameter_service(namespace))
    node_id = ray.get_runtime_context().get_node_id()
    relay = start_parameter_relay(namespace, node_id)
    client = ParameterClient(namespace, "main", relay=relay_name(node_id))
    waiting = client.start_wait()
    client.publish(weights(1), epoch=0, version=1)
    assert ray.wait([waiting], timeout=10)[0]
    fetched = client.finish_wait(waiting, deadline_s=10)
    assert fetched is not None
    assert value_of(fetched.flat) == 1.0
    assert ray.get(relay.status.remote(), timeout=10)["policies"] == {"main": (0, 1)}
    ray.kill(relay)
    client.publish(weights(2), epoch=0, version=2)
    fetched = client.fetch_newer(than=(0, 1), deadline_s=10)
    assert fetched is not None
    assert fetched.version == 2


def test_the_client_does_not_import_torch():
    code = "import sys, srl_ray.param_server.client; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
