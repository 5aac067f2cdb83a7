"""The parameter service: a named Ray actor around the store. Everything here runs in one asyncio loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorAlreadyExistsError, ActorDiedError, GetTimeoutError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from srl_ray.core.errors import StreamError
from srl_ray.param_server.files import IndexRecord, ParameterFiles
from srl_ray.param_server.store import NOTHING, Entry, ParameterStore, Stamp
from srl_ray.param_server.weights import FlatWeights

SERVICE_NAME = "parameter_service"
_MAX_CONCURRENCY = 20_000
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Published:
    """A version, as `wait_newer` and `latest` answer it.

    Attributes:
        weights: FlatWeights; an object ref of them, owned by the service, unless they are small (nested: fetch it with
            `ray.get`).
    """

    epoch: int
    version: int
    weights: Any
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def stamp(self) -> Stamp:
        return self.epoch, self.version


@dataclass(frozen=True)
class PublishReply:
    """accepted=False: an older epoch or version than `newest`; nothing was stored."""

    accepted: bool
    newest: Stamp


@dataclass(frozen=True)
class VersionInfo:
    """One line of `versions()`: no weights, for choosing opponents or showing what exists."""

    epoch: int
    version: int
    tags: tuple[str, ...]
    metadata: dict[str, Any]
    means: dict[str, tuple[float, int]]


class ParameterService:
    """Holds the versions of all policies of a run; one per run, owned by the driver. An asyncio actor.

    The service puts weights into the object store itself, so that they outlive the trainer that made them. Tagged
    versions and the newest K are on disk; a restarted service reads them back. Untagged versions are written at most
    every `write_interval_s`, newest first: a fast trainer does not turn into a disk benchmark.

    consumes:      publish()
    produces:      Published answers to wait_newer(), latest(), get()
    waits for:     nothing but a caller's own deadline
    unblocked by:  publish() wakes all waiters of the policy
    """

    def __init__(
        self,
        directory: str | None,
        run_id: str = "",
        *,
        keep: int = 3,
        write_interval_s: float = 10.0,
        loaded_from_disk: int = 8,
    ) -> None:
        """Read the directory back if there is one. Blocks on the disk.

        Args:
            directory: `<run.dir>/parameters`; None keeps everything in memory only.
            run_id: A directory written by another run id (a run that was resumed) is history: see ParameterFiles.
            keep: Newest untagged versions to hold.
            write_interval_s: Shortest time between two writes of untagged versions of a policy.
            loaded_from_disk: Old tagged versions that may be in memory at once.
        """
        self._store = ParameterStore(keep=keep)
        self._files = ParameterFiles(Path(directory), run_id) if directory else None
        self._write_interval_s = write_interval_s
        self._loaded: OrderedDict[tuple[str, Stamp], Any] = OrderedDict()
        self._loaded_max = loaded_from_disk
        self._changed: dict[str, asyncio.Event] = {}
        self._waiters = 0
        self._putting = ThreadPoolExecutor(1, "put")
        self._disk = ThreadPoolExecutor(1, "disk")
        self._keep = keep
        self._saver: asyncio.Task[None] | None = None
        self._saving = asyncio.Lock()
        self._save_wanted = asyncio.Event()
        self._save_due_s: dict[str, float] = {}
        self._last_save_s: dict[str, float] = {}
        self._on_disk: dict[str, dict[Stamp, IndexRecord]] = {}
        self._disk_error = ""
        if self._files is not None:
            for entry in self._files.read_all():
                self._store.restore(entry)
                self._on_disk.setdefault(entry.policy, {})[entry.stamp] = IndexRecord.of(entry)

    async def publish(
        self,
        policy: str,
        epoch: int,
        version: int,
        weights: FlatWeights,
        tags: tuple[str, ...] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> PublishReply:
        """Store a version and wake everybody who waits for it. Returns once it can be fetched, before it is on disk.

        Args:
            epoch: Generation of the trainer group.
            weights: Pass it at the top level, as a value or as a ref.
        """
        newest = self._store.latest(policy)
        if newest is not None and (epoch, version) < newest.stamp:
            return PublishReply(accepted=False, newest=newest.stamp)
        kept = await self._put(weights)
        outcome = self._store.publish(policy, epoch=epoch, version=version, weights=kept, tags=tags, metadata=metadata)
        if outcome.accepted:
            self._wake(policy)
            self._save_soon(policy, urgent=bool(tags))
        return PublishReply(outcome.accepted, outcome.entry.stamp)

    async def latest(self, policy: str) -> Published | None:
        """The newest version; None when nothing was published yet."""
        return await self.wait_newer(policy, NOTHING, 0.0)

    async def newest(self, policy: str) -> Stamp:
        """Stamp of the newest version, `NOTHING` when there is none; for publishers that make sure of theirs."""
        entry = self._store.newer(policy, NOTHING)
        return NOTHING if entry is None else entry.stamp

    async def wait_newer(self, policy: str, than: Stamp, deadline_s: float) -> Published | None:
        """The newest version as soon as it is newer than `than`; None after `deadline_s`."""
        until = time.monotonic() + deadline_s
        self._waiters += 1
        try:
            while True:
                entry = self._store.newer(policy, than)
                if entry is not None:
                    with contextlib.suppress(_WeightsLost):
                        return await self._published(entry)
                    continue
                changed = self._changed.setdefault(policy, asyncio.Event())
                left_s = until - time.monotonic()
                if left_s <= 0:
                    return None
                try:
                    await asyncio.wait_for(changed.wait(), left_s)
                except asyncio.TimeoutError:
                    return None
        finally:
            self._waiters -= 1

    async def get(self, policy: str, version: int | None = None, tag: str | None = None) -> Published:
        """A version by number or tag; old tagged ones are read from disk.

        Raises:
            LookupError: it does not exist (any more).
        """
        try:
            return await self._published(self._store.get(policy, version=version, tag=tag))
        except _WeightsLost as error:
            raise LookupError(str(error)) from error

    async def tag(self, policy: str, tag: str, version: int | None = None) -> Stamp:
        """Point a tag at a version (default: the newest). It is written to disk before anything else.

        Raises:
            LookupError: no such version.
        """
        entry, _ = self._store.tag(policy, tag, version=version)
        self._save_soon(policy, urgent=True)
        return entry.stamp

    async def untag(self, policy: str, tag: str) -> None:
        """Remove a tag; the version is collected when it is old and has no other tag."""
        self._store.untag(policy, tag)
        self._save_soon(policy, urgent=False)

    async def update_metadata(
        self, policy: str, values: Mapping[str, float], version: int, epoch: int | None = None, count: int = 1
    ) -> bool:
        """Merge numbers (means of `count` observations) into a version; False when it is not kept any more."""
        known = self._store.update_metadata(policy, values, version=version, epoch=epoch, count=count)
        if known:
            self._save_soon(policy, urgent=False)
        return known

    async def versions(self, policy: str) -> list[VersionInfo]:
        """All kept versions, newest first, without weights."""
        return [
            VersionInfo(
                e.epoch,
                e.version,
                tuple(sorted(e.tags)),
                dict(e.metadata),
                {k: (m.mean, m.count) for k, m in e.means.items()},
            )
            for e in self._store.entries(policy)
        ]

    async def status(self) -> dict[str, Any]:
        """Counters and what is held; answers at once, so it also serves as the sign of life."""
        policies = {}
        for policy in self._store.policies():
            entries = self._store.entries(policy)
            policies[policy] = {"newest": entries[0].stamp, "kept": len(entries)}
        return {
            **self._store.counts(),
            "policies": policies,
            "waiters": self._waiters,
            "disk_error": self._disk_error,
            "pid": os.getpid(),
        }

    async def flush(self) -> None:
        """Return once every version that belongs on disk is there (or the disk refused it; see `status`)."""
        for policy in self._store.policies():
            await self._save(policy)

    async def _put(self, weights: FlatWeights) -> Any:
        """One thread puts, so that publications keep their order and the loop goes on answering."""
        if weights.is_small:
            return weights
        return await asyncio.get_running_loop().run_in_executor(self._putting, ray.put, weights)

    async def _published(self, entry: Entry) -> Published:
        weights = entry.weights if entry.weights is not None else await self._load(entry)
        return Published(entry.epoch, entry.version, weights, tuple(sorted(entry.tags)), dict(entry.metadata))

    async def _load(self, entry: Entry) -> Any:
        key = (entry.policy, entry.stamp)
        if key not in self._loaded:
            assert self._files is not None, "weights are only released when they are on disk"
            loop = asyncio.get_running_loop()
            try:
                flat = await loop.run_in_executor(self._disk, self._files.read_weights, *key)
            except (OSError, ValueError) as error:
                self._store.forget(entry)
                _LOG.warning("version %d of policy %s is lost: %s", entry.version, entry.policy, error)
                raise _WeightsLost(f"version {entry.version} of policy {entry.policy!r} is lost: {error}") from error
            self._loaded[key] = await self._put(flat)
        self._loaded.move_to_end(key)
        weights = self._loaded[key]
        while len(self._loaded) > self._loaded_max:
            self._loaded.popitem(last=False)
        return weights

    def _wake(self, policy: str) -> None:
        changed = self._changed.pop(policy, None)
        if changed is not None:
            changed.set()

    def _save_soon(self, policy: str, *, urgent: bool) -> None:
        """Have the disk catch up: at once if `urgent`, else when the policy's write interval is over."""
        if self._files is None:
            return
        due_s = time.monotonic() if urgent else self._last_save_s.get(policy, -1e9) + self._write_interval_s
        self._save_due_s[policy] = min(due_s, self._save_due_s.get(policy, due_s))
        self._save_wanted.set()
        if self._saver is None or self._saver.done():
            self._saver = asyncio.get_running_loop().create_task(self._save_when_due())

    async def _save_when_due(self) -> None:
        """consumes: _save_due_s · produces: files · waits for: the earliest due time, the disk · ends when idle"""
        while self._save_due_s:
            self._save_wanted.clear()
            policy = min(self._save_due_s, key=self._save_due_s.__getitem__)
            left_s = self._save_due_s[policy] - time.monotonic()
            if left_s > 0:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._save_wanted.wait(), left_s)
                continue
            del self._save_due_s[policy]
            await self._save(policy)
            if self._disk_error:
                self._save_due_s.setdefault(policy, time.monotonic() + self._write_interval_s)

    async def _save(self, policy: str) -> None:
        """Write the newest version and the tagged ones that are not on disk, then the index."""
        if self._files is None:
            return
        async with self._saving:
            self._last_save_s[policy] = time.monotonic()
            entries = self._store.entries(policy)
            wanted = [e for e in entries if e is entries[0] or e.tags]
            loop = asyncio.get_running_loop()
            try:
                for entry in wanted:
                    if entry.weights is not None and not self._files.exists(policy, entry.stamp):
                        flat = entry.weights if isinstance(entry.weights, FlatWeights) else await entry.weights
                        await loop.run_in_executor(self._disk, self._files.write_weights, policy, entry.stamp, flat)
                records = self._records(policy, wanted)
                await loop.run_in_executor(self._disk, self._files.write_index, policy, records)
            except OSError as error:
                if str(error) != self._disk_error:
                    _LOG.warning("parameters of policy %s are not written to disk: %s", policy, error)
                self._disk_error = str(error)
                return
            self._disk_error = ""
            for entry in self._store.beyond_newest(policy):
                if self._files.exists(policy, entry.stamp):
                    entry.weights = None

    def _records(self, policy: str, written: list[Entry]) -> list[IndexRecord]:
        """Tagged versions and the newest K that were ever written, of lineages that are still alive."""
        kept = {e.stamp: e for e in self._store.entries(policy)}
        on_disk = self._on_disk.setdefault(policy, {})
        on_disk.update({e.stamp: IndexRecord.of(e) for e in written})
        newest = max(on_disk)
        alive = [s for s in on_disk if s[0] == newest[0] or s[1] < newest[1] or (s in kept and kept[s].tags)]
        recent = sorted(alive, reverse=True)[: self._keep]
        chosen = [s for s in sorted(alive, reverse=True) if s in recent or (s in kept and kept[s].tags)]
        self._on_disk[policy] = {s: IndexRecord.of(kept[s]) if s in kept else on_disk[s] for s in chosen}
        for stamp, record in self._on_disk[policy].items():
            if stamp not in kept:
                record.tags = []
        return list(self._on_disk[policy].values())


class _WeightsLost(Exception):
    """The file of a version that was only on disk is damaged or gone."""


def start_parameter_service(
    namespace: str,
    directory: Path | str | None = None,
    *,
    node_id: str | None = None,
    keep: int = 3,
    write_interval_s: float = 10.0,
    timeout_s: float = 60.0,
) -> Any:
    """Start the named actor `parameter_service` in the run's namespace and wait until it answers.

    The caller owns it: it ends with the caller's process or with `ray.kill(handle)`. After its death call this again
    with the same arguments; it reads `directory` back and clients find it by name.

    Args:
        namespace: The run's namespace (its run id), so that two runs never share parameters.
        directory: `<run.dir>/parameters` on the service's node; None: memory only.
        node_id: Node to run on; None: the caller's node.

    Raises:
        StreamError: the name is taken by a living service, or no answer within `timeout_s`.

    Example:
        service = start_parameter_service(run_id, run_dir / "parameters")
        client = ParameterClient(run_id, "main")
    """
    node_id = node_id or ray.get_runtime_context().get_node_id()
    service_class: Any = ray.remote(ParameterService)
    until = time.monotonic() + timeout_s
    while True:
        try:
            handle = service_class.options(
                name=SERVICE_NAME,
                namespace=namespace,
                num_cpus=0,
                max_restarts=0,
                max_concurrency=_MAX_CONCURRENCY,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=True),
            ).remote(
                str(Path(directory).absolute()) if directory else None,
                namespace,
                keep=keep,
                write_interval_s=write_interval_s,
            )
            break
        except ActorAlreadyExistsError as error:
            # The name of a dead actor is free again only after a moment.
            if _is_alive(namespace) or time.monotonic() > until:
                raise StreamError(
                    f"a parameter service is already running in namespace {namespace!r}: another run uses this run id. "
                    "Choose another run.dir or stop that run."
                ) from error
            time.sleep(0.1)
    try:
        ray.get(handle.status.remote(), timeout=max(1.0, until - time.monotonic()))
    except GetTimeoutError as error:
        ray.kill(handle)
        raise StreamError(
            f"the parameter service in namespace {namespace!r} did not answer within {timeout_s:g} s of its start; "
            f"it reads {directory} first. See the cluster's load with `ray status`."
        ) from error
    return handle


def stop_parameter_service(service: Any, *, deadline_s: float = 30.0) -> None:
    """Let the service write what belongs on disk, then end it. A dead or late service is only noted in the log."""
    try:
        ray.get(service.flush.remote(), timeout=deadline_s)
    except (RayActorError, GetTimeoutError) as error:
        _LOG.warning("the parameter service did not write its last versions: %s", str(error).split("\n")[0])
    ray.kill(service)


def forget_dead(handle: Any, error: BaseException) -> None:
    """Make this process forget a dead actor's name.

    Ray remembers name → actor per process and goes on answering with one that died by itself; killing it (it is dead
    for good, which is what ActorDiedError says) removes the memory, and the name is looked up afresh.
    """
    if isinstance(error, ActorDiedError):
        ray.kill(handle)


def _is_alive(namespace: str) -> bool:
    try:
        handle = ray.get_actor(SERVICE_NAME, namespace=namespace)
    except ValueError:
        return False
    try:
        ray.get(handle.status.remote(), timeout=5.0)
    except RayActorError as error:
        forget_dead(handle, error)
        return False
    except GetTimeoutError:
        return True
    return True
