"""Distributed reinforcement learning: workers, streams and services on Ray.

    import srl_ray
    result = srl_ray.run(["experiment=cartpole", "stop.env_steps=100000"])

Importing the package imports neither Ray nor torch; `run` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from srl_ray.config import ExperimentConfig
    from srl_ray.experiment import RunResult

__version__ = "0.1.0"
__all__ = ["ExperimentConfig", "__version__", "compose", "run"]


def run(config: ExperimentConfig | Sequence[str] | Mapping[str, Any]) -> RunResult:
    """Train, as `python -m srl_ray.train` would, and return what came of it.

    Args:
        config: An `ExperimentConfig`, command-line overrides (`["experiment=cartpole", "actors.count=2"]`), or the same
            as a mapping (`{"experiment": "cartpole", "actors.count": 2, "env": {"factory": MyEnv}}`).

    Raises:
        ConfigError: something in `config` cannot work; nothing was started.
    """
    from srl_ray.config import as_config
    from srl_ray.experiment import run as run_experiment

    overrides = [] if isinstance(config, Mapping) or not isinstance(config, Sequence) else list(config)
    return run_experiment(as_config(config), overrides=overrides)


def compose(overrides: Sequence[str] = ()) -> ExperimentConfig:
    """The configuration that the command line would use for these overrides."""
    from srl_ray.config import compose as compose_config

    return compose_config(overrides)


def __getattr__(name: str) -> Any:
    if name == "ExperimentConfig":
        from srl_ray.config import ExperimentConfig

        return ExperimentConfig
    raise AttributeError(f"module 'srl_ray' has no attribute {name!r}")
