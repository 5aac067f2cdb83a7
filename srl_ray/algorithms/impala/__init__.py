"""IMPALA (README.md beside this file)."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from srl_ray.algorithms.config import IMPALAConfig
from srl_ray.algorithms.on_policy.losses import value_error
from srl_ray.algorithms.on_policy.update import LossFunction, RowLosses
from srl_ray.models.policy import Evaluation, Tensors


def impala_losses(config: IMPALAConfig) -> LossFunction:
    """−ρ̄·A·log π(a) (Espeholt et al. 2018, section 4.2) and the critic's error."""
    return partial(_losses, config)


def _losses(config: IMPALAConfig, evaluation: Evaluation, log_ratio: Tensor, minibatch: Tensors) -> RowLosses:
    rho = log_ratio.detach().exp()
    log_prob = evaluation.log_prob.masked_fill(~minibatch["mask"], 0.0)
    policy_loss = -rho.clamp(max=config.rho_clip) * minibatch["advantage"] * log_prob
    value_loss = value_error(evaluation.value, minibatch["target"], kind=config.value_loss, delta=config.huber_delta)
    return RowLosses(policy_loss, value_loss, (rho > config.rho_clip).float())
