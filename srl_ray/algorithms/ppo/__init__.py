"""Proximal policy optimisation (README.md beside this file), also as MAPPO and APPO."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from srl_ray.algorithms.config import PPOConfig
from srl_ray.algorithms.on_policy.losses import clipped_value_error, surrogate_loss, value_error
from srl_ray.algorithms.on_policy.update import LossFunction, RowLosses
from srl_ray.models.policy import Evaluation, Tensors


def ppo_losses(config: PPOConfig) -> LossFunction:
    """The clipped surrogate, and the critic's error, clipped or not."""
    return partial(_losses, config)


def _losses(config: PPOConfig, evaluation: Evaluation, log_ratio: Tensor, minibatch: Tensors) -> RowLosses:
    ratio = log_ratio.exp()
    surrogate = surrogate_loss(ratio, minibatch["advantage"], clip_eps=config.clip_eps, dual_clip=config.dual_clip)
    value, target, kind, delta = evaluation.value, minibatch["target"], config.value_loss, config.huber_delta
    if config.clip_value:
        old, eps = minibatch["old_value"], config.value_clip_eps
        value_loss = clipped_value_error(value, old, target, clip_eps=eps, kind=kind, delta=delta)
    else:
        value_loss = value_error(value, target, kind=kind, delta=delta)
    is_clipped = ((ratio.detach() - 1.0).abs() > config.clip_eps).float()
    return RowLosses(surrogate, value_loss, is_clipped)
