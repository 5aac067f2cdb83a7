"""Which algorithm a config means."""

from __future__ import annotations

from srl_ray.algorithms.algorithm import Algorithm, Collective
from srl_ray.algorithms.config import AlgorithmConfig, CustomAlgorithmConfig, IMPALAConfig, PPOConfig
from srl_ray.algorithms.impala import impala_losses
from srl_ray.algorithms.on_policy.update import OnPolicy
from srl_ray.algorithms.ppo import ppo_losses
from srl_ray.core.errors import ConfigError
from srl_ray.core.loading import load_object
from srl_ray.core.types import ChunkLayout
from srl_ray.models.policy import Policy


def make_algorithm(
    config: AlgorithmConfig, policy: Policy, layout: ChunkLayout, collective: Collective, seed: int
) -> Algorithm:
    """Build an algorithm around a policy.

    Args:
        config: The `algorithm` part of the experiment.
        policy: Trained in place.
        layout: Rows of the chunks that will come.
        collective: Sums over trainer workers.
        seed: Of the minibatches' order.

    Raises:
        ConfigError: the config belongs to no algorithm, or its target cannot be imported.
    """
    match config:
        case PPOConfig():  # and APPOConfig
            return OnPolicy(config, ppo_losses(config), policy, layout, collective, seed)
        case IMPALAConfig():
            return OnPolicy(config, impala_losses(config), policy, layout, collective, seed)
        case CustomAlgorithmConfig():
            make = load_object(config.target, "algorithm.target")
            algorithm: Algorithm = make(config, policy, layout, collective, seed)
            return algorithm
        case _:
            raise ConfigError(f"algorithm: no algorithm belongs to {type(config).__name__}.")
