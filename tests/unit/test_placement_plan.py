"""The placement plan: shares, devices, pools, and infeasibility in words."""

from __future__ import annotations

import pytest

from srl_ray.core.errors import ConfigError, PlacementError
from srl_ray.placement.config import PlacementConfig
from srl_ray.placement.groups import plan_when_possible
from srl_ray.placement.plan import NODE_ID_LABEL, NodeInfo, PlacementPlan, RoleRequest, make_plan

pytestmark = pytest.mark.unit

LAPTOP = [NodeInfo("a", 2, name="laptop")]
MIXED = [NodeInfo("g", 16, 4, name="gpu0"), *(NodeInfo(f"c{i}", 32, name=f"cpu{i}") for i in range(3))]


def refuse(requests: list[RoleRequest], nodes: list[NodeInfo], config: PlacementConfig | None = None) -> str:
    with pytest.raises(PlacementError) as caught:
        make_plan(requests, nodes, config)
    return str(caught.value)


def check_fits(plan: PlacementPlan) -> None:
    for i, bundle in enumerate(plan.bundles):
        inside = [s for s in plan.slots if s.bundle == i]
        assert inside
        assert sum(s.cpus for s in inside) == pytest.approx(bundle.cpus)
        assert sum(s.gpus for s in inside) == pytest.approx(bundle.gpus)


@pytest.mark.parametrize(("actors", "share"), [(1, 1.0), (2, 0.66), (3, 0.5), (7, 0.25)])
def test_open_shares_divide_the_cores(actors: int, share: float):
    plan = make_plan([RoleRequest("trainer", 1), RoleRequest("actor", actors)], LAPTOP)
    assert plan.share("trainer") == plan.share("actor") == share
    assert sum(b.cpus for b in plan.bundles) <= 2
    check_fits(plan)


def test_more_than_four_workers_per_core_is_refused_in_words():
    text = refuse([RoleRequest("trainer", 1), RoleRequest("actor", 8)], LAPTOP)
    assert "actor asks for 8 workers with 0.25 CPU each" in text
    assert "2.25 CPU in all, the cluster has 2" in text
    assert "Lower actors.count" in text


def test_explicit_shares_win_and_are_taken_off_first():
    plan = make_plan([RoleRequest("trainer", 1, cpus=1.5), RoleRequest("actor", 1)], LAPTOP)
    assert plan.share("trainer") == 1.5
    assert plan.share("actor") == 0.5


def test_shares_shrink_until_single_nodes_are_filled():
    nodes = [NodeInfo("a", 1), NodeInfo("b", 1)]
    plan = make_plan([RoleRequest("actor", 3)], nodes)
    assert plan.share("actor") == 0.5
    check_fits(plan)


def test_a_gpu_that_is_not_there_is_refused_with_amounts_and_the_role():
    text = refuse([RoleRequest("trainer", 1, gpus=1), RoleRequest("actor", 1)], LAPTOP)
    assert "trainer asks for 1 worker with 1 GPU" in text
    assert "has 0 GPU in all" in text
    assert "trainers.gpus=0" in text


def test_64_explicit_cpus_are_refused_on_two_cores():
    text = refuse([RoleRequest("trainer", 1), RoleRequest("actor", 64, cpus=1)], LAPTOP)
    assert "actor asks for 64 workers with 1 CPU each" in text
    assert "the cluster has 2" in text


def test_no_single_node_is_said():
    text = refuse([RoleRequest("trainer", 1, cpus=40)], MIXED)
    assert "no single node" in text
    assert "the largest has 32 CPU" in text


def test_fractions_are_counted_per_device():
    nodes = [NodeInfo("x", 64, 8)]
    text = refuse([RoleRequest("trainer", 10, gpus=0.6)], nodes)
    assert "no single GPU is left" in text
    make_plan([RoleRequest("trainer", 8, gpus=0.6)], nodes)


def test_fractions_that_fit_one_device_share_its_bundle():
    plan = make_plan([RoleRequest("policy_worker", 4, gpus=0.5)], [NodeInfo("x", 64, 2)])
    assert [b.gpus for b in plan.bundles] == [1.0, 1.0]
    assert plan.bundle_indices("policy_worker") == [0, 0, 1, 1]
    check_fits(plan)


@pytest.mark.parametrize("gpus", [1.5, -1.0])
def test_odd_amounts_are_refused(gpus: float):
    with pytest.raises(ConfigError, match="gpus must be"):
        RoleRequest("trainer", 1, gpus=gpus)


def test_cpu_pools_are_kept_off_accelerator_nodes():
    plan = make_plan([RoleRequest("trainer", 2, gpus=1), RoleRequest("actor", 90)], MIXED)
    actor_bundles = {plan.bundles[i].selector[NODE_ID_LABEL] for i in plan.bundle_indices("actor")}
    assert actor_bundles == {"in(c0,c1,c2)"}
    assert all(not plan.bundles[i].selector for i in plan.bundle_indices("trainer"))
    assert plan.share("trainer") == 1.0
    check_fits(plan)


def test_without_cpu_only_nodes_everything_shares_the_gpu_node():
    plan = make_plan([RoleRequest("trainer", 1, gpus=1), RoleRequest("actor", 15)], [NodeInfo("g", 16, 1)])
    assert all(not b.selector for b in plan.bundles)


def test_a_full_cpu_pool_says_how_to_use_the_gpu_node_too():
    text = refuse([RoleRequest("actor", 100, cpus=1)], MIXED)
    assert "placement.keep_cpu_pools_off_accelerators=false" in text
    make_plan([RoleRequest("actor", 100, cpus=1)], MIXED, PlacementConfig(keep_cpu_pools_off_accelerators=False))


def test_labels_of_the_operator_replace_node_ids():
    nodes = [NodeInfo("g", 16, 4), NodeInfo("c", 32, labels={"pool": "sim"}), NodeInfo("d", 32)]
    plan = make_plan([RoleRequest("actor", 4)], nodes, PlacementConfig(actors_labels={"pool": "sim"}))
    assert {tuple(b.selector.items()) for b in plan.bundles} == {(("pool", "sim"),)}
    text = refuse([RoleRequest("actor", 4)], nodes, PlacementConfig(actors_labels={"pool": "other"}))
    assert "no node has them" in text


def test_colocated_workers_share_bundles_and_devices():
    requests = [RoleRequest("trainer", 2, gpus=0.5), RoleRequest("policy_worker", 2, gpus=0.5, colocate_with="trainer")]
    plan = make_plan(requests, MIXED)
    assert plan.bundle_indices("trainer") == plan.bundle_indices("policy_worker") == [0, 1]
    assert [b.gpus for b in plan.bundles] == [1.0, 1.0]
    check_fits(plan)


def test_colocated_cpu_workers_follow_to_the_gpu_node():
    requests = [RoleRequest("policy_worker", 1, gpus=1), RoleRequest("actor", 8, colocate_with="policy_worker")]
    plan = make_plan(requests, MIXED)
    assert len(plan.bundles) == 1
    assert plan.bundles[0].cpus == 9
    check_fits(plan)


def test_colocation_that_overfills_a_device_is_refused():
    requests = [RoleRequest("trainer", 1, gpus=0.6), RoleRequest("policy_worker", 1, gpus=0.6, colocate_with="trainer")]
    assert "need 1.2 of it" in refuse(requests, MIXED)


def test_colocation_with_nobody_is_a_mistake():
    with pytest.raises(ConfigError, match="has no workers"):
        make_plan([RoleRequest("actor", 1, colocate_with="policy_worker")], LAPTOP)


def test_no_workers_of_a_role_take_nothing():
    plan = make_plan([RoleRequest("actor", 1), RoleRequest("policy_worker", 0)], LAPTOP)
    assert plan.bundle_indices("policy_worker") == []
    assert "policy_worker" not in plan.explain()


def test_large_pools_are_joined_into_few_bundles():
    nodes = [NodeInfo(f"n{i}", 64) for i in range(100)]
    plan = make_plan([RoleRequest("actor", 6000)], nodes)
    assert len(plan.bundles) == 750
    check_fits(plan)


def test_memory_is_reserved_and_checked():
    nodes = [NodeInfo("a", 8, memory=8 * 2**30)]
    plan = make_plan([RoleRequest("actor", 2, memory=3 * 2**30)], nodes)
    assert plan.bundles[0].resources()["memory"] == 3 * 2**30
    assert "GiB" in refuse([RoleRequest("actor", 3, memory=3 * 2**30)], nodes)


def test_explain_is_a_table_of_roles_and_the_cluster():
    text = make_plan([RoleRequest("trainer", 1, gpus=1), RoleRequest("actor", 8)], MIXED).explain()
    assert "trainer" in text
    assert "3 of 4 without GPUs" in text
    assert "cluster: 4 nodes, 112 CPU, 4 GPU" in text


def test_an_empty_cluster_is_said():
    assert "no nodes" in refuse([RoleRequest("actor", 1)], [])


def test_planning_waits_for_nodes_that_come_late():
    seen = iter([[], [], LAPTOP])
    plan = plan_when_possible(
        [RoleRequest("actor", 1)], PlacementConfig(), wait_s=5.0, poll_s=0.0, read_nodes=lambda: next(seen)
    )
    assert plan.nodes == tuple(LAPTOP)
    with pytest.raises(PlacementError):
        plan_when_possible([RoleRequest("actor", 1)], PlacementConfig(), read_nodes=list)
