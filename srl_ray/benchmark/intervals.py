"""Middles of repeated measurements with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000


@dataclass(frozen=True)
class Estimate:
    """A middle (median or interquartile mean) and its 95 % interval.

    Attributes:
        center: Of the values.
        low: 2.5 % quantile of the middles of resampled values.
        high: 97.5 % quantile.
        count: Values.
    """

    center: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        if self.count == 1:
            return f"{self.center:,.0f} (one run)"
        return f"{self.center:,.0f} [{self.low:,.0f}, {self.high:,.0f}]"


def estimate(values: Sequence[float], *, seed: int = 0) -> Estimate:
    """Median and percentile-bootstrap interval (Efron 1979) of repeated measurements, at least one."""
    return _estimate(values, lambda x: np.median(x, axis=-1), seed)


def estimate_iqm(values: Sequence[float], *, seed: int = 0) -> Estimate:
    """The same for the interquartile mean, which Agarwal et al. 2021 recommend for few seeds."""
    return _estimate(values, interquartile_mean, seed)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Mean of the last axis without its lowest and highest quarter, rounded down: [..., n] → [...]."""
    cut = values.shape[-1] // 4
    kept: np.ndarray = np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut]
    return kept.mean(-1)


def _estimate(values: Sequence[float], middle: Callable[[np.ndarray], np.ndarray], seed: int) -> Estimate:
    data = np.asarray(values, float)
    resampled = middle(np.random.default_rng(seed).choice(data, size=(RESAMPLES, len(data))))
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Estimate(float(middle(data)), float(low), float(high), len(data))


def ratio(ours: Sequence[float], theirs: Sequence[float], *, seed: int = 0) -> Estimate:
    """The ratio of two medians, each resampled on its own."""
    rng = np.random.default_rng(seed)
    top, bottom = np.asarray(ours, float), np.asarray(theirs, float)
    tops = np.median(rng.choice(top, size=(RESAMPLES, len(top))), axis=1)
    bottoms = np.median(rng.choice(bottom, size=(RESAMPLES, len(bottom))), axis=1)
    low, high = np.quantile(tops / bottoms, [0.025, 0.975])
    return Estimate(float(np.median(top) / np.median(bottom)), float(low), float(high), min(len(top), len(bottom)))
