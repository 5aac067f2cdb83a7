"""Hide-and-seek over several seeds: what seekers and hiders learn, by self-play curves and by cross-play.

    python benchmarks/hide_and_seek_learning.py                     # three seeds of hide_and_seek_chase
    python benchmarks/hide_and_seek_learning.py --seeds             # no seed: the report from the result file
    python benchmarks/hide_and_seek_learning.py --experiment hide_and_seek_quadrant --seeds 1 2 3 stop.env_steps=500000

In self-play both teams improve, so that a team's return says little about its skill. Hence the final weights also play
the weights before training and uniformly random actions, and so do those of every kept checkpoint. Actions are sampled.
Seeds that the result file already has for the same experiment and overrides are not run again; a run that was
interrupted is continued from its checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from srl_ray.config import ExperimentConfig, from_mapping
from srl_ray.evaluation.evaluator import evaluate
from srl_ray.evaluation.loading import SavedRun, find_saved_run, load_policy, use_one_thread
from srl_ray.models.policy import ActResult, Policy, Tensors
from srl_ray.plotting.curves import LABEL_COLORS, align, decorate, mean_over_runs, new_figure, save_figure
from srl_ray.plotting.records import read_records

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "hide_and_seek_learning.json"
FIGURE = HERE.parent / "docs" / "images" / "hide_and_seek_learning.png"
MATCHES = (
    ("trained", "trained"),
    ("trained", "initial"),
    ("trained", "random"),
    ("initial", "trained"),
    ("random", "trained"),
    ("initial", "initial"),
    ("random", "random"),
)
"""(seekers, hiders) of the table."""
CURVE_POINTS = 60
KEPT = 12
"""Checkpoints per run that play against the untrained."""
NUM_ENVS = 32
IS_HIDER, PREPARED = 8, 9
"""Columns of an agent's features: its team, and the share of the preparation that is over."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", default="hide_and_seek_chase")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--episodes", type=int, default=200, help="of every match in the table")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--figure", type=Path, default=FIGURE)
    parser.add_argument("--runs", type=Path, default=Path("runs") / "benchmark_hide_and_seek")
    parser.add_argument("overrides", nargs="*", help="key=value for every run")
    args = parser.parse_args()
    use_one_thread()
    results = json.loads(args.out.read_text()) if args.out.exists() else {}
    name = " ".join([args.experiment, *sorted(args.overrides)])
    seeds = results.setdefault(name, {})
    for seed in args.seeds:
        if str(seed) not in seeds:
            seeds[str(seed)] = one_seed(args, seed)
            args.out.parent.mkdir(parents=True, exist_ok=True)
            aside = args.out.with_suffix(".tmp")
            aside.write_text(json.dumps(results) + "\n")
            aside.replace(args.out)
    if not seeds:
        parser.error(f"{args.out} has no seeds of {name!r}; it has {', '.join(map(repr, results)) or 'nothing'}")
    print(table(list(seeds.values())))
    print(f"figure: {draw(list(seeds.values()), args.figure)}")
    return 0


# --------------------------------------------------------------------------------------------------------- measuring


def one_seed(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    run_dir = args.runs / "_".join([args.experiment, *sorted(args.overrides)]).replace("/", "-") / f"seed_{seed}"
    train = [f"experiment={args.experiment}", f"run.seed={seed}", f"run.dir={run_dir}", "run.resume=auto"]
    keep = ["run.keep_checkpoints=1000", "run.checkpoint_interval_s=20", "run.plots=false", "run.tensorboard=false"]
    cpu_seconds = run_and_count([sys.executable, "-m", "srl_ray.train", *train, *keep, *args.overrides])
    run = find_saved_run(run_dir)
    config = from_mapping(run.config)
    policies = {
        side: load_policy(run, config.policy, config.env, seed=seed, which=which)
        for side, which in (("trained", "checkpoint"), ("initial", "initial"), ("random", "random"))
    }
    records = read_records(run_dir)
    last = records.metrics[-1]
    entry = {
        "env_steps": last["env_steps"],
        "agent_steps": last["agent_steps"],
        "episodes": last["episodes"],
        "policy_version": last["policy_version"],
        "seconds": round(sum(part[-1]["seconds"] for part in sessions(records.metrics)), 1),
        "cpu_seconds": round(cpu_seconds),
        "matches": {
            f"{seekers} v {hiders}": play(config, policies[seekers], policies[hiders], args.episodes)
            for seekers, hiders in MATCHES
        },
        "curves": {
            key: curve(*records.summary(key))
            for key in ("seeker_return", "hiders_seen_fraction", "max_box_move_prep", "num_box_lock_prep")
        },
        "entropy": curve(*records.series("train/entropy")),
        "checkpoints": checkpoint_matches(run, config, policies["initial"], args.episodes // 2),
    }
    print(f"seed {seed}: {json.dumps(entry['matches'])}", flush=True)
    return entry


def run_and_count(command: list[str]) -> float:
    """Run a command and return the CPU time of it and of all processes below it, s: fair on a machine that is shared.

    Of a run that was continued only the last part is counted.
    """
    seconds: dict[int, float] = {}
    with subprocess.Popen(command) as process:
        top = psutil.Process(process.pid)
        while process.poll() is None:
            for child in (top, *top.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    times = child.cpu_times()
                    seconds[child.pid] = times.user + times.system
            time.sleep(1.0)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return sum(seconds.values())


def play(config: ExperimentConfig, seekers: Policy, hiders: Policy, episodes: int) -> dict[str, float]:
    """Seekers' mean return per episode, its standard error, the share of main steps with a hider seen, and the mean
    distance of a seeker from the nearest hider in the main phase, m."""
    watched = Watched(seekers)
    players: Any = {"seekers": watched, "hiders": hiders}
    result = evaluate(players, config.env, episodes=episodes, deterministic=False, seed=1, num_envs=NUM_ENVS)
    returns, seen = result.team_returns["seekers"], result.summary["hiders_seen_fraction"]
    return {
        "seekers_return": round(returns.mean, 3),
        "standard_error": round(returns.std / math.sqrt(returns.count - 1), 3),
        "hiders_return": round(result.team_returns["hiders"].mean, 3),
        "seen": round(seen.mean, 4),
        "distance": round(watched.mean_distance, 3),
        "episodes": returns.count,
    }


class Watched:
    """A policy of seekers that also notes how far away the nearest hider is, m."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._distances: list[np.ndarray] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def act(self, obs: Tensors, *args: Any) -> ActResult:
        own, others = obs["self"], obs["others"]
        distance = (others[..., :2] - own[:, None, :2]).norm(dim=-1)
        distance = distance.masked_fill(others[..., IS_HIDER] == 0, math.inf).amin(dim=1)
        self._distances.append(distance[own[:, PREPARED] >= 1].numpy())
        return self._policy.act(obs, *args)

    @property
    def mean_distance(self) -> float:
        return float(np.concatenate(self._distances).mean())


def checkpoint_matches(run: SavedRun, config: ExperimentConfig, initial: Policy, episodes: int) -> dict[str, Any]:
    """Each team of some checkpoints against the other team before training, over the course of the run."""
    folders = sorted((run.directory / "checkpoints").glob("step_*"))
    picked = sorted({round(index) for index in np.linspace(0, len(folders) - 1, KEPT)})
    rows: dict[str, list[float]] = {"env_steps": [], "seekers": [], "hiders": []}
    for folder in (folders[index] for index in picked):
        saved = find_saved_run(folder)
        policy = load_policy(saved, config.policy, config.env, seed=config.run.seed)
        rows["env_steps"].append(float(saved.facts["env_steps"]))
        rows["seekers"].append(play(config, policy, initial, episodes)["seekers_return"])
        rows["hiders"].append(play(config, initial, policy, episodes)["seekers_return"])
    return rows


def curve(x: np.ndarray, y: np.ndarray) -> list[list[float]]:
    """(env_steps, mean) of about equally many neighbouring points each."""
    parts = np.array_split(np.arange(len(x)), min(CURVE_POINTS, len(x)))
    return [[round(float(x[part].mean())), round(float(y[part].mean()), 4)] for part in parts]


def sessions(metrics: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The records of a run that was continued, one list per start: `seconds` begins anew with each."""
    parts: list[list[dict[str, Any]]] = []
    for record in metrics:
        if not parts or record["seconds"] < parts[-1][-1]["seconds"]:
            parts.append([])
        parts[-1].append(record)
    return parts


# --------------------------------------------------------------------------------------------------------- reporting


def table(seeds: list[dict[str, Any]]) -> str:
    """Markdown: means over seeds and half the width of their 95 % confidence intervals."""
    lines = [
        f"{len(seeds)} seeds; {' / '.join(format(seed['env_steps'], ',') for seed in seeds)} env steps, "
        f"{' / '.join(format(seed['episodes'], ',') for seed in seeds)} episodes, "
        f"{' / '.join(format(seed['cpu_seconds'], ',') for seed in seeds)} CPU seconds of all processes",
        "",
        "| seekers | hiders | seekers' return | each seed, ± standard error | a hider is seen | distance |",
        "|---|---|---|---|---|---|",
    ]
    for match in (f"{seekers} v {hiders}" for seekers, hiders in MATCHES):
        numbers = [seed["matches"][match] for seed in seeds]
        each = ", ".join(f"{n['seekers_return']:.1f} ± {n['standard_error']:.1f}" for n in numbers)
        returns, seen, distance = (
            interval([n[key] for n in numbers]) for key in ("seekers_return", "seen", "distance")
        )
        lines.append(
            f"| {' | '.join(match.split(' v '))} | {returns[0]:.1f} ± {returns[1]:.1f} | {each} "
            f"| {100 * seen[0]:.0f} ± {100 * seen[1]:.0f} % | {distance[0]:.1f} ± {distance[1]:.1f} m |"
        )
    return "\n".join(lines)


def interval(values: list[float]) -> tuple[float, float]:
    mean, half_width = mean_over_runs(np.array(values)[:, None])
    return float(mean[0]), float(half_width[0])


def draw(seeds: list[dict[str, Any]], path: Path) -> Path:
    """Self-play and cross-play over the course of training: mean over the seeds and its 95 % confidence band."""
    figure = new_figure(15.0, 3.6, f"hide-and-seek, {len(seeds)} seeds: mean and its 95 % confidence band")
    returns, seen, cross = figure.subplots(1, 3)
    decorate(returns, "self-play: seekers' return per episode")
    decorate(seen, "self-play: share of main steps with a hider seen")
    decorate(cross, "cross-play: seekers' return per episode")
    for axes, key in ((returns, "seeker_return"), (seen, "hiders_seen_fraction")):
        runs = [np.array(seed["curves"][key]).T for seed in seeds]
        band(axes, "", *align([(run[0], run[1]) for run in runs]), LABEL_COLORS["seekers"])
    last = min(seed["checkpoints"]["env_steps"][-1] for seed in seeds)
    steps = np.linspace(0, last, KEPT)
    for team, label in (
        ("seekers", "trained seekers v initial hiders"),
        ("hiders", "initial seekers v trained hiders"),
    ):
        values = [np.interp(steps, seed["checkpoints"]["env_steps"], seed["checkpoints"][team]) for seed in seeds]
        band(cross, label, steps, np.array(values), LABEL_COLORS[team])
    cross.legend(fontsize=8, frameon=False, loc="best")
    for axes in (returns, seen, cross):
        axes.set_xlabel("environment steps", fontsize=8)
    return save_figure(figure, path)


def band(axes: Any, label: str, x: np.ndarray, values: np.ndarray, color: str) -> None:
    """Args: `values`: [R, K], a row per seed."""
    mean, half_width = mean_over_runs(values)
    axes.plot(x, values.T, color=color, alpha=0.25, linewidth=0.7)
    axes.fill_between(x, mean - half_width, mean + half_width, color=color, alpha=0.18, linewidth=0)
    axes.plot(x, mean, color=color, linewidth=1.8, label=label)


if __name__ == "__main__":
    sys.exit(main())
