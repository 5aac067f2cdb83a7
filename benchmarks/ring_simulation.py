"""An accelerator and environments that take their time without a processor, for measuring how the two overlap.

Both sleep: two cores could not compute a policy and step environments at the same time, so that with real work the ring
would show how the cores are shared rather than what it hides. Sleeping ends up to a millisecond late on a busy machine;
the last 0.2 ms are spun.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from srl_ray.core.types import ActionSpec, AgentGroup, BlockSpec, DiscreteActions, FieldSpec
from srl_ray.envs.block import BlockStep
from srl_ray.models.config import CustomPolicyConfig
from srl_ray.models.policy import ActResult, Tensors
from srl_ray.streams.inference import InferenceClient, InferenceReply, InferenceRequest

_SPUN_S = 0.0002
_MOST_BATCHES = 64
_GLANCE_S = 20e-6


def wait_until(end_s: float) -> None:
    """Return at this time of the monotonic clock."""
    left_s = end_s - time.monotonic() - _SPUN_S
    if left_s > 0:
        time.sleep(left_s)
    while time.monotonic() < end_s:
        pass


class SimulatedAccelerator(torch.nn.Module):
    """A policy whose batches take `latency_s` each, whatever their size, up to 64 of them at the same time.

    Settings (`policy.kwargs`): latency_s; spread: latencies are uniform in latency_s * (1 ± spread).
    """

    state_size = 0

    def __init__(self, obs: Mapping[str, FieldSpec], action_spec: ActionSpec, config: CustomPolicyConfig) -> None:
        super().__init__()
        self.action_spec = action_spec
        self.register_buffer("unused", torch.zeros(1))
        self._latency_s = float(config.kwargs["latency_s"])
        self._spread = float(config.kwargs.get("spread", 0.0))
        self._random = random.Random(0)
        self._units = ThreadPoolExecutor(_MOST_BATCHES, "accelerator")

    def launch(self, obs: Tensors, state: Tensor, *_: Any) -> Future[ActResult]:
        return self._units.submit(self._answer, len(state), self._end_s())

    def act(self, obs: Tensors, state: Tensor, *_: Any) -> ActResult:
        return self._answer(len(state), self._end_s())

    def _end_s(self) -> float:
        return time.monotonic() + self._latency_s * self._random.uniform(1 - self._spread, 1 + self._spread)

    def _answer(self, rows: int, end_s: float) -> ActResult:
        number = torch.zeros(rows)
        result = ActResult(torch.zeros(rows, 1, dtype=torch.int64), number, number, torch.zeros(rows, 0))
        wait_until(end_s)
        return result


class SteadyBlock:
    """Environments whose block step takes `step_s`; episodes never end."""

    def __init__(self, num_envs: int, step_s: float) -> None:
        obs = {"obs": FieldSpec((4,), np.dtype(np.float32))}
        self.spec = BlockSpec("steady", num_envs, AgentGroup("agent", ("agent",), obs, DiscreteActions((2,))))
        self._step_s = step_s
        self._obs = {name: spec.zeros(num_envs, 1) for name, spec in obs.items()}
        no = np.zeros((num_envs, 1), np.bool_)
        self._flags = {"present": ~no, "reward": np.zeros((num_envs, 1), np.float32), "terminated": no, "truncated": no}

    def reset(self, seed: int) -> BlockStep:
        return self._answer(np.ones((self.spec.num_envs, 1), np.bool_))

    def step(self, actions: np.ndarray) -> BlockStep:
        end_s = time.monotonic() + self._step_s
        answer = self._answer(self._flags["terminated"])
        wait_until(end_s)
        return answer

    def _answer(self, on_reset: np.ndarray) -> BlockStep:
        none = {name: spec.zeros(0) for name, spec in self.spec.group.obs.items()}
        return BlockStep(self._obs, on_reset=on_reset, final_lanes=np.zeros(0, np.int64), final_obs=none, **self._flags)

    def close(self) -> None:
        pass


class AnyReady:
    """Lets a worker pass over a block whose answer is not there: the next one whose answer is there is stepped."""

    def __init__(self, client: InferenceClient, ring: int) -> None:
        self.signature = client.signature
        self._client, self._ring, self._passed = client, ring, 0

    def post(self, slot: int, request: InferenceRequest) -> None:
        self._client.post(slot, request)

    def take(self, slot: int, deadline_s: float) -> InferenceReply | None:
        reply = self._client.take(slot, _GLANCE_S)
        if reply is None:
            self._passed += 1
            if self._passed % self._ring == 0:
                time.sleep(_GLANCE_S)
        else:
            self._passed = 0
        return reply

    def install(self, epoch: int, version: int) -> None:
        self._client.install(epoch, version)

    def close(self) -> None:
        self._client.close()
