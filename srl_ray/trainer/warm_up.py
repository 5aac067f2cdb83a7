"""An update that is taken back: whatever happens at the first one only, such as compilation, is over with."""

from __future__ import annotations

from copy import deepcopy
from typing import cast

import torch
from torch import Tensor, nn

from srl_ray.algorithms.algorithm import Algorithm
from srl_ray.core.types import FRAMES_PREFIX, STACK_PREFIX, BlockSpec, ChunkLayout


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

    batch = {"action": torch.from_numpy(spec.group.action.field.zeros(*shape))}
    for name, field in spec.group.obs.items():
        if field.stack is not None and getattr(algorithm, "takes_frames", False):
            frames = field.frame.zeros(layout.rows + field.stack.lead, chunks)
            batch |= {FRAMES_PREFIX + name: torch.from_numpy(frames)}
            batch |= {STACK_PREFIX + name: torch.from_numpy(field.offsets.zeros(*shape))}
        else:
            batch[f"obs.{name}"] = torch.from_numpy(field.zeros(*shape))
    batch |= {name: zeros(torch.float32) for name in ("log_prob", "value", "reward")}
    batch |= {name: zeros(torch.bool) for name in ("on_reset", "terminated", "truncated")}
    batch |= {"valid": ~zeros(torch.bool), "policy_version": zeros(torch.int64)}
    batch["state"] = torch.zeros(len(layout.state_rows), chunks, algorithm.policy.state_size)
    return batch
