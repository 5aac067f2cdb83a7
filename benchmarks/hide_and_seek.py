"""What hide-and-seek costs, layer by layer, against its bare physics.

    python benchmarks/hide_and_seek.py --quick                              # default preset, 2+2, half a minute
    python benchmarks/hide_and_seek.py --write docs/performance.md          # all tables, a quarter of an hour
    python benchmarks/hide_and_seek.py --presets fast --teams 3+3 --threads 2

Blocks of 64 environments play random actions, held for four steps, with grabbing asked in 90 % and locking in 30 % of
the decisions ("grabbing"), or without either ("moving"). Four cohorts of environments are a quarter of an episode
apart, so that every turn of 60 steps holds its share of preparation phases and resets.

"Bare" is `mujoco.batch.Batch.step` alone, in a twin of the block's physics that is given the same worlds, forces, welds
and locks step by step. Block and twin take turns of some seconds, and must end in the same poses to the last bit. The
columns between are what each layer of the block adds; the last is bare over full: the share of the time that is left to
the physics. Every number is the median of the turns, with the range of the share.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import mujoco
import numpy as np

from srl_ray.benchmark.results import replace_marked
from srl_ray.envs.hide_and_seek import HideAndSeekBlock, HideAndSeekConfig
from srl_ray.envs.hide_and_seek import block as block_module
from srl_ray.envs.hide_and_seek.layout import draw_layout
from srl_ray.envs.hide_and_seek.physics import Physics

HOLD_STEPS = 4
WARM_UP_STEPS = 40
LAYERS = ("checks", "rays", "grab_lock", "task", "observation", "reset", "answer")


@dataclass(frozen=True)
class Case:
    """One row of the tables."""

    preset: str = "default"
    scenario: str = "randomwalls"
    teams: str = "2+2"
    is_grabbing: bool = True
    threads: int = 1
    processes: int = 1
    num_envs: int = 64

    def config(self, **kwargs: Any) -> HideAndSeekConfig:
        hiders, seekers = (int(count) for count in self.teams.split("+"))
        return HideAndSeekConfig(
            scenario=self.scenario,
            preset=self.preset,
            num_hiders=(hiders, hiders),
            num_seekers=(seekers, seekers),
            threads=self.threads,
            **kwargs,
        )


@dataclass
class Turn:
    """Microseconds per environment step: of the bare physics, of all, and of every layer."""

    bare: float
    full: float
    layers: dict[str, float]


class Rig:
    """A block, a tape of everything its physics is told, and the twin that plays the tape."""

    def __init__(self, case: Case, config: HideAndSeekConfig, seed: int = 0) -> None:
        self.case = case
        self.block = HideAndSeekBlock(case.num_envs, config)
        self.twin = Physics(case.num_envs, config)
        self.rng = np.random.default_rng(seed)
        self.tape: list[tuple[Any, ...]] = []
        self.taping_seconds = 0.0
        self.clock: Callable[[], float] = vars(block_module)["perf_counter"]
        self._step, self._reset = self.block.physics.step, self.block.physics.reset
        self.block.physics.step = self._taped_step  # type: ignore[method-assign]
        self.block.physics.reset = self._taped_reset  # type: ignore[method-assign]
        self.actions = np.zeros((case.num_envs, config.max_agents, 5), np.int64)
        self.block.reset(seed)
        self.spread_clocks()

    def spread_clocks(self) -> None:
        quarter = self.block.config.steps // 4
        self.block.episodes.step[:] = np.arange(self.case.num_envs) * 4 // self.case.num_envs * quarter
        self.turn(WARM_UP_STEPS)

    def turn(self, steps: int) -> Turn:
        """Play `steps` steps in the block, then again in the twin."""
        before = dict(self.block.stage_seconds)
        self.taping_seconds = full = bare = 0.0
        for step in range(steps):
            if step % HOLD_STEPS == 0:
                self._draw_actions()
            begin = self.clock()
            self.block.step(self.actions)
            full += self.clock() - begin
        full -= self.taping_seconds
        for event in self.tape:
            if len(event) == 3:
                self.twin.reset(*event)
                continue
            inputs = _inputs(self.twin)
            for own, given in zip(inputs, event, strict=True):
                own[...] = given
            begin = self.clock()
            self.twin.batch.step(nstep=self.twin.substeps)
            bare += self.clock() - begin
        self.tape.clear()
        np.testing.assert_array_equal(self.twin.pose, self.block.physics.pose)
        scale = 1e6 / (steps * self.case.num_envs)
        stages = {name: now - before[name] for name, now in self.block.stage_seconds.items()}
        stages["physics"] -= self.taping_seconds
        layers = {"checks": stages.pop("physics") - bare, "answer": full - bare, **stages}
        layers["answer"] -= sum(value for name, value in layers.items() if name != "answer")
        return Turn(bare * scale, full * scale, {name: layers[name] * scale for name in LAYERS})

    def _draw_actions(self) -> None:
        shape = self.actions.shape[:2]
        self.actions[..., :3] = self.rng.integers(11, size=(*shape, 3))
        self.actions[..., 3] = self.case.is_grabbing & (self.rng.random(shape) < 0.9)
        self.actions[..., 4] = self.case.is_grabbing & (self.rng.random(shape) < 0.3)

    def _taped_step(self) -> np.ndarray:
        begin = self.clock()
        self.tape.append(tuple(array.copy() for array in _inputs(self.block.physics)))
        self.taping_seconds += self.clock() - begin
        return self._step()

    def _taped_reset(self, *args: Any) -> None:
        self.tape.append(args)
        self._reset(*args)


def _inputs(physics: Physics) -> tuple[np.ndarray, ...]:
    """What a block may write between steps; velocities too, whose sign of zero wakes what was unlocked."""
    welds = physics.weld_active, physics.weld_object, physics.weld_data
    return physics.control, physics.velocity, *welds, physics.joint_limited, physics.joint_range


def measure(case: Case, turns: int, steps: int, seed: int = 0) -> list[Turn]:
    rig = Rig(case, case.config(), seed)
    return [rig.turn(steps) for _ in range(turns)]


def measure_processes(case: Case, turns: int, steps: int) -> list[Turn]:
    """Several processes at once, as actor workers do; times are those of all of them together."""
    with multiprocessing.get_context("spawn").Pool(case.processes) as pool:
        every = pool.starmap(measure, [(case, turns, steps, seed) for seed in range(case.processes)], chunksize=1)
    return [_together(turn) for turn in zip(*every, strict=True)]


def _together(turns: Sequence[Turn]) -> Turn:
    def parallel(values: Sequence[float]) -> float:
        return 1 / sum(1 / value for value in values)

    layers = {name: sum(turn.layers[name] for turn in turns) / len(turns) ** 2 for name in LAYERS}
    return Turn(parallel([turn.bare for turn in turns]), parallel([turn.full for turn in turns]), layers)


# --- tables -----------------------------------------------------------------------------------------------------------


def layers_table(cases: Sequence[Case], turns: int, steps: int) -> str:
    head = ("preset", "game", "load", "cores", "bare", *LAYERS, "full", "env steps/s", "physics' share")
    lines = [_line(head), _line(["---"] * 4 + ["--:"] * (len(head) - 4))]
    _show(lines[0])
    for case in cases:
        measured = measure_processes(case, turns, steps) if case.processes > 1 else measure(case, turns, steps)
        shares = sorted(turn.bare / turn.full for turn in measured)
        full = median(turn.full for turn in measured)
        cores = (
            f"{case.processes} processes" if case.processes > 1 else f"{case.threads} thread{'s'[: case.threads - 1]}"
        )
        game = "quadrant 2+2" if case.scenario == "quadrant" else case.teams
        row = [case.preset, game, "grabbing" if case.is_grabbing else "moving", cores]
        row += [f"{median(turn.bare for turn in measured):.0f}"]
        row += [f"{median(turn.layers[name] for turn in measured):.1f}" for name in LAYERS]
        row += [f"{full:.0f}", f"{1e6 / full:,.0f}"]
        row += [f"{median(shares):.1%} ({shares[0]:.1%} to {shares[-1]:.1%})"]
        lines.append(_line(row))
        _show(lines[-1])
    return "\n".join(lines) + "\n"


def physics_table(turns: int, steps: int) -> str:
    """The bare physics of the default preset under one change at a time, in turns; processor time of one thread."""
    case = Case()
    exact = {"max_hiders": 2, "max_seekers": 2}
    few = {"num_boxes": (3, 3)}
    variants: dict[str, Callable[[], Rig]] = {
        "as played: model for 3+3, 2+2 play": lambda: Rig(case, case.config()),
        "model for 2+2": lambda: Rig(case, case.config(**exact)),
        "3 boxes in a model for 9": lambda: _rig_with_layouts_of(case, case.config(**few)),
        "3 boxes in a model for 3": lambda: Rig(case, case.config(**few)),
        "nobody acts": lambda: _idle_rig(case),
        "no grabbing": lambda: Rig(replace(case, is_grabbing=False), case.config()),
        "nothing may sleep": lambda: _sleepless_rig(case),
        "agents' arms do not collide": lambda: _armless_rig(case),
    }
    rigs = {name: make() for name, make in variants.items()}
    for rig in rigs.values():
        rig.clock = process_time
    times: dict[str, list[float]] = {name: [] for name in rigs}
    for _ in range(turns):
        for name, rig in rigs.items():
            times[name].append(rig.turn(steps).bare)
    first = next(iter(times.values()))
    lines = [_line(["physics of one env step", "us", "ratio"]), _line(["---", "--:", "--:"])]
    for name, values in times.items():
        ratios = sorted(value / base for value, base in zip(values, first, strict=True))
        spread = "" if values is first else f" ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        lines.append(_line([name, f"{median(values):.0f}", f"{median(ratios):.2f}{spread}"]))
    for line in lines:
        _show(line)
    return "\n".join(lines) + "\n"


def contacts_table(turns: int, steps: int) -> str:
    """A straight line through the time of single simulations over the contacts that their solver had at the end."""
    lines = [
        _line(["preset", "simulations", "fixed, us", "us per contact", "contacts awake"]),
        _line(["---"] + ["--:"] * 4),
    ]
    for preset in ("faithful", "default", "fast"):
        rig = Rig(Case(preset=preset), Case(preset=preset).config())
        data = mujoco.MjData(rig.twin.model)
        samples: list[tuple[float, int]] = []
        for _ in range(turns):
            rig.turn(steps)
            batch = rig.twin.batch
            for sim in range(rig.case.num_envs):
                begin = process_time()
                batch.step(ids=np.array([sim]), nstep=rig.twin.substeps)
                seconds = process_time() - begin
                batch.get_data(sim, data)
                samples.append((seconds * 1e6, int(data.ncon)))
            rig = Rig(rig.case, rig.case.config(), seed=len(samples))  # the twin has gone its own way
        times, contacts = np.array(samples).T
        keep = times < np.quantile(times, 0.95)  # the others were interrupted
        slope, fixed = np.polyfit(contacts[keep], times[keep], 1)
        mean = contacts.mean()
        lines.append(_line([preset, str(len(samples)), f"{fixed:.0f}", f"{slope:.1f}", f"{mean:.1f}"]))
    for line in lines:
        _show(line)
    return "\n".join(lines) + "\n"


def halves_table(turns: int, steps: int) -> str:
    """Two ways to use two cores within a process, in turns."""
    head = ["preset", "one block, physics on two threads", "two half blocks, a Python thread each", "gain"]
    lines = [_line(head), _line(["---"] + ["--:"] * 3)]
    rng = np.random.default_rng(0)
    for preset in ("faithful", "default", "fast"):
        case = Case(preset=preset, threads=2)
        whole = [HideAndSeekBlock(case.num_envs, case.config())]
        halves = [HideAndSeekBlock(case.num_envs // 2, replace(case, threads=1).config()) for _ in range(2)]
        for block in (*whole, *halves):
            block.reset(0)
            block.episodes.step[:] = (
                np.arange(block.spec.num_envs) * 4 // block.spec.num_envs * (block.config.steps // 4)
            )
        actions = rng.integers(0, [11, 11, 11, 2, 2], size=(steps, case.num_envs, 6, 5))
        times: list[list[float]] = [[], []]
        with ThreadPoolExecutor(2) as pool:
            for _ in range(turns + 1):
                for blocks, record in zip((whole, halves), times, strict=True):
                    begin = perf_counter()
                    for step in range(steps):
                        shares = np.split(actions[step // HOLD_STEPS], len(blocks))
                        list(pool.map(HideAndSeekBlock.step, blocks, shares))
                    record.append((perf_counter() - begin) / (steps * case.num_envs) * 1e6)
        one, two = (values[1:] for values in times)  # the first turn warms up
        gains = sorted(a / b - 1 for a, b in zip(one, two, strict=True))
        spread = f"{median(gains):+.0%} ({gains[0]:+.0%} to {gains[-1]:+.0%})"
        lines.append(_line([preset, *(f"{1e6 / median(values):,.0f}/s" for values in (one, two)), spread]))
    for line in lines:
        _show(line)
    return "\n".join(lines) + "\n"


def _rig_with_layouts_of(case: Case, other: HideAndSeekConfig) -> Rig:
    rig = Rig(case, case.config())
    rig.block.task.draw = lambda rng: draw_layout(rng, other)  # type: ignore[method-assign]
    rig.block.reset(1)
    rig.spread_clocks()
    return rig


def _idle_rig(case: Case) -> Rig:
    rig = Rig(case, case.config())
    rig._draw_actions = lambda: rig.actions.__setitem__(..., [5, 5, 5, 0, 0])  # type: ignore[method-assign]
    rig.block.reset(1)
    rig.spread_clocks()
    return rig


def _sleepless_rig(case: Case) -> Rig:
    rig = Rig(case, case.config())
    for physics in (rig.block.physics, rig.twin):
        physics.batch.expand("tree_sleep_policy")[...] = int(mujoco.mjtSleepPolicy.mjSLEEP_NEVER)
        physics._sleep_policy = np.zeros_like(physics._sleep_policy)  # what resets write is not read
    rig.block.reset(1)
    rig.spread_clocks()
    return rig


def _armless_rig(case: Case) -> Rig:
    rig = Rig(case, case.config())
    for physics in (rig.block.physics, rig.twin):
        for slot in range(physics.num_agents):
            first = int(physics.model.body(1 + slot).geomadr[0])
            physics.batch.expand("geom_contype")[:, first + 1 : first + 3] = 0
            physics.batch.expand("geom_conaffinity")[:, first + 1 : first + 3] = 0
    rig.block.reset(1)
    rig.spread_clocks()
    return rig


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _show(line: str) -> None:
    print(line, flush=True)


def write_table(page: Path, name: str, table: str) -> None:
    """Replace what stands between `<!-- name -->` and `<!-- /name -->` in a Markdown page."""
    if not replace_marked(page, name, table):
        raise SystemExit(f"{page} has no place for the table: expected <!-- {name} --> and <!-- /{name} -->")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="default preset, 2+2, three turns, no other tables")
    parser.add_argument("--presets", nargs="+", default=["faithful", "default", "fast"])
    parser.add_argument("--teams", nargs="+", default=["1+1", "2+2", "3+3"], help="hiders+seekers")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60, help="of a turn")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument(
        "--processor-time", action="store_true", help="one thread only, by processor time: on a machine that others use"
    )
    parser.add_argument("--only", choices=["layers", "physics", "contacts", "halves"])
    parser.add_argument("--write", type=Path, help="Markdown page whose tables are replaced")
    args = parser.parse_args()
    if args.quick:
        args.presets, args.teams, args.turns, args.only = ["default"], ["2+2"], 3, "layers"
    if args.processor_time:
        vars(block_module)["perf_counter"] = process_time  # what times the stages of a step
        args.threads = [1]
    cases = [
        Case(preset, scenario, teams, is_grabbing, threads, processes, args.num_envs)
        for preset in args.presets
        for scenario, all_teams in (("randomwalls", args.teams), ("quadrant", ["2+2"]))
        for teams in all_teams
        for is_grabbing in (False, True)
        for threads, processes in [
            *((threads, 1) for threads in args.threads),
            *([] if args.processor_time else [(1, 2)]),
        ]
        if processes == 1 or (scenario, teams) == ("randomwalls", "2+2")
        if not args.quick or scenario == "randomwalls"
    ]
    tables: dict[str, Callable[[], str]] = {
        "layers": lambda: layers_table(cases, args.turns, args.steps),
        "physics": lambda: physics_table(args.turns, args.steps),
        "contacts": lambda: contacts_table(args.turns, args.steps),
        "halves": lambda: halves_table(args.turns, args.steps),
    }
    for name, make in tables.items():
        if args.only in (None, name):
            table = make()
            if args.write:
                write_table(args.write, name, table)


if __name__ == "__main__":
    main()
