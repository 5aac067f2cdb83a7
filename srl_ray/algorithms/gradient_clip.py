"""Bounds for gradients: of the whole, of every unit, and of what is unusual. All without waiting for the device."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

HEADS = ("action_head.", "value_head.")
"""Final layers, which adaptive clipping leaves alone."""
_SMALLEST_UNIT = 1e-3
_USUAL_BETA = 0.98
_WARM_UP_STEPS = 20


@torch.no_grad()
def clip_units(parameters: Mapping[str, nn.Parameter], clip: float) -> None:
    """Adaptive gradient clipping (Brock et al. 2021, eq. 3): the gradient of a unit, a row of a weight matrix or a
    filter, is at most `clip` times as long as its weights, or as 10⁻³ if they are shorter.

    Vectors (biases, gains) are one unit. Final layers are left alone, as in the paper: they begin near 0 here.

    Args:
        parameters: Name → parameter with its gradient.
        clip: Largest ratio of the two norms; 0.01 in the paper for large batches.
    """
    for name, parameter in parameters.items():
        gradient = parameter.grad
        if gradient is not None and not name.startswith(HEADS):
            largest = _unit_norms(parameter).clamp_(min=_SMALLEST_UNIT).mul_(clip)
            gradient.mul_((largest / _unit_norms(gradient).clamp_(min=1e-6)).clamp_(max=1.0))


def _unit_norms(x: Tensor) -> Tensor:
    """Norms that broadcast against x: over all axes but the first, or of all of a vector."""
    axes = tuple(range(1, x.dim())) if x.dim() > 1 else tuple(range(x.dim()))
    return torch.linalg.vector_norm(x, dim=axes, keepdim=True)


class OutlierGuard(nn.Module):
    """Scales gradients down whose norm is unusual: more than `factor` times the running mean of the norms.

    The mean is exponential (β = 0.98) and takes in the norms after scaling, so that an outlier cannot lift it by more
    than a usual norm could; the first 20 steps only fill it. In the manner of ZClip (Kumar et al. 2025), with a ratio
    in place of a z-score: norms of policy gradients vary by factors.
    """

    mean: Tensor
    steps: Tensor
    outliers: Tensor

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        for name in ("mean", "steps", "outliers"):
            self.register_buffer(name, torch.zeros(()))

    @torch.no_grad()
    def scale(self, norm: Tensor) -> Tensor:
        """The factor (≤ 1) for a gradient of this norm, which is taken into account."""
        usual = self.mean / (1.0 - _USUAL_BETA**self.steps).clamp(min=1e-12)
        limit = torch.where(self.steps < _WARM_UP_STEPS, torch.inf, self.factor * usual)
        is_outlier = norm > limit
        self.outliers.add_(is_outlier)
        self.mean.lerp_(torch.minimum(norm, limit), 1.0 - _USUAL_BETA)
        self.steps.add_(1.0)
        return torch.where(is_outlier, limit / norm, 1.0)

    def take_outliers(self) -> Tensor:
        """How many there were since the last call."""
        count = self.outliers.clone()
        self.outliers.zero_()
        return count
