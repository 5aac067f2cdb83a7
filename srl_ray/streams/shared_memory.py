"""Inference between two processes of a node: rows lie in memory that both map, and a byte through a socket says so.

The actor worker makes the memory (a memfd, without a name) and sends it over a Unix socket in the abstract namespace
(without a file), so nothing is left behind whoever dies, and the end of the connection is the news of a death. Every
byte on that socket is a *bell*: the number of a slot whose request or reply was just written. Each slot has one area
for its request and one for its reply; each area carries the request's sequence number twice, `begun` before the rows
are written and `done` after. A reader takes what it copied only if both still are the number it came for.

Memory order: an area is read only after its bell was received, and handing a byte through a socket orders what lies
before and after it on every processor. Only the second look, for a request that is replaced while it is read, relies on
stores that become visible in program order, as they do on x86; the actor worker never replaces a request.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import selectors
import socket
import struct
import sys
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic

import numpy as np

from srl_ray.core.errors import StreamError
from srl_ray.core.types import Arrays, FieldSpec
from srl_ray.streams.inference import (
    InferenceReply,
    InferenceRequest,
    PolicySignature,
    PolicyWorkerGone,
    RequestHeader,
    reply_arrays,
    reply_fields,
    reply_of,
    request_arrays,
    request_fields,
    request_of,
)

MAX_SLOTS = 256
"""A bell is one byte."""
_ALIGNMENT = 64
_HEAD_BYTES = 64
_BEGUN, _DONE, _ROWS, _EPOCH, _VERSION, _POSTED_NS = range(6)
"""Numbers at the head of an area, int64. Epoch and version: what a request demands, what a reply comes from."""
_HELLO = struct.Struct("=5q")  # client, epoch, slots, capacity, bytes
_WELCOME_S = 10.0
_PEER = struct.Struct("3i")  # pid, uid, gid


def is_available() -> bool:
    """Whether this system has memory and sockets without names."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


# ------------------------------------------------------------------------------------------------------------- memory


class Area:
    """A head and up to `capacity` rows of named fields."""

    def __init__(self, memory: np.ndarray, capacity: int, fields: Mapping[str, FieldSpec]) -> None:
        """Args:
        memory: uint8, at least `bytes_of(...)` long, aligned.
        """
        self.capacity = capacity
        self.head = memory[:_HEAD_BYTES].view(np.int64)
        self._arrays: Arrays = {}
        offset = _HEAD_BYTES
        for name, spec in fields.items():
            size = capacity * spec.size * spec.dtype.itemsize
            self._arrays[name] = memory[offset : offset + size].view(spec.dtype).reshape(capacity, *spec.shape)
            offset += _aligned(size)

    @staticmethod
    def bytes_of(capacity: int, fields: Mapping[str, FieldSpec]) -> int:
        return _HEAD_BYTES + sum(_aligned(capacity * spec.size * spec.dtype.itemsize) for spec in fields.values())

    def write(self, sequence: int, arrays: Arrays, stamp: tuple[int, int]) -> None:
        """Make these rows the area's content; `stamp` is (epoch, version)."""
        rows = len(next(iter(arrays.values())))
        if rows > self.capacity:
            raise ValueError(f"{rows} rows do not fit the {self.capacity} that the shared memory has room for")
        head = self.head
        head[_BEGUN] = sequence
        for name, target in self._arrays.items():
            target[:rows] = arrays[name]
        head[_ROWS], head[_EPOCH], head[_VERSION] = rows, *stamp
        head[_POSTED_NS] = int(monotonic() * 1e9)
        head[_DONE] = sequence

    def holds(self, sequence: int) -> bool:
        """Whether the rows of this sequence number are complete and not being replaced."""
        return int(self.head[_DONE]) == sequence == int(self.head[_BEGUN])

    def view(self, rows: int) -> Arrays:
        """The first rows, in place."""
        return {name: array[:rows] for name, array in self._arrays.items()}


@dataclass(frozen=True)
class _Layout:
    """How the areas of a connection lie in its memory: slot after slot, request before reply."""

    slots: int
    capacity: int
    request: Mapping[str, FieldSpec]
    reply: Mapping[str, FieldSpec]

    @property
    def num_bytes(self) -> int:
        return self.slots * sum(Area.bytes_of(self.capacity, fields) for fields in (self.request, self.reply))

    def areas(self, memory: mmap.mmap) -> list[tuple[Area, Area]]:
        buffer, offset, areas = np.frombuffer(memory, np.uint8), 0, []
        for _ in range(self.slots):
            pair = []
            for fields in (self.request, self.reply):
                pair.append(Area(buffer[offset:], self.capacity, fields))
                offset += Area.bytes_of(self.capacity, fields)
            areas.append((pair[0], pair[1]))
        return areas


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


# ------------------------------------------------------------------------------------------------------- actor's side


class SharedMemoryLink:
    """The actor worker's end of a connection. One thread.

    Lifecycle:   SharedMemoryLink(address, ...) → send, receive … → close()
    """

    name = "shared_memory"

    def __init__(
        self,
        address: str,
        client: int,
        epoch: int,
        obs: Mapping[str, FieldSpec],
        signature: PolicySignature,
        *,
        slots: int,
        capacity: int,
    ) -> None:
        """Connects; blocks until the policy worker has mapped the memory, at most 10 s.

        Args:
            address: Of the policy worker's `SharedMemoryPort`.
            slots: Blocks of the ring.
            capacity: Most rows of a request.

        Raises:
            OSError: no memory, nobody at that address, or no answer in time.
            StreamError: the policy worker refused.
        """
        if slots > MAX_SLOTS:
            raise StreamError(f"shared memory serves up to {MAX_SLOTS} blocks per actor worker, got {slots}")
        layout = _Layout(slots, capacity, request_fields(obs, signature.state_size), reply_fields(signature))
        descriptor = os.memfd_create("srl_ray_inference", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, layout.num_bytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            self._areas = layout.areas(mmap.mmap(descriptor, layout.num_bytes))
            self._socket = socket.socket(socket.AF_UNIX)
            try:
                self._socket.settimeout(_WELCOME_S)
                self._socket.connect(address)
                hello = _HELLO.pack(client, epoch, slots, capacity, layout.num_bytes)
                socket.send_fds(self._socket, [hello], [descriptor])
                if not self._socket.recv(1):
                    raise StreamError(f"the policy worker refused the shared memory of actor worker {client}")
            except BaseException:
                self._socket.close()
                raise
        finally:
            os.close(descriptor)
        self._rung: set[int] = set()

    def send(self, header: RequestHeader, request: InferenceRequest) -> None:
        """Write the request and ring; does not wait.

        Raises:
            PolicyWorkerGone: it ended.
        """
        self._areas[header.slot][0].write(header.sequence, request_arrays(request), header.least)
        try:
            self._socket.send(bytes((header.slot,)))
        except OSError as error:
            raise PolicyWorkerGone(str(error)) from error

    def receive(self, header: RequestHeader, deadline_s: float) -> InferenceReply | None:
        """The answer to this request, copied; None: not within the deadline.

        Raises:
            PolicyWorkerGone: it ended.
        """
        until, area = monotonic() + deadline_s, self._areas[header.slot][1]
        while True:
            if header.slot in self._rung:
                self._rung.discard(header.slot)
                if area.holds(header.sequence):
                    rows = {name: array.copy() for name, array in area.view(int(area.head[_ROWS])).items()}
                    return reply_of(rows, int(area.head[_VERSION]), int(area.head[_EPOCH]))
            left = until - monotonic()
            if left <= 0:
                return None
            self._socket.settimeout(left)
            try:
                bells = self._socket.recv(MAX_SLOTS)
            except TimeoutError:
                return None
            except OSError as error:
                raise PolicyWorkerGone(str(error)) from error
            if not bells:
                raise PolicyWorkerGone("the policy worker closed the connection")
            self._rung.update(bells)

    def close(self) -> None:
        self._socket.close()


# ------------------------------------------------------------------------------------------------------ policy's side


@dataclass
class _Connection:
    """One actor worker; `areas` is empty until it has introduced itself. `seen`: newest sequence number per slot."""

    socket: socket.socket
    client: int = -1
    areas: list[tuple[Area, Area]] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    is_open: bool = True

    def posted(self, slot: int) -> PostedRequest | None:
        """The request that this bell is about; None if it is known or being replaced (another bell follows)."""
        head = self.areas[slot][0].head
        sequence, rows = int(head[_DONE]), int(head[_ROWS])
        if sequence == self.seen[slot] or not 0 <= rows <= self.areas[slot][0].capacity:
            return None
        least, arrived_s = (int(head[_EPOCH]), int(head[_VERSION])), int(head[_POSTED_NS]) * 1e-9
        found = PostedRequest(self, slot, sequence, rows, least, arrived_s)
        if not found.is_wanted:
            return None
        self.seen[slot] = sequence
        return found


@dataclass
class PostedRequest:
    """A request in the memory of a connection.

    Attributes:
        least: (epoch, version) that the answering weights must have reached.
        arrived_s: When it was written, on the monotonic clock.
    """

    connection: _Connection
    slot: int
    sequence: int
    num_rows: int
    least: tuple[int, int]
    arrived_s: float

    @property
    def is_wanted(self) -> bool:
        """False once the actor worker is gone or has replaced the request."""
        return self.connection.is_open and self.connection.areas[self.slot][0].holds(self.sequence)

    def read(self) -> InferenceRequest:
        """The rows in place; ask `is_wanted` after copying them."""
        return request_of(self.connection.areas[self.slot][0].view(self.num_rows))

    def answer(self, reply: InferenceReply) -> None:
        """Write the reply and ring; nothing happens if nobody wants it any more."""
        if not self.is_wanted:
            return
        stamp = (reply.epoch, reply.version)
        self.connection.areas[self.slot][1].write(self.sequence, reply_arrays(reply), stamp)
        try:
            self.connection.socket.send(bytes((self.slot,)))
        except OSError:  # it ended, or has not listened for hundreds of bells: the next poll drops it
            with suppress(OSError):
                self.connection.socket.shutdown(socket.SHUT_RDWR)


class SharedMemoryPort:
    """Where actor workers of the node connect, and the one place at which the policy worker waits.

    `wake` may be called by any thread, everything else by the one that polls.
    """

    def __init__(
        self, obs: Mapping[str, FieldSpec], signature: PolicySignature, admit: Callable[[int, int], bool]
    ) -> None:
        """Args:
        admit: Whether this (client, epoch) may connect.
        """
        self._request, self._reply = request_fields(obs, signature.state_size), reply_fields(signature)
        self._admit = admit
        self._selector = selectors.DefaultSelector()
        self._waker, woken = socket.socketpair()
        self._waker.setblocking(False)
        self._register(woken, None)
        self.address = ""
        if is_available():
            self.address = f"\0srl_ray_inference_{uuid.uuid4().hex}"
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(self.address)
            listener.listen(MAX_SLOTS)
            self._register(listener, None)
            self._listener = listener

    def _register(self, endpoint: socket.socket, connection: _Connection | None) -> None:
        endpoint.setblocking(False)
        self._selector.register(endpoint, selectors.EVENT_READ, connection)

    @property
    def num_connections(self) -> int:
        return len(self._connections())

    def _connections(self) -> list[_Connection]:
        return [key.data for key in self._selector.get_map().values() if key.data is not None]

    def poll(self, timeout_s: float) -> list[PostedRequest]:
        """Requests that came since the last call; waits at most `timeout_s` for a request, a newcomer or `wake`."""
        posted: list[PostedRequest] = []
        for key, _ in self._selector.select(timeout_s):
            if key.data is not None:
                posted += self._received(key.data)
            elif key.fileobj is getattr(self, "_listener", None):
                with suppress(OSError):  # it went away again
                    newcomer, _ = self._listener.accept()
                    self._register(newcomer, _Connection(newcomer))
            else:
                with suppress(BlockingIOError):
                    key.fileobj.recv(4096)  # type: ignore[union-attr]
        return posted

    def _received(self, connection: _Connection) -> list[PostedRequest]:
        if not connection.is_open:
            return []  # dropped in this round
        try:
            if not connection.areas:
                self._introduce(connection)
                return []
            bells = connection.socket.recv(4096)
        except BlockingIOError:
            return []
        except (OSError, StreamError):
            bells = b""
        if not bells or max(bells) >= len(connection.areas):
            self._drop(connection)
            return []
        found = (connection.posted(slot) for slot in dict.fromkeys(bells))
        return [request for request in found if request is not None]

    def _introduce(self, connection: _Connection) -> None:
        """Map the memory of a newcomer and drop its predecessor.

        Raises:
            StreamError: it is of another user, of a replaced actor worker, or its memory does not fit.
        """
        peer = connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        hello, descriptors, *_ = socket.recv_fds(connection.socket, _HELLO.size, 1, socket.MSG_CMSG_CLOEXEC)
        try:
            if _PEER.unpack(peer)[1] != os.getuid() or len(hello) != _HELLO.size or not descriptors:
                raise StreamError("not an actor worker of this user")
            client, epoch, slots, capacity, num_bytes = _HELLO.unpack(hello)
            if not 0 < slots <= MAX_SLOTS:
                raise StreamError(f"actor worker {client} shares {slots} slots, expected 1 to {MAX_SLOTS}")
            layout = _Layout(slots, capacity, self._request, self._reply)
            sealed = fcntl.F_SEAL_SHRINK & fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS)
            if layout.num_bytes != num_bytes or not sealed or os.fstat(descriptors[0]).st_size != num_bytes:
                raise StreamError(f"actor worker {client} shares {num_bytes} bytes, expected {layout.num_bytes}")
            if not self._admit(client, epoch):
                raise StreamError(f"actor worker {client} of epoch {epoch} was replaced")
            areas = layout.areas(mmap.mmap(descriptors[0], num_bytes))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        for other in self._connections():
            if other.client == client:
                self._drop(other)
        connection.client, connection.areas, connection.seen = client, areas, [0] * slots
        connection.socket.send(b"\0")

    def _drop(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()
        connection.is_open = False
        connection.areas = []

    def wake(self) -> None:
        """Have `poll` return."""
        with suppress(OSError):  # full: it is awake
            self._waker.send(b"\0")

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                key.data.is_open = False
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        self._waker.close()
