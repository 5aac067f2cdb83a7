"""Ray calls and shared memory are two ways to the same answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ray

import srl_ray
from srl_ray.envs.config import EnvConfig
from srl_ray.envs.factory import make_block
from srl_ray.models.config import ActorCriticConfig, HideAndSeekPolicyConfig, PolicyConfig
from srl_ray.streams.inference import InferenceReply, InferenceRequest
from tests.behaviour.serving import Serving, ask, request

pytestmark = [pytest.mark.behaviour, pytest.mark.timeout(120)]

TRANSPORTS = ("ray", "shared_memory")


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def play(env: EnvConfig, policy: PolicyConfig, transport: str, steps: int) -> list[InferenceReply]:
    """The answers to an environment block that does what they say."""
    block = make_block(env)
    spec, lanes = block.spec, block.spec.num_lanes
    serving = Serving(spec, policy)
    client, replies = serving.client(transport), []
    assert client.transport == transport
    step, state = block.reset(3), np.zeros((lanes, serving.signature.state_size), np.float32)
    for _ in range(steps):
        obs = {name: array.reshape(lanes, *array.shape[2:]) for name, array in step.obs.items()}
        asked = InferenceRequest(obs, state, step.on_reset.reshape(lanes), np.zeros(lanes, np.bool_))
        replies.append(ask(client, asked))
        state = replies[-1].state
        step = block.step(replies[-1].action.reshape(*step.present.shape, -1))
    assert serving.report(steps * lanes).rows == steps * lanes
    client.close()
    serving.end()
    block.close()
    return replies


@pytest.mark.parametrize(
    ("env", "policy", "steps"),
    [
        (EnvConfig(id="CartPole-v1", envs_per_block=16), ActorCriticConfig(), 60),
        (EnvConfig(id="CartPole-v1", envs_per_block=3), ActorCriticConfig(recurrent="lstm"), 60),
        (EnvConfig(id="hide_and_seek", envs_per_block=2), HideAndSeekPolicyConfig(), 25),
    ],
    ids=["vector", "lstm", "hide_and_seek"],
)
def test_one_seed_gives_the_same_answers_through_both(env: EnvConfig, policy: PolicyConfig, steps: int) -> None:
    by_ray, by_memory = (play(env, policy, transport, steps) for transport in TRANSPORTS)
    for a, b in zip(by_ray, by_memory):
        for name, value in vars(a).items():
            other = getattr(b, name)
            assert np.array_equal(value, other), name
            assert not isinstance(value, np.ndarray) or value.dtype == other.dtype
    assert len(np.unique(np.concatenate([reply.action for reply in by_ray]))) > 1


@pytest.fixture(scope="module")
def cartpole() -> Iterator[Serving]:
    block = make_block(EnvConfig(id="CartPole-v1", envs_per_block=8))
    serving = Serving(block.spec, ActorCriticConfig(recurrent="lstm"))
    block.close()
    yield serving
    serving.end()


def test_many_clients_of_both_kinds_get_their_own_answers(cartpole: Serving) -> None:
    """Batches join whatever is pending; every client still gets what it would get alone."""
    alone = cartpole.client("shared_memory")
    questions = [request(cartpole, rows, seed) for seed, rows in enumerate((1, 16, 7, 0, 8, 3))]
    expected = [ask(alone, question) for question in questions]
    before = cartpole.report(sum(question.num_rows for question in questions))
    total = 4 * 40 * sum(question.num_rows for question in questions) // 2
    wrong: list[str] = []

    def insist(index: int) -> None:
        client = cartpole.client(TRANSPORTS[index % 2], index=1 + index, slots=3)
        for turn in range(40):
            chosen = [(turn * 3 + slot + index) % len(questions) for slot in range(3)]
            for slot, number in enumerate(chosen):
                client.post(slot, questions[number])
            for slot, number in enumerate(chosen):
                reply = client.take(slot, 30.0)
                if reply is None or not np.array_equal(reply.action, expected[number].action):
                    wrong.append(f"client {index}, turn {turn}, slot {slot}")
                elif not np.allclose(reply.state, expected[number].state, atol=1e-5):
                    wrong.append(f"client {index}, turn {turn}, slot {slot}: state")
        client.close()

    threads = [threading.Thread(target=insist, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    after = cartpole.report(before.rows + total)
    assert after.rows - before.rows == total
    assert after.batches - before.batches < 4 * 40 * 3, "nothing was ever joined"
    assert 0 < after.queue_s[0] < after.latency_s[0] <= after.latency_s[1]
    assert set(after.seconds) == {"wait", "gather", "weights", "compute", "reply", "processor"}
    alone.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_answers_are_at_least_as_new_as_what_was_installed(cartpole: Serving, transport: str) -> None:
    client = cartpole.client(transport, index=20)
    newest = ask(client, request(cartpole, 2, 0)).version
    client.install(0, newest + 1)
    client.post(0, request(cartpole, 2, 0))
    assert client.take(0, 0.3) is None
    cartpole.publish(newest + 1)
    reply = client.take(0, 30.0)
    assert reply is not None
    assert (reply.epoch, reply.version) == (0, newest + 1)
    assert client.resends == 0
    client.close()


def test_a_minimum_batch_waits_for_others_but_not_for_ever() -> None:
    block = make_block(EnvConfig(id="CartPole-v1", envs_per_block=8))
    serving = Serving(block.spec, ActorCriticConfig(), min_batch_rows=16, max_wait_s=1.0)
    block.close()
    client = serving.client("shared_memory", slots=2)
    for slot in (0, 1):
        client.post(slot, request(serving, 8, slot))
    for slot in (0, 1):
        assert client.take(slot, 30.0) is not None
    report = serving.report(16)
    assert (report.rows, report.batches) == (16, 1)
    assert report.latency_s[1] < 0.9
    ask(client, request(serving, 8, 0))
    report = serving.report(24)
    assert (report.rows, report.batches) == (24, 2)
    assert report.queue_s[1] > 0.9
    client.close()
    serving.end()


@pytest.mark.parametrize(("transport", "counts"), [("auto", (1, 0)), ("ray", (0, 1))])
def test_a_run_on_one_node_shares_memory_and_says_so(tmp_path: Path, transport: str, counts: tuple[int, int]) -> None:
    result = srl_ray.run(
        {
            "experiment": "cartpole",
            "layout": "remote",
            "policy_workers.transport": transport,
            "run.dir": str(tmp_path / "run"),
            "run.plots": False,
            "run.video": False,
            "run.tensorboard": False,
            "run.log_interval_s": 0,
            "stop.env_steps": 4000,
        }
    )
    assert result.exit_status == 0
    said = (result.run_dir / "logs" / "driver.log").read_text()
    assert "inference: {} through shared memory, {} through Ray calls".format(*counts) in said
    records = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    asked = [record for record in records if record.get("inference/latency_p50_s")]
    assert max(record["inference/shared_memory_clients"] for record in asked) == counts[0]
    assert all(record["inference/queue_p50_s"] < record["inference/latency_p50_s"] for record in asked)
