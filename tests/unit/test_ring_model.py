"""The model that the ring is compared with, against what can be worked out by hand."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import pytest

from srl_ray.actors.ring import MOST_BLOCKS, NEAR_BEST, RingTimes, choose_ring

pytestmark = pytest.mark.unit

_FILE = Path(__file__).parents[2] / "benchmarks" / "ring_model.py"
_spec = importlib.util.spec_from_file_location("ring_model", _FILE)
assert _spec is not None
assert _spec.loader is not None
model = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(model)


@pytest.mark.parametrize("ring", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(("latency_s", "step_s"), [(3.5, 1.0), (0.3, 1.0), (0.0, 1.0), (0.02, 0.006)])
def test_pure_latency_follows_the_closed_formula(ring: int, latency_s: float, step_s: float) -> None:
    found = model.speed_up(ring, latency_s, step_s)
    assert found == pytest.approx(model.closed_formula(ring, latency_s, step_s), rel=0.01)


@pytest.mark.parametrize("in_flight", [1, 2, float("inf")])
def test_a_ring_of_one_waits_for_every_answer(in_flight: float) -> None:
    assert model.block_steps_per_s(1, 3.5, 1.0, in_flight=in_flight) == pytest.approx(1 / 4.5)


def test_two_blocks_share_a_device_that_takes_one_batch_at_a_time() -> None:
    """Step 1, latency 3.5: each block's request waits for the other's batch, so a batch of one block leaves the device
    every 3.5. With two in flight both are answered within a round of 4.5."""
    assert model.block_steps_per_s(2, 3.5, 1.0, in_flight=1) == pytest.approx(1 / 3.5, rel=1e-3)
    assert model.block_steps_per_s(2, 3.5, 1.0, in_flight=2) == pytest.approx(2 / 4.5, rel=1e-3)


def test_what_is_pending_is_joined() -> None:
    """Latency 2.5, four blocks: while one batch is computed three others are stepped, at most; joined they keep the
    worker busier than one block per batch (1 / 2.5) would, and not busier than it can be (1)."""
    assert 1 / 2.5 < model.block_steps_per_s(4, 2.5, 1.0, in_flight=1) < 1.0


@pytest.mark.parametrize("ring", [2, 4, 8])
def test_more_batches_in_flight_are_never_slower(ring: int) -> None:
    one, two, many = (model.speed_up(ring, 3.5, 1.0, in_flight=n) for n in (1, 2, float("inf")))
    assert one <= two * 1.001
    assert two <= many * 1.001


def test_the_order_matters_only_if_latencies_differ() -> None:
    same = [model.block_steps_per_s(3, 3.5, 1.0, is_any_ready=any_ready) for any_ready in (False, True)]
    assert same[0] == pytest.approx(same[1], rel=1e-3)
    rates = []
    for any_ready in (False, True):
        draws = random.Random(5)
        rates.append(model.block_steps_per_s(3, lambda d=draws: d.uniform(0, 5), 1.0, is_any_ready=any_ready))
    assert rates[1] > 1.02 * rates[0]


@pytest.mark.parametrize("latency_s", [0.1, 0.5, 1.0, 3.0, 9.0, 30.0])
@pytest.mark.parametrize("handling_s", [0.0, 0.1, 1.0])
def test_a_chosen_ring_is_nearly_the_best_in_the_model(latency_s: float, handling_s: float) -> None:
    """Environments that take 10 in all, split into blocks that take their part of it."""

    def round_s(blocks: int) -> float:
        return blocks / model.block_steps_per_s(blocks, latency_s, 10.0 / blocks + handling_s, num_steps=400)

    times = RingTimes(10.0, handling_s, latency_s)
    chosen, _ = choose_ring([times], 64)
    possible = [blocks for blocks in range(1, MOST_BLOCKS + 1) if 64 % blocks == 0]
    for blocks in possible:
        assert round_s(blocks) == pytest.approx(times.round_s(blocks), rel=0.02)
    assert round_s(chosen) <= 1.02 * NEAR_BEST * min(round_s(blocks) for blocks in possible)
