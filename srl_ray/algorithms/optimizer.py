"""The optimiser and what surrounds it: clipping, schedules, a state that is keyed by name, a way back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from srl_ray.algorithms.config import AlgorithmConfig
from srl_ray.algorithms.gradient_clip import OutlierGuard, clip_units
from srl_ray.algorithms.lamb import Lamb

_GUARD = "grad_outlier"


class Optimizer:
    """The configured optimiser over all parameters of a module, with its bounds for gradients.

    Args:
        module: What is trained, in place.
        config: Says which optimiser (adam: Kingma & Ba 2015, adamw: Loshchilov & Hutter 2019, lamb, rmsprop, sgd) and
            how gradients are bounded; see `AlgorithmConfig`.
    """

    def __init__(self, module: nn.Module, config: AlgorithmConfig) -> None:
        self.config = config
        self.parameters = dict(module.named_parameters())
        parameters = list(self.parameters.values())
        lr, eps, weight_decay = config.learning_rate, config.adam_eps, config.weight_decay
        self.guard = None
        if config.grad_outlier is not None:
            self.guard = OutlierGuard(config.grad_outlier).to(parameters[0].device)
        self._torch: torch.optim.Optimizer
        match config.optimizer:
            case "adam":
                self._torch = torch.optim.Adam(parameters, lr, eps=eps, weight_decay=weight_decay, fused=True)
            case "adamw":
                self._torch = torch.optim.AdamW(parameters, lr, eps=eps, weight_decay=weight_decay, fused=True)
            case "lamb":
                self._torch = Lamb(parameters, lr, eps=eps, weight_decay=weight_decay)
            case "rmsprop":
                self._torch = torch.optim.RMSprop(parameters, lr, eps=eps, weight_decay=weight_decay)
            case "sgd":
                self._torch = torch.optim.SGD(parameters, lr, weight_decay=weight_decay)
            case kind:
                raise AssertionError(kind)

    def set_learning_rate(self, learning_rate: float) -> None:
        for group in self._torch.param_groups:
            group["lr"] = learning_rate

    def zero_grad(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    def step(self) -> Tensor:
        """One step; returns the gradient's norm before it was bounded (a tensor: nothing waits for the device)."""
        gradients = [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        scale = torch.ones_like(norm) if self.guard is None else self.guard.scale(norm)
        if self.config.grad_clip == "norm" and self.config.max_grad_norm is not None:
            scale = scale * (self.config.max_grad_norm / (norm * scale + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, scale)
        if self.config.grad_clip == "adaptive":
            clip_units(self.parameters, self.config.adaptive_clip)
        self._torch.step()
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Parameter name → the optimiser's tensors, none before the first step; and those of the outlier guard."""
        state = {
            name: {key: tensor.clone() for key, tensor in self._torch.state[parameter].items()}
            for name, parameter in self.parameters.items()
            if parameter in self._torch.state
        }
        if self.guard is not None:
            state[_GUARD] = {name: tensor.clone() for name, tensor in self.guard.state_dict().items()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._torch.state.clear()
        state = dict(state)
        guard = state.pop(_GUARD, None)
        if self.guard is not None and guard is not None:
            self.guard.load_state_dict(guard)
        for name, tensors in state.items():
            parameter = self.parameters[name]
            self._torch.state[parameter] = {
                key: tensor.to(parameter.device, tensor.dtype, copy=True) for key, tensor in tensors.items()
            }

    def tensors(self) -> list[Tensor]:
        """Every tensor of the optimiser's state."""
        guarded = [] if self.guard is None else list(self.guard.buffers())
        return [*guarded, *(tensor for state in self._torch.state.values() for tensor in state.values())]

    def take_outliers(self) -> Tensor:
        """Steps since the last call whose gradient was an outlier: float32, a scalar."""
        return torch.zeros(()) if self.guard is None else self.guard.take_outliers()

    @property
    def has_begun(self) -> bool:
        return len(self._torch.state) > 0

    def clear(self) -> None:
        """As before the first step."""
        self._torch.state.clear()


class Snapshot:
    """Keeps a copy of a module and its optimiser, to go back to when an update turned out not to be finite."""

    def __init__(self, module: nn.Module, optimizer: Optimizer) -> None:
        self._module = module
        self._optimizer = optimizer
        self._copies: list[Tensor] = []
        self._had_begun = False

    @torch.no_grad()
    def take(self) -> None:
        """Copy everything; reuses the memory of the copy before."""
        live = self._live()
        if [tensor.shape for tensor in live] != [tensor.shape for tensor in self._copies]:
            self._copies = [torch.empty_like(tensor) for tensor in live]
        for copy, tensor in zip(self._copies, live, strict=True):
            copy.copy_(tensor)
        self._had_begun = self._optimizer.has_begun

    @torch.no_grad()
    def restore(self) -> None:
        """Write the copy back. Must follow a `take`."""
        if not self._had_begun:
            self._optimizer.clear()
        for tensor, copy in zip(self._live(), self._copies, strict=True):
            tensor.copy_(copy)

    def _live(self) -> list[Tensor]:
        return [*self._module.parameters(), *self._module.buffers(), *self._optimizer.tensors()]


def linear_schedule(start: float, end: float | None, progress: float) -> float:
    """From start to end as progress goes from 0 to 1; constant without an end."""
    return start if end is None else start + (end - start) * min(max(progress, 0.0), 1.0)
