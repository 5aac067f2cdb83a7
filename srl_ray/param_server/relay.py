"""A node's relay of the parameter service: the root answers nodes, the relay answers the workers of its node.

Not used on a single node. An asyncio actor; everything runs in one loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from srl_ray.core.errors import StreamError
from srl_ray.param_server.client import ParameterClient
from srl_ray.param_server.service import Published
from srl_ray.param_server.store import NOTHING, Stamp

_POLL_S = 60.0
_MAX_CONCURRENCY = 20_000


class ParameterRelay:
    """Re-serves the newest version of each policy that somebody on the node asked for.

    consumes:      wait_newer() of the root, one long poll per policy
    produces:      Published answers whose weights this node owns
    waits for:     the root; clients wait with their own deadlines
    unblocked by:  a new version at the root
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._newest: dict[str, Published] = {}
        self._changed: dict[str, asyncio.Event] = {}
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._errors: dict[str, str] = {}

    async def wait_newer(self, policy: str, than: Stamp, deadline_s: float) -> Published | None:
        """As the service's: the newest version as soon as it is newer than `than`; None after `deadline_s`."""
        task = self._followers.get(policy)
        if task is None or task.done():
            self._followers[policy] = asyncio.get_running_loop().create_task(self._follow(policy))
        until = time.monotonic() + deadline_s
        while True:
            newest = self._newest.get(policy)
            if newest is not None and newest.stamp > tuple(than):
                return newest
            changed = self._changed.setdefault(policy, asyncio.Event())
            left_s = until - time.monotonic()
            if left_s <= 0:
                return None
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(changed.wait(), left_s)

    async def latest(self, policy: str) -> Published | None:
        """The newest version this node has seen; None at first. Ask the service when it must be current."""
        return self._newest.get(policy)

    async def status(self) -> dict[str, Any]:
        return {"policies": {p: published.stamp for p, published in self._newest.items()}, "errors": dict(self._errors)}

    async def _follow(self, policy: str) -> None:
        client = ParameterClient(self._namespace, policy)
        stamp = NOTHING
        while True:
            try:
                weights = await client.fetch_newer_async(stamp, deadline_s=_POLL_S)
            except StreamError as error:
                self._errors[policy] = str(error)
                continue
            self._errors.pop(policy, None)
            if weights is None:
                continue
            kept: Any = weights.flat
            if not weights.flat.is_small:
                kept = await asyncio.get_running_loop().run_in_executor(None, ray.put, kept)
            self._newest[policy] = Published(
                weights.epoch, weights.version, kept, weights.tags, dict(weights.metadata or {})
            )
            stamp = weights.stamp
            changed = self._changed.pop(policy, None)
            if changed is not None:
                changed.set()


def relay_name(node_id: str) -> str:
    """Actor name of a node's relay; give it to `ParameterClient(relay=...)`."""
    return f"parameter_relay_{node_id}"


def start_parameter_relay(namespace: str, node_id: str, *, timeout_s: float = 60.0) -> Any:
    """Start the relay of a node and wait until it answers. The caller owns it.

    Raises:
        StreamError: no answer within `timeout_s`.
    """
    relay_class: Any = ray.remote(ParameterRelay)
    handle = relay_class.options(
        name=relay_name(node_id),
        namespace=namespace,
        num_cpus=0,
        max_restarts=0,
        max_concurrency=_MAX_CONCURRENCY,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
    ).remote(namespace)
    try:
        ray.get(handle.status.remote(), timeout=timeout_s)
    except ray.exceptions.GetTimeoutError as error:
        ray.kill(handle)
        raise StreamError(f"the parameter relay of node {node_id} did not answer within {timeout_s:g} s") from error
    return handle
