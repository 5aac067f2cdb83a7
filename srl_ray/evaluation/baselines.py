"""What a policy is compared with: one that knows nothing."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from srl_ray.core.types import ACTION_MASK, ActionSpec, DiscreteActions
from srl_ray.models.policy import ActResult, Evaluation, Tensors, ValueScale


class UniformPolicy:
    """Every legal action is equally likely, deterministic or not; unbounded continuous actions are standard normal."""

    state_size = 0
    value_scale: ValueScale

    def __init__(self, action: ActionSpec) -> None:
        self.action_spec = action

    def initial_state(self, rows: int) -> Tensor:
        return torch.zeros(rows, 0)

    def act(
        self,
        obs: Tensors,
        state: Tensor,
        on_reset: Tensor,
        deterministic: Tensor,
        generator: torch.Generator | None = None,
    ) -> ActResult:
        rows = len(on_reset)
        if isinstance(self.action_spec, DiscreteActions):
            action = self._discrete(self.action_spec.nvec, rows, obs.get(ACTION_MASK), generator)
        else:
            action = self._continuous(self.action_spec.low, self.action_spec.high, rows, generator)
        zeros = torch.zeros(rows)
        return ActResult(action, zeros, zeros, state)

    def evaluate(self, batch: Tensors) -> Evaluation:
        raise NotImplementedError("a uniform policy cannot be trained")

    def update_statistics(self, batch: Tensors) -> None:
        """There are none."""

    @staticmethod
    def _discrete(nvec: tuple[int, ...], rows: int, mask: Tensor | None, generator: torch.Generator | None) -> Tensor:
        legal = torch.ones(rows, sum(nvec)) if mask is None else mask.float()
        parts = torch.split(legal, list(nvec), dim=1)
        return torch.cat([torch.multinomial(part, 1, generator=generator) for part in parts], dim=1)

    @staticmethod
    def _continuous(low: np.ndarray, high: np.ndarray, rows: int, generator: torch.Generator | None) -> Tensor:
        bottom, top = torch.from_numpy(low), torch.from_numpy(high)
        is_bounded = torch.isfinite(bottom) & torch.isfinite(top)
        share = torch.rand(rows, len(low), generator=generator)
        noise = torch.randn(rows, len(low), generator=generator).clamp(bottom, top)
        spread = torch.where(is_bounded, top - bottom, 1.0)
        return torch.where(is_bounded, torch.where(is_bounded, bottom, 0.0) + share * spread, noise)
