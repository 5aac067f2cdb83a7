"""Several trainer workers as one: sums over ranks and averaged gradients on torch.distributed."""

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


def make_collective(world_size: int) -> Collective:
    """Identity for one trainer worker."""
    if world_size == 1:
        return Collective()
    return Collective(_reduce_sum, _average_gradients, world_size)


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


def _average_gradients(module: nn.Module) -> None:
    """One reduction of all gradients in one flat buffer; a missing gradient counts as zero."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    offset = 0
    for parameter in parameters:
        piece = flat[offset : offset + parameter.numel()].view_as(parameter)
        if parameter.grad is None:
            parameter.grad = piece.clone()
        else:
            parameter.grad.copy_(piece)
        offset += parameter.numel()
