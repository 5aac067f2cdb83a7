"""Configuration of trainer workers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class TrainersConfig:
    """Attributes:
    count: Trainer workers; more than one train one policy together, each on its share of a batch.
    batch_chunks: Chunks per update over all trainer workers, B.
    reuse: Updates that each chunk takes part in.
    max_staleness: S, the largest allowed trainer version − oldest version among a chunk's trained rows. 0 is
        synchronous training; null switches the gate off.
    buffer_chunks: Capacity of each sample buffer in chunks; null: chosen from batch_chunks.
    buffer_bytes: Capacity of each sample buffer in bytes; null: 30 % of the object store.
    prefetch: Assemble the next batch, and copy it to the accelerator, while one trains; null: on an accelerator only
        (on a CPU the actor workers want the core that this takes).
    cpus: CPU share of a worker; null lets the placement plan choose. Above 1 it is also its number of math threads.
    gpus: GPUs of a worker, in (0, 1] or 0.
    bucket_bytes: Gradients are averaged over trainer workers in pieces of at least this size, the last layers' first,
        each as soon as backward has finished it. 0 averages every parameter by itself.
    collective_timeout_s: Deadline of a gradient reduction.
    """

    count: int = 1
    batch_chunks: int = 8
    reuse: int = 1
    max_staleness: int | None = 1
    buffer_chunks: int | None = None
    buffer_bytes: int | None = None
    prefetch: bool | None = None
    cpus: float | None = None
    gpus: float = 0.0
    bucket_bytes: int = 2**20
    collective_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        for name in ("count", "batch_chunks", "reuse"):
            if getattr(self, name) < 1:
                raise ValueError(f"trainers.{name} must be >= 1, got {getattr(self, name)}")
        if self.batch_chunks % self.count:
            raise ValueError(
                f"trainers.batch_chunks must be a multiple of trainers.count, got {self.batch_chunks} and {self.count}"
            )
        if self.max_staleness is not None and self.max_staleness < 0:
            raise ValueError(f"trainers.max_staleness must be >= 0 or null, got {self.max_staleness}")
        if self.max_staleness is not None and self.reuse > self.max_staleness + 1:
            raise ValueError(
                f"trainers.reuse must be <= trainers.max_staleness + 1, got {self.reuse} > {self.max_staleness} + 1: "
                "the last use of a chunk would already be too stale"
            )
        if self.bucket_bytes < 0:
            raise ValueError(f"trainers.bucket_bytes must be >= 0, got {self.bucket_bytes}")
        if not 0.0 <= self.gpus <= 1.0:
            raise ValueError(f"trainers.gpus must be in [0, 1], got {self.gpus}")
