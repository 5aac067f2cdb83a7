"""Which policy a config means."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from srl_ray.core.errors import ConfigError
from srl_ray.core.loading import load_object
from srl_ray.core.types import ActionSpec, FieldSpec
from srl_ray.models.actor_critic import ActorCritic
from srl_ray.models.config import ActorCriticConfig, CustomPolicyConfig, HideAndSeekPolicyConfig, PolicyConfig
from srl_ray.models.hide_and_seek import HideAndSeekPolicy
from srl_ray.models.policy import Policy


def make_policy(config: PolicyConfig, obs: Mapping[str, FieldSpec], action: ActionSpec, seed: int) -> Policy:
    """Build a policy whose first weights depend on the seed alone; the process's random state is left as it was.

    Args:
        config: The `policy` part of the experiment.
        obs: Observation field → spec of one agent.
        action: Action spec of one agent.
        seed: Of the weights.

    Raises:
        ConfigError: the policy cannot see these observations or make these actions.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        match config:
            case ActorCriticConfig():
                return ActorCritic(config, obs, action)
            case HideAndSeekPolicyConfig():
                return HideAndSeekPolicy(config, obs, action)
            case CustomPolicyConfig():
                policy: Policy = load_object(config.target, "policy.target")(obs, action, config)
                return policy
            case _:
                raise ConfigError(f"policy: no policy belongs to {type(config).__name__}.")
