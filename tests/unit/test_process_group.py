"""Gradients over two ranks, which are two processes with gloo: the same numbers however they are cut into buckets."""

from __future__ import annotations

import copy
import multiprocessing
import socket
from concurrent.futures import ProcessPoolExecutor
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from srl_ray.trainer import process_group
from srl_ray.trainer.config import TrainersConfig
from srl_ray.trainer.process_group import GradientBuckets

pytestmark = pytest.mark.unit

ONE_BUCKET = 2**20
BUCKET_BYTES = (0, 700, ONE_BUCKET)


class Network(nn.Module):
    """Convolutions in the layout that policies use, one layer only rank 0 uses, and one that nobody does."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.dense = nn.Linear(16, 16)
        self.unused = nn.Linear(5, 7)
        self.sometimes = nn.Linear(16, 16)
        self.head = nn.Linear(16, 1)

    def loss(self, rows: Tensor, rank: int) -> Tensor:
        x = torch.tanh(self.dense(torch.relu(self.image(rows)).flatten(1)))
        if rank == 0:
            x = x + self.sometimes(x)
        return self.head(x).square().sum()


def network() -> Network:
    torch.manual_seed(0)
    return Network()


def rows_of(rank: int, *, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(rows, 3, 4, 4, generator=generator).contiguous(memory_format=torch.channels_last)


def trained(module: Network, optimizer: Any, parts: list[Tensor], rank: int, backward: Any) -> None:
    """One step on the given microbatches."""
    optimizer.zero_grad()
    *earlier, last = parts
    for part in earlier:
        module.loss(part, rank).backward()
    backward(module.loss(last, rank), module)
    optimizer.step()


def flat_backward(loss: Tensor, module: nn.Module) -> None:
    """The plain way: everything in one reduction after backward."""
    loss.backward()
    for parameter in module.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def logged(reduce: Any, events: list[str]) -> Any:
    def logging_reduce(*args: Any, **kwargs: Any) -> Any:
        events.append("reduce")
        return reduce(*args, **kwargs)

    return logging_reduce


def one_rank(rank: int, port: int, case: str) -> list[tuple[int, bool, list[Tensor]]]:
    """Per size of the buckets: their number, whether a reduction began during backward, and the weights after steps."""
    torch.set_num_threads(1)
    process_group.join(f"127.0.0.1:{port}", rank, 2, backend="gloo", timeout_s=30.0)
    rows = 0 if case == "empty" and rank == 1 else 6
    parts = list(rows_of(rank, rows=rows).tensor_split(2 if case == "microbatches" else 1))
    results = []
    for bucket_bytes in (None, *BUCKET_BYTES):
        module = network()
        optimizer = torch.optim.Adam(module.parameters(), 1e-2, fused=True)
        events: list[str] = []
        module.image.weight.register_hook(lambda gradient, events=events: events.append("first layer"))
        backward: Any = flat_backward
        buckets = 0
        if bucket_bytes is not None:
            backward = process_group.make_collective(2, bucket_bytes=bucket_bytes).backward
            buckets = len(GradientBuckets(copy.deepcopy(module), bucket_bytes))
        for _ in range(3):
            events.clear()
            with mock.patch.object(dist, "all_reduce", logged(dist.all_reduce, events)):
                trained(module, optimizer, parts, rank, backward)
        assert events.count("first layer") == len(parts)
        last_microbatch = events[len(parts) - 1 :]  # only the last one's backward reduces anything
        assert events[: len(parts) - 1] == ["first layer"] * (len(parts) - 1)
        overlapped = last_microbatch.index("reduce") < last_microbatch.index("first layer")
        results.append((buckets, overlapped, [parameter.detach().clone() for parameter in module.parameters()]))
    process_group.leave()
    return results


@pytest.fixture(scope="module")
def both_ranks() -> Any:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:

        def run(case: str) -> list[list[tuple[int, bool, list[Tensor]]]]:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            return list(pool.map(one_rank, (0, 1), (port, port), (case, case), timeout=60))

        yield run


@pytest.mark.parametrize("case", ["even", "empty", "microbatches"])
def test_buckets_give_the_gradients_of_one_flat_reduction(both_ranks: Any, case: str) -> None:
    """With a layer that no rank uses, one that a single rank uses, and a rank whose minibatch is empty."""
    ranks = both_ranks(case)
    for (_, _, mine), (_, _, others) in zip(*ranks, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, others, strict=True)), "ranks differ"
    (_, _, flat), *bucketed = ranks[0]
    assert [buckets for buckets, _, _ in bucketed] == [10, 3, 1]
    for _, _, weights in bucketed:
        for got, expected in zip(weights, flat, strict=True):
            torch.testing.assert_close(got, expected)
    moved = [not torch.equal(a, b) for a, b in zip(flat, network().parameters(), strict=True)]
    assert moved.count(False) == 2, "all but the unused layer have learned"


def test_the_last_layers_are_reduced_while_backward_computes_the_first(both_ranks: Any) -> None:
    _, *bucketed = both_ranks("even")[0]
    assert [overlapped for _, overlapped, _ in bucketed] == [True, True, False]


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"trainers\.bucket_bytes"):
        TrainersConfig(bucket_bytes=-1)
