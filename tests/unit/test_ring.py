"""How many blocks a ring should have, from what was measured."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from srl_ray.actors.config import ActorsConfig
from srl_ray.actors.lanes import LaneTable
from srl_ray.actors.ring import MOST_BLOCKS, RingTimes, choose_ring, measure_block
from srl_ray.config import compose, from_mapping, to_mapping
from srl_ray.core.errors import ConfigError, StreamError
from srl_ray.core.types import ChunkLayout, DiscreteActions
from srl_ray.envs.config import EnvConfig
from srl_ray.envs.factory import make_block
from srl_ray.envs.testing import CountingEnv, Step
from srl_ray.streams.inference import InferenceReply, InferenceRequest, PolicySignature

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("step_s", "handling_s", "inference_s", "ring"),
    [
        (10.0, 0.1, 0.5, 1),  # hardly anything to hide: 10.6 against at best 10.2
        (10.0, 0.1, 3.0, 2),  # 13.1 with one; with two 5.1 + 3 is less than the steps themselves
        (10.0, 0.1, 6.5, 4),  # two leave 11.6 of at best 10.4
        (10.0, 0.1, 100.0, 1),  # splitting 10 of 110 hides nothing
        (0.3, 0.15, 0.4, 2),  # handling four blocks would cost more than it hides
        (0.1, 1.0, 0.3, 1),
    ],
)
def test_smallest_ring_that_nearly_hides_the_inference(
    step_s: float, handling_s: float, inference_s: float, ring: int
) -> None:
    times = RingTimes(step_s, handling_s, inference_s)
    assert choose_ring([times], 64) == (ring, times)


def test_blocks_divide_the_environments() -> None:
    times = RingTimes(10.0, 0.0, 6.5)
    assert choose_ring([times], 15)[0] == 3
    assert choose_ring([times], 7)[0] == 7
    assert choose_ring([times], 17)[0] == 1
    assert choose_ring([RingTimes(10.0, 0.0, 9.9)], 64)[0] == MOST_BLOCKS


def test_one_slow_worker_does_not_decide() -> None:
    usual, slow = RingTimes(10.0, 0.1, 0.5), RingTimes(10.0, 0.1, 6.5)
    assert choose_ring([usual, slow, usual], 64) == (1, usual)


def test_ring_size_is_a_number_or_auto() -> None:
    assert ActorsConfig(ring_size="auto").ring == 1
    assert ActorsConfig(ring_size=3).ring == 3
    with pytest.raises(ValueError, match=r"actors.ring_size must be >= 1, got 0"):
        ActorsConfig(ring_size=0)
    with pytest.raises(ValueError, match=r"actors.ring_size must be a number or auto, got 'many'"):
        ActorsConfig(ring_size="many")
    config = compose(["experiment=cartpole", "layout=remote", "actors.ring_size=auto"])
    assert from_mapping(to_mapping(config)).actors.ring_size == "auto"
    with pytest.raises(ConfigError, match=r"trainers.count must be <= actors.count \* actors.ring_size, got 2 > 1"):
        compose(["experiment=cartpole", "actors.ring_size=auto", "trainers.count=2"])


class SlowInference:
    """Answers zeros after a while."""

    signature = PolicySignature(DiscreteActions((2,)).field, 0)

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s

    def post(self, slot: int, request: InferenceRequest) -> None:
        self._rows = request.num_rows

    def take(self, slot: int, deadline_s: float) -> InferenceReply | None:
        time.sleep(min(self._latency_s, deadline_s))
        if self._latency_s > deadline_s:
            return None
        number = np.zeros(self._rows, np.float32)
        return InferenceReply(np.zeros((self._rows, 1), np.int64), number, number, np.zeros((self._rows, 0)), 0)

    def install(self, epoch: int, version: int) -> None: ...

    def close(self) -> None: ...


class SlowEnv(CountingEnv):
    def step(self, action: Any) -> Step:
        time.sleep(0.002)
        return super().step(action)


def test_a_block_is_measured_across_the_ends_of_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("srl_ray.actors.ring._MEASURED_S", 0.2)
    block = make_block(EnvConfig(factory=SlowEnv, envs_per_block=2, kwargs={"length": 3}))
    lanes = LaneTable(block.spec, ChunkLayout(0, 4, 1, 4), SlowInference.signature.action, 0)
    times = measure_block(block, lanes, SlowInference(0.01), 1, 1.0)
    assert 0.004 <= times.step_s < 0.05
    assert 0.01 <= times.inference_s < 0.1
    assert 0 < times.handling_s < times.step_s
    with pytest.raises(StreamError, match=r"no policy worker answered within 0.01 s"):
        measure_block(block, lanes, SlowInference(1.0), 1, 0.01)
