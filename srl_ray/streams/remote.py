"""Remote inference: a policy worker answers. On the same node requests lie in shared memory, else they travel as Ray
calls. Imports no torch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from srl_ray.core.errors import StreamError
from srl_ray.core.types import FieldSpec
from srl_ray.streams import shared_memory
from srl_ray.streams.inference import (
    InferenceReply,
    InferenceRequest,
    PolicySignature,
    PolicyWorkerGone,
    RequestHeader,
    reply_of,
    reply_packer,
    request_arrays,
    request_packer,
)

_LOG = logging.getLogger(__name__)
_ENDPOINT_S = 10.0
_SLICE_S = 1.0
"""Longest wait before the handle is looked at again."""


@dataclass(frozen=True)
class Endpoint:
    """Where a policy worker can be reached besides through its handle.

    Attributes:
        node_id: Ray's id of its node.
        address: Of its `SharedMemoryPort`; empty: it has none.
    """

    node_id: str
    address: str


class Link(Protocol):
    """A client's connection to one policy worker. One thread."""

    name: str

    def send(self, header: RequestHeader, request: InferenceRequest) -> None:
        """Does not wait. Raises PolicyWorkerGone."""
        ...

    def receive(self, header: RequestHeader, deadline_s: float) -> InferenceReply | None:
        """The answer to this request; None: not within the deadline. Raises PolicyWorkerGone."""
        ...

    def close(self) -> None: ...


class RayLink:
    """Requests as Ray calls, to any node."""

    name = "ray"

    def __init__(self, obs: Mapping[str, FieldSpec], signature: PolicySignature, handle: Any) -> None:
        self._request_packer = request_packer(obs, signature.state_size)
        self._reply_packer = reply_packer(signature)
        self._handle = handle
        self._refs: dict[int, Any] = {}

    def send(self, header: RequestHeader, request: InferenceRequest) -> None:
        packed = self._request_packer.pack(request_arrays(request))
        self._refs[header.slot] = self._handle.infer.remote(header, packed)

    def receive(self, header: RequestHeader, deadline_s: float) -> InferenceReply | None:
        """Raises, beside PolicyWorkerGone:
        RayTaskError: the policy worker refused the request (a bug or a broken policy).
        """
        try:
            packed, version, epoch = ray.get(self._refs[header.slot], timeout=deadline_s)
        except GetTimeoutError:
            return None
        except RayTaskError:
            raise
        except RayActorError as error:
            raise PolicyWorkerGone(str(error)) from error
        return reply_of(self._reply_packer.unpack(packed), version, epoch)

    def close(self) -> None:
        self._refs.clear()


class Connector:
    """Makes the link that fits a policy worker: shared memory where both are on one node, else Ray calls."""

    def __init__(
        self,
        client: int,
        epoch: int,
        obs: Mapping[str, FieldSpec],
        signature: PolicySignature,
        *,
        slots: int,
        capacity: int,
        transport: str = "auto",
    ) -> None:
        """Args:
        client: Index of the actor worker.
        epoch: Its generation.
        slots: Blocks of its ring.
        capacity: Most rows of a request.
        transport: auto | ray | shared_memory; see `policy_workers.transport`.
        """
        self.signature = signature
        self._client, self._epoch, self._obs = client, epoch, obs
        self._slots, self._capacity, self._transport = slots, capacity, transport

    def __call__(self, handle: Any) -> Link:
        """Blocks for a Ray call and the connection, at most 20 s.

        Raises:
            RayError: the policy worker is gone.
            StreamError: transport=shared_memory is impossible here.
        """
        endpoint: Endpoint = ray.get(handle.endpoint.remote(), timeout=_ENDPOINT_S)
        if self._transport != "ray":
            try:
                return self._share_memory(endpoint)
            except (OSError, StreamError) as error:
                if self._transport == "shared_memory":
                    raise StreamError(
                        f"actor worker {self._client} cannot share memory with its policy worker: {error}. "
                        "Use policy_workers.transport=auto."
                    ) from error
                level = logging.INFO if isinstance(error, _AnotherNode) else logging.WARNING
                _LOG.log(level, "actor %d infers through Ray calls: %s", self._client, error)
        return RayLink(self._obs, self.signature, handle)

    def _share_memory(self, endpoint: Endpoint) -> Link:
        here = ray.get_runtime_context().get_node_id()
        if endpoint.node_id != here:
            raise _AnotherNode(f"it is on node {endpoint.node_id[:8]}, this is node {here[:8]}")
        if not endpoint.address:
            raise StreamError("this system has no memory without a name (Linux has)")
        return shared_memory.SharedMemoryLink(
            endpoint.address,
            self._client,
            self._epoch,
            self._obs,
            self.signature,
            slots=self._slots,
            capacity=self._capacity,
        )


class _AnotherNode(StreamError):
    pass


@dataclass
class _Pending:
    """A request without an answer, and through which link it was sent last."""

    header: RequestHeader
    request: InferenceRequest
    link: Link | None = None
    sent_s: float = 0.0


class RemoteInference:
    """A client of one policy worker; the driver may give it another one at any time (`rewire`).

    `post`, `take`, `install` and `close` belong to the worker's thread, `rewire` to any.
    """

    def __init__(
        self,
        client: int,
        epoch: int,
        connect: Callable[[Any], Link],
        handle: Any,
        signature: PolicySignature,
        *,
        resend_after_s: float = 30.0,
    ) -> None:
        """Blocks while it connects.

        Args:
            client: Index of the actor worker.
            epoch: Its generation.
            connect: Makes a link to the policy worker of a handle, for example a `Connector`.
            handle: The policy worker.
            resend_after_s: A request that was not answered for this long is sent again, through a new link.

        Raises:
            StreamError: the configured transport is impossible.
        """
        self.signature = signature
        self._client, self._epoch = client, epoch
        self._connect = connect
        self._resend_after_s = resend_after_s
        self._link: Link | None = None
        self._handle = handle
        self._is_new = threading.Event()
        """The handle is not connected yet."""
        self._is_new.set()
        self._pending: dict[int, _Pending] = {}
        self._sequence: dict[int, int] = {}
        self._least = (-1, -1)
        self.resends = 0
        self._connected(0.0)

    @property
    def transport(self) -> str:
        """ray | shared_memory; empty while the policy worker is gone."""
        return self._link.name if self._link is not None else ""

    def rewire(self, handle: Any) -> None:
        """Ask this policy worker from now on; requests in flight are sent again to it."""
        self._handle = handle
        self._is_new.set()

    def install(self, epoch: int, version: int) -> None:
        self._least = max(self._least, (epoch, version))

    def post(self, slot: int, request: InferenceRequest) -> None:
        self._sequence[slot] = self._sequence.get(slot, 0) + 1
        header = RequestHeader(self._client, self._epoch, slot, self._sequence[slot], self._least)
        self._pending[slot] = pending = _Pending(header, request)
        if self._link is not None:
            self._send(pending, self._link)

    def _send(self, pending: _Pending, link: Link) -> None:
        pending.link, pending.sent_s = link, monotonic()
        try:
            link.send(pending.header, pending.request)
        except PolicyWorkerGone:
            self._lose_link()

    def take(self, slot: int, deadline_s: float) -> InferenceReply | None:
        """Waits for the policy worker; sends again after it died and was replaced, or did not answer in time.

        Raises:
            RayTaskError: the policy worker refused the request (a bug or a broken policy).
        """
        pending, end = self._pending[slot], monotonic() + deadline_s
        while (left := end - monotonic()) > 0:
            if pending.link is not None and monotonic() - pending.sent_s > self._resend_after_s:
                self._lose_link()
            link = self._connected(min(left, _SLICE_S))
            if link is None:
                continue
            if pending.link is not link:
                self.resends += pending.link is not None
                self._send(pending, link)
                continue
            try:
                reply = link.receive(pending.header, min(left, _SLICE_S))
            except PolicyWorkerGone:
                self._lose_link()
                continue
            if reply is not None:
                del self._pending[slot]
                return reply
        return None

    def _connected(self, wait_s: float) -> Link | None:
        """The link to the newest handle; after a loss waits for a new handle and tries the old one again."""
        if self._link is not None and not self._is_new.is_set():
            return self._link
        self._lose_link()
        self._is_new.wait(wait_s)
        self._is_new.clear()  # before the handle is read: a rewire in between only means to connect once more
        try:
            self._link = self._connect(self._handle)
        except RayError as error:
            _LOG.info("actor %d does not reach its policy worker: %s", self._client, error)
        return self._link

    def _lose_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def close(self) -> None:
        self._pending.clear()
        self._lose_link()
