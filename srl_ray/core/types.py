"""The data that crosses package and process borders: flat dictionaries of arrays, and the specs that describe them.

Shape letters used throughout the project:
    E environments of a block      A agent slots of an environment      L = E * A lanes
    n rows of a request            T rows of a chunk                    B chunks of a sample batch
    k action components            S numbers of recurrent state         K stored recurrent states per chunk
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
"""Many rows of named fields; every leaf has the same leading axes."""

ACTION_MASK = "action_mask"
"""Observation field of legal discrete actions: bool [sum(nvec)], the components' masks one after the other."""


FRAMES_PREFIX, STACK_PREFIX = "frames.", "stack."
"""In chunks and sample batches a stacked observation field is two arrays, see `FrameStack`."""


@dataclass(frozen=True)
class FrameStack:
    """An observation that holds the newest frames of its lane's rows, oldest first, so that each frame is stored once.

    The stack of a row is that of the lane's row before it moved on by one frame; the first of an episode is `pad` and
    one frame. A chunk holds, besides frames.<field> [F, n, ...], for each of its rows how far back its frames lie:
    stack.<field> int8 [T, n, ...] with `depth` numbers, −1 for a blank one. Row t's newest frame is number
    t + F − T, frame 0 is blank, and those between belong to rows before the chunk.

    Attributes:
        axis: Of the row's shape.
        depth: Frames, from 2 to 126.
        pad: zero | repeat: what stands for frames before an episode's first one, which `repeat` repeats.
    """

    axis: int
    depth: int
    pad: str

    @property
    def lead(self) -> int:
        """F − T: the blank frame, and as many as the stack of a row before the chunk's first holds."""
        return 1 + self.depth

    @property
    def first(self) -> np.ndarray:
        """int8 [depth]: offsets of an episode's first row."""
        offsets = np.full(self.depth, 0 if self.pad == "repeat" else -1, np.int8)
        offsets[-1] = 0
        return offsets


@dataclass(frozen=True)
class FieldSpec:
    """Shape (of one row) and dtype of one named field, and whether it is a stack of frames."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stack: FrameStack | None = None

    def __post_init__(self) -> None:
        stack = self.stack
        if stack is not None and not (
            0 <= stack.axis < len(self.shape) and 1 < self.shape[stack.axis] == stack.depth < 127
        ):
            raise ValueError(f"{stack} does not fit an observation of shape {self.shape}")

    @property
    def frame(self) -> FieldSpec:
        """One frame of a stack; its axis stays, with one entry."""
        assert self.stack is not None
        axis = self.stack.axis
        return FieldSpec((*self.shape[:axis], 1, *self.shape[axis + 1 :]), self.dtype)

    @property
    def offsets(self) -> FieldSpec:
        """A stack's offsets, along its axis."""
        assert self.stack is not None
        axis, ones = self.stack.axis, (1,) * len(self.shape)
        return FieldSpec((*ones[:axis], self.stack.depth, *ones[axis + 1 :]), np.dtype(np.int8))

    @property
    def size(self) -> int:
        """Numbers per row."""
        return math.prod(self.shape)

    def zeros(self, *leading: int) -> np.ndarray:
        """An array of zeros with the given leading axes."""
        return np.zeros((*leading, *self.shape), self.dtype)


@dataclass(frozen=True)
class DiscreteActions:
    """One or several categorical choices; action arrays are int64 [..., k] with component i in [0, nvec[i]).

    `start` is added by the environment's adapter, never by the policy.
    """

    nvec: tuple[int, ...]
    start: tuple[int, ...] = ()

    @property
    def field(self) -> FieldSpec:
        return FieldSpec((len(self.nvec),), np.dtype(np.int64))


@dataclass(frozen=True, eq=False)
class ContinuousActions:
    """A bounded or unbounded vector; action arrays are float32 [..., k].

    The policy's sample may lie outside [low, high]; the adapter clips it, the stored row keeps the sample so that its
    log-probability stays exact. `low`/`high` have shape [k] and may hold infinities.
    """

    low: np.ndarray
    high: np.ndarray
    shape: tuple[int, ...] = ()
    """Shape of the environment's own action; empty means [k]."""

    @property
    def field(self) -> FieldSpec:
        return FieldSpec(self.low.shape, np.dtype(np.float32))


ActionSpec = DiscreteActions | ContinuousActions


@dataclass(frozen=True)
class AgentGroup:
    """Agents of one environment that have equal spaces, in slot order.

    Attributes:
        name: Group name, also the prefix of its metrics.
        agent_ids: One id per slot; absent agents keep their slot.
        teams: Team name per slot, for returns per team; defaults to the group name for every slot.
        obs: Field name → spec of one agent's observation.
        action: Action spec of one agent.
    """

    name: str
    agent_ids: tuple[str, ...]
    obs: Mapping[str, FieldSpec]
    action: ActionSpec
    teams: tuple[str, ...] = ()

    @property
    def num_agents(self) -> int:
        return len(self.agent_ids)

    def team_of(self, slot: int) -> str:
        return self.teams[slot] if self.teams else self.name


@dataclass(frozen=True)
class BlockSpec:
    """What an environment block offers. All agents share one group: equal spaces, one policy.

    Attributes:
        env_id: Name for messages.
        num_envs: E.
        group: The agents.
        frame_skip: Simulator frames per environment step, for the `frames` counter.
    """

    env_id: str
    num_envs: int
    group: AgentGroup
    frame_skip: int = 1

    @property
    def num_lanes(self) -> int:
        return self.num_envs * self.group.num_agents


@dataclass(frozen=True)
class ChunkLayout:
    """Rows of a chunk: burn_in, then sample_steps, then bootstrap. Segments of bptt_steps are trained through time.

    Attributes:
        burn_in: Rows that only warm the recurrent state up.
        sample_steps: Rows that are trained.
        bootstrap: Rows whose value closes the returns; also the first trained rows of the lane's next chunk.
        bptt_steps: Rows of a segment; divides sample_steps.
    """

    burn_in: int
    sample_steps: int
    bootstrap: int
    bptt_steps: int

    def __post_init__(self) -> None:
        if self.sample_steps % self.bptt_steps:
            raise ValueError(
                f"actors.sample_steps must be a multiple of policy.bptt_steps, got {self.sample_steps} and "
                f"{self.bptt_steps}"
            )

    @property
    def rows(self) -> int:
        """T."""
        return self.burn_in + self.sample_steps + self.bootstrap

    @property
    def carried(self) -> int:
        """Last rows of a chunk that begin the lane's next one."""
        return self.burn_in + self.bootstrap

    @property
    def state_rows(self) -> tuple[int, ...]:
        """Rows before which the recurrent state is kept: row 0 if there is burn-in, then every segment's first."""
        segments = range(self.burn_in, self.burn_in + self.sample_steps, self.bptt_steps)
        return (0, *segments) if self.burn_in else tuple(segments)


@dataclass
class EpisodeRecord:
    """One finished episode, exactly as the environment produced it.

    Attributes:
        env_index: Environment of the block.
        length: Environment steps.
        returns: Agent id → undiscounted return; only agents that took part.
        lengths: Agent id → number of that agent's actions.
        summary: The environment's own numbers (behaviour statistics).
        discarded: The environment itself declared the episode broken (physics failure, exception); it is counted but
            left out of the statistics.
    """

    env_index: int
    length: int
    returns: dict[str, float]
    lengths: dict[str, int] = field(default_factory=dict)
    summary: dict[str, float] = field(default_factory=dict)
    discarded: bool = False
