"""One object decides what happens after a failure. Pure: it neither restarts anything nor imports Ray."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from srl_ray.core.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFault,
    NonFiniteError,
    PlacementError,
    SrlError,
    WorkerFailure,
)
from srl_ray.runtime.config import FailureConfig

LONGEST_BACKOFF_S = 30.0
_FINAL = (ConfigError, CheckpointError, NonFiniteError, PlacementError, WorkerFailure)
_UNAVAILABLE = "ActorUnavailableError"


@dataclass(frozen=True)
class Restart:
    """Replace the worker after `delay_s`; `attempt` counts replacements within the window, from 1."""

    delay_s: float
    attempt: int


@dataclass(frozen=True)
class Wait:
    """The worker is only out of reach for the moment: ask again after `delay_s`, replace nothing."""

    delay_s: float


@dataclass(frozen=True)
class Raise:
    """End the run with this error."""

    error: SrlError


Decision = Restart | Wait | Raise


class FailurePolicy:
    """Back-off and budget per worker. One thread calls it.

    A worker may be replaced `max_restarts` times within `restart_window_s`: the first time at once, then after
    backoff_s, 2 · backoff_s, … up to 30 s. Beyond that the run ends with the original error. Mistakes that a new
    process would only repeat (configuration, checkpoints, non-finite weights) end it at once; so do environment faults
    unless they may be restarted.

    Example:
        policy = FailurePolicy(config.failure, now=time.monotonic)
        match policy.decide("actor", 3, error):
            case Restart(delay_s): ...
            case Wait(delay_s): ...
            case Raise(error): raise error
    """

    def __init__(
        self, config: FailureConfig, now: Callable[[], float], *, restart_environment_faults: bool = False
    ) -> None:
        """Args:
        now: Monotonic clock in seconds.
        restart_environment_faults: Also replace workers whose environment failed for good (`env.on_error=restart`).
        """
        self._config = config
        self._now = now
        self._restart_environment_faults = restart_environment_faults
        self._restarts: dict[tuple[str, int], deque[float]] = {}
        self._unavailable_since: dict[tuple[str, int], float] = {}
        self.restarts_total: dict[str, int] = {}

    def decide(self, role: str, index: int, error: BaseException) -> Decision:
        """What to do about a worker's error, and count it. The error may be Ray's wrapper; its cause is looked at."""
        now_s = self._now()
        worker = (role, index)
        if any(c.__name__ == _UNAVAILABLE for c in type(error).__mro__):
            since_s = self._unavailable_since.setdefault(worker, now_s)
            if now_s - since_s < LONGEST_BACKOFF_S:
                return Wait(max(0.1, self._config.backoff_s))
        self._unavailable_since.pop(worker, None)
        final = self._final_error(error)
        if final is not None:
            return Raise(final)
        restarts = self._restarts.setdefault(worker, deque())
        while restarts and now_s - restarts[0] > self._config.restart_window_s:
            restarts.popleft()
        if len(restarts) >= self._config.max_restarts:
            return Raise(WorkerFailure(role, index, len(restarts) + 1, describe(error)))
        delay_s = 0.0
        if restarts:
            delay_s = min(LONGEST_BACKOFF_S, self._config.backoff_s * 2 ** (len(restarts) - 1))
        restarts.append(now_s)
        self.restarts_total[role] = self.restarts_total.get(role, 0) + 1
        return Restart(delay_s, attempt=len(restarts))

    def is_well(self, role: str, index: int) -> None:
        """Note that the worker answered: an earlier spell out of reach is over."""
        self._unavailable_since.pop((role, index), None)

    def _final_error(self, error: BaseException) -> SrlError | None:
        cause = root_cause(error)
        if isinstance(cause, _FINAL):
            return cause
        if isinstance(cause, EnvironmentFault) and not self._restart_environment_faults:
            return cause
        return None


def root_cause(error: BaseException) -> BaseException:
    """The exception a worker raised, out of Ray's wrapper."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error


def describe(error: BaseException) -> str:
    """The original traceback as text: Ray's wrapper carries it in its own text, others are formatted here."""
    if getattr(error, "traceback_str", None):
        return str(error)
    if error.__traceback__ is not None:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    return f"{type(error).__name__}: {error}"
