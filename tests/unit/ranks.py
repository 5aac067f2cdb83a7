"""Trainer workers as threads: the collective is a barrier and a sum."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor, nn

from srl_ray.algorithms.algorithm import Collective

ResultT = TypeVar("ResultT")


class Ranks:
    """Runs a function once per rank, each with its own `Collective`; a rank that stays away breaks the barrier."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.calls = [0] * world_size
        self._barrier = threading.Barrier(world_size, timeout=20.0)
        self._slots: list[Tensor] = [torch.empty(0)] * world_size

    def run(self, function: Callable[[int, Collective], ResultT]) -> list[ResultT]:
        with ThreadPoolExecutor(self.world_size) as pool:
            futures = [pool.submit(function, rank, self._collective(rank)) for rank in range(self.world_size)]
            return [future.result() for future in futures]

    def _collective(self, rank: int) -> Collective:
        def reduce_sum(tensor: Tensor) -> Tensor:
            self.calls[rank] += 1
            self._slots[rank] = tensor.clone()
            self._barrier.wait()
            assert all(slot.shape == tensor.shape for slot in self._slots)
            tensor.copy_(torch.stack(self._slots).sum(0))
            self._barrier.wait()
            return tensor

        def backward(loss: Tensor, module: nn.Module) -> None:
            loss.backward()
            for parameter in module.parameters():
                assert parameter.grad is not None
                reduce_sum(parameter.grad).div_(self.world_size)

        return Collective(reduce_sum, backward, self.world_size)
