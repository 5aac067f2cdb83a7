"""`python -m srl_ray.plot run=PATH`: the curves of a run, or of several, as one picture. Works while a run goes on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from srl_ray.core.errors import ConfigError
from srl_ray.evaluation.command import OK, Option, list_of, read_options, run_command

HELP = """\
Draw the curves of a run: returns, losses, rates, staleness and the environment's own statistics.

  python -m srl_ray.plot run=PATH [key=value ...]

  run=PATH       a run directory, a folder runs/<experiment> (its latest run), or latest
  run=[A,B,C]    several runs, equal but for their seed: the mean over them and its 95 % confidence band, as far as
                 all of them got. Paths may be given one by one, too: python -m srl_ray.plot A B C
  out=FILE.png   default: plots/curves.png in the run directory; of several runs, beside the first
  only=A,B       only the panels whose title contains one of these texts: only=return,seen,entropy

May be called while a run goes on. Of a run of hide-and-seek, also draws plots/stages.png and says which stage of the
published autocurriculum it has reached.
"""

OPTIONS = {
    "run": Option(list_of(Path), "a path, or [path,path]", is_repeatable=True),
    "out": Option(Path, "a path"),
    "only": Option(list_of(str), "parts of titles, with commas between them", ()),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; nothing is raised."""
    return run_command(_main, argv, HELP)


def _main(argv: list[str]) -> int:
    options, _ = read_options(argv, OPTIONS, positional="run")
    if options["run"] is None:
        sys.stdout.write(HELP)
        return 2

    from srl_ray.plotting.curves import draw_curves
    from srl_ray.plotting.records import read_records
    from srl_ray.plotting.stages import draw_stages, tell_stages

    runs = list(dict.fromkeys(_find_run(path) for path in options["run"]))
    sys.stdout.write(f"{draw_curves(runs, options['out'], only=options['only'])}\n")
    for run in runs:
        records = read_records(run)
        if "hiders_seen_fraction" in records.summary_names:
            if len(runs) == 1 and not options["out"] and not options["only"]:
                sys.stdout.write(f"{draw_stages(run)}\n")
            name = f"{run.name}: " if len(runs) > 1 else ""
            sys.stdout.write(f"{name}{tell_stages(run, records)[1]}\n")
    return OK


def _find_run(path: Path) -> Path:
    """The run directory meant by a path."""
    if str(path) == "latest" and not path.exists():
        runs = [file.parent for file in Path("runs").glob("*/*/metrics.jsonl") if not file.parent.is_symlink()]
        if not runs:
            raise ConfigError(f"run=latest: there is no run below {Path('runs').absolute()}. Give a path: run=PATH.")
        return max(runs, key=lambda run: (run / "metrics.jsonl").stat().st_mtime)
    if not (path / "metrics.jsonl").exists() and (path / "latest").is_dir():
        return (path / "latest").resolve()
    return path


if __name__ == "__main__":
    sys.exit(main())
