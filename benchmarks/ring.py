"""What a ring of environment blocks hides, with a simulated accelerator, beside a discrete-event model of the same.

    python benchmarks/ring.py                                # measure and print, five to six minutes
    python benchmarks/ring.py --write docs/performance.md    # the table between <!-- ring --> and <!-- /ring --> too

A real actor worker and a real policy worker, each in its process on a local Ray, with shared memory between them; only
the environments and the policy are simulated (`ring_simulation`), and a stand-in for the trainer grants every chunk and
drops it. Rings go in turns; a speed-up is a ring's rate over that of a ring of one in the same mode and turn.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ring_model import block_steps_per_s, closed_formula, speed_up
from ring_simulation import AnyReady, SimulatedAccelerator, SteadyBlock

from srl_ray.actors.config import ActorsConfig
from srl_ray.actors.worker import ActorSettings, ActorWorker
from srl_ray.benchmark.intervals import Estimate, estimate
from srl_ray.benchmark.results import replace_marked
from srl_ray.core.types import ChunkLayout
from srl_ray.envs.config import EnvConfig
from srl_ray.models.config import CustomPolicyConfig
from srl_ray.param_server.client import ParameterClient
from srl_ray.param_server.service import start_parameter_service
from srl_ray.param_server.weights import snapshot
from srl_ray.plotting.curves import COLORS, INK, SOFT_INK, decorate, new_figure, save_figure
from srl_ray.policy.config import PolicyWorkersConfig
from srl_ray.policy.worker import PolicyWorker, PolicyWorkerSettings
from srl_ray.streams.sample_buffer import Grant

HERE = Path(__file__).resolve().parent
FIGURE = HERE.parent / "docs" / "images" / "ring.png"
MODES: dict[str, float] = {"pure latency": 64, "one batch at a time": 1, "two batches in flight": 2}
"""Name → `policy_workers.batches_in_flight`."""
RINGS = (1, 2, 4, 8)
ENVS = 16
_SETTLE_S = 0.3
ALLOWED = 0.10
"""How far measured speed-ups may be from the model's."""


class NullTrainer:
    """Grants what is asked for and keeps nothing."""

    def push(self, producer: Any, message: Any, want: int, deadline_s: float) -> Grant:
        return self.ask(producer, want, deadline_s)

    def ask(self, producer: Any, want: int, deadline_s: float) -> Grant:
        return Grant(granted=want, accepted=True, version=0, epoch=0)


class RingWorker(ActorWorker):
    """An actor worker that can be held, and that may pass over blocks whose answer is not there."""

    def __init__(self, settings: ActorSettings) -> None:
        super().__init__(settings)
        self._may_go = threading.Event()

    def connect(self, *args: Any) -> dict[str, float]:
        facts = super().connect(*args)
        if self.settings.env.kwargs["is_any_ready"]:
            assert self._inference is not None
            self._inference = AnyReady(self._inference, self.settings.actors.ring)
        return facts

    def _advance(self, slot: Any) -> None:
        if self._may_go.wait(0.05):
            super()._advance(slot)

    def rate(self, seconds: float) -> float:
        """Go, and return block steps per second after a while to settle; in a thread of its own."""
        self._may_go.set()
        time.sleep(_SETTLE_S)
        counts = []
        for pause_s in (seconds, 0.0):
            counts.append((time.monotonic(), self._report.env_steps))
            time.sleep(pause_s)
        self._may_go.clear()
        (begin_s, first), (end_s, last) = counts
        return (last - first) / (end_s - begin_s) / self.settings.env.envs_per_block


def steady_block(num_envs: int, step_s: float, is_any_ready: bool = False) -> SteadyBlock:
    return SteadyBlock(num_envs, step_s)


@dataclass
class Bench:
    """One policy worker of one mode, and rings that ask it."""

    step_s: float
    latency_s: float
    in_flight: float
    spread: float = 0.0
    _handles: list[Any] = field(default_factory=list)

    def __enter__(self) -> Bench:
        self._namespace = uuid.uuid4().hex
        spec = SteadyBlock(ENVS, self.step_s).spec
        self._policy = CustomPolicyConfig(
            target="ring_simulation:SimulatedAccelerator", kwargs={"latency_s": self.latency_s, "spread": self.spread}
        )
        workers = PolicyWorkersConfig(count=1, batches_in_flight=int(self.in_flight))
        settings = PolicyWorkerSettings(0, 0, 1, workers, self._policy, self._namespace, "main")
        service = start_parameter_service(self._namespace)
        self._worker = _start(PolicyWorker, settings)
        self._trainer = _start(NullTrainer)
        self._handles = [service, self._worker, self._trainer]
        self._signature = ray.get(self._worker.setup.remote(spec), timeout=60)
        self._running = [self._worker.run.remote()]
        policy = SimulatedAccelerator(spec.group.obs, spec.group.action, self._policy)
        ParameterClient(self._namespace, "main").publish(snapshot(policy), epoch=0, version=0)
        return self

    def add(self, ring: int, *, is_any_ready: bool = False) -> Any:
        """An actor worker with this ring that waits for `rate`."""
        kwargs = {"step_s": self.step_s, "is_any_ready": is_any_ready}
        settings = ActorSettings(
            index=len(self._handles),
            epoch=0,
            seed=1,
            env=EnvConfig(factory="ring:steady_block", kwargs=kwargs, envs_per_block=ENVS),
            actors=ActorsConfig(ring_size=ring),
            policy=self._policy,
            layout=ChunkLayout(0, 128, 1, 128),
            inline=False,
            namespace=self._namespace,
            policy_name="main",
        )
        actor = _start(RingWorker, settings)
        self._handles.append(actor)
        ray.get(actor.setup.remote(), timeout=60)
        facts = ray.get(actor.connect.remote(self._signature, self._worker, [self._trainer]), timeout=60)
        assert facts["shared_memory"], "the transport is part of what is measured"
        self._running.append(actor.run.remote())
        return actor

    def __exit__(self, *_: Any) -> None:
        for handle in reversed(self._handles):
            ray.kill(handle)


def _start(cls: Any, *args: Any) -> Any:
    return ray.remote(cls).options(num_cpus=0, max_concurrency=16).remote(*args)


@dataclass(frozen=True)
class Row:
    """A ring in a mode: its speed-up by measurement and by the model, and its block steps per second."""

    mode: str
    ring: int
    measured: Estimate
    model: float
    rate: float

    @property
    def is_close(self) -> bool:
        return abs(self.measured.center / self.model - 1) <= ALLOWED


def in_turns(actors: dict[Any, Any], args: argparse.Namespace) -> dict[Any, list[float]]:
    """Rates of each of these actor workers, turn by turn."""
    found: dict[Any, list[float]] = {key: [] for key in actors}
    for _ in range(args.turns):
        for key, actor in actors.items():
            found[key].append(ray.get(actor.rate.remote(args.window_s), timeout=60))
    return found


def measure(args: argparse.Namespace) -> list[Row]:
    rows = []
    for mode, in_flight in MODES.items():
        with Bench(args.step_s, args.latency_s, in_flight) as bench:
            found = in_turns({ring: bench.add(ring) for ring in RINGS}, args)
        for ring, rates in found.items():
            ups = [rate / alone for rate, alone in zip(rates, found[1])]
            model = speed_up(ring, args.latency_s, args.step_s, in_flight=in_flight)
            rows.append(Row(mode, ring, estimate(ups), model, statistics.median(rates)))
            print(rows[-1], flush=True)
    return rows


def measure_order(args: argparse.Namespace) -> list[str]:
    """Lines of a table: stepping the next block whose answer is there, over strict turns."""
    lines = ["| latency | ring | any ready over strict turns | model |", "|---|--:|--:|--:|"]
    for name, spread in (("always the same", 0.0), ("uniform, ± 80 %", 0.8)):
        for ring in (2, 4, 8):
            with Bench(args.step_s, args.latency_s, MODES["pure latency"], spread) as bench:
                found = in_turns({order: bench.add(ring, is_any_ready=order) for order in (False, True)}, args)
            gain = estimate([ready / strict for strict, ready in zip(found[False], found[True])])
            model = [modelled(args, ring, spread, order) for order in (False, True)]
            lines.append(f"| {name} | {ring} | {shown(gain)} | {model[1] / model[0]:.2f} |")
            print(lines[-1], flush=True)
    return lines


def shown(found: Estimate) -> str:
    return f"{found.center:.2f} [{found.low:.2f}, {found.high:.2f}]"


def modelled(args: argparse.Namespace, ring: int, spread: float, is_any_ready: bool) -> float:
    draws, latency_s = random.Random(0), args.latency_s

    def draw() -> float:
        return latency_s * draws.uniform(1 - spread, 1 + spread)

    return block_steps_per_s(ring, draw, args.step_s, is_any_ready=is_any_ready, num_steps=20_000)


def table(rows: list[Row], args: argparse.Namespace) -> str:
    lines = [
        "| | ring | block steps/s | speed-up | model | measured / model | `min(ring, 1 + latency / step)` |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        formula = closed_formula(row.ring, args.latency_s, args.step_s)
        lines.append(
            f"| {row.mode} | {row.ring} | {row.rate:.0f} | {shown(row.measured)} | {row.model:.2f} "
            f"| {row.measured.center / row.model:.2f} | {f'{formula:.2f}' if row.mode == 'pure latency' else ''} |"
        )
    what = f"Block step {args.step_s * 1e3:g} ms, latency {args.latency_s * 1e3:g} ms"
    return "\n".join([*lines, "", f"{what}; medians of {args.turns} turns of {args.window_s:g} s [95 % interval].", ""])


def draw(rows: list[Row], args: argparse.Namespace, out: Path) -> None:
    figure = new_figure(7.0, 4.2, "")
    axes = figure.add_subplot(1, 1, 1)
    times = f"step {args.step_s * 1e3:g} ms, latency {args.latency_s * 1e3:g} ms"
    decorate(axes, f"speed-up over a ring of one, model (lines) and measured (points); {times}")
    for color, (mode, in_flight) in zip(COLORS, MODES.items()):
        sizes = range(1, max(RINGS) + 1)
        model = [speed_up(size, args.latency_s, args.step_s, in_flight=in_flight) for size in sizes]
        axes.plot(sizes, model, color=color, linewidth=1.5, label=mode)
        mine = [row for row in rows if row.mode == mode]
        ups = [row.measured for row in mine]
        bars = [[up.center - up.low for up in ups], [up.high - up.center for up in ups]]
        axes.errorbar([row.ring for row in mine], [up.center for up in ups], bars, color=color, fmt="o", markersize=5,
                      capsize=3)  # fmt: skip
    axes.set_xlabel("blocks in the ring", fontsize=8, color=SOFT_INK)
    axes.set_ylim(bottom=0.0)
    axes.legend(fontsize=8, frameon=False, loc="lower right", labelcolor=INK)
    save_figure(figure, out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-s", type=float, default=0.006)
    parser.add_argument("--latency-s", type=float, default=0.021)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--window-s", type=float, default=1.0)
    parser.add_argument("--write", type=Path, help="replace the tables of this page, and draw the figure")
    parser.add_argument("--no-order", action="store_true", help="leave out the comparison of any-ready with turns")
    args = parser.parse_args()
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        rows = measure(args)
        order = [] if args.no_order else measure_order(args)
    finally:
        ray.shutdown()
    print(table(rows, args))
    if args.write:
        replace_marked(args.write, "ring", table(rows, args))
        if order:
            replace_marked(args.write, "ring-order", "\n".join([*order, ""]))
        draw(rows, args, FIGURE)
    far = [f"{row.mode}, ring {row.ring}" for row in rows if not row.is_close]
    if far:
        print(f"more than {ALLOWED:.0%} from the model: {'; '.join(far)}", file=sys.stderr)
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())
