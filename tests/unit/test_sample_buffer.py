"""One gate owns staleness; every chunk is accounted for."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from srl_ray.streams.sample_buffer import ChunkMessage, Grant, Producer, SampleBuffer

pytestmark = pytest.mark.unit


def message(count: int = 1, version: int = 0, rows: int = 4, epoch: int = 0, sequence: int = 0) -> ChunkMessage:
    arrays = {"reward": np.zeros((rows, count), np.float32)}
    return ChunkMessage(
        arrays, np.arange(count), np.full(count, version), np.full(count, rows), np.full(count, epoch), sequence
    )


def is_balanced(buffer: SampleBuffer) -> bool:
    m = buffer.metrics
    return m.accepted == m.finished + m.expired + m.waiting + m.lost


def test_grants_stop_at_the_budget_and_go_on_with_the_version() -> None:
    buffer = SampleBuffer(batch_chunks=2, max_staleness=0)
    assert buffer.ask(Producer(0, 0), 1, 0).granted == 1
    assert buffer.ask(Producer(1, 0), 1, 0).granted == 1
    assert buffer.ask(Producer(2, 0), 1, 0).granted == 0
    buffer.set_version(1)
    assert buffer.ask(Producer(2, 0), 1, 0) == Grant(1, True, 1, 0, awaited=True)


def test_staleness_leads_by_s_batches() -> None:
    buffer = SampleBuffer(batch_chunks=2, max_staleness=3)
    grants = [buffer.ask(Producer(i, 0), 1, 0).granted for i in range(9)]
    assert grants == [1] * 8 + [0]


def test_reuse_shrinks_the_lead() -> None:
    buffer = SampleBuffer(batch_chunks=2, max_staleness=3, reuse=4)
    assert [buffer.ask(Producer(i, 0), 1, 0).granted for i in range(3)] == [1, 1, 0]
    for version in (1, 2, 3):
        buffer.set_version(version)
        assert buffer.ask(Producer(2, 0), 1, 0).granted == 0
    buffer.set_version(4)
    assert buffer.ask(Producer(2, 0), 1, 0).granted == 1


def test_take_returns_the_oldest_batch_and_none_when_late() -> None:
    buffer = SampleBuffer(batch_chunks=3, max_staleness=None)
    buffer.push(Producer(0, 0), message(2), 0, 0)
    assert buffer.take(0) is None
    buffer.push(Producer(1, 0), message(2), 0, 0)
    taken = buffer.take(0)
    assert taken is not None
    assert [(c.producer.worker, c.column) for c in taken] == [(0, 0), (0, 1), (1, 0)]
    assert is_balanced(buffer)
    assert buffer.metrics.waiting == 1


def test_too_stale_chunks_expire_and_return_their_grant() -> None:
    buffer = SampleBuffer(batch_chunks=1, max_staleness=1)
    assert buffer.ask(Producer(0, 0), 2, 0).granted == 2
    buffer.push(Producer(0, 0), message(2, version=0), 0, 0)
    buffer.set_version(2)
    assert buffer.take(0) is None
    assert buffer.metrics.expired == 2
    assert is_balanced(buffer)
    assert buffer.ask(Producer(0, 0), 3, 0).granted == 3


def test_chunks_of_another_trainer_epoch_are_refused_and_counted() -> None:
    buffer = SampleBuffer(batch_chunks=1, max_staleness=None)
    buffer.set_version(5, epoch=1)
    grant = buffer.push(Producer(0, 0), message(2, epoch=0), 0, 0)
    assert grant.accepted
    assert grant.epoch == 1
    assert buffer.metrics.refused == 2
    assert buffer.metrics.accepted == 0


def test_a_dead_workers_grants_come_back_and_its_late_messages_are_refused() -> None:
    buffer = SampleBuffer(batch_chunks=2, max_staleness=0)
    assert buffer.ask(Producer(0, 0), 2, 0).granted == 2
    assert buffer.ask(Producer(1, 0), 2, 0).granted == 0
    buffer.forget(0, epoch=1)
    assert buffer.ask(Producer(1, 0), 2, 0).granted == 2
    assert buffer.push(Producer(0, 0), message(2), 2, 0).closed
    assert buffer.metrics.refused == 2


def test_full_buffer_holds_the_producer_back_in_chunks_and_in_bytes() -> None:
    for limits in ({"capacity_chunks": 2}, {"capacity_bytes": 40}):
        buffer = SampleBuffer(batch_chunks=2, max_staleness=None, **limits)
        assert buffer.push(Producer(0, 0), message(2), 0, 0).accepted
        assert not buffer.push(Producer(0, 0), message(2), 0, 0).accepted
        assert buffer.take(0)
        assert buffer.push(Producer(0, 0), message(2), 0, 0).accepted


def test_waiting_producer_is_woken_by_the_next_version() -> None:
    buffer = SampleBuffer(batch_chunks=1, max_staleness=0)
    buffer.ask(Producer(0, 0), 1, 0)
    grants: list[Grant] = []
    thread = threading.Thread(target=lambda: grants.append(buffer.ask(Producer(1, 0), 1, 10)))
    thread.start()
    buffer.set_version(1)
    thread.join(5)
    assert grants[0].granted == 1
    assert grants[0].version == 1


def test_what_is_left_of_the_budget_is_granted() -> None:
    buffer = SampleBuffer(batch_chunks=4, max_staleness=0)
    assert buffer.ask(Producer(0, 0), 3, 0).granted == 3
    assert buffer.ask(Producer(1, 0), 3, 0).granted == 1
    assert buffer.ask(Producer(1, 0), 2, 0).granted == 0


def test_a_block_whose_chunks_are_awaited_is_told_to_go_on() -> None:
    """Lanes that completed early must not hold back those that the next batch needs."""
    buffer = SampleBuffer(batch_chunks=2, max_staleness=0)
    block = Producer(0, 0)
    assert buffer.ask(block, 2, 0).granted == 2
    assert buffer.push(block, message(1), 0, 0).awaited
    answer = buffer.ask(block, 1, 30)  # at once
    assert answer.awaited
    assert answer.granted == 0
    assert not buffer.push(block, message(1), 1, 0).awaited
    assert not buffer.ask(Producer(1, 0), 1, 0).awaited, "it has begun nothing"
    assert buffer.take(0)
    assert not buffer.ask(block, 1, 0).awaited, "nothing of it is missing: it may wait for the new version"


def test_close_unblocks_takers_and_askers() -> None:
    for call in (lambda buffer: buffer.take(30), lambda buffer: buffer.ask(Producer(0, 0), 1, 30).closed or None):
        buffer = SampleBuffer(batch_chunks=1, max_staleness=0)
        assert buffer.ask(Producer(1, 0), 1, 0).granted == 1
        results: list[object] = []
        thread = threading.Thread(target=lambda c=call, b=buffer, r=results: r.append(c(b)))
        thread.start()
        buffer.close()
        thread.join(5)
        assert results in ([None], [True])


def test_deterministic_order_does_not_depend_on_arrival() -> None:
    keys = []
    for order in ([0, 1, 2], [2, 0, 1]):
        buffer = SampleBuffer(batch_chunks=6, max_staleness=0, sort=True)
        for worker in order:
            buffer.push(Producer(worker, 0), message(2), 0, 0)
        taken = buffer.take(0)
        assert taken is not None
        keys.append([chunk.key for chunk in taken])
    assert keys[0] == keys[1]


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_staleness_holds_in_a_simulated_run(max_staleness: int) -> None:
    """Producers at random speeds against a trainer at random speed. In synchronous training nothing expires; beyond it
    a producer that falls more than S updates behind loses its chunk, which is counted."""
    rng = np.random.default_rng(max_staleness)
    buffer = SampleBuffer(batch_chunks=4, max_staleness=max_staleness)
    version, progress = 0, {}
    worst = 0
    for _ in range(4000):
        if rng.random() < 0.9:
            producer = Producer(int(rng.integers(4)), int(rng.integers(2)))
            if producer in progress and rng.random() < 0.5:
                buffer.push(producer, message(1, version=progress.pop(producer)), 0, 0)
            elif producer not in progress:
                grant = buffer.ask(producer, 1, 0)
                if grant.granted:
                    progress[producer] = grant.version
        else:
            taken = buffer.take(0)
            if taken:
                worst = max(worst, *(version - chunk.oldest_version for chunk in taken))
                version += 1
                buffer.set_version(version)
    assert version > 50
    assert worst <= max_staleness
    assert buffer.metrics.expired <= (0.1 * buffer.metrics.accepted if max_staleness else 0)
    assert is_balanced(buffer)


def test_equal_shares_do_not_depend_on_who_asks_first() -> None:
    buffer = SampleBuffer(batch_chunks=4, max_staleness=0, sort=True, producers=2)
    assert buffer.ask(Producer(0, 0), 2, 0).granted == 2
    assert buffer.ask(Producer(0, 0), 2, 0).granted == 0, "the other one's share"
    assert buffer.ask(Producer(1, 0), 3, 0).granted == 2
    buffer.forget(0, epoch=1)
    assert buffer.ask(Producer(0, 0, epoch=1), 3, 0).granted == 2
    buffer.set_version(1)
    assert buffer.ask(Producer(1, 0), 3, 0).granted == 2
