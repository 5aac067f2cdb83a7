"""The policy worker's parts without Ray: which requests make a batch, and how they are joined."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from srl_ray.core.types import FieldSpec
from srl_ray.policy.batcher import IDLE_S, Batcher
from srl_ray.policy.config import PolicyWorkersConfig
from srl_ray.policy.staging import Staging
from srl_ray.streams.inference import InferenceReply, InferenceRequest

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
