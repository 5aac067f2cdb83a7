"""`python -m srl_ray.plot run=PATH`: the curves of a run as one picture. Works while the run goes on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from srl_ray.core.errors import ConfigError
from srl_ray.evaluation.command import OK, Option, read_options, run_command

HELP = """\
Draw the curves of a run: returns, losses, rates, staleness and the environment's own statistics.

  python -m srl_ray.plot run=PATH

  run=PATH    a run directory, a folder runs/<experiment> (its latest run), or latest

Writes plots/curves.png into the run directory. May be called while the run goes on.
"""

OPTIONS = {"run": Option(Path, "a path")}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; nothing is raised."""
    return run_command(_main, argv, HELP)


def _main(argv: list[str]) -> int:
    options, _ = read_options(argv, OPTIONS, positional="run")
    if options["run"] is None:
        sys.stdout.write(HELP)
        return 2

    from srl_ray.plotting.curves import draw_curves

    sys.stdout.write(f"{draw_curves(_find_run(options['run']))}\n")
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
