"""The remote client keeps its question until it is answered, whichever policy worker answers in the end."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from ray.exceptions import RayActorError

from srl_ray.core.types import DiscreteActions
from srl_ray.streams.inference import (
    InferenceReply,
    InferenceRequest,
    PolicySignature,
    PolicyWorkerGone,
    RequestHeader,
)
from srl_ray.streams.remote import Link, RemoteInference

pytestmark = [pytest.mark.unit, pytest.mark.timeout(30)]

SIGNATURE = PolicySignature(DiscreteActions((2,)).field, 0)


@dataclass
class PolicyWorkerDouble:
    """Answers at once with the request's sequence number as version, unless it is silent or dead."""

    is_dead: bool = False
    is_silent: bool = False
    asked: list[RequestHeader] = field(default_factory=list)
    connections: int = 0


class LinkDouble:
    name = "double"

    def __init__(self, worker: PolicyWorkerDouble) -> None:
        self.worker = worker

    def send(self, header: RequestHeader, request: InferenceRequest) -> None:
        self._check()
        self.worker.asked.append(header)

    def receive(self, header: RequestHeader, deadline_s: float) -> InferenceReply | None:
        self._check()
        if self.worker.is_silent:
            return None
        empty = np.zeros(0, np.float32)
        return InferenceReply(empty, empty, empty, empty, version=header.sequence)

    def _check(self) -> None:
        if self.worker.is_dead:
            raise PolicyWorkerGone("dead")

    def close(self) -> None:
        pass


def connect(worker: Any) -> Link:
    if worker.is_dead:
        raise RayActorError
    worker.connections += 1
    return LinkDouble(worker)


def make_client(worker: PolicyWorkerDouble, resend_after_s: float = 30.0) -> RemoteInference:
    return RemoteInference(3, 1, connect, worker, SIGNATURE, resend_after_s=resend_after_s)


def ask(client: RemoteInference, slot: int = 0) -> None:
    flags = np.zeros(1, np.bool_)
    client.post(slot, InferenceRequest({}, np.zeros((1, 0), np.float32), flags, flags))


def version(client: RemoteInference, slot: int = 0, deadline_s: float = 5.0) -> int | None:
    reply = client.take(slot, deadline_s)
    return None if reply is None else reply.version


def test_requests_are_counted_per_slot_and_demand_what_was_installed() -> None:
    worker = PolicyWorkerDouble()
    client = make_client(worker)
    ask(client, 0)
    client.install(0, 7)
    client.install(0, 5)
    ask(client, 1)
    assert [version(client, slot) for slot in (0, 1)] == [1, 1]
    ask(client, 0)
    assert version(client) == 2
    assert worker.asked == [
        RequestHeader(3, 1, 0, 1, (-1, -1)),
        RequestHeader(3, 1, 1, 1, (0, 7)),
        RequestHeader(3, 1, 0, 2, (0, 7)),
    ]
    assert (client.resends, worker.connections) == (0, 1)


def test_a_request_in_flight_is_asked_again_with_its_number_when_the_policy_worker_was_replaced() -> None:
    first, second = PolicyWorkerDouble(), PolicyWorkerDouble()
    client = make_client(first)
    ask(client, 0)
    ask(client, 1)
    first.is_dead = True
    assert version(client, 0, deadline_s=0.05) is None, "nobody there yet"
    ask(client, 2)  # asked while nobody is there
    threading.Timer(0.1, client.rewire, [second]).start()
    assert [version(client, slot) for slot in (0, 1, 2)] == [1, 1, 1]
    assert [(h.slot, h.sequence) for h in second.asked] == [(0, 1), (1, 1), (2, 1)]
    assert client.resends == 2
    assert second.connections == 1


def test_a_policy_worker_that_lives_is_left_when_another_takes_its_place() -> None:
    first, second = PolicyWorkerDouble(is_silent=True), PolicyWorkerDouble()
    client = make_client(first)
    ask(client)
    assert version(client, deadline_s=0.05) is None
    client.rewire(second)
    assert version(client) == 1


def test_a_silent_policy_worker_is_connected_to_and_asked_anew() -> None:
    worker = PolicyWorkerDouble(is_silent=True)
    client = make_client(worker, resend_after_s=0.02)
    ask(client)
    assert version(client, deadline_s=0.2) is None
    worker.is_silent = False
    assert version(client) == 1
    assert worker.connections > 1
    assert {header.sequence for header in worker.asked} == {1}


def test_a_client_of_a_dead_policy_worker_waits_for_another() -> None:
    first, second = PolicyWorkerDouble(is_dead=True), PolicyWorkerDouble()
    client = make_client(first)
    assert client.transport == ""
    ask(client)
    assert version(client, deadline_s=0.05) is None
    client.rewire(second)
    assert version(client) == 1
    assert client.transport == "double"
