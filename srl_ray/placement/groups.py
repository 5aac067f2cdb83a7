"""The Ray side of placement: read the cluster, hold a placement group, say where each worker goes."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from srl_ray.core.errors import PlacementError
from srl_ray.placement.config import PlacementConfig
from srl_ray.placement.plan import NODE_ID_LABEL, NodeInfo, PlacementPlan, RoleRequest, make_plan

_LOG = logging.getLogger(__name__)
_SAY_EVERY_S = 10.0


def cluster_nodes() -> list[NodeInfo]:
    """Totals of the living nodes of the connected cluster."""
    nodes = []
    for node in ray.nodes():
        if node.get("Alive"):
            amounts = node.get("Resources", {})
            labels = {**node.get("Labels", {}), NODE_ID_LABEL: node["NodeID"]}
            nodes.append(
                NodeInfo(
                    node_id=node["NodeID"],
                    cpus=float(amounts.get("CPU", 0.0)),
                    gpus=float(amounts.get("GPU", 0.0)),
                    memory=float(amounts.get("memory", 0.0)),
                    labels=labels,
                    name=str(node.get("NodeManagerHostname") or node.get("NodeManagerAddress", "")),
                )
            )
    return nodes


def plan_when_possible(
    requests: Sequence[RoleRequest],
    config: PlacementConfig,
    *,
    wait_s: float = 0.0,
    poll_s: float = 1.0,
    read_nodes: Callable[[], list[NodeInfo]] = cluster_nodes,
) -> PlacementPlan:
    """`make_plan` for the cluster as it is; with `wait_s`, tried again while nodes may still arrive.

    Blocks for at most `wait_s`. Raises PlacementError when it is infeasible with the nodes seen last.
    """
    until = time.monotonic() + wait_s
    said_s = float("-inf")
    while True:
        try:
            return make_plan(requests, read_nodes(), config)
        except PlacementError as error:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise
            if time.monotonic() - said_s > _SAY_EVERY_S:
                _LOG.info("waiting up to %.0f s more for nodes: %s", left_s, error)
                said_s = time.monotonic()
            time.sleep(min(poll_s, left_s))


@dataclass(frozen=True)
class Reservation:
    """A plan with its placement group."""

    plan: PlacementPlan
    group: PlacementGroup

    def strategy(self, role: str, index: int) -> PlacementGroupSchedulingStrategy:
        """Scheduling strategy of one worker. Raises KeyError for a worker outside the plan."""
        return PlacementGroupSchedulingStrategy(self.group, self.plan.slot(role, index).bundle)

    def options(self, role: str, index: int) -> dict[str, Any]:
        """Actor options that make the worker fit its bundle exactly: num_cpus, num_gpus, memory, strategy."""
        slot = self.plan.slot(role, index)
        options: dict[str, Any] = {
            "num_cpus": slot.cpus,
            "num_gpus": slot.gpus,
            "scheduling_strategy": self.strategy(role, index),
        }
        if slot.memory:
            options["memory"] = slot.memory
        return options

    def node_of(self, role: str, index: int) -> str:
        """Id of the node that holds the worker's bundle."""
        bundles = placement_group_table(self.group)["bundles_to_node_id"]
        return str(bundles[self.plan.slot(role, index).bundle])


@contextlib.contextmanager
def reserve(plan: PlacementPlan, *, timeout_s: float, name: str = "srl_ray") -> Iterator[Reservation]:
    """Hold the plan's placement group for the length of the block. It is removed on every exit, with its actors.

    Blocks until all bundles are placed, at most `timeout_s`.

    Raises:
        PlacementError: not placed in time; says what was asked and what was free. Nothing stays reserved.

    Example:
        with reserve(plan, timeout_s=60.0) as reservation:
            handle = ray.remote(Worker).options(**reservation.options("actor", 0)).remote()
    """
    bundles = [b.resources() for b in plan.bundles]
    selectors = [dict(b.selector) for b in plan.bundles]
    group = placement_group(
        bundles,
        strategy=plan.strategy,
        name=f"{name}-{uuid.uuid4().hex[:8]}",
        bundle_label_selector=selectors if any(selectors) else None,
    )
    try:
        _wait(group, plan, timeout_s)
        yield Reservation(plan, group)
    finally:
        with contextlib.suppress(Exception):  # the connection may be gone; the group then ends with the job
            remove_placement_group(group)


def _wait(group: PlacementGroup, plan: PlacementPlan, timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    next_word_s = time.monotonic() + _SAY_EVERY_S
    while not group.wait(max(0.1, min(1.0, until - time.monotonic()))):
        now = time.monotonic()
        if now >= until:
            raise PlacementError(_diagnosis(group, plan, timeout_s))
        if now >= next_word_s:
            _LOG.info("waiting for resources, up to %.0f s more; free now: %s", until - now, _free())
            next_word_s = now + _SAY_EVERY_S


def _diagnosis(group: PlacementGroup, plan: PlacementPlan, timeout_s: float) -> str:
    table = placement_group_table(group)
    state = str(table.get("stats", {}).get("scheduling_state", "")).lower().replace("_", " ")
    return (
        f"the workers were not placed within {timeout_s:g} s (Ray says: {state or 'pending'}). Asked for:\n"
        f"{plan.explain()}\nFree now: {_free()}.\nOther runs or actors hold the rest: see `ray status` and "
        "`ray list actors`. Wait for them, lower the counts, or raise cluster.placement_timeout_s if nodes are on "
        "their way."
    )


def _free() -> str:
    free = ray.available_resources()
    return f"{free.get('CPU', 0.0):g} CPU, {free.get('GPU', 0.0):g} GPU"
