"""The command line's language: Hydra's groups and overrides, composed once and explained when they are wrong.

Hydra appears here and where `srl_ray.train` starts a sweep, nowhere else.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from srl_ray.algorithms.config import AlgorithmConfig
from srl_ray.config import KINDS, ExperimentConfig, configuration_error
from srl_ray.core.errors import ConfigError
from srl_ray.models.config import PolicyConfig

_SECTIONS = tuple(item.name for item in fields(ExperimentConfig) if item.name != "name")

GROUPS = ("experiment", "policy", "algorithm", "placement", "layout")
"""Directories of `conf/`; `group=choice` picks a file."""

_FREE_KEYS = re.compile(r"[\w.]+\.(kwargs|actors_labels|trainers_labels)\..+")
_OVERRIDE = re.compile(r"(?P<prefix>\+{0,2}|~)(?P<key>[^=+~]+)(?P<rest>=.*)?", re.DOTALL)


def conf_dir() -> Path:
    """The directory of configuration files: inside an installed package, else at the top of the repository."""
    package = Path(__file__).resolve().parent
    for candidate in (package / "conf", package.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise ConfigError(f"the configuration files are missing: neither {package / 'conf'} nor {package.parent / 'conf'}.")


@contextlib.contextmanager
def schemas() -> Iterator[None]:
    """Let Hydra know the types of the tree for the length of the block.

    They are `experiment_schema` and one `<kind>_schema` per policy and algorithm. Hydra keeps them in a store that the
    whole process shares, its own plugins included, so only these entries are taken back.
    """
    store = ConfigStore.instance()
    is_nested = "experiment_schema.yaml" in store.repo
    tree = OmegaConf.structured(ExperimentConfig)
    tree.policy = OmegaConf.structured(PolicyConfig)
    tree.algorithm = OmegaConf.structured(AlgorithmConfig)
    store.store(name="experiment_schema", node=tree)
    for group, kinds in KINDS.items():
        for kind, cls in kinds.items():
            store.store(group=group, name=f"{kind}_schema", node=cls)
    try:
        yield
    finally:
        if not is_nested:
            store.repo.pop("experiment_schema.yaml", None)
            for group, kinds in KINDS.items():
                for kind in kinds:
                    store.repo[group].pop(f"{kind}_schema.yaml", None)


def normalise(overrides: Sequence[str]) -> list[str]:
    """Accept what people type: a `+` in front makes no difference, and values need no quotes where they are plain text.

    Keys exist or they do not (the tree is typed), so Hydra's `+` and `++` carry no meaning except under the free
    dictionaries (`env.kwargs`), where new keys are the rule.
    """
    normal = []
    for text in overrides:
        found = _OVERRIDE.fullmatch(text)
        if found is None or found["prefix"] == "~":
            normal.append(text)
            continue
        key, rest = found["key"].strip(), found["rest"] or ""
        prefix = "++" if _FREE_KEYS.fullmatch(key) else ""
        normal.append(_readable(f"{prefix}{key}{rest}"))
    return normal


def _readable(text: str) -> str:
    """Quote a plain value that Hydra's grammar cannot read as it stands, such as a path with '=' or a space."""
    key, equals, value = text.partition("=")
    try:
        OverridesParser.create().parse_override(text)
    except HydraException:
        if equals and value and value[0] not in "[{(\"'":
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'{key}="{escaped}"'
    return text


def compose_tree(overrides: Sequence[str], *, config_dir: str | Path | None = None) -> DictConfig:
    """The typed tree for these overrides.

    Raises:
        ConfigError: names what is wrong and the nearest valid spelling.
    """
    overrides = normalise(overrides)
    parsed = _parse(overrides)
    directories = [conf_dir(), *([Path(config_dir).resolve()] if config_dir else [])]
    if not directories[-1].is_dir():
        raise ConfigError(f"--config-dir {config_dir}: no such directory.")
    problems = [problem for override in parsed for problem in _choice_problems(override, directories)]
    if problems:
        raise configuration_error(problems)
    search = [f"hydra.searchpath=[{','.join(f'file://{path}' for path in directories[1:])}]"] if config_dir else []
    with _hydra(directories[0]):
        try:
            return hydra_compose("config", [*overrides, *search])
        except (HydraException, OmegaConfBaseException) as error:
            problems = _diagnose([*search, *overrides], [*_parse(search), *parsed])
            raise configuration_error(problems or [_plain_message(error)]) from error


def overlay(tree: DictConfig, mapping: Mapping[str, Any]) -> DictConfig:
    """Lay a nested mapping (keys may be dotted) over the tree; `kind` replaces a section's type.

    Raises:
        ConfigError: an unknown key or a value of the wrong type.
    """
    values, problems = dict(_flatten(mapping)), list[str]()
    for section in KINDS:
        if f"{section}.kind" in values:
            _replace_kind(tree, section, values.pop(f"{section}.kind"))
    known = set(_keys(tree))
    for key, value in values.items():
        try:
            if key in _SECTIONS:
                problems.append(f"{key} is a section, not a value; set one of its keys: {', '.join(_keys(tree[key]))}.")
            elif key in known or _FREE_KEYS.fullmatch(key):
                with flag_override(tree, "allow_objects", True):
                    is_dict = isinstance(value, Mapping)
                    is_new_key_fine = is_dict or bool(_FREE_KEYS.fullmatch(key))
                    OmegaConf.update(tree, key, value, force_add=is_new_key_fine, merge=is_dict)
            else:
                problems.append(_unknown_key(key, tree))
        except OmegaConfBaseException as error:
            problems.append(_value_problem(key, value, error))
    if problems:
        raise configuration_error(problems)
    return tree


def section_object(tree: DictConfig, name: str) -> Any:
    """One section of the tree as its dataclass (or plain value).

    Raises:
        ConfigError: a value is missing or an interpolation cannot be resolved.
        ValueError: the dataclass refuses its values.
    """
    try:
        node = tree[name]
        return OmegaConf.to_object(node) if OmegaConf.is_config(node) else node
    except MissingMandatoryValue as error:
        key = getattr(error, "full_key", None) or name
        raise ConfigError(f"{key} is not set: give it on the command line ({key}=...).") from error
    except OmegaConfBaseException as error:
        raise ConfigError(_plain_message(error)) from error


def choices(group: str, directories: Sequence[Path] = ()) -> list[str]:
    """The files that `group=...` can pick."""
    return sorted({path.stem for root in directories or [conf_dir()] for path in (root / group).glob("*.yaml")})


def summary(path: Path) -> str:
    """The comment at the top of a configuration file, on one line."""
    words: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if "@package" not in line:
            words.append(line.strip("# "))
    return " ".join(words)


def nearest(word: str, known: Sequence[str], *, prefix: str = "") -> str:
    """` Did you mean 'x'?`, or nothing."""
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" Did you mean {prefix}{found[0]}?" if found else ""


def sweep_points(overrides: Sequence[str]) -> list[list[str]]:
    """Single runs that between them use every discrete value of a sweep (`actors.count=1,2`), to check it up front."""
    parsed = _parse(normalise(overrides))
    options: list[list[str]] = []
    for override in parsed:
        if not override.is_sweep_override():
            options.append([override.input_line or ""])
        elif override.is_discrete_sweep():
            key = override.get_key_element()
            options.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            options.append([])
    first = [values[:1] for values in options]
    points = [list(chain(*first))]
    for index, values in enumerate(options):
        points += [list(chain(*first[:index], [value], *first[index + 1 :])) for value in values[1:]]
    return points


# --- Hydra's global state --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _hydra(directory: Path) -> Iterator[None]:
    """Hydra initialised on `directory` for the length of the block; whatever the process had before is put back."""
    global_hydra = GlobalHydra.instance()
    saved, global_hydra.hydra = global_hydra.hydra, None
    try:
        with schemas(), initialize_config_dir(config_dir=str(directory), version_base="1.3", job_name="srl_ray"):
            yield
    finally:
        GlobalHydra.instance().hydra = saved  # leaving `initialize_config_dir` made a new instance


# --- explaining ------------------------------------------------------------------------------------------------------

_ELSEWHERE = {
    "lr": "algorithm.learning_rate",
    "gamma": "algorithm.discount",
    "lam": "algorithm.gae_lambda",
    "ent_coef": "algorithm.entropy_cost",
    "vf_coef": "algorithm.value_cost",
    "clip_range": "algorithm.clip_eps",
    "env_id": "env.id",
    "num_envs": "env.envs_per_block",
    "num_workers": "actors.count",
    "total_timesteps": "stop.env_steps",
}
"""Other libraries' words for our keys."""


def _parse(overrides: Sequence[str]) -> list[Override]:
    parser = OverridesParser.create()
    parsed, problems = [], []
    for text in overrides:
        try:
            parsed.append(parser.parse_override(text))
        except HydraException:
            key, equals, value = text.partition("=")
            if not equals:
                problems.append(f"{text!r} is not an override; write key=value, for example experiment=cartpole.")
            else:
                problems.append(f"cannot read {text!r}; quote the value, for example {key}='\"{value}\"'.")
    if problems:
        raise configuration_error(problems)
    return parsed


def _choice_problems(override: Override, directories: Sequence[Path]) -> Iterator[str]:
    group = override.key_or_group
    if override.is_sweep_override():
        yield f"{override.input_line}: several values make a sweep; add --multirun to run them one after the other."
    elif override.is_delete():
        yield f"{override.input_line}: keys cannot be removed; give a value, for example {group}=null."
    elif group in GROUPS:
        value, known = override.value(), choices(group, directories)
        if value is not None and value not in known:
            yield f"unknown {group} {value!r}.{nearest(str(value), known)} Known: {', '.join(known)}."


def _diagnose(overrides: Sequence[str], parsed: Sequence[Override]) -> list[str]:
    """Find the overrides at fault: compose with the groups alone, then lay each value over the result."""
    is_group = [override.key_or_group in GROUPS or override.key_or_group.startswith("hydra") for override in parsed]
    try:
        tree = hydra_compose("config", [text for text, chosen in zip(overrides, is_group) if chosen])
    except MissingConfigException as error:
        return [_plain_message(error)]
    except (HydraException, OmegaConfBaseException) as error:
        return [_problem_in_file(error)]
    problems = []
    for override, chosen in zip(parsed, is_group):
        if chosen:
            continue
        try:
            overlay(tree, {override.key_or_group: override.value()})
        except ConfigError as error:
            problems.append(str(error))
    return problems


def _problem_in_file(error: Exception) -> str:
    """A key or value that a configuration file got wrong."""
    text = _chain_text(error)
    where = re.search(r"In '([^']+)'", text)
    file = f"in {where[1]}.yaml: " if where else "in a configuration file: "
    key = re.search(r"full_key: (\S+)", text)
    unknown = re.search(r"Key '([^']+)' not in '(\w+)'", text)
    if unknown:
        known = [item.name for cls in _section_types() if cls.__name__ == unknown[2] for item in fields(cls)]
        return f"{file}unknown key {key[1] if key else unknown[1]}.{nearest(unknown[1], known)}"
    return file + _plain_message(error)


def _section_types() -> list[Any]:
    parts: list[Any] = [ExperimentConfig, *(cls for kinds in KINDS.values() for cls in kinds.values())]
    parts += [item.default_factory for item in fields(ExperimentConfig) if isinstance(item.default_factory, type)]
    return parts


def _unknown_key(key: str, tree: DictConfig) -> str:
    """Say so, with the nearest key, or with what the section has."""
    keys = [*_keys(tree), *GROUPS]
    parent, _, leaf = key.rpartition(".")
    leaves = {known.rpartition(".")[2]: known for known in reversed(keys)}
    siblings = [known.rpartition(".")[2] for known in keys if known.rpartition(".")[0] == parent]
    if leaf in leaves:
        namesakes = [known for known in keys if known.rpartition(".")[2] == leaf]
        guess = difflib.get_close_matches(key, namesakes, n=1, cutoff=0.0)
    elif leaf in _ELSEWHERE:
        guess = [_ELSEWHERE[leaf]]
    elif close := difflib.get_close_matches(leaf, siblings, n=1):
        guess = [f"{parent}.{close[0]}" if parent else close[0]]
    elif close := difflib.get_close_matches(leaf, list(leaves), n=1, cutoff=0.75):
        guess = [leaves[close[0]]]
    else:
        guess = difflib.get_close_matches(key, keys, n=1, cutoff=0.8)
    if guess:
        return f"unknown key {key}. Did you mean {guess[0]}?"
    if parent and siblings:
        return f"unknown key {key}. {parent} has {', '.join(siblings)}."
    return f"unknown key {key}. The sections are {', '.join(_SECTIONS)}."


def _keys(tree: DictConfig, prefix: str = "") -> Iterator[str]:
    """Dotted keys of all values; free dictionaries count as values."""
    for key in map(str, tree):
        if not prefix and key in _SECTIONS:
            yield from _keys(tree[key], f"{key}.")
        else:
            yield f"{prefix}{key}"


def _flatten(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Values with dotted keys; a mapping that is no section is a value."""
    for key, value in mapping.items():
        if isinstance(value, Mapping) and f"{prefix}{key}" in _SECTIONS:
            yield from _flatten(value, f"{key}.")
        else:
            yield f"{prefix}{key}", dict(value) if isinstance(value, Mapping) else value


def _replace_kind(tree: DictConfig, section: str, kind: str) -> None:
    kinds = KINDS[section]
    if kind not in kinds:
        raise ConfigError(
            f"unknown {section}.kind {kind!r}.{nearest(str(kind), list(kinds))} Known: {', '.join(kinds)}."
        )
    if OmegaConf.get_type(tree[section]) is not kinds[kind]:
        tree[section] = OmegaConf.structured(kinds[kind])


def _value_problem(key: str, value: Any, error: Exception) -> str:
    expected = re.search(r"could not be converted to (\w+)|is not a valid (bool)", str(error))
    words = {"Integer": "an integer", "Float": "a number", "bool": "true or false", "String": "text"}
    word = words.get(expected[1] or expected[2]) if expected else None
    if word:
        return f"{key} must be {word}, got {value!r}."
    return f"{key}={value!r}: {_plain_message(error)}"


def _chain_text(error: BaseException | None) -> str:
    parts = []
    while error is not None:
        parts.append(str(error))
        error = error.__cause__ or error.__context__
    return "\n".join(parts)


def _plain_message(error: Exception) -> str:
    """Hydra's message without the advice to write `+key` and without OmegaConf's internals."""
    lines = [line.strip() for line in _chain_text(error).splitlines()]
    kept = [line for line in lines if line and not line.startswith(("To append", "object_type", "reference_type"))]
    return " ".join(dict.fromkeys(kept[:4]))
