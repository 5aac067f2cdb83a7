"""What staleness costs, and what its corrections give back: CartPole from experience that is exactly k updates old.

    python benchmarks/staleness.py                               # what benchmarks/results/staleness.json lacks
    python benchmarks/staleness.py algorithms=appo staleness=0,8 seeds=10
    python benchmarks/staleness.py seeds=0                       # only docs/images/staleness.png and the table again

One process without Ray: every batch is made by the weights of k updates ago, so that nothing but learning depends on k.
Measured is the mean return of the training episodes over all updates (the area under the learning curve).
"""

from __future__ import annotations

import copy
import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from srl_ray.algorithms.algorithm import Collective
from srl_ray.algorithms.config import APPOConfig, IMPALAConfig, OnPolicyConfig
from srl_ray.algorithms.factory import make_algorithm
from srl_ray.benchmark.intervals import Estimate, estimate_iqm
from srl_ray.core.types import ChunkLayout, DiscreteActions, FieldSpec
from srl_ray.evaluation.command import Option, list_of, read_options, run_command
from srl_ray.models.config import ActorCriticConfig
from srl_ray.models.factory import make_policy
from srl_ray.models.policy import Tensors
from srl_ray.plotting.curves import COLORS, decorate, new_figure, save_figure

HERE = Path(__file__).parent
LANES, ROWS = 16, 64
CONFIGS: dict[str, OnPolicyConfig] = {
    "appo": APPOConfig(learning_rate=1e-3),
    "impala": IMPALAConfig(learning_rate=2e-3, learning_rate_end=0.0, gae_lambda=0.95, normalize_advantage="batch"),
}
UPDATES = {"appo": 120, "impala": 400}
CORRECTIONS = ("none", "vtrace", "td")
OPTIONS = {
    "algorithms": Option(list_of(str), "of appo, impala", list(CONFIGS)),
    "corrections": Option(list_of(str), "of none, vtrace, td", list(CORRECTIONS)),
    "staleness": Option(list_of(int), "numbers of updates", [0, 1, 2, 4, 8, 16]),
    "seeds": Option(int, "a number of seeds", 5),
    "out": Option(Path, "a file", HERE / "results" / "staleness.json"),
    "figure": Option(Path, "a file", HERE.parent / "docs" / "images" / "staleness.png"),
}


def main() -> int:
    return run_command(_main, None, __doc__ or "")


def _main(argv: list[str]) -> int:
    options, _ = read_options(argv, OPTIONS, positional="algorithms")
    torch.set_num_threads(1)
    out: Path = options["out"]
    results: dict[str, dict[str, Any]] = json.loads(out.read_text()) if out.exists() else {}
    seeds = range(1, options["seeds"] + 1)  # the slowest index: an interrupted series has all points, of fewer seeds
    for seed, *point in itertools.product(seeds, options["algorithms"], options["staleness"], options["corrections"]):
        name, staleness, correction = point
        key = f"{name} {correction} {staleness}"
        if str(seed) not in results.setdefault(key, {}):
            config = replace(CONFIGS[name], staleness_correction=correction)
            results[key][str(seed)] = train(config, UPDATES[name], staleness, seed)
            print(f"{key}, seed {seed}: {results[key][str(seed)]['mean_return']:.0f}", file=sys.stderr, flush=True)
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(results, indent=1) + "\n")
    found = {
        tuple(key.split()): estimate_iqm([run["mean_return"] for run in runs.values()])
        for key, runs in results.items()
        if runs
    }
    print(table(found))
    draw(found, options["figure"])
    return 0


def table(found: dict[tuple[str, ...], Estimate]) -> str:
    """Interquartile means [95 % intervals], a line per algorithm and correction, a column per staleness."""
    ages = sorted({int(key[2]) for key in found})
    lines = ["| algorithm | correction | " + " | ".join(map(str, ages)) + " |", "|---|---|" + "--:|" * len(ages)]
    for name, correction in itertools.product(CONFIGS, CORRECTIONS):
        cells = [str(found.get((name, correction, str(age)), "")) for age in ages]
        lines.append(f"| {name} | {correction} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(found: dict[tuple[str, ...], Estimate], path: Path) -> None:
    """A panel per algorithm, a line with its interval per correction."""
    figure = new_figure(11.0, 4.2, "CartPole: mean return while training, by the staleness of the experience")
    for number, name in enumerate(CONFIGS, start=1):
        axes = figure.add_subplot(1, len(CONFIGS), number)
        decorate(axes, name)
        for color, correction in zip(COLORS, CORRECTIONS, strict=False):
            points = sorted((int(k[2]), e) for k, e in found.items() if k[:2] == (name, correction))
            ages = [age for age, _ in points]
            axes.plot(ages, [e.center for _, e in points], marker="o", color=color, label=correction)
            axes.fill_between(ages, [e.low for _, e in points], [e.high for _, e in points], color=color, alpha=0.15)
        axes.set_xscale("symlog", base=2, linthresh=1)
        axes.set_xticks([0, 1, 2, 4, 8, 16], ["0", "1", "2", "4", "8", "16"])
        axes.set_xlabel("updates between acting and training")
        axes.set_ylim(0, None)
        axes.legend(frameon=False)
    save_figure(figure, path)


class Collector:
    """CartPole in rows: with the environment's NEXT_STEP resets every step of the vector is one row of each lane, and a
    final row's action is the one that it ignores."""

    def __init__(self, policy: Any, seed: int) -> None:
        self.policy = policy
        self.env = gymnasium.make_vec("CartPole-v1", LANES, vectorization_mode="vector_entry_point")
        self.generator = torch.Generator().manual_seed(seed)
        self.obs, _ = self.env.reset(seed=seed)
        self.on_reset = np.ones(LANES, bool)
        self.terminated, self.truncated = np.zeros((2, LANES), bool)
        self.episode_return = np.zeros(LANES)
        self.returns: list[float] = []

    def batch(self) -> Tensors:
        """ROWS rows and one more of each lane; the next batch begins with that one."""
        rows: list[dict[str, Any]] = [self._row() for _ in range(ROWS)]
        before = copy.copy(self.__dict__)
        rows.append(self._row(is_last=True))
        self.__dict__.update(before)
        batch = {name: torch.as_tensor(np.stack([row[name] for row in rows])) for name in rows[0]}
        return {**batch, "state": torch.zeros(1, LANES, 0)}

    def _row(self, is_last: bool = False) -> dict[str, Any]:
        on_reset, deterministic = torch.from_numpy(self.on_reset), torch.zeros(LANES, dtype=torch.bool)
        obs = {"obs": torch.from_numpy(self.obs.copy())}
        answer = self.policy.act(obs, torch.zeros(LANES, 0), on_reset, deterministic, self.generator)
        row = {
            "obs.obs": self.obs.copy(),
            "action": answer.action.numpy(),
            "log_prob": answer.log_prob.numpy(),
            "value": np.where(self.terminated, 0.0, answer.value.numpy()).astype(np.float32),
            "reward": np.zeros(LANES, np.float32),
            "on_reset": self.on_reset,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "valid": np.ones(LANES, bool),
            "policy_version": np.zeros(LANES, np.int64),
        }
        if not is_last:
            final = self.terminated | self.truncated
            self.obs, reward, self.terminated, self.truncated, _ = self.env.step(answer.action.numpy()[:, 0])
            row["reward"] = np.where(final, 0.0, reward).astype(np.float32)
            self.on_reset = final
            self.episode_return = self.episode_return + row["reward"]
            over = self.terminated | self.truncated
            self.returns.extend(self.episode_return[over])
            self.episode_return = np.where(over, 0.0, self.episode_return)
        return row


def train(config: OnPolicyConfig, updates: int, staleness: int, seed: int) -> dict[str, Any]:
    """One run: its curve, the mean return of training episodes per tenth of the updates, and the mean over all."""
    obs = {"obs": FieldSpec((4,), np.dtype(np.float32))}
    policy: Any = make_policy(ActorCriticConfig(), obs, DiscreteActions((2,)), seed)
    acting = copy.deepcopy(policy)
    algorithm = make_algorithm(config, policy, ChunkLayout(0, ROWS, 1, 16), Collective(), seed)
    collector = Collector(acting, seed)
    published = [{name: x.clone() for name, x in policy.state_dict().items()}]
    curve, newest = [], 0.0
    for update in range(updates):
        acting.load_state_dict(published[max(0, update - staleness)])
        algorithm.update(collector.batch(), update / updates)
        published.append({name: x.clone() for name, x in policy.state_dict().items()})
        if collector.returns:
            newest = float(np.mean(collector.returns))
            collector.returns.clear()
        curve.append(newest)
    return {"mean_return": float(np.mean(curve)), "curve": [float(np.mean(part)) for part in np.array_split(curve, 10)]}


if __name__ == "__main__":
    raise SystemExit(main())
