"""From the configuration to an environment block: the one place that knows every kind."""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from srl_ray.core.errors import ConfigError, EnvironmentFault
from srl_ray.core.loading import load_object
from srl_ray.core.types import BlockSpec
from srl_ray.envs import atari
from srl_ray.envs.atari import AtariOptions
from srl_ray.envs.block import EnvBlock
from srl_ray.envs.config import EnvConfig
from srl_ray.envs.gymnasium_block import GymBlock
from srl_ray.envs.jax_block import PREFIX, JaxBlock, is_functional, load_jax, make_gymnax
from srl_ray.envs.minigrid import OneHotCells
from srl_ray.envs.pettingzoo_block import Inspect, PettingZooBlock, is_pettingzoo

logger = logging.getLogger(__name__)


def make_block(config: EnvConfig, num_envs: int | None = None, *, stagger_steps: int = 0) -> EnvBlock:
    """Build the block that `config` names; its cheap facts are in `.spec`.

    Call it in the thread that will reset, step and close the block. Nothing is reset yet.

    Args:
        config: The environment section of the configuration.
        num_envs: E; `config.envs_per_block` when omitted.
        stagger_steps: See `actors.stagger_steps`.

    Raises:
        ConfigError: unknown id, missing package, spaces that are not supported, a factory that returns something else.
        EnvironmentFault: the environment raised while it was built.
    """
    count = config.envs_per_block if num_envs is None else num_envs
    made, build = build_raw(config, count)
    return as_block(made, build, config, count, stagger_steps=stagger_steps)


def build_raw(config: EnvConfig, num_envs: int) -> tuple[Any, Callable[[], Any]]:
    """What `config` names (an environment, a vector environment or a block), and what makes another one."""
    build = _maker(config, num_envs)
    return _build_first(build, env_name(config)), build


def as_block(
    made: Any,
    build: Callable[[], Any],
    config: EnvConfig,
    num_envs: int,
    *,
    stagger_steps: int = 0,
    look: Inspect | None = None,
) -> EnvBlock:
    """Wrap what was built; `build` makes further environments and replacements, `look` sees every observation of those
    that are not looked at before they are wrapped."""
    from srl_ray.envs.vector_block import VectorBlock

    name = env_name(config)
    options: dict[str, Any] = {
        "step_timeout_s": config.step_timeout_s,
        "on_error": config.on_error,
        "on_nonfinite": config.on_nonfinite,
        "max_faults": config.max_faults,
    }
    of_gymnasium: dict[str, Any] = {
        "frame_stack": config.frame_stack,
        "frame_stack_pad": config.frame_stack_pad,
        "clip_rewards": config.clip_rewards,
        "episodic_life": config.episodic_life,
    }
    block: EnvBlock
    if is_block(made) or is_pettingzoo(made):
        for key in ("clip_rewards", "episodic_life"):
            if of_gymnasium[key]:
                made.close()
                raise ConfigError(f"env.{key}=true is for gymnasium environments; {name!r} is of another kind.")
    if is_block(made):
        block = made
    elif isinstance(made, VectorEnv):
        block = VectorBlock(build, env_id=name, autoreset=config.autoreset, first_env=made, **options, **of_gymnasium)
    elif is_pettingzoo(made):
        block = PettingZooBlock(build, num_envs, env_id=name, first_env=made, inspect=look, **options)
    elif hasattr(made, "observation_space") and hasattr(made, "action_space"):
        block = GymBlock(build, num_envs, env_id=name, first_env=made, **options, **of_gymnasium)
    else:
        raise ConfigError(
            f"env.factory={name!r} returned {type(made).__name__}; expected an environment of gymnasium or PettingZoo, "
            "a gymnasium vector environment or an EnvBlock (spec, reset, step, close)."
        )
    if stagger_steps:
        if not hasattr(block, "stagger_steps"):
            block.close()
            raise ConfigError(
                f"actors.stagger_steps={stagger_steps} truncates single environments, but those of {name!r} are "
                "stepped together by code of their own. Set it to 0."
            )
        block.stagger_steps = stagger_steps
    if block.spec.num_envs != num_envs:
        block.close()
        raise ConfigError(
            f"environment {name!r} came with {block.spec.num_envs} environments where {num_envs} were asked for "
            "(env.envs_per_block). Give the factory a parameter `num_envs`, or set env.envs_per_block to its number."
        )
    return block


def is_block(made: Any) -> bool:
    """Whether it is an EnvBlock; environments of gymnasium have a `spec` too, of another kind."""
    return isinstance(made, EnvBlock) and isinstance(made.spec, BlockSpec)


def env_name(config: EnvConfig) -> str:
    """Name of the environment in messages."""
    if config.factory is None:
        return config.id
    if isinstance(config.factory, str):
        return config.factory
    return str(getattr(config.factory, "__name__", repr(config.factory)))


# ----------------------------------------------------------------------------------------------------------- the kinds


def _maker(config: EnvConfig, num_envs: int) -> Callable[[], Any]:
    match config:
        case EnvConfig(id="", factory=None):
            raise ConfigError(
                "env.id is empty: give a gymnasium id (env.id=CartPole-v1) or env.factory=module:callable."
            )
        case EnvConfig(factory=None, id="hide_and_seek"):
            return _hide_and_seek_maker(config, num_envs)
        case EnvConfig(factory=None) if config.id.startswith(PREFIX) or config.vectorization == "jax":
            return lambda: _jax_block(make_gymnax(config.id, config.kwargs), config, num_envs)
        case EnvConfig(preset="atari"):
            return _atari_maker(config, num_envs)
        case EnvConfig(preset="minigrid"):
            return _minigrid_maker(config)
        case EnvConfig(factory=None, vectorization="native"):
            return _native_maker(config, num_envs)
        case EnvConfig(factory=None, vectorization="envpool"):
            return _envpool_maker(config, num_envs)
        case EnvConfig(factory=None):
            return _gymnasium_maker(config)
        case _:
            return _factory_maker(config, num_envs)


def _hide_and_seek_maker(config: EnvConfig, num_envs: int) -> Callable[[], EnvBlock]:
    try:
        from srl_ray.envs.hide_and_seek.block import make_block as make_hide_and_seek
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"env.id='hide_and_seek' needs a package that is not installed ({error}). Install it with "
            "`pip install 'mujoco>=3.17,!=4.0.0'`."
        ) from error
    return lambda: make_hide_and_seek(num_envs, **config.kwargs)


def _gymnasium_maker(config: EnvConfig) -> Callable[[], gymnasium.Env[Any, Any]]:
    env_id = _import_prefix(config.id)
    _find_spec(env_id)
    # The checker of gymnasium would repeat at run time what `check_contract` says in clearer words before the run.
    kwargs = {"disable_env_checker": True, **config.kwargs}
    return lambda: gymnasium.make(env_id, **kwargs)


def _atari_maker(config: EnvConfig, num_envs: int) -> Callable[[], Any]:
    options = AtariOptions.read(config.kwargs)
    if config.vectorization == "envpool":
        return _envpool_maker(replace(config, kwargs=atari.envpool_kwargs(options)), num_envs)
    env_id = _import_prefix(config.id)
    _find_spec(env_id)
    if config.vectorization == "native":
        return lambda: atari.make_native(env_id, num_envs, options, config.autoreset)
    return lambda: atari.make_single(env_id, options)


def _minigrid_maker(config: EnvConfig) -> Callable[[], gymnasium.Env[Any, Any]]:
    make = _gymnasium_maker(config)
    return lambda: OneHotCells(make())


def _native_maker(config: EnvConfig, num_envs: int) -> Callable[[], Any]:
    env_id = _import_prefix(config.id)
    spec = _find_spec(env_id)
    if env_id in MUJOCO_RUNNERS:
        return lambda: _mujoco_runners(env_id, num_envs, config.kwargs)
    if spec.vector_entry_point is None:
        raise ConfigError(
            f"env.vectorization=native: {config.id!r} has no vector entry point of its own. Use env.vectorization=sync."
        )
    mode: Any = "vector_entry_point"
    return lambda: gymnasium.make_vec(env_id, num_envs=num_envs, vectorization_mode=mode, **config.kwargs)


def _mujoco_runners(env_id: str, num_envs: int, kwargs: dict[str, Any]) -> Any:
    from srl_ray.envs.mujoco_vector import MujocoVectorEnv

    return MujocoVectorEnv(env_id, num_envs, **kwargs)


def _envpool_maker(config: EnvConfig, num_envs: int) -> Callable[[], Any]:
    from srl_ray.envs.envpool_vector import EnvPoolVectorEnv

    return lambda: EnvPoolVectorEnv(config.id, num_envs, **config.kwargs)


def _factory_maker(config: EnvConfig, num_envs: int) -> Callable[[], Any]:
    if config.vectorization == "jax":
        load_jax(env_name(config))  # before the user's module computes
    if config.vectorization == "envpool":
        raise ConfigError(
            f"env.vectorization=envpool takes EnvPool's environment of an id, but env.factory={env_name(config)!r} is "
            "set too. Set env.factory=null and env.id."
        )
    factory = load_object(config.factory, "env.factory") if isinstance(config.factory, str) else config.factory
    if not callable(factory):
        raise ConfigError(f"env.factory={config.factory!r} is a {type(factory).__name__}; expected something callable.")
    kwargs = dict(config.kwargs)
    if _takes_num_envs(factory):
        kwargs.setdefault("num_envs", num_envs)

    def build() -> Any:
        made = factory(**kwargs)
        if is_functional(made):
            return _jax_block(made, config, num_envs)
        if config.vectorization == "jax" and not is_block(made):
            raise ConfigError(
                f"env.vectorization=jax: env.factory={env_name(config)!r} returned {type(made).__name__}; expected a "
                "functional environment: reset(key, params), step(key, state, action, params), "
                "observation_space(params), action_space(params)."
            )
        return made

    return build


def _jax_block(made: Any, config: EnvConfig, num_envs: int) -> JaxBlock:
    env, params = made if isinstance(made, tuple) else (made, None)
    return JaxBlock(
        env,
        num_envs,
        params,
        env_id=env_name(config),
        on_nonfinite=config.on_nonfinite,
        max_faults=config.max_faults,
    )


# -------------------------------------------------------------------------------------------------------------- helpers


def _takes_num_envs(factory: Any) -> bool:
    try:
        return "num_envs" in inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False


def _build_first(make_env: Callable[[], Any], name: str) -> Any:
    """Build once and say in words what went wrong."""
    try:
        return make_env()
    except (ConfigError, EnvironmentFault):
        raise
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        hint = _extra_hint(error) or _install_hint(name)
        raise ConfigError(f"environment {name!r} needs a package that is not installed: {error}{hint}") from error
    except Exception as error:
        raise EnvironmentFault(
            name,
            f"building it failed: {type(error).__name__}: {error}",
            traceback="".join(traceback.format_exception(error)),
        ) from error


def _import_prefix(env_id: str) -> str:
    """Import the module of "module:Id-v0" and the packages that register well-known names; returns the bare id."""
    module_name, colon, bare = env_id.rpartition(":")
    if colon:
        try:
            importlib.import_module(module_name)
        except ImportError as error:
            raise ConfigError(f"env.id={env_id!r}: cannot import {module_name!r} ({error}).") from error
    known = _known_package(bare)
    if known is not None and bare not in gymnasium.registry:
        try:
            gymnasium.register_envs(importlib.import_module(known.module))
        except ImportError as error:
            raise ConfigError(
                f"env.id={env_id!r} needs the package {known.package!r}, which is not installed ({error}). "
                f"Install it with `pip install {known.install}`."
            ) from error
    return bare


def _find_spec(env_id: str) -> gymnasium.envs.registration.EnvSpec:
    try:
        return gymnasium.spec(env_id)
    except gymnasium.error.Error as error:
        names = list(gymnasium.registry)
        lower = {name.lower(): name for name in names}
        near = difflib.get_close_matches(env_id.lower(), list(lower), n=4, cutoff=0.5)
        nearest = f" Nearest registered ids: {', '.join(lower[name] for name in near)}." if near else ""
        raise ConfigError(
            f"env.id={env_id!r} is not a registered gymnasium id ({_first_line(error)}).{nearest} An id that a module "
            f"of yours registers is written my_module:{env_id}; an environment without an id is named by "
            "env.factory=my_module:make_env."
        ) from error


@dataclass(frozen=True)
class _Known:
    prefix: str
    module: str
    package: str
    install: str


MUJOCO_RUNNERS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
"""Ids that `srl_ray.envs.mujoco_vector` steps."""

_KNOWN = (
    _Known("srl_ray/", "srl_ray.envs.hide_and_seek", "mujoco", "'mujoco>=3.17,!=4.0.0'"),
    _Known("ALE/", "ale_py", "ale-py", "'srl_ray[atari]'"),
    _Known("dm_control/", "shimmy", "shimmy", '"shimmy[dm-control]"'),
    _Known("MiniGrid-", "minigrid", "minigrid", "'srl_ray[minigrid]'"),
    _Known("BabyAI-", "minigrid", "minigrid", "'srl_ray[minigrid]'"),
    _Known("highway-", "highway_env", "highway-env", "highway-env"),
    _Known("procgen", "procgen", "procgen", "procgen"),
)

_EXTRA_OF_MODULE = {
    "ale_py": "atari",
    "cv2": "atari",
    "Box2D": "box2d",
    "minigrid": "minigrid",
    "overcooked": "overcooked",
    "pettingzoo": "pettingzoo",
    "vizdoom": "vizdoom",
}
_EXTRAS = (
    (("box2d", "lunarlander", "bipedalwalker", "carracing"), "box2d"),
    (
        ("mujoco", "ant-", "cheetah", "hopper", "humanoid", "walker", "reacher", "pusher", "swimmer", "inverted"),
        "mujoco",
    ),
    (("pygame", "cartpole", "pendulum", "acrobot", "mountaincar"), "classic-control"),
    (("frozenlake", "taxi", "blackjack", "cliffwalking"), "toy-text"),
    (("jax", "flax", "phys2d", "tabular"), "jax"),
    (("ale", "atari"), "atari"),
)


def _known_package(env_id: str) -> _Known | None:
    return next((known for known in _KNOWN if env_id.startswith(known.prefix)), None)


def _extra_hint(error: BaseException) -> str:
    """For a module that one of this package's extras brings."""
    module = (getattr(error, "name", None) or getattr(error.__cause__, "name", None) or "").partition(".")[0]
    extra = _EXTRA_OF_MODULE.get(module)
    return f" Install it with `pip install 'srl_ray[{extra}]'`." if extra else ""


def _install_hint(name: str) -> str:
    known = _known_package(name.rpartition(":")[2])
    if known is not None:
        return f" Install it with `pip install {known.install}`."
    for words, extra in _EXTRAS:
        if any(word in name.lower() for word in words):
            return f' Install it with `pip install "gymnasium[{extra}]"`.'
    return ""


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
