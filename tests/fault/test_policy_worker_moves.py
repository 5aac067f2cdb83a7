"""The way of a request follows the policy worker: shared memory on its own node, Ray calls between nodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

from srl_ray.core.errors import StreamError
from srl_ray.envs.config import EnvConfig
from srl_ray.envs.factory import make_block
from srl_ray.models.config import ActorCriticConfig
from tests.behaviour.serving import Serving, ask, request

pytestmark = [pytest.mark.fault, pytest.mark.timeout(240)]


@pytest.fixture
def node_ids() -> Iterator[tuple[str, str]]:
    """The driver's node, another one."""
    store = {"object_store_memory": 100_000_000}
    head = {"num_cpus": 2, "include_dashboard": False, **store}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    other = cluster.add_node(num_cpus=1, **store)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster.head_node.node_id, other.node_id
    ray.shutdown()
    for node in list(cluster.worker_nodes):
        cluster.remove_node(node, allow_graceful=False)
    cluster.shutdown()


def test_the_way_follows_the_policy_worker(node_ids: tuple[str, str]) -> None:
    here, elsewhere = node_ids
    block = make_block(EnvConfig(id="CartPole-v1", envs_per_block=4))
    policy = ActorCriticConfig(recurrent="lstm")
    first, second, third = (Serving(block.spec, policy, node_id=node) for node in (here, elsewhere, here))
    block.close()
    question = request(first, 5, 0)
    client = first.client("auto")
    assert client.transport == "shared_memory"
    expected = ask(client, question)

    client.post(0, question)
    os.kill(first.pid, signal.SIGKILL)
    client.take(0, 0.5)  # answered before the kill, or not at all
    client.post(0, question)
    assert client.take(0, 0.5) is None
    client.rewire(second.handle)
    reply = client.take(0, 30.0)
    assert reply is not None
    assert client.transport == "ray"
    np.testing.assert_array_equal(reply.action, expected.action)
    np.testing.assert_allclose(reply.state, expected.state, atol=1e-6)

    with pytest.raises(StreamError, match=r"cannot share memory .* it is on node"):
        second.client("shared_memory", index=1)

    client.post(0, question)
    os.kill(second.pid, signal.SIGKILL)
    client.rewire(third.handle)
    assert client.take(0, 30.0) is not None
    assert client.transport == "shared_memory"
    client.close()
    third.end()
