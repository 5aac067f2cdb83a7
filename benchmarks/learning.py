"""CartPole for several seeds: steps and seconds to the end of training, and 100 evaluation episodes of each.

    python benchmarks/learning.py                                   # five seeds into benchmarks/results/learning.json
    python benchmarks/learning.py --experiment cartpole_lstm --seeds 1 2 3

Seeds that the result file already has for the same experiment and overrides are not run again; a run that was
interrupted is continued from its checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "learning.json"
QUIET = ("run.plots=false", "run.video=false", "run.tensorboard=false")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", default="cartpole")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--runs", type=Path, default=Path("runs") / "benchmark_learning")
    parser.add_argument("overrides", nargs="*", help="key=value for every run")
    args = parser.parse_args()
    results = json.loads(args.out.read_text()) if args.out.exists() else {}
    name = " ".join([args.experiment, *sorted(args.overrides)])
    entry = results.setdefault(name, {"machine": machine(), "seeds": {}})
    for seed in args.seeds:
        if str(seed) not in entry["seeds"]:
            entry["seeds"][str(seed)] = one_seed(args, seed)
            args.out.parent.mkdir(parents=True, exist_ok=True)
            aside = args.out.with_suffix(".tmp")
            aside.write_text(json.dumps(results, indent=1) + "\n")
            aside.replace(args.out)
    report(name, entry["seeds"])
    return 0


def one_seed(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    run_dir = args.runs / "_".join([args.experiment, *sorted(args.overrides)]).replace("/", "-") / f"seed_{seed}"
    train = [f"experiment={args.experiment}", f"run.seed={seed}", f"run.dir={run_dir}", "run.resume=auto"]
    subprocess.run([sys.executable, "-m", "srl_ray.train", *train, *QUIET, *args.overrides], check=True)
    out = run_dir / "evaluation.json"
    play = [f"checkpoint={run_dir}", f"episodes={args.episodes}", f"out={out}"]
    subprocess.run([sys.executable, "-m", "srl_ray.evaluate", *play], check=True)
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    evaluation = json.loads(out.read_text())
    return {
        "return_mean": evaluation["return"]["mean"],
        "return_std": evaluation["return"]["std"],
        "episodes": evaluation["num_episodes"],
        "env_steps": records[-1]["env_steps"],
        "seconds": round(records[-1]["time_unix_s"] - records[0]["time_unix_s"] + records[0]["seconds"], 1),
        "policy_version": records[-1]["policy_version"],
        "staleness_mean": float(np.mean([r["staleness/mean"] for r in records if "staleness/mean" in r])),
    }


def report(name: str, seeds: dict[str, dict[str, Any]]) -> None:
    print(name)
    for seed, numbers in seeds.items():
        print(
            f"  seed {seed}: return {numbers['return_mean']:.1f} ± {numbers['return_std']:.1f} over "
            f"{numbers['episodes']} episodes, {numbers['env_steps']:,} env steps, {numbers['seconds']:.0f} s"
        )
    for key, unit in (("return_mean", "return"), ("env_steps", "env steps"), ("seconds", "s")):
        values = [numbers[key] for numbers in seeds.values()]
        print(f"  {unit:<9} {np.mean(values):,.1f} ± {np.std(values):,.1f}")


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main())
