"""Inline inference: the actor worker holds a copy of the policy and answers itself, batched over its ready blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from srl_ray.core.seeding import derive_seed
from srl_ray.models.policy import ActResult, Policy
from srl_ray.param_server.client import ParameterClient
from srl_ray.param_server.weights import install
from srl_ray.streams.inference import InferenceReply, InferenceRequest, PolicySignature

CPU = torch.device("cpu")


@dataclass
class NoiseKey:
    """Sampling noise comes from a generator seeded anew for every answer by (seed, worker, slot, sequence)."""

    seed: int
    worker: int


class InlineInference:
    """Answers in `take`, all posted slots in one batch (one by one in deterministic mode). One thread."""

    def __init__(
        self,
        policy: Policy,
        parameters: ParameterClient | None,
        noise: NoiseKey,
        *,
        joint: bool = True,
        weights_timeout_s: float = 60.0,
        device: torch.device | None = None,
    ) -> None:
        """Args:
        policy: This process's own copy, in evaluation mode.
        parameters: Where newer weights come from; None: the policy stays as it is.
        joint: Join the posted slots into one batch.
        device: Where the policy lives; None: the CPU.
        """
        self.policy = policy
        self.signature = PolicySignature(policy.action_spec.field, policy.state_size)
        self._parameters = parameters
        self._noise = noise
        self._joint = joint
        self._weights_timeout_s = weights_timeout_s
        self._posted: dict[int, InferenceRequest] = {}
        self._answered: dict[int, InferenceReply] = {}
        self._sequence: dict[int, int] = {}
        self._device = device or CPU
        self._generator = torch.Generator(self._device)
        self.stamp = (-1, -1)

    def install(self, epoch: int, version: int) -> None:
        """Fetch and load weights at least this new, if those at hand are older.

        Raises:
            StreamError: they did not come within weights_timeout_s.
        """
        if self._parameters is None or self.stamp >= (epoch, version):
            return
        wanted = (epoch, version - 1)
        weights = self._parameters.fetch_newer(max(wanted, self.stamp), deadline_s=self._weights_timeout_s)
        if weights is not None:
            install(self.policy, weights.flat)  # type: ignore[arg-type]
            self.stamp = weights.stamp

    def post(self, slot: int, request: InferenceRequest) -> None:
        self._answered.pop(slot, None)
        self._posted[slot] = request

    def take(self, slot: int, deadline_s: float) -> InferenceReply | None:
        if slot not in self._answered:
            slots = list(self._posted) if self._joint else [slot]
            self._answer(slots, [self._posted.pop(s) for s in slots])
        return self._answered.pop(slot)

    def _answer(self, slots: list[int], requests: list[InferenceRequest]) -> None:
        first = slots[0]
        self._sequence[first] = self._sequence.get(first, 0) + 1
        self._generator.manual_seed(
            derive_seed(self._noise.seed, "noise", self._noise.worker, first, self._sequence[first])
        )
        reply = act(self.policy, requests, self._generator, self.stamp, self._device)
        if len(slots) == 1:
            self._answered[first] = reply
            return
        offset = 0
        for slot, request in zip(slots, requests):
            rows = slice(offset, offset + request.num_rows)
            offset = rows.stop
            self._answered[slot] = reply.rows(rows)

    def close(self) -> None:
        self._posted.clear()
        self._answered.clear()


def act(
    policy: Policy,
    requests: list[InferenceRequest],
    generator: torch.Generator | None,
    stamp: tuple[int, int],
    device: torch.device = CPU,
) -> InferenceReply:
    """Answer several requests in one batch, on the device where the policy lives."""
    joined = requests[0] if len(requests) == 1 else _join(requests)
    if joined.num_rows and (array_actor := getattr(policy, "array_actor", None)) is not None:
        action, log_prob, value = array_actor.act(joined.obs, joined.deterministic, generator)
        return InferenceReply(action, log_prob, value, joined.state, stamp[1], stamp[0])
    if any(request.device_obs for request in requests):
        obs = _gather(requests, device)
    else:
        obs = {name: _tensor(array, device) for name, array in joined.obs.items()}
    state, on_reset, deterministic = (_tensor(x, device) for x in (joined.state, joined.on_reset, joined.deterministic))
    return act_on_tensors(policy, obs, state, on_reset, deterministic, generator, stamp)


def _tensor(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """The array on the device; on the CPU without a copy, also of one that must not be written to."""
    try:
        tensor = torch.from_numpy(array) if array.flags.writeable else torch.from_dlpack(array)
    except BufferError:  # numpy before 2.1 hands out no read-only array
        tensor = torch.from_numpy(array.copy())
    return tensor if device == CPU else tensor.to(device, non_blocking=True)


def _gather(requests: list[InferenceRequest], device: torch.device) -> dict[str, torch.Tensor]:
    """Observations of all requests on the device; those that a simulation left there are not moved."""
    obs = {}
    for name in requests[0].obs:
        parts = []
        for request in requests:
            there = [] if request.device_obs is None else [torch.from_dlpack(request.device_obs[name]).to(device)]
            host = request.obs[name][sum(map(len, there)) :]
            parts += [*there, _tensor(host, device)] if len(host) else there
        obs[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
    return obs


def act_on_tensors(
    policy: Policy,
    obs: dict[str, torch.Tensor],
    state: torch.Tensor,
    on_reset: torch.Tensor,
    deterministic: torch.Tensor,
    generator: torch.Generator | None,
    stamp: tuple[int, int],
) -> InferenceReply:
    """Answer n rows, given where the policy lives; n may be 0.

    Args:
        stamp: (epoch, version) of the policy's weights.
    """
    if not len(on_reset):
        empty = np.zeros(0, np.float32)
        no_state = np.zeros((0, policy.state_size), np.float32)
        return InferenceReply(policy.action_spec.field.zeros(0), empty, empty, no_state, stamp[1], stamp[0])
    if (array_actor := getattr(policy, "array_actor", None)) is not None:
        arrays = {name: field.numpy() for name, field in obs.items()}
        decided: tuple[np.ndarray, np.ndarray, np.ndarray] = array_actor.act(arrays, deterministic.numpy(), generator)
        return InferenceReply(*decided, state.numpy(), stamp[1], stamp[0])
    with torch.inference_mode():
        return reply_of_result(policy.act(obs, state, on_reset, deterministic, generator), stamp)


def reply_of_result(result: ActResult, stamp: tuple[int, int]) -> InferenceReply:
    """The answer as arrays; waits for a device that has not finished it."""
    action, log_prob, value, state = (
        part.cpu().numpy() for part in (result.action, result.log_prob, result.value, result.state)
    )
    return InferenceReply(action, log_prob, value, state, stamp[1], stamp[0])


def _join(requests: list[InferenceRequest]) -> InferenceRequest:
    return InferenceRequest(
        {name: np.concatenate([r.obs[name] for r in requests]) for name in requests[0].obs},
        np.concatenate([r.state for r in requests]),
        np.concatenate([r.on_reset for r in requests]),
        np.concatenate([r.deterministic for r in requests]),
    )
