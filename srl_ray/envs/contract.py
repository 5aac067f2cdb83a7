"""A look at the environment before a run: a breach of its contract becomes one readable message."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from srl_ray.core.errors import EnvironmentFault
from srl_ray.core.types import (
    ACTION_MASK,
    ActionSpec,
    Arrays,
    BlockSpec,
    ContinuousActions,
    DiscreteActions,
    FieldSpec,
)
from srl_ray.envs.block import BlockStep, EnvBlock
from srl_ray.envs.config import EnvConfig
from srl_ray.envs.factory import as_block, build_raw, env_name, is_block
from srl_ray.envs.faults import describe_error
from srl_ray.envs.gymnasium_block import describe_nonfinite, explain_step, prepare_env, split_reset
from srl_ray.envs.pettingzoo_block import is_pettingzoo
from srl_ray.envs.spaces import ActionAdapter, ContractBreach, ObservationAdapter, find_stacking

logger = logging.getLogger(__name__)

MIN_BUILD_TIMEOUT_S = 60.0
MAX_STEPPING_S = 10.0
"""No further step is begun after this time: a slow simulation is not held up by its check."""


def check_contract(config: EnvConfig, *, steps: int = 16, seed: int = 0) -> None:
    """Build what `config` names, reset it, take a few random steps, close it; raise at the first breach.

    Runs in a thread of its own, as workers do, and does not wait longer than env.step_timeout_s for a reset or a step.
    An environment that raises an ordinary exception in `reset` or `step` is left to env.on_error: with `restart` the
    check ends there with a warning.

    Raises:
        ConfigError: the environment does not exist or its spaces are not supported.
        EnvironmentFault: a breach (old 4-tuple, missing info or seed, observation outside its space, None, NaN, ...), a
            constructor that raises, or a call that does not return. Names the environment, the field, what was expected
            and what was found. A dtype that can be cast is a warning only.
    """
    if config.factory is None and config.id == "hide_and_seek":
        return
    progress = _Progress()
    name = env_name(config)
    outcome: list[BaseException] = []

    def target() -> None:
        try:
            _check(config, name, steps, seed, progress)
        except BaseException as error:
            outcome.append(error)
        finally:
            progress.is_done.set()

    threading.Thread(target=target, name="environment-check", daemon=True).start()
    while not progress.is_done.wait(0.1):
        stage, seconds = progress.now()
        limit_s = config.step_timeout_s if stage != "building it" else max(MIN_BUILD_TIMEOUT_S, config.step_timeout_s)
        if seconds > limit_s:
            raise EnvironmentFault(name, f"{stage} did not return within {limit_s:g} s (env.step_timeout_s)")
    if outcome:
        raise outcome[0]


class _Progress:
    """What the checking thread does right now, for the one that waits."""

    def __init__(self) -> None:
        self.is_done = threading.Event()
        self._state = ("building it", time.monotonic())

    def enter(self, stage: str) -> None:
        self._state = (stage, time.monotonic())

    def now(self) -> tuple[str, float]:
        stage, since = self._state
        return stage, time.monotonic() - since


def _check(config: EnvConfig, name: str, steps: int, seed: int, progress: _Progress) -> None:
    num_envs = config.envs_per_block
    if config.factory is None and config.vectorization in ("native", "envpool"):
        num_envs = min(2, num_envs)  # an Atari emulator takes 90 ms to load its game, and as long for a reset
    made, build = build_raw(config, num_envs)
    if is_block(made) or isinstance(made, VectorEnv) or is_pettingzoo(made) or not hasattr(made, "observation_space"):
        block = as_block(made, build, config, num_envs, look=check_inside)
        try:
            check_block(block, steps=steps, seed=seed, enter=progress.enter)
        finally:
            block.close()
        return
    try:
        _EnvCheck(prepare_env(made), config, name, progress.enter).run(steps, seed)
    except ContractBreach as error:
        raise EnvironmentFault(name, str(error)) from error
    finally:
        made.close()


# ------------------------------------------------------------------------------------------ a gymnasium environment


class _EnvCheck:
    """Drives one gymnasium environment and looks at everything it returns."""

    def __init__(self, env: Any, config: EnvConfig, name: str, enter: Callable[[str], None]) -> None:
        self._env = env
        self._name = name
        self._config = config
        self._enter = enter
        self._actions = ActionAdapter(env.action_space, name)
        stacking = find_stacking(env, config.frame_stack, config.frame_stack_pad)
        self._obs = ObservationAdapter(env.observation_space, self._actions.spec, name, stacking)
        self._stacks = _StackCheck(self._obs.fields, 1)
        self._rows = self._obs.allocate(1)
        self._write = self._obs.writer(self._rows)

    def run(self, steps: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        begin = time.monotonic()
        if not self._reset(seed):
            return
        for t in range(steps):
            if time.monotonic() - begin > MAX_STEPPING_S:
                return
            action = self._actions.decode(random_actions(self._actions.spec, 1, rng, self._rows.get(ACTION_MASK)))[0]
            self._enter(f"step {t}")
            try:
                result = self._env.step(action)
            except ContractBreach:
                raise
            except Exception as error:
                return self._leave_to_on_error(f"step({action!r})", error)
            if self._look_at_step(result, t) and not self._reset(None):
                return
        if self._stacks.is_needed:
            self._reset(None)

    def _reset(self, seed: int | None) -> bool:
        """Reset and look; False when an ordinary exception ended the check."""
        call = "reset()" if seed is None else f"reset(seed={seed})"
        self._enter(call)
        try:
            result = self._env.reset() if seed is None else self._env.reset(seed=seed)
        except ContractBreach:
            raise
        except Exception as error:
            if isinstance(error, TypeError) and "seed" in str(error):
                raise ContractBreach(
                    f"reset: expected `reset(self, *, seed=None, options=None)`, found that it refuses `seed` ({error})"
                ) from error
            self._leave_to_on_error(call, error)
            return False
        obs, _ = split_reset(result)
        self._look_at_obs(obs, call, on_reset=True)
        return True

    def _look_at_step(self, result: Any, t: int) -> bool:
        """Raises ContractBreach; returns whether the episode ended."""
        if not isinstance(result, tuple) or len(result) != 5:
            raise explain_step(result, None)
        obs, reward, terminated, truncated, info = result
        self._look_at_obs(obs, f"step {t}")
        try:
            value = float(reward)
        except (TypeError, ValueError) as error:
            raise explain_step(result, error) from error
        if not np.isfinite(value) and self._config.on_nonfinite == "stop":
            raise ContractBreach(f"step {t}: reward: expected a finite number, found {value}")
        for flag, found in (("terminated", terminated), ("truncated", truncated)):
            is_flag = isinstance(found, bool | np.bool_) or (isinstance(found, int | np.integer) and found in (0, 1))
            if not is_flag:
                raise ContractBreach(f"step {t}: {flag}: expected a bool, found {found!r}")
        if not isinstance(info, Mapping):
            raise ContractBreach(f"step {t}: info: expected a dict, found {type(info).__name__}")
        return bool(terminated or truncated)

    def _look_at_obs(self, obs: Any, where: str, *, on_reset: bool = False) -> None:
        try:
            self._write(0, obs)
            self._stacks.look(self._rows, np.zeros(1, np.int64), np.array([on_reset]))
            check_inside(obs, self._env.observation_space, "", self._config.on_nonfinite == "drop")
        except ContractBreach as error:
            raise ContractBreach(f"{where}: {error}") from error

    def _leave_to_on_error(self, call: str, error: Exception) -> None:
        trace = "".join(traceback.format_exception(error))
        if self._config.on_error == "stop":
            raise EnvironmentFault(self._name, f"{call} raised {describe_error(error)}", traceback=trace) from error
        logger.warning(
            "environment %r: %s raised %s during the check before the run; env.on_error=restart goes on\n%s",
            self._name, call, describe_error(error), trace,
        )  # fmt: skip


class _StackCheck:
    """Compares announced stacks of frames with those of the rows before."""

    def __init__(self, fields: Mapping[str, FieldSpec], lanes: int) -> None:
        self._fields = {name: field for name, field in fields.items() if field.stack is not None}
        self._newest = {name: field.zeros(lanes) for name, field in self._fields.items()}

    @property
    def is_needed(self) -> bool:
        return bool(self._fields)

    def look(self, obs: Arrays, lanes: np.ndarray, on_reset: np.ndarray) -> None:
        """The next observations [n, ...] of lanes [n], and whether each is the first of an episode (bool [n]).

        Raises:
            ContractBreach: one is not the stack that follows from its lane's last.
        """
        for name, field in self._fields.items():
            stack = field.stack
            assert stack is not None
            frames = np.moveaxis(obs[name], 1 + stack.axis, 1)
            before = np.moveaxis(self._newest[name][lanes], 1 + stack.axis, 1)[:, 1:]
            older, pad = frames[:, :-1], frames[:, -1:] if stack.pad == "repeat" else np.zeros_like(frames[:, -1:])
            is_right = np.where(_on_rows(on_reset, older), older == pad, older == before)
            if not is_right.all():
                lane = int(np.flatnonzero(~is_right.reshape(len(lanes), -1).all(axis=1))[0])
                expected = (
                    f"{stack.depth - 1} frames of padding ({stack.pad}) before the first of an episode"
                    if on_reset[lane]
                    else f"the last {stack.depth - 1} frames of the observation before"
                )
                raise ContractBreach(
                    f"observation field {name!r}: expected a stack of {stack.depth} frames on axis {stack.axis}, which "
                    f"begins with {expected}, found others; set env.frame_stack=none, or axis and env.frame_stack_pad"
                )
            self._newest[name][lanes] = obs[name]


def _on_rows(flags: np.ndarray, like: np.ndarray) -> np.ndarray:
    return flags.reshape(-1, *(1,) * (like.ndim - 1))


def check_inside(obs: Any, space: Any, name: str, may_be_nonfinite: bool = False) -> None:
    """Raise ContractBreach unless the numbers of `obs`, whose shapes are right, lie in the space (up to rounding)."""
    match space:
        case spaces.Dict():
            extra = sorted(set(map(str, obs)) - set(map(str, space.spaces)))
            if extra:
                raise ContractBreach(f"observation: keys {extra} are not in the observation space")
            for key, part in space.spaces.items():
                check_inside(obs[key], part, f"{name}.{key}" if name else str(key), may_be_nonfinite)
        case spaces.Tuple():
            for index, part in enumerate(space.spaces):
                check_inside(obs[index], part, f"{name}.{index}" if name else str(index), may_be_nonfinite)
        case spaces.Box():
            values = np.asarray(obs, np.float64)
            field = name or "obs"
            if not np.isfinite(values).all():
                if may_be_nonfinite:
                    return
                raise ContractBreach(f"{describe_nonfinite(field, values)}; expected finite numbers")
            low, high = space.low.astype(np.float64), space.high.astype(np.float64)
            slack = 1e-5 * np.maximum(1.0, np.abs(values))
            outside = (values < low - slack) | (values > high + slack)
            if outside.any():
                at = tuple(np.argwhere(outside)[0].tolist())
                raise ContractBreach(
                    f"observation field {field!r}: expected {low[at]:g} to {high[at]:g} at index {list(at)} from the "
                    f"observation space, found {values[at]:g}; correct the bounds or clip the observation"
                )


# --------------------------------------------------------------------------------------------------------- a block


def check_block(
    block: EnvBlock, *, steps: int = 16, seed: int = 0, enter: Callable[[str], None] = lambda stage: None
) -> None:
    """Reset a block, step it with random legal actions and compare every answer with its spec.

    Raises:
        EnvironmentFault: a shape, a dtype or a rule of BlockStep is broken, or an observation is not finite.
    """
    spec = block.spec
    rng = np.random.default_rng(seed)
    begin = time.monotonic()
    stacks = _StackCheck(spec.group.obs, spec.num_lanes)
    enter("reset")
    answer = block.reset(seed)
    _look_at_block_step(answer, spec, "reset")
    _look_at_stacks(answer, spec, stacks, "reset")
    for t in range(steps):
        if time.monotonic() - begin > MAX_STEPPING_S:
            return
        mask = answer.obs.get(ACTION_MASK)
        flat_mask = None if mask is None else mask.reshape(spec.num_lanes, -1)
        actions = random_actions(spec.group.action, spec.num_lanes, rng, flat_mask)
        enter(f"step {t}")
        answer = block.step(actions.reshape(spec.num_envs, spec.group.num_agents, -1))
        _look_at_block_step(answer, spec, f"step {t}")
        _look_at_stacks(answer, spec, stacks, f"step {t}")
    if stacks.is_needed:
        enter("reset")
        _look_at_stacks(block.reset(seed), spec, stacks, "reset")


def _look_at_stacks(answer: BlockStep, spec: BlockSpec, stacks: _StackCheck, where: str) -> None:
    obs = {name: array.reshape(spec.num_lanes, *array.shape[2:]) for name, array in answer.obs.items()}
    lanes = np.flatnonzero(answer.present)
    try:
        stacks.look(answer.final_obs, answer.final_lanes, np.zeros(len(answer.final_lanes), np.bool_))
        stacks.look({name: array[lanes] for name, array in obs.items()}, lanes, answer.on_reset.reshape(-1)[lanes])
    except ContractBreach as error:
        raise EnvironmentFault(spec.env_id, f"{where}: {error}") from error


def _look_at_block_step(answer: BlockStep, spec: BlockSpec, where: str) -> None:
    def fault(text: str) -> EnvironmentFault:
        return EnvironmentFault(spec.env_id, f"{where}: {text}")

    def look(name: str, array: Any, shape: tuple[int, ...], dtype: Any) -> None:
        if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != dtype:
            found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            raise fault(f"{name}: expected {np.dtype(dtype)} {shape}, found {found}")

    lanes = (spec.num_envs, spec.group.num_agents)
    if not isinstance(answer, BlockStep):
        raise fault(f"expected a BlockStep, found {type(answer).__name__}")
    for name in ("present", "on_reset", "terminated", "truncated"):
        look(name, getattr(answer, name), lanes, np.bool_)
    look("reward", answer.reward, lanes, np.float32)
    look("final_lanes", answer.final_lanes, (len(answer.final_lanes),), np.int64)
    fields = spec.group.obs
    for title, arrays, leading in (
        ("obs", answer.obs, lanes),
        ("final_obs", answer.final_obs, (len(answer.final_lanes),)),
    ):
        if set(arrays) != set(fields):
            raise fault(f"{title}: expected the fields {sorted(fields)}, found {sorted(arrays)}")
        for name, field in fields.items():
            look(f"{title}[{name!r}]", arrays[name], (*leading, *field.shape), field.dtype)
    if (answer.on_reset & ~answer.present).any():
        raise fault("on_reset is set for lanes that are not present")
    ended = (answer.terminated | answer.truncated).reshape(-1)
    if len(answer.final_lanes) and not ended[answer.final_lanes].all():
        raise fault("final_lanes names lanes that are neither terminated nor truncated")
    for name, values in _float_arrays(answer.obs):
        bad = ~np.isfinite(values).reshape(*lanes, -1).all(axis=-1) & answer.present
        if bad.any():
            e, agent = np.argwhere(bad)[0].tolist()
            text = describe_nonfinite(name, values[e, agent])
            raise fault(f"{text}, environment {e}, agent {spec.group.agent_ids[agent]!r}")
    if not np.isfinite(answer.reward).all():
        raise fault("reward holds NaN or infinity")


def _float_arrays(arrays: Arrays) -> list[tuple[str, np.ndarray]]:
    return [(name, values) for name, values in arrays.items() if values.dtype.kind == "f"]


def random_actions(
    action: ActionSpec, rows: int, rng: np.random.Generator, mask: np.ndarray | None = None
) -> np.ndarray:
    """Random actions [rows, k]; legal ones where a mask [rows, sum(nvec)] is given (rows without any get 0)."""
    if isinstance(action, ContinuousActions):
        spread = np.clip(action.high - action.low, 0.0, 2.0)
        middle = np.clip(0.0, action.low, action.high)
        return (middle + spread * rng.uniform(-1.0, 1.0, (rows, len(action.low)))).astype(np.float32)
    assert isinstance(action, DiscreteActions)
    if mask is None:
        return rng.integers(0, np.asarray(action.nvec), (rows, len(action.nvec)))
    columns = []
    begin = 0
    for n in action.nvec:
        score = rng.random((rows, n)) * mask[:, begin : begin + n]
        columns.append(score.argmax(axis=1))
        begin += n
    return np.stack(columns, axis=1)
