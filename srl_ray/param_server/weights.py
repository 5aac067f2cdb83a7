"""Weights as one flat buffer: cheap to put into the object store, to write to disk and to copy into a module.

The buffer is the data section of a safetensors file: tensors back to back, widest dtype first (so that all are
aligned), described by a layout of names, dtypes and shapes. Nothing here imports torch at module level; workers
without torch may hold and forward weights.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

_ITEM_BYTES = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
_NUMPY = {
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
    "F32": "float32",
    "I32": "int32",
    "U32": "uint32",
    "F16": "float16",
    "I16": "int16",
    "U16": "uint16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
_TORCH = {**_NUMPY, "BF16": "bfloat16"}
_CODE_OF_NAME = {name: code for code, name in _TORCH.items()}
_MAX_HEADER_BYTES = 100_000_000


class WeightsMismatch(ValueError):
    """The weights do not fit the module; the message lists names and shapes."""


class DamagedFile(ValueError):
    """A tensor file is truncated or its bytes changed."""


@dataclass(frozen=True)
class TensorLayout:
    """Where one tensor lies in the buffer. `dtype` is a safetensors code such as F32."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def num_bytes(self) -> int:
        return _ITEM_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class FlatWeights:
    """All tensors of a module, end to end.

    Attributes:
        data: uint8 [bytes]; read-only when it came out of the object store.
        layout: Tensors in buffer order.
    """

    data: np.ndarray
    layout: tuple[TensorLayout, ...]

    @property
    def num_bytes(self) -> int:
        return int(self.data.nbytes)

    @property
    def is_small(self) -> bool:
        """Travels in messages, not through the object store: there two objects per version, and their references in
        every process, cost more than 64 KiB."""
        return self.num_bytes <= 2**16

    def arrays(self) -> dict[str, np.ndarray]:
        """Name → numpy view of the buffer (bfloat16 as raw uint16)."""
        return {
            t.name: self.data[t.offset : t.offset + t.num_bytes]
            .view(np.dtype(_NUMPY.get(t.dtype, "uint16")))
            .reshape(t.shape)
            for t in self.layout
        }


def flatten(arrays: Mapping[str, np.ndarray]) -> FlatWeights:
    """Copy named numpy arrays into one buffer.

    Raises:
        ValueError: an array has a dtype that cannot be stored.
    """
    layout = _lay_out((name, _code(str(a.dtype), name), a.shape) for name, a in arrays.items())
    flat = FlatWeights(np.empty(_total_bytes(layout), np.uint8), layout)
    for name, view in flat.arrays().items():
        view[...] = arrays[name]
    return flat


def snapshot(module: torch.nn.Module) -> FlatWeights:
    """Copy a module's parameters and persistent buffers, from any device, into one new flat buffer.

    Blocks until the values have arrived (one transfer per device). Later updates of the module do not show.

    Example:
        flat = snapshot(policy)
        client.publish(flat, epoch=0, version=12, deadline_s=30)

    Raises:
        ValueError: the state dict holds something other than plain tensors.
    """
    return flatten_tensors(module.state_dict())


def flatten_tensors(tensors: Mapping[str, Any]) -> FlatWeights:
    """Like `snapshot`, for a name → torch tensor mapping."""
    import torch

    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"state dict entry {name!r} is a {type(tensor).__name__}; only tensors can be published")
    layout = _lay_out((n, _code(str(t.dtype).removeprefix("torch."), n), tuple(t.shape)) for n, t in tensors.items())
    data = np.empty(_total_bytes(layout), np.uint8)
    target = torch.from_numpy(data)
    with torch.no_grad():
        if all(tensors[t.name].device.type == "cpu" for t in layout):
            for t in layout:
                _tensor_view(target, t).copy_(tensors[t.name])
        elif layout:
            pieces = [tensors[t.name].detach().contiguous().reshape(-1).view(torch.uint8) for t in layout]
            device = next(p.device for p in pieces if p.device.type != "cpu")
            target.copy_(torch.cat([p.to(device) for p in pieces]))
    return FlatWeights(data, layout)


def install(module: torch.nn.Module, flat: FlatWeights) -> None:
    """Copy weights into a module's existing parameters and buffers, in place; one transfer when it is on a device.

    The caller keeps other threads from using the module meanwhile. Floating dtypes are converted where they differ.

    Raises:
        WeightsMismatch: other names, shapes or kinds of dtype; nothing was changed.
    """
    import torch

    targets: dict[str, torch.Tensor] = module.state_dict()
    problems = _mismatches(targets, flat)
    if problems:
        raise WeightsMismatch("the weights do not fit this policy:\n  " + "\n  ".join(problems))
    devices = {t.device for t in targets.values()}
    source = torch.from_numpy(_writable_alias(flat.data))
    if len(devices) == 1 and next(iter(devices)).type != "cpu":
        source = source.to(next(iter(devices)))
    with torch.no_grad():
        for t in flat.layout:
            targets[t.name].copy_(_tensor_view(source, t))


def unflatten_tensors(flat: FlatWeights) -> dict[str, torch.Tensor]:
    """Name → new CPU torch tensor (a copy that the caller may change)."""
    import torch

    source = torch.from_numpy(_writable_alias(flat.data))
    return {t.name: _tensor_view(source, t).clone() for t in flat.layout}


def save_safetensors(path: Path, flat: FlatWeights, metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file beside its final name, sync it, then rename it into place.

    A checksum goes into the file's metadata. Raises OSError when the disk does not take it; the old file then stays.
    """
    header: dict[str, Any] = {
        t.name: {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": [t.offset, t.offset + t.num_bytes]}
        for t in flat.layout
    }
    header["__metadata__"] = {**(metadata or {}), "crc32": f"{zlib.crc32(flat.data.data):08x}"}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            file.write(struct.pack("<Q", len(text)))
            file.write(text)
            file.write(flat.data.data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def load_safetensors(path: Path) -> tuple[FlatWeights, dict[str, str]]:
    """Read a safetensors file (ours or anybody's).

    Returns:
        The tensors and the file's metadata.

    Raises:
        DamagedFile: truncated, not a safetensors file, or the checksum differs.
        FileNotFoundError: no such file.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            (header_bytes,) = struct.unpack("<Q", file.read(8))
            if header_bytes > min(size, _MAX_HEADER_BYTES):
                raise DamagedFile(f"{path} is not a safetensors file or is truncated")
            header = json.loads(file.read(header_bytes))
            data = np.fromfile(file, np.uint8)
    except (struct.error, ValueError) as error:
        if isinstance(error, DamagedFile):
            raise
        raise DamagedFile(f"{path} is not a safetensors file or is truncated ({error})") from error
    metadata: dict[str, str] = header.pop("__metadata__", {})
    try:
        tensors = [
            TensorLayout(name, str(t["dtype"]), tuple(t["shape"]), int(t["data_offsets"][0]))
            for name, t in header.items()
        ]
        expected = sum(t.num_bytes for t in tensors)
    except (KeyError, TypeError, IndexError) as error:
        raise DamagedFile(f"{path} has an unreadable header ({error!r})") from error
    if expected != data.nbytes:
        raise DamagedFile(f"{path} holds {data.nbytes} bytes of tensors, {expected} were announced")
    if "crc32" in metadata and metadata["crc32"] != f"{zlib.crc32(data.data):08x}":
        raise DamagedFile(f"{path} does not match its checksum")
    return FlatWeights(data, tuple(sorted(tensors, key=lambda t: t.offset))), metadata


def _lay_out(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> tuple[TensorLayout, ...]:
    layout: list[TensorLayout] = []
    offset = 0
    for name, dtype, shape in sorted(tensors, key=lambda t: -_ITEM_BYTES[t[1]]):
        layout.append(TensorLayout(name, dtype, tuple(shape), offset))
        offset += layout[-1].num_bytes
    return tuple(layout)


def _total_bytes(layout: tuple[TensorLayout, ...]) -> int:
    return layout[-1].offset + layout[-1].num_bytes if layout else 0


def _code(dtype: str, name: str) -> str:
    try:
        return _CODE_OF_NAME[dtype]
    except KeyError:
        raise ValueError(f"{name!r} has dtype {dtype}, which cannot be stored; convert it to a plain dtype") from None


def _tensor_view(flat: torch.Tensor, t: TensorLayout) -> torch.Tensor:
    import torch

    return flat[t.offset : t.offset + t.num_bytes].view(getattr(torch, _TORCH[t.dtype])).view(t.shape)


def _writable_alias(data: np.ndarray) -> np.ndarray:
    """The same memory without the read-only flag, because torch warns about read-only arrays. Only ever read."""
    if data.flags.writeable or data.nbytes == 0:
        return data if data.flags.writeable else data.copy()
    memory = (ctypes.c_uint8 * data.nbytes).from_address(data.ctypes.data)
    memory._keep_alive = data  # type: ignore[attr-defined]
    return np.frombuffer(memoryview(memory), np.uint8)


def _mismatches(targets: Mapping[str, torch.Tensor], flat: FlatWeights) -> list[str]:
    given = {t.name: t for t in flat.layout}
    problems = [f"{name}: missing in the weights" for name in targets if name not in given]
    problems += [f"{name}: not part of the policy" for name in given if name not in targets]
    for name, tensor in targets.items():
        t = given.get(name)
        if t is None:
            continue
        if tuple(tensor.shape) != t.shape:
            problems.append(f"{name}: shape {list(t.shape)} in the weights, {list(tensor.shape)} in the policy")
        elif ("F" in t.dtype) != tensor.dtype.is_floating_point:
            problems.append(f"{name}: dtype {_TORCH[t.dtype]} in the weights, {tensor.dtype} in the policy")
    return problems
