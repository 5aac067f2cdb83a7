"""Which of the waiting requests make the next batch. Pure; the caller brings the clock."""

from __future__ import annotations

from typing import Protocol

from srl_ray.streams.inference import InferenceReply, InferenceRequest

IDLE_S = 0.5
"""How long to wait for news when there is nothing to do."""


class Waiting(Protocol):
    """A request that waits, however it came."""

    @property
    def num_rows(self) -> int: ...

    @property
    def least(self) -> tuple[int, int]:
        """(epoch, version) that the answering weights must have reached."""
        ...

    @property
    def arrived_s(self) -> float:
        """When it came, on the monotonic clock."""
        ...

    @property
    def is_wanted(self) -> bool:
        """False once nobody waits for the answer any more."""
        ...

    def read(self) -> InferenceRequest:
        """The rows, valid until the answer."""
        ...

    def answer(self, reply: InferenceReply) -> None: ...


class Batcher:
    """Keeps requests in the order of their arrival and cuts batches. One thread."""

    def __init__(self, *, max_rows: int, min_rows: int = 1, max_wait_s: float = 0.0) -> None:
        """Args:
        max_rows: A batch has at most this many rows; a larger request goes alone.
        min_rows: A smaller batch is cut only after its oldest request has waited `max_wait_s`.
        """
        self._max_rows, self._min_rows, self._max_wait_s = max_rows, min_rows, max_wait_s
        self._waiting: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Waiting) -> None:
        self._waiting.append(request)

    def next(self, have: tuple[int, int] | None, now_s: float) -> tuple[list[Waiting], float]:
        """The next batch, and for how long to wait for news if there is none.

        Args:
            have: (epoch, version) of the newest weights; None: none yet, nothing can be answered.
        """
        self._waiting = [request for request in self._waiting if request.is_wanted]
        batch: list[Waiting] = []
        rows = 0
        for request in self._waiting:
            fits = not batch or rows + request.num_rows <= self._max_rows
            if have is not None and request.least <= have and fits:
                batch.append(request)
                rows += request.num_rows
        if not batch:
            return [], IDLE_S
        if max(rows, 1) < self._min_rows:  # a request may be empty, and then 1 row at least means no waiting
            left_s = min(request.arrived_s for request in batch) + self._max_wait_s - now_s
            if left_s > 0:
                return [], left_s
        taken = set(map(id, batch))
        self._waiting = [request for request in self._waiting if id(request) not in taken]
        return batch, 0.0
