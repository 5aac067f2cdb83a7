"""Environment steps per second of hide-and-seek and where the time goes.

    python benchmarks/hide_and_seek.py --num-envs 64 --preset default --hiders 2 --seekers 2

Actions are random, held for four steps, with grabbing asked in 90 % and locking in 30 % of the decisions.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import numpy as np

from srl_ray.envs.hide_and_seek import make_block


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", default="randomwalls")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--hiders", type=int, default=None, help="fix the team size (default: 1 to 3 per episode)")
    parser.add_argument("--seekers", type=int, default=None)
    args = parser.parse_args()
    hiders = (1, 3) if args.hiders is None else (args.hiders, args.hiders)
    seekers = (1, 3) if args.seekers is None else (args.seekers, args.seekers)
    block = make_block(
        args.num_envs,
        scenario=args.scenario,
        preset=args.preset,
        threads=args.threads,
        num_hiders=hiders,
        num_seekers=seekers,
    )
    block.reset(seed=0)
    rng = np.random.default_rng(0)
    actions = np.zeros((args.num_envs, block.spec.group.num_agents, 5), np.int64)
    begin = perf_counter()
    for step in range(args.steps):
        if step % 4 == 0:
            actions[..., :3] = rng.integers(11, size=actions[..., :3].shape)
            actions[..., 3] = rng.random(actions.shape[:2]) < 0.9
            actions[..., 4] = rng.random(actions.shape[:2]) < 0.3
        block.step(actions)
    seconds = perf_counter() - begin
    env_steps = args.steps * args.num_envs
    print(f"{args.scenario} {args.preset}, {args.num_envs} environments, {args.threads} thread(s)")
    print(f"{env_steps / seconds:,.0f} env steps/s, {seconds / env_steps * 1e6:.0f} us per env step")
    stages = dict(block.stage_seconds)
    stages["rest"] = seconds - sum(stages.values())
    for stage, spent in stages.items():
        print(f"  {stage:8s} {spent / env_steps * 1e6:6.1f} us  {spent / seconds:6.1%}")


if __name__ == "__main__":
    main()
