"""The policy worker's parts without Ray: which requests make a batch, and how they are joined."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from srl_ray.core.types import AgentGroup, BlockSpec, DiscreteActions, FieldSpec
from srl_ray.models.config import ActorCriticConfig, CustomPolicyConfig, PolicyConfig
from srl_ray.models.factory import make_policy
from srl_ray.models.policy import ActResult
from srl_ray.policy.batcher import IDLE_S, Batcher
from srl_ray.policy.config import PolicyWorkersConfig
from srl_ray.policy.launch import make_launch
from srl_ray.policy.staging import Staging
from srl_ray.policy.worker import PolicyWorker, PolicyWorkerSettings
from srl_ray.streams.inference import InferenceReply, InferenceRequest, RequestHeader
from srl_ray.streams.inline import act_on_tensors
from srl_ray.streams.shared_memory import SharedMemoryLink

pytestmark = pytest.mark.unit


@dataclass
class Asked:
    """A request as the batcher sees it."""

    num_rows: int
    arrived_s: float = 0.0
    least: tuple[int, int] = (-1, -1)
    is_wanted: bool = True
    answers: list[InferenceReply] = field(default_factory=list)

    def read(self) -> InferenceRequest:
        raise NotImplementedError

    def answer(self, reply: InferenceReply) -> None:
        self.answers.append(reply)


def batcher(requests: list[Asked], *, max_rows: int = 100, min_rows: int = 1, max_wait_s: float = 0.0) -> Batcher:
    made = Batcher(max_rows=max_rows, min_rows=min_rows, max_wait_s=max_wait_s)
    for request in requests:
        made.add(request)
    return made


def test_everything_pending_is_the_next_batch_up_to_its_size() -> None:
    a, b, c, d = Asked(60), Asked(50), Asked(40), Asked(500)
    made = batcher([a, b, c, d])
    assert made.next((0, 0), 0.0) == ([a, c], 0.0)
    assert made.next((0, 0), 0.0) == ([b], 0.0)
    assert made.next((0, 0), 0.0) == ([d], 0.0), "larger than a batch: alone"
    assert made.next((0, 0), 0.0) == ([], IDLE_S)


def test_requests_wait_for_the_weights_they_demand() -> None:
    a, b = Asked(1, least=(0, 5)), Asked(1, least=(0, 3))
    made = batcher([a, b])
    assert made.next(None, 0.0)[0] == []
    assert made.next((0, 4), 0.0)[0] == [b]
    assert made.next((0, 4), 0.0) == ([], IDLE_S)
    assert made.next((1, 0), 0.0)[0] == [a], "a newer epoch is newer than any version before"


def test_a_small_batch_waits_for_others_until_its_deadline() -> None:
    a = Asked(4, arrived_s=10.0)
    made = batcher([a], min_rows=8, max_wait_s=0.5)
    batch, wait_s = made.next((0, 0), 10.2)
    assert batch == []
    assert wait_s == pytest.approx(0.3)
    assert made.next((0, 0), 10.5)[0] == [a]
    b, c = Asked(4, arrived_s=20.0), Asked(4, arrived_s=20.1)
    made.add(b)
    assert made.next((0, 0), 20.1)[0] == []
    made.add(c)
    assert made.next((0, 0), 20.1)[0] == [b, c]


def test_an_empty_request_is_answered_at_once() -> None:
    empty = Asked(0, arrived_s=10.0)
    assert batcher([empty], max_wait_s=0.5).next((0, 0), 10.0)[0] == [empty]


def test_requests_that_nobody_wants_any_more_are_dropped() -> None:
    a, b = Asked(1), Asked(1)
    made = batcher([a, b])
    a.is_wanted = False
    assert made.next((0, 0), 0.0)[0] == [b]
    assert len(made) == 0


@pytest.mark.parametrize("sizes", [(3,), (1, 0, 5), (40, 50, 60), (0,)])
def test_staging_joins_rows_in_order_and_keeps_their_dtypes(sizes: tuple[int, ...]) -> None:
    obs = {
        "image": FieldSpec((2, 2, 3), np.dtype(np.uint8)),
        "x": FieldSpec((4,), np.dtype(np.float32)),
        "mask": FieldSpec((5,), np.dtype(np.bool_)),
    }
    staging = Staging(obs, 7)
    for seed in range(2):  # a second, shorter batch shows nothing of the first
        rng = np.random.default_rng(seed)
        requests = []
        for rows in sizes[seed:]:
            arrays = {n: (rng.random((rows, *spec.shape)) * 250).astype(spec.dtype) for n, spec in obs.items()}
            state = rng.random((rows, 7)).astype(np.float32)
            requests.append(InferenceRequest(arrays, state, rng.random(rows) < 0.5, rng.random(rows) < 0.5))
            for array in arrays.values():
                array.flags.writeable = False
        joined, state, on_reset, deterministic = staging.load(requests)
        if not requests:
            assert len(state) == 0
            continue
        for name, spec in obs.items():
            assert joined[name].numpy().dtype == spec.dtype
            np.testing.assert_array_equal(joined[name].numpy(), np.concatenate([r.obs[name] for r in requests]))
        for tensor, name in ((state, "state"), (on_reset, "on_reset"), (deterministic, "deterministic")):
            np.testing.assert_array_equal(tensor.numpy(), np.concatenate([getattr(r, name) for r in requests]))


def test_staging_buffers_are_kept() -> None:
    staging = Staging({"x": FieldSpec((1,), np.dtype(np.float32))}, 0)

    def load(rows: int) -> torch.Tensor:
        flags = np.zeros(rows, np.bool_)
        request = InferenceRequest(
            {"x": np.zeros((rows, 1), np.float32)}, np.zeros((rows, 0), np.float32), flags, flags
        )
        return staging.load([request])[0]["x"]

    first = load(65).data_ptr()
    assert staging.capacity == 128
    assert {load(rows).data_ptr() for rows in (1, 128, 64)} == {first}
    load(129)
    assert staging.capacity == 256


def test_contradictory_batch_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"policy_workers.min_batch_rows must be in \[1, .*=8\], got 9"):
        PolicyWorkersConfig(max_batch_rows=8, min_batch_rows=9)
    with pytest.raises(ValueError, match=r"policy_workers.max_wait_s must be >= 0"):
        PolicyWorkersConfig(max_wait_s=-1.0)
    with pytest.raises(ValueError, match=r"policy_workers.transport must be auto, ray or shared_memory, got 'tcp'"):
        PolicyWorkersConfig(transport="tcp")


# -- batches in flight ------------------------------------------------------------------------------------------------

SPEC = BlockSpec(
    "fake", 4, AgentGroup("agent", ("agent",), {"x": FieldSpec((1,), np.dtype(np.float32))}, DiscreteActions((9,)))
)


class FakeAccelerator(torch.nn.Module):
    """Answers when the test says so; the action is the observation."""

    action_spec = DiscreteActions((9,))
    state_size = 0

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.launched: list[tuple[torch.Tensor, Future[ActResult]]] = []
        self.num_acts = 0

    def launch(self, obs: dict[str, torch.Tensor], *_: Any) -> Future[ActResult]:
        future: Future[ActResult] = Future()
        self.launched.append((obs["x"], future))
        return future

    def act(self, obs: dict[str, torch.Tensor], *_: Any) -> ActResult:
        self.num_acts += 1
        return self.result(obs["x"])

    def land(self, batch: int) -> None:
        self.launched[batch][1].set_result(self.result(self.launched[batch][0]))

    def result(self, x: torch.Tensor) -> ActResult:
        number = torch.zeros(len(x))
        return ActResult(x.long(), number, number, torch.zeros(len(x), 0))


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 10.0
    while not is_so():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.001)


class Client:
    """Asks through shared memory, slot by slot."""

    def __init__(self, worker: PolicyWorker, signature: Any) -> None:
        how = {"slots": 6, "capacity": 8}
        self._link = SharedMemoryLink(worker._port.address, 0, 0, SPEC.group.obs, signature, **how)

    def send(self, slot: int, *values: float, sequence: int = 1) -> None:
        flags = np.zeros(len(values), np.bool_)
        obs = {"x": np.array(values, np.float32)[:, None]}
        request = InferenceRequest(obs, np.zeros((len(values), 0), np.float32), flags, flags)
        self._link.send(RequestHeader(0, 0, slot, sequence), request)

    def actions(self, slot: int, deadline_s: float = 10.0, sequence: int = 1) -> list[float] | None:
        reply = self._link.receive(RequestHeader(0, 0, slot, sequence), deadline_s)
        return None if reply is None else reply.action[:, 0].tolist()


@contextmanager
def serving(policy: PolicyConfig, **workers: Any) -> Iterator[tuple[Client, Any, PolicyWorker]]:
    """A policy worker's serving thread, without Ray."""
    worker = PolicyWorker(PolicyWorkerSettings(0, 0, 1, PolicyWorkersConfig(count=1, **workers), policy, "", ""))
    signature = worker._build(SPEC)
    worker._stamp = (0, 3)
    failed: list[BaseException] = []

    def serve() -> None:
        try:
            worker._serve()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield Client(worker, signature), worker._policy, worker
    finally:
        for _, future in getattr(worker._policy, "launched", []):
            if not future.done():
                future.cancel()
        worker._stopped = True
        worker._port.wake()
        thread.join(10)
        worker._port.close()
        worker._serving.shutdown()
    if failed:
        raise failed[0]


ACCELERATOR = CustomPolicyConfig(target="tests.unit.test_policy_worker:FakeAccelerator")


def test_a_batch_is_launched_before_the_last_one_is_answered() -> None:
    with serving(ACCELERATOR) as (client, device, worker):
        client.send(0, 1, 2)
        until(lambda: len(device.launched) == 1)
        client.send(1, 3)
        until(lambda: len(device.launched) == 2)
        client.send(2, 4)
        client.send(3, 5, 6)
        assert client.actions(2, 0.05) is None
        assert len(device.launched) == 2, "two in flight are the most by default"
        device.land(1)  # in any order: each batch keeps its buffers until it has landed
        assert client.actions(1) == [3]
        until(lambda: len(device.launched) == 3)
        assert device.launched[2][0][:, 0].tolist() == [4, 5, 6], "what was pending is joined"
        device.land(0)
        assert client.actions(0) == [1, 2]
        device.land(2)
        assert (client.actions(2), client.actions(3)) == ([4], [5, 6])
        until(lambda: worker.report_now().batches == 3)
        report = worker.report_now()
        assert (report.rows, device.num_acts) == (6, 0)
        assert set(report.seconds) == {"wait", "gather", "weights", "compute", "reply", "processor"}


def test_batches_in_flight_are_as_many_as_configured() -> None:
    with serving(ACCELERATOR, batches_in_flight=4) as (client, device, _):
        for slot in range(4):
            client.send(slot, slot)
            until(lambda slot=slot: len(device.launched) == slot + 1)
        client.send(4, 7)
        assert client.actions(4, 0.05) is None
        assert len(device.launched) == 4
        for batch in range(4):
            device.land(batch)
            assert client.actions(batch) == [batch]
        until(lambda: len(device.launched) == 5)
        device.land(4)
        assert client.actions(4) == [7]
    with serving(ACCELERATOR, batches_in_flight=1) as (client, device, _):
        client.send(0, 8)
        assert client.actions(0) == [8]
        assert (len(device.launched), device.num_acts) == (0, 1), "one at a time needs no launching"


def test_a_failure_on_the_device_ends_the_worker() -> None:
    def lose_it() -> None:
        with serving(ACCELERATOR) as (client, device, _):
            client.send(0, 1)
            until(lambda: len(device.launched) == 1)
            device.launched[0][1].set_exception(RuntimeError("device lost"))
            assert client.actions(0, 0.05) is None

    with pytest.raises(RuntimeError, match="device lost"):
        lose_it()


def test_policies_on_the_cpu_answer_one_batch_after_the_other() -> None:
    with serving(ActorCriticConfig(), batches_in_flight=3) as (client, _, worker):
        assert worker._launch is None
        for sequence in (1, 2):
            client.send(0, 1, 2, sequence=sequence)
            assert len(client.actions(0, sequence=sequence) or []) == 2
        until(lambda: worker.report_now().batches == 2)


def test_a_batch_on_the_gpu_is_answered_once_its_copy_is_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU stands in for the GPU: what is shown is that nobody waits before the event, and the answer after it."""
    is_through, calls = threading.Event(), []

    class Event:
        def __init__(self, blocking: bool) -> None:
            assert blocking, "the thread that waits must not spin"

        def record(self) -> None:
            calls.append("record")

        def synchronize(self) -> None:
            assert is_through.wait(10)
            calls.append("through")

    monkeypatch.setattr("torch.cuda.Event", Event)
    policy = make_policy(ActorCriticConfig(), SPEC.group.obs, SPEC.group.action, 1)
    launch = make_launch(policy, torch.device("cuda"))
    assert launch is not None
    no = torch.zeros(3, dtype=torch.bool)
    rows = ({"x": torch.ones(3, 1)}, torch.zeros(3, 0), no, ~no)
    first, second = (launch(*rows, None, stamp=(2, version)) for version in (5, 6))
    assert calls == ["record", "record"]
    assert not first.done()
    is_through.set()
    expected = act_on_tensors(policy, *rows, None, (2, 5))
    for future, version in ((first, 5), (second, 6)):
        reply = future.result(10)
        assert (reply.epoch, reply.version) == (2, version)
        np.testing.assert_allclose(reply.value, expected.value, rtol=1e-5)
        np.testing.assert_array_equal(reply.action, expected.action)


def test_batches_in_flight_is_checked() -> None:
    with pytest.raises(ValueError, match=r"policy_workers.batches_in_flight must be >= 1 or null, got 0"):
        PolicyWorkersConfig(batches_in_flight=0)
