"""Rows and chunks of all lanes of one environment block.

A lane's rows are its agent's consecutive observations, without gaps, one final row at the end of each episode (see
docs/architecture.md). Every lane has its own cursor; a step of the block is written with one scatter per field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from srl_ray.actors.frames import LaneFrames
from srl_ray.core.errors import EnvironmentFault
from srl_ray.core.types import ACTION_MASK, FRAMES_PREFIX, STACK_PREFIX, Arrays, BlockSpec, ChunkLayout, FieldSpec
from srl_ray.envs.block import BlockStep
from srl_ray.streams.inference import InferenceReply

NEVER = -1
"""Policy version of rows that no policy answered, and row index of a lane that has nothing to be rewarded."""


@dataclass
class Request:
    """Rows that need an answer: the lanes' new observations, then final observations that only need their value.

    Attributes:
        obs: Field → [n, ...].
        state: float32 [n, S], before the row.
        on_reset: bool [n].
        lanes: int64 [n].
        places: int64 [n], where the answer goes: row · lanes of the block + lane.
        num_acting: Rows at the front that ask for an action too.
        device_obs: Field → [num_acting, ...], their observations on an accelerator; see `BlockStep.device_obs`.
    """

    obs: Arrays
    state: np.ndarray
    on_reset: np.ndarray
    lanes: np.ndarray
    places: np.ndarray
    num_acting: int
    device_obs: Mapping[str, Any] | None = None

    @property
    def num_rows(self) -> int:
        return len(self.lanes)

    @property
    def value_only(self) -> np.ndarray:
        """bool [n]."""
        return np.arange(self.num_rows) >= self.num_acting


@dataclass
class Chunks:
    """Completed chunks of n lanes, shipped as one message.

    Attributes:
        arrays: obs.<field>, action, log_prob, value, reward, on_reset, terminated, truncated, valid, policy_version:
            [T, n, ...]; state [K, n, S]; for a stack of frames in place of obs.<field> frames.<field> [F, n, ...] and
            stack.<field> [T, n, ...], see `core.types.FrameStack`.
        lanes: int64 [n].
        oldest_version: int64 [n], over the trained rows that a policy answered; the newest version if there are none.
        trained_rows: int64 [n], rows that count in the loss.
        trainer_epoch: int64 [n], generation of the trainer that granted the chunk.
    """

    arrays: Arrays
    lanes: np.ndarray
    oldest_version: np.ndarray
    trained_rows: np.ndarray
    trainer_epoch: np.ndarray


class LaneTable:
    """Turns block steps and policy replies into chunks. One thread; no Ray, no torch.

    The arrays of a block step are used, in place, until the block's next call; a request holds them too.

    Lifecycle:   observe(step) → request → answer(request, reply) → ship() → grant(…) → actions → observe(next step) …

    A chunk is filled under a grant of the sample buffer. A lane without one steps unrecorded: its rows are overwritten
    until the grant comes, which then covers the newest row and what follows.
    """

    def __init__(self, spec: BlockSpec, layout: ChunkLayout, action: FieldSpec, state_size: int) -> None:
        self.layout = layout
        self.num_lanes = spec.num_lanes
        self._env_id = spec.env_id
        self._block_shape = (spec.num_envs, spec.group.num_agents)
        lanes, rows = self.num_lanes, layout.rows + 1  # one spare row: an end and a new beginning in the same step
        self._obs_fields = {name: f"obs.{name}" for name, field in spec.group.obs.items() if field.stack is None}
        self._stacks = {
            name: LaneFrames(field, rows, lanes) for name, field in spec.group.obs.items() if field.stack is not None
        }
        fields = {key: spec.group.obs[name] for name, key in self._obs_fields.items()}
        fields |= {
            "action": action,
            "log_prob": FieldSpec((), np.dtype(np.float32)),
            "value": FieldSpec((), np.dtype(np.float32)),
            "reward": FieldSpec((), np.dtype(np.float32)),
            "on_reset": FieldSpec((), np.dtype(np.bool_)),
            "terminated": FieldSpec((), np.dtype(np.bool_)),
            "truncated": FieldSpec((), np.dtype(np.bool_)),
            "policy_version": FieldSpec((), np.dtype(np.int64)),
        }
        self._buffer: Arrays = {name: field.zeros(rows, lanes) for name, field in fields.items()}
        self._buffer["policy_version"].fill(NEVER)
        # The same memory with rows and lanes as one axis: one index per lane is twice as fast as two.
        self._places: Arrays = {
            name: array.reshape(rows * lanes, *array.shape[2:]) for name, array in self._buffer.items()
        }
        self._begin = np.full(lanes, layout.burn_in, np.int64)  # rows [begin, cursor) are valid, later ones blank
        self._cursor = self._begin.copy()
        self._acting_row = np.full(lanes, NEVER, np.int64)
        self._granted = np.zeros(lanes, np.bool_)
        self._released = np.zeros(lanes, np.bool_)
        self._trainer_epoch = np.full(lanes, -1, np.int64)
        self._answered_epoch = np.full(lanes, -1, np.int64)  # of the newest answer
        self._answered_version = np.full(lanes, -1, np.int64)
        self._grant_number = np.zeros(lanes, np.int64)
        self._grants = 0
        self.unrecorded_rows = 0
        self._idle_steps = np.zeros(lanes, np.int64)
        self._is_anyone_idle = False
        self._actions = action.zeros(lanes)
        self._newest: Arrays = {}  # field → [L, ...], the block's own arrays
        self._state = np.zeros((lanes, state_size), np.float32)
        self._state_before = np.zeros((lanes, state_size), np.float32)
        self._slot_of_row, self._carried_slots = _state_slots(layout)
        self._saved = np.zeros((self._slot_of_row.max() + 1, lanes, state_size), np.float32)
        self._shipped_slots = np.array([self._slot_of_row[row] for row in layout.state_rows])
        self._all_lanes = np.arange(lanes)

    # ---------------------------------------------------------------------------------------------- environment side

    def observe(self, step: BlockStep) -> Request:
        """Write rewards, final rows and new observations of one block step; return what the policy must answer."""
        places, shape = self._places, (self.num_lanes,)
        acting = self._acting_row >= 0
        lanes = self._lanes(acting)
        rewarded = self._acting_row[lanes] * self.num_lanes + lanes
        places["reward"][rewarded] += step.reward.reshape(shape)[lanes]
        ended = (step.terminated | step.truncated).reshape(shape)
        value_lanes = _NO_LANES
        if ended.any():
            value_lanes = self._write_finals(step, np.flatnonzero(ended & acting))
            self._acting_row[ended] = NEVER
        if not self._granted.all():
            value_lanes = self._drop_unrecorded(value_lanes)

        lanes = self._lanes(step.present.reshape(shape))
        was_absent = self._idle_steps[lanes] > 0
        self._count_idle(lanes)
        rows = self._new_rows(lanes)
        here = rows * self.num_lanes + lanes
        on_reset = step.on_reset.reshape(shape)[lanes]
        self._newest = {name: obs.reshape(*shape, *obs.shape[2:]) for name, obs in step.obs.items()}
        obs = self._newest_of(lanes)
        for name, key in self._obs_fields.items():
            places[key][here] = obs[name]
        if self._stacks:
            is_first = rows == self._begin[lanes]
            for name, stacks in self._stacks.items():
                stacks.write(here, obs[name], on_reset, is_first)
            self._check_stacks(obs, here, (on_reset | was_absent) & ~is_first)
        places["on_reset"][here] = on_reset
        self._save_state(rows, lanes)
        self._acting_row[lanes] = rows
        request = self._request(obs, lanes, here, on_reset, value_lanes)
        request.device_obs = step.device_obs if lanes is self._all_lanes else None
        return request

    def _newest_of(self, lanes: np.ndarray) -> Arrays:
        """Their newest observations [n, ...]; where it is all lanes, the block's own arrays."""
        return self._newest if lanes is self._all_lanes else {name: obs[lanes] for name, obs in self._newest.items()}

    def _check_stacks(self, obs: Arrays, places: np.ndarray, doubtful: np.ndarray) -> None:
        """Whether stacks can be rebuilt, where a row does not simply follow the one above it."""
        if not doubtful.any():
            return
        for name, stacks in self._stacks.items():
            if not np.array_equal(stacks.read(places[doubtful]), obs[name][doubtful]):
                raise EnvironmentFault(
                    self._env_id,
                    f"observation field {name!r}: the stack of frames at the beginning of an episode, or of an agent "
                    "that came back, is not the announced one; set env.frame_stack=none",
                )

    def _lanes(self, which: np.ndarray) -> np.ndarray:
        """Numbers of the lanes in bool [L]; `_all_lanes` itself where it is all of them."""
        return self._all_lanes if which.all() else np.flatnonzero(which)

    def _count_idle(self, present: np.ndarray) -> None:
        is_anyone_idle = len(present) < self.num_lanes
        if is_anyone_idle or self._is_anyone_idle:
            self._idle_steps += 1
            self._idle_steps[present] = 0
        self._is_anyone_idle = is_anyone_idle

    def _write_finals(self, step: BlockStep, lanes: np.ndarray) -> np.ndarray:
        """Write the final rows of `lanes`; returns those that need a value."""
        places = self._places
        terminated = step.terminated.reshape(-1)[lanes]
        rows = self._new_rows(lanes)
        position = np.full(self.num_lanes, -1, np.int64)
        position[step.final_lanes] = np.arange(len(step.final_lanes))
        position = position[lanes]
        given = position >= 0
        missing = ~given & ~terminated  # cut without a last observation: the last one seen stands in
        nothing = ~given & terminated
        here = rows * self.num_lanes + lanes
        for name, key in self._obs_fields.items():
            places[key][here[given]] = step.final_obs[name][position[given]] if given.any() else 0
            if missing.any():
                places[key][here[missing]] = places[key][here[missing] - self.num_lanes]
            if nothing.any():
                places[key][here[nothing]] = 0
        nowhere = np.zeros(np.count_nonzero(given), np.bool_)
        for name, stacks in self._stacks.items():
            stacks.write(here[given], step.final_obs[name][position[given]], nowhere, nowhere)
            stacks.repeat(here[missing])
            stacks.blank(here[nothing])
        places["terminated"][here] = terminated
        places["truncated"][here] = ~terminated
        self._save_state(rows, lanes)
        return lanes[~terminated]

    def _drop_unrecorded(self, value_lanes: np.ndarray) -> np.ndarray:
        """Empty the lanes without a grant; returns the value lanes that remain."""
        lanes = np.flatnonzero(~self._granted & (self._cursor > self.layout.burn_in))
        if len(lanes):
            self.unrecorded_rows += len(lanes)
            self._restart(lanes)
            self._acting_row[lanes] = NEVER
        return value_lanes[self._granted[value_lanes]]

    def _new_rows(self, lanes: np.ndarray) -> np.ndarray:
        rows = self._cursor[lanes]
        self._cursor[lanes] += 1
        return rows

    def _save_state(self, rows: np.ndarray, lanes: np.ndarray) -> None:
        if self._state.shape[1] == 0:
            return
        slots = self._slot_of_row[rows]
        kept = slots >= 0
        if kept.any():
            self._saved[slots[kept], lanes[kept]] = self._state[lanes[kept]]

    # ------------------------------------------------------------------------------------------------- policy side

    def _request(
        self, obs: Arrays, lanes: np.ndarray, places: np.ndarray, on_reset: np.ndarray, value_lanes: np.ndarray
    ) -> Request:
        num_acting = len(lanes)
        if len(value_lanes):
            # the final row lies directly below the new one where the lane is present again
            final_rows = self._cursor[value_lanes] - 1 - (self._acting_row[value_lanes] >= 0)
            final_places = final_rows * self.num_lanes + value_lanes
            lanes = np.concatenate([lanes, value_lanes])
            places = np.concatenate([places, final_places])
            on_reset = np.concatenate([on_reset, np.zeros(len(value_lanes), np.bool_)])
            finals = {name: self._places[key][final_places] for name, key in self._obs_fields.items()}
            finals |= {name: stacks.read(final_places) for name, stacks in self._stacks.items()}
            obs = {name: np.concatenate([acting, finals[name]]) for name, acting in obs.items()}
            if ACTION_MASK in obs:
                obs[ACTION_MASK][num_acting:] = True  # only its value is wanted: no action may be illegal
        return Request(obs, self._state[lanes], on_reset, lanes, places, num_acting)

    def answer(self, request: Request, reply: InferenceReply) -> None:
        """Store what the policy answered and take over the new recurrent states."""
        places, acting = self._places, slice(request.num_acting)
        places["value"][request.places] = reply.value
        here, lanes, action = request.places[acting], request.lanes[acting], reply.action[acting]
        places["action"][here] = action
        places["log_prob"][here] = reply.log_prob[acting]
        places["policy_version"][here] = reply.version
        self._actions[lanes] = action
        self._answered_epoch[lanes] = reply.epoch
        self._answered_version[lanes] = reply.version
        if self._state.shape[1]:
            self._state_before[lanes] = request.state[acting]
            self._state[lanes] = reply.state[acting]

    @property
    def actions(self) -> np.ndarray:
        """[E, A, k] for `EnvBlock.step`."""
        return self._actions.reshape(*self._block_shape, -1)

    def answered_before(self, lanes: np.ndarray, stamp: tuple[int, int]) -> np.ndarray:
        """Those of `lanes` whose newest answer came from weights older than `stamp` (epoch, version)."""
        epoch, version = self._answered_epoch[lanes], self._answered_version[lanes]
        return lanes[(epoch < stamp[0]) | ((epoch == stamp[0]) & (version < stamp[1]))]

    def ask_again(self, lanes: np.ndarray) -> Request:
        """The same question for lanes whose answer has not been acted on yet (newer weights were installed)."""
        here = self._acting_row[lanes] * self.num_lanes + lanes
        obs = {name: newest[lanes] for name, newest in self._newest.items()}
        return Request(obs, self._state_before[lanes], self._places["on_reset"][here], lanes, here, len(lanes))

    # ------------------------------------------------------------------------------------------------- sample side

    def ship(self) -> Chunks | None:
        """Chunks of all lanes whose last row has its value; the lanes go on with the carried rows.

        Call after `answer`. A lane whose agent is absent since its last episode ended does not keep its open chunk
        back: it ships what it has, padded with rows of valid = 0, or, if that is not worth a chunk, gives its grant
        back.
        """
        full = self._cursor >= self.layout.rows
        stale = self._give_up_idle(full) if self._is_anyone_idle else np.zeros_like(full)
        shipped = full | stale
        if not shipped.any():
            return None
        lanes = np.flatnonzero(shipped)
        everything = len(lanes) == self.num_lanes
        length = self.layout.rows
        arrays = {
            name: array[:length].copy() if everything else array[:length, lanes] for name, array in self._buffer.items()
        }
        for name, stacks in self._stacks.items():
            kept = {FRAMES_PREFIX: stacks.frames[:-1], STACK_PREFIX: stacks.offsets[:-1]}  # but for the spare row
            arrays |= {prefix + name: x.copy() if everything else x[:, lanes] for prefix, x in kept.items()}
        row = np.arange(length)[:, None]
        arrays["valid"] = (row >= self._begin[lanes]) & (row < self._cursor[lanes])
        arrays["state"] = self._saved[self._shipped_slots][:, lanes]
        self._carry(np.flatnonzero(full))
        self._restart(np.flatnonzero(stale))
        self._granted[lanes] = False
        return Chunks(arrays, lanes, *_trained(arrays, self.layout), self._trainer_epoch[lanes])

    def _give_up_idle(self, full: np.ndarray) -> np.ndarray:
        """Lanes that must not wait for their agent to come back; those with too few rows give their grant back."""
        idle = (self._idle_steps >= _IDLE_STEPS) & (self._acting_row < 0) & self._granted & ~full
        worth = idle & (self._cursor >= self.layout.burn_in + max(2, self.layout.sample_steps // 4))
        empty = np.flatnonzero(idle & ~worth)
        if len(empty):
            self.unrecorded_rows += int((self._cursor[empty] - self.layout.burn_in).sum())
            self._restart(empty)
            self._granted[empty] = False
            self._released[empty] = True
        return worth

    def take_released(self, trainer_epoch: int) -> int:
        """Grants of this trainer epoch that lanes gave back since the last call."""
        count = int(np.count_nonzero(self._released & (self._trainer_epoch == trainer_epoch)))
        self._released[:] = False
        return count

    def _carry(self, lanes: np.ndarray) -> None:
        """Move the last rows to the front; the rows after the cursor become blank again."""
        if not len(lanes):
            return
        shift, kept = self.layout.sample_steps, self.layout.carried + 1
        self._cursor[lanes] -= shift
        self._begin[lanes] = np.maximum(self._begin[lanes] - shift, 0)
        at: Any = slice(None) if len(lanes) == self.num_lanes else lanes
        blank = lanes[self._cursor[lanes] < kept]
        for name, array in self._buffer.items():
            array[:kept, at] = array[shift : shift + kept, at]
            if not name.startswith("obs."):
                array[kept:, at] = _BLANK.get(name, 0)
                array[kept - 1, blank] = _BLANK.get(name, 0)
        for stacks in self._stacks.values():
            stacks.carry(shift, kept, at)
        acting = lanes[self._acting_row[lanes] >= 0]
        self._acting_row[acting] -= shift
        for new, old in self._carried_slots:
            self._saved[new, lanes] = self._saved[old, lanes]

    def _restart(self, lanes: np.ndarray) -> None:
        """Begin the lanes' next chunk as if their life began now."""
        self._begin[lanes] = self._cursor[lanes] = self.layout.burn_in
        for name, array in self._buffer.items():
            if not name.startswith("obs."):
                array[:, lanes] = _BLANK.get(name, 0)
        self._idle_steps[lanes] = 0

    # -------------------------------------------------------------------------------------------------------- gate

    def ungranted(self) -> np.ndarray:
        """Lanes whose newest row waits for a grant, the longest without one first."""
        if self._granted.all():
            return _NO_LANES
        lanes = np.flatnonzero((self._acting_row >= 0) & ~self._granted)
        return lanes[np.argsort(self._grant_number[lanes], kind="stable")]

    def wanted(self, lookahead: int) -> int:
        """Grants that are needed now, or by lanes that complete their chunk within `lookahead` rows."""
        soon = self._granted & (self._cursor >= self.layout.rows - lookahead)
        return int(np.count_nonzero(soon | ((self._acting_row >= 0) & ~self._granted)))

    @property
    def is_recording(self) -> bool:
        """Some lane fills a chunk."""
        return bool(self._granted.any())

    def grant(self, lanes: np.ndarray, trainer_epoch: int) -> None:
        """The open chunks of `lanes` may be filled."""
        self._granted[lanes] = True
        self._trainer_epoch[lanes] = trainer_epoch
        self._grants += 1
        self._grant_number[lanes] = self._grants


_IDLE_STEPS = 2
"""Block steps without an observation after which an ended lane counts as absent; a NEXT_STEP reset takes one."""
_NO_LANES = np.zeros(0, np.int64)
_BLANK = {"policy_version": NEVER}


def _state_slots(layout: ChunkLayout) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Which rows' states are kept, and how they move when rows are carried over.

    Returns:
        slot of each of the T + 1 rows (−1: not kept), and (new slot, old slot) pairs in a safe copying order.
    """
    rows, shift = layout.rows + 1, layout.sample_steps
    kept = sorted({*layout.state_rows, *(row + shift for row in layout.state_rows if row + shift < rows)})
    slot_of_row = np.full(rows, NEVER, np.int64)
    slot_of_row[kept] = np.arange(len(kept))
    pairs = [(row - shift, row) for row in kept if row - shift in layout.state_rows]
    return slot_of_row, [(int(slot_of_row[new]), int(slot_of_row[old])) for new, old in pairs]


def _trained(arrays: Arrays, layout: ChunkLayout) -> tuple[np.ndarray, np.ndarray]:
    """Oldest version and number of the rows that count in the loss, per chunk."""
    rows = slice(layout.burn_in, layout.burn_in + layout.sample_steps)
    counts = arrays["valid"][rows] & ~(arrays["terminated"][rows] | arrays["truncated"][rows])
    version = arrays["policy_version"][rows]
    newest = version.max(axis=0)
    oldest = np.where(counts & (version >= 0), version, newest).min(axis=0)
    return oldest, counts.sum(axis=0)
