"""How workers reach the parameter service. Imports no torch.

The service is looked up by name, in the run's namespace, and looked up again after it died and was started anew; every
call has a deadline that covers all of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError

from srl_ray.core.errors import StreamError
from srl_ray.param_server.service import SERVICE_NAME, Published, PublishReply, VersionInfo, forget_dead
from srl_ray.param_server.store import NOTHING, Stamp
from srl_ray.param_server.weights import FlatWeights

_SERVICE_GONE = (RayActorError, ObjectLostError)
_LONGEST_PAUSE_S = 1.0


@dataclass(frozen=True)
class Weights:
    """A fetched version; `flat` lives in shared memory and is read-only. Copy it in with `weights.install`."""

    epoch: int
    version: int
    flat: FlatWeights
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] | None = None

    @property
    def stamp(self) -> Stamp:
        return self.epoch, self.version


class ParameterClient:
    """One policy's versions, from any process of the run. Not for concurrent use by several threads.

    Example:
        client = ParameterClient(namespace, "main")
        weights = client.fetch_newer(than=(0, 41), deadline_s=60.0)      # blocks; None: nothing newer in 60 s
        install(policy, weights.flat)

        waiting = client.start_wait(than=weights.stamp)                   # does not block
        ready, _ = ray.wait([waiting, *others], timeout=1.0)
        if waiting in ready:
            weights = client.finish_wait(waiting, deadline_s=10.0) or weights
    """

    def __init__(self, namespace: str, policy: str, *, relay: str | None = None) -> None:
        """Cheap: nothing is looked up yet.

        Args:
            namespace: The run's namespace.
            relay: Name of the node's ParameterRelay; it is asked first for new versions, the service when it is gone.
        """
        self.namespace = namespace
        self.policy = policy
        self._relay = relay
        self._handles: dict[str, Any] = {}
        self._last: tuple[Any, ...] | None = None

    # -- new versions, blocking ------------------------------------------------------------------------------------

    def fetch_newer(self, than: Stamp = NOTHING, *, deadline_s: float) -> Weights | None:
        """Block until a version newer than `than` is there and fetch it; None when there is none in time.

        Raises:
            StreamError: the service could not be reached within the deadline.
        """
        until = time.monotonic() + deadline_s
        attempt = _Attempts(self, until)
        while True:
            name = attempt.next_name()
            try:
                ref = self._handle(name).wait_newer.remote(self.policy, tuple(than), attempt.left_s())
                published = ray.get(ref, timeout=attempt.left_s() + attempt.grace_s)
                return None if published is None else self._fetch(published, attempt.left_s() + attempt.grace_s)
            except (*_SERVICE_GONE, ValueError) as error:
                time.sleep(attempt.failed(name, error))
            except GetTimeoutError as error:
                raise attempt.error(error) from error

    def start_wait(self, than: Stamp = NOTHING, *, deadline_s: float = 3600.0) -> Any:
        """Begin a long poll and return its ObjectRef at once, for `ray.wait` among other refs.

        Raises:
            StreamError: there is no service at the moment; try again later.
        """
        name = self._relay or SERVICE_NAME
        try:
            return self._handle(name).wait_newer.remote(self.policy, tuple(than), deadline_s)
        except ValueError as error:
            self.forget()
            raise StreamError(f"no {name} in namespace {self.namespace!r} at the moment") from error

    def finish_wait(self, ref: Any, *, deadline_s: float) -> Weights | None:
        """Fetch what a ready `start_wait` ref points to; None: nothing newer, or the service died. Start a new wait.

        Raises:
            StreamError: the weights did not arrive within the deadline.
        """
        until = time.monotonic() + deadline_s
        try:
            published = ray.get(ref, timeout=deadline_s)
            return None if published is None else self._fetch(published, max(0.0, until - time.monotonic()))
        except _SERVICE_GONE as error:
            handle = self._handles.get(self._relay or SERVICE_NAME)
            if handle is not None:
                forget_dead(handle, error)
            self.forget()
            return None
        except GetTimeoutError as error:
            raise StreamError(
                f"weights of policy {self.policy!r} did not arrive within {deadline_s:g} s of their announcement"
            ) from error

    # -- new versions, in an asyncio actor -------------------------------------------------------------------------

    async def fetch_newer_async(self, than: Stamp = NOTHING, *, deadline_s: float) -> Weights | None:
        """`fetch_newer` without blocking the loop.

        Raises:
            StreamError: the service could not be reached within the deadline.
        """
        until = time.monotonic() + deadline_s
        attempt = _Attempts(self, until)
        while True:
            name = attempt.next_name()
            try:
                handle = await asyncio.to_thread(self._handle, name)
                ref = handle.wait_newer.remote(self.policy, tuple(than), attempt.left_s())
                published = await asyncio.wait_for(_as_future(ref), attempt.left_s() + attempt.grace_s)
                if published is None:
                    return None
                flat = published.weights
                if not isinstance(flat, FlatWeights):
                    flat = await asyncio.wait_for(_as_future(flat), attempt.left_s() + attempt.grace_s)
                return _weights(published, flat)
            except (*_SERVICE_GONE, ValueError) as error:
                await asyncio.sleep(attempt.failed(name, error))
            except asyncio.TimeoutError as error:
                raise attempt.error(error) from error

    # -- everything else -------------------------------------------------------------------------------------------

    def publish(
        self,
        flat: FlatWeights,
        *,
        epoch: int,
        version: int,
        tags: tuple[str, ...] = (),
        metadata: Mapping[str, Any] | None = None,
        deadline_s: float = 60.0,
    ) -> PublishReply:
        """Publish a version; sent again to a restarted service (harmless when it already has it).

        Blocks until the service has put it into its own store (about 25 ms per 50 MB).

        Raises:
            StreamError: the service could not be reached within the deadline.
        """
        weights = flat if flat.is_small else ray.put(flat)
        self._last = (self.policy, epoch, version, weights, tuple(tags), dict(metadata or {}))
        reply: PublishReply = self._call(deadline_s, "publish", *self._last)
        return reply

    def publish_again(self, *, deadline_s: float = 60.0) -> None:
        """Repeat the last publication, if there was one: a service that died came back with what is on its disk, and
        others may be waiting for a version that went down with it. Any thread may call this.

        Raises:
            StreamError: the service could not be reached within the deadline.
        """
        if self._last is not None:
            ParameterClient(self.namespace, self.policy)._call(deadline_s, "publish", *self._last)

    def latest(self, *, deadline_s: float = 30.0) -> Weights | None:
        """The newest version, without waiting for one; None when nothing was published yet."""
        published: Published | None = self._call(deadline_s, "latest", self.policy)
        return None if published is None else self._fetch(published, deadline_s)

    def get(self, *, version: int | None = None, tag: str | None = None, deadline_s: float = 30.0) -> Weights:
        """A version by number or tag.

        Raises:
            LookupError: it does not exist (any more); the message lists what does.
            StreamError: the service could not be reached within the deadline.
        """
        return self._fetch(self._call(deadline_s, "get", self.policy, version, tag), deadline_s)

    def tag(self, tag: str, *, version: int | None = None, deadline_s: float = 30.0) -> Stamp:
        """Point a tag at a version (default: the newest); tagged versions are kept and written to disk."""
        stamp: Stamp = self._call(deadline_s, "tag", self.policy, tag, version)
        return stamp

    def update_metadata(
        self,
        values: Mapping[str, float],
        *,
        version: int,
        epoch: int | None = None,
        count: int = 1,
        deadline_s: float = 30.0,
    ) -> bool:
        """Merge means of `count` observations into a version; False when it is not kept any more.

        A service that dies during the call may count the report twice or not at all.
        """
        known: bool = self._call(deadline_s, "update_metadata", self.policy, dict(values), version, epoch, count)
        return known

    def versions(self, *, deadline_s: float = 30.0) -> list[VersionInfo]:
        """What the service keeps of this policy, newest first, without weights."""
        versions: list[VersionInfo] = self._call(deadline_s, "versions", self.policy)
        return versions

    def forget(self) -> None:
        """Drop the handles; the next call looks the names up again."""
        self._handles.clear()

    def _call(self, deadline_s: float, method: str, *args: Any) -> Any:
        attempt = _Attempts(self, time.monotonic() + deadline_s, use_relay=False)
        while True:
            name = attempt.next_name()
            try:
                handle = self._handle(name)
            except ValueError as error:
                time.sleep(attempt.failed(name, error))
                continue
            try:
                return ray.get(getattr(handle, method).remote(*args), timeout=attempt.left_s())
            except _SERVICE_GONE as error:
                time.sleep(attempt.failed(name, error))
            except GetTimeoutError as error:
                raise attempt.error(error) from error
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, LookupError):
                    raise error.cause from None
                raise

    def _handle(self, name: str) -> Any:
        """Raises ValueError when no actor has the name."""
        if name not in self._handles:
            self._handles[name] = ray.get_actor(name, namespace=self.namespace)
        return self._handles[name]

    def _fetch(self, published: Published, timeout_s: float) -> Weights:
        flat = published.weights
        return _weights(published, flat if isinstance(flat, FlatWeights) else ray.get(flat, timeout=timeout_s))


class _Attempts:
    """Bookkeeping of one call: which actor to ask next, how long to pause, when to give up."""

    grace_s = 5.0

    def __init__(self, client: ParameterClient, until: float, *, use_relay: bool = True) -> None:
        self._client = client
        self._until = until
        self._start = time.monotonic()
        self._relay = client._relay if use_relay else None
        self._pause_s = 0.05

    def left_s(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def next_name(self) -> str:
        return self._relay or SERVICE_NAME

    def failed(self, name: str, error: Exception) -> float:
        """Note that an actor is gone; returns the pause before the next try, or raises once the deadline is over."""
        handle = self._client._handles.get(name)
        if handle is not None:
            forget_dead(handle, error)
        self._client.forget()
        if name == self._relay:
            self._relay = None
            return 0.0
        if self.left_s() <= 0:
            raise self.error(error) from error
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return min(self._pause_s, self.left_s())

    def error(self, cause: Exception) -> StreamError:
        return StreamError(
            f"the parameter service of policy {self._client.policy!r} (namespace {self._client.namespace!r}) was not "
            f"reachable for {time.monotonic() - self._start:.1f} s ({type(cause).__name__}: {cause})"
        )


def _weights(published: Published, flat: FlatWeights) -> Weights:
    return Weights(published.epoch, published.version, flat, published.tags, published.metadata)


def _as_future(ref: Any) -> asyncio.Future[Any]:
    return asyncio.wrap_future(ref.future())
