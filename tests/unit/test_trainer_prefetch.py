"""A batch made ahead of time is the batch that would have been made in its time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from srl_ray.algorithms.config import PPOConfig
from srl_ray.core.types import ChunkLayout
from srl_ray.models.config import ActorCriticConfig
from srl_ray.streams.sample_buffer import Chunk, ChunkMessage, Producer
from srl_ray.trainer import worker as trainer_worker
from srl_ray.trainer.batches import Prefetcher, assemble
from srl_ray.trainer.config import TrainersConfig
from srl_ray.trainer.worker import TrainerSettings, TrainerWorker

pytestmark = pytest.mark.unit
CPU = torch.device("cpu")


def message(number: int, version: int = 0, count: int = 2) -> ChunkMessage:
    arrays = {"reward": np.arange(3 * count, dtype=np.float32).reshape(3, count) + 100 * number}
    return ChunkMessage(arrays, np.arange(count), np.full(count, version), np.full(count, 3), np.zeros(count, int))


def chunks_of(*messages: ChunkMessage) -> list[Chunk]:
    return [Chunk(m, column, Producer(0, 0), 0) for m in messages for column in range(m.num_chunks)]


def make_worker(*, prefetch: bool | None, max_staleness: int | None = 1) -> TrainerWorker:
    trainers = TrainersConfig(batch_chunks=2, max_staleness=max_staleness, prefetch=prefetch)
    settings = TrainerSettings(
        0, 0, 0, trainers, PPOConfig(), ActorCriticConfig(), ChunkLayout(0, 2, 1, 2), "none", "policy"
    )
    return TrainerWorker(settings)


def test_the_foreseen_batch_is_used_and_equal() -> None:
    prefetcher = Prefetcher(CPU)
    chunks = chunks_of(message(1))
    prefetcher.foresee(chunks)
    made = prefetcher._batch
    assert made is not None
    batch = prefetcher.batch_of(list(chunks))
    assert batch is made.result()
    assert torch.equal(batch["reward"], assemble(chunks, CPU)["reward"])
    prefetcher.close()


def test_chunks_that_were_not_foreseen_get_their_own_batch() -> None:
    prefetcher = Prefetcher(CPU)
    first, second = chunks_of(message(1)), chunks_of(message(2))
    prefetcher.foresee(first)
    assert torch.equal(prefetcher.batch_of(second)["reward"], assemble(second, CPU)["reward"])
    assert torch.equal(prefetcher.batch_of(first)["reward"], assemble(first, CPU)["reward"])
    prefetcher.close()


def test_trainer_foresees_what_the_buffer_will_hand_out(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make_worker(prefetch=True)
    in_its_time: list[int] = []
    monkeypatch.setattr(trainer_worker, "assemble", lambda chunks, device: in_its_time.append(len(chunks)))
    for number, version in ((1, 0), (2, 1), (3, 0)):  # message 2 comes before 3, but 3 is older
        worker.push(Producer(number, 0), message(number, version), 0, 0.0)
    taken, metrics = [], worker._buffer.metrics
    for version in range(2):
        chunks = worker._buffer.take(0.0)
        assert chunks is not None
        foreseen = None if worker._prefetcher is None else worker._prefetcher._foreseen
        assert foreseen is None or list(map(id, foreseen)) == list(map(id, chunks))
        taken.append(worker._batch_of(chunks)["reward"][0, 0].item())
        assert metrics.accepted == metrics.finished + metrics.expired + metrics.waiting + metrics.lost
        worker._buffer.set_version(version + 1)
    assert taken == [100.0, 300.0]
    assert worker._prefetcher is not None
    assert worker._prefetcher._foreseen[0].message.arrays["reward"][0, 0] == 200.0
    assert not in_its_time  # the first, too, was made by the prefetcher, at once
    worker._prefetcher.close()


def test_nothing_is_foreseen_that_would_be_too_stale_when_it_is_trained() -> None:
    worker = make_worker(prefetch=True, max_staleness=1)
    for number in (1, 2):
        worker.push(Producer(number, 0), message(number), 0, 0.0)
    worker._buffer.set_version(1)
    chunks = worker._buffer.take(0.0)
    assert chunks is not None
    worker._batch_of(chunks)
    assert worker._prefetcher is not None
    assert worker._prefetcher._batch is None  # trained after version 2, the chunks of version 0 would be 2 behind
    worker._prefetcher.close()


def test_without_an_accelerator_the_default_is_off() -> None:
    worker = make_worker(prefetch=None)
    batch = worker._batch_of(chunks_of(message(1)))
    assert worker._prefetcher is None
    assert torch.equal(batch["reward"], torch.from_numpy(message(1).arrays["reward"]))
