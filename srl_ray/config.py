"""The configuration of a run: one typed tree, made of the packages' own dataclasses and checked as a whole.

Each section lives beside the code that reads it; this file only puts the sections together, checks what no section can
check alone, and turns the tree into YAML and back. Past the door nobody changes it, and every component is given its
own section. The command-line language is in `srl_ray.composition`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from srl_ray.actors.config import ActorsConfig
from srl_ray.algorithms.config import (
    AlgorithmConfig,
    APPOConfig,
    CustomAlgorithmConfig,
    IMPALAConfig,
    OnPolicyConfig,
    PPOConfig,
)
from srl_ray.core.errors import ConfigError
from srl_ray.envs.config import EnvConfig
from srl_ray.models.config import ActorCriticConfig, CustomPolicyConfig, HideAndSeekPolicyConfig, PolicyConfig
from srl_ray.placement.config import ClusterConfig, PlacementConfig
from srl_ray.policy.config import PolicyWorkersConfig
from srl_ray.runtime.config import FailureConfig, RunConfig, StopConfig
from srl_ray.trainer.config import TrainersConfig

POLICIES: dict[str, type[PolicyConfig]] = {
    "actor_critic": ActorCriticConfig,
    "hide_and_seek": HideAndSeekPolicyConfig,
    "custom": CustomPolicyConfig,
}
ALGORITHMS: dict[str, type[AlgorithmConfig]] = {
    "ppo": PPOConfig,
    "appo": APPOConfig,
    "impala": IMPALAConfig,
    "custom": CustomAlgorithmConfig,
}
KINDS: dict[str, Mapping[str, type]] = {"policy": POLICIES, "algorithm": ALGORITHMS}
"""Sections with several dataclasses. In a mapping the key `kind` says which one (command line: the group's choice)."""

MISSING = "???"


@dataclass(kw_only=True, slots=True)
class ExperimentConfig:
    """Everything that defines a run.

    Attributes:
        name: Names the run directory; empty: made from the environment's name.
        run: Where it writes, how often, from what it resumes.
        stop: When it ends.
        env: The environment.
        actors: Actor workers and how experience is cut into chunks.
        policy: The network.
        policy_workers: Workers that answer inference requests.
        trainers: Trainer workers, their batches and how stale samples may be.
        algorithm: The update rule.
        placement: Which worker goes where.
        cluster: Which Ray.
        failure: When a failed worker is replaced.
    """

    name: str = ""
    run: RunConfig = field(default_factory=RunConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    actors: ActorsConfig = field(default_factory=ActorsConfig)
    policy: PolicyConfig = field(default_factory=ActorCriticConfig)
    policy_workers: PolicyWorkersConfig = field(default_factory=PolicyWorkersConfig)
    trainers: TrainersConfig = field(default_factory=TrainersConfig)
    algorithm: AlgorithmConfig = field(default_factory=PPOConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    failure: FailureConfig = field(default_factory=FailureConfig)

    def __post_init__(self) -> None:
        self.name = self.name or _name_of(self.env)
        self.check()

    def check(self) -> None:
        """Check every section and their combination; worth calling again after changing a field.

        Raises:
            ConfigError: lists everything that is wrong.
        """
        problems = [problem for section in _sections(self) for problem in _problems_of_section(section)]
        if not problems:
            problems = [problem for find in _CROSS_CHECKS for problem in find(self)]
        if problems:
            raise configuration_error(problems)

    def notes(self) -> list[str]:
        """Options that are set but have no effect under the others, in words."""
        notes = []
        if self.actors.burn_in and not self.is_recurrent:
            notes.append(f"actors.burn_in={self.actors.burn_in} only delays learning: the policy is not recurrent.")
        if self.policy_workers.gpus and not self.policy_workers.count:
            notes.append(
                f"policy_workers.gpus={self.policy_workers.gpus} has no effect: there are no policy workers "
                "(policy_workers.count=0)."
            )
        if self.policy_workers.transport != "auto" and not self.policy_workers.count:
            notes.append(
                f"policy_workers.transport={self.policy_workers.transport} has no effect: there are no policy workers "
                "(policy_workers.count=0)."
            )
        if self.env.factory is not None and self.env.id:
            notes.append(f"env.id={self.env.id!r} has no effect: env.factory makes the environments.")
        budget = self.chunks_under_way
        if budget is not None and self.env.envs_per_block > budget:
            notes.append(
                f"env.envs_per_block={self.env.envs_per_block} environments begin their chunks together, but only "
                f"{budget} chunks may be under way with these trainers.batch_chunks, max_staleness and reuse: some "
                "will be too stale to train on. Raise trainers.batch_chunks or lower env.envs_per_block."
            )
        blocks = self.actors.count * self.actors.ring
        if blocks % self.trainers.count:
            notes.append(
                f"{blocks} blocks of environments (actors.count * actors.ring_size) feed {self.trainers.count} trainer "
                "workers unevenly; all wait for the one that is fed least."
            )
        if self.stop == StopConfig():
            notes.append("no stop.env_steps, stop.seconds or stop.episode_return: the run goes on until interrupted.")
        return notes

    @property
    def is_recurrent(self) -> bool:
        """Whether the policy carries a state from row to row; a custom policy may, so it counts."""
        return not (isinstance(self.policy, ActorCriticConfig) and self.policy.recurrent == "none")

    @property
    def segment_steps(self) -> int:
        """Rows trained through time: policy.bptt_steps for recurrent policies, else the whole actors.sample_steps."""
        return self.policy.bptt_steps if self.is_recurrent else self.actors.sample_steps

    @property
    def inference(self) -> str:
        """inline | remote, after resolving actors.inference=auto: remote if there are policy workers."""
        if self.actors.inference != "auto":
            return self.actors.inference
        return "remote" if self.policy_workers.count else "inline"

    @property
    def start_timeout_s(self) -> float:
        """cluster.start_timeout_s, three times as long where set-up includes compiling (policy.compile)."""
        return self.cluster.start_timeout_s * (1 if self.policy.compile == "none" else 3)

    @property
    def batch_chunks_per_trainer(self) -> int:
        """trainers.batch_chunks / trainers.count."""
        return self.trainers.batch_chunks // self.trainers.count

    @property
    def chunks_under_way(self) -> int | None:
        """Most chunks begun and not yet trained on: (max_staleness + 1) // reuse * batch_chunks; None: no limit."""
        if self.trainers.max_staleness is None:
            return None
        return (self.trainers.max_staleness + 1) // self.trainers.reuse * self.trainers.batch_chunks


def compose(overrides: Sequence[str] = (), *, config_dir: str | Path | None = None) -> ExperimentConfig:
    """The configuration that the command line would use for these overrides; may be called any number of times.

    Args:
        overrides: As on the command line: `experiment=cartpole`, `actors.count=4`, `policy=lstm`.
        config_dir: A further directory with the layout of `conf/`, for experiments of your own.

    Raises:
        ConfigError: names the key or choice at fault and the nearest valid one.
    """
    from srl_ray.composition import compose_tree

    return from_tree(compose_tree(overrides, config_dir=config_dir))


def as_config(config: ExperimentConfig | Sequence[str] | Mapping[str, Any]) -> ExperimentConfig:
    """Accept any of the forms that `srl_ray.run` accepts; a given `ExperimentConfig` is checked again."""
    if isinstance(config, ExperimentConfig):
        config.check()
        return config
    if isinstance(config, Mapping):
        return from_mapping(config)
    if isinstance(config, Sequence) and not isinstance(config, str | bytes):
        return compose(config)
    raise ConfigError(
        f"expected an ExperimentConfig, a list of overrides like ['experiment=cartpole'] or a mapping, got "
        f"{type(config).__name__}."
    )


# --- mappings and YAML -----------------------------------------------------------------------------------------------


def from_mapping(mapping: Mapping[str, Any]) -> ExperimentConfig:
    """The configuration in a nested mapping, for example one that `to_mapping` made.

    Keys may be dotted (`"actors.count": 2`). A string under `experiment`, `policy`, `algorithm`, `placement` or
    `layout` picks that choice of the command line first; the rest is laid over it. Objects (an environment class as
    `env.factory`) are kept as they are.

    Raises:
        ConfigError: an unknown key, a value of the wrong type, or a combination that cannot work.
    """
    from srl_ray.composition import GROUPS, compose_tree, overlay

    choices = {key: value for key, value in mapping.items() if key in GROUPS and isinstance(value, str)}
    rest = {key: value for key, value in mapping.items() if key not in choices}
    tree = compose_tree([f"{group}={choice}" for group, choice in choices.items()])
    return from_tree(overlay(tree, rest))


def from_yaml(text_or_path: str | Path) -> ExperimentConfig:
    """The configuration in a `config.yaml` of a run directory: its path, or its text.

    Raises:
        ConfigError: not readable, or not a valid configuration.
    """
    import yaml

    is_path = isinstance(text_or_path, Path) or "\n" not in text_or_path
    try:
        text = Path(text_or_path).read_text(encoding="utf-8") if is_path else str(text_or_path)
        mapping = yaml.safe_load(text)
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the configuration: {error}") from error
    if not isinstance(mapping, dict):
        raise ConfigError(f"cannot read the configuration: expected a mapping of sections, got {mapping!r}.")
    return from_mapping(mapping)


def to_mapping(config: ExperimentConfig) -> dict[str, Any]:
    """Plain nested dicts, lists and scalars. Objects become text: a class or function its `module:name`."""
    mapping: dict[str, Any] = _plain(config)
    for section, kinds in KINDS.items():
        cls = type(getattr(config, section))
        kind = next((name for name, known in kinds.items() if known is cls), f"{cls.__module__}:{cls.__qualname__}")
        mapping[section] = {"kind": kind, **mapping[section]}
    return mapping


def to_yaml(config: ExperimentConfig) -> str:
    """`to_mapping` as text; `from_yaml` reads it back."""
    import yaml

    return str(yaml.safe_dump(to_mapping(config), sort_keys=False, allow_unicode=True, width=100))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return value.tolist()
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}:{value.__qualname__}"
    return str(value)


# --- building from a tree of OmegaConf nodes --------------------------------------------------------------------------


def from_tree(tree: Any) -> ExperimentConfig:
    """Turn a composed OmegaConf tree into dataclasses, collecting what the sections complain about.

    Raises:
        ConfigError: lists everything that is wrong.
    """
    from srl_ray.composition import section_object

    problems: list[str] = []
    values: dict[str, Any] = {}
    for item in fields(ExperimentConfig):
        try:
            values[item.name] = section_object(tree, item.name)
        except ValueError as error:
            problems.append(with_nearest_choice(str(error)))
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise configuration_error(problems)
    return ExperimentConfig(**values)


def configuration_error(problems: Sequence[str]) -> ConfigError:
    """One error for any number of problems."""
    if len(problems) == 1:
        return ConfigError(problems[0])
    return ConfigError("\n".join([f"{len(problems)} problems in the configuration:", *(f"  - {p}" for p in problems)]))


def with_nearest_choice(message: str) -> str:
    """Add `Did you mean` to messages such as `key must be a, b or c, got 'x'`."""
    import difflib

    found = re.search(r" must be (?P<known>[\w ,]+), got '(?P<value>.*)'", message) or re.search(
        r" is '(?P<value>.*)'; expected one of (?P<known>[\w ,]+)", message
    )
    if found is None:
        return message
    near = difflib.get_close_matches(found["value"], re.split(r", | or ", found["known"]), n=1)
    return message + (f". Did you mean {near[0]}?" if near else "")


def _sections(config: ExperimentConfig) -> Iterable[Any]:
    return (value for item in fields(config) if is_dataclass(value := getattr(config, item.name)))


def _problems_of_section(section: Any) -> list[str]:
    check: Callable[[], None] | None = getattr(section, "__post_init__", None)
    try:
        if check is not None:
            check()
    except ValueError as error:
        return [with_nearest_choice(str(error))]
    return []


# --- checks across sections ------------------------------------------------------------------------------------------


def _env_problems(config: ExperimentConfig) -> Iterable[str]:
    env = config.env
    if not env.id and env.factory is None:
        yield (
            "no environment: pick an experiment (experiment=cartpole), a gymnasium id (env.id=CartPole-v1), or your "
            "own (env.factory=my_package.envs:make_env)."
        )
    is_builtin = env.id == "hide_and_seek" and env.factory is None
    if is_builtin:
        yield from _hide_and_seek_problems(env.kwargs)
    elif isinstance(config.policy, HideAndSeekPolicyConfig) and env.factory is None and env.id:
        yield (
            f"policy=hide_and_seek reads the entities of env.id=hide_and_seek, but env.id={env.id!r}; use policy=mlp "
            "or policy=lstm."
        )


def _hide_and_seek_problems(kwargs: Mapping[str, Any]) -> Iterable[str]:
    from srl_ray.composition import nearest
    from srl_ray.envs.hide_and_seek.block import TASKS, task_config

    task = kwargs.get("task", "hide_and_seek")
    known = ["task", *(item.name for item in fields(TASKS[task][0]))] if task in TASKS else list(kwargs)
    unknown = [key for key in kwargs if key not in known]
    for key in unknown:
        yield f"unknown key env.kwargs.{key}.{nearest(key, known, prefix='env.kwargs.')}"
    if not unknown:
        try:
            task_config(**{"task": task, **kwargs})
        except (ValueError, TypeError) as error:
            yield with_nearest_choice(str(error).replace("hide_and_seek.", "env.kwargs."))


def _row_problems(config: ExperimentConfig) -> Iterable[str]:
    actors, trainers = config.actors, config.trainers
    if config.is_recurrent and actors.sample_steps % config.policy.bptt_steps:
        yield (
            f"actors.sample_steps must be a multiple of policy.bptt_steps, got {actors.sample_steps} and "
            f"{config.policy.bptt_steps}: a chunk is trained in segments of bptt_steps rows."
        )
    if isinstance(config.algorithm, OnPolicyConfig):
        pieces, unit = config.batch_chunks_per_trainer, "chunks (recurrent policies are cut along chunks)"
        if not config.is_recurrent:
            pieces, unit = pieces * actors.sample_steps, "rows"
        if config.algorithm.minibatches > pieces:
            yield (
                f"algorithm.minibatches must be <= {pieces}, got {config.algorithm.minibatches}: each trainer worker's "
                f"batch has {pieces} {unit}. Raise trainers.batch_chunks or lower algorithm.minibatches."
            )
    blocks = actors.count * actors.ring
    if trainers.count > blocks:
        yield (
            f"trainers.count must be <= actors.count * actors.ring_size, got {trainers.count} > {blocks}: every block "
            "of environments feeds one trainer worker, so some would get nothing. Set "
            f"actors.ring_size={trainers.count} or raise actors.count."
        )
    if trainers.buffer_chunks is not None and trainers.buffer_chunks < config.batch_chunks_per_trainer:
        yield (
            f"trainers.buffer_chunks must be >= {config.batch_chunks_per_trainer} (trainers.batch_chunks / "
            f"trainers.count), got {trainers.buffer_chunks}: a batch would never fit."
        )


def _inference_problems(config: ExperimentConfig) -> Iterable[str]:
    count = config.policy_workers.count
    if config.actors.inference == "remote" and count < 1:
        yield "actors.inference=remote needs policy_workers.count >= 1, got 0 (or use layout=remote)."
    if config.actors.inference == "inline" and count > 0:
        yield (
            f"actors.inference=inline leaves policy_workers.count={count} without work; set policy_workers.count=0 or "
            "actors.inference=remote."
        )


def _cuda_graph_problems(config: ExperimentConfig) -> Iterable[str]:
    section = "actors" if config.inference == "inline" else "policy_workers"
    if config.policy.cuda_graphs and not getattr(config, section).gpus:
        yield f"policy.cuda_graphs=true needs inference on a GPU, but {section}.gpus is 0."


def _deterministic_problems(config: ExperimentConfig) -> Iterable[str]:
    if not config.run.deterministic:
        return
    conflicts = []
    if config.trainers.max_staleness != 0:
        conflicts.append(f"trainers.max_staleness=0 (it is {_shown(config.trainers.max_staleness)})")
    if config.inference != "inline" or config.policy_workers.count:
        conflicts.append(
            f"actors.inference=inline with policy_workers.count=0 (they are {config.actors.inference} and "
            f"{config.policy_workers.count})"
        )
    if config.trainers.count != 1:
        conflicts.append(f"trainers.count=1 (it is {config.trainers.count})")
    if conflicts:
        yield f"run.deterministic=true needs {', '.join(conflicts)}: otherwise timing decides what is trained on."


def _schedule_problems(config: ExperimentConfig) -> Iterable[str]:
    if config.stop.env_steps is not None:
        return
    for key in ("learning_rate_end", "entropy_cost_end"):
        if getattr(config.algorithm, key, None) is not None:
            yield (
                f"algorithm.{key} is reached at stop.env_steps, which is null; set stop.env_steps, or "
                f"algorithm.{key}=null to keep the value constant."
            )


def _naming_problems(config: ExperimentConfig) -> Iterable[str]:
    if not re.fullmatch(r"[\w.-]+", config.name):
        yield f"name names a directory: letters, digits, '_', '-' and '.', got {config.name!r}."
    if config.run.resume is not None and config.run.resume.lower() in ("true", "false", "none", ""):
        yield f"run.resume must be null, auto or the path of a run directory or checkpoint, got {config.run.resume!r}."
    for section, key in (("policy", "target"), ("algorithm", "target"), ("env", "factory")):
        path = getattr(getattr(config, section), key, None)
        if path == MISSING:
            yield f"{section}.{key} is not set: give the import path of your {section}, module:callable."
        elif isinstance(path, str) and not re.fullmatch(r"[\w.]+:[\w.]+|[\w.]+:<\w+>", path):
            yield f"{section}.{key} must be an import path, module:callable, got {path!r}."


def _share_problems(config: ExperimentConfig) -> Iterable[str]:
    for section in ("actors", "policy_workers", "trainers"):
        cpus = getattr(config, section).cpus
        if cpus is not None and cpus <= 0:
            yield f"{section}.cpus must be > 0 or null, got {cpus}."


_CROSS_CHECKS: tuple[Callable[[ExperimentConfig], Iterable[str]], ...] = (
    _naming_problems,
    _env_problems,
    _inference_problems,
    _cuda_graph_problems,
    _row_problems,
    _deterministic_problems,
    _schedule_problems,
    _share_problems,
)


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


def _name_of(env: EnvConfig) -> str:
    source = env.id
    if env.factory is not None:
        source = env.factory if isinstance(env.factory, str) else getattr(env.factory, "__name__", "experiment")
    words = re.sub(r"[^\w.-]+", "_", source.rpartition(":")[2].rpartition("/")[2]).strip("_")
    return words.lower() or "experiment"
