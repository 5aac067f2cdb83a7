"""CartPole's bare simulation on one core: JAX's compiled step against gymnasium's vector environment and its loop.

python benchmarks/jax_block.py [play=random|balance] [seconds=1] [rounds=5]

Environment steps per second of processor time (all threads of the process), no policy. Random play ends an episode
every 22 steps; balance pushes the way the pole falls, so that most episodes reach their limit. The kinds take turns,
each line is a median over the rounds; processor time says much the same beside busy neighbours.
"""

from __future__ import annotations

import os
import sys
from statistics import median
from time import process_time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from srl_ray.envs.config import EnvConfig
from srl_ray.envs.contract import random_actions
from srl_ray.envs.factory import make_block

KINDS = {
    "JAX": EnvConfig(factory="srl_ray.envs.functional:CartPole"),
    "gymnasium, vector": EnvConfig(id="CartPole-v1", vectorization="native"),
    "gymnasium, loop": EnvConfig(id="CartPole-v1"),
}
WIDTHS = (16, 64, 1024, 4096)


def steps_per_second(kind: str, num_envs: int, seconds: float, is_random: bool) -> float:
    block = make_block(KINDS[kind], num_envs)
    rng = np.random.default_rng(0)
    actions = [random_actions(block.spec.group.action, num_envs, rng)[:, None] for _ in range(16)]
    answer = block.reset(0)
    for batch in actions:
        answer = block.step(batch)
    calls, begin = 0, process_time()
    while (spent := process_time() - begin) < seconds:
        for batch in actions:
            if not is_random:
                obs = answer.obs["obs"][:, 0]
                batch = (obs[:, 2] + 0.5 * obs[:, 3] > 0)[:, None, None].astype(np.int64)
            answer = block.step(batch)
        calls += len(actions)
    block.close()
    return calls * num_envs / spent


def main() -> None:
    settings = dict(argument.split("=") for argument in sys.argv[1:])
    is_random = settings.get("play", "random") == "random"
    seconds, rounds = float(settings.get("seconds", 1)), int(settings.get("rounds", 5))
    print("environments  " + "  ".join(f"{kind:>18}" for kind in KINDS))
    for width in WIDTHS:
        found = {kind: [] for kind in KINDS}
        for _ in range(rounds):
            for kind in KINDS:
                found[kind].append(steps_per_second(kind, width, seconds, is_random))
        print(f"{width:12}  " + "  ".join(f"{median(values):18,.0f}" for values in found.values()))


if __name__ == "__main__":
    main()
