"""Remote inference: requests travel as Ray calls to a policy worker, any node. Imports no torch."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from srl_ray.core.types import FieldSpec
from srl_ray.streams.inference import (
    InferenceReply,
    InferenceRequest,
    PolicySignature,
    reply_packer,
    request_packer,
)


@dataclass(frozen=True)
class RequestHeader:
    """Who asks.

    Attributes:
        client: Index of the actor worker.
        epoch: Its generation.
        slot: Block of its ring.
        sequence: Counts the slot's requests; a resend keeps its number.
        least: (epoch, version) that the answering weights must have reached.
    """

    client: int
    epoch: int
    slot: int
    sequence: int
    least: tuple[int, int] = (-1, -1)


@dataclass
class _Pending:
    header: RequestHeader
    packed: np.ndarray
    ref: Any = None
    sent_s: float = 0.0


class RemoteInference:
    """A client of one policy worker; the driver may give it another one at any time (`rewire`).

    `post`, `take` and `install` belong to the worker's thread, `rewire` to any.
    """

    def __init__(
        self,
        client: int,
        epoch: int,
        obs: Mapping[str, FieldSpec],
        signature: PolicySignature,
        handle: Any,
        *,
        resend_after_s: float = 30.0,
    ) -> None:
        """Args:
        client: Index of the actor worker.
        epoch: Its generation.
        handle: The policy worker.
        resend_after_s: A request that was not answered for this long is sent again.
        """
        self._resend_after_s = resend_after_s
        self.signature = signature
        self._client = client
        self._epoch = epoch
        self._request_packer = request_packer(obs, signature.state_size)
        self._reply_packer = reply_packer(signature)
        self._handle = handle
        self._lock = threading.Lock()
        self._wired = threading.Event()
        self._wired.set()
        self._pending: dict[int, _Pending] = {}
        self._sequence: dict[int, int] = {}
        self._least = (-1, -1)
        self.resends = 0

    def rewire(self, handle: Any) -> None:
        """Ask this policy worker from now on; requests in flight are sent again to it."""
        with self._lock:
            self._handle = handle
            for pending in self._pending.values():
                pending.ref = None
            self._wired.set()

    def install(self, epoch: int, version: int) -> None:
        self._least = max(self._least, (epoch, version))

    def post(self, slot: int, request: InferenceRequest) -> None:
        self._sequence[slot] = self._sequence.get(slot, 0) + 1
        fields = {f"obs.{name}": array for name, array in request.obs.items()}
        fields |= {"state": request.state, "on_reset": request.on_reset, "deterministic": request.deterministic}
        header = RequestHeader(self._client, self._epoch, slot, self._sequence[slot], self._least)
        pending = _Pending(header, self._request_packer.pack(fields))
        with self._lock:
            self._pending[slot] = pending
            self._send(pending)

    def _send(self, pending: _Pending) -> None:
        pending.ref = self._handle.infer.remote(pending.header, pending.packed)
        pending.sent_s = monotonic()

    def take(self, slot: int, deadline_s: float) -> InferenceReply | None:
        """Waits for the policy worker; sends again after it died and was replaced, or did not answer in time.

        Raises:
            RayTaskError: the policy worker refused the request (a bug or a broken policy).
        """
        end = monotonic() + deadline_s
        while (left := end - monotonic()) > 0:
            with self._lock:
                pending = self._pending[slot]
                if pending.ref is None or monotonic() - pending.sent_s > self._resend_after_s:
                    self.resends += 1
                    self._send(pending)
                ref = pending.ref
            try:
                packed, version, epoch = ray.get(ref, timeout=min(left, 1.0))
            except GetTimeoutError:
                continue
            except RayTaskError:
                raise
            except RayActorError:
                self._wired.clear()
                with self._lock:
                    if pending.ref is not ref:
                        self._wired.set()  # already rewired
                self._wired.wait(min(left, 1.0))
                continue
            del self._pending[slot]
            parts = self._reply_packer.unpack(packed)
            return InferenceReply(parts["action"], parts["log_prob"], parts["value"], parts["state"], version, epoch)
        return None

    def close(self) -> None:
        self._pending.clear()
