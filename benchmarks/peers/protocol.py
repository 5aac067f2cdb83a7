"""What the scripts of all peers share: the settings, the command line, the progress lines, Atari for gymnasium.

A script is started as `python PEER/train.py task=pong environments=16 seconds=25 [key=value ...]` with this folder in
PYTHONPATH. It writes one line of JSON to standard output per finished update, `{"time_unix_s": ..., "env_steps": ...}`
(environment steps that the learner has consumed so far), and ends by itself `seconds` after the first one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass

ROLLOUT = 128
MINIBATCH = 512
LEARNING_RATE = 2.5e-4
ADAM_EPS = 1e-5
DISCOUNT = 0.99
GAE_LAMBDA = 0.95
CLIP_EPS = 0.1
ENTROPY_COST = 0.01
VALUE_COST = 0.5
MAX_GRAD_NORM = 0.5
HIDDEN = (64, 64)
CNN_FEATURES = 512
WORKERS = 2
"""Processes that step environments, for the peers that have such."""
ENV_IDS = {"cartpole": "CartPole-v1", "cheetah": "HalfCheetah-v5", "pong": "ALE/Pong-v5"}


@dataclass(frozen=True)
class Settings:
    """Attributes:
    task: cartpole, cheetah or pong.
    environments: Of all processes together.
    seconds: From the end of the first update to the end of the run.
    threads: Of torch, where environments and updates share a process; default: every core.
    extra: Options of one peer.
    """

    task: str
    environments: int
    seconds: float
    threads: int
    extra: dict[str, str]

    @property
    def env_id(self) -> str:
        return ENV_IDS[self.task]

    @property
    def batch(self) -> int:
        """Steps per update."""
        return self.environments * ROLLOUT


def read_settings() -> Settings:
    """From `key=value` arguments; `task`, `environments` and `seconds` must be given."""
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    return Settings(
        task=given.pop("task"),
        environments=int(given.pop("environments")),
        seconds=float(given.pop("seconds")),
        threads=int(given.pop("threads", len(os.sched_getaffinity(0)))),
        extra=given,
    )


class Progress:
    """Writes the progress lines and knows when the run is over."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._first_unix_s: float | None = None

    def update(self, env_steps: int) -> bool:
        """Report the end of an update, with the env steps consumed so far; False: it was the last one."""
        now = time.time()
        if self._first_unix_s is None:
            self._first_unix_s = now
        sys.stdout.write(json.dumps({"time_unix_s": now, "env_steps": int(env_steps)}) + "\n")
        sys.stdout.flush()
        return now < self._first_unix_s + self._seconds


def make_pong(env_id: str = ENV_IDS["pong"]):
    """One Pong of gymnasium: grey uint8 [84, 84], 4 frames per step, maximum of the last two, sticky actions 0.25."""
    import ale_py
    import gymnasium
    from gymnasium.wrappers import AtariPreprocessing

    if hasattr(gymnasium, "register_envs"):
        gymnasium.register_envs(ale_py)
    env = gymnasium.make(env_id, frameskip=1, disable_env_checker=True)
    return AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84, grayscale_obs=True)
