"""The optimiser and what surrounds it: clipping, schedules, a state that is keyed by name, a way back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Optimizer:
    """One of torch's optimisers over all parameters of a module, with gradient clipping by global norm."""

    def __init__(self, module: nn.Module, *, kind: str, lr: float, eps: float, weight_decay: float) -> None:
        """Args:
        kind: adam (Kingma & Ba 2015), adamw (Loshchilov & Hutter 2019: decoupled decay), rmsprop or sgd.
        """
        self.parameters = dict(module.named_parameters())
        parameters = list(self.parameters.values())
        self._torch: torch.optim.Optimizer
        match kind:
            case "adam":
                self._torch = torch.optim.Adam(parameters, lr, eps=eps, weight_decay=weight_decay, fused=True)
            case "adamw":
                self._torch = torch.optim.AdamW(parameters, lr, eps=eps, weight_decay=weight_decay, fused=True)
            case "rmsprop":
                self._torch = torch.optim.RMSprop(parameters, lr, eps=eps, weight_decay=weight_decay)
            case "sgd":
                self._torch = torch.optim.SGD(parameters, lr, weight_decay=weight_decay)
            case _:
                raise ValueError(f"algorithm.optimizer must be adam, adamw, rmsprop or sgd, got {kind!r}")

    def set_learning_rate(self, learning_rate: float) -> None:
        for group in self._torch.param_groups:
            group["lr"] = learning_rate

    def zero_grad(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    def step(self, max_grad_norm: float | None) -> Tensor:
        """One step; returns the gradient's norm before clipping (a tensor, so that nothing waits for the device)."""
        limit = float("inf") if max_grad_norm is None else max_grad_norm
        norm = nn.utils.clip_grad_norm_(self.parameters.values(), limit)
        self._torch.step()
        return norm.detach()

    def state_dict(self) -> dict[str, Any]:
        """Parameter name → the optimiser's tensors; empty before the first step."""
        return {
            name: {key: tensor.clone() for key, tensor in self._torch.state[parameter].items()}
            for name, parameter in self.parameters.items()
            if parameter in self._torch.state
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._torch.state.clear()
        for name, tensors in state.items():
            parameter = self.parameters[name]
            self._torch.state[parameter] = {
                key: tensor.to(parameter.device, tensor.dtype, copy=True) for key, tensor in tensors.items()
            }

    def tensors(self) -> list[Tensor]:
        """Every tensor of the optimiser's state."""
        return [tensor for state in self._torch.state.values() for tensor in state.values()]

    def clear(self) -> None:
        self._torch.state.clear()


class Snapshot:
    """Keeps a copy of a module and its optimiser, to go back to when an update turned out not to be finite."""

    def __init__(self, module: nn.Module, optimizer: Optimizer) -> None:
        self._module = module
        self._optimizer = optimizer
        self._copies: list[Tensor] = []
        self._num_optimizer_tensors = 0

    @torch.no_grad()
    def take(self) -> None:
        """Copy everything; reuses the memory of the copy before."""
        live = self._live()
        if [tensor.shape for tensor in live] != [tensor.shape for tensor in self._copies]:
            self._copies = [torch.empty_like(tensor) for tensor in live]
        for copy, tensor in zip(self._copies, live, strict=True):
            copy.copy_(tensor)
        self._num_optimizer_tensors = len(self._optimizer.tensors())

    @torch.no_grad()
    def restore(self) -> None:
        """Write the copy back. Must follow a `take`."""
        if self._num_optimizer_tensors == 0:
            self._optimizer.clear()
        for tensor, copy in zip(self._live(), self._copies, strict=True):
            tensor.copy_(copy)

    def _live(self) -> list[Tensor]:
        return [*self._module.parameters(), *self._module.buffers(), *self._optimizer.tensors()]


def linear_schedule(start: float, end: float | None, progress: float) -> float:
    """From start to end as progress goes from 0 to 1; constant without an end."""
    return start if end is None else start + (end - start) * min(max(progress, 0.0), 1.0)
