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
    min_batch_rows: A batch waits for this many rows, but not longer than max_wait_s.
    max_wait_s: How long the oldest request waits for a batch of min_batch_rows.
    batches_in_flight: Batches that the policy's device has at a time: the next one is launched before the answer to
        the last was copied back. null: 2 on a device that works by itself (a GPU, or a custom policy with `launch`),
        1 on the CPU, where more has no effect.
    transport: auto | ray | shared_memory: how requests travel. auto: through shared memory where actor worker and
        policy worker are on one node, else as Ray calls; shared_memory refuses to run where it is impossible.
    """

    count: int = 0
    cpus: float | None = None
    gpus: float = 0.0
    max_batch_rows: int = 4096
    min_batch_rows: int = 1
    max_wait_s: float = 0.002
    batches_in_flight: int | None = None
    transport: str = "auto"

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"policy_workers.count must be >= 0, got {self.count}")
        if not 0.0 <= self.gpus <= 1.0:
            raise ValueError(f"policy_workers.gpus must be in [0, 1], got {self.gpus}")
        if self.max_batch_rows < 1:
            raise ValueError(f"policy_workers.max_batch_rows must be >= 1, got {self.max_batch_rows}")
        if not 1 <= self.min_batch_rows <= self.max_batch_rows:
            raise ValueError(
                f"policy_workers.min_batch_rows must be in [1, policy_workers.max_batch_rows={self.max_batch_rows}], "
                f"got {self.min_batch_rows}"
            )
        if self.max_wait_s < 0:
            raise ValueError(f"policy_workers.max_wait_s must be >= 0, got {self.max_wait_s}")
        if self.batches_in_flight is not None and self.batches_in_flight < 1:
            raise ValueError(f"policy_workers.batches_in_flight must be >= 1 or null, got {self.batches_in_flight}")
        if self.transport not in ("auto", "ray", "shared_memory"):
            raise ValueError(f"policy_workers.transport must be auto, ray or shared_memory, got {self.transport!r}")
