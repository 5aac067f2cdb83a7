"""Dense layers and their initialisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn

from srl_ray.core.errors import ConfigError

RELU_GAIN = math.sqrt(2.0)

LayerT = TypeVar("LayerT", nn.Linear, nn.Conv2d)


class Mlp(nn.Module):
    """Dense layers, each followed by an optional layer norm and the activation.

    Orthogonal weights with gain √2 and zero biases, as in Andrychowicz et al. 2021 (arXiv 2006.05990).
    """

    def __init__(self, in_size: int, hidden: Sequence[int], *, activation: str, layer_norm: bool = False) -> None:
        super().__init__()
        sizes = [in_size, *hidden]
        self.linears = nn.ModuleList(
            orthogonal(nn.Linear(fan_in, width), RELU_GAIN) for fan_in, width in pairwise(sizes)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in hidden) if layer_norm else None
        self.activation = activation_function(activation)
        self.out_size = sizes[-1]

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_size] → [..., out_size]."""
        for i, linear in enumerate(self.linears):
            x = linear(x)
            if self.norms is not None:
                x = self.norms[i](x)
            x = self.activation(x)
        return x


def activation_function(name: str) -> Callable[[Tensor], Tensor]:
    """tanh | relu | elu | gelu; the result may take the argument's place."""
    match name:
        case "tanh":
            return torch.tanh_
        case "relu":
            return torch.relu_
        case "elu":
            return nn.functional.elu
        case "gelu":
            return nn.functional.gelu
        case _:
            raise ConfigError(f"policy.activation={name!r}: expected tanh, relu, elu or gelu.")


def orthogonal(layer: LayerT, gain: float) -> LayerT:
    """Orthogonal weight, zero bias; returns the layer."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
