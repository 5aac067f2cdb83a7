"""Configuration of a run as a whole: where it writes, how often, when it stops, how it recovers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class RunConfig:
    """Attributes:
    dir: Run directory; empty: runs/<experiment>/<time>.
    seed: Base seed; every environment, worker and network derives its own from it.
    resume: null | auto | PATH of a run directory or a checkpoint. auto takes run.dir, else runs/<experiment>/latest.
    deterministic: Same seed, same numbers (needs trainers.max_staleness=0, inline inference, one trainer).
    log_interval_s: Seconds between console lines and metric records; 0: one per update.
    checkpoint_interval_s: Seconds between checkpoints; one more is written at the end.
    keep_checkpoints: Newest checkpoints to keep.
    tensorboard: Also write TensorBoard events.
    video: Render a video of an episode at the end, for environments that can be drawn.
    plots: Draw the curves at the end.
    """

    dir: str = ""
    seed: int = 1
    resume: str | None = None
    deterministic: bool = False
    log_interval_s: float = 10.0
    checkpoint_interval_s: float = 120.0
    keep_checkpoints: int = 3
    tensorboard: bool = True
    video: bool = True
    plots: bool = True

    def __post_init__(self) -> None:
        if self.keep_checkpoints < 1:
            raise ValueError(f"run.keep_checkpoints must be >= 1, got {self.keep_checkpoints}")
        if self.log_interval_s < 0 or self.checkpoint_interval_s <= 0:
            raise ValueError(
                "run.log_interval_s must be >= 0 and run.checkpoint_interval_s > 0, got "
                f"{self.log_interval_s} and {self.checkpoint_interval_s}"
            )


@dataclass(kw_only=True, slots=True)
class StopConfig:
    """The run ends with status 0 when any of these is reached.

    Attributes:
        env_steps: Environment steps, summed over all environments.
        seconds: Wall-clock of this process since training started.
        episode_return: Mean return of the last 100 episodes; null: no goal.
    """

    env_steps: int | None = None
    seconds: float | None = None
    episode_return: float | None = None

    def __post_init__(self) -> None:
        for name in ("env_steps", "seconds"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"stop.{name} must be > 0 or null, got {value}")


@dataclass(kw_only=True, slots=True)
class FailureConfig:
    """Attributes:
    max_restarts: Replacements of one worker within restart_window_s before the run ends.
    restart_window_s: Length of that window.
    backoff_s: Wait before the second replacement; doubles with each further one, up to 30 s.
    """

    max_restarts: int = 3
    restart_window_s: float = 300.0
    backoff_s: float = 1.0

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise ValueError(f"failure.max_restarts must be >= 0, got {self.max_restarts}")
        if self.restart_window_s <= 0 or self.backoff_s < 0:
            raise ValueError(
                "failure.restart_window_s must be > 0 and failure.backoff_s >= 0, got "
                f"{self.restart_window_s} and {self.backoff_s}"
            )
