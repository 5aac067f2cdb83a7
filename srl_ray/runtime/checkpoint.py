"""Checkpoints: nested state as one folder of safetensors and JSON. Opens without Ray and without unpickling anything.

step_000000012000/
    state.json             format version, facts, the nested state with tensors replaced by references
    tensors.safetensors    every tensor and array, named by its place in the state
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from srl_ray.core.errors import CheckpointError
from srl_ray.param_server.weights import (
    DamagedFile,
    FlatWeights,
    flatten,
    flatten_tensors,
    load_safetensors,
    save_safetensors,
    unflatten_tensors,
)

_LOG = logging.getLogger(__name__)

FORMAT = "1.0"
"""Raised in the first part when older readers cannot read it any more."""

STATE_FILE = "state.json"
TENSOR_FILE = "tensors.safetensors"
_TENSOR = "__tensor__"
_ARRAY = "__array__"
_TUPLE = "__tuple__"
_PAIRS = "__pairs__"
_FLOAT = "__float__"


@dataclass(frozen=True)
class Checkpoint:
    """What is saved and loaded.

    Attributes:
        tensors: Policy → state dict of its module; `install_policy` puts one back, with words where it does not fit.
        state: Nested state of everything else: algorithm, optimiser, schedules, counters. Tensors are torch tensors on
            the CPU after loading, or numpy arrays when loaded `with_torch=False`.
        facts: Small facts for people and for `require`: experiment, env_steps, policy_version, spaces. JSON-able.
        path: Where it was loaded from.
    """

    tensors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    path: Path = Path()

    def install_policy(self, module: Any, policy: str = "policy") -> None:
        """Load a module's weights completely, or nothing.

        Raises:
            CheckpointError: no such policy, or names or shapes differ; every difference is told.
        """
        if policy not in self.tensors:
            known = ", ".join(sorted(self.tensors)) or "none"
            raise CheckpointError(str(self.path), f"has no policy {policy!r} (it has: {known})")
        explain_load(self.path, f"policy {policy!r}", module, self.tensors[policy])


def save_checkpoint(
    path: Path | str, content: Checkpoint | Mapping[str, Any], facts: Mapping[str, Any] | None = None
) -> Path:
    """Write a checkpoint folder aside, sync it, then rename it; a kill at any moment leaves the earlier ones usable.

    Blocks on the disk. An existing folder of that name is replaced.

    Args:
        path: For example `<run.dir>/checkpoints/step_000000012000`.
        content: A Checkpoint, or just its `state`: nested dicts, lists and tuples of torch tensors, numpy arrays,
            numbers, strings, booleans and None. `state_dict()`s of modules, optimisers and schedules are that.
        facts: Added to the checkpoint's facts.

    Raises:
        CheckpointError: the state holds something that cannot be stored, or the disk does not take it.

    Example:
        content = Checkpoint({"main": policy.state_dict()}, {"optimizer": adam.state_dict()}, {"env_steps": 12000})
        save_checkpoint(path, content)
        checkpoint = load_checkpoint(path)
        checkpoint.install_policy(policy, "main")
        adam.load_state_dict(checkpoint.state["optimizer"])
    """
    path = Path(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    tensors: dict[str, Any] = {}
    try:
        whole = content if isinstance(content, Checkpoint) else Checkpoint(state=content)
        policies = _pack(dict(whole.tensors), "policies", tensors)
        packed = _pack(dict(whole.state), "state", tensors)
        document = {"format": FORMAT, "facts": {**whole.facts, **(facts or {})}, "policies": policies, "state": packed}
        text = json.dumps(document, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(str(path), f"its state cannot be stored: {error}") from error
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        save_safetensors(aside / TENSOR_FILE, _flat(tensors))
        with (aside / STATE_FILE).open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            old = path.with_name(f".{path.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
            aside.rename(path)
            shutil.rmtree(old, ignore_errors=True)
        else:
            aside.rename(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise CheckpointError(str(path), f"could not be written: {error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return path


def load_checkpoint(path: Path | str, *, with_torch: bool = True) -> Checkpoint:
    """Read one checkpoint folder completely.

    Args:
        with_torch: False gives numpy arrays in place of tensors and does not import torch.

    Raises:
        CheckpointError: it does not exist, is damaged, or was written in a format this version cannot read.
    """
    path = Path(path)
    document = _read_document(path)
    try:
        flat, _ = load_safetensors(path / TENSOR_FILE)
    except FileNotFoundError as error:
        raise CheckpointError(str(path), f"is incomplete: {TENSOR_FILE} is missing") from error
    except (DamagedFile, OSError) as error:
        raise CheckpointError(str(path), f"is damaged: {error}") from error
    tensors: Mapping[str, Any] = unflatten_tensors(flat) if with_torch else flat.arrays()
    arrays = flat.arrays()
    try:
        policies = _unpack(document["policies"], tensors, arrays)
        state = _unpack(document["state"], tensors, arrays)
    except KeyError as error:
        raise CheckpointError(str(path), f"is damaged: tensor {error} is missing from {TENSOR_FILE}") from error
    return Checkpoint(policies, state, document["facts"], path)


def read_facts(path: Path | str) -> dict[str, Any]:
    """The facts of a checkpoint, without its tensors. Raises CheckpointError as `load_checkpoint` does."""
    facts: dict[str, Any] = _read_document(Path(path))["facts"]
    return facts


def load_newest(folder: Path | str, *, with_torch: bool = True) -> Checkpoint | None:
    """The newest sound checkpoint of a `checkpoints/` folder; damaged newer ones are skipped with a warning.

    Returns:
        None when there is no checkpoint at all.

    Raises:
        CheckpointError: there are checkpoints, but none can be read.
    """
    last: CheckpointError | None = None
    for path in list_checkpoints(folder):
        try:
            return load_checkpoint(path, with_torch=with_torch)
        except CheckpointError as error:
            _LOG.warning("%s; trying the one before", error)
            last = error
    if last is not None:
        raise CheckpointError(str(folder), f"none of its checkpoints can be read; the oldest one: {last.message}")
    return None


def list_checkpoints(folder: Path | str) -> list[Path]:
    """Checkpoint folders `step_<n>`, newest first. Unfinished ones (their names begin with a dot) are not listed."""
    found = [p for p in Path(folder).glob("step_*") if p.is_dir() and p.name.removeprefix("step_").isdigit()]
    return sorted(found, key=lambda p: int(p.name.removeprefix("step_")), reverse=True)


def require(path: Path | str, facts: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Compare what a checkpoint was made with to what the run has, in words; keys missing on either side are told too.

    Args:
        facts: From the checkpoint.
        expected: From the run; nested dictionaries are compared key by key.

    Raises:
        CheckpointError: they differ; every difference is listed with both values.
    """
    differences = list(_differences(facts, expected, ""))
    if differences:
        raise CheckpointError(str(path), "does not fit this run:\n  " + "\n  ".join(differences))


def explain_load(path: Path | str, name: str, module: Any, state: Mapping[str, Any]) -> None:
    """Load a module's state dict completely, or explain what differs and load nothing.

    Args:
        name: What it is, for the message: `policy main`.
        module: A torch module.

    Raises:
        CheckpointError: names or shapes differ.
    """
    own = module.state_dict()
    problems = [f"{name}: {key} is missing in the checkpoint" for key in own if key not in state]
    problems += [f"{name}: {key} is not part of this run's network" for key in state if key not in own]
    problems += [
        f"{name}: {key} has shape {list(state[key].shape)} in the checkpoint, {list(own[key].shape)} in this run"
        for key in own
        if key in state and tuple(state[key].shape) != tuple(own[key].shape)
    ]
    if problems:
        raise CheckpointError(
            str(path),
            "does not fit this run's network (another environment or policy configuration?):\n  "
            + "\n  ".join(problems[:20])
            + (f"\n  … and {len(problems) - 20} more" if len(problems) > 20 else ""),
        )
    module.load_state_dict(state)


def _read_document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads((path / STATE_FILE).read_text())
        version = str(document["format"])
        document["policies"], document["state"], document["facts"]
    except FileNotFoundError as error:
        what = f"is no checkpoint: it has no {STATE_FILE}" if path.exists() else "does not exist"
        raise CheckpointError(str(path), what) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(str(path), f"is damaged: {STATE_FILE} cannot be read ({error!r})") from error
    if version.split(".")[0] != FORMAT.split(".")[0]:
        raise CheckpointError(
            str(path),
            f"was written in format {version}; this version of srl_ray reads format {FORMAT}. Use the version of "
            "srl_ray that wrote it.",
        )
    return dict(document)


def _pack(value: Any, place: str, tensors: dict[str, Any]) -> Any:
    """Nested state → JSON-able; tensors move to `tensors` under their place."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, np.generic):
        return _pack(value.item(), place, tensors)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else {_FLOAT: repr(value)}
    if isinstance(value, np.ndarray):
        tensors[place] = value
        return {_ARRAY: place}
    if _is_tensor(value):
        tensors[place] = value
        return {_TENSOR: place}
    if isinstance(value, Mapping):
        if all(isinstance(k, str) and not k.startswith("__") for k in value):
            return {k: _pack(v, f"{place}.{k}" if place else k, tensors) for k, v in value.items()}
        pairs = [[_pack(k, f"{place}#key", tensors), _pack(v, f"{place}.{k}", tensors)] for k, v in value.items()]
        return {_PAIRS: pairs}
    if isinstance(value, (list, tuple)):
        items = [_pack(v, f"{place}.{i}", tensors) for i, v in enumerate(value)]
        return {_TUPLE: items} if isinstance(value, tuple) else items
    raise TypeError(f"{place or 'the state'} is a {type(value).__module__}.{type(value).__qualname__}")


def _unpack(value: Any, tensors: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_unpack(v, tensors, arrays) for v in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (tag, content), *_ = value.items()
        if tag == _TENSOR:
            return tensors[content]
        if tag == _ARRAY:
            return arrays[content].copy()
        if tag == _FLOAT:
            return float(content)
        if tag == _TUPLE:
            return tuple(_unpack(v, tensors, arrays) for v in content)
        if tag == _PAIRS:
            return {_hashable(_unpack(k, tensors, arrays)): _unpack(v, tensors, arrays) for k, v in content}
    return {k: _unpack(v, tensors, arrays) for k, v in value.items()}


def _hashable(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key


def _is_tensor(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "torch" and hasattr(value, "detach")


def _flat(tensors: Mapping[str, Any]) -> FlatWeights:
    if not any(_is_tensor(t) for t in tensors.values()):
        return flatten(tensors)
    import torch

    return flatten_tensors(
        {k: torch.from_numpy(np.ascontiguousarray(t)) if isinstance(t, np.ndarray) else t for k, t in tensors.items()}
    )


def _differences(facts: Mapping[str, Any], expected: Mapping[str, Any], place: str) -> Iterable[str]:
    for key in sorted({*facts, *expected}):
        name = f"{place}{key}"
        if key not in facts:
            yield f"{name}: not in the checkpoint, {_show(expected[key])} in this run"
        elif key not in expected:
            yield f"{name}: {_show(facts[key])} in the checkpoint, not in this run"
        elif isinstance(facts[key], Mapping) and isinstance(expected[key], Mapping):
            yield from _differences(facts[key], expected[key], f"{name}.")
        elif json.dumps(facts[key], default=str) != json.dumps(expected[key], default=str):
            yield f"{name}: {_show(facts[key])} in the checkpoint, {_show(expected[key])} in this run"


def _show(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 120 else text[:117] + "..."


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
