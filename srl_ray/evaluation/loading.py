"""From a path that a person types to a policy: checkpoints of this machine or of any other, without Ray."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from srl_ray.core.errors import CheckpointError, ConfigError
from srl_ray.core.types import BlockSpec
from srl_ray.envs.config import EnvConfig
from srl_ray.envs.factory import make_block
from srl_ray.evaluation.baselines import UniformPolicy
from srl_ray.models.config import PolicyConfig
from srl_ray.models.factory import make_policy
from srl_ray.models.policy import Policy
from srl_ray.runtime.checkpoint import load_checkpoint, load_newest, read_facts
from srl_ray.runtime.run_directory import find_checkpoint
from srl_ray.runtime.warm_start import start_policy_from

RUNS = Path("runs")
WHICH = ("checkpoint", "initial", "random")


@dataclass(frozen=True)
class SavedRun:
    """A checkpoint and what it was made with.

    Attributes:
        checkpoint: Its folder.
        directory: The run directory it lies in, else the folder that holds it; results are written there.
        config: The run's configuration as a plain mapping (`srl_ray.config.from_mapping` reads it).
        facts: Small facts stored with it.
    """

    checkpoint: Path
    directory: Path
    config: Mapping[str, Any]
    facts: Mapping[str, Any]

    @property
    def title(self) -> str:
        """One line about it."""
        parts = [str(self.checkpoint)]
        for key, words in (("env_steps", "environment steps"), ("policy_version", "updates")):
            if isinstance(self.facts.get(key), int | float):
                parts.append(f"{int(self.facts[key]):,} {words}")
        return ", ".join(parts)


def find_saved_run(path: str | Path) -> SavedRun:
    """The checkpoint meant by a path.

    Args:
        path: A checkpoint's folder, a run directory (its newest sound checkpoint), a folder runs/<experiment> (its
            latest run), or `latest`: the newest checkpoint below runs/.

    Raises:
        CheckpointError: there is none, it is damaged, or nothing says how it was made.
    """
    start = _newest_run() if str(path) == "latest" else Path(path)
    if start.is_file():
        start = start.parent
    if not (start / "checkpoints").is_dir() and (start / "latest").exists():
        start = (start / "latest").resolve()
    checkpoint = find_checkpoint(start)
    if checkpoint != start:  # a folder of checkpoints: skip damaged ones
        newest = load_newest(checkpoint.parent, with_torch=False)
        assert newest is not None, "find_checkpoint saw one"
        checkpoint = newest.path
    facts = read_facts(checkpoint)
    parent = checkpoint.parent
    directory = parent.parent if parent.name == "checkpoints" else parent
    return SavedRun(checkpoint, directory, _config_of(checkpoint, directory, facts), facts)


def load_policy(
    run: SavedRun, config: PolicyConfig, env: BlockSpec | EnvConfig, *, seed: int, which: str = "checkpoint"
) -> Policy:
    """A policy in evaluation mode on the CPU.

    Args:
        run: Where the weights come from.
        config: The `policy` section of the run's configuration.
        env: What it is to act in: a block's spec, or a configuration (one environment is then built and closed).
        seed: The run's seed; `initial` takes the first weights from it.
        which: checkpoint: the trained weights; initial: those before training; random: uniform actions.

    Raises:
        CheckpointError: the weights do not fit this environment or policy; lists the differences.
        ConfigError: no such choice, or no such environment.

    Example:
        run = find_saved_run("runs/cartpole/latest")
        config = srl_ray.config.from_mapping(run.config)
        policy = load_policy(run, config.policy, config.env, seed=config.run.seed)
    """
    if which not in WHICH:
        raise ConfigError(f"policy must be {', '.join(WHICH[:-1])} or {WHICH[-1]}, got {which!r}.")
    spec = _spec_of(env) if isinstance(env, EnvConfig) else env
    if which == "random":
        return UniformPolicy(spec.group.action)
    policy = make_policy(config, spec.group.obs, spec.group.action, seed)
    if which == "checkpoint":
        install_policy(run.checkpoint, policy)
    elif config.start_from:
        start_policy_from(config.start_from, policy, reset_outputs=config.reset_outputs)
    policy.eval()  # type: ignore[attr-defined]
    return policy


def install_policy(checkpoint: Path, policy: Any) -> None:
    """Load a checkpoint's policy weights into a module, completely or not at all.

    Raises:
        CheckpointError: see `load_policy`.
    """
    loaded = load_checkpoint(checkpoint)
    names = list(loaded.tensors)
    loaded.install_policy(policy, names[0] if len(names) == 1 else "policy")


def use_one_thread() -> None:
    """One math thread, as actor workers have: small batches are fastest so, and sums come out alike on any machine.

    OMP_NUM_THREADS, where it is set, stays in force.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def _spec_of(config: EnvConfig) -> BlockSpec:
    block = make_block(config, 1)
    block.close()
    return block.spec


def _newest_run() -> Path:
    runs = [path.parent.parent for path in RUNS.glob("*/*/checkpoints/step_*") if not path.parent.parent.is_symlink()]
    if not runs:
        raise CheckpointError("latest", f"there is no checkpoint below {RUNS.absolute()}. Give a path: checkpoint=PATH")
    return max(runs, key=lambda run: max(path.stat().st_mtime for path in (run / "checkpoints").iterdir()))


def _config_of(checkpoint: Path, directory: Path, facts: Mapping[str, Any]) -> Mapping[str, Any]:
    stored = facts.get("config")
    if isinstance(stored, Mapping):
        return stored
    file = directory / "config.yaml"
    try:
        mapping = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise CheckpointError(
            str(checkpoint), f"does not say how it was made, and its run's configuration cannot be read: {error}"
        ) from error
    if not isinstance(mapping, Mapping):
        raise CheckpointError(str(checkpoint), f"does not say how it was made, and {file} is no configuration.")
    return mapping
