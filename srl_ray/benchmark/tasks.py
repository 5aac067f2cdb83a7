"""The tasks that are measured: like for like with other systems, so every number that matters is written here."""

from __future__ import annotations

from dataclasses import dataclass

from srl_ray.config import ExperimentConfig, compose
from srl_ray.core.errors import ConfigError

COMMON = (
    "actors.sample_steps=128",
    "algorithm=ppo",
    "algorithm.epochs=1",
    "algorithm.discount=0.99",
    "algorithm.gae_lambda=0.95",
    "algorithm.clip_eps=0.1",
    "algorithm.learning_rate=2.5e-4",
    "algorithm.entropy_cost=0.01",
    "algorithm.value_cost=0.5",
    "algorithm.max_grad_norm=0.5",
)
"""Rollouts of 128 steps and one epoch, in minibatches of 512."""
NARROW, WIDE = 16, 64
"""Environments of all actor workers together."""


@dataclass(frozen=True)
class Task:
    """Attributes:
    overrides: What sets it apart.
    actor_workers: Over which its environments are spread: two where the environments are what limits a run.
    """

    overrides: tuple[str, ...]
    actor_workers: int = 1


TASKS = {
    "cartpole": Task(("env.id=CartPole-v1", "env.vectorization=native")),
    "cheetah": Task(("env.id=HalfCheetah-v5", "env.vectorization=native", "policy.hidden=[64,64]"), actor_workers=2),
    "cheetah-envpool": Task(
        ("env.id=HalfCheetah-v5", "env.vectorization=envpool", "policy.hidden=[64,64]"), actor_workers=2
    ),
    "pong": Task(
        (
            "env.id=ALE/Pong-v5",
            "env.vectorization=native",
            "env.kwargs.num_threads=1",
            "policy.separate=false",
            "policy.hidden=[512]",
            "policy.activation=relu",
            "algorithm.microbatches=2",
        )
    ),
}
HIDE_AND_SEEK = ("experiment=hide_and_seek", "env.envs_per_block=8")
NAMES = (*TASKS, *(f"{task}-wide" for task in TASKS), "hide_and_seek")


def task_overrides(name: str) -> list[str]:
    """Overrides of a task, by name; `-wide` behind it asks for 64 environments in place of 16.

    Raises:
        ConfigError: there is no such task.
    """
    if name not in NAMES:
        raise ConfigError(f"no task {name!r}; there are {', '.join(NAMES)}.")
    if name == "hide_and_seek":
        return list(HIDE_AND_SEEK)
    task, environments = TASKS[name.removesuffix("-wide")], WIDE if name.endswith("-wide") else NARROW
    return [
        *task.overrides,
        *COMMON,
        f"actors.count={task.actor_workers}",
        f"env.envs_per_block={environments // task.actor_workers}",
        f"trainers.batch_chunks={environments}",
        f"algorithm.minibatches={environments // 4}",
    ]


def task_config(name: str) -> ExperimentConfig:
    return compose(task_overrides(name))
