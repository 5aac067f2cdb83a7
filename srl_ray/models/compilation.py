"""The networks of a policy without Python between the kernels: torch.compile, and CUDA graphs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from srl_ray.core.types import FieldSpec
from srl_ray.models.policy import Policy, Tensors
from srl_ray.models.recurrent import RecurrentCore
from srl_ray.models.tower import TowerPolicy

_LOG = logging.getLogger(__name__)
_CALLS_BEFORE_CAPTURE = 3

StepOutputs = tuple[Tensor, ...]
Step = Callable[[Tensors, Tensor, Tensor], StepOutputs]
"""`TowerPolicy.step`: (observations, states, on_reset) → (outputs, values, states), one row each."""


def compile_inference(policy: Policy, obs: Mapping[str, FieldSpec], *, backend: str = "inductor") -> None:
    """Have torch compile what `act` asks of the networks. Blocks until that is done: up to a minute.

    Args:
        obs: Observation field → spec of one row.
    """
    if not isinstance(policy, TowerPolicy):
        _LOG.warning("policy.compile: %s has no `step` to compile for inference", type(policy).__name__)
        return
    _replace(policy, "step", Compiled(policy.step, backend=backend))
    for rows in (2, 1):  # torch makes a program for one row and another for all other numbers
        device = policy.value_head.weight.device
        given = {name: torch.from_numpy(spec.zeros(rows)).to(device) for name, spec in obs.items()}
        on_reset = torch.zeros(rows, dtype=torch.bool, device=device)
        state = policy.initial_state(rows)
        with torch.inference_mode():
            policy.step(given, state, on_reset)


def graph_inference(policy: Policy) -> None:
    """Have CUDA graphs do what `act` asks of the networks; they are captured when they are first needed."""
    if not isinstance(policy, TowerPolicy):
        _LOG.warning("policy.cuda_graphs: %s has no `step` to capture", type(policy).__name__)
        return
    _replace(policy, "step", GraphedStep(policy.step))


def compile_training(policy: Policy, *, backend: str = "inductor") -> None:
    """Have torch compile `evaluate` and its backward pass at the first call.

    Recurrent cores stay as they are: their loops depend on where episodes end.
    """
    for part in cast(nn.Module, policy).modules():
        if isinstance(part, RecurrentCore):
            for loop in ("unroll", "last_state"):
                _replace(part, loop, torch.compiler.disable(getattr(part, loop)))
    _replace(policy, "evaluate", Compiled(policy.evaluate, backend=backend))


def _replace(owner: object, method: str, function: Callable[..., Any]) -> None:
    """For this object alone."""
    setattr(owner, method, function)


class Compiled:
    """A function compiled by torch at its first call, for any number of rows; where that fails, as it was.

    Compiles in this process, which may be killed at any time and must not leave helpers behind.
    """

    def __init__(self, function: Callable[..., Any], *, backend: str = "inductor") -> None:
        import torch._inductor.config

        torch._inductor.config.compile_threads = 1
        self._function = function
        self._compiled: Callable[..., Any] | None = torch.compile(function, dynamic=True, backend=backend)

    def __call__(self, *args: Any) -> Any:
        if self._compiled is not None:
            from torch._dynamo.exc import TorchDynamoException

            try:
                return self._compiled(*args)
            except TorchDynamoException as error:
                self._compiled = None
                _LOG.warning("policy.compile: going on without, because %s", str(error).strip().partition("\n")[0])
        return self._function(*args)


# -- CUDA graphs -------------------------------------------------------------------------------------------------------


@dataclass
class Replay:
    """A captured call: what `replay` reads and writes."""

    inputs: list[Tensor]
    outputs: StepOutputs
    replay: Callable[[], None]


Capture = Callable[[Callable[[], StepOutputs]], tuple[StepOutputs, Callable[[], None]]]
"""Runs a call once and returns its outputs and how to run it again into the same memory."""


class GraphedStep:
    """A `TowerPolicy.step` that is captured once per power of two of rows and replayed: one launch for all kernels.

    Rows are copied into the inputs of the next larger capture; the rest of its rows hold whatever was there, which is
    computed in vain. Outputs are valid until the next call. One thread, in inference mode.
    """

    def __init__(self, step: Step, capture: Capture | None = None) -> None:
        """Args:
        capture: By default, CUDA's.
        """
        self._step = step
        self._capture = capture or CudaCapture()
        self._replays: dict[int, Replay] = {}

    def __call__(self, obs: Tensors, state: Tensor, on_reset: Tensor) -> StepOutputs:
        rows = len(on_reset)
        given = [*obs.values(), state, on_reset]
        replay = self._replays.get(padded_rows(rows))
        if replay is None:
            replay = self._replays[padded_rows(rows)] = self._make(list(obs), given, padded_rows(rows))
        for target, source in zip(replay.inputs, given, strict=True):
            target[:rows].copy_(source, non_blocking=True)
        replay.replay()
        return tuple(output[:rows] for output in replay.outputs)

    def _make(self, names: list[str], given: list[Tensor], rows: int) -> Replay:
        inputs = [tensor.new_zeros(rows, *tensor.shape[1:]) for tensor in given]
        *fields, state, on_reset = inputs
        obs = dict(zip(names, fields, strict=True))
        outputs, replay = self._capture(lambda: self._step(obs, state, on_reset))
        return Replay(inputs, outputs, replay)


class CudaCapture:
    """Captures calls as CUDA graphs that share their working memory, since they never run at the same time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, call: Callable[[], StepOutputs]) -> tuple[StepOutputs, Callable[[], None]]:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # libraries choose their kernels and allocate during the first calls
            for _ in range(_CALLS_BEFORE_CAPTURE):
                call()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Another thread may wait for a batch that is in flight: only this thread's calls belong to the capture.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outputs = call()
        return outputs, graph.replay


def padded_rows(rows: int) -> int:
    """The next power of two."""
    return 1 << max(rows - 1, 0).bit_length()
