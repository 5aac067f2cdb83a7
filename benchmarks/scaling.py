"""What the cluster placements of hide-and-seek would do, from costs measured on this machine.

    python -m srl_ray.train experiment=hide_and_seek stop.seconds=120 run.dir=runs/measured
    python benchmarks/scaling.py --run runs/measured --write docs/scaling.md

The run gives what an actor worker's core spends on an environment step (environment, rows, transport); here the
published network's work per row is counted and timed. The table follows by the formulas of docs/scaling.md, which it
replaces between its two markers.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from srl_ray import ExperimentConfig, compose
from srl_ray.benchmark.results import replace_marked
from srl_ray.envs.hide_and_seek import make_block
from srl_ray.models.factory import make_policy

PLACEMENTS = ("srl_unit", "srl_unit_inline", "srl_public", "srl_largest", "rapid")
PUBLISHED_ENV_STEPS = 31.7e9
"""Environment steps to ramp defence in Baker et al. 2019 with batches of 64,000 segments."""


@dataclass(frozen=True)
class Costs:
    """Attributes:
    env_us: Core time of an actor worker per environment step: physics, rays, rules, resets.
    stream_us: The same for writing rows, posting requests and pushing chunks.
    agents: Mean number of agents in an environment.
    act_us: Core time of the published network per row, forward only.
    act_flops: Floating-point operations of it.
    update_flops: The same for a row in an update, forward and backward.
    row_bytes: Observation of a row.
    """

    env_us: float
    stream_us: float
    agents: float
    act_us: float
    act_flops: float
    update_flops: float
    row_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="directory of a run of hide_and_seek")
    parser.add_argument("--write", type=Path, help="replace the table in this Markdown file")
    args = parser.parse_args()
    costs = measure(args.run)
    text = report(costs)
    print(text)
    if args.write and not replace_marked(args.write, "scaling", text + "\n"):
        raise SystemExit(f"{args.write} has no place for the table: expected <!-- scaling --> and <!-- /scaling -->")


def measure(run: Path) -> Costs:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    late = [record for record in records if "share/actor/env" in record][len(records) // 2 :]
    rate = np.mean([record["rate/env_steps_per_s"] for record in late])

    def core_us(*stages: str) -> float:
        return float(sum(np.mean([record[f"share/actor/{stage}"] for record in late]) for stage in stages) / rate * 1e6)

    config = compose(["experiment=hide_and_seek_published"])
    spec = make_block(1, **config.env.kwargs).spec.group
    policy = make_policy(config.policy, spec.obs, spec.action, seed=0)
    act_us, act_flops = forward_cost(config, policy)
    return Costs(
        env_us=core_us("env"),
        stream_us=core_us("rows", "push"),
        agents=float(np.mean([record["rate/agent_steps_per_s"] for record in late]) / rate),
        act_us=act_us,
        act_flops=act_flops,
        update_flops=update_flops(config, policy),
        row_bytes=sum(int(np.prod(field.shape)) * field.dtype.itemsize for field in spec.obs.values()),
    )


def forward_cost(config: ExperimentConfig, policy: torch.nn.Module, rows: int = 40) -> tuple[float, float]:
    """Microseconds (median of 20, one thread) and operations of a row, in a batch as an inline actor worker has it."""
    torch.set_num_threads(1)
    block = make_block(rows // 4, **config.env.kwargs)
    step = block.reset(seed=0)
    obs = {name: torch.as_tensor(field.reshape(-1, *field.shape[2:])[:rows].copy()) for name, field in step.obs.items()}
    state = torch.zeros(rows, policy.state_size)
    no, seconds = torch.zeros(rows, dtype=torch.bool), []
    for _ in range(25):
        begin = perf_counter()
        policy.act(obs, state, no, no)
        seconds.append(perf_counter() - begin)
    with FlopCounterMode(display=False) as counter:
        policy.act(obs, state, no, no)
    return float(np.median(seconds[5:])) / rows * 1e6, counter.get_total_flops() / rows


def update_flops(config: ExperimentConfig, policy: torch.nn.Module, chunks: int = 4) -> float:
    """Operations of a trained row: forward and backward through segments of `policy.bptt_steps` rows."""
    steps = config.policy.bptt_steps
    block = make_block(chunks, **config.env.kwargs)
    step = block.reset(seed=0)
    batch = {
        f"obs.{name}": torch.as_tensor(np.broadcast_to(field[:, 0], (steps, *field[:, 0].shape)).copy())
        for name, field in step.obs.items()
    }
    action = block.spec.group.action.field
    batch["action"] = torch.as_tensor(action.zeros(steps, chunks))
    batch["on_reset"] = torch.zeros(steps, chunks, dtype=torch.bool)
    batch["state"] = torch.zeros(1, chunks, policy.state_size)
    batch["mask"] = torch.ones(steps, chunks, dtype=torch.bool)
    with FlopCounterMode(display=False) as counter:
        answer = policy.evaluate(batch)
        (answer.log_prob.sum() + answer.value.sum() + answer.entropy.sum()).backward()
    return counter.get_total_flops() / (steps * chunks)


def report(costs: Costs) -> str:
    lines = [
        "| measured | |",
        "|---|---|",
        f"| environment step in an actor worker (physics, rays, rules, resets) | {costs.env_us:.0f} µs |",
        f"| rows, requests and chunks of an environment step | {costs.stream_us:.0f} µs |",
        f"| agents per environment | {costs.agents:.2f} |",
        f"| published network, forward, one core | {costs.act_us:.0f} µs per row |",
        f"| the same in operations | {costs.act_flops / 1e6:.1f} MFLOP per row |",
        f"| a row in an update, forward and backward | {costs.update_flops / 1e6:.1f} MFLOP |",
        f"| observation of a row | {costs.row_bytes:,} bytes |",
        "",
        "| `placement=hide_and_seek_…` | actor workers | env steps/s, if they are the limit | agent rows/s "
        "| inference, TFLOP/s per policy worker GPU | training, TFLOP/s per trainer GPU | into each trainer, GB/s "
        "| 31.7 G env steps |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [placement_row(name, costs) for name in PLACEMENTS]
    return "\n".join(lines)


def placement_row(name: str, costs: Costs) -> str:
    config = compose(["experiment=hide_and_seek_published", f"placement=hide_and_seek_{name}"])
    is_inline = config.policy_workers.count == 0
    per_step = costs.env_us + costs.stream_us + (costs.agents * costs.act_us if is_inline else 0.0)
    env_steps = config.actors.count * 1e6 / per_step
    rows = env_steps * costs.agents
    gpus = config.policy_workers.count * config.policy_workers.gpus
    inference = "on the actors' cores" if is_inline else f"{rows * costs.act_flops / gpus / 1e12:.1f}"
    training = rows * config.trainers.reuse * costs.update_flops / config.trainers.count / 1e12
    incoming = rows * costs.row_bytes / config.trainers.count / 1e9
    hours = PUBLISHED_ENV_STEPS / env_steps / 3600
    return (
        f"| `{name}` | {config.actors.count:,} | {env_steps:,.0f} | {rows:,.0f} | {inference} | {training:.1f} "
        f"| {incoming:.2f} | {hours:.1f} h |"
    )


if __name__ == "__main__":
    main()
