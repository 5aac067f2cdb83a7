"""Configuration of policy workers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class PolicyWorkersConfig:
    """Attributes:
    count: Policy workers; 0 means that actor workers infer inline.
    cpus: CPU share of a worker; null lets the placement plan choose.
    gpus: GPU share of a worker, in (0, 1] or 0.
    max_batch_rows: Requests are joined up to this many rows.
    """

    count: int = 0
    cpus: float | None = None
    gpus: float = 0.0
    max_batch_rows: int = 4096

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"policy_workers.count must be >= 0, got {self.count}")
        if not 0.0 <= self.gpus <= 1.0:
            raise ValueError(f"policy_workers.gpus must be in [0, 1], got {self.gpus}")
        if self.max_batch_rows < 1:
            raise ValueError(f"policy_workers.max_batch_rows must be >= 1, got {self.max_batch_rows}")
