"""Atari games as they are usually played by agents, alike in gymnasium's, ALE's and EnvPool's implementation.

Mnih et al. 2015 (methods) and Machado et al. 2018: 84 × 84 grey pixels, the last four observations, each action for
four frames with the maximum of the last two, up to 30 frames without action at the start, FIRE where a game waits for
it, sticky actions. What only the learner should see, clipped rewards and a life as an episode, is the block's part
(`env.clip_rewards`, `env.episodic_life`), so that reported returns and lengths are those of whole games.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import gymnasium
from gymnasium import wrappers
from gymnasium.vector import AutoresetMode, VectorEnv

from srl_ray.core.errors import ConfigError
from srl_ray.core.threads import told_threads


@dataclass(frozen=True, kw_only=True)
class AtariOptions:
    """What `env.kwargs` may hold with `env.preset=atari`.

    Attributes:
        frame_skip: Frames per action.
        stack: Observations that are seen together; 1: the newest alone, with that axis.
        screen: Pixels of the square image per side.
        noop_max: Most frames without action before an episode; EnvPool plays at least one.
        fire_reset: Press FIRE after a reset, in games that have it.
        sticky_actions: Probability that the emulator repeats the previous action, per frame (0.25 in ALE's v5; 0 in
            papers before 2018).
        full_action_space: All 18 actions in place of those that the game uses.
        max_frames: Frames after which a game is truncated.
        num_threads: Of ALE's and EnvPool's vector environments; null: the worker's math threads.
        render_mode: Of the single environment, for films.
    """

    frame_skip: int = 4
    stack: int = 4
    screen: int = 84
    noop_max: int = 30
    fire_reset: bool = True
    sticky_actions: float = 0.25
    full_action_space: bool = False
    max_frames: int = 108_000
    num_threads: int | None = None
    render_mode: str | None = None

    @classmethod
    def read(cls, kwargs: Mapping[str, Any]) -> AtariOptions:
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(kwargs) - set(known))
        if unknown:
            raise ConfigError(f"env.kwargs with env.preset=atari: {unknown} is unknown; expected {', '.join(known)}.")
        return cls(**kwargs)


def make_single(env_id: str, options: AtariOptions) -> gymnasium.Env[Any, Any]:
    """One game through gymnasium's wrappers; observations uint8 [stack, screen, screen]."""
    env: gymnasium.Env[Any, Any] = gymnasium.make(
        env_id,
        disable_env_checker=True,
        frameskip=1,
        repeat_action_probability=options.sticky_actions,
        full_action_space=options.full_action_space,
        max_num_frames_per_episode=options.max_frames,
        render_mode=options.render_mode,
    )
    env = wrappers.AtariPreprocessing(
        env, noop_max=options.noop_max, frame_skip=options.frame_skip, screen_size=options.screen
    )
    if options.fire_reset and "FIRE" in env.unwrapped.get_action_meanings():  # type: ignore[attr-defined]
        env = FireReset(env)
    return wrappers.FrameStackObservation(env, options.stack)


def make_native(env_id: str, num_envs: int, options: AtariOptions, autoreset: str) -> VectorEnv[Any, Any, Any]:
    """ALE's own vector environment, with unclipped rewards and whole games."""
    mode: Any = "vector_entry_point"
    env: Any = gymnasium.make_vec(
        env_id,
        num_envs=num_envs,
        vectorization_mode=mode,
        autoreset_mode={"next_step": AutoresetMode.NEXT_STEP, "same_step": AutoresetMode.SAME_STEP}[autoreset],
        frameskip=options.frame_skip,
        stack_num=options.stack,
        img_height=options.screen,
        img_width=options.screen,
        noop_max=options.noop_max,
        use_fire_reset=options.fire_reset,
        repeat_action_probability=options.sticky_actions,
        full_action_space=options.full_action_space,
        max_num_frames_per_episode=options.max_frames,
        reward_clipping=False,
        episodic_life=False,
        num_threads=options.num_threads or told_threads() or 1,
    )
    env.frame_skip = options.frame_skip
    return env  # type: ignore[no-any-return]


def envpool_kwargs(options: AtariOptions) -> dict[str, Any]:
    """The same for `envpool.make`, which counts the limit in steps."""
    kwargs: dict[str, Any] = {
        "frame_skip": options.frame_skip,
        "stack_num": options.stack,
        "img_height": options.screen,
        "img_width": options.screen,
        "noop_max": max(1, options.noop_max),  # 0 crashes it
        "use_fire_reset": options.fire_reset,
        "repeat_action_probability": options.sticky_actions,
        "full_action_space": options.full_action_space,
        "max_episode_steps": options.max_frames // options.frame_skip,
        "reward_clip": False,
        "episodic_life": False,
    }
    return kwargs if options.num_threads is None else {**kwargs, "num_threads": options.num_threads}


class FireReset(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Presses FIRE once after every reset, for games that stand still without."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._fire = env.unwrapped.get_action_meanings().index("FIRE")  # type: ignore[attr-defined]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.env.reset(seed=seed, options=options)
        obs, _, terminated, truncated, info = self.env.step(self._fire)
        return self.env.reset(options=options) if terminated or truncated else (obs, info)
