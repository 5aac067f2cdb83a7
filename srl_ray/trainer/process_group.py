"""Several trainer workers as one, on torch.distributed: sums over ranks, gradients averaged while backward goes on."""

from __future__ import annotations

import socket
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from srl_ray.algorithms.algorithm import Collective


def free_address() -> str:
    """host:port on this node that other trainer workers can reach. The port is free now."""
    import ray

    host = ray.util.get_node_ip_address()
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"


def join(address: str, rank: int, world_size: int, *, backend: str, timeout_s: float) -> None:
    """Join the group; blocks until all ranks have, at most `timeout_s`."""
    dist.init_process_group(
        backend,
        init_method=f"tcp://{address}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
    )


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def make_collective(world_size: int, *, bucket_bytes: int) -> Collective:
    """Nothing is summed for one trainer worker.

    Args:
        bucket_bytes: See `GradientBuckets`.
    """
    if world_size == 1:
        return Collective()
    buckets: dict[nn.Module, GradientBuckets] = {}

    def backward(loss: Tensor, module: nn.Module) -> None:
        if module not in buckets:
            buckets[module] = GradientBuckets(module, bucket_bytes)
        buckets[module].backward(loss)

    return Collective(_reduce_sum, backward, world_size)


def any_and_all(*, anyone: bool, everyone: bool, device: torch.device) -> tuple[bool, bool]:
    """Whether any rank says `anyone`, and whether all say `everyone`; the same answer on every rank."""
    flags = torch.tensor([int(anyone), int(everyone)], device=device)
    dist.all_reduce(flags)
    return bool(flags[0] > 0), bool(flags[1] == dist.get_world_size())


def broadcast_module(module: nn.Module) -> None:
    """Give every rank rank 0's weights and buffers."""
    for tensor in module.state_dict().values():
        dist.broadcast(tensor, src=0)


def _reduce_sum(tensor: Tensor) -> Tensor:
    dist.all_reduce(tensor)
    return tensor


class GradientBuckets:
    """Averages gradients over ranks, those of the last layers while backward still computes those of the first.

    Parameters go into buckets in the reverse order of their registration, which is about the order in which backward
    finishes them; a bucket is closed as soon as it holds `bucket_bytes`. A bucket is reduced when its gradients and
    all buckets before it are complete, so that the order is the same on every rank, whichever parameters its loss
    reaches: a missing gradient counts as zero. What is smaller than one bucket is reduced at once after backward.

    Gradients are views of the buckets' memory until the next `backward`.
    """

    def __init__(self, module: nn.Module, bucket_bytes: int) -> None:
        self._buckets: list[_Bucket] = []
        self._place: dict[nn.Parameter, int] = {}
        self._is_last_backward = False
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad][::-1]
        while parameters:
            taken, size = 1, parameters[0].nbytes
            while taken < len(parameters) and size < bucket_bytes and parameters[taken].dtype == parameters[0].dtype:
                size += parameters[taken].nbytes
                taken += 1
            self._place.update(dict.fromkeys(parameters[:taken], len(self._buckets)))
            self._buckets.append(_Bucket(parameters[:taken]))
            parameters = parameters[taken:]
        if len(self._buckets) > 1:
            for parameter in self._place:
                parameter.register_post_accumulate_grad_hook(self._take_in)

    def __len__(self) -> int:
        return len(self._buckets)

    def backward(self, loss: Tensor) -> None:
        """Blocks until all ranks have come to the same call and the gradients are averaged."""
        self._missing = [len(bucket.parameters) for bucket in self._buckets]
        self._under_way: list[dist.Work] = []
        self._is_last_backward = True
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        finally:
            self._is_last_backward = False
        for bucket in self._buckets[len(self._under_way) :]:
            self._under_way.append(bucket.reduce())
        for bucket, work in zip(self._buckets, self._under_way, strict=True):
            work.wait()
            bucket.give_back(dist.get_world_size())

    def _take_in(self, parameter: Tensor) -> None:
        """Called by autograd when a parameter's gradient is complete."""
        if not self._is_last_backward:
            return
        self._missing[self._place[parameter]] -= 1  # type: ignore[index]
        while len(self._under_way) < len(self._buckets) and not self._missing[len(self._under_way)]:
            self._under_way.append(self._buckets[len(self._under_way)].reduce())


class _Bucket:
    """Some parameters, and one flat tensor for their gradients."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self._flat = parameters[0].new_empty(sum(parameter.numel() for parameter in parameters), requires_grad=False)
        pieces = self._flat.split([parameter.numel() for parameter in parameters])
        # With the parameters' own strides: fused optimisers go through both memories in the same order.
        self._pieces = [
            piece.as_strided(parameter.shape, parameter.stride())
            for piece, parameter in zip(pieces, parameters, strict=True)
        ]

    @torch.no_grad()
    def reduce(self) -> dist.Work:
        """Begin to add the gradients over all ranks."""
        for piece, parameter in zip(self._pieces, self.parameters, strict=True):
            if parameter.grad is None:
                piece.zero_()
            else:
                piece.copy_(parameter.grad)
        work: dist.Work = dist.all_reduce(self._flat, async_op=True)
        return work

    def give_back(self, world_size: int) -> None:
        self._flat /= world_size
        for piece, parameter in zip(self._pieces, self.parameters, strict=True):
            parameter.grad = piece
