"""Order, tags, collection and lineage of the parameter store."""

from __future__ import annotations

import pytest

from srl_ray.param_server.store import NOTHING, ParameterStore

pytestmark = pytest.mark.unit


def publish(store: ParameterStore, epoch: int, version: int, *tags: str) -> bool:
    return store.publish("main", epoch=epoch, version=version, weights=f"w{epoch}.{version}", tags=tags).accepted


def stamps(store: ParameterStore) -> list[tuple[int, int]]:
    return [e.stamp for e in store.entries("main")]


def test_latest_is_the_newest_and_nothing_is_newer_than_it():
    store = ParameterStore(keep=3)
    assert store.latest("main") is None
    assert store.newer("main", NOTHING) is None
    publish(store, 0, 1)
    publish(store, 0, 2)
    latest = store.latest("main")
    assert latest is not None
    assert latest.weights == "w0.2"
    assert store.newer("main", (0, 1)) is latest
    assert store.newer("main", (0, 2)) is None


def test_a_late_publication_is_refused_and_counted():
    store = ParameterStore()
    publish(store, 0, 5)
    assert not publish(store, 0, 4)
    publish(store, 1, 2)
    assert not publish(store, 0, 6)
    assert store.counts()["refused"] == 2


def test_publishing_the_newest_again_is_harmless():
    store = ParameterStore()
    publish(store, 0, 5, "best")
    assert publish(store, 0, 5)
    assert stamps(store) == [(0, 5)]
    assert store.get("main", tag="best").version == 5


def test_a_newer_epoch_takes_the_lineage_up_and_drops_its_abandoned_future():
    store = ParameterStore(keep=10)
    for version in (3, 4, 5, 6):
        publish(store, 0, version, *(["league"] if version == 6 else []))
    outcome = store.publish("main", epoch=1, version=4, weights="again")
    assert {e.stamp for e in outcome.dropped} == {(0, 4), (0, 5)}
    assert stamps(store) == [(1, 4), (0, 6), (0, 3)]
    assert store.get("main").weights == "again"
    assert store.newer("main", (0, 6)) is store.latest("main")
    assert store.get("main", tag="league").stamp == (0, 6)


def test_untagged_versions_beyond_the_newest_k_are_collected():
    store = ParameterStore(keep=2)
    for version in range(6):
        publish(store, 0, version, *(["first"] if version == 0 else []))
    assert stamps(store) == [(0, 5), (0, 4), (0, 0)]
    assert store.counts()["collected"] == 3
    assert [e.stamp for e in store.beyond_newest("main")] == [(0, 0)]


def test_moving_a_tag_releases_the_version_it_left():
    store = ParameterStore(keep=1)
    publish(store, 0, 0, "best")
    publish(store, 0, 1)
    entry, collected = store.tag("main", "best")
    assert entry.version == 1
    assert [e.version for e in collected] == [0]
    assert store.untag("main", "best") == ()
    assert stamps(store) == [(0, 1)]


def test_a_version_number_means_the_newest_epoch_that_has_it():
    store = ParameterStore(keep=5)
    publish(store, 0, 7, "old")
    publish(store, 1, 7)
    assert store.get("main", version=7).epoch == 1


def test_unknown_names_are_explained():
    store = ParameterStore(keep=1)
    with pytest.raises(LookupError, match=r"no version of policy 'main'.*none"):
        store.get("main")
    publish(store, 0, 3, "best")
    with pytest.raises(LookupError, match=r"version 2 .* \(kept: 3\)"):
        store.get("main", version=2)
    with pytest.raises(LookupError, match=r"no version tagged 'worst'.*best"):
        store.get("main", tag="worst")


def test_metadata_is_a_running_mean_with_counts():
    store = ParameterStore()
    publish(store, 0, 1)
    assert store.update_metadata("main", {"return": 10.0}, version=1, count=1)
    assert store.update_metadata("main", {"return": 4.0}, version=1, count=3)
    mean = store.get("main").means["return"]
    assert (mean.mean, mean.count) == (5.5, 4)
    assert not store.update_metadata("main", {"return": 1.0}, version=9)


def test_policies_are_apart():
    store = ParameterStore(keep=1)
    store.publish("a", epoch=0, version=5, weights=1)
    store.publish("b", epoch=0, version=2, weights=2)
    assert store.policies() == ["a", "b"]
    assert store.get("b").version == 2
