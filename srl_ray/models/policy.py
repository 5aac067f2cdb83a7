"""The policy contract: what actor workers, policy workers and algorithms ask of a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from srl_ray.core.types import ActionSpec

Tensors = dict[str, Tensor]


@dataclass
class ActResult:
    """Answer to n rows.

    Attributes:
        action: [n, k], int64 or float32.
        log_prob: float32 [n], summed over components.
        value: float32 [n], in units of the reward (denormalised).
        state: float32 [n, S], the recurrent state after the row.
    """

    action: Tensor
    log_prob: Tensor
    value: Tensor
    state: Tensor


@dataclass
class Evaluation:
    """The network's view of the trained rows of a sample batch, with gradients.

    Attributes:
        log_prob: float32 [T', B] of the stored actions under the current weights.
        entropy: float32 [T', B].
        value: float32 [T', B], in the value head's own (normalised) units.
    """

    log_prob: Tensor
    entropy: Tensor
    value: Tensor


class ValueScale(Protocol):
    """Translates between rewards' units and the value head's units (identity without normalisation)."""

    def update(self, targets: Tensor, mask: Tensor) -> None: ...
    def normalize(self, value: Tensor) -> Tensor: ...
    def denormalize(self, value: Tensor) -> Tensor: ...


class Policy(Protocol):
    """A torch module with these members. All of its state is in `state_dict()`, statistics included.

    Sample batch given to `evaluate` and `update_statistics` (torch tensors; T' = sample_steps rows that are trained):
        obs.<field> [T', B, ...] (prefix "obs." on every observation field) · action [T', B, k] · on_reset bool [T', B]
        · state [K, B, S] recurrent state before row i * bptt_steps of segment i (K = T' / bptt_steps) · mask bool
        [T', B], 1 on rows that count. With burn-in: also burn_in.obs.<field>, burn_in.on_reset [U, B, ...],
        burn_in.valid bool [U, B] and burn_in.state [B, S]; the state before the first trained row is then recomputed
        without gradient, but for chunks that begin without such rows (not valid), whose own state counts.
    Algorithms also pass a shuffled choice: segments as if they were chunks (K = 1; a segment always has T' / K rows),
    single rows if S = 0 (T' = 1), or none at all (B = 0).

    A policy may also have `array_actor`: an object whose `act(obs, deterministic, generator)` takes and returns numpy
    arrays (action, log_prob, value), or None where it cannot help. Inference on a CPU then asks it instead.
    """

    action_spec: ActionSpec
    state_size: int
    value_scale: ValueScale

    def initial_state(self, rows: int) -> Tensor:
        """float32 [rows, S]: the state of an episode's first row."""
        ...

    def act(
        self,
        obs: Tensors,
        state: Tensor,
        on_reset: Tensor,
        deterministic: Tensor,
        generator: torch.Generator | None = None,
    ) -> ActResult:
        """Decide on n rows without gradients.

        Args:
            obs: Field → [n, ...] in the environment's dtypes (no "obs." prefix).
            state: float32 [n, S]; replaced by the initial state where `on_reset`.
            on_reset: bool [n].
            deterministic: bool [n]; the mode of the distribution instead of a sample.
            generator: Source of the sampling noise.
        """
        ...

    def evaluate(self, batch: Tensors) -> Evaluation: ...

    def update_statistics(self, batch: Tensors) -> None:
        """Feed the observation normaliser with the batch's masked rows; once per update, after its last `evaluate`.

        Then log-probabilities are always compared under the statistics that the stored ones were made with.
        """
        ...
