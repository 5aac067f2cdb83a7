"""How many faults of its environments a block answers before the run ends."""

from __future__ import annotations

import logging

from srl_ray.core.errors import EnvironmentFault

logger = logging.getLogger(__name__)


class Faults:
    """Counts faults per environment.

    Args:
        env_id: Name for messages.
        num_envs: E.
        max_faults: Faults in a row of one environment, without a finished episode between, that are still answered.

    Attributes:
        total: Faults of all environments.
    """

    def __init__(self, env_id: str, num_envs: int, max_faults: int) -> None:
        self.total = 0
        self._env_id = env_id
        self._max_faults = max_faults
        self._in_a_row = [0] * num_envs

    def add(self, e: int, what: str, trace: str = "") -> None:
        """Count a fault of environment e.

        Raises:
            EnvironmentFault: there were too many in a row.
        """
        self.total += 1
        self._in_a_row[e] += 1
        if self._in_a_row[e] > self._max_faults:
            raise EnvironmentFault(
                self._env_id,
                f"failed {self._in_a_row[e]} times without finishing an episode between "
                f"(env.max_faults={self._max_faults}); the last time: {what}",
                env_index=e,
                traceback=trace,
            )
        if self.total <= 3 or self.total % 100 == 0:
            logger.warning(
                "environment %r (index %d): %s; its episode is discarded (fault %d of this block)\n%s",
                self._env_id, e, what, self.total, trace,
            )  # fmt: skip

    def finished(self, e: int) -> None:
        """Environment e came to the end of an episode."""
        self._in_a_row[e] = 0
