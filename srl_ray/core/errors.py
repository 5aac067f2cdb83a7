"""The project's exceptions. They are dataclasses whose fields survive a trip through Ray.

SrlError
├── ConfigError            a key, a value or a combination that cannot work; found before anything starts
├── PlacementError         the cluster cannot hold what was asked, now or ever
├── EnvironmentFault       an environment broke its contract, raised, hung or produced non-finite numbers
├── CheckpointError        a checkpoint is missing, damaged or does not fit
├── NonFiniteError         a loss, a gradient or a weight is NaN or infinite
├── StreamError            a stream or service did not answer within its deadline
└── WorkerFailure          a worker failed for good; carries the original traceback
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class SrlError(Exception):
    """Base of the tree. Subclasses are dataclasses (eq=False); `__str__` is the message a user reads."""

    def __reduce__(self) -> tuple[Callable[..., SrlError], tuple[type[SrlError], dict[str, Any]]]:
        return _rebuild, (type(self), vars(self).copy())


def _rebuild(cls: type[SrlError], fields: dict[str, Any]) -> SrlError:
    error = cls.__new__(cls)
    error.__dict__.update(fields)
    return error


@dataclass(eq=False)
class ConfigError(SrlError):
    """Exit status 2. `message` names the key, the value, what was expected and what to do."""

    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(eq=False)
class PlacementError(SrlError):
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(eq=False)
class EnvironmentFault(SrlError):
    """Says which environment, where and what."""

    env_id: str
    message: str
    env_index: int | None = None
    traceback: str = ""

    def __str__(self) -> str:
        where = f"environment {self.env_id!r}" + ("" if self.env_index is None else f" (index {self.env_index})")
        return f"{where}: {self.message}" + (f"\n{self.traceback}" if self.traceback else "")


@dataclass(eq=False)
class CheckpointError(SrlError):
    path: str
    message: str

    def __str__(self) -> str:
        return f"checkpoint {self.path}: {self.message}"


@dataclass(eq=False)
class NonFiniteError(SrlError):
    what: str
    policy_version: int

    def __str__(self) -> str:
        return (
            f"{self.what} became NaN or infinite in the update after policy version {self.policy_version}; the weights "
            "were left as they were. Lower algorithm.learning_rate, set algorithm.max_grad_norm, or look for huge "
            "observations or rewards (policy.normalize_obs=true keeps them bounded)."
        )


@dataclass(eq=False)
class StreamError(SrlError):
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(eq=False)
class WorkerFailure(SrlError):
    """A worker failed and the failure policy gave up."""

    role: str
    index: int
    attempts: int
    cause: str

    def __str__(self) -> str:
        tries = f"failed {self.attempts} time(s) and is not restarted again"
        return f"{self.role} {self.index} {tries}. Cause:\n{self.cause}"
