"""`python -m srl_ray.render checkpoint=PATH`: a video of an episode, drawn without a display. No Ray."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from srl_ray.core.errors import ConfigError
from srl_ray.evaluation.command import (
    OK,
    Option,
    boolean,
    one_of,
    positive,
    positive_float,
    read_options,
    run_command,
    say,
)

HELP = """\
Film episodes of a trained policy. Needs no display and no Ray; OpenGL only for view=3d.

  python -m srl_ray.render checkpoint=PATH [key=value ...]

  checkpoint=PATH      a folder step_<n>, a run directory (its newest checkpoint), or latest
  out=FILE             default: videos/<checkpoint>.mp4 in the run directory; stills go beside it as .png
  format=mp4           or gif
  fps=15               default: the environment's own speed
  episodes=1           how many, one after the other
  deterministic=false  true: the most likely action in place of a sample
  seed=1               another seed, another episode
  policy=checkpoint    initial: the weights before training; random: uniform actions
  view=top             hide_and_seek from above; 3d: from beside the floor, by OpenGL; auto: 3d where OpenGL can draw
  size=592             width of the picture, pixels
  lidar=false          true: where the agents' range rays end (from above)
  env.KEY=VALUE        another environment setting than in training, e.g. env.kwargs.num_hiders=[3,3]

Examples
  python -m srl_ray.render latest
  python -m srl_ray.render runs/hide_and_seek/latest out=episode.gif seed=4
  MUJOCO_GL=egl python -m srl_ray.render latest view=3d size=720
"""


def frame_size(text: str) -> int:
    """Pixels; rounded down to an even number, as video encoders ask."""
    number = int(text)
    if not 128 <= number <= 2160:
        raise ValueError(text)
    return number // 2 * 2


OPTIONS = {
    "checkpoint": Option(str, "a path"),
    "out": Option(Path, "a path"),
    "format": Option(one_of("mp4", "gif"), "mp4 or gif"),
    "fps": Option(positive_float, "a number above 0"),
    "episodes": Option(positive, "a whole number above 0", 1),
    "deterministic": Option(boolean, "true or false", False),
    "seed": Option(int, "a whole number", 1),
    "policy": Option(one_of("checkpoint", "initial", "random"), "checkpoint, initial or random", "checkpoint"),
    "view": Option(one_of("top", "3d", "auto"), "top, 3d or auto", "top"),
    "size": Option(frame_size, "a whole number from 128 to 2160", 592),
    "lidar": Option(boolean, "true or false", False),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; nothing is raised."""
    return run_command(_main, argv, HELP)


def _main(argv: list[str]) -> int:
    options, overrides = read_options(argv, OPTIONS, positional="checkpoint", sections=("env",))
    if options["checkpoint"] is None:
        sys.stdout.write(HELP)
        return 2
    if options["out"] is not None:
        options["out"] = _with_format(options["out"], options["format"])

    _import_mujoco()
    from srl_ray.config import from_mapping
    from srl_ray.envs.factory import env_name
    from srl_ray.evaluation.loading import find_saved_run, load_policy, use_one_thread
    from srl_ray.rendering.episode import render_episodes
    from srl_ray.rendering.palette import Style

    use_one_thread()
    run = find_saved_run(options["checkpoint"])
    config = from_mapping({**run.config, **overrides})
    which = options["policy"]
    policy = load_policy(run, config.policy, config.env, seed=config.run.seed, which=which)
    name_of_env = env_name(config.env)
    name = run.checkpoint.name + ("" if which == "checkpoint" else f"_{which}")
    path = options["out"] or run.directory / "videos" / f"{name}.{options['format'] or 'mp4'}"
    say(f"filming {options['episodes']} episode(s) of {name_of_env}: {run.title}")
    result = render_episodes(
        policy,
        config.env,
        path,
        episodes=options["episodes"],
        fps=options["fps"],
        deterministic=options["deterministic"],
        seed=options["seed"],
        view=options["view"],
        style=Style(size=options["size"], show_lidar=options["lidar"]),
        title=f"{name_of_env} · {run.checkpoint.name if which == 'checkpoint' else which + ' policy'}",
    )
    for number, record in enumerate(result.episodes, 1):
        returns = ", ".join(f"{agent} {value:g}" for agent, value in record.returns.items())
        sys.stdout.write(f"episode {number}: {record.length} steps, returns: {returns}\n")
    seconds = result.num_frames / result.fps
    sys.stdout.write(f"video:  {result.video} ({seconds:.0f} s at {result.fps:g} frames a second)\n")
    sys.stdout.write(f"stills: {result.sheet}\n")
    return OK


def _import_mujoco() -> None:
    """MuJoCo opens the library that MUJOCO_GL names when it is imported, whether anything is drawn or not; where that
    library is missing, only view=3d should fail, and say what is missing."""
    library = os.environ.pop("MUJOCO_GL", None)
    import mujoco  # noqa: F401

    if library is not None:
        os.environ["MUJOCO_GL"] = library


def _with_format(path: Path, format_: str | None) -> Path:
    """The ending says the format; `format` may give the ending."""
    ending = path.suffix.lstrip(".")
    if not ending:
        return path.with_suffix(f".{format_ or 'mp4'}")
    if ending not in ("mp4", "gif"):
        raise ConfigError(f"out={path}: a video's name ends in .mp4 or .gif.")
    if format_ is not None and ending != format_:
        raise ConfigError(f"out={path} contradicts format={format_}.")
    return path


if __name__ == "__main__":
    sys.exit(main())
