"""The algorithm contract: turns a sample batch into an update of the policy's weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from srl_ray.models.policy import Policy


@dataclass
class Collective:
    """The two sums a distributed trainer needs; nothing is summed in one process.

    Attributes:
        reduce_sum: Adds a tensor over all trainer workers, in place, and returns it. Every rank must call it the same
            number of times, so algorithms never skip it for lack of data.
        backward: Computes the gradients of a loss, and replaces those of the module's parameters by their means over
            trainer workers; what was accumulated before (of microbatches) counts in.
        world_size: Number of trainer workers.
    """

    reduce_sum: Callable[[Tensor], Tensor] = lambda tensor: tensor
    backward: Callable[[Tensor, nn.Module], None] = lambda loss, module: loss.backward()  # type: ignore[no-untyped-call]
    world_size: int = 1


class Algorithm(Protocol):
    """Owns the optimiser. `policy` is a torch module that satisfies `Policy`.

    A sample batch is a dict of torch tensors on the policy's device, T = layout.rows:
        obs.<field> [T, B, ...] · action [T, B, k] · log_prob, value, reward float32 [T, B] · on_reset, terminated,
        truncated, valid bool [T, B] · policy_version int64 [T, B] (−1: never answered) · state float32 [K, B, S]
        (K = sample_steps / bptt_steps, plus one in front for row 0 when there is burn-in).
    An algorithm with the attribute `takes_frames` = True gets stacks of frames as frames.<field> and stack.<field> (see
    `core.types.FrameStack`), a fraction of their size, and rebuilds the rows that it needs (`algorithms.frame_stacks`).
    Loss mask: valid & ~(terminated | truncated) over rows [burn_in, burn_in + sample_steps).
    """

    policy: Policy

    def update(self, batch: dict[str, Tensor], progress: float) -> dict[str, float]:
        """One update (policy version + 1).

        Args:
            batch: As above.
            progress: Fraction of stop.env_steps done, in [0, 1]; schedules read it.

        Returns:
            Metrics by name; plain floats.

        Raises:
            NonFiniteError: a loss or gradient is not finite; the weights were left untouched.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Optimiser and schedules: nested dicts of tensors and plain numbers."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def explained_variance(targets: np.ndarray, values: np.ndarray) -> float:
    """1 − Var(targets − values) / Var(targets); 0 when the targets do not vary."""
    variance = float(np.var(targets))
    return 0.0 if variance < 1e-12 else 1.0 - float(np.var(targets - values)) / variance
