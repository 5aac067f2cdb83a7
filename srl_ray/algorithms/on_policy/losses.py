"""Losses per row; all tensors float32 of equal shape."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def surrogate_loss(ratio: Tensor, advantage: Tensor, *, clip_eps: float, dual_clip: float | None) -> Tensor:
    """−min(r·A, clip(r, 1 ± ε)·A) (Schulman et al. 2017, eq. 7); with dual_clip c, at least c·A where A < 0 (Ye et al.
    2020, eq. 5)."""
    objective = torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip_eps, 1.0 + clip_eps) * advantage)
    if dual_clip is not None:
        objective = torch.where(advantage < 0, torch.maximum(objective, dual_clip * advantage), objective)
    return -objective


def value_error(value: Tensor, target: Tensor, *, kind: str, delta: float) -> Tensor:
    """mse: (V − R)². huber: ½(V − R)², linear beyond δ. smooth_l1: huber divided by δ."""
    match kind:
        case "mse":
            return F.mse_loss(value, target, reduction="none")
        case "huber":
            return F.huber_loss(value, target, reduction="none", delta=delta)
        case "smooth_l1":
            return F.smooth_l1_loss(value, target, reduction="none", beta=delta)
        case _:
            raise AssertionError(kind)


def clipped_value_error(
    value: Tensor, old_value: Tensor, target: Tensor, *, clip_eps: float, kind: str, delta: float
) -> Tensor:
    """max(ℓ(V, R), ℓ(V_old + clip(V − V_old, ±ε), R)): no credit for moving the value by more than ε."""
    clipped = old_value + (value - old_value).clamp(-clip_eps, clip_eps)
    return torch.maximum(
        value_error(value, target, kind=kind, delta=delta), value_error(clipped, target, kind=kind, delta=delta)
    )
