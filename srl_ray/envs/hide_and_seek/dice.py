"""Random numbers one at a time, for loops in Python: far cheaper than scalar calls of a numpy generator."""

from __future__ import annotations

from itertools import chain

import numpy as np

BLOCK = 128
"""Numbers drawn from the generator at once."""


class Dice:
    """Draws from a generator in blocks; what is left of the last block goes with the object.

    Attributes:
        share: Function without arguments; uniform in [0, 1).
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.share = chain.from_iterable(iter(lambda: rng.random(BLOCK).tolist(), None)).__next__

    def integer(self, low: int, stop: int) -> int:
        """Uniform in low..stop-1."""
        return low + int(self.share() * (stop - low))

    def between(self, low: float, high: float) -> float:
        return low + self.share() * (high - low)
