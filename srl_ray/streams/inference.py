"""The inference stream's contract and the packing of its messages.

A client posts the rows of a block and takes the answer later; it owns the recurrent state, so a request may be sent
again without harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from srl_ray.core.types import Arrays, FieldSpec


@dataclass
class InferenceRequest:
    """n rows that need an answer.

    Attributes:
        obs: Field → [n, ...].
        state: float32 [n, S], before the row.
        on_reset: bool [n].
        deterministic: bool [n].
        device_obs: Field → [m, ...], the first m rows of `obs` where the simulation left them, on an accelerator.
    """

    obs: Arrays
    state: np.ndarray
    on_reset: np.ndarray
    deterministic: np.ndarray
    device_obs: Mapping[str, Any] | None = None

    @property
    def num_rows(self) -> int:
        return len(self.on_reset)


@dataclass
class InferenceReply:
    """The answer to n rows.

    Attributes:
        action: [n, k], int64 or float32.
        log_prob: float32 [n].
        value: float32 [n], in reward units.
        state: float32 [n, S], after the row.
        version: Policy version that answered.
        epoch: Trainer epoch of that version.
    """

    action: np.ndarray
    log_prob: np.ndarray
    value: np.ndarray
    state: np.ndarray
    version: int
    epoch: int = 0

    def rows(self, rows: slice) -> InferenceReply:
        """The answer to some of the rows, in place."""
        return InferenceReply(
            self.action[rows], self.log_prob[rows], self.value[rows], self.state[rows], self.version, self.epoch
        )


@dataclass(frozen=True)
class PolicySignature:
    """What a client must know of a policy without importing it.

    Attributes:
        action: Spec of one row's action.
        state_size: S.
    """

    action: FieldSpec
    state_size: int


class PolicyWorkerGone(Exception):
    """The other end of a link ended; requests in flight must be sent again to its replacement."""


@dataclass(frozen=True)
class RequestHeader:
    """Who asks.

    Attributes:
        client: Index of the actor worker.
        epoch: Its generation.
        slot: Block of its ring.
        sequence: Counts the slot's requests from 1; a resend keeps its number.
        least: (epoch, version) that the answering weights must have reached.
    """

    client: int
    epoch: int
    slot: int
    sequence: int
    least: tuple[int, int] = (-1, -1)


class InferenceClient(Protocol):
    """One per actor worker; slots are the blocks of its ring."""

    signature: PolicySignature

    def post(self, slot: int, request: InferenceRequest) -> None:
        """Send the slot's request, whose arrays stay as they are until its answer; a second one replaces the first."""
        ...

    def take(self, slot: int, deadline_s: float) -> InferenceReply | None:
        """The answer to the slot's last request; None if it did not come within the deadline (ask again later)."""
        ...

    def install(self, epoch: int, version: int) -> None:
        """Answer the next requests with weights at least this new."""
        ...

    def close(self) -> None: ...


@dataclass
class Packer:
    """Packs n rows of named fields into one byte buffer: the cost of a message hardly depends on its size, but each
    separate array in it costs."""

    fields: Mapping[str, FieldSpec]
    row_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.row_bytes = sum(spec.size * spec.dtype.itemsize for spec in self.fields.values())

    def pack(self, arrays: Arrays) -> np.ndarray:
        """uint8 [n * row bytes], field after field."""
        rows = len(next(iter(arrays.values())))
        packed = np.empty(rows * self.row_bytes, np.uint8)
        offset = 0
        for name, spec in self.fields.items():
            size = rows * spec.size * spec.dtype.itemsize
            packed[offset : offset + size].view(spec.dtype).reshape(rows, *spec.shape)[...] = arrays[name]
            offset += size
        return packed

    def unpack(self, packed: np.ndarray) -> Arrays:
        """Views into the buffer."""
        rows = len(packed) // self.row_bytes
        arrays: Arrays = {}
        offset = 0
        for name, spec in self.fields.items():
            size = rows * spec.size * spec.dtype.itemsize
            arrays[name] = packed[offset : offset + size].view(spec.dtype).reshape(rows, *spec.shape)
            offset += size
        return arrays


def request_fields(obs: Mapping[str, FieldSpec], state_size: int) -> dict[str, FieldSpec]:
    """Fields of a request's row in order of falling alignment, so that every packed view is aligned."""
    flag = FieldSpec((), np.dtype(np.bool_))
    fields = {f"obs.{name}": spec for name, spec in obs.items()}
    fields |= {"state": FieldSpec((state_size,), np.dtype(np.float32)), "on_reset": flag, "deterministic": flag}
    return dict(sorted(fields.items(), key=lambda item: -item[1].dtype.itemsize))


def reply_fields(signature: PolicySignature) -> dict[str, FieldSpec]:
    number = FieldSpec((), np.dtype(np.float32))
    return {
        "action": signature.action,
        "log_prob": number,
        "value": number,
        "state": FieldSpec((signature.state_size,), np.dtype(np.float32)),
    }


def request_arrays(request: InferenceRequest) -> Arrays:
    """The arrays of a request by the names of `request_fields`."""
    arrays = {f"obs.{name}": array for name, array in request.obs.items()}
    return arrays | {"state": request.state, "on_reset": request.on_reset, "deterministic": request.deterministic}


def request_of(arrays: Arrays) -> InferenceRequest:
    """The inverse of `request_arrays`."""
    obs = {name[len("obs.") :]: array for name, array in arrays.items() if name.startswith("obs.")}
    return InferenceRequest(obs, arrays["state"], arrays["on_reset"], arrays["deterministic"])


def reply_arrays(reply: InferenceReply) -> Arrays:
    """The arrays of a reply by the names of `reply_fields`."""
    return {"action": reply.action, "log_prob": reply.log_prob, "value": reply.value, "state": reply.state}


def reply_of(arrays: Arrays, version: int, epoch: int) -> InferenceReply:
    """The inverse of `reply_arrays`."""
    return InferenceReply(arrays["action"], arrays["log_prob"], arrays["value"], arrays["state"], version, epoch)


def request_packer(obs: Mapping[str, FieldSpec], state_size: int) -> Packer:
    return Packer(request_fields(obs, state_size))


def reply_packer(signature: PolicySignature) -> Packer:
    return Packer(reply_fields(signature))
