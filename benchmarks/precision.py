"""What bfloat16 and torch.compile do to inference and updates on this machine's CPU.

    python benchmarks/precision.py                                   # about ten minutes, most of it compilation
    python benchmarks/precision.py --write docs/performance.md       # and the table between its marks there

Each variant answers 16 rows and updates the weights in turns with the others, one math thread, synthetic observations
of the tasks' shapes. Processor time of the process, so that neighbours on the machine count little.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

from srl_ray.algorithms.algorithm import Collective
from srl_ray.algorithms.factory import make_algorithm
from srl_ray.benchmark.intervals import estimate, ratio
from srl_ray.benchmark.results import replace_marked
from srl_ray.benchmark.tasks import task_config
from srl_ray.core.types import (
    ActionSpec,
    AgentGroup,
    BlockSpec,
    ChunkLayout,
    ContinuousActions,
    DiscreteActions,
    FieldSpec,
)
from srl_ray.models.compilation import compile_inference, compile_training
from srl_ray.models.factory import make_policy
from srl_ray.streams.inline import act_on_tensors
from srl_ray.trainer.warm_up import blank_batch, warm_up

ROWS = 16
SPACES: dict[str, tuple[FieldSpec, ActionSpec]] = {
    "cartpole": (FieldSpec((4,), np.dtype(np.float32)), DiscreteActions((2,))),
    "cheetah": (
        FieldSpec((17,), np.dtype(np.float32)),
        ContinuousActions(np.full(6, -1, np.float32), np.full(6, 1, np.float32)),
    ),
    "pong": (FieldSpec((4, 84, 84), np.dtype(np.uint8)), DiscreteActions((6,))),
}
VARIANTS = ("float32", "bfloat16", "float32, compiled", "bfloat16, compiled")
Part = tuple[str, Callable[[], Any]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=SPACES, default=list(SPACES))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="processor time of each measurement, at least")
    parser.add_argument("--write", type=Path, help="page whose table is replaced")
    args = parser.parse_args()
    lines = [
        "| task | variant | answer to 16 rows | against float32 | update | against float32 | set-up |",
        "| --- | --- | --: | --: | --: | --: | --: |",
    ]
    for task in args.tasks:  # a process each: torch keeps few programs per line of code, whichever policy they are of
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            lines += pool.submit(measure, task, args.turns, args.seconds).result()
    text = "\n".join(lines) + "\n"
    print(text)
    if args.write and not replace_marked(args.write, "compile", text):
        raise SystemExit(f"{args.write} has no place for the table: <!-- compile --> and <!-- /compile -->")
    return 0


def measure(task: str, turns: int, seconds: float) -> list[str]:
    """Rows of the table."""
    torch.set_num_threads(1)
    rows = []
    parts: dict[str, list[Part]] = {}
    set_up = {}
    for variant in VARIANTS:
        begin = perf_counter()
        parts[variant] = make_parts(task, variant)
        set_up[variant] = perf_counter() - begin
        print(f"{task}, {variant}: set up in {set_up[variant]:.0f} s", flush=True)
    spent: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(turns):
        for variant in VARIANTS:
            for name, call in parts[variant]:
                spent[variant, name].append(processor_s(call, seconds))
    for variant in VARIANTS:
        cells = [task, variant]
        for name, unit, factor in (("inference", "µs", 1e6), ("update", "ms", 1e3)):
            taken, base = spent[variant, name], spent[VARIANTS[0], name]
            against = ratio(taken, base)
            cells += [f"{factor * estimate(taken).center:.3g} {unit}"]
            cells += [f"{against.center:.2f} ({against.low:.2f} to {against.high:.2f})"]
        rows.append("| " + " | ".join([*cells, f"{set_up[variant]:.0f} s"]) + " |")
    return rows


def make_parts(task: str, variant: str) -> list[Part]:
    """Inference and update of one variant, compiled and called once."""
    config = task_config(task)
    field, action = SPACES[task]
    spec = BlockSpec(task, ROWS, AgentGroup("agents", ("agent",), {"obs": field}, action))
    layout = ChunkLayout(0, config.actors.sample_steps, config.actors.bootstrap, config.segment_steps)
    compile = "both" if "compiled" in variant else "none"
    policy_config = replace(config.policy, precision=variant.split(",")[0], compile=compile)
    acting: Any = make_policy(policy_config, spec.group.obs, action, 0)
    trained = make_policy(policy_config, spec.group.obs, action, 0)
    if policy_config.is_inference_compiled:
        compile_inference(acting, spec.group.obs)
        compile_training(trained)
    algorithm = make_algorithm(config.algorithm, trained, layout, Collective(), 0)
    warm_up(algorithm, spec, layout, config.trainers.batch_chunks)

    rng = np.random.default_rng(0)
    obs, no = {"obs": random_like(field, (ROWS,), rng)}, torch.zeros(ROWS, dtype=torch.bool)
    batch = blank_batch(algorithm, spec, layout, config.trainers.batch_chunks)
    shape = tuple(batch["reward"].shape)
    batch["obs.obs"] = random_like(field, shape, rng)
    batch |= {name: torch.from_numpy(rng.normal(0, 0.1, shape).astype(np.float32)) for name in ("reward", "value")}
    batch["log_prob"] = trained.evaluate({**batch, "state": batch["state"]}).log_prob.detach()
    state = acting.initial_state(ROWS)
    return [
        ("inference", lambda: act_on_tensors(acting, obs, state, no, no, None, (0, 0))),
        ("update", lambda: algorithm.update(batch, 0.0)),
    ]


def random_like(field: FieldSpec, leading: tuple[int, ...], rng: np.random.Generator) -> torch.Tensor:
    shape = (*leading, *field.shape)
    if field.dtype == np.uint8:
        return torch.from_numpy(rng.integers(0, 256, shape, dtype=np.uint8))
    return torch.from_numpy(rng.normal(size=shape).astype(field.dtype))


def processor_s(call: Callable[[], Any], seconds: float) -> float:
    """Processor time of one call, the mean over at least `seconds` of it."""
    calls, begin = 0, process_time()
    while (spent := process_time() - begin) < seconds or not calls:
        call()
        calls += 1
    return spent / calls


if __name__ == "__main__":
    raise SystemExit(main())
