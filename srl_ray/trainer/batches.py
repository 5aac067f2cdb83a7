"""From chunks in shared memory to one sample batch of tensors."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from srl_ray.streams.sample_buffer import Chunk, ChunkMessage


def assemble(chunks: list[Chunk], device: torch.device) -> dict[str, Tensor]:
    """Put chunks side by side: field → [T, B, ...], state [K, B, S], frames [F, B, ...]. Each number is copied once."""
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


class Prefetcher:
    """Assembles the chunks that are expected next in a thread of its own; on an accelerator in a stream of its own.

    Expectations may be wrong: `batch_of` returns the batch of the chunks it is given, whatever was foreseen.

    Lifecycle:   foresee(chunks) → batch_of(those or others) → foresee(…) … close(); all in one thread
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._thread = ThreadPoolExecutor(1, "prefetch")
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._foreseen: list[Chunk] = []
        self._batch: Future[dict[str, Tensor]] | None = None

    def foresee(self, chunks: list[Chunk]) -> None:
        """Begin with these chunks; does not block."""
        self._foreseen, self._batch = chunks, self._thread.submit(self._assemble, chunks)

    def batch_of(self, chunks: list[Chunk]) -> dict[str, Tensor]:
        """See `assemble`; waits for the batch if it is under way."""
        foreseen, batch = self._foreseen, self._batch
        self._foreseen, self._batch = [], None
        if batch is None or [id(chunk) for chunk in foreseen] != [id(chunk) for chunk in chunks]:
            return assemble(chunks, self._device)
        made = batch.result()
        if self._stream is not None:
            for tensor in made.values():
                tensor.record_stream(torch.cuda.current_stream(self._device))
        return made

    def _assemble(self, chunks: list[Chunk]) -> dict[str, Tensor]:
        if self._stream is None:
            return assemble(chunks, self._device)
        with torch.cuda.stream(self._stream):
            batch = assemble(chunks, self._device)
        self._stream.synchronize()
        return batch

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)


def _columns(array: np.ndarray, wanted: list[int]) -> np.ndarray:
    """A view where the columns are consecutive."""
    first, last = wanted[0], wanted[-1]
    if wanted == list(range(first, last + 1)):
        return array[:, first : last + 1]
    return array[:, wanted]


def trained_rows(chunks: list[Chunk]) -> int:
    """Rows of the chunks that count in the loss."""
    return int(sum(chunk.message.trained_rows[chunk.column] for chunk in chunks))
