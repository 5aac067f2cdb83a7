"""`python -m srl_ray.train experiment=NAME [key=value ...]`: the command that trains.

It reads the configuration once, hands it to `srl_ray.experiment` and turns the outcome into an exit status. Neither Ray
nor torch is imported before the configuration has been found good.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from srl_ray.core.errors import ConfigError, SrlError

if TYPE_CHECKING:
    from srl_ray.config import ExperimentConfig

OK, FAILURE, CONFIGURATION, INTERRUPTED = 0, 1, 2, 130
SIGNALS = (130, 143)

HELP = """\
Train a policy.

  python -m srl_ray.train experiment=NAME [key=value ...]

Experiments
{experiments}

Choices
{choices}

Examples
  python -m srl_ray.train experiment=cartpole
  python -m srl_ray.train experiment=cartpole layout=remote actors.count=2     three kinds of workers, same learning
  python -m srl_ray.train env.id=Acrobot-v1 policy=lstm stop.env_steps=100000  any gymnasium environment
  python -m srl_ray.train env.factory=my_package.envs:make_env env.kwargs.level=3 stop.seconds=600
  python -m srl_ray.train experiment=hide_and_seek run.dir=runs/a run.resume=auto
  python -m srl_ray.train experiment=hide_and_seek cluster.address=HOST:6379 actors.count=64
  python -m srl_ray.train experiment=cartpole run.seed=1,2,3 --multirun

Options
  plan_only=true     print which worker would go where and stop
  --cfg              print the complete configuration and stop
  --config-dir DIR   a directory of your own, laid out like conf/ (DIR/experiment/mine.yaml)
  -m, --multirun     run every combination of comma-separated values
  -h, --help         this text

Every key is listed in docs/configuration.md. Exit status: 0 goal reached, 1 failure, 2 configuration, 130 and 143
stopped by a signal after writing a checkpoint.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; nothing is raised."""
    try:
        return _main(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except Exception as error:
        return report(error)


def report(error: Exception) -> int:
    """Print one readable message (a traceback only for what nobody foresaw) and return the exit status."""
    if isinstance(error, ConfigError):
        _say(f"configuration error: {error}")
        return CONFIGURATION
    if isinstance(error, SrlError):
        _say(f"error: {error}")
        return FAILURE
    traceback.print_exception(error)
    return FAILURE


def _main(argv: list[str]) -> int:
    if {"-h", "--help"} & set(argv):
        sys.stdout.write(help_text())
        return OK
    options, overrides = split_options(argv)
    if options.is_multirun:
        return _sweep(options, overrides)

    from srl_ray.config import compose, to_yaml

    config = compose(overrides, config_dir=options.config_dir)
    if options.prints_config:
        sys.stdout.write(to_yaml(config))
        return OK
    return _run(config, overrides, plan_only=options.plan_only)


def _run(config: ExperimentConfig, overrides: Sequence[str], *, plan_only: bool = False) -> int:
    for note in config.notes():
        _say(f"note: {note}")

    from srl_ray import experiment

    if plan_only:
        sys.stdout.write(experiment.plan_only(config).rstrip() + "\n")
        return OK
    return experiment.run(config, overrides=overrides).exit_status


# --- the command line -------------------------------------------------------------------------------------------------


class Options:
    """What is no part of the configuration."""

    config_dir: str | None = None
    plan_only = False
    is_multirun = False
    prints_config = False


def split_options(argv: Sequence[str]) -> tuple[Options, list[str]]:
    """Separate options from overrides.

    Raises:
        ConfigError: an option that does not exist, or without its value.
    """
    options, overrides, rest = Options(), [], list(argv)
    while rest:
        text = rest.pop(0)
        name, equals, value = text.partition("=")
        if name.lstrip("+") == "plan_only":
            options.plan_only = _boolean(name, value)
        elif text in ("-m", "--multirun"):
            options.is_multirun = True
        elif text == "--cfg":
            options.prints_config = True
            if rest and rest[0] in ("job", "all"):
                rest.pop(0)
        elif name in ("-cd", "--config-dir"):
            if not equals and not rest:
                raise ConfigError(f"{name} needs a directory.")
            options.config_dir = value if equals else rest.pop(0)
        elif text.startswith("-"):
            raise ConfigError(f"unknown option {text}; options are --cfg, --config-dir DIR, --multirun and --help.")
        else:
            overrides.append(text)
    return options, overrides


def _boolean(key: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ConfigError(f"{key} must be true or false, got {value!r}.")
    return value.lower() == "true"


def help_text() -> str:
    from srl_ray.composition import GROUPS, choices, conf_dir, summary

    width = max(len(name) for name in choices("experiment"))
    lines = [
        f"  {name:<{width}}  {summary(conf_dir() / 'experiment' / f'{name}.yaml')}" for name in choices("experiment")
    ]
    groups = [f"  {group}={'|'.join(choices(group))}" for group in GROUPS if group != "experiment"]
    return HELP.format(experiments="\n".join(lines), choices="\n".join(groups))


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


# --- sweeps -----------------------------------------------------------------------------------------------------------


def _sweep(options: Options, overrides: list[str]) -> int:
    """Every combination, one after the other, by Hydra's sweeper; the worst exit status counts, a signal ends it.

    Each run has a directory of its own: <run.dir>/<number>, or runs/sweeps/<time>/<number>.
    """
    from srl_ray.composition import conf_dir, normalise, schemas, sweep_points
    from srl_ray.config import compose, from_tree

    configs = [compose(point, config_dir=options.config_dir) for point in sweep_points(overrides)]
    shared_dir = configs[0].run.dir if len({config.run.dir for config in configs}) == 1 else None

    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig

    statuses: list[int] = []

    def job(tree: DictConfig) -> None:
        try:
            config = from_tree(tree)
            if shared_dir is not None:
                config.run.dir = HydraConfig.get().runtime.output_dir
            statuses.append(_run(config, list(HydraConfig.get().overrides.task), plan_only=options.plan_only))
        except Exception as error:
            statuses.append(report(error))
        if statuses[-1] in SIGNALS:
            raise KeyboardInterrupt

    extra = ["--config-dir", str(Path(options.config_dir).resolve())] if options.config_dir else []
    root = normalise([f"hydra.sweep.dir={shared_dir}"]) if shared_dir else []
    saved = sys.argv
    sys.argv = [saved[0], "--multirun", *extra, *normalise(overrides), *root]
    try:
        with schemas():
            hydra.main(config_path=str(conf_dir()), config_name="config", version_base="1.3")(job)()
    except KeyboardInterrupt:
        return statuses[-1] if statuses and statuses[-1] in SIGNALS else INTERRUPTED
    finally:
        sys.argv = saved
    return max(statuses, default=FAILURE)


if __name__ == "__main__":
    sys.exit(main())
