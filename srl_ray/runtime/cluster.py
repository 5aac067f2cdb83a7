"""Which Ray a run uses: found or started here, said out loud, and left as it was found."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from srl_ray.core.errors import ConfigError, StreamError
from srl_ray.placement.config import ClusterConfig
from srl_ray.placement.plan import NodeInfo

_LOG = logging.getLogger(__name__)
_PROBE_TIMEOUT_S = 10.0
_MIN_STORE_BYTES = 80 * 2**20
_MAX_STORE_BYTES = 2 * 2**30
_LONGEST_TEMP_PATH = 22
"""A socket's path has at most 107 bytes; our folder's name takes 20 of them and what Ray puts below it up to 64."""
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""Connection preface and an empty settings frame; every gRPC server answers with its own settings frame (type 4)."""
_IN_A_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"


@dataclass(frozen=True)
class ClusterHandle:
    """The connected Ray.

    Attributes:
        address: GCS address.
        kind: `local` (started here, stopped at the end) or `existing` (left running).
        found_by: In words, where the address came from.
        log_dir: Session logs of a local Ray, which hold what workers print; None elsewhere.
    """

    address: str
    kind: str
    found_by: str
    log_dir: Path | None = None

    def __str__(self) -> str:
        return f"{self.kind} Ray at {self.address} ({self.found_by})"


@contextlib.contextmanager
def connect(
    config: ClusterConfig, *, namespace: str | None = None, keep_logs_in: Path | None = None
) -> Iterator[ClusterHandle]:
    """Be connected to a Ray for the length of the block.

    `auto` takes a Ray initialised in this process, else RAY_ADDRESS or the job's cluster, else starts a local one (it
    never follows the note of a "current cluster" that may be long gone). `local` always starts one. Only a Ray that was
    started or connected to here is shut down or disconnected at the end; SIGTERM's handler is put back after `ray.init`
    replaced it.

    Blocks for the start (3–7 s locally) or, on an address where nothing answers, at most a minute.

    Args:
        namespace: Namespace of this connection; named actors should still name theirs.
        keep_logs_in: Folder that gets the workers' output files of a local Ray before its temporary folder is removed.

    Raises:
        StreamError: nothing (or no Ray) answers at the address; says where the address came from.
        ConfigError: `local` inside a submitted Ray job, or while Ray is initialised; an address of the Ray client.

    Example:
        with connect(config.cluster, namespace=run_id) as cluster:
            print(f"using {cluster}")
    """
    address, found_by = _resolve(config)
    if address == "here":
        _warn_if_smaller(config)
        yield ClusterHandle(str(ray.get_runtime_context().gcs_address), "existing", found_by)
        return
    with _sigterm_handler_restored():
        if address == "local":
            with _local_ray(config, namespace, keep_logs_in, found_by) as handle:
                yield handle
        else:
            with _existing_ray(address, namespace, found_by) as handle:
                yield handle


def _resolve(config: ClusterConfig) -> tuple[str, str]:
    """`here`, `local` or an address, and where that came from."""
    asked = config.address
    if asked == "local":
        if _IN_A_JOB in os.environ:
            raise ConfigError(
                "cluster.address=local inside a submitted Ray job would start a second Ray on the job's node and "
                "ignore the cluster. Use cluster.address=auto, or run without `ray job submit`."
            )
        if ray.is_initialized():
            raise ConfigError(
                "cluster.address=local asks for a fresh Ray, but Ray is already initialised in this process. Call "
                "ray.shutdown() first, or use cluster.address=auto to take it."
            )
        return "local", "cluster.address=local"
    if asked != "auto":
        if ray.is_initialized() and not _same_address(asked, str(ray.get_runtime_context().gcs_address)):
            raise ConfigError(
                f"cluster.address={asked}, but this process is already connected to "
                f"{ray.get_runtime_context().gcs_address}. Call ray.shutdown() first, or use cluster.address=auto."
            )
        return ("here" if ray.is_initialized() else asked), f"cluster.address={asked}"
    if ray.is_initialized():
        return "here", "initialised in this process before"
    if os.environ.get("RAY_ADDRESS"):
        source = "the job's cluster" if _IN_A_JOB in os.environ else "environment variable RAY_ADDRESS"
        if os.environ["RAY_ADDRESS"] == "local":
            return "local", source
        return os.environ["RAY_ADDRESS"], source
    return "local", "cluster.address=auto found no other Ray"


def _same_address(asked: str, current: str) -> bool:
    try:
        a, b = _host_and_port(asked), _host_and_port(current)
        return a[1] == b[1] and (a[0] == b[0] or socket.gethostbyname(a[0]) in (b[0], "127.0.0.1"))
    except (ValueError, OSError):
        return asked == current


def _warn_if_smaller(config: ClusterConfig) -> None:
    total = ray.cluster_resources()
    for key, asked, unit in (("num_cpus", config.num_cpus, "CPU"), ("num_gpus", config.num_gpus, "GPU")):
        if asked is not None and total.get(unit, 0.0) < asked:
            _LOG.warning(
                "cluster.%s=%d asks for more than the running Ray has (%g); it is used as it is. Call ray.shutdown() "
                "first to have one started with that many.", key, asked, total.get(unit, 0.0),
            )  # fmt: skip


# -- an existing cluster ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _existing_ray(address: str, namespace: str | None, found_by: str) -> Iterator[ClusterHandle]:
    if "://" in address:
        raise ConfigError(
            f"{address} (from {found_by}) is an address of a dashboard or of the Ray client; neither can carry a run. "
            "Use `ray job submit -- python -m srl_ray.train ...`, or start the command on a node of the cluster with "
            "cluster.address=<head>:6379."
        )
    if address != "auto":
        _probe(address, found_by)
    try:
        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level=logging.WARNING)
    except (ConnectionError, ray.exceptions.RayError, RuntimeError, ValueError) as error:
        ray.shutdown()
        raise StreamError(_unreachable(address, found_by, str(error).strip().split("\n")[0])) from error
    try:
        yield ClusterHandle(str(ray.get_runtime_context().gcs_address), "existing", found_by)
    finally:
        ray.shutdown()


def _probe(address: str, found_by: str) -> None:
    """Knock at the port first: `ray.init` itself retries a dead address for minutes."""
    try:
        host, port = _host_and_port(address)
    except ValueError as error:
        raise ConfigError(
            f"{address!r} (from {found_by}) is no address; expected host:port, for example 10.0.0.1:6379."
        ) from error
    try:
        with socket.create_connection((host, port), timeout=_PROBE_TIMEOUT_S) as connection:
            if os.environ.get("RAY_USE_TLS", "0") in ("0", "false", ""):
                connection.sendall(_HTTP2_HELLO)
                if connection.recv(4)[3:4] != b"\x04":
                    raise StreamError(_unreachable(address, found_by, "something else than Ray listens there"))
    except OSError as error:
        raise StreamError(_unreachable(address, found_by, str(error))) from error


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host:
        raise ValueError(address)
    return host.strip("[]"), int(port)


def _unreachable(address: str, found_by: str, why: str) -> str:
    return (
        f"no Ray answers at {address} (from {found_by}): {why}. Start that cluster, correct the address, or use "
        "cluster.address=local for a Ray of this run's own."
    )


# -- a fresh local Ray -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _local_ray(
    config: ClusterConfig, namespace: str | None, keep_logs_in: Path | None, found_by: str
) -> Iterator[ClusterHandle]:
    temp_dir = _make_temp_dir(config.temp_dir)
    store_bytes = config.object_store_bytes or default_object_store_bytes()
    log_dir: Path | None = None
    try:
        context: Any = ray.init(
            address="local",
            num_cpus=config.num_cpus or usable_cpus(),
            num_gpus=config.num_gpus,
            object_store_memory=store_bytes,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            namespace=namespace,
            _temp_dir=str(temp_dir),
        )
        log_dir = Path(str(context.address_info["session_dir"])) / "logs"
        yield ClusterHandle(str(context.address_info["gcs_address"]), "local", found_by, log_dir)
    finally:
        ray.shutdown()
        if keep_logs_in is not None and log_dir is not None:
            _keep_worker_output(log_dir, keep_logs_in)
        _remove(temp_dir)


def _remove(folder: Path) -> None:
    """Remove a folder in which processes that are just ending may still write."""
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)


def usable_cpus() -> int:
    """Cores this process may use: affinity (Slurm, taskset) and the container's quota, never the host's count."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, math.ceil(int(quota) / int(period)))
    with contextlib.suppress(OSError, ValueError):
        quota_us = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text())
        if quota_us > 0:
            period_us = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text())
            cores = min(cores, math.ceil(quota_us / period_us))
    return max(1, cores)


def default_object_store_bytes(shared_memory: Path = Path("/dev/shm")) -> int:
    """A quarter of free memory, at most 2 GiB and at most what /dev/shm takes; says so when that is little."""
    wanted = int(min(_MAX_STORE_BYTES, free_memory_bytes() / 4))
    wanted = max(_MIN_STORE_BYTES, wanted)
    if not shared_memory.is_dir():
        return wanted
    room = int(shutil.disk_usage(shared_memory).free * 0.9)
    if room >= wanted:
        return wanted
    store = max(_MIN_STORE_BYTES, room)
    _LOG.warning(
        "%s has only %d MiB free, %d MiB were wanted for the object store; using %d MiB. In a container start it "
        "with a larger one (docker run --shm-size=2g), or set cluster.object_store_bytes.",
        shared_memory, room >> 20, wanted >> 20, store >> 20,
    )  # fmt: skip
    return store


def expected_local_nodes(config: ClusterConfig) -> list[NodeInfo] | None:
    """The node that a fresh local Ray would have, for planning without starting anything.

    Returns:
        None when the run would use an existing Ray: connect, then ask `placement.groups.cluster_nodes`.
    """
    address, _ = _resolve(config)
    if address != "local":
        return None
    gpus = config.num_gpus if config.num_gpus is not None else visible_gpus()
    return [NodeInfo("local", float(config.num_cpus or usable_cpus()), float(gpus), name=socket.gethostname())]


def visible_gpus() -> int:
    """NVIDIA devices of this machine, as far as CUDA_VISIBLE_DEVICES lets them be seen."""
    found = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found if chosen is None else min(found, len([d for d in chosen.split(",") if d.strip() not in ("", "-1")]))


def free_memory_bytes() -> int:
    """Memory that may still be taken: the host's available memory, less where a container's limit is lower."""
    free = 4 * 2**30
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError):
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            free = min(free, int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    return max(0, free)


def _make_temp_dir(asked: str | None) -> Path:
    """A folder named for this process; folders of processes that were killed are removed on the way."""
    base = Path(asked or os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()).absolute()
    if len(str(base)) > _LONGEST_TEMP_PATH:
        if asked or os.environ.get("RAY_TMPDIR"):
            _LOG.warning("%s is too long a path for Ray's sockets; using /tmp instead", base)
        base = Path("/tmp")
    base.mkdir(parents=True, exist_ok=True)
    for left in base.glob("srl[0-9]*_*"):
        pid = left.name[3:].split("_")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            with contextlib.suppress(OSError):
                if left.stat().st_uid == os.getuid():
                    shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"srl{os.getpid()}_", dir=base))


def _keep_worker_output(log_dir: Path, target: Path, most_bytes: int = 20 * 2**20) -> None:
    """Copy what workers printed, newest part of long files, before the session folder goes."""
    target.mkdir(parents=True, exist_ok=True)
    for path in [*log_dir.glob("worker-*.out"), *log_dir.glob("worker-*.err")]:
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            if size:
                with path.open("rb") as source, (target / path.name).open("wb") as copy:
                    source.seek(max(0, size - most_bytes))
                    shutil.copyfileobj(source, copy)


@contextlib.contextmanager
def _sigterm_handler_restored() -> Iterator[None]:
    """`ray.init` installs its own SIGTERM handler; put the earlier one back when the block ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: Any = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
