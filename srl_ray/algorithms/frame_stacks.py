"""Stacked observations of a sample batch, rebuilt from frames for the rows that are needed (see `FrameStack`)."""

from __future__ import annotations

import torch
from torch import Tensor

from srl_ray.core.types import FRAMES_PREFIX, STACK_PREFIX
from srl_ray.models.policy import Tensors
from srl_ray.models.tower import BURN_IN_PREFIX, OBS_PREFIX


def split_frames(batch: Tensors) -> tuple[Tensors, Tensors]:
    """Take the frames out of a sample batch and let its stacks point to them.

    Returns:
        The batch with stack.<field> int64 [T, B, ...] in place of offsets, which may be cut and chosen from as all its
        fields; and field → frames [F·B, ...].
    """
    frames = {name[len(FRAMES_PREFIX) :]: x for name, x in batch.items() if name.startswith(FRAMES_PREFIX)}
    rest = {name: x for name, x in batch.items() if not name.startswith(FRAMES_PREFIX)}
    for field, x in frames.items():
        offsets = rest[STACK_PREFIX + field]
        rows, chunks, ones = *offsets.shape[:2], (1,) * (offsets.dim() - 2)
        own = torch.arange(len(x) - rows, len(x), device=x.device).view(rows, 1, *ones)
        chunk = torch.arange(chunks, device=x.device).view(1, chunks, *ones)
        rest[STACK_PREFIX + field] = (own - offsets).masked_fill_(offsets < 0, 0) * chunks + chunk
    return rest, {field: x.flatten(0, 1) for field, x in frames.items()}


def rebuild(rows: Tensors, frames: Tensors) -> Tensors:
    """Rows [a, b, ...] with obs.<field> in place of stack.<field>; also where burn-in stands before both names."""
    rebuilt = {}
    for name, x in rows.items():
        prefix = BURN_IN_PREFIX if name.startswith(BURN_IN_PREFIX) else ""
        if name.startswith(prefix + STACK_PREFIX):
            field = name[len(prefix + STACK_PREFIX) :]
            rebuilt[prefix + OBS_PREFIX + field] = _gather(frames[field], x)
        else:
            rebuilt[name] = x
    return rebuilt


def with_stacks(batch: Tensors) -> Tensors:
    """The batch with all its stacks rebuilt at once."""
    return rebuild(*split_frames(batch))


def _gather(frames: Tensor, index: Tensor) -> Tensor:
    """Frames [N, ...] at index [a, b, ...], which says by its one axis longer than 1 where to stack them.

    The stack's axis is the last one in memory: images become channels-last, as convolutions on CPUs want them.
    """
    rows = index.shape[0] * index.shape[1]
    axis = next(axis for axis, size in enumerate(index.shape[2:]) if size > 1)
    columns, frames = index.reshape(rows, -1).unbind(1), frames.squeeze(1 + axis)
    stacks = frames.new_empty(rows, *frames.shape[1:], len(columns))
    for place, column in enumerate(columns):
        stacks[..., place] = frames.index_select(0, column)
    return stacks.unflatten(0, index.shape[:2]).movedim(-1, 2 + axis)
