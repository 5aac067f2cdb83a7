"""The placement plan: from what the roles ask and what the cluster has to bundles. Pure; no Ray.

One placement group holds the whole run, so that two runs competing for a cluster never hold half of it each. Workers
share bundles where they must be together: fractions of one GPU, and roles that ask for `colocate_with`. Feasibility is
judged by what nodes have in total; what is free at the moment is the reservation's business.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from srl_ray.core.errors import ConfigError, PlacementError
from srl_ray.placement.config import PlacementConfig

MIN_SHARE = 0.25
"""Smallest CPU share chosen automatically: four workers fit a core."""

NODE_ID_LABEL = "ray.io/node-id"
_EPSILON = 1e-6
_MERGE_ABOVE_CPUS = 256
_MERGED_BUNDLE_CPUS = 8


@dataclass(frozen=True)
class RoleRequest:
    """What one role asks for.

    Attributes:
        role: Name for messages and look-ups, for example `actor`.
        count: Workers; 0 is allowed and takes nothing.
        cpus: CPU share of a worker, > 0; None lets the plan choose between 0.25 and 1.
        gpus: GPU share of a worker: a fraction of one device in (0, 1), or a whole number of devices.
        memory: Bytes of memory per worker to reserve; 0 reserves none.
        pool: `cpu` or `gpu`; None: `gpu` exactly when gpus > 0.
        colocate_with: Put worker i into the bundle of worker i modulo its count of that role (same node, and same
            device when both ask for fractions).
        labels: Node labels it needs.
    """

    role: str
    count: int
    cpus: float | None = None
    gpus: float = 0.0
    memory: int = 0
    pool: str | None = None
    colocate_with: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ConfigError(f"{self.role}: count must be >= 0, got {self.count}.")
        if self.cpus is not None and self.cpus <= 0:
            raise ConfigError(
                f"{self.role}: cpus must be > 0, got {self.cpus:g} (Ray places workers without CPUs anywhere). "
                "Take a small share such as 0.1, or null."
            )
        if self.gpus < 0 or (self.gpus > 1 and self.gpus != int(self.gpus)):
            raise ConfigError(
                f"{self.role}: gpus must be a fraction of one device in [0, 1] or a whole number, got {self.gpus:g}."
            )
        if self.pool not in (None, "cpu", "gpu"):
            raise ConfigError(f"{self.role}: pool must be cpu or gpu, got {self.pool!r}.")
        if self.pool == "cpu" and self.gpus > 0:
            raise ConfigError(f"{self.role}: asks for {self.gpus:g} GPUs in the cpu pool; use pool gpu.")

    @property
    def is_gpu_pool(self) -> bool:
        return self.pool == "gpu" or self.gpus > 0


@dataclass(frozen=True)
class NodeInfo:
    """A node's totals (not what is free)."""

    node_id: str
    cpus: float
    gpus: float = 0.0
    memory: float = math.inf
    labels: Mapping[str, str] = field(default_factory=dict)
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name or self.node_id[:8]}: {self.cpus:g} CPU, {self.gpus:g} GPU"


@dataclass(frozen=True)
class WorkerSlot:
    """Where one worker goes and what it may use."""

    role: str
    index: int
    bundle: int
    cpus: float
    gpus: float
    memory: int


@dataclass(frozen=True)
class Bundle:
    """What Ray reserves on one node, and which nodes qualify."""

    cpus: float
    gpus: float
    memory: int
    selector: Mapping[str, str]

    def resources(self) -> dict[str, float]:
        amounts = {"CPU": self.cpus, "GPU": self.gpus, "memory": float(self.memory)}
        return {name: amount for name, amount in amounts.items() if amount > 0}


@dataclass(frozen=True)
class PlacementPlan:
    """Bundles, and which worker uses which.

    Example:
        plan = make_plan([RoleRequest("trainer", 1), RoleRequest("actor", 8)], cluster_nodes(), config.placement)
        print(plan.explain())
        with reserve(plan, timeout_s=60) as reservation:
            options = reservation.options("actor", 3)
    """

    requests: tuple[RoleRequest, ...]
    bundles: tuple[Bundle, ...]
    slots: tuple[WorkerSlot, ...]
    strategy: str
    nodes: tuple[NodeInfo, ...]
    where: Mapping[str, str] = field(default_factory=dict)
    """Role → nodes that qualify, in words."""

    def slot(self, role: str, index: int) -> WorkerSlot:
        """Raises KeyError for a worker that is not part of the plan."""
        try:
            return self._slot_of[role, index]
        except KeyError:
            raise KeyError(f"no {role} {index} in the placement plan") from None

    def bundle_indices(self, role: str) -> list[int]:
        """Bundle of each worker of a role, in worker order."""
        return [s.bundle for s in sorted(self.slots, key=lambda s: s.index) if s.role == role]

    def share(self, role: str) -> float:
        """CPUs of one worker of a role; 0 when it has none."""
        return next((s.cpus for s in self.slots if s.role == role), 0.0)

    @cached_property
    def _slot_of(self) -> dict[tuple[str, int], WorkerSlot]:
        return {(s.role, s.index): s for s in self.slots}

    def explain(self) -> str:
        """A table of what runs where, then what the cluster has."""
        rows = [("role", "workers", "CPUs each", "GPUs each", "bundles", "nodes")]
        for r in self.requests:
            slots = [s for s in self.slots if s.role == r.role]
            if slots:
                together = f", with {r.colocate_with}" if r.colocate_with else ""
                rows.append(
                    (r.role, str(len(slots)), f"{slots[0].cpus:g}", f"{slots[0].gpus:g}",
                     str(len({s.bundle for s in slots})), self.where.get(r.role, "any") + together)
                )  # fmt: skip
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines.insert(1, "  ".join("-" * w for w in widths))
        asked = f"{sum(b.cpus for b in self.bundles):g} CPU, {sum(b.gpus for b in self.bundles):g} GPU"
        lines.append(f"in all {asked} in {len(self.bundles)} bundles ({self.strategy}); cluster: {_totals(self.nodes)}")
        return "\n".join(lines)


def make_plan(
    requests: Sequence[RoleRequest], nodes: Sequence[NodeInfo], config: PlacementConfig | None = None
) -> PlacementPlan:
    """Place every worker, or say in words why that is impossible.

    CPU shares left open are cores / workers, between 0.25 and 1, smaller where nodes would otherwise not be filled.

    Raises:
        PlacementError: the nodes cannot hold it, ever: what was asked, by whom, what there is, what to change.
        ConfigError: the requests contradict each other.
    """
    config = config or PlacementConfig()
    _check_requests(requests)
    eligible = {r.role: _eligible(r, nodes, config) for r in requests if r.count}
    for r in requests:
        if r.count and r.colocate_with:
            if r.is_gpu_pool:
                eligible[r.colocate_with] &= eligible[r.role]
            eligible[r.role] = eligible[r.colocate_with]
    _check_workers(requests, nodes, eligible, config)
    unplaced: _Draft | None = None
    draft: list[_Draft] = []
    for shares in _share_choices(requests, nodes, eligible):
        draft = _draft(requests, shares, nodes, eligible, config)
        unplaced = _pack(draft, nodes)
        if unplaced is None:
            break
    if unplaced is not None:
        raise PlacementError(_infeasible(unplaced, draft, requests, nodes, config))
    return PlacementPlan(
        requests=tuple(requests),
        bundles=tuple(b.freeze() for b in draft),
        slots=tuple(slot for b in draft for slot in b.slots),
        strategy=config.strategy,
        nodes=tuple(nodes),
        where={role: _where(ids, nodes) for role, ids in eligible.items()},
    )


# -- who may go where ------------------------------------------------------------------------------------------------


def _check_requests(requests: Sequence[RoleRequest]) -> None:
    by_role = {r.role: r for r in requests}
    if len(by_role) != len(requests):
        raise ConfigError(f"a role asks twice: {[r.role for r in requests]}")
    for r in requests:
        target = by_role.get(r.colocate_with) if r.colocate_with else None
        if r.colocate_with and r.count and (target is None or target.count == 0):
            raise ConfigError(f"{r.role} is to be placed with {r.colocate_with!r}, which has no workers.")
        if target is not None and target.colocate_with:
            raise ConfigError(f"{r.role} is placed with {target.role}, which is itself placed with another role.")


def _eligible(request: RoleRequest, nodes: Sequence[NodeInfo], config: PlacementConfig) -> frozenset[str]:
    """Ids of the nodes that this role's bundles may go to."""
    labels = {**_pool_labels(request, config), **request.labels}
    fitting = [n for n in nodes if all(n.labels.get(k) == v for k, v in labels.items())]
    if request.is_gpu_pool:
        return frozenset(n.node_id for n in fitting if n.gpus > 0 or request.gpus == 0)
    without_gpus = [n for n in fitting if n.gpus == 0 and n.cpus > 0]
    if config.keep_cpu_pools_off_accelerators and not labels and without_gpus:
        fitting = without_gpus
    return frozenset(n.node_id for n in fitting if n.cpus > 0)


def _pool_labels(request: RoleRequest, config: PlacementConfig) -> Mapping[str, str]:
    if request.is_gpu_pool or request.role == "trainer":
        return config.trainers_labels
    return config.actors_labels


def _selector(
    request: RoleRequest, eligible: frozenset[str], nodes: Sequence[NodeInfo], config: PlacementConfig
) -> dict[str, str]:
    """Label selector of a bundle: the user's labels, else the node ids where the plan keeps it off other nodes."""
    labels = {**_pool_labels(request, config), **request.labels}
    with_cpus = {n.node_id for n in nodes if n.cpus > 0}
    if labels or request.is_gpu_pool or with_cpus <= eligible:
        return labels
    return {NODE_ID_LABEL: f"in({','.join(sorted(eligible))})"}


# -- shares and bundles ----------------------------------------------------------------------------------------------


@dataclass
class _Draft:
    index: int
    eligible: frozenset[str]
    selector: dict[str, str]
    slots: list[WorkerSlot] = field(default_factory=list)
    reserved_gpus: float = 0.0
    """GPUs of its workers and of those that will be placed with them."""

    @property
    def cpus(self) -> float:
        return round(sum(s.cpus for s in self.slots), 4)

    @property
    def gpus(self) -> float:
        return round(sum(s.gpus for s in self.slots), 4)

    @property
    def memory(self) -> int:
        return sum(s.memory for s in self.slots)

    def add(self, request: RoleRequest, index: int, cpus: float) -> None:
        self.slots.append(WorkerSlot(request.role, index, self.index, cpus, request.gpus, request.memory))

    def freeze(self) -> Bundle:
        return Bundle(self.cpus, self.gpus, self.memory, self.selector)


def _share_choices(
    requests: Sequence[RoleRequest], nodes: Sequence[NodeInfo], eligible: Mapping[str, frozenset[str]]
) -> Iterable[dict[str, float]]:
    """Role → CPU share, to be tried in this order. Roles whose nodes overlap share the same cores."""
    cpus = {n.node_id: n.cpus for n in nodes}
    first: dict[str, float] = {}
    for r in requests:
        if r.count == 0:
            continue
        rivals = _overlapping(r.role, eligible)
        asked = [q for q in requests if q.role in rivals and q.count]
        cores = sum(cpus[i] for i in frozenset().union(*(eligible[q.role] for q in asked)))
        cores -= sum(q.cpus * q.count for q in asked if q.cpus is not None)
        open_workers = sum(q.count for q in asked if q.cpus is None)
        share = cores / open_workers if open_workers else 1.0
        first[r.role] = r.cpus if r.cpus is not None else _round_down(min(1.0, max(MIN_SHARE, share)))
    is_open = {r.role: r.cpus is None for r in requests}
    tried: list[dict[str, float]] = []
    for step in range(5):
        shares = {
            role: max(MIN_SHARE, _round_down(1 / (math.ceil(1 / s - _EPSILON) + step - 1)))
            if is_open[role] and step and s > MIN_SHARE
            else s
            for role, s in first.items()
        }
        shares = {role: min(s, first[role]) for role, s in shares.items()}
        if shares not in tried:
            tried.append(shares)
            yield shares


def _overlapping(role: str, eligible: Mapping[str, frozenset[str]]) -> set[str]:
    """Roles that compete with this one for nodes, directly or through others."""
    rivals, ids = {role}, eligible[role]
    while True:
        more = {r for r, nodes in eligible.items() if r not in rivals and nodes & ids}
        if not more:
            return rivals
        rivals |= more
        ids = ids.union(*(eligible[r] for r in more))


def _round_down(share: float) -> float:
    return math.floor(share * 100 + _EPSILON) / 100


def _draft(
    requests: Sequence[RoleRequest],
    shares: Mapping[str, float],
    nodes: Sequence[NodeInfo],
    eligible: Mapping[str, frozenset[str]],
    config: PlacementConfig,
) -> list[_Draft]:
    """Workers to bundles: one device is one bundle, small CPU shares are joined, colocated workers stay together."""
    bundles: list[_Draft] = []
    bundle_of: dict[tuple[str, int], _Draft] = {}
    leaders = [r for r in requests if r.count and not r.colocate_with]
    followers = [r for r in requests if r.count and r.colocate_with]
    with_leader = {r.role: [f for f in followers if f.colocate_with == r.role] for r in leaders}
    gpus_of = {
        (r.role, i): r.gpus + sum(f.gpus * len(range(i, f.count, r.count)) for f in with_leader[r.role])
        for r in leaders
        for i in range(r.count)
    }
    for r in sorted(leaders, key=lambda r: -r.gpus):
        per_bundle = 1
        if not with_leader[r.role] and not r.gpus:
            per_bundle = _workers_per_bundle(r, shares[r.role], nodes, eligible[r.role])
        selector = _selector(r, eligible[r.role], nodes, config)
        for index in range(r.count):
            gpus = gpus_of[r.role, index]
            home = None
            if 0 < gpus < 1:
                home = next(
                    (b for b in bundles if b.eligible == eligible[r.role] and 0 < b.reserved_gpus + gpus <= 1 + _EPSILON
                     and b.reserved_gpus > 0 and b.selector == selector), None
                )  # fmt: skip
            elif index % per_bundle:
                home = bundles[-1]
            if home is None:
                home = _Draft(len(bundles), eligible[r.role], selector)
                bundles.append(home)
            home.add(r, index, shares[r.role])
            home.reserved_gpus = round(home.reserved_gpus + gpus, 4)
            bundle_of[r.role, index] = home
    for f in followers:
        leader = next(r for r in leaders if r.role == f.colocate_with)
        for index in range(f.count):
            bundle_of[leader.role, index % leader.count].add(f, index, shares[f.role])
    return bundles


def _workers_per_bundle(r: RoleRequest, share: float, nodes: Sequence[NodeInfo], ids: frozenset[str]) -> int:
    """Joined up to one CPU; in large pools up to several, because Ray reserves bundle by bundle."""
    if r.memory:
        return 1
    room = 1.0
    if share * r.count > _MERGE_ABOVE_CPUS:
        room = min(_MERGED_BUNDLE_CPUS, *(n.cpus for n in nodes if n.node_id in ids), r.count * share)
    return max(1, int(room / share + _EPSILON))


def _pack(bundles: Sequence[_Draft], nodes: Sequence[NodeInfo]) -> _Draft | None:
    """First fit, largest first, counting each device. Returns a bundle that found no room, or None."""
    free = [_Free(n) for n in nodes]
    for bundle in sorted(bundles, key=lambda b: (-b.gpus, -b.memory, -b.cpus)):
        candidates = [f for f in free if f.node.node_id in bundle.eligible]
        if bundle.gpus == 0:
            candidates.sort(key=lambda f: f.node.gpus > 0)
        if not any(f.take(bundle) for f in candidates):
            return bundle
    return None


class _Free:
    """What is left of a node while packing."""

    def __init__(self, node: NodeInfo) -> None:
        self.node = node
        self._cpus = node.cpus
        self._memory = node.memory
        self._devices = [1.0] * int(node.gpus)

    def take(self, bundle: _Draft) -> bool:
        if bundle.cpus > self._cpus + _EPSILON or bundle.memory > self._memory:
            return False
        if bundle.gpus >= 1:
            whole = [i for i, left in enumerate(self._devices) if left > 1 - _EPSILON]
            needed = math.ceil(bundle.gpus - _EPSILON)
            if len(whole) < needed:
                return False
            for i in whole[:needed]:
                self._devices[i] = 0.0
        elif bundle.gpus > 0:
            fitting = [i for i, left in enumerate(self._devices) if left >= bundle.gpus - _EPSILON]
            if not fitting:
                return False
            self._devices[min(fitting, key=lambda i: self._devices[i])] -= bundle.gpus
        self._cpus -= bundle.cpus
        self._memory -= bundle.memory
        return True


# -- words -----------------------------------------------------------------------------------------------------------

_CONFIG_KEY = {"trainer": "trainers", "actor": "actors", "policy_worker": "policy_workers"}


def _check_workers(
    requests: Sequence[RoleRequest],
    nodes: Sequence[NodeInfo],
    eligible: Mapping[str, frozenset[str]],
    config: PlacementConfig,
) -> None:
    """Refuse workers that no node could ever hold, each on its own.

    Raises:
        PlacementError: names the role, the amounts and the largest node.
    """
    for r in requests:
        if r.count == 0:
            continue
        able = [n for n in nodes if n.node_id in eligible[r.role]]
        needs = {"GPU": (r.gpus, lambda n: n.gpus), "CPU": (r.cpus or MIN_SHARE, lambda n: n.cpus),
                 "bytes of memory": (float(r.memory), lambda n: n.memory)}  # fmt: skip
        for unit, (amount, of) in needs.items():
            total = sum(of(n) for n in nodes)
            most = max((of(n) for n in able), default=0.0)
            if amount and total < amount - _EPSILON:
                raise PlacementError(
                    f"{_asks(r)}; the cluster has {total:g} {unit} in all ({_totals(nodes)}). {_remedy([r], unit)}"
                )
            if not able and unit == "CPU":
                labels = {**_pool_labels(r, config), **r.labels}
                raise PlacementError(
                    f"{_asks(r)}, on nodes with the labels {labels}; no node has them. Nodes: {_list(nodes)}. Change "
                    f"placement.actors_labels or placement.trainers_labels, or start nodes with `ray start --labels`."
                )
            if amount and able and most < amount - _EPSILON:
                raise PlacementError(
                    f"{_asks(r)}; no single node that qualifies has that much: the largest has {most:g} {unit}. Nodes: "
                    f"{_list(able)}. {_remedy([r], unit)}"
                )
    for leader in (r for r in requests if 0 < r.gpus < 1):
        together = [f for f in requests if f.colocate_with == leader.role and 0 < f.gpus < 1]
        sum_gpus = leader.gpus + sum(f.gpus * math.ceil(f.count / leader.count) for f in together)
        if leader.count and sum_gpus > 1 + _EPSILON:
            names = ", ".join(f"{f.role} ({f.gpus:g} each)" for f in [leader, *together])
            raise PlacementError(f"{names} are to share one GPU, but need {sum_gpus:g} of it. Lower the fractions.")


def _infeasible(
    unplaced: _Draft,
    draft: Sequence[_Draft],
    requests: Sequence[RoleRequest],
    nodes: Sequence[NodeInfo],
    config: PlacementConfig,
) -> str:
    """Why the bundles do not fit together, for the nodes that the bundle without room competes for."""
    able = [n for n in nodes if n.node_id in unplaced.eligible]
    rivals = [b for b in draft if b.eligible & unplaced.eligible]
    roles = {slot.role for b in rivals for slot in b.slots}
    asking = [r for r in requests if r.role in roles]
    lines = [f"{_asks(r, next(s.cpus for b in rivals for s in b.slots if s.role == r.role))}" for r in asking]
    sums = {
        "CPU": (sum(b.cpus for b in rivals), sum(n.cpus for n in able)),
        "GPU": (sum(b.gpus for b in rivals), sum(n.gpus for n in able)),
        "bytes of memory": (float(sum(b.memory for b in rivals)), sum(n.memory for n in able)),
    }
    short = [unit for unit, (asked, there) in sums.items() if asked > there + _EPSILON]
    what = f"{unplaced.cpus:g} CPU, {unplaced.gpus:g} GPU"
    who = "the cluster" if len(able) == len(nodes) else "the nodes that qualify"
    if short:
        why = "; ".join(f"{sums[u][0]:g} {u} in all, {who} have {sums[u][1]:g}" for u in short).replace(
            "the cluster have", "the cluster has"
        )
        remedy = _remedy(asking, short[0])
    elif unplaced.gpus > 0 and unplaced.gpus != int(unplaced.gpus):
        why = (
            f"no single GPU is left for a share of {unplaced.gpus:g} ({what}): fractions are counted per device, and "
            f"{sums['GPU'][0]:g} of {sums['GPU'][1]:g} GPUs do not divide that way"
        )
        remedy = _remedy(asking, "GPU")
    else:
        why = f"no single node is left with room for one group of workers that belongs together ({what})"
        remedy = _remedy(asking, "GPU" if unplaced.gpus else "CPU")
    if unplaced.gpus == 0 and len(able) < len(nodes) and NODE_ID_LABEL in unplaced.selector:
        remedy += " placement.keep_cpu_pools_off_accelerators=false also lets CPU workers use nodes with GPUs."
    return f"the workers do not fit: {'; '.join(lines)}. That is {why}. Nodes: {_list(able)}. {remedy}"


def _asks(r: RoleRequest, share: float | None = None) -> str:
    cpus = r.cpus if r.cpus is not None else share
    amounts = [f"{cpus:g} CPU"] if cpus is not None else []
    amounts += [f"{r.gpus:g} GPU"] if r.gpus else []
    amounts += [f"{r.memory / 2**30:.3g} GiB"] if r.memory else []
    amounts = amounts or [f"at least {MIN_SHARE:g} CPU"]
    each = " each" if r.count > 1 else ""
    in_all = f" ({r.gpus * r.count:g} GPU in all)" if r.gpus and r.count > 1 else ""
    return f"{r.role} asks for {r.count} worker{'s' if r.count > 1 else ''} with {' and '.join(amounts)}{each}{in_all}"


def _remedy(asking: Sequence[RoleRequest], unit: str) -> str:
    def key(r: RoleRequest) -> str:
        return _CONFIG_KEY.get(r.role, r.role)

    largest = max(asking, key=lambda r: r.count * ((r.cpus or MIN_SHARE) if unit == "CPU" else r.gpus))
    options = [f"lower {key(largest)}.count"] if largest.count > 1 else []
    if unit == "GPU":
        options.append(
            f"set {key(largest)}.gpus=0 or a fraction" if largest.gpus <= 1 else f"lower {key(largest)}.gpus"
        )
    elif unit == "CPU" and largest.cpus is not None:
        options.append(f"lower {key(largest)}.cpus (null lets the plan choose)")
    elif unit == "CPU":
        options.append(f"set {key(largest)}.cpus below {MIN_SHARE:g}")
    text = ", ".join([*options, "or use a larger cluster"])
    return f"{text[0].upper()}{text[1:]}."


def _totals(nodes: Sequence[NodeInfo]) -> str:
    if not nodes:
        return "no nodes"
    largest = max(nodes, key=lambda n: (n.gpus, n.cpus))
    total = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}, {sum(n.cpus for n in nodes):g} CPU, "
    return f"{total}{sum(n.gpus for n in nodes):g} GPU; largest node {largest}"


def _list(nodes: Sequence[NodeInfo], most: int = 6) -> str:
    shown = "; ".join(str(n) for n in sorted(nodes, key=lambda n: (-n.gpus, -n.cpus))[:most])
    return shown + (f"; and {len(nodes) - most} more" if len(nodes) > most else "")


def _where(ids: frozenset[str], nodes: Sequence[NodeInfo]) -> str:
    able = [n for n in nodes if n.node_id in ids]
    if len(able) == len(nodes):
        return "any" if len(nodes) > 1 else (nodes[0].name or "the only node")
    if len(able) <= 2:
        return ", ".join(n.name or n.node_id[:8] for n in able)
    kind = "without GPUs" if all(n.gpus == 0 for n in able) else "with GPUs" if all(n.gpus for n in able) else ""
    return f"{len(able)} of {len(nodes)} {kind}".strip()
