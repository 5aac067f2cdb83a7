"""Heads: from features to actions. One class per kind of action space, chosen by `make_action_head`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from srl_ray.core.errors import ConfigError
from srl_ray.core.types import ACTION_MASK, ActionSpec, ContinuousActions, DiscreteActions, FieldSpec
from srl_ray.models.distributions import DiagonalGaussian, MultiCategorical
from srl_ray.models.layers import orthogonal

POLICY_GAIN = 0.01
"""Gain of a policy head's weights: the first policy is close to uniform (Andrychowicz et al. 2021)."""


class ActionHead(Protocol):
    """Features float32 [..., F] → outputs [..., O] → actions [..., k]; `legal` is the field `action_mask` or None."""

    def outputs(self, features: Tensor) -> Tensor:
        """Logits or means: what the distribution is made of."""
        ...

    def sample(
        self, outputs: Tensor, legal: Tensor | None, deterministic: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Actions [n, k] and log-probabilities float32 [n]."""
        ...

    def log_prob_entropy(self, outputs: Tensor, legal: Tensor | None, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies float32 [...] of given actions."""
        ...


class CategoricalHead(nn.Module):
    """Logits of one or several discrete choices."""

    def __init__(self, in_size: int, nvec: tuple[int, ...]) -> None:
        super().__init__()
        self.distribution = MultiCategorical(nvec)
        self.logits = orthogonal(nn.Linear(in_size, sum(nvec)), POLICY_GAIN)

    def outputs(self, features: Tensor) -> Tensor:
        logits: Tensor = self.logits(features)
        return logits

    def sample(
        self, outputs: Tensor, legal: Tensor | None, deterministic: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        if legal is not None:
            outputs = self.distribution.mask(outputs, legal.bool())
        return self.distribution.sample(outputs, deterministic, generator)

    def log_prob_entropy(self, outputs: Tensor, legal: Tensor | None, action: Tensor) -> tuple[Tensor, Tensor]:
        if legal is not None:
            outputs = self.distribution.mask_where_any(outputs, legal.bool())
        return self.distribution.log_prob_entropy(outputs, action)


class GaussianHead(nn.Module):
    """Means from the features, one learned log standard deviation per component."""

    def __init__(self, in_size: int, size: int, *, init_log_std: float) -> None:
        super().__init__()
        self.distribution = DiagonalGaussian()
        self.mean = orthogonal(nn.Linear(in_size, size), POLICY_GAIN)
        self.log_std = nn.Parameter(torch.full((size,), init_log_std))

    def outputs(self, features: Tensor) -> Tensor:
        mean: Tensor = self.mean(features)
        return mean

    def sample(
        self, outputs: Tensor, legal: Tensor | None, deterministic: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        return self.distribution.sample(outputs, self.log_std, deterministic, generator)

    def log_prob_entropy(self, outputs: Tensor, legal: Tensor | None, action: Tensor) -> tuple[Tensor, Tensor]:
        return self.distribution.log_prob_entropy(outputs, self.log_std, action)


def make_action_head(in_size: int, action: ActionSpec, *, init_log_std: float) -> CategoricalHead | GaussianHead:
    """The head that fits an action spec."""
    match action:
        case DiscreteActions():
            return CategoricalHead(in_size, action.nvec)
        case ContinuousActions():
            return GaussianHead(in_size, action.field.size, init_log_std=init_log_std)


def check_action_mask(obs: Mapping[str, FieldSpec], action: ActionSpec) -> bool:
    """Whether observations carry legal-action masks.

    Raises:
        ConfigError: the field does not fit the action spec.
    """
    spec = obs.get(ACTION_MASK)
    if spec is None:
        return False
    if not isinstance(action, DiscreteActions):
        raise ConfigError(
            f"observation field {ACTION_MASK!r} goes with discrete actions, but the actions are continuous; rename the "
            "field in the environment."
        )
    expected = (sum(action.nvec),)
    if spec.shape != expected:
        raise ConfigError(
            f"observation field {ACTION_MASK!r} has shape {spec.shape}, expected {expected}: the masks of the "
            f"components {action.nvec} one after the other."
        )
    return True
