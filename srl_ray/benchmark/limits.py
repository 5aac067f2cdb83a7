"""The physical limit of this machine for a task: bare environment, bare inference, bare update, each on every core.

Each part runs alone, one process per core with one math thread, without Ray, streams or counters. A system that did
nothing else than these three would need their times one after the other on all cores:

    limit = 1 / (1 / environment + 1 / inference + 1 / update)

agent steps per second. Cores that wait for each other, transport and bookkeeping can only make it less.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from time import perf_counter
from typing import Any

import numpy as np

from srl_ray.benchmark.tasks import task_config
from srl_ray.config import ExperimentConfig
from srl_ray.core.types import FRAMES_PREFIX, STACK_PREFIX, ActionSpec, ChunkLayout
from srl_ray.envs.contract import random_actions

PARTS = ("environment", "inference", "update")
_CALLS_BEFORE = 2


def measure_limits(task: str, *, seconds: float, cores: int) -> dict[str, float]:
    """Agent steps per second of each part, summed over `cores` processes, and the limit that follows.

    Blocks for about 3 × (seconds + start-up).
    """
    result = {}
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        for part in PARTS:
            rates = list(pool.map(_rate, [part] * cores, [task] * cores, [seconds] * cores))
            result[part] = float(sum(rates))
    result["limit"] = 1.0 / sum(1.0 / result[part] for part in PARTS)
    return result


def _rate(part: str, task: str, seconds: float) -> float:
    """Agent steps per second of one process. Top-level, for the pool."""
    import torch

    torch.set_num_threads(1)
    config = task_config(task)
    call, steps = {"environment": _environment, "inference": _inference, "update": _update}[part](config)
    for _ in range(_CALLS_BEFORE):
        call()
    calls, begin = 0, perf_counter()
    while (spent := perf_counter() - begin) < seconds:
        call()
        calls += 1
    return calls * steps() / spent


def _environment(config: ExperimentConfig) -> tuple[Callable[[], Any], Callable[[], float]]:
    from srl_ray.envs.factory import make_block

    block = make_block(config.env)
    rng = np.random.default_rng(0)
    lanes = (block.spec.num_envs, block.spec.group.num_agents)
    batches = [_random_actions(rng, block.spec.group.action, lanes) for _ in range(16)]
    present = [float(block.reset(seed=0).present.sum())]

    def call() -> None:
        present.append(float(block.step(batches[len(present) % len(batches)]).present.sum()))

    return call, lambda: float(np.mean(present))


def _inference(config: ExperimentConfig) -> tuple[Callable[[], Any], Callable[[], float]]:
    import torch

    from srl_ray.streams.inline import act_on_tensors

    policy, _, step = _policy_and_rows(config)
    present = step.present.reshape(-1)
    obs = {
        name: torch.as_tensor(field.reshape(-1, *field.shape[2:])[present].copy()) for name, field in step.obs.items()
    }
    rows = int(present.sum())
    state, no = policy.initial_state(rows), torch.zeros(rows, dtype=torch.bool)
    generator = torch.Generator()
    return lambda: act_on_tensors(policy, obs, state, no, no, generator, (0, 0)), lambda: float(rows)


def _update(config: ExperimentConfig) -> tuple[Callable[[], Any], Callable[[], float]]:
    from srl_ray.algorithms.algorithm import Collective
    from srl_ray.algorithms.factory import make_algorithm

    policy, spec, step = _policy_and_rows(config)
    actors = config.actors
    layout = ChunkLayout(actors.burn_in, actors.sample_steps, actors.bootstrap, config.segment_steps)
    algorithm = make_algorithm(config.algorithm, policy, layout, Collective(), 0)
    batch = _batch(config, algorithm, spec, step, layout)
    rows = layout.sample_steps * config.trainers.batch_chunks
    return lambda: algorithm.update(batch, 0.0), lambda: float(rows)


def _policy_and_rows(config: ExperimentConfig) -> tuple[Any, Any, Any]:
    from srl_ray.envs.factory import make_block
    from srl_ray.models.factory import make_policy

    block = make_block(config.env)
    step = block.reset(seed=0)
    policy = make_policy(config.policy, block.spec.group.obs, block.spec.group.action, 0)
    return policy, block.spec, step


def _batch(config: ExperimentConfig, algorithm: Any, spec: Any, step: Any, layout: ChunkLayout) -> dict[str, Any]:
    """A sample batch from first observations and random numbers, which do not change what an update costs."""
    import torch

    from srl_ray.trainer.warm_up import blank_batch

    rng = np.random.default_rng(0)
    batch = blank_batch(algorithm, spec, layout, config.trainers.batch_chunks)
    shape = (layout.rows, config.trainers.batch_chunks)
    present = step.present.reshape(-1)
    filled: dict[str, np.ndarray] = {"action": _random_actions(rng, spec.group.action, shape)}
    for name, field in step.obs.items():
        lanes = field.reshape(-1, *field.shape[2:])[present]
        key, stack = f"obs.{name}", spec.group.obs[name].stack
        if FRAMES_PREFIX + name in batch:
            key, lanes = FRAMES_PREFIX + name, lanes.take([-1], axis=1 + stack.axis)
            back = np.arange(stack.depth, dtype=np.int8)[::-1].reshape(spec.group.obs[name].offsets.shape)
            filled[STACK_PREFIX + name] = np.broadcast_to(back, (*shape, *back.shape)).copy()
        filled[key] = lanes[rng.integers(len(lanes), size=batch[key].shape[:2])]
    for name in ("log_prob", "value", "reward"):
        filled[name] = rng.normal(scale=0.1, size=shape).astype(np.float32)
    return batch | {name: torch.as_tensor(array) for name, array in filled.items()}


def _random_actions(rng: np.random.Generator, action: ActionSpec, shape: tuple[int, int]) -> np.ndarray:
    return random_actions(action, shape[0] * shape[1], rng).reshape(*shape, -1)
