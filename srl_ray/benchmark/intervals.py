"""Medians with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000


@dataclass(frozen=True)
class Estimate:
    """A median and its 95 % interval.

    Attributes:
        median: Of the values.
        low: 2.5 % quantile of the medians of resampled values.
        high: 97.5 % quantile.
        count: Values.
    """

    median: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        if self.count == 1:
            return f"{self.median:,.0f} (one run)"
        return f"{self.median:,.0f} [{self.low:,.0f}, {self.high:,.0f}]"


def estimate(values: Sequence[float], *, seed: int = 0) -> Estimate:
    """Median and percentile-bootstrap interval (Efron 1979) of repeated measurements, at least one."""
    data = np.asarray(values, float)
    rng = np.random.default_rng(seed)
    medians = np.median(rng.choice(data, size=(RESAMPLES, len(data))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return Estimate(float(np.median(data)), float(low), float(high), len(data))


def ratio(ours: Sequence[float], theirs: Sequence[float], *, seed: int = 0) -> Estimate:
    """The ratio of two medians, each resampled on its own."""
    rng = np.random.default_rng(seed)
    top, bottom = np.asarray(ours, float), np.asarray(theirs, float)
    tops = np.median(rng.choice(top, size=(RESAMPLES, len(top))), axis=1)
    bottoms = np.median(rng.choice(bottom, size=(RESAMPLES, len(bottom))), axis=1)
    low, high = np.quantile(tops / bottoms, [0.025, 0.975])
    return Estimate(float(np.median(top) / np.median(bottom)), float(low), float(high), min(len(top), len(bottom)))
