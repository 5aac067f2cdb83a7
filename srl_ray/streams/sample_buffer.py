"""The trainer's bounded sample buffer and the one gate that owns staleness. Threads and a Condition; no Ray.

The gate counts chunks *granted*. A lane starts its next chunk only when
`granted + 1 <= (finished_batches + 1 + S') * B`, with B chunks per batch, and S' = (S + 1) // reuse − 1 batches of
allowed lead: chunk number g is then trained at most S versions after it was begun, unless its producer falls behind the
others (it expires). Expired and lost chunks are taken off `granted`. With S = 0 this is synchronous training; with S
unbounded only the buffer's size holds producers back. Grants never wait for each other: while the next batch is
incomplete, a block with lanes that still fill a chunk goes on, its lanes without a grant step unrecorded.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from srl_ray.core.types import Arrays


@dataclass(frozen=True)
class Producer:
    """One block of one actor worker, in one life of that worker.

    Attributes:
        worker: Index of the actor worker.
        slot: Index of the block in its ring.
        epoch: Generation of the worker; a replacement has a higher one.
    """

    worker: int
    slot: int
    epoch: int = 0


@dataclass
class ChunkMessage:
    """Chunks of one block that completed together, as they travel.

    Attributes:
        arrays: See `srl_ray.actors.lanes.Chunks`; [T, n, ...] and state [K, n, S].
        lanes: int64 [n].
        oldest_version: int64 [n].
        trained_rows: int64 [n].
        trainer_epoch: int64 [n], generation of the trainer that granted the chunk.
        sequence: Number of this message among its producer's, for sorting in deterministic mode.
    """

    arrays: Arrays
    lanes: np.ndarray
    oldest_version: np.ndarray
    trained_rows: np.ndarray
    trainer_epoch: np.ndarray
    sequence: int = 0

    @property
    def num_chunks(self) -> int:
        return len(self.lanes)


@dataclass(frozen=True)
class Grant:
    """The answer to `push` and `ask`.

    Attributes:
        granted: Chunks that may be begun now, between 0 and what was wanted.
        accepted: The message was taken in; it must not be sent again.
        version: Trainer version; weights at least this new are to be installed before the new chunks begin.
        epoch: Trainer epoch of that version.
        closed: The buffer takes nothing any more.
        awaited: The next batch is incomplete and chunks that this producer has begun may be missing from it: it should
            go on rather than wait for grants.
    """

    granted: int
    accepted: bool
    version: int
    epoch: int
    closed: bool = False
    awaited: bool = False


@dataclass
class Chunk:
    """One chunk of a message: column `column` of its arrays."""

    message: ChunkMessage
    column: int
    producer: Producer
    num_bytes: int

    @property
    def oldest_version(self) -> int:
        return int(self.message.oldest_version[self.column])

    @property
    def key(self) -> tuple[int, int, int, int]:
        """Order that does not depend on time."""
        return self.message.sequence, self.producer.worker, self.producer.slot, int(self.message.lanes[self.column])


@dataclass
class SampleBufferMetrics:
    """Counts since the buffer was made; `accepted == finished + expired + waiting + lost` always holds.

    Attributes:
        accepted: Chunks taken in.
        finished: Chunks handed to training.
        expired: Chunks dropped because they had become too stale.
        lost: Chunks dropped when their trainer epoch ended.
        refused: Chunks of an older trainer or worker epoch, never accepted.
        waiting: Chunks in the buffer now.
        waiting_bytes: Their size.
        open: Chunks granted and not yet delivered.
    """

    accepted: int = 0
    finished: int = 0
    expired: int = 0
    lost: int = 0
    refused: int = 0
    waiting: int = 0
    waiting_bytes: int = 0
    open: int = 0


@dataclass
class SampleBuffer:
    """FIFO of chunks with a staleness budget.

    Lifecycle:   open --close()--> closed (pushes are told so, takes return None)
    A chunk:     granted → open → pushed → waiting → taken (finished) | expired | lost

    Example:
        buffer = SampleBuffer(batch_chunks=8, max_staleness=1)
        grant = buffer.ask(Producer(0, 0), want=4, deadline_s=1.0)              # a producer's thread
        grant = buffer.push(Producer(0, 0), message, want=4, deadline_s=1.0)   # later, from the same producer
        chunks = buffer.take(deadline_s=1.0)                                    # the training thread
        buffer.set_version(1)                                                   # after the update was published

    Attributes:
        batch_chunks: B, chunks that `take` returns.
        max_staleness: S; None switches the gate off.
        reuse: Updates each batch takes part in.
        capacity_chunks: Pushes wait while the buffer holds this many; None: unbounded (the gate bounds it).
        capacity_bytes: The same in bytes.
        sort: Hand out the oldest B chunks in an order independent of arrival (deterministic mode).
        producers: Give each of so many producers an equal share of every batch, so that who is granted how much does
            not depend on who asks first (deterministic mode); None: first come, first served.
    """

    batch_chunks: int
    max_staleness: int | None = 1
    reuse: int = 1
    capacity_chunks: int | None = None
    capacity_bytes: int | None = None
    sort: bool = False
    producers: int | None = None
    metrics: SampleBufferMetrics = field(default_factory=SampleBufferMetrics)

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._chunks: deque[Chunk] = deque()
        self._open: dict[Producer, int] = {}
        self._begun: dict[tuple[int, int], int] = {}
        self._queue: deque[object] = deque()
        self._worker_epochs: dict[int, int] = {}
        self._version = 0
        self._epoch = 0
        self._finished_batches = 0
        self._granted = 0
        self._closed = False

    # ----------------------------------------------------------------------------------------------------- producers

    def push(self, producer: Producer, message: ChunkMessage, want: int, deadline_s: float) -> Grant:
        """Deliver chunks; grants up to `want` new ones as far as the budget allows now.

        produces:      chunks for take()
        waits for:     room in the buffer, at most `deadline_s` (then `accepted` is false: send it again)
        unblocked by:  take(), close()
        """
        with self._changed:
            if self._is_outdated(producer):
                self.metrics.refused += message.num_chunks
                return self._answer(producer, 0, closed=True)
            if not self._accept(producer, message, deadline_s):
                return self._answer(producer, 0, accepted=False)
            return self._answer(producer, 0 if self._queue or self._closed else self._begin(producer, want))

    def ask(self, producer: Producer, want: int, deadline_s: float) -> Grant:
        """Ask for up to `want` new chunks.

        waits for:     budget for at least one, in turn, at most `deadline_s`; not while its own chunks are awaited
        unblocked by:  set_version(), forget(), close(), chunks that expire
        """
        place = object()
        with self._changed:
            self._queue.append(place)
            self._changed.wait_for(
                lambda: (
                    self._closed
                    or self._is_outdated(producer)
                    or self._is_awaited(producer)
                    or ((self.producers or self._queue[0] is place) and self._budget(producer) > 0)
                ),
                deadline_s,
            )
            is_first = self.producers is not None or self._queue[0] is place
            self._queue.remove(place)
            self._changed.notify_all()
            if self._closed or self._is_outdated(producer):
                return self._answer(producer, 0, closed=True)
            return self._answer(producer, self._begin(producer, want) if is_first else 0)

    def _begin(self, producer: Producer, want: int) -> int:
        granted = max(0, min(want, self._budget(producer)))
        self._count(producer, granted)
        self._open[producer] = self._open.get(producer, 0) + granted
        self.metrics.open += granted
        return granted

    def _budget(self, producer: Producer) -> int:
        """Chunks that this producer may begin now."""
        if self.max_staleness is None:
            return sys.maxsize
        lead = (self.max_staleness + 1) // self.reuse - 1
        batches = self._finished_batches + 1 + lead
        budget = batches * self.batch_chunks - self._granted
        if self.producers is None:
            return budget
        begun = self._begun.get((producer.worker, producer.slot), 0)
        return min(budget, batches * (self.batch_chunks // self.producers) - begun)

    def _count(self, producer: Producer, chunks: int) -> None:
        """Chunks that were begun (or, below 0, that go back to the budget)."""
        self._granted += chunks
        place = producer.worker, producer.slot
        self._begun[place] = self._begun.get(place, 0) + chunks

    def _accept(self, producer: Producer, message: ChunkMessage, deadline_s: float) -> bool:
        columns = np.flatnonzero(message.trainer_epoch == self._epoch)
        if not len(columns):
            self.metrics.refused += message.num_chunks
            return True
        size = sum(array.nbytes for array in message.arrays.values())
        has_room = self._changed.wait_for(lambda: self._closed or self._has_room(size), deadline_s)
        if not has_room or self._closed:
            return self._closed
        self._close_open(producer, len(columns))
        for column in columns:
            self._chunks.append(Chunk(message, int(column), producer, size // message.num_chunks))
        self.metrics.refused += message.num_chunks - len(columns)
        self.metrics.accepted += len(columns)
        self.metrics.waiting += len(columns)
        self.metrics.waiting_bytes += len(columns) * (size // message.num_chunks)
        self._changed.notify_all()
        return True

    def _has_room(self, size: int) -> bool:
        if not self._chunks:
            return True
        chunks_fit = self.capacity_chunks is None or len(self._chunks) < self.capacity_chunks
        return chunks_fit and (self.capacity_bytes is None or self.metrics.waiting_bytes + size <= self.capacity_bytes)

    def _close_open(self, producer: Producer, count: int) -> None:
        delivered = min(count, self._open.get(producer, 0))
        self._open[producer] = self._open.get(producer, 0) - delivered
        self.metrics.open -= delivered
        self._count(producer, count - delivered)  # chunks begun without a grant still count against the budget

    def _is_outdated(self, producer: Producer) -> bool:
        return producer.epoch < self._worker_epochs.get(producer.worker, 0)

    def _is_awaited(self, producer: Producer) -> bool:
        return len(self._chunks) < self.batch_chunks and self._open.get(producer, 0) > 0

    def _answer(self, producer: Producer, granted: int, *, accepted: bool = True, closed: bool = False) -> Grant:
        awaited = self._is_awaited(producer)
        return Grant(granted, accepted, self._version, self._epoch, closed or self._closed, awaited)

    def forget(self, worker: int, epoch: int) -> None:
        """An actor worker was replaced by generation `epoch`: its open chunks go back to the budget."""
        with self._changed:
            self._worker_epochs[worker] = epoch
            for producer in [p for p in self._open if p.worker == worker and p.epoch < epoch]:
                count = self._open.pop(producer)
                self._count(producer, -count)
                self.metrics.open -= count
            self._changed.notify_all()

    # ------------------------------------------------------------------------------------------------------- training

    def take(self, deadline_s: float) -> list[Chunk] | None:
        """The B chunks of the oldest versions that are not too stale.

        consumes:      chunks of push()
        waits for:     B chunks, at most `deadline_s`; None once closed or late
        unblocked by:  push(), close()
        """
        with self._changed:
            if not self.wait_ready(deadline_s) or self._closed:
                return None
            self._chunks = deque(self._in_order(self._chunks))
            taken = [self._chunks.popleft() for _ in range(self.batch_chunks)]
            self._remove(taken)
            self.metrics.finished += len(taken)
            self._changed.notify_all()
            return taken

    def peek(self, ahead: int) -> list[Chunk] | None:
        """What `take` would return `ahead` versions from now if nothing else arrived; None: less than a batch."""
        with self._changed:
            usable = [chunk for chunk in self._chunks if self._is_usable(chunk, self._version + ahead)]
            return None if len(usable) < self.batch_chunks else self._in_order(usable)[: self.batch_chunks]

    def _in_order(self, chunks: Iterable[Chunk]) -> list[Chunk]:
        return sorted(chunks, key=(lambda chunk: chunk.key) if self.sort else (lambda chunk: chunk.oldest_version))

    def _is_ready(self) -> bool:
        self._expire()
        return len(self._chunks) >= self.batch_chunks

    def _expire(self) -> None:
        expired = [chunk for chunk in self._chunks if not self._is_usable(chunk, self._version)]
        if expired:
            dropped = set(map(id, expired))
            self._chunks = deque(c for c in self._chunks if id(c) not in dropped)
            self._remove(expired)
            self.metrics.expired += len(expired)
            for chunk in expired:
                self._count(chunk.producer, -1)
            self._changed.notify_all()

    def _is_usable(self, chunk: Chunk, version: int) -> bool:
        """Its last use, if the first follows `version`, is not too stale, and something in it is trained."""
        if self.max_staleness is None:
            return True
        staleness = version + self.reuse - 1 - chunk.oldest_version
        return staleness <= self.max_staleness and bool(chunk.message.trained_rows[chunk.column] > 0)

    def _remove(self, chunks: list[Chunk]) -> None:
        self.metrics.waiting -= len(chunks)
        self.metrics.waiting_bytes -= sum(chunk.num_bytes for chunk in chunks)

    def wait_ready(self, deadline_s: float) -> bool:
        """Wait until a batch is there, at most `deadline_s`; it stays there until `take` or `set_version`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._is_ready(), deadline_s)
            return len(self._chunks) >= self.batch_chunks

    def set_version(self, version: int, epoch: int | None = None) -> None:
        """Tell the gate that `version` is published. A new `epoch` begins from an empty buffer."""
        with self._changed:
            if epoch is not None and epoch != self._epoch:
                self._epoch = epoch
                self.metrics.lost += len(self._chunks)
                self._remove(list(self._chunks))
                self._chunks.clear()
                self._finished_batches, self._granted = 0, 0
                self.metrics.open -= sum(self._open.values())
                self._open.clear()
                self._begun.clear()
            elif version > self._version and version % self.reuse == 0:
                self._finished_batches += 1
            self._version = version
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def snapshot(self) -> dict[str, Any]:
        """The counts, consistent with each other."""
        with self._changed:
            return dict(vars(self.metrics))
