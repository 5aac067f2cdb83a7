"""Configuration of actor workers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class ActorsConfig:
    """Who steps the environments and how their experience is cut.

    Attributes:
        count: Actor workers.
        ring_size: Blocks of env.envs_per_block environments per worker; while one waits for actions another is stepped.
            auto: the run begins with a second of measuring, and each worker's env.envs_per_block environments (in all)
            are split into as many blocks as it takes to hide the inference; 1 with inference=inline.
        inference: auto | inline | remote. inline: the worker holds a copy of the policy; remote: policy workers
            answer in batches; auto: remote when there are policy workers, else inline.
        sample_steps: Trained rows of a chunk.
        burn_in: Rows before them that only warm the recurrent state up.
        bootstrap: Rows after them whose value closes the returns.
        stagger_steps: Truncate every environment's first episode after a random number of steps up to this, about an
            episode's length, so that episodes of equal length do not end all at once ever after. 0: do not. These
            episodes are trained on, counted and reported like any other.
        cpus: CPU share of a worker; null lets the placement plan choose.
        gpus: GPU share of a worker, in (0, 1] or 0: for inline inference and for environments that compute there (JAX).
        inference_timeout_s: A reply later than this is asked for again.
        weights_timeout_s: How long a worker waits for weights it was told to install.
    """

    count: int = 1
    ring_size: int | str = 1
    inference: str = "auto"
    sample_steps: int = 128
    burn_in: int = 0
    bootstrap: int = 1
    stagger_steps: int = 0
    cpus: float | None = None
    gpus: float = 0.0
    inference_timeout_s: float = 30.0
    weights_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if isinstance(self.ring_size, str) and self.ring_size != "auto":
            raise ValueError(f"actors.ring_size must be a number or auto, got {self.ring_size!r}")
        for name in ("count", "ring", "sample_steps", "bootstrap"):
            if getattr(self, name) < 1:
                key = "ring_size" if name == "ring" else name
                raise ValueError(f"actors.{key} must be >= 1, got {getattr(self, name)}")
        if self.sample_steps < 2:
            raise ValueError(
                "actors.sample_steps must be >= 2, got 1: an episode's end and the next one's start are 2 rows"
            )
        if not 0.0 <= self.gpus <= 1.0:
            raise ValueError(f"actors.gpus must be in [0, 1], got {self.gpus}")
        for name in ("burn_in", "stagger_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"actors.{name} must be >= 0, got {getattr(self, name)}")
        if self.inference not in ("auto", "inline", "remote"):
            raise ValueError(f"actors.inference must be auto, inline or remote, got {self.inference!r}")
        if self.burn_in + self.bootstrap > self.sample_steps:
            raise ValueError(
                f"actors.burn_in + actors.bootstrap must be <= actors.sample_steps, got {self.burn_in} + "
                f"{self.bootstrap} > {self.sample_steps}: rows carried into the next chunk must come from this one"
            )

    @property
    def ring(self) -> int:
        """Blocks per worker: ring_size, or 1 as long as it has not been chosen."""
        return 1 if isinstance(self.ring_size, str) else self.ring_size
