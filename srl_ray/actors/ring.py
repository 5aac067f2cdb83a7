"""How many blocks the ring of an actor worker should have.

While one block waits for its answer the others are stepped. With `k` blocks a round, in which every environment makes a
step, takes the longer of two: the actor worker's own work, or one block's step and its wait for the answer.

    round(k) = max(step + k * handling, step / k + handling + inference)

More blocks than needed cost handling and smaller batches, and hide nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np

from srl_ray.actors.lanes import LaneTable
from srl_ray.core.errors import StreamError
from srl_ray.envs.block import EnvBlock
from srl_ray.streams.inference import InferenceClient, InferenceRequest

MOST_BLOCKS = 8
"""Of a ring whose size is chosen."""
NEAR_BEST = 1.1
"""A smaller ring is taken if its round is at most this much longer than the best one's."""
_MEASURED_S = 1.0
_MEASURED_STEPS = 300


@dataclass(frozen=True)
class RingTimes:
    """What an actor worker measured while it stepped all its environments as one block; seconds.

    Attributes:
        step_s: A block step.
        handling_s: What the worker does around it: rows, request, answer; hardly depends on the block's size.
        inference_s: From request to answer.
    """

    step_s: float
    handling_s: float
    inference_s: float

    def round_s(self, blocks: int) -> float:
        """Time in which each environment makes a step, if they are split into this many blocks."""
        own_s = self.step_s + blocks * self.handling_s
        return max(own_s, self.step_s / blocks + self.handling_s + self.inference_s)


def choose_ring(times: list[RingTimes], num_envs: int) -> tuple[int, RingTimes]:
    """Into how many blocks to split the environments of every actor worker, and the times that say so.

    Args:
        times: Of each worker; their medians count.
        num_envs: Environments of a worker.

    Returns:
        The smallest divisor of num_envs up to MOST_BLOCKS whose round is nearly the shortest.
    """
    typical = RingTimes(
        median(t.step_s for t in times), median(t.handling_s for t in times), median(t.inference_s for t in times)
    )
    rounds = {blocks: typical.round_s(blocks) for blocks in range(1, MOST_BLOCKS + 1) if num_envs % blocks == 0}
    shortest_s = min(rounds.values())
    return next(blocks for blocks, round_s in rounds.items() if round_s <= NEAR_BEST * shortest_s), typical


def measure_block(
    block: EnvBlock, lanes: LaneTable, inference: InferenceClient, seed: int, patience_s: float
) -> RingTimes:
    """Play with the policy for a second; medians. What the lanes have written is of no use afterwards.

    Args:
        inference: Asked as slot 0.
        patience_s: How long to wait for an answer.

    Raises:
        StreamError: none came.
    """
    marks: list[list[float]] = []
    step = block.reset(seed)
    until = perf_counter() + _MEASURED_S
    while len(marks) < 2 or (perf_counter() < until and len(marks) < _MEASURED_STEPS):
        begin = perf_counter()
        request = lanes.observe(step)
        no = np.zeros(request.num_rows, np.bool_)
        inference.post(0, InferenceRequest(request.obs, request.state, request.on_reset, no))
        posted = perf_counter()
        reply = inference.take(0, patience_s)
        answered = perf_counter()
        if reply is None:
            raise StreamError(f"the ring was to be measured, but no policy worker answered within {patience_s:g} s.")
        lanes.answer(request, reply)
        lanes.ship()
        handled = perf_counter()
        step = block.step(lanes.actions)
        marks.append([begin, posted, answered, handled, perf_counter()])
    asking_s, waiting_s, answering_s, stepping_s = np.median(np.diff(marks[1:]), axis=0).tolist()
    return RingTimes(stepping_s, asking_s + answering_s, waiting_s)
