"""`python -m srl_ray.evaluate checkpoint=PATH`: play episodes with a trained policy and say how it did. No Ray."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from srl_ray.core.errors import ConfigError
from srl_ray.evaluation.command import OK, Option, boolean, one_of, positive, read_options, run_command, say

HELP = """\
Play episodes with a trained policy and print exact returns. Starts no Ray and no workers.

  python -m srl_ray.evaluate checkpoint=PATH [key=value ...]

  checkpoint=PATH      a folder step_<n>, a run directory (its newest checkpoint), or latest
  episodes=20          how many; equally many from every environment
  deterministic=true   the most likely action; false: sampled as in training
  seed=1               of environments and sampling; the same seed and num_envs take the same actions
  num_envs=N           environments stepped together; default: one per episode, up to 16
  policy=checkpoint    initial: the weights before training; random: uniform actions
  team=NAME            with opponent: the team that plays by this policy, e.g. seekers
  opponent=PATH        what every other team plays by: another run, initial or random; default: the same policy
  out=FILE             where the numbers go; default: evaluation.json in the run directory
  env.KEY=VALUE        another environment setting than in training, e.g. env.kwargs.num_hiders=[2,2]

Examples
  python -m srl_ray.evaluate latest
  python -m srl_ray.evaluate checkpoint=runs/cartpole/latest episodes=100
  python -m srl_ray.evaluate checkpoint=runs/cartpole/latest policy=initial      what training has brought
  python -m srl_ray.evaluate latest team=seekers opponent=initial deterministic=false
"""

OPTIONS = {
    "checkpoint": Option(str, "a path"),
    "episodes": Option(positive, "a whole number above 0", 20),
    "deterministic": Option(boolean, "true or false", True),
    "seed": Option(int, "a whole number", 1),
    "num_envs": Option(positive, "a whole number above 0"),
    "policy": Option(one_of("checkpoint", "initial", "random"), "checkpoint, initial or random", "checkpoint"),
    "team": Option(str, "a team's name"),
    "opponent": Option(str, "a path, initial or random"),
    "out": Option(Path, "a path"),
}
PROGRESS_S = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; nothing is raised."""
    return run_command(_main, argv, HELP)


def _main(argv: list[str]) -> int:
    options, overrides = read_options(argv, OPTIONS, positional="checkpoint", sections=("env",))
    if options["checkpoint"] is None:
        sys.stdout.write(HELP)
        return 2

    from srl_ray.config import from_mapping
    from srl_ray.envs.factory import make_block
    from srl_ray.evaluation.evaluator import MAX_ENVS, evaluate_block
    from srl_ray.evaluation.loading import find_saved_run, load_policy, use_one_thread

    use_one_thread()
    run = find_saved_run(options["checkpoint"])
    config = from_mapping({**run.config, **overrides})
    episodes, which, team, opponent = (options[key] for key in ("episodes", "policy", "team", "opponent"))
    block = make_block(config.env, min(episodes, options["num_envs"] or MAX_ENVS))
    try:
        policy: Any = load_policy(run, config.policy, block.spec, seed=config.run.seed, which=which)
        if team is not None or opponent is not None:
            policy = _against(policy, run, config, block.spec, team=team, opponent=opponent)
        result = evaluate_block(
            policy,
            block,
            episodes=episodes,
            deterministic=options["deterministic"],
            seed=options["seed"],
            on_progress=_progress(episodes),
        )
    finally:
        block.close()
    title = {"checkpoint": run.title, "initial": "initial weights", "random": "uniform random actions"}[which]
    name = "evaluation" if which == "checkpoint" else f"evaluation_{which}"
    document = {"checkpoint": str(run.checkpoint), "policy": which}
    if opponent is not None:
        title += f", as {team} against {opponent}"
        name += f"_{team}_v_{Path(opponent).name}"
        document |= {"team": team, "opponent": opponent}
    sys.stdout.write(table(result, title))
    document |= result.to_mapping()
    _write(options["out"] or run.directory / f"{name}.json", document, is_asked=options["out"] is not None)
    return OK


def _against(own: Any, run: Any, config: Any, spec: Any, *, team: str | None, opponent: str | None) -> dict[str, Any]:
    """Team → policy: `own` for one, the opponent's for every other."""
    from srl_ray.config import from_mapping
    from srl_ray.evaluation.evaluator import team_of_agent
    from srl_ray.evaluation.loading import find_saved_run, load_policy

    teams = sorted(set(team_of_agent(spec.group).values()))
    if opponent is None or team not in teams or len(teams) < 2:
        raise ConfigError(
            f"team={team} opponent={opponent}: give both, in an environment with several teams; "
            f"the teams of {spec.env_id} are: {', '.join(teams)}."
        )
    which = opponent if opponent in ("initial", "random") else "checkpoint"
    if which == "checkpoint":
        run = find_saved_run(opponent)
        config = from_mapping(run.config)
    other = load_policy(run, config.policy, spec, seed=config.run.seed, which=which)
    return {name: own if name == team else other for name in teams}


def table(result: Any, title: str) -> str:
    """An `EvaluationResult` for people."""
    rows: list[tuple[str, Any]] = []
    agents, teams = result.agent_returns, result.team_returns
    if len(agents) == 1:
        rows += [("return", next(iter(agents.values())))]
    else:
        rows += [(f"return of {team} (mean of team)", spread) for team, spread in teams.items()]
        rows += [(f"return of {agent}", spread) for agent, spread in agents.items()]
    rows += [("length", result.length)]
    rows += list(result.summary.items())
    width = max(len(name) for name, _ in rows)
    how = "most likely actions" if result.deterministic else "sampled actions"
    lines = [
        f"{result.env_id}: {len(result.episodes)} episodes, {how}, seed {result.seed}, {result.num_envs} environments",
        f"policy: {title}",
        "",
        f"{'':<{width}}  {'mean':>10}  {'std':>10}  {'min':>10}  {'max':>10}  {'episodes':>8}",
    ]
    for name, spread in rows:
        numbers = "  ".join(f"{value:>10.4g}" for value in (spread.mean, spread.std, spread.min, spread.max))
        lines.append(f"{name:<{width}}  {numbers}  {spread.count:>8}")
    if result.discarded:
        lines.append(f"{result.discarded} broken episodes were discarded and replaced")
    rate = result.env_steps / max(result.seconds, 1e-9)
    lines += ["", f"actions {result.actions_hash}, {result.env_steps:,} steps at {rate:,.0f} a second", ""]
    return "\n".join(lines)


def _progress(episodes: int) -> Callable[[int, int], None]:
    shown = time.monotonic()

    def show(finished: int, env_steps: int) -> None:
        nonlocal shown
        if time.monotonic() - shown > PROGRESS_S:
            shown = time.monotonic()
            say(f"{finished} of {episodes} episodes, {env_steps:,} steps")

    return show


def _write(path: Path, document: dict[str, Any], *, is_asked: bool) -> None:
    """Write the numbers; a checkpoint in a place that cannot be written is no failure unless a file was asked for."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if is_asked:
            path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(_finite(document), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        if is_asked:
            raise
        say(f"note: not written to {path}: {error.strerror}; out=FILE writes elsewhere")
        return
    say(f"written to {path}")


def _finite(value: Any) -> Any:
    """JSON has no NaN: those become null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    sys.exit(main())
