"""Several batches in flight, on a device that works by itself: one is launched before the last was copied back."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from srl_ray.models.policy import ActResult, Policy, Tensors
from srl_ray.streams.inference import InferenceReply
from srl_ray.streams.inline import reply_of_result


@runtime_checkable
class LaunchingPolicy(Protocol):
    """A policy on a device of its own that does not block its caller."""

    def launch(
        self,
        obs: Tensors,
        state: Tensor,
        on_reset: Tensor,
        deterministic: Tensor,
        generator: torch.Generator | None = None,
    ) -> Future[ActResult]:
        """`Policy.act` later. The tensors stay as they are until the result is there; the weights may change as soon
        as this returns."""
        ...


Launch = Callable[..., Future[InferenceReply]]
"""(obs, state, on_reset, deterministic, generator, stamp=…) → the answer; see `act_on_tensors` for the arguments."""


def make_launch(policy: Policy, device: torch.device | None) -> Launch | None:
    """How to have several batches of this policy in flight; None: it computes in the caller's thread."""
    if isinstance(policy, LaunchingPolicy):
        return _on_its_own(policy)
    if device is not None and device.type == "cuda":
        return _on_cuda(policy)
    return None


def _on_its_own(policy: LaunchingPolicy) -> Launch:
    def launch(*question: Any, stamp: tuple[int, int]) -> Future[InferenceReply]:
        answer: Future[InferenceReply] = Future()

        def finish(done: Future[ActResult]) -> None:
            try:
                answer.set_result(reply_of_result(done.result(), stamp))
            except BaseException as error:  # whatever it is, it belongs to whoever waits for the answer
                answer.set_exception(error)

        policy.launch(*question).add_done_callback(finish)
        return answer

    return launch


def _on_cuda(policy: Policy) -> Launch:
    """Kernels and copies are queued on the current stream; a thread that sleeps meanwhile says when they are through.

    The weights of a batch are those at its launch, because they are replaced on the same stream.
    """
    waiter = ThreadPoolExecutor(1, "device")

    def launch(*question: Any, stamp: tuple[int, int]) -> Future[InferenceReply]:
        with torch.inference_mode():
            found = policy.act(*question)
            parts = (found.action, found.log_prob, found.value, found.state)
            copied = ActResult(*(part.to("cpu", non_blocking=True) for part in parts))  # into page-locked memory
        through = torch.cuda.Event(blocking=True)
        through.record()

        def finish() -> InferenceReply:
            through.synchronize()
            return reply_of_result(copied, stamp)

        return waiter.submit(finish)

    return launch
