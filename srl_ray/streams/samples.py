"""The sample stream's producer side: pushes chunk messages to a trainer worker and collects its grants."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError

from srl_ray.streams.sample_buffer import ChunkMessage, Grant, Producer

SAMPLES_GROUP = "samples"
"""Concurrency group of a trainer worker in which pushes run; one thread for each block that feeds it."""
_PUSH_DEADLINE_S = 2.0


class SampleSink:
    """Each slot of the ring has at most one push under way; its answer is the slot's grant.

    `push` and `poll` belong to the worker's thread, `rewire` to any. Slot j of worker i feeds trainer
    (i * ring + j) % number of trainers.
    """

    def __init__(self, worker: int, epoch: int, ring_size: int, trainers: Sequence[Any]) -> None:
        self._producers = [Producer(worker, slot, epoch) for slot in range(ring_size)]
        self._worker, self._ring_size = worker, ring_size
        self._trainers = list(trainers)
        self._lock = threading.Lock()
        self._wired = threading.Event()
        self._pending: dict[int, tuple[ChunkMessage | None, int, Any]] = {}
        self._sequence = 0
        self.lost_chunks = 0

    def rewire(self, trainers: Sequence[Any]) -> None:
        """The trainer group was replaced: what was under way is lost and counted."""
        with self._lock:
            self._trainers = list(trainers)
        self._wired.set()

    def push(self, slot: int, message: ChunkMessage | None, want: int) -> None:
        """Deliver chunks of the slot and ask for `want` new ones; does not block."""
        if message is not None:
            self._sequence += 1
            message.sequence = self._sequence
        self._send(slot, message, want)

    def _send(self, slot: int, message: ChunkMessage | None, want: int) -> None:
        with self._lock:
            trainer = self._trainers[(self._worker * self._ring_size + slot) % len(self._trainers)]
        push = trainer.push.options(concurrency_group=SAMPLES_GROUP)
        ref = push.remote(self._producers[slot], message, want, _PUSH_DEADLINE_S)
        self._pending[slot] = (message, want, ref)

    def poll(self, slots: Sequence[int], deadline_s: float) -> tuple[int, Grant] | None:
        """The first slot of `slots` that got all it wanted (or learnt that the stream is closed).

        Answers that fall short are asked for again: a message that found the buffer full is sent again, one that a
        dead trainer took with it is lost and counted.
        """
        refs = {self._pending[slot][2]: slot for slot in slots}
        ready, _ = ray.wait(list(refs), num_returns=1, timeout=deadline_s, fetch_local=False)
        if not ready:
            return None
        slot = refs[ready[0]]
        message, want, ref = self._pending.pop(slot)
        try:
            grant: Grant = ray.get(ref, timeout=30.0)
        except RayActorError:
            self.lost_chunks += message.num_chunks if message else 0
            self._wired.clear()
            self._wired.wait(0.5)  # the driver names the successor
            self._send(slot, None, want)
            return None
        if grant.closed or (grant.accepted and grant.granted == want):
            return slot, grant
        self._send(slot, None if grant.accepted else message, want)
        return None
