"""Which cells of a floor can be reached from one."""

from __future__ import annotations

import numpy as np


def reached_from(free: np.ndarray, cell: tuple[int, int]) -> np.ndarray:
    reached = np.zeros_like(free)
    reached[cell] = True
    while True:
        grown = reached.copy()
        grown[1:] |= reached[:-1]
        grown[:-1] |= reached[1:]
        grown[:, 1:] |= reached[:, :-1]
        grown[:, :-1] |= reached[:, 1:]
        grown &= free
        if (grown == reached).all():
            return reached
        reached = grown
