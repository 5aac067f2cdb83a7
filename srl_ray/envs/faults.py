"""What blocks of environments that users write have in common about faults: counting, giving up, building, closing."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from srl_ray.core.errors import EnvironmentFault

logger = logging.getLogger(__name__)

EnvT = TypeVar("EnvT")


class TooSlow(Exception):
    """A step or reset took longer than allowed."""


class Faults:
    """Counts the faults of a block's environments, and ends the run where they are not forgiven.

    Args:
        env_id: Name for messages.
        num_envs: E.
        on_error: restart | stop.
        on_nonfinite: stop | drop.
        max_faults: Faults in a row of one environment, without a finished episode between, that are still answered.

    Attributes:
        total: Faults since the block was built; one that hits several environments at once counts once.
    """

    def __init__(self, env_id: str, num_envs: int, *, on_error: str, on_nonfinite: str, max_faults: int) -> None:
        self.total = 0
        self._env_id = env_id
        self._on_error = on_error
        self._on_nonfinite = on_nonfinite
        self._max_faults = max_faults
        self._in_a_row = np.zeros(num_envs, np.int64)

    def add_error(self, envs: Sequence[int], error: BaseException) -> None:
        """Count an exception that environments `envs` raised, or a call that took too long.

        Raises:
            EnvironmentFault: on_error=stop, or there were too many in a row.
        """
        what, trace = describe_error(error), _trace_of(error)
        if self._on_error == "stop":
            raise EnvironmentFault(self._env_id, what, env_index=_only(envs), traceback=trace) from error
        self._add(envs, what, trace)

    def add_nonfinite(self, e: int, text: str, step: int) -> None:
        """Count a NaN or an infinity of environment e at a step of its episode.

        Raises:
            EnvironmentFault: on_nonfinite=stop, or there were too many faults in a row.
        """
        text = f"{text} at step {step} of the episode"
        if self._on_nonfinite == "stop":
            raise EnvironmentFault(
                self._env_id, f"{text}. env.on_nonfinite=drop discards such episodes instead.", env_index=e
            )
        self._add([e], text, "")

    def finished(self, envs: Any) -> None:
        """Environments (an index, several, or a mask) came to the end of an episode."""
        self._in_a_row[envs] = 0

    def _add(self, envs: Sequence[int], what: str, trace: str) -> None:
        self.total += 1
        self._in_a_row[list(envs)] += 1
        worst, only = int(self._in_a_row[list(envs)].max()), _only(envs)
        if worst > self._max_faults:
            raise EnvironmentFault(
                self._env_id,
                f"failed {worst} times without finishing an episode between (env.max_faults={self._max_faults}); "
                f"the last time: {what}",
                env_index=only,
                traceback=trace,
            )
        if self.total <= 3 or self.total % 100 == 0:
            which = "" if only is None else f" (index {only})"
            logger.warning(
                "environment %r%s: %s; what was played is discarded (fault %d of this block)\n%s",
                self._env_id, which, what, self.total, trace,
            )  # fmt: skip


def build_env(make_env: Callable[[], EnvT], env_id: str, e: int | None = None) -> EnvT:
    """What `make_env` makes.

    Raises:
        EnvironmentFault: it raised.
    """
    try:
        return make_env()
    except EnvironmentFault:
        raise
    except Exception as error:
        text = f"building it failed: {describe_error(error)}"
        raise EnvironmentFault(env_id, text, env_index=e, traceback=_trace_of(error)) from error


def close_env(env: Any, env_id: str) -> None:
    """Close an environment; an error while closing is logged."""
    try:
        env.close()
    except Exception:
        logger.warning("environment %r: close() raised", env_id, exc_info=True)


def check_time(what: str, duration_s: float, timeout_s: float) -> None:
    """Raise TooSlow if a call ("step", "reset") took longer than allowed."""
    if duration_s > timeout_s:
        raise TooSlow(f"{what} took {duration_s:.1f} s (env.step_timeout_s={timeout_s:g})")


def describe_error(error: BaseException) -> str:
    return str(error) if isinstance(error, TooSlow) else f"{type(error).__name__}: {error}"


def _trace_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _only(envs: Sequence[int]) -> int | None:
    return envs[0] if len(envs) == 1 else None
