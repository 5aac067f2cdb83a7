"""The tasks that are measured: like for like with other systems, so every number that matters is written here."""

from __future__ import annotations

from srl_ray.config import ExperimentConfig, compose
from srl_ray.core.errors import ConfigError

COMMON = (
    "env.envs_per_block=16",
    "actors.sample_steps=128",
    "trainers.batch_chunks=16",
    "algorithm=ppo",
    "algorithm.epochs=1",
    "algorithm.minibatches=4",
    "algorithm.discount=0.99",
    "algorithm.gae_lambda=0.95",
    "algorithm.clip_eps=0.1",
    "algorithm.learning_rate=2.5e-4",
    "algorithm.entropy_cost=0.01",
    "algorithm.value_cost=0.5",
    "algorithm.max_grad_norm=0.5",
)
"""16 environments, rollouts of 128 steps, one epoch in minibatches of 512."""

TASKS = {
    "cartpole": ("env.id=CartPole-v1", "env.vectorization=native", *COMMON),
    "cheetah": ("env.id=HalfCheetah-v5", "policy.hidden=[64,64]", *COMMON),
    "pong": ("env.id=ALE/Pong-v5", "env.vectorization=native", "env.kwargs.num_threads=1", *COMMON),
    "hide_and_seek": ("experiment=hide_and_seek", "env.envs_per_block=8"),
}
WIDE = ("env.envs_per_block=64", "trainers.batch_chunks=64", "algorithm.minibatches=16")
"""64 environments with minibatches of the same size."""


def task_overrides(name: str) -> list[str]:
    """Overrides of a task, by name; `-wide` behind it asks for 64 environments.

    Raises:
        ConfigError: there is no such task.
    """
    base, _, width = name.partition("-")
    if base not in TASKS or width not in ("", "wide") or (width and base == "hide_and_seek"):
        known = [*TASKS, *(f"{task}-wide" for task in TASKS if task != "hide_and_seek")]
        raise ConfigError(f"no task {name!r}; there are {', '.join(known)}.")
    return [*TASKS[base], *(WIDE if width else ())]


def task_config(name: str) -> ExperimentConfig:
    return compose(task_overrides(name))
