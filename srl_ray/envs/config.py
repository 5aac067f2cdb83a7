"""Configuration of the environment side of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True, slots=True)
class EnvConfig:
    """Which environment, and how it is stepped.

    Attributes:
        id: A gymnasium id (`CartPole-v1`, `ALE/Pong-v5`, or `my_module:MyEnv-v0` to import the module that registers
            it), a gymnax id (`gymnax/CartPole-v1`), or `hide_and_seek`.
        factory: Import path `module:callable` of the user's own environment, used in place of `id`. Called with
            `kwargs`; may return a gymnasium environment, a gymnasium vector environment or an EnvBlock (then it is
            called with `num_envs` too), or a functional JAX environment (`srl_ray.envs.jax_block`). From Python a
            callable may be given directly.
        preset: none | atari: games as agents usually play them, the options of `srl_ray.envs.atari.AtariOptions` in
            `kwargs`, with any vectorization | minigrid: cells one-hot, the mission left out.
        kwargs: Keyword arguments for the environment; for a gymnax id `params` in them changes its parameters.
        envs_per_block: Environments stepped together by one block.
        vectorization: `sync` steps gymnasium environments one after the other in this process, `native` uses the
            environment's own vector entry point (of HalfCheetah-v5, Hopper-v5 and Walker2d-v5 one that comes with
            this package), `envpool` takes EnvPool's environment of that id, stepped by threads
            in C++ (its options in `kwargs`), `jax` takes a functional JAX environment, all of a block compiled into
            one step (also without saying so where id or factory give one).
        autoreset: Autoreset mode of gymnasium vector environments: same_step | next_step | disabled.
        frame_stack: Which axis of uint8 observations with three axes or more holds the last frames: first | last | none
            | auto: as known of gymnasium's FrameStackObservation and ALE's vector environment. Such observations are
            stored and sent frame by frame.
        frame_stack_pad: With frame_stack=first or last, what stands before an episode's first frame: repeat (that
            frame) | zero.
        clip_rewards: The learner gets the signs of gymnasium environments' rewards; reported returns stay unclipped.
        episodic_life: A lost life (`info["lives"]`) terminates the learner's episode while the game goes on; reported
            episodes stay whole games. Stacks of frames are then stored whole.
        step_timeout_s: A step or reset that takes longer is a fault.
        on_error: restart: rebuild an environment that raised, discard and count its episode; stop: end the run.
        on_nonfinite: stop: end the run on a NaN or infinite observation or reward; drop: discard the episode.
        max_faults: With on_error=restart, faults in a row of one environment (no finished episode between) before the
            run ends.
    """

    id: str = ""
    factory: Any = None
    preset: str = "none"
    kwargs: dict[str, Any] = field(default_factory=dict)
    envs_per_block: int = 8
    vectorization: str = "sync"
    autoreset: str = "same_step"
    frame_stack: str = "auto"
    frame_stack_pad: str = "repeat"
    clip_rewards: bool = False
    episodic_life: bool = False
    step_timeout_s: float = 60.0
    on_error: str = "restart"
    on_nonfinite: str = "stop"
    max_faults: int = 5

    def __post_init__(self) -> None:
        if self.envs_per_block < 1:
            raise ValueError(f"env.envs_per_block must be >= 1, got {self.envs_per_block}")
        if self.on_error not in ("restart", "stop"):
            raise ValueError(f"env.on_error must be restart or stop, got {self.on_error!r}")
        if self.on_nonfinite not in ("stop", "drop"):
            raise ValueError(f"env.on_nonfinite must be stop or drop, got {self.on_nonfinite!r}")
        if self.vectorization not in ("sync", "native", "envpool", "jax"):
            raise ValueError(f"env.vectorization must be sync, native, envpool or jax, got {self.vectorization!r}")
        if self.preset not in ("none", "atari", "minigrid"):
            raise ValueError(f"env.preset must be none, atari or minigrid, got {self.preset!r}")
        if self.preset != "none" and self.factory is not None:
            raise ValueError(f"env.preset={self.preset} is for env.id, but env.factory={self.factory!r} is set too")
        if self.preset == "atari" and self.vectorization == "jax":
            raise ValueError("env.preset=atari needs env.vectorization=sync, native or envpool, got jax")
        if self.preset == "atari" and self.vectorization == "native" and self.autoreset == "disabled":
            raise ValueError(
                "env.preset=atari with env.vectorization=native knows env.autoreset=same_step or next_step"
            )
        if self.preset == "minigrid" and self.vectorization != "sync":
            raise ValueError(f"env.preset=minigrid needs env.vectorization=sync, got {self.vectorization!r}")
        if self.autoreset not in ("same_step", "next_step", "disabled"):
            raise ValueError(f"env.autoreset must be same_step, next_step or disabled, got {self.autoreset!r}")
        if self.frame_stack not in ("auto", "none", "first", "last"):
            raise ValueError(f"env.frame_stack must be auto, none, first or last, got {self.frame_stack!r}")
        if self.frame_stack_pad not in ("repeat", "zero"):
            raise ValueError(f"env.frame_stack_pad must be repeat or zero, got {self.frame_stack_pad!r}")
