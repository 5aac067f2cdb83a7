"""`python -m srl_ray.benchmark SUITE [key=value ...]`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from srl_ray.benchmark import results, suites
from srl_ray.benchmark.limits import measure_limits
from srl_ray.benchmark.tasks import task_config, task_overrides
from srl_ray.benchmark.training import measure_training
from srl_ray.core.errors import ConfigError
from srl_ray.evaluation.command import OK, Option, list_of, one_of, positive, positive_float, read_options, run_command

HELP = """\
Measure this machine and what a training run makes of it.

  python -m srl_ray.benchmark SUITE [key=value ...]

  limits               bare environment, bare inference, bare update: what the machine could do at most
  throughput           training runs: rates, share of the limit, start-up, processor time, memory
  ablation             the same with one thing changed at a time
  tables               no measurement: only write the tables again

  tasks=cartpole,...   of cartpole, cheetah, pong (each also with -wide), hide_and_seek
  repeats=5            runs of each variant, in turns (A B A B ...)
  seconds=20           steady state that is measured per run
  cores=N              processes of the limits; default: the cores this process may use
  out=FILE             results are added here; default: benchmarks/results/throughput.json
  write=FILE           Markdown page whose marked tables are replaced, e.g. docs/performance.md

Leave the machine alone meanwhile. An interrupted suite goes on where it was: only missing repeats are run.
"""

OPTIONS = {
    "suite": Option(one_of("limits", "throughput", "ablation", "tables"), "limits, throughput, ablation or tables"),
    "tasks": Option(list_of(str), "names with commas", ["cartpole", "hide_and_seek"]),
    "repeats": Option(positive, "a whole number above 0", 5),
    "seconds": Option(positive_float, "a number above 0", 20.0),
    "cores": Option(positive, "a whole number above 0"),
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
    if suite != "tables":
        _measure(suite, options)
    entries = results.load(out)
    if options["write"] is not None:
        written = results.write_tables(options["write"], entries)
        print(f"{options['write']}: {', '.join(written) or 'no marked table'}")
    if suite != "tables":
        print(results.table(entries, suite))
    return OK


def _measure(suite: str, options: dict[str, Any]) -> None:
    """Repeat by repeat, so that variants take turns and a busy minute hits all of them."""
    out, repeats = options["out"], options["repeats"]
    plan = [
        (task, variant, measure) for task in options["tasks"] for variant, measure in _variants(suite, task, options)
    ]
    for repeat in range(repeats):
        for task, variant, measure in plan:
            done = [e for e in results.load(out) if (e.suite, e.task, e.variant) == (suite, task, variant)]
            if len(done) > repeat:
                continue
            begin = time.monotonic()
            values = measure()
            results.append(out, results.measurement(suite, task, variant, values))
            shown = ", ".join(f"{name} {value:,.1f}" for name, value in values.items())
            print(f"{repeat + 1}/{repeats} {task} {variant} ({time.monotonic() - begin:.0f} s): {shown}", flush=True)


def _variants(suite: str, task: str, options: dict[str, Any]) -> list[tuple[str, Callable[[], dict[str, float]]]]:
    seconds = options["seconds"]
    if suite == "limits":
        cores = options["cores"] or len(os.sched_getaffinity(0))
        return [("bare", lambda: measure_limits(task, seconds=seconds / 4, cores=cores))]
    chosen = suites.THROUGHPUT if suite == "throughput" else suites.ABLATION
    return [(name, _training(task, extra, seconds)) for name, extra in chosen.items()]


def _training(task: str, extra: Sequence[str], seconds: float) -> Callable[[], dict[str, float]]:
    overrides = suites.variant_overrides(task_overrides(task), extra)
    return lambda: measure_training(overrides, seconds=seconds).to_mapping()


if __name__ == "__main__":
    sys.exit(main())
