"""The layer-wise optimiser LAMB."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn


class Lamb(torch.optim.Optimizer):
    """Adam's step, scaled per layer to the size of its weights (You et al. 2020, algorithm 2): for large batches.

        u = m̂ / (√v̂ + ε) + weight_decay · w,   w ← w − lr · (‖w‖ / ‖u‖) · u

    The trust ratio ‖w‖ / ‖u‖ is 1 where either is 0, as for biases that begin at 0. The same few calls take the steps
    of all parameters, without waiting for the device.

    Args:
        parameters: What is trained; each tensor is a layer.
        lr: Learning rate.
        betas: Decay of the first and the second moment.
        eps: ε.
        weight_decay: Decoupled, inside the trust ratio.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            weights: list[Tensor] = [parameter for parameter in group["params"] if parameter.grad is not None]
            if weights:
                self._step(group, weights)

    def _step(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        for weight in weights:
            if not self.state[weight]:
                zeros = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
                self.state[weight] = {"step": torch.zeros((), device=weight.device), **zeros}
        states = [self.state[weight] for weight in weights]
        gradients = [cast(Tensor, weight.grad) for weight in weights]
        firsts, seconds = [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states]
        torch._foreach_add_([s["step"] for s in states], 1.0)
        (beta1, beta2), step = group["betas"], states[0]["step"].double()
        torch._foreach_lerp_(firsts, gradients, 1.0 - beta1)
        torch._foreach_mul_(seconds, beta2)
        torch._foreach_addcmul_(seconds, gradients, gradients, 1.0 - beta2)
        scales = torch._foreach_div(seconds, 1.0 - beta2**step)
        torch._foreach_sqrt_(scales)
        torch._foreach_add_(scales, group["eps"])
        updates = torch._foreach_div(torch._foreach_div(firsts, 1.0 - beta1**step), scales)
        if group["weight_decay"]:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        sizes, lengths = (torch.stack(torch._foreach_norm(x)) for x in (weights, updates))
        trust = torch.where((sizes > 0) & (lengths > 0), sizes / lengths, 1.0)
        torch._foreach_mul_(updates, list(trust.unbind()))
        torch._foreach_add_(weights, updates, alpha=-group["lr"])
