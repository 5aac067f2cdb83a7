"""Gymnasium spaces as flat named fields: specs for the policy, vectorised conversion for the blocks.

Observations. A composite space (Dict, Tuple, nested) is flattened to fields named by their path, "a.b" or "camera.0"; a
plain space is the one field "obs".

    Box uint8                    stays uint8 with its shape (images travel as bytes)
    Box of any other dtype       float32 with its shape; wider floats and integers are cast once, here
    Discrete, MultiDiscrete      float32 one-hot [n] and [sum(nvec)], `start` taken off
    MultiBinary                  float32 with its shape
    key "action_mask" of a Dict  bool [sum(nvec)], the field `core.types.ACTION_MASK`

Actions.

    Discrete, MultiDiscrete, MultiBinary    one categorical component per number, `start` put back on
    Box of integers, finite and small       one categorical component per number, from `low`
    Box of floats                           continuous [k], clipped to the bounds and cast to the space's dtype
    Dict, Tuple of one kind of these        their components one after the other

Everything else is refused by name with a `ConfigError`.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces, wrappers
from gymnasium.vector import SyncVectorEnv

from srl_ray.core.errors import ConfigError
from srl_ray.core.types import (
    ACTION_MASK,
    ActionSpec,
    Arrays,
    ContinuousActions,
    DiscreteActions,
    FieldSpec,
    FrameStack,
)

logger = logging.getLogger(__name__)

PLAIN_FIELD = "obs"
"""Name of the only field of an observation space that is not composite."""

MAX_ONE_HOT = 65_536
"""A larger one-hot observation is refused: it belongs into an embedding of the user's own."""

MAX_INTEGER_ACTIONS = 1_024
"""Values per component up to which an integer Box is treated as categorical choices."""

Path = tuple[Any, ...]
Space = gymnasium.Space[Any]

_warned: set[tuple[str, str]] = set()


class ContractBreach(ValueError):
    """An environment returned something that its spaces do not announce; the text names field, expected and found.

    Blocks turn it into an `EnvironmentFault` with the environment's name and index.
    """


# ---------------------------------------------------------------------------------------------------- observations


class Stacking(NamedTuple):
    """How observations are stacked: see `FrameStack`; a negative axis counts from the end."""

    axis: int
    pad: str


class _Field(Protocol):
    """One flat field. `write_one` fills row `index` of `out` [rows, ...]; `write_all` fills all its rows."""

    name: str
    path: Path
    spec: FieldSpec

    def write_one(self, out: np.ndarray, index: int, value: Any) -> None: ...

    def write_all(self, out: np.ndarray, values: Any) -> None: ...


class ObservationAdapter:
    """Flat fields of an observation space and the writing of observations into preallocated arrays.

    Args:
        space: Observation space of one agent.
        action: Its action spec, to check the size of an action mask.
        env_id: Name for messages.
        stacking: How its uint8 fields of three axes or more are stacks of frames; None: they are not.

    Raises:
        ConfigError: the space holds something that is not supported, or nothing that could be a stack.

    Example:
        adapter = ObservationAdapter(env.observation_space, action_spec, "CartPole-v1")
        buffers = {name: spec.zeros(8) for name, spec in adapter.fields.items()}
        write = adapter.writer(buffers)
        write(3, env.reset()[0])
    """

    def __init__(self, space: Space, action: ActionSpec, env_id: str, stacking: Stacking | None = None) -> None:
        self.space = space
        self._fields = _make_fields(space, action, env_id)
        self.fields: dict[str, FieldSpec] = {field.name: field.spec for field in self._fields}
        if stacking is not None:
            self.fields = _stacked(self.fields, stacking, env_id)
        self.float_fields: tuple[str, ...] = tuple(
            field.name for field in self._fields if isinstance(field, _BoxField) and field.is_float
        )
        """Fields that can hold NaN or infinity."""

    def allocate(self, *leading: int) -> Arrays:
        """Zeros for every field with the given leading axes."""
        return {name: spec.zeros(*leading) for name, spec in self.fields.items()}

    def writer(self, buffers: Arrays) -> Callable[[int, Any], None]:
        """A function `write(index, observation)` into row `index` of the buffers [rows, ...].

        The function raises ContractBreach for an observation that does not fit the space.
        """
        bound = [(field.path, field.write_one, buffers[field.name]) for field in self._fields]
        if len(bound) == 1 and not bound[0][0]:
            _, write_one, buffer = bound[0]
            return lambda index, obs: write_one(buffer, index, obs)

        def write(index: int, obs: Any) -> None:
            for path, write_one, buffer in bound:
                write_one(buffer, index, _follow(obs, path))

        return write

    def write_all(self, buffers: Arrays, obs: Any) -> None:
        """Write a batched observation, as a vector environment returns it, into all rows of the buffers [E, ...]."""
        for field in self._fields:
            field.write_all(buffers[field.name], _follow(obs, field.path))


def find_stacking(env: Any, option: str, pad: str) -> Stacking | None:
    """How an environment, or a vector environment, stacks frames.

    Args:
        env: Not reset yet.
        option: env.frame_stack.
        pad: env.frame_stack_pad.
    """
    match option:
        case "first":
            return Stacking(0, pad)
        case "last":
            return Stacking(-1, pad)
        case "auto":
            return _known_stacking(env)
    return None


def _known_stacking(env: Any) -> Stacking | None:
    """Of an environment whose stacks nothing above them can have changed."""
    while isinstance(env, _HARMLESS):
        env = env.env
    if isinstance(getattr(env, "stacking", None), Stacking):  # it knows by itself
        return env.stacking  # type: ignore[no-any-return]
    if isinstance(env, SyncVectorEnv):
        return _known_stacking(env.envs[0])
    if type(env).__name__ == "AtariVectorEnv" and type(env).__module__.startswith("ale_py."):
        return Stacking(0, "zero") if env.single_observation_space.shape[0] > 1 else None
    if type(env) is not wrappers.FrameStackObservation or not isinstance(env.observation_space, spaces.Box):
        return None
    pad = {"reset": "repeat", "zero": "zero"}.get(env.padding_type)
    is_stack = env.stack_size > 1 and _may_be_stack(FieldSpec(env.observation_space.shape, env.observation_space.dtype))  # type: ignore[arg-type]
    return Stacking(0, pad) if pad is not None and is_stack else None


_HARMLESS = (
    gymnasium.ActionWrapper,
    gymnasium.RewardWrapper,
    wrappers.Autoreset,
    wrappers.OrderEnforcing,
    wrappers.PassiveEnvChecker,
    wrappers.RecordEpisodeStatistics,
    wrappers.TimeLimit,
)
"""Wrappers that leave observations alone."""


def _may_be_stack(field: FieldSpec) -> bool:
    return field.dtype == np.uint8 and len(field.shape) >= 3


def _stacked(fields: Mapping[str, FieldSpec], stacking: Stacking, env_id: str) -> dict[str, FieldSpec]:
    stacked = dict(fields)
    for name, field in fields.items():
        axis = range(len(field.shape))[stacking.axis] if _may_be_stack(field) else 0
        if _may_be_stack(field) and 1 < field.shape[axis] < 127:
            stacked[name] = replace(field, stack=FrameStack(axis, field.shape[axis], stacking.pad))
    if stacked == fields:
        raise ConfigError(
            f"environment {env_id!r}: env.frame_stack names an axis, but no observation is a stack of frames: expected "
            f"uint8 with three axes or more, found {[(field.shape, str(field.dtype)) for field in fields.values()]}."
        )
    return stacked


class _BoxField:
    def __init__(self, name: str, path: Path, space: spaces.Box | spaces.MultiBinary, env_id: str) -> None:
        self.name = name
        self.path = path
        self.env_id = env_id
        self._dtype: np.dtype[Any] = np.dtype(space.dtype)
        self._shape: tuple[int, ...] = tuple(space.shape)
        stored = np.uint8 if self._dtype == np.uint8 and isinstance(space, spaces.Box) else np.float32
        self.spec = FieldSpec(self._shape, np.dtype(stored))
        self.is_float = self._dtype.kind == "f"

    def write_one(self, out: np.ndarray, index: int, value: Any) -> None:
        if type(value) is not np.ndarray or value.dtype is not self._dtype or value.shape != self._shape:
            value = self._inspect(value, self._shape)
        out[index] = value

    def write_all(self, out: np.ndarray, values: Any) -> None:
        shape = out.shape
        if type(values) is not np.ndarray or values.dtype is not self._dtype or values.shape != shape:
            values = self._inspect(values, shape)
        out[...] = values

    def _inspect(self, value: Any, shape: tuple[int, ...]) -> np.ndarray:
        array = _as_array(value, self.name, f"{self._dtype} array of shape {shape}")
        if array.shape != shape:
            raise ContractBreach(
                f"observation field {self.name!r}: expected shape {shape} from the observation space, "
                f"found {array.shape}"
            )
        if array.dtype != self._dtype:
            if not np.can_cast(array.dtype, self._dtype, "same_kind"):
                raise ContractBreach(
                    f"observation field {self.name!r}: expected dtype {self._dtype} from the observation space, found "
                    f"{array.dtype}, which cannot be cast without loss; return `obs.astype(np.{self._dtype})`"
                )
            _warn_once(
                self.env_id,
                self.name,
                f"expected dtype {self._dtype} from the observation space, found {array.dtype}; every step casts it",
            )
        return array


class _OneHotField:
    """One-hot of one or several integers; offsets [k] say where each component begins."""

    def __init__(self, name: str, path: Path, nvec: np.ndarray, start: np.ndarray, is_scalar: bool) -> None:
        self.name = name
        self.path = path
        self._nvec = nvec.reshape(-1).astype(np.int64)
        self._start = start.reshape(-1).astype(np.int64)
        self._shape = () if is_scalar else nvec.shape
        self._offsets = np.concatenate([[0], np.cumsum(self._nvec)[:-1]]).astype(np.int64)
        self._scalar = (int(self._start[0]), int(self._nvec[0])) if is_scalar else None
        self.spec = FieldSpec((int(self._nvec.sum()),), np.dtype(np.float32))

    def write_one(self, out: np.ndarray, index: int, value: Any) -> None:
        row = out[index]
        if self._scalar is not None:
            start, n = self._scalar
            try:
                hot = operator.index(value) - start
            except TypeError:
                hot = int(self._integers(value, ()).reshape(())) - start
            if not 0 <= hot < n:
                raise ContractBreach(self._out_of_range(value))
            row[...] = 0
            row[hot] = 1
            return
        row[...] = 0
        row[self._hot(value, self._shape).reshape(-1)] = 1

    def write_all(self, out: np.ndarray, values: Any) -> None:
        hot = self._hot(values, (out.shape[0], *self._shape)).reshape(out.shape[0], -1)
        out[...] = 0
        np.put_along_axis(out, hot, np.float32(1), axis=1)

    def _hot(self, value: Any, shape: tuple[int, ...]) -> np.ndarray:
        relative = self._integers(value, shape).reshape(-1, len(self._nvec)) - self._start
        if ((relative < 0) | (relative >= self._nvec)).any():
            raise ContractBreach(self._out_of_range(value))
        return np.asarray(relative + self._offsets)

    def _integers(self, value: Any, shape: tuple[int, ...]) -> np.ndarray:
        array = _as_array(value, self.name, f"integers of shape {shape}")
        if array.shape != shape or array.dtype.kind not in "iub":
            raise ContractBreach(
                f"observation field {self.name!r}: expected integers of shape {shape} from the observation space, "
                f"found {array.dtype} of shape {array.shape}"
            )
        return array.astype(np.int64)

    def _out_of_range(self, value: Any) -> str:
        low, high = self._start.tolist(), (self._start + self._nvec - 1).tolist()
        return f"observation field {self.name!r}: expected integers from {low} to {high}, found {_short(value)}"


class _MaskField:
    """Legal actions: the components' masks one after the other; `parts` are their places below `path`."""

    name = ACTION_MASK

    def __init__(self, path: Path, parts: Sequence[tuple[Path, int]]) -> None:
        self.path = path
        self._parts = tuple(parts)
        self.spec = FieldSpec((sum(size for _, size in parts),), np.dtype(np.bool_))

    def write_one(self, out: np.ndarray, index: int, value: Any) -> None:
        self._write(out[index : index + 1], value, ())

    def write_all(self, out: np.ndarray, values: Any) -> None:
        self._write(out, values, (out.shape[0],))

    def _write(self, out: np.ndarray, value: Any, leading: tuple[int, ...]) -> None:
        begin = 0
        for path, size in self._parts:
            array = _as_array(_follow(value, path), self.name, f"{size} flags")
            if array.shape[: len(leading)] != leading or array.size != size * out.shape[0]:
                raise ContractBreach(
                    f"observation field {self.name!r}: expected {size} flags per row, found an array of shape "
                    f"{array.shape}"
                )
            out[:, begin : begin + size] = array.reshape(out.shape[0], size) != 0
            begin += size


def _make_fields(space: Space, action: ActionSpec, env_id: str) -> list[_Field]:
    fields: list[_Field] = []
    for path, leaf in _leaves(space):
        if path and path[0] == ACTION_MASK:
            continue
        fields.append(_make_field(path, leaf, env_id))
    if isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces:
        fields.append(_make_mask_field(space.spaces[ACTION_MASK], action, env_id))
    names = [field.name for field in fields]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ConfigError(f"environment {env_id!r}: the observation space has two fields {twice}; rename one key.")
    if not any(name != ACTION_MASK for name in names):
        raise ConfigError(f"environment {env_id!r}: the observation space {space} is empty.")
    return fields


def _make_field(path: Path, space: Space, env_id: str) -> _Field:
    name = ".".join(map(str, path)) if path else PLAIN_FIELD
    match space:
        case spaces.Box() if np.dtype(space.dtype).kind in "fiub":
            return _BoxField(name, path, space, env_id)
        case spaces.MultiBinary():
            return _BoxField(name, path, space, env_id)
        case spaces.Discrete() if space.n <= MAX_ONE_HOT:
            return _OneHotField(name, path, np.asarray([space.n]), np.asarray([space.start]), is_scalar=True)
        case spaces.MultiDiscrete() if int(space.nvec.sum()) <= MAX_ONE_HOT:
            return _OneHotField(name, path, space.nvec, space.start, is_scalar=False)
        case spaces.Discrete() | spaces.MultiDiscrete():
            raise ConfigError(
                f"environment {env_id!r}: observation {name!r} is {_short(space)}, which is one-hot encoded and would "
                f"need more than {MAX_ONE_HOT} numbers. Wrap the environment and observe a Box of features instead."
            )
    _refuse_old_gym(space, env_id)
    raise ConfigError(
        f"environment {env_id!r}: observation {name!r} is {_short(space)}; supported are Box, Discrete, MultiDiscrete, "
        "MultiBinary and Dict or Tuple of these. Wrap the environment (gymnasium.wrappers.TransformObservation)."
    )


def _make_mask_field(space: Space, action: ActionSpec, env_id: str) -> _MaskField:
    if not isinstance(action, DiscreteActions):
        raise ConfigError(
            f"environment {env_id!r}: observation {ACTION_MASK!r} needs discrete actions, but the action space is "
            "continuous. Rename the key."
        )
    parts: list[tuple[Path, int]] = []
    for path, leaf in _leaves(space):
        is_flags = isinstance(leaf, spaces.MultiBinary) or (
            isinstance(leaf, spaces.Box) and np.dtype(leaf.dtype).kind in "iubf"
        )
        if not is_flags:
            raise ConfigError(
                f"environment {env_id!r}: observation {ACTION_MASK!r} is {_short(leaf)}; use MultiBinary(n)."
            )
        parts.append((path, int(np.prod(leaf.shape or (1,)))))
    expected, found = sum(action.nvec), sum(size for _, size in parts)
    if expected != found:
        raise ConfigError(
            f"environment {env_id!r}: observation {ACTION_MASK!r} has {found} flags, but the actions need "
            f"{expected} (sum of {action.nvec})."
        )
    return _MaskField((ACTION_MASK,), parts)


# --------------------------------------------------------------------------------------------------------- actions


class ActionAdapter:
    """Action spec of a space and the conversion of the policy's arrays to the environment's actions.

    Args:
        space: Action space of one agent.
        env_id: Name for messages.

    Raises:
        ConfigError: the space holds something that is not supported.

    Example:
        adapter = ActionAdapter(spaces.Discrete(3, start=-1), "MyEnv-v0")
        adapter.decode(np.array([[0], [2]]))            # [np.int64(-1), np.int64(1)]
    """

    def __init__(self, space: Space, env_id: str) -> None:
        self.space = space
        self._leaves: list[_ActionLeaf] = []
        begin = 0
        for path, leaf in _leaves(space):
            made = _make_action_leaf(path, leaf, begin, env_id)
            begin = made.columns.stop
            self._leaves.append(made)
        self.spec: ActionSpec = _join_actions(space, self._leaves, env_id)
        self._is_plain = not isinstance(space, spaces.Dict | spaces.Tuple)

    def decode(self, actions: np.ndarray) -> list[Any]:
        """Actions [E, k] → one action per environment, in the space's own structure, start and dtype.

        The arrays are fresh at every call: an environment may keep them and write to them.
        """
        if self._is_plain:
            return list(self._leaves[0].decode(actions))
        leaves = [leaf.decode(actions) for leaf in self._leaves]
        return [_compose(self.space, iter([leaf[e] for leaf in leaves])) for e in range(len(actions))]

    def decode_all(self, actions: np.ndarray) -> Any:
        """Actions [E, k] → the batched action of a gymnasium vector environment."""
        return _compose(self.space, iter([leaf.decode(actions) for leaf in self._leaves]))


class _ActionLeaf:
    """Columns of the action array that belong to one plain space, and their decoding."""

    def __init__(self, columns: slice, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.columns = columns
        self.shape = shape
        self.dtype = dtype

    def decode(self, actions: np.ndarray) -> np.ndarray:
        """[E, k] → [E, *shape]."""
        raise NotImplementedError


class _DiscreteLeaf(_ActionLeaf):
    def __init__(
        self, columns: slice, shape: tuple[int, ...], dtype: np.dtype[Any], nvec: np.ndarray, start: np.ndarray
    ) -> None:
        super().__init__(columns, shape, dtype)
        self.nvec = tuple(int(n) for n in nvec.reshape(-1))
        self.start = tuple(int(s) for s in start.reshape(-1))
        self._start = np.asarray(self.start, np.int64)

    def decode(self, actions: np.ndarray) -> np.ndarray:
        values = (actions[:, self.columns] + self._start).astype(self.dtype, copy=False)
        return values.reshape(len(actions), *self.shape)


class _BoxLeaf(_ActionLeaf):
    def __init__(self, columns: slice, space: spaces.Box) -> None:
        super().__init__(columns, space.shape, np.dtype(space.dtype))
        self.low = space.low.reshape(-1)
        self.high = space.high.reshape(-1)

    def decode(self, actions: np.ndarray) -> np.ndarray:
        values = actions[:, self.columns].astype(self.dtype)
        return np.clip(values, self.low, self.high, out=values).reshape(len(actions), *self.shape)


def _make_action_leaf(path: Path, space: Space, begin: int, env_id: str) -> _ActionLeaf:
    where = f"action {'.'.join(map(str, path))!r}" if path else "the action space"
    match space:
        case spaces.Discrete():
            nvec, start = np.asarray([space.n]), np.asarray([space.start])
            return _DiscreteLeaf(slice(begin, begin + 1), (), np.dtype(space.dtype), nvec, start)
        case spaces.MultiDiscrete():
            columns = slice(begin, begin + space.nvec.size)
            return _DiscreteLeaf(columns, space.nvec.shape, np.dtype(space.dtype), space.nvec, space.start)
        case spaces.MultiBinary():
            size = int(np.prod(space.shape))
            ones = np.ones(size, np.int64)
            return _DiscreteLeaf(slice(begin, begin + size), space.shape, np.dtype(space.dtype), 2 * ones, 0 * ones)
        case spaces.Box() if np.dtype(space.dtype).kind == "f":
            return _BoxLeaf(slice(begin, begin + space.low.size), space)
        case spaces.Box():
            low = np.asarray([int(x) for x in space.low.reshape(-1)], object)
            counts = np.asarray([int(x) for x in space.high.reshape(-1)], object) - low + 1
            if max(counts, default=0) > MAX_INTEGER_ACTIONS:
                raise ConfigError(
                    f"environment {env_id!r}: {where} is {_short(space)}, an integer Box with up to {max(counts)} "
                    f"values per component; up to {MAX_INTEGER_ACTIONS} are treated as discrete choices. Use "
                    "MultiDiscrete, narrower bounds, or a float Box that the environment rounds."
                )
            columns = slice(begin, begin + space.low.size)
            return _DiscreteLeaf(columns, space.shape, np.dtype(space.dtype), counts, low)
    _refuse_old_gym(space, env_id)
    raise ConfigError(
        f"environment {env_id!r}: {where} is {_short(space)}; supported are Discrete, MultiDiscrete, MultiBinary, Box "
        "and Dict or Tuple of these. Wrap the environment (gymnasium.wrappers.TransformAction)."
    )


def _join_actions(space: Space, leaves: Sequence[_ActionLeaf], env_id: str) -> ActionSpec:
    discrete = [leaf for leaf in leaves if isinstance(leaf, _DiscreteLeaf)]
    boxes = [leaf for leaf in leaves if isinstance(leaf, _BoxLeaf)]
    if discrete and boxes:
        raise ConfigError(
            f"environment {env_id!r}: the action space {_short(space)} mixes discrete and continuous parts, which is "
            "not supported. Discretise the continuous part in a wrapper."
        )
    if discrete:
        return DiscreteActions(
            nvec=tuple(n for leaf in discrete for n in leaf.nvec),
            start=tuple(s for leaf in discrete for s in leaf.start),
        )
    if not boxes or not sum(leaf.low.size for leaf in boxes):
        raise ConfigError(f"environment {env_id!r}: the action space {_short(space)} is empty.")
    with np.errstate(over="ignore"):
        low = np.concatenate([leaf.low for leaf in boxes]).astype(np.float32)
        high = np.concatenate([leaf.high for leaf in boxes]).astype(np.float32)
    return ContinuousActions(low=low, high=high, shape=boxes[0].shape if len(boxes) == 1 else ())


# --------------------------------------------------------------------------------------------------------- helpers


class MaskFromInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Moves `info["action_mask"]` of an environment with Discrete actions into its observation.

    A plain observation becomes `{"obs": observation, "action_mask": mask}`, a Dict gets the key added. Environments
    that declare `metadata["action_mask"] = "info"` are wrapped by the block itself.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        if not isinstance(env.action_space, spaces.Discrete):
            raise ConfigError(f"MaskFromInfo needs Discrete actions, found {_short(env.action_space)}.")
        self._is_dict = isinstance(env.observation_space, spaces.Dict)
        inner = dict(env.observation_space.spaces) if self._is_dict else {PLAIN_FIELD: env.observation_space}  # type: ignore[attr-defined]
        self.observation_space = spaces.Dict({**inner, ACTION_MASK: spaces.MultiBinary(int(env.action_space.n))})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._join(obs, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._join(obs, info), reward, terminated, truncated, info

    def _join(self, obs: Any, info: Mapping[str, Any]) -> dict[str, Any]:
        if ACTION_MASK not in info:
            raise ContractBreach(f"info: expected the key {ACTION_MASK!r}, found {sorted(info)}")
        inner = obs if self._is_dict else {PLAIN_FIELD: obs}
        return {**inner, ACTION_MASK: np.asarray(info[ACTION_MASK], np.int8)}


def _leaves(space: Space, path: Path = ()) -> Iterator[tuple[Path, Space]]:
    """Plain spaces below a composite one, with the keys that lead to them."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _leaves(part, (*path, index))
    else:
        yield path, space


def _compose(space: Space, values: Iterator[Any]) -> Any:
    """Put leaf values, in the order of `_leaves`, back into the structure of the space."""
    if isinstance(space, spaces.Dict):
        return {key: _compose(part, values) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_compose(part, values) for part in space.spaces)
    return next(values)


def _follow(obs: Any, path: Path) -> Any:
    for key in path:
        try:
            obs = obs[key]
        except (KeyError, IndexError, TypeError) as error:
            found = sorted(map(str, obs)) if isinstance(obs, Mapping) else type(obs).__name__
            key = ".".join(map(str, path))
            raise ContractBreach(f"observation: expected the key {key!r}, found {found}") from error
    return obs


def _as_array(value: Any, name: str, expected: str) -> np.ndarray:
    if value is None:
        raise ContractBreach(f"observation field {name!r}: expected {expected}, found None")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ContractBreach(f"observation field {name!r}: expected {expected}, found {_short(value)}") from error
    if array.dtype.kind not in "fiub":
        raise ContractBreach(f"observation field {name!r}: expected {expected}, found {_short(value)}")
    return array


def _refuse_old_gym(space: Any, env_id: str) -> None:
    if type(space).__module__.split(".")[0] == "gym":
        raise ConfigError(
            f"environment {env_id!r}: {_short(space)} is a space of the old package `gym`. Port the environment to "
            "gymnasium, or wrap it with the package shimmy (GymV26CompatibilityV0, GymV21CompatibilityV0)."
        )


def _warn_once(env_id: str, name: str, text: str) -> None:
    if (env_id, name) not in _warned:
        _warned.add((env_id, name))
        logger.warning("environment %r: observation field %r: %s", env_id, name, text)


def _short(value: Any) -> str:
    text = f"{value!r}"
    return text if len(text) <= 120 else text[:117] + "..."
