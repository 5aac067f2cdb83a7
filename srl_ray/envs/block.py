"""The one environment contract: a block of environments stepped together (see docs/environments.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from srl_ray.core.types import Arrays, BlockSpec, EpisodeRecord


@dataclass
class BlockStep:
    """What a block answers to `reset` and `step`. Arrays are the block's own and valid until its next call.

    A lane is one agent slot of one environment; lane index = env * A + agent.

    Attributes:
        obs: Field → [E, A, ...]; the observation to decide on. Rows where `present` is 0 are ignored.
        present: bool [E, A]; this lane has an observation and needs an action for the next step.
        on_reset: bool [E, A]; the observation is the first of a new episode of the lane (only where present).
        reward: float32 [E, A]; received since the previous step, also by lanes that are not present now.
        terminated: bool [E, A]; the lane's episode ended in this step, by the rules of the environment.
        truncated: bool [E, A]; the lane's episode was cut (time limit, discarded simulation). If both are set the
            episode counts as terminated.
        final_lanes: int64 [n]; lanes of `terminated | truncated` whose last observation is in `final_obs`. Ended lanes
            that are not listed have none: zeros stand in when terminated, the last one seen when truncated.
        final_obs: Field → [n, ...].
        episodes: Environments' episodes that ended in this step.
        device_obs: Field → [L, ...], what `obs` holds, where the simulation left it: arrays on an accelerator that know
            `__dlpack__`. For a policy on the same device.

    A lane that ended may be present in the same step with `on_reset` set (it restarted at once), in a later one, or
    never again. A NEXT_STEP environment answers its end with the flags and `final_lanes`, `present` 0 for the whole
    environment, and needs one more `step` (its actions are ignored) to bring the first observation.
    """

    obs: Arrays
    present: np.ndarray
    on_reset: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_lanes: np.ndarray
    final_obs: Arrays
    episodes: list[EpisodeRecord] = field(default_factory=list)
    device_obs: Mapping[str, Any] | None = None


@runtime_checkable
class EnvBlock(Protocol):
    """Steps `spec.num_envs` environments together and restarts each one itself when its episode ends.

    Built, reset, stepped and closed by one thread, which is not the main thread of its process.

    A block that can cut the first episode of every environment after a random number of steps has an attribute
    `stagger_steps`: the largest such number from the next `reset` on, 0 at first (see `actors.stagger_steps`).
    """

    spec: BlockSpec

    def reset(self, seed: int) -> BlockStep:
        """Start every environment afresh; environment e draws from a stream of its own derived from (seed, e)."""
        ...

    def step(self, actions: np.ndarray) -> BlockStep:
        """Advance every environment by one step.

        Args:
            actions: [E, A, k], int64 or float32 as `spec.group.action` says; rows of lanes that were not present in
                the previous answer are ignored.
        """
        ...

    def close(self) -> None:
        """Release processes, files and memory; safe to call twice."""
        ...
