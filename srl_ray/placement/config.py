"""Configuration of placement."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(kw_only=True, slots=True)
class PlacementConfig:
    """Attributes:
    actors_labels: Node labels (key → value) that actor workers need; empty: any node without accelerators.
    trainers_labels: The same for trainer workers and policy workers on accelerators.
    strategy: Ray's placement strategy inside a pool: PACK | SPREAD.
    keep_cpu_pools_off_accelerators: Put workers without GPUs on nodes without GPUs when the cluster has such nodes.
    """

    actors_labels: dict[str, str] = field(default_factory=dict)
    trainers_labels: dict[str, str] = field(default_factory=dict)
    strategy: str = "PACK"
    keep_cpu_pools_off_accelerators: bool = True

    def __post_init__(self) -> None:
        if self.strategy not in ("PACK", "SPREAD"):
            raise ValueError(f"placement.strategy must be PACK or SPREAD, got {self.strategy!r}")


@dataclass(kw_only=True, slots=True)
class ClusterConfig:
    """Which Ray to use.

    Attributes:
        address: auto: a Ray initialised in this process, else RAY_ADDRESS or the job's cluster, else a fresh local
            Ray; local: a fresh local Ray; otherwise the address of a cluster.
        num_cpus: CPUs of a fresh local Ray; null: the cores this process may use.
        num_gpus: GPUs of a fresh local Ray; null: what Ray detects.
        object_store_bytes: Object store of a fresh local Ray; null: a quarter of free memory, at most 2 GiB.
        temp_dir: Folder for the temporary files of a fresh local Ray; null: RAY_TMPDIR or the system's. A short path.
        placement_timeout_s: How long to wait for the placement group.
        start_timeout_s: How long workers may take to set up; three times as long with policy.compile.
    """

    address: str = "auto"
    num_cpus: int | None = None
    num_gpus: int | None = None
    object_store_bytes: int | None = None
    temp_dir: str | None = None
    placement_timeout_s: float = 60.0
    start_timeout_s: float = 180.0

    def __post_init__(self) -> None:
        if not self.address:
            raise ValueError("cluster.address must be auto, local or the address of a cluster, got ''")
        for name, least in (("num_cpus", 1), ("num_gpus", 0), ("object_store_bytes", 80_000_000)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"cluster.{name} must be >= {least} or null, got {value}")
        for name in ("placement_timeout_s", "start_timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"cluster.{name} must be > 0, got {getattr(self, name)}")
