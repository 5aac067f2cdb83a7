"""Proximal policy optimisation."""

from srl_ray.algorithms.ppo.algorithm import PPO

__all__ = ["PPO"]
