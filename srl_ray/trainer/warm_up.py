"""An update that is taken back: whatever happens at the first one only, such as compilation, is over with."""

from __future__ import annotations

from copy import deepcopy
from typing import cast

import torch
from torch import Tensor, nn

from srl_ray.algorithms.algorithm import Algorithm
from srl_ray.core.types import BlockSpec, ChunkLayout


def warm_up(algorithm: Algorithm, spec: BlockSpec, layout: ChunkLayout, chunks: int) -> None:
    """Blocks for an update, and for up to minutes where it compiles. On all ranks together: updates are collective."""
    module = cast(nn.Module, algorithm.policy)
    weights, state = deepcopy(module.state_dict()), deepcopy(algorithm.state_dict())
    device = next(module.parameters()).device
    batch = {name: tensor.to(device) for name, tensor in blank_batch(algorithm, spec, layout, chunks).items()}
    try:
        algorithm.update(batch, 0.0)
    finally:
        module.load_state_dict(weights)
        algorithm.load_state_dict(state)


def blank_batch(algorithm: Algorithm, spec: BlockSpec, layout: ChunkLayout, chunks: int) -> dict[str, Tensor]:
    """A sample batch as `Algorithm` describes it, of zeros that all count."""
    shape = (layout.rows, chunks)

    def zeros(dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    fields = {f"obs.{name}": field for name, field in spec.group.obs.items()} | {"action": spec.group.action.field}
    batch = {name: torch.from_numpy(f.zeros(layout.rows * chunks)).unflatten(0, shape) for name, f in fields.items()}
    batch |= {name: zeros(torch.float32) for name in ("log_prob", "value", "reward")}
    batch |= {name: zeros(torch.bool) for name in ("on_reset", "terminated", "truncated")}
    batch |= {"valid": ~zeros(torch.bool), "policy_version": zeros(torch.int64)}
    batch["state"] = torch.zeros(len(layout.state_rows), chunks, algorithm.policy.state_size)
    return batch
