"""Inference through shared memory: what is written arrives, and neither replaced requests nor deaths are answered."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from srl_ray.core.errors import StreamError
from srl_ray.core.types import DiscreteActions, FieldSpec
from srl_ray.streams.inference import (
    InferenceReply,
    InferenceRequest,
    PolicySignature,
    PolicyWorkerGone,
    RequestHeader,
    reply_fields,
    request_fields,
)
from srl_ray.streams.shared_memory import Area, PostedRequest, SharedMemoryLink, SharedMemoryPort, is_available

pytestmark = [
    pytest.mark.unit,
    pytest.mark.timeout(60),
    pytest.mark.skipif(not is_available(), reason="memory without a name is a Linux thing"),
]

OBS = {
    "image": FieldSpec((3, 5), np.dtype(np.uint8)),
    "x": FieldSpec((4,), np.dtype(np.float32)),
    "nothing": FieldSpec((0,), np.dtype(np.float32)),
}
SIGNATURE = PolicySignature(DiscreteActions((3, 2)).field, 6)
CAPACITY = 8
ROOT = Path(__file__).parents[2]


def request(rows: int, seed: int = 0) -> InferenceRequest:
    rng = np.random.default_rng(seed)
    return InferenceRequest(
        {name: (rng.random((rows, *spec.shape)) * 9).astype(spec.dtype) for name, spec in OBS.items()},
        rng.random((rows, 6)).astype(np.float32),
        rng.random(rows) < 0.5,
        rng.random(rows) < 0.5,
    )


def reply(rows: int, seed: int = 0, version: int = 3) -> InferenceReply:
    rng = np.random.default_rng(seed)
    numbers = rng.random((2, rows)).astype(np.float32)
    state = rng.random((rows, 6)).astype(np.float32)
    return InferenceReply(rng.integers(0, 9, (rows, 2)), numbers[0], numbers[1], state, version, 1)


def assert_equal(a: InferenceRequest | InferenceReply, b: InferenceRequest | InferenceReply) -> None:
    for name, value in vars(a).items():
        other = getattr(b, name)
        if isinstance(value, dict):
            assert set(value) == set(other)
            assert all(np.array_equal(value[n], other[n]) and value[n].dtype == other[n].dtype for n in value)
        else:
            assert np.array_equal(value, other), name


class Service(threading.Thread):
    """Polls a port; `requests` collects what came."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.epochs: dict[int, int] = {}
        self.port = SharedMemoryPort(OBS, SIGNATURE, self._admit)
        self.requests: list[PostedRequest] = []
        self._changed = threading.Condition()
        self._ended = False
        self.start()

    def _admit(self, client: int, epoch: int) -> bool:
        if epoch < self.epochs.get(client, -1):
            return False
        self.epochs[client] = epoch
        return True

    def run(self) -> None:
        while not self._ended:
            posted = self.port.poll(0.05)
            with self._changed:
                self.requests += posted
                self._changed.notify_all()

    def wait_for(self, count: int, deadline_s: float = 5.0) -> list[PostedRequest]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.requests) >= count, deadline_s), "no request came"
            return self.requests

    def wait_until_alone(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.port.num_connections == 0, 5.0)

    def end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self.port.wake()
        self.join(5.0)
        self.port.close()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.end()


def link(service: Service, client: int = 0, epoch: int = 0, slots: int = 2) -> SharedMemoryLink:
    return SharedMemoryLink(service.port.address, client, epoch, OBS, SIGNATURE, slots=slots, capacity=CAPACITY)


def header(sequence: int, slot: int = 0, least: tuple[int, int] = (-1, -1)) -> RequestHeader:
    return RequestHeader(0, 0, slot, sequence, least)


@pytest.mark.parametrize("fields", [request_fields(OBS, 6), reply_fields(SIGNATURE)], ids=["request", "reply"])
def test_areas_lie_aligned_and_apart(fields: dict[str, FieldSpec]) -> None:
    size = Area.bytes_of(CAPACITY, fields)
    assert size % 64 == 0
    memory = np.zeros(3 * size, np.uint8)
    area = Area(memory[size : 2 * size], CAPACITY, fields)
    arrays = {name: (np.ones((CAPACITY, *spec.shape)) * 255).astype(spec.dtype) for name, spec in fields.items()}
    area.write(2**62, arrays, (-1, 5))
    assert not memory[:size].any()
    assert not memory[2 * size :].any()
    assert area.holds(2**62)
    for name, array in area.view(CAPACITY).items():
        assert array.flags.aligned
        np.testing.assert_array_equal(array, arrays[name])
    with pytest.raises(ValueError, match="9 rows do not fit the 8"):
        area.write(1, {name: spec.zeros(9) for name, spec in fields.items()}, (0, 0))


def test_rows_arrive_as_they_were_sent_and_slots_do_not_mix(service: Service) -> None:
    client = link(service)
    sequence = 2**40
    for rows in (0, 1, CAPACITY, 3):
        sequence += 1
        del service.requests[:]
        for slot in (1, 0):
            client.send(header(sequence, slot, least=(2, slot)), request(rows, seed=slot))
        for posted in list(service.wait_for(2)):
            assert (posted.num_rows, posted.least) == (rows, (2, posted.slot))
            assert_equal(posted.read(), request(rows, seed=posted.slot))
            posted.answer(reply(rows, seed=posted.slot, version=10 + posted.slot))
        for slot in (0, 1):
            answer = client.receive(header(sequence, slot), 5.0)
            assert answer is not None
            assert_equal(answer, reply(rows, seed=slot, version=10 + slot))
    client.close()


def test_an_answer_is_the_callers_own(service: Service) -> None:
    client, answers = link(service), []
    for sequence in (1, 2):
        client.send(header(sequence), request(4))
        service.wait_for(sequence)[-1].answer(reply(4, seed=sequence))
        answers.append(client.receive(header(sequence), 5.0))
    for sequence, answer in zip((1, 2), answers):
        assert answer is not None
        assert_equal(answer, reply(4, seed=sequence))


def test_a_replaced_request_gets_the_second_answer_only(service: Service) -> None:
    client = link(service)
    client.send(header(1), request(2))
    (first,) = service.wait_for(1)
    client.send(header(2), request(5, seed=1))
    second = service.wait_for(2)[1]
    assert not first.is_wanted
    first.answer(reply(2))
    assert client.receive(header(2), 0.05) is None
    assert_equal(second.read(), request(5, seed=1))
    second.answer(reply(5, seed=7))
    answer = client.receive(header(2), 5.0)
    assert answer is not None
    assert_equal(answer, reply(5, seed=7))


def test_a_request_that_is_being_written_is_not_read(service: Service) -> None:
    client = link(service)
    client.send(header(1), request(2))
    (posted,) = service.wait_for(1)
    area = client._areas[0][0]
    area.head[0] = 2  # begun, and not done
    assert not posted.is_wanted
    client._socket.send(b"\0")
    client.send(header(5, slot=1), request(1))
    assert [r.slot for r in service.wait_for(2)] == [0, 1]
    area.write(2, {name: spec.zeros(3) for name, spec in request_fields(OBS, 6).items()}, (0, 0))
    client._socket.send(b"\0\0")  # one request, however often the bell rings
    client.send(header(6, slot=1), request(1))
    assert [(r.slot, r.sequence) for r in service.wait_for(4)[2:]] == [(0, 2), (1, 6)]


TORN = {"x": FieldSpec((64,), np.dtype(np.int64))}
WRITER = """
import mmap, sys, time, numpy as np
from tests.unit.test_shared_memory import TORN, Area
area = Area(np.frombuffer(mmap.mmap(int(sys.argv[1]), 0), np.uint8), 64, TORN)
end = time.monotonic() + 1.0
sequence = 0
while time.monotonic() < end:
    sequence += 1
    area.write(sequence, {"x": np.full((64, 64), sequence)}, (0, 0))
"""


def test_rows_replaced_while_they_are_read_are_noticed() -> None:
    """Another process writes without a pause and without a bell; no copy of two requests passes for one."""
    descriptor = os.memfd_create("torn")
    os.ftruncate(descriptor, Area.bytes_of(64, TORN))
    area = Area(np.frombuffer(mmap.mmap(descriptor, 0), np.uint8), 64, TORN)
    command = [sys.executable, "-c", WRITER, str(descriptor)]
    writer = subprocess.Popen(command, pass_fds=[descriptor], cwd=ROOT)
    whole = noticed = unnoticed = 0
    while writer.poll() is None:
        sequence = int(area.head[1])
        begins, copy = area.holds(sequence), area.view(64)["x"].copy()
        if sequence and begins and area.holds(sequence):
            whole += 1
            unnoticed += bool((copy != sequence).any())
        elif (copy != copy[0, 0]).any():
            noticed += 1
    os.close(descriptor)
    assert writer.returncode == 0
    assert unnoticed == 0
    assert whole > 100
    assert noticed > 0


def test_a_death_is_news_for_the_other_side_at_once(service: Service) -> None:
    client = link(service)
    client.send(header(1), request(2))
    (posted,) = service.wait_for(1)
    client.close()
    service.wait_until_alone()
    assert not posted.is_wanted
    posted.answer(reply(2))

    other = link(service, client=1)
    other.send(header(1), request(2))
    threading.Timer(0.1, service.end).start()
    with pytest.raises(PolicyWorkerGone):
        other.receive(header(1), 10.0)
    with pytest.raises(OSError, match="refused"):
        link(service, client=2)


def test_a_replaced_actor_worker_is_refused_and_its_successor_takes_its_place(service: Service) -> None:
    old = link(service, epoch=0)
    old.send(header(1), request(2))
    (posted,) = service.wait_for(1)
    new = link(service, epoch=1)
    assert not posted.is_wanted
    with pytest.raises(PolicyWorkerGone):
        old.receive(header(1), 5.0)
    with pytest.raises(StreamError, match="refused"):
        link(service, epoch=0)
    assert service.port.num_connections == 1
    new.send(header(1), request(3))
    assert service.wait_for(2)[1].num_rows == 3


def test_a_stranger_is_sent_away(service: Service) -> None:
    client = link(service)
    for hello in (b"", b"\0" * 40, b"hello"):
        stranger = socket.socket(socket.AF_UNIX)
        stranger.connect(service.port.address)
        stranger.settimeout(5.0)
        if hello:
            stranger.send(hello)
            assert stranger.recv(1) == b""
        stranger.close()
    with pytest.raises(StreamError, match="refused"):
        SharedMemoryLink(service.port.address, 1, 0, {"x": OBS["x"]}, SIGNATURE, slots=1, capacity=CAPACITY)
    client._socket.send(b"\xff")
    with pytest.raises(PolicyWorkerGone):
        client.receive(header(1), 5.0)
    service.wait_until_alone()


def test_a_killed_process_leaves_no_memory_no_file_and_no_connection(service: Service) -> None:
    before = set(os.listdir("/dev/shm"))
    code = f"""
import os, signal, numpy as np
from tests.unit.test_shared_memory import *
port = type("Port", (), {{"address": {service.port.address!r}}})
client = link(type("Service", (), {{"port": port}}))
client.send(header(1), request(4))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=30, check=False, cwd=ROOT)
    assert done.returncode == -9
    service.wait_until_alone()
    assert set(os.listdir("/dev/shm")) <= before
