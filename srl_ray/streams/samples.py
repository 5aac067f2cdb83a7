"""The sample stream's producer side: pushes chunk messages to a trainer worker and collects its grants."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError

from srl_ray.streams.sample_buffer import ChunkMessage, Grant, Producer

MESSAGES_IN_FLIGHT = 2
THREADS_PER_BLOCK = MESSAGES_IN_FLIGHT + 1
"""Threads that a trainer worker needs for each block that feeds it: its messages, and its question for grants."""
_PUSH_DEADLINE_S = 2.0
_NOTHING_DUE_S = 0.005


@dataclass
class _Push:
    slot: int
    message: ChunkMessage | None
    want: int
    ref: Any


class SampleSink:
    """Slot j of worker i feeds trainer (i * ring + j) % number of trainers.

    A slot has at most MESSAGES_IN_FLIGHT messages and one question for grants under way. `push`, `ask` and `poll`
    belong to the worker's thread, `rewire` to any.
    """

    def __init__(self, worker: int, epoch: int, ring_size: int, trainers: Sequence[Any]) -> None:
        self._producers = [Producer(worker, slot, epoch) for slot in range(ring_size)]
        self._worker, self._ring_size = worker, ring_size
        self._trainers = list(trainers)
        self._lock = threading.Lock()
        self._wired = threading.Event()
        self._pushes: list[_Push] = []
        self._sequence = 0
        self.lost_chunks = 0

    def rewire(self, trainers: Sequence[Any]) -> None:
        """The trainer group was replaced: what was under way is lost and counted."""
        with self._lock:
            self._trainers = list(trainers)
        self._wired.set()

    def has_answers_due(self, slot: int) -> bool:
        """Something of this slot is under way."""
        return any(push.slot == slot for push in self._pushes)

    def may_push(self, slot: int) -> bool:
        """The slot's number of messages under way is below its limit."""
        under_way = sum(push.slot == slot and push.message is not None for push in self._pushes)
        return under_way < MESSAGES_IN_FLIGHT

    def asked(self, slot: int) -> int:
        """Chunks that the slot's unanswered messages and questions ask for."""
        return sum(push.want for push in self._pushes if push.slot == slot)

    def push(self, slot: int, message: ChunkMessage, want: int) -> None:
        """Deliver chunks of the slot, and take up to `want` grants along if there are any; does not block."""
        self._sequence += 1
        message.sequence = self._sequence
        self._send(slot, message, want)

    def ask(self, slot: int, want: int) -> None:
        """Ask for up to `want` grants, unless a question is under way already; does not block."""
        if not any(push.slot == slot and push.message is None for push in self._pushes):
            self._send(slot, None, want)

    def _send(self, slot: int, message: ChunkMessage | None, want: int) -> None:
        with self._lock:
            trainer = self._trainers[(self._worker * self._ring_size + slot) % len(self._trainers)]
        producer = self._producers[slot]
        if message is None:
            ref = trainer.ask.remote(producer, want, _PUSH_DEADLINE_S)
        else:
            ref = trainer.push.remote(producer, message, want, _PUSH_DEADLINE_S)
        self._pushes.append(_Push(slot, message, want, ref))

    def poll(self, deadline_s: float) -> list[tuple[int, Grant]]:
        """Answers of the sample buffers, with their slots; waits for the first one, at most `deadline_s`.

        A message that found the buffer full is sent again; one that a dead trainer took with it is lost and counted.
        """
        if not self._pushes:
            time.sleep(min(deadline_s, _NOTHING_DUE_S))
            return []
        refs = [push.ref for push in self._pushes]
        ready, _ = ray.wait(refs, num_returns=1, timeout=deadline_s, fetch_local=False)
        if not ready:
            return []
        answered = set(ready)
        done = [push for push in self._pushes if push.ref in answered]
        self._pushes = [push for push in self._pushes if push.ref not in answered]
        answers: list[tuple[int, Grant]] = []
        for push in done:
            try:
                grant: Grant = ray.get(push.ref, timeout=30.0)
            except RayActorError:
                self.lost_chunks += push.message.num_chunks if push.message else 0
                self._wired.clear()
                self._wired.wait(0.5)  # the driver names the successor
                continue
            if not grant.accepted and not grant.closed:
                self._send(push.slot, push.message, 0)
            answers.append((push.slot, grant))
        return answers
