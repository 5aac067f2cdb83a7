"""`python -m srl_ray.benchmark SUITE [key=value ...]`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from srl_ray.benchmark import figures, peers, results, suites
from srl_ray.benchmark.limits import measure_limits
from srl_ray.benchmark.tasks import task_config, task_overrides
from srl_ray.benchmark.training import measure_training
from srl_ray.core.errors import ConfigError, SrlError
from srl_ray.evaluation.command import (
    FAILURE,
    OK,
    Option,
    list_of,
    one_of,
    positive,
    positive_float,
    read_options,
    run_command,
    say,
)

HELP = """\
Measure this machine and what a training run makes of it.

  python -m srl_ray.benchmark SUITE [key=value ...]

  limits               bare environment, bare inference, bare update: what the machine could do at most
  throughput           training runs: rates, share of the limit, start-up, processor time, memory
  ablation             the same with one thing changed at a time
  peers                the same tasks trained by other systems, in turns with ours
  tables               no measurement: only write the tables again

  tasks=cartpole,...   of cartpole, cheetah, pong (each also with -wide), hide_and_seek
  repeats=5            runs of each variant, in turns (A B A B ...)
  seconds=20           steady state that is measured per run
  cores=N              processes of the limits; default: the cores this process may use
  peers=ours,sb3,...   of ours, cleanrl_envpool, cleanrl_native, cleanrl_sync, sb3, rllib_ppo, rllib_appo, rllib_impala,
                       sample_factory; default: all
  venvs=FOLDER         the peers' virtual environments, made when they are missing; default: ~/.cache/srl_ray/peers
  only=TEXT,...        of the ablation, variants whose name contains one of these
  out=FILE             results are added here; default: benchmarks/results/throughput.json
  write=FILE           Markdown page whose marked tables are replaced, e.g. docs/performance.md, and beside it
                       images/benchmark_ablation.png and images/benchmark_peers.png

Leave the machine alone meanwhile. An interrupted suite goes on where it was: only missing repeats are run.
"""

OPTIONS = {
    "suite": Option(one_of(*results.SUITES, "tables"), f"{', '.join(results.SUITES)} or tables"),
    "tasks": Option(list_of(str), "names with commas", ["cartpole", "hide_and_seek"]),
    "repeats": Option(positive, "a whole number above 0", 5),
    "seconds": Option(positive_float, "a number above 0", 20.0),
    "cores": Option(positive, "a whole number above 0"),
    "peers": Option(list_of(str), "names with commas", list(peers.NAMES)),
    "venvs": Option(Path, "a path", peers.VENVS),
    "only": Option(list_of(str), "texts with commas", [""]),
    "out": Option(Path, "a path", Path("benchmarks/results/throughput.json")),
    "write": Option(Path, "a path"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; nothing is raised."""
    return run_command(_main, argv, HELP)


def _main(argv: list[str]) -> int:
    options, _ = read_options(argv, OPTIONS, positional="suite")
    suite, out = options["suite"], options["out"]
    if suite is None:
        sys.stdout.write(HELP)
        return 2
    if options["write"] is not None and not options["write"].is_file():
        raise ConfigError(f"write={options['write']}: there is no such page.")
    for task in options["tasks"]:
        task_config(task)  # everything that is wrong is said before anything is measured
    if suite == "peers":
        peers.check_names(options["peers"])
    has_all = suite == "tables" or _measure(suite, options)
    entries = results.load(out)
    if options["write"] is not None:
        written = results.write_tables(options["write"], entries)
        for drawn in figures.SUITES:
            figures.draw_suite(entries, drawn, options["write"].parent / "images" / f"benchmark_{drawn}.png")
        print(f"{options['write']}: {', '.join(written) or 'no marked table'}")
    if suite != "tables":
        print(results.table(entries, suite))
    return OK if has_all else FAILURE


def _measure(suite: str, options: dict[str, Any]) -> bool:
    """Repeat by repeat, so that variants take turns and a busy minute hits all of them.

    A run that fails is reported and the others go on; returns whether none did.
    """
    out, repeats, failures = options["out"], options["repeats"], 0
    plan = [
        (task, variant, measure) for task in options["tasks"] for variant, measure in _variants(suite, task, options)
    ]
    for repeat in range(repeats):
        for task, variant, measure in plan:
            done = [e for e in results.load(out) if (e.suite, e.task, e.variant) == (suite, task, variant)]
            if len(done) > repeat:
                continue
            begin = time.monotonic()
            try:
                values = measure()
            except SrlError as error:
                failures += 1
                say(f"{repeat + 1}/{repeats} {task} {variant}: {error}")
                continue
            results.append(out, results.measurement(suite, task, variant, values))
            shown = ", ".join(f"{name} {value:,.1f}" for name, value in values.items())
            print(f"{repeat + 1}/{repeats} {task} {variant} ({time.monotonic() - begin:.0f} s): {shown}", flush=True)
    return failures == 0


def _variants(suite: str, task: str, options: dict[str, Any]) -> list[tuple[str, Callable[[], dict[str, float]]]]:
    seconds = options["seconds"]
    if suite == "limits":
        cores = options["cores"] or len(os.sched_getaffinity(0))
        return [("bare", lambda: measure_limits(task, seconds=seconds / 4, cores=cores))]
    if suite == "peers":
        return _peers(task, options)
    chosen = suites.THROUGHPUT
    if suite == "ablation":
        chosen = {name: v for name, v in suites.ABLATION.items() if any(text in name for text in options["only"])}
    return [(name, _training(task, extra, seconds)) for name, extra in chosen.items()]


def _training(task: str, extra: Sequence[str], seconds: float) -> Callable[[], dict[str, float]]:
    overrides = suites.variant_overrides(task_overrides(task), extra)
    return lambda: measure_training(overrides, seconds=seconds).to_mapping()


def _peers(task: str, options: dict[str, Any]) -> list[tuple[str, Callable[[], dict[str, float]]]]:
    seconds, venvs = options["seconds"], options["venvs"]
    variants: list[tuple[str, Callable[[], dict[str, float]]]] = []
    for name in options["peers"]:
        if reason := peers.reason_to_skip(name, task):
            print(f"{task} {name}: skipped: {reason}", flush=True)
        elif name == results.OURS:
            variants.append((name, _training(task, (), seconds)))
        else:
            peers.prepare(name, venvs)  # installing packages must not disturb a measurement
            variants.append((name, partial(peers.measure_peer, name, task, seconds=seconds, venvs=venvs)))
    return variants


if __name__ == "__main__":
    sys.exit(main())
