"""From chunks in shared memory to one sample batch of tensors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from srl_ray.streams.sample_buffer import Chunk, ChunkMessage


def assemble(chunks: list[Chunk], device: torch.device) -> dict[str, Tensor]:
    """Stack chunks side by side: field → [T, B, ...], state [K, B, S]. Each number is copied once."""
    parts: list[tuple[ChunkMessage, list[int]]] = []
    for chunk in chunks:
        if parts and parts[-1][0] is chunk.message:
            parts[-1][1].append(chunk.column)
        else:
            parts.append((chunk.message, [chunk.column]))
    batch = {}
    for name in parts[0][0].arrays:
        columns = [_columns(message.arrays[name], wanted) for message, wanted in parts]
        stacked = np.concatenate(columns, axis=1)
        tensor = torch.from_numpy(stacked)
        batch[name] = tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
    return batch


def _columns(array: np.ndarray, wanted: list[int]) -> np.ndarray:
    """A view where the columns are consecutive."""
    first, last = wanted[0], wanted[-1]
    if wanted == list(range(first, last + 1)):
        return array[:, first : last + 1]
    return array[:, wanted]


def trained_rows(chunks: list[Chunk]) -> int:
    """Rows of the chunks that count in the loss."""
    return int(sum(chunk.message.trained_rows[chunk.column] for chunk in chunks))
