"""The cluster sizes of the published hide-and-seek runs: they compose, and fit the clusters they speak of."""

from __future__ import annotations

from collections import Counter

import pytest

from srl_ray import compose
from srl_ray.experiment import role_requests
from srl_ray.placement.plan import NodeInfo, make_plan

pytestmark = pytest.mark.unit


def cluster(cpu_nodes: int, gpu_nodes: int) -> list[NodeInfo]:
    """Nodes with 256 cores, and nodes with 128 cores and 8 GPUs."""
    cpus = [NodeInfo(f"c{index}", 256, name=f"cpu{index}") for index in range(cpu_nodes)]
    return cpus + [NodeInfo(f"g{index}", 128, 8, name=f"gpu{index}") for index in range(gpu_nodes)]


@pytest.mark.parametrize(
    ("placement", "nodes", "workers"),
    [
        ("rapid", (1, 2), {"trainer": 8, "policy_worker": 32, "actor": 140}),
        ("srl_unit", (1, 1), {"trainer": 1, "policy_worker": 8, "actor": 120}),
        ("srl_unit_inline", (1, 1), {"trainer": 1, "actor": 240}),
        ("srl_public", (4, 1), {"trainer": 4, "policy_worker": 32, "actor": 960}),
        ("srl_largest", (60, 4), {"trainer": 32, "actor": 15360}),
    ],
)
def test_published_sizes_fit_their_clusters(placement: str, nodes: tuple[int, int], workers: dict[str, int]):
    config = compose(["experiment=hide_and_seek_published", f"placement=hide_and_seek_{placement}"])
    available = cluster(*nodes)
    plan = make_plan(role_requests(config), available, config.placement)
    assert Counter(slot.role for slot in plan.slots) == workers
    assert sum(bundle.gpus for bundle in plan.bundles) <= sum(node.gpus for node in available)
    assert sum(bundle.cpus for bundle in plan.bundles) <= sum(node.cpus for node in available)
    environments = config.actors.count * config.actors.ring_size * config.env.envs_per_block
    assert environments // config.actors.count == (20 if config.policy_workers.count else 10)
    assert config.trainers.batch_chunks * config.actors.sample_steps == 64_000 * config.policy.bptt_steps
