"""Configuration of actor workers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class ActorsConfig:
    """Who steps the environments and how their experience is cut.

    Attributes:
        count: Actor workers.
        ring_size: Blocks per worker; while one waits for actions another is stepped.
        inference: auto | inline | remote. inline: the worker holds a copy of the policy; remote: policy workers
            answer in batches; auto: remote when there are policy workers, else inline.
        sample_steps: Trained rows of a chunk.
        burn_in: Rows before them that only warm the recurrent state up.
        bootstrap: Rows after them whose value closes the returns.
        cpus: CPU share of a worker; null lets the placement plan choose.
        inference_timeout_s: A reply later than this is asked for again.
        weights_timeout_s: How long a worker waits for weights it was told to install.
    """

    count: int = 1
    ring_size: int = 1
    inference: str = "auto"
    sample_steps: int = 128
    burn_in: int = 0
    bootstrap: int = 1
    cpus: float | None = None
    inference_timeout_s: float = 30.0
    weights_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("count", "ring_size", "sample_steps", "bootstrap"):
            if getattr(self, name) < 1:
                raise ValueError(f"actors.{name} must be >= 1, got {getattr(self, name)}")
        if self.burn_in < 0:
            raise ValueError(f"actors.burn_in must be >= 0, got {self.burn_in}")
        if self.inference not in ("auto", "inline", "remote"):
            raise ValueError(f"actors.inference must be auto, inline or remote, got {self.inference!r}")
        if self.burn_in + self.bootstrap > self.sample_steps:
            raise ValueError(
                f"actors.burn_in + actors.bootstrap must be <= actors.sample_steps, got {self.burn_in} + "
                f"{self.bootstrap} > {self.sample_steps}: rows carried into the next chunk must come from this one"
            )
