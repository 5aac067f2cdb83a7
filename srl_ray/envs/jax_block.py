"""Functional JAX environments: all environments of a block in one compiled step, on whatever device JAX computes.

The interface is gymnax's (Lange 2022, github.com/RobertTLange/gymnax), by duck typing, so that gymnax is not needed:

    reset(key, params) → obs, state
    step(key, state, action, params) → obs, state, reward, done, info
                                    or obs, state, reward, terminated, truncated, info
    observation_space(params), action_space(params)         gymnax's spaces or gymnasium's
    default_params                                          optional; `max_steps_in_episode` in them is the time limit

An environment with `step_env` and `reset_env`, as gymnax's own have, is stepped by these: its `step` restarts episodes
by itself and hides the last observation. A `step` of one's own does not restart.

    terminated, truncated    six values say it themselves, and so does gymnax's `is_truncated(state, params)`. Else
                             `done` may mean both: an episode at its limit is terminated if it would be done without a
                             limit too, and truncated otherwise, whether or not `done` says so.
    randomness               environment e has the key `jax.random.key(env_seed(seed, e))`. A reset takes
                             `key, key_reset = split(key)`, every step `key, key_step, key_reset = split(key, 3)`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from srl_ray.core.errors import ConfigError, EnvironmentFault
from srl_ray.core.threads import told_threads
from srl_ray.core.types import ACTION_MASK, AgentGroup, Arrays, BlockSpec, EpisodeRecord
from srl_ray.envs.block import BlockStep
from srl_ray.envs.gymnasium_block import AGENT_ID, describe_nonfinite, env_seed
from srl_ray.envs.spaces import ActionAdapter, ObservationAdapter

PREFIX = "gymnax/"
"""Of ids that gymnax makes: `gymnax/CartPole-v1`."""

_TERMINATED, _TRUNCATED, _BROKEN, _BROKEN_START = 1, 2, 4, 8
"""Flags of what ended; broken: NaN or infinity in the last observation or reward, or in the next first observation."""


class _Carry(NamedTuple):
    """What stays on the device between steps; every leaf [E, ...]."""

    key: Any
    state: Any
    length: Any
    episode_return: Any
    rounding: Any  # of the return's sum (Kahan), so that float32 loses nothing over long episodes


class _Result(NamedTuple):
    """What a step gives; every leaf [E, ...]. Only obs, reward and flags are fetched when nothing ended."""

    obs: dict[str, Any]
    reward: Any
    flags: Any
    final_obs: dict[str, Any]
    episode_return: Any
    length: Any
    summary: dict[str, Any]


class JaxBlock:
    """E functional environments in one compiled step, restarted in the step in which their episode ends.

    On the CPU the arrays of a BlockStep are views of JAX's own, read-only, without a copy. On an accelerator
    `BlockStep.device_obs` has the observations where they are, and everything that goes into rows is copied to the host
    once; last observations, returns and lengths only when an episode ended.

    Faults: a compiled step does not raise, so `env.on_error` has no meaning here. NaN or infinity ends the run, or with
    `on_nonfinite="drop"` the episode: its lane ends truncated without a last observation and a discarded EpisodeRecord
    counts it. In a first observation it always ends the run.

    Args:
        env: See the module's text.
        num_envs: E.
        params: Parameters of the environment; None: its `default_params`.
        env_id: Name for messages.
        on_nonfinite: stop | drop.
        max_faults: Dropped episodes in a row of one environment, without a finished one between, before the run ends.

    Raises:
        ConfigError: JAX is missing, a space is not supported, or the environment hides its `step_env`.
        EnvironmentFault: tracing the environment failed, or its observations are not what its space says.

    Lifecycle: build (compiles), `reset(seed)`, `step(actions)` for ever, `close()`; all in one thread.

    Example:
        block = JaxBlock(srl_ray.envs.functional.CartPole(), 1024, env_id="CartPole")
        answer = block.reset(seed=7)
        answer = block.step(np.zeros((1024, 1, 1), np.int64))
    """

    def __init__(
        self,
        env: Any,
        num_envs: int,
        params: Any = None,
        *,
        env_id: str,
        on_nonfinite: str = "stop",
        max_faults: int = 5,
    ) -> None:
        jax = load_jax(env_id)
        self._env_id = env_id
        self._on_nonfinite = on_nonfinite
        self._max_faults = max_faults
        params = getattr(env, "default_params", None) if params is None else params
        self._actions = ActionAdapter(_as_gymnasium(env.action_space(params), env_id, "the action space"), env_id)
        space = _as_gymnasium(env.observation_space(params), env_id, "the observation space", floats=True)
        adapter = ObservationAdapter(space, self._actions.spec, env_id)
        self._fields = adapter.fields
        group = AgentGroup("agents", (AGENT_ID,), adapter.fields, self._actions.spec, teams=("agents",))
        self.spec = BlockSpec(env_id, num_envs, group)

        begin, advance = _functions(env, params, _Encoder(space, adapter, env_id), env_id)
        actions = self._actions.decode_all(self._actions.spec.field.zeros(num_envs))
        self._begin, self._advance = _compile(begin, advance, np.zeros(num_envs, np.uint32), actions)
        self._is_host = jax.default_backend() == "cpu"
        self.shares_device = not self._is_host
        """Whether steps carry `device_obs`."""
        self._carry: _Carry | None = None
        self._all = np.ones((num_envs, 1), np.bool_)
        self._nobody = np.zeros((num_envs, 1), np.bool_)
        self._none = self._nobody[:, 0]
        self._no_lanes = np.zeros(0, np.int64)
        self._no_finals = adapter.allocate(0)
        self._faults_in_a_row = np.zeros(num_envs, np.int64)

    # ------------------------------------------------------------------------------------------------ the contract

    def reset(self, seed: int) -> BlockStep:
        """Start every environment from a key of its own."""
        seeds = np.array([env_seed(seed, e) for e in range(self.spec.num_envs)], np.uint32)
        self._carry, obs, flags = self._begin(seeds)
        self._faults_in_a_row[:] = 0
        self._look_at_starts(np.asarray(flags), obs)
        zeros = np.zeros((self.spec.num_envs, 1), np.float32)
        return self._answer(obs, self._all, zeros, self._nobody, self._nobody, self._no_lanes, self._no_finals, [])

    def step(self, actions: np.ndarray) -> BlockStep:
        """Step every environment; blocks until the device is done."""
        if self._carry is None:
            raise RuntimeError("JaxBlock.step was called before reset")
        self._carry, result = self._advance(self._carry, self._actions.decode_all(actions[:, 0]))
        if not self._is_host:  # all copies are under way before the first is waited for
            for array in (result.flags, result.reward, *result.obs.values()):
                array.copy_to_host_async()
        flags, reward = np.asarray(result.flags), np.asarray(result.reward)[:, None]
        if not flags.any():
            return self._answer(
                result.obs, self._nobody, reward, self._nobody, self._nobody, self._no_lanes, self._no_finals, []
            )
        return self._finish_episodes(result, flags, reward)

    def close(self) -> None:
        """Let go of the device's memory."""
        self._carry = None

    # ------------------------------------------------------------------------------------------------------ a step

    def _finish_episodes(self, result: _Result, flags: np.ndarray, reward: np.ndarray) -> BlockStep:
        broken = self._none
        if flags.max() > _TRUNCATED:
            self._look_at_starts(flags, result.obs)
            broken = flags & _BROKEN != 0
            self._drop(np.flatnonzero(broken), result)
            reward = np.where(broken[:, None], np.float32(0), reward)
            flags = np.where(broken, _TRUNCATED, flags)
        envs = np.flatnonzero(flags)
        lanes = envs if broken is self._none else envs[~broken[envs]]
        final_obs = {name: np.asarray(array)[lanes] for name, array in result.final_obs.items()}
        self._faults_in_a_row[lanes] = 0
        episodes = _records(envs, broken, result)
        ended, terminated, truncated = flags != 0, flags == _TERMINATED, flags == _TRUNCATED
        return self._answer(
            result.obs, ended[:, None], reward, terminated[:, None], truncated[:, None], lanes, final_obs, episodes
        )

    def _answer(
        self,
        obs: Mapping[str, Any],
        on_reset: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        final_lanes: np.ndarray,
        final_obs: Arrays,
        episodes: list[EpisodeRecord],
    ) -> BlockStep:
        return BlockStep(
            obs={name: np.asarray(array)[:, None] for name, array in obs.items()},
            present=self._all,
            on_reset=on_reset,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            final_lanes=final_lanes,
            final_obs=final_obs,
            episodes=episodes,
            device_obs=obs if self.shares_device else None,
        )

    def _drop(self, envs: np.ndarray, result: _Result) -> None:
        """Count the faults of environments whose observation or reward became NaN or infinite."""
        e = int(envs[0])
        text = f"{_describe(result.final_obs, e, result.reward)} at step {result.length[e]} of the episode"
        if self._on_nonfinite == "stop":
            raise EnvironmentFault(
                self._env_id, f"{text}. env.on_nonfinite=drop discards such episodes instead.", env_index=e
            )
        self._faults_in_a_row[envs] += 1
        worst = int(envs[self._faults_in_a_row[envs].argmax()])
        if self._faults_in_a_row[worst] > self._max_faults:
            raise EnvironmentFault(
                self._env_id,
                f"failed {self._faults_in_a_row[worst]} times without finishing an episode between "
                f"(env.max_faults={self._max_faults}); now: {text}",
                env_index=worst,
            )

    def _look_at_starts(self, flags: np.ndarray, obs: Mapping[str, Any]) -> None:
        bad = np.flatnonzero(flags & _BROKEN_START)
        if len(bad):
            e = int(bad[0])
            raise EnvironmentFault(self._env_id, f"reset: {_describe(obs, e)}; expected finite numbers", env_index=e)


def _records(envs: np.ndarray, broken: np.ndarray, result: _Result) -> list[EpisodeRecord]:
    """Episodes of `envs`, which ended in this step."""
    lengths, returns = np.asarray(result.length)[envs].tolist(), np.asarray(result.episode_return)[envs].tolist()
    names = list(result.summary)
    numbers = zip(*[np.asarray(values)[envs].tolist() for values in result.summary.values()])
    summaries = [dict(zip(names, map(float, row))) for row in numbers] if names else [{} for _ in lengths]
    return [
        EpisodeRecord(e, length, {AGENT_ID: value}, {AGENT_ID: length}, {} if is_broken else summary, is_broken)
        for e, length, value, summary, is_broken in zip(
            envs.tolist(), lengths, returns, summaries, broken[envs].tolist()
        )
    ]


def is_functional(made: Any) -> bool:
    """Whether it is a functional environment, or a pair of one and its parameters, as gymnax.make returns."""
    env = made[0] if isinstance(made, tuple) and len(made) == 2 else made
    reset, has_spaces = getattr(env, "reset", None), callable(getattr(env, "observation_space", None))
    try:
        return has_spaces and reset is not None and "params" in inspect.signature(reset).parameters
    except (TypeError, ValueError):
        return False


def make_gymnax(env_id: str, kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Environment and parameters of a gymnax id.

    Args:
        kwargs: For the environment's constructor; `params` in it holds changed parameters by name.

    Raises:
        ConfigError: gymnax is not installed, or the id or a parameter does not exist.
    """
    load_jax(env_id)
    name, kwargs = env_id.removeprefix(PREFIX), dict(kwargs)
    changes = kwargs.pop("params", {})
    try:
        gymnax = importlib.import_module("gymnax")
    except ImportError as error:
        raise ConfigError(_missing(env_id, "gymnax", error)) from error
    if name not in gymnax.registered_envs:
        near = difflib.get_close_matches(name, gymnax.registered_envs, n=4, cutoff=0.4)
        nearest = f" Nearest: {', '.join(near)}." if near else ""
        raise ConfigError(f"env.id={env_id!r}: gymnax has no environment {name!r}.{nearest}")
    env, params = gymnax.make(name, **kwargs)
    return env, _replaced(params, env_id, **changes)


def load_jax(env_id: str) -> Any:
    """Import JAX with settings that suit a worker; what the user's environment variables say stays in force.

    One thread unless OMP_NUM_THREADS says more: PJRT_NPROC. Dispatch on the CPU in the calling thread, which halves the
    time of a small step: JAX_CPU_ENABLE_ASYNC_DISPATCH. GPU memory as it is needed, because torch uses the same device:
    XLA_PYTHON_CLIENT_PREALLOCATE. They work until JAX computes for the first time.

    Raises:
        ConfigError: it is not installed.
    """
    if "NPROC" not in os.environ:
        os.environ.setdefault("PJRT_NPROC", str(told_threads() or 1))
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        jax = importlib.import_module("jax")
    except ImportError as error:
        raise ConfigError(_missing(env_id, "jax", error)) from error
    if "JAX_CPU_ENABLE_ASYNC_DISPATCH" not in os.environ:
        with contextlib.suppress(AttributeError):  # an older JAX knows no such setting
            jax.config.update("jax_cpu_enable_async_dispatch", False)
    return jax


def _missing(env_id: str, package: str, error: ImportError) -> str:
    return (
        f"environment {env_id!r} needs the package {package!r}, which is not installed ({error}). Install it with "
        "`pip install 'srl_ray[jax]'`."
    )


# ------------------------------------------------------------------------------------ compiled, and one environment

_compiled: dict[str, Callable[..., Any]] = {}
"""Program → executable: the blocks of a worker and the check before the run are compiled once."""


def _compile(
    begin: Any, advance: Any, seeds: np.ndarray, actions: Any
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Compile both, mapped over environments, for the shapes of these arguments."""
    import jax

    begin, advance = jax.vmap(begin), jax.vmap(advance)
    # With one thread a step need not be handed to another, which costs a third of a small one.
    is_alone = jax.default_backend() == "cpu" and os.environ.get("PJRT_NPROC") == "1"
    options: Any = {"xla_cpu_enable_concurrency_optimized_scheduler": False} if is_alone else None

    def executable(function: Any, *arguments: Any) -> Callable[..., Any]:
        lowered = jax.jit(function).lower(*arguments)
        text = lowered.as_text()
        if text not in _compiled:
            try:
                _compiled[text] = lowered.compile(compiler_options=options)
            except Exception:  # another version of XLA knows other options; the environment's errors came out above
                _compiled[text] = lowered.compile()
        return _compiled[text]

    first = jax.eval_shape(begin, seeds)[0]
    later = jax.eval_shape(advance, first, actions)[0]  # its dtypes may be wider: `time` may begin as the int 0

    def begin_as_later(seeds: Any) -> tuple[Any, ...]:
        carry, *rest = begin(seeds)
        return jax.tree.map(lambda x, like: x if x.dtype == like.dtype else x.astype(like.dtype), carry, later), *rest

    return executable(begin_as_later, seeds), executable(advance, later, actions)


def _functions(env: Any, params: Any, encoder: _Encoder, env_id: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`begin(seed) → carry, obs, flags` and `advance(carry, action) → carry, _Result` of one environment."""
    import jax
    import jax.numpy as jnp

    step, reset = _own_functions(env, env_id)
    limit = getattr(params, "max_steps_in_episode", None)
    unlimited = None if limit is None else _replaced(params, env_id, max_steps_in_episode=type(limit)(2**31 - 1))

    def begin(seed: Any) -> tuple[_Carry, dict[str, Any], Any]:
        key, key_reset = jax.random.split(jax.random.key(seed))
        obs, state = reset(key_reset, params)
        fields = encoder(obs)
        state = jax.tree.map(jnp.asarray, state)
        zero = jnp.float32(0)
        return (
            _Carry(key, state, jnp.int32(0), zero, zero),
            fields,
            ~encoder.is_finite(fields) * jnp.uint8(_BROKEN_START),
        )

    def ends(key: Any, carry: _Carry, action: Any, length: Any, values: tuple[Any, ...]) -> tuple[Any, Any]:
        """terminated, truncated."""
        if len(values) == 6:
            return values[3], values[4]
        done = values[3]
        if hasattr(env, "is_truncated"):
            return done, env.is_truncated(values[1], params)
        if limit is None:
            return done, False
        # A second trace with other constants; XLA merges what both have in common.
        by_rules = step(key, carry.state, action, unlimited)[3]
        return by_rules, done | (length >= limit)

    def advance(carry: _Carry, action: Any) -> tuple[_Carry, _Result]:
        key, key_step, key_reset = jax.random.split(carry.key, 3)
        values = step(key_step, carry.state, action, params)
        if len(values) not in (5, 6):
            raise EnvironmentFault(env_id, f"step: expected five or six values, found {len(values)}")
        last, reward = encoder(values[0]), jnp.asarray(values[2], jnp.float32).reshape(())
        length = carry.length + 1
        terminated, truncated = (
            jnp.asarray(flag, bool).reshape(()) for flag in ends(key_step, carry, action, length, values)
        )
        is_broken = ~(encoder.is_finite(last) & jnp.isfinite(reward))
        ended = terminated | truncated | is_broken

        fresh_obs, fresh_state = reset(key_reset, params)
        fresh = encoder(fresh_obs)
        state, obs = jax.tree.map(lambda new, old: jnp.where(ended, new, old), (fresh_state, fresh), (values[1], last))
        addend = reward - carry.rounding
        total = carry.episode_return + addend
        rounding = (total - carry.episode_return) - addend
        flags = (
            terminated * jnp.uint8(_TERMINATED)
            + (truncated & ~terminated) * jnp.uint8(_TRUNCATED)
            + is_broken * jnp.uint8(_BROKEN)
            + (ended & ~encoder.is_finite(fresh)) * jnp.uint8(_BROKEN_START)
        )
        zero = jnp.float32(0)
        kept = _Carry(
            key,
            state,
            jnp.where(ended, 0, length),
            jnp.where(ended, zero, total),
            jnp.where(ended, zero, rounding),
        )
        return kept, _Result(obs, reward, flags, last, total, length, _summary(values[-1]))

    return begin, advance


def _own_functions(env: Any, env_id: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`step` and `reset` that do not restart by themselves."""
    if hasattr(type(env), "step_env"):
        return env.step_env, env.reset_env
    if hasattr(env, "step_env"):
        raise ConfigError(
            f"environment {env_id!r}: {type(env).__name__} wraps an environment that restarts by itself, so the last "
            "observation of an episode is lost. Subclass the environment and override its step_env and reset_env."
        )
    return env.step, env.reset


def _replaced(params: Any, env_id: str, **changes: Any) -> Any:
    """The parameters with some of them changed."""
    if not changes:
        return params
    try:
        return params._replace(**changes) if hasattr(params, "_replace") else dataclasses.replace(params, **changes)
    except (TypeError, ValueError) as error:
        known = sorted(getattr(params, "_fields", ()) or getattr(params, "__dataclass_fields__", {}))
        raise ConfigError(
            f"environment {env_id!r}: its parameters cannot take {sorted(changes)} ({error}); they are "
            f"{type(params).__name__} with {known}; expected a dataclass or a NamedTuple."
        ) from error


def _summary(info: Any) -> dict[str, Any]:
    """The environment's own numbers: `summary` of its info, and `is_success` or `success`."""
    if not isinstance(info, Mapping):
        return {}
    own = info.get("summary")
    found = {
        **(own if isinstance(own, Mapping) else {}),
        **{k: info[k] for k in ("is_success", "success") if k in info},
    }
    return {str(name): value for name, value in found.items() if np.ndim(value) == 0}


# ------------------------------------------------------------------------------------------------------------ spaces


class _Encoder:
    """A traced observation → the flat fields of `ObservationAdapter`, by the rules of srl_ray.envs.spaces."""

    def __init__(self, space: Any, adapter: ObservationAdapter, env_id: str) -> None:
        self._space = space
        self._specs = adapter.fields
        self._floats = adapter.float_fields
        self._env_id = env_id

    def __call__(self, obs: Any) -> dict[str, Any]:
        import jax.numpy as jnp

        fields: dict[str, Any] = {}
        masks: list[Any] = []
        for path, space, value in _leaves(self._space, obs, ()):
            name = ".".join(map(str, path)) or "obs"
            array = jnp.asarray(value)
            self._check(name, space, array)
            if path and path[0] == ACTION_MASK:
                masks.append(array.reshape(-1) != 0)
            elif isinstance(space, spaces.Discrete):
                fields[name] = jnp.float32(jnp.arange(space.n) == array - space.start)
            elif isinstance(space, spaces.MultiDiscrete):
                parts = [jnp.arange(n) == array.reshape(-1)[i] for i, n in enumerate(space.nvec.reshape(-1))]
                fields[name] = jnp.float32(jnp.concatenate(parts))
            else:
                fields[name] = array.astype(self._specs[name].dtype)
        if masks:
            fields[ACTION_MASK] = jnp.concatenate(masks)
        return fields

    def is_finite(self, fields: Mapping[str, Any]) -> Any:
        """A traced bool."""
        import jax.numpy as jnp

        checks = [jnp.isfinite(fields[name]).all() for name in self._floats]
        return jnp.stack([*checks, jnp.bool_(True)]).all()

    def _check(self, name: str, space: Any, array: Any) -> None:
        if array.shape != tuple(space.shape):
            raise EnvironmentFault(
                self._env_id,
                f"observation field {name!r}: expected shape {tuple(space.shape)} from the observation space, found "
                f"{array.shape}",
            )
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and array.dtype.kind not in "iub":
            raise EnvironmentFault(
                self._env_id,
                f"observation field {name!r}: expected integers from the observation space, found {array.dtype}",
            )


def _leaves(space: Any, obs: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, obs[key] if isinstance(obs, Mapping) else getattr(obs, key), (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _leaves(part, obs[index], (*path, index))
    else:
        yield path, space, obs


def _as_gymnasium(space: Any, env_id: str, where: str, *, floats: bool = False) -> Any:
    """A space of gymnax (Discrete, Box, Dict, Tuple, known by their attributes) as one of gymnasium's.

    Args:
        floats: Turn Boxes of dtypes that numpy does not know, such as bfloat16, into float32.
    """
    if isinstance(space, spaces.Space):
        return space
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return spaces.Dict({str(k): _as_gymnasium(part, env_id, where, floats=floats) for k, part in parts.items()})
    if isinstance(parts, tuple | list):
        return spaces.Tuple([_as_gymnasium(part, env_id, where, floats=floats) for part in parts])
    if hasattr(space, "n"):
        return spaces.Discrete(int(space.n))
    if all(hasattr(space, name) for name in ("low", "high", "shape")):
        dtype = np.dtype(space.dtype)
        dtype = np.dtype(np.float32) if floats and dtype.kind not in "iub" else dtype
        low, high = (np.broadcast_to(np.asarray(bound, dtype), space.shape) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=dtype.type)
    raise ConfigError(
        f"environment {env_id!r}: {where} holds {type(space).__name__}; supported are gymnax's Discrete, Box, Dict and "
        "Tuple, and gymnasium's spaces."
    )


def _describe(obs: Mapping[str, Any], e: int, reward: Any = None) -> str:
    """What is not finite in row e."""
    for name, array in obs.items():
        row = np.asarray(array)[e]
        if row.dtype.kind == "f" and not np.isfinite(row).all():
            return describe_nonfinite(name, row)
    return f"reward became {np.asarray(reward)[e]}"
