"""Running statistics: observations and value targets in units of their mean and standard deviation.

The statistics are debiased exponential moving averages of mean and second moment (Baker et al. 2019, appendix B;
decay per update, not per row), kept as mean and variance in the incremental form that does not cancel:

    w ← β·w + (1 − β),   a = (1 − β) / w,   d = m_batch − m,
    m ← m + a·d,         v ← (1 − a)·v + a·v_batch + a·(1 − a)·d²

While 1/(1 − β) is longer than the run this is the plain average over all updates so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from srl_ray.models.policy import ValueScale

OBS_BETA = 0.9999
VALUE_BETA = 0.99
"""Value targets move with the policy, so they are forgotten sooner than observations."""

VARIANCE_FLOOR = 1e-2


def _identity(tensor: Tensor) -> Tensor:
    return tensor


class RunningMoments(nn.Module):
    """Mean and variance per feature; all of it in buffers, float64, with float32 copies for use.

    `reduce_sum` adds a tensor over all trainer workers in place; the algorithm installs its collective there, so that
    every trainer worker keeps the same statistics. It is called twice per `update`.
    """

    mean: Tensor
    variance: Tensor
    weight: Tensor
    offset: Tensor
    scale: Tensor

    def __init__(self, size: int, *, beta: float, variance_floor: float = VARIANCE_FLOOR) -> None:
        super().__init__()
        self.beta = beta
        self.variance_floor = variance_floor
        self.reduce_sum: Callable[[Tensor], Tensor] = _identity
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(size, dtype=torch.float64))
        self.register_buffer("weight", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("offset", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "reduce_sum": _identity}

    @torch.no_grad()
    def update(self, parts: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Take in one batch.

        Args:
            parts: Pairs of values [N_i, F_i] and mask bool [N_i]; the F_i add up to all features, in order. Features
                without a masked row on any trainer worker keep their statistics.
        """
        selected = [values[mask].double() for values, mask in parts]
        counts = [values.new_full((values.shape[1],), float(values.shape[0])) for values in selected]
        count, total = self.reduce_sum(torch.stack([torch.cat(counts), torch.cat([v.sum(0) for v in selected])]))
        batch_mean = total / count.clamp_min(1.0)
        means = batch_mean.split([values.shape[1] for values in selected])
        squares = [(values - mean).square_().sum(0) for values, mean in zip(selected, means, strict=True)]
        batch_variance = self.reduce_sum(torch.cat(squares)) / count.clamp_min(1.0)

        has_rows = count > 0
        weight = torch.where(has_rows, self.beta * self.weight + (1.0 - self.beta), self.weight)
        a = torch.where(has_rows, (1.0 - self.beta) / weight.clamp_min(1e-300), 0.0)
        delta = batch_mean - self.mean
        self.weight.copy_(weight)
        self.variance.copy_((1.0 - a) * self.variance + a * batch_variance + a * (1.0 - a) * delta.square())
        self.mean.add_(a * delta)
        self.offset.copy_(self.mean)
        self.scale.copy_(self.variance.clamp_min(self.variance_floor).rsqrt())


class ObservationNormalizer(nn.Module):
    """(x − mean) / std, clipped; the identity (clipped) before the first update.

    Args:
        sizes: Features of each part, for observations kept in several tensors.
        clip: Bound of the result.
    """

    def __init__(self, sizes: Sequence[int], *, clip: float, beta: float = OBS_BETA) -> None:
        super().__init__()
        self.sizes = list(sizes)
        self.clip = clip
        self.moments = RunningMoments(sum(self.sizes), beta=beta)

    def forward(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Parts float32 [..., F_i] → the same shapes."""
        offsets, scales = self.moments.offset.split(self.sizes), self.moments.scale.split(self.sizes)
        return [
            ((part - offset) * scale).clamp_(-self.clip, self.clip)
            for part, offset, scale in zip(parts, offsets, scales, strict=True)
        ]

    def update(self, parts: Sequence[tuple[Tensor, Tensor]]) -> None:
        """See `RunningMoments.update`."""
        self.moments.update(parts)


class IdentityValueScale(nn.Module):
    """The value head speaks in the rewards' own units."""

    def update(self, targets: Tensor, mask: Tensor) -> None:
        """Nothing to keep."""

    def normalize(self, value: Tensor) -> Tensor:
        return value

    def denormalize(self, value: Tensor) -> Tensor:
        return value


class RunningValueScale(nn.Module):
    """The value head speaks in units of the running mean and standard deviation of its targets.

    This is the normaliser of PopArt (van Hasselt et al. 2016) without the rescaling of the last layer.
    """

    def __init__(self, *, beta: float = VALUE_BETA) -> None:
        super().__init__()
        self.moments = RunningMoments(1, beta=beta)

    def update(self, targets: Tensor, mask: Tensor) -> None:
        """Targets float [...] in the rewards' units, mask bool [...]."""
        self.moments.update([(targets.reshape(-1, 1), mask.reshape(-1))])

    def normalize(self, value: Tensor) -> Tensor:
        return (value - self.moments.offset) * self.moments.scale

    def denormalize(self, value: Tensor) -> Tensor:
        return value / self.moments.scale + self.moments.offset


def make_value_scale(normalize_value: bool, *, beta: float = VALUE_BETA) -> ValueScale:
    return RunningValueScale(beta=beta) if normalize_value else IdentityValueScale()
