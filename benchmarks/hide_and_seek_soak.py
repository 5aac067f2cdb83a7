"""Random play of hide-and-seek for millions of environment steps: what crashes, blows up, escapes or leaks?

    python benchmarks/hide_and_seek_soak.py --steps 10_000_000 --num-envs 64 --out soak.json
    python benchmarks/hide_and_seek_soak.py --steps 0 --sleep-episodes 200  # does sleep change the statistics?

Every combination of preset, scenario and team sizes has a block of its own, and the blocks take turns. A third of the
environments draws a new action in every step, a third holds one for four steps, and a third rushes with full force for
sixteen; grabbing is asked in 90 %, locking in 30 % of the decisions.

Progress comes every 30 seconds; Ctrl-C or SIGTERM ends the run early, with its report. The exit status is 1 after a
crash, a number that is not finite (observed, or warned about by MuJoCo), an agent beyond a walled border, growth of the
process's memory, or statistics that sleep changes. Episodes that the environment discards are counted as well; by
themselves they fail nothing.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import traceback
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import mujoco
import numpy as np
import psutil

from srl_ray.envs.block import BlockStep
from srl_ray.envs.hide_and_seek import HideAndSeekBlock, make_block

TURN = 40
"""Steps of a block before it is the next one's turn."""
REPORT_EVERY_S = 30.0
WARM_UP = 0.1
"""Share of the steps after which memory must not grow any more."""
SEEDS_PER_RUN = 1000
"""Cases get seeds of their own, as the same worlds and actions again would find nothing new."""
HOLD = np.array([1, 4, 16])
FULL_FORCE = np.array([0, 5, 10])
WARNINGS = [
    name.removeprefix("mjWARN_").lower() for name in mujoco.mjtWarning.__members__ if name.startswith("mjWARN_")
]


@dataclass
class Counts:
    """What happened in the environments of one block; `max_speed` in m/s, along any axis, without failed steps."""

    steps: int = 0
    episodes: int = 0
    discarded: int = 0
    crashes: int = 0
    not_finite: int = 0
    escapes: int = 0
    too_fast: int = 0
    max_speed: float = 0.0
    warnings: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WARNINGS, 0))

    @property
    def faults(self) -> int:
        return (
            self.crashes
            + self.not_finite
            + self.escapes
            + sum(self.warnings[f"badq{x}"] for x in ("pos", "vel", "acc"))
        )


class Case:
    """A block with a preset, a scenario and team sizes, under random play."""

    def __init__(self, preset: str, scenario: str, teams: str, seed: int, args: argparse.Namespace) -> None:
        self.name = f"{preset} {scenario} {teams}"
        hiders, seekers = (tuple(int(x) for x in side.split("-")) for side in teams.split("v"))
        self._settings: dict[str, Any] = {
            "preset": preset,
            "scenario": scenario,
            "num_hiders": (hiders[0], hiders[-1]),
            "num_seekers": (seekers[0], seekers[-1]),
            "threads": args.threads,
        }
        self._num_envs = args.num_envs
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        self._hold = HOLD[np.arange(args.num_envs) % len(HOLD)]
        self.counts = Counts()
        self._begin()

    def _begin(self) -> None:
        self._block = make_block(self._num_envs, **self._settings)
        self._actions = np.zeros((self._num_envs, self._block.spec.group.num_agents, 5), np.int64)
        watch_physics(self._block, self.counts)
        self._block.reset(self._seed)

    def play(self, steps: int) -> None:
        """Step every environment; a crash costs the block, not the run."""
        try:
            for _ in range(steps):
                self._draw_actions()
                self._count(self._block.step(self._actions))
        except Exception:
            print(f"crash in {self.name}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            self.counts.crashes += 1
            self._seed += SEEDS_PER_RUN
            self._begin()

    def _draw_actions(self) -> None:
        tick = self.counts.steps // self._num_envs
        decides = np.nonzero(tick % self._hold == 0)[0]
        shape = (len(decides), self._actions.shape[1])
        actions = np.empty((*shape, 5), np.int64)
        actions[..., :3] = self._rng.integers(11, size=(*shape, 3))
        rushes = self._hold[decides] == HOLD[-1]
        actions[rushes, :, :2] = self._rng.choice(FULL_FORCE, size=(rushes.sum(), shape[1], 2))
        actions[..., 3:] = self._rng.random((*shape, 2)) < (0.9, 0.3)
        self._actions[decides] = actions

    def _count(self, answer: BlockStep) -> None:
        counts = self.counts
        counts.steps += self._num_envs
        counts.episodes += len(answer.episodes)
        counts.discarded += sum(record.discarded for record in answer.episodes)
        numbers = [answer.reward, *answer.obs.values(), *answer.final_obs.values()]
        counts.not_finite += sum(int((~np.isfinite(number)).sum()) for number in numbers if number.dtype != bool)
        layouts = [layout for layout in self._block.episodes.layouts if layout is not None]
        border = np.array([layout.floor_size if layout.has_outer_walls else np.inf for layout in layouts])
        places, border = answer.obs["self"][..., :2], border[:, None, None]
        is_outside = ((places < 0) & np.isfinite(border)) | (places > border)
        counts.escapes += int((is_outside.any(axis=2) & answer.present).sum())


def watch_physics(block: HideAndSeekBlock, counts: Counts) -> None:
    """Count what the simulations do before the block replaces the failed ones."""
    physics = block.physics
    step = physics.step

    def watched() -> np.ndarray:
        before = physics.batch.warning[:, :, 1].copy()
        failed = step()
        warned = physics.batch.warning[:, :, 1] - before
        for kind, count in zip(WARNINGS, warned.sum(axis=0)):
            counts.warnings[kind] += int(count)
        counts.too_fast += int((failed & ~warned.any(axis=1)).sum())
        sound = physics.velocity[~failed, :, :3]
        counts.max_speed = max(counts.max_speed, float(np.abs(sound).max(initial=0.0)))
        return failed

    physics.step = watched  # type: ignore[method-assign]


def soak(args: argparse.Namespace) -> dict[str, Any]:
    """Play all cases in turn until the steps are done or the run is interrupted."""
    process = psutil.Process()
    names = product(args.presets, args.scenarios, args.teams)
    cases = [Case(*name, args.seed * SEEDS_PER_RUN + index, args) for index, name in enumerate(names)]
    begin = last = perf_counter()
    done, turn, warm = 0, 0, 0
    try:
        while done < args.steps:
            case = cases[turn % len(cases)]
            before = case.counts.steps
            case.play(TURN)
            done += max(1, case.counts.steps - before)
            turn += 1
            if not warm and turn >= len(cases) and done >= WARM_UP * args.steps:
                warm = process.memory_info().rss
            now = perf_counter()
            if now - last > REPORT_EVERY_S:
                last = now
                report = summarise(cases, now - begin, warm, process.memory_info().rss)
                print(progress(report, args.steps), flush=True)
                save(report, args.out)
    except KeyboardInterrupt:
        print(f"interrupted after {done:,} of {args.steps:,} steps", flush=True)
    report = summarise(cases, perf_counter() - begin, warm, process.memory_info().rss)
    save(report, args.out)
    return report


def summarise(cases: list[Case], seconds: float, warm: int, now: int) -> dict[str, Any]:
    return {
        "cases": {case.name: {**asdict(case.counts), "faults": case.counts.faults} for case in cases},
        "seconds": seconds,
        "rss_mib": now / 2**20,
        "growth_mib": (now - warm) / 2**20 if warm else None,
    }


def save(report: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n")


def totals(report: dict[str, Any]) -> dict[str, Any]:
    rows = list(report["cases"].values())
    keys = ("steps", "episodes", "discarded", "crashes", "not_finite", "escapes", "too_fast", "faults")
    total: dict[str, Any] = {key: sum(row[key] for row in rows) for key in keys}
    total["max_speed"] = max(row["max_speed"] for row in rows)
    total["warnings"] = {kind: sum(row["warnings"][kind] for row in rows) for kind in WARNINGS}
    return total


def progress(report: dict[str, Any], steps: int) -> str:
    total = totals(report)
    return (
        f"{report['seconds']:7,.0f} s  {total['steps']:12,} of {steps:,} steps, "
        f"{total['steps'] / report['seconds']:,.0f}/s, {total['episodes']:,} episodes, {total['discarded']} discarded, "
        f"{total['faults']} faults, at most {total['max_speed']:.1f} m/s, {report['rss_mib']:,.0f} MiB"
    )


def table(report: dict[str, Any]) -> str:
    head = (
        "case",
        "steps",
        "episodes",
        "discarded",
        "crashes",
        "not finite",
        "escapes",
        "too fast",
        "max m/s",
        "warnings",
    )
    rows = [head]
    for name, row in [*report["cases"].items(), ("all", totals(report))]:
        warnings = " ".join(f"{kind}={count}" for kind, count in row["warnings"].items() if count) or "0"
        keys = ("steps", "episodes", "discarded", "crashes", "not_finite", "escapes", "too_fast")
        rows.append((name, *(f"{row[key]:,}" for key in keys), f"{row['max_speed']:.1f}", warnings))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        )
        for row in rows
    )


def sleep_differences(preset: str, episodes: int, threads: int) -> dict[str, tuple[float, float, float]]:
    """Statistic → its mean with sleep, without, and their difference in standard errors of the paired difference."""
    summaries = []
    for is_sleep_on in (True, False):
        block = make_block(episodes, preset=preset, threads=threads)
        if not is_sleep_on:
            block.physics.batch.expand("opt.enableflags")[...] &= ~int(mujoco.mjtEnableBit.mjENBL_SLEEP)
        block.reset(seed=0)
        rng = np.random.default_rng(0)
        records: list[Any] = []
        actions = np.zeros((episodes, block.spec.group.num_agents, 5), np.int64)
        for step in range(block.config.steps):
            if step % 4 == 0:
                actions[..., :3] = rng.integers(11, size=actions[..., :3].shape)
                actions[..., 3:] = rng.random((*actions.shape[:2], 2)) < (0.9, 0.3)
            records += block.step(actions).episodes
        summaries.append([record.summary for record in sorted(records, key=lambda record: record.env_index)])
    result = {}
    for key in summaries[0][0]:
        asleep, awake = (np.array([summary[key] for summary in each]) for each in summaries)
        error = (asleep - awake).std(ddof=1) / np.sqrt(episodes)
        deviation = float((asleep - awake).mean() / error) if error > 1e-4 else 0.0
        result[key] = (float(asleep.mean()), float(awake.mean()), deviation)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000, help="environment steps of all cases together")
    parser.add_argument("--num-envs", type=int, default=64, help="environments of a case")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--presets", nargs="+", default=["faithful", "default", "fast"])
    parser.add_argument("--scenarios", nargs="+", default=["randomwalls", "quadrant"])
    parser.add_argument("--teams", nargs="+", default=["1v1", "1-3v1-3", "3v3"], help="e.g. 2v2, or 1-3v3 for a range")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-growth-mib", type=float, default=64.0, help="of memory after a tenth of the steps")
    parser.add_argument("--sleep-episodes", type=int, default=0, help="episodes with and without sleep, per preset")
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    has_failed = False
    if args.steps:
        report = soak(args)
        growth = report["growth_mib"]
        print(table(report))
        print(
            f"{report['seconds']:,.0f} s, {report['rss_mib']:,.0f} MiB, growth after warm-up "
            + ("unknown: the run was too short" if growth is None else f"{growth:+.1f} MiB")
        )
        has_failed = totals(report)["faults"] > 0 or (growth is not None and growth > args.max_growth_mib)
    for preset in args.presets if args.sleep_episodes else ():
        print(f"\nsleep in the preset {preset}, {args.sleep_episodes} episodes: on, off, difference in standard errors")
        for key, (asleep, awake, deviation) in sleep_differences(preset, args.sleep_episodes, args.threads).items():
            print(f"  {key:22s} {asleep:9.3f} {awake:9.3f} {deviation:+6.2f}")
            has_failed |= abs(deviation) > 4.0
    print("FAILED" if has_failed else "passed")
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
