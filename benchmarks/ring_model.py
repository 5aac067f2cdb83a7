"""A small discrete-event model of the ring: one actor worker, its blocks, and the device that answers them.

The worker steps its blocks in turn, each for `step_s`, and posts the block's request when it is done; a block may be
stepped again once its answer is there. The device begins with everything that is pending as one batch and answers it
`latency_s` later; it has up to `in_flight` batches at a time. Nothing else takes time.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable


def block_steps_per_s(
    ring: int,
    latency_s: float | Callable[[], float],
    step_s: float,
    *,
    in_flight: float = math.inf,
    is_any_ready: bool = False,
    num_steps: int = 2000,
) -> float:
    """Block steps per second in the steady state.

    Args:
        latency_s: Of a batch, or a function that draws it.
        in_flight: Batches that the device has at a time; infinite: pure latency.
        is_any_ready: Step the next block in the order of the ring whose answer is there; else only the next one.
    """
    draw = latency_s if callable(latency_s) else lambda: latency_s
    order = itertools.count()  # events at the same time happen in the order in which they were planned
    events: list[tuple[float, int, list[int], bool]] = []  # time, order, blocks, whether they were answered
    ready, pending = set(range(ring)), list[int]()
    now, turn, flying, done, half_s = 0.0, 0, 0, 0, 0.0
    is_stepping = False
    while done < num_steps:
        if pending and flying < in_flight:
            heapq.heappush(events, (now + draw(), next(order), pending, True))
            pending, flying = [], flying + 1
        if not is_stepping:
            turns = [(turn + i) % ring for i in range(ring if is_any_ready else 1)]
            block = next((b for b in turns if b in ready), None)
            if block is not None:
                is_stepping, turn = True, (block + 1) % ring
                ready.discard(block)
                heapq.heappush(events, (now + step_s, next(order), [block], False))
        now, _, blocks, is_answer = heapq.heappop(events)
        if is_answer:
            flying -= 1
            ready.update(blocks)
        else:
            is_stepping = False
            pending += blocks
            done += 1
            half_s = now if done == num_steps // 2 else half_s
    return (num_steps - num_steps // 2) / (now - half_s)


def speed_up(ring: int, latency_s: float, step_s: float, *, in_flight: float = math.inf) -> float:
    """Block steps per second over those of a ring of one."""
    return block_steps_per_s(ring, latency_s, step_s, in_flight=in_flight) * (step_s + latency_s)


def closed_formula(ring: int, latency_s: float, step_s: float) -> float:
    """The speed-up if every request is answered after the same time, however many there are."""
    return min(ring, 1 + latency_s / step_s)
