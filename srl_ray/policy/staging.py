"""Buffers in which the requests of a batch are joined before they go to the policy's device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from srl_ray.core.types import FieldSpec
from srl_ray.streams.inference import InferenceRequest, request_arrays, request_fields

_FEWEST_ROWS = 64


class Staging:
    """One buffer per field, kept from batch to batch; page-locked where they are copied to a GPU. One thread.

    Every field keeps its dtype up to the device: uint8 images are sent as uint8.
    """

    def __init__(self, obs: Mapping[str, FieldSpec], state_size: int, device: torch.device | None = None) -> None:
        """Args:
        device: Where the policy lives; None: the CPU.
        """
        self._fields = request_fields(obs, state_size)
        self._device = device
        self._tensors: dict[str, torch.Tensor] = {}
        self._arrays: dict[str, np.ndarray] = {}
        self.capacity = 0
        """Rows; the largest batch so far, rounded up to a power of two."""

    def load(
        self, requests: Sequence[InferenceRequest]
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]:
        """Copy the requests one below the other.

        Returns:
            Observations by field, states, on_reset and deterministic, on the device. On the CPU they are the buffers
            themselves: valid until the next call.
        """
        rows = sum(request.num_rows for request in requests)
        if rows > self.capacity or not self._tensors:
            self._reserve(rows)
        begin = 0
        for request in requests:
            end = begin + request.num_rows
            for name, array in request_arrays(request).items():
                self._arrays[name][begin:end] = array
            begin = end
        tensors = {name: tensor[:rows] for name, tensor in self._tensors.items()}
        if self._device is not None:
            tensors = {name: tensor.to(self._device, non_blocking=True) for name, tensor in tensors.items()}
        state, on_reset, deterministic = (tensors.pop(name) for name in ("state", "on_reset", "deterministic"))
        return {name[len("obs.") :]: obs for name, obs in tensors.items()}, state, on_reset, deterministic

    def _reserve(self, rows: int) -> None:
        self.capacity = 1 << (max(rows, _FEWEST_ROWS) - 1).bit_length()
        for name, spec in self._fields.items():
            tensor = torch.from_numpy(spec.zeros(self.capacity))
            if self._device is not None and self._device.type == "cuda":
                tensor = tensor.pin_memory()
            self._tensors[name], self._arrays[name] = tensor, tensor.numpy()
