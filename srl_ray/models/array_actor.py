"""Acting in numpy, for feed-forward networks over vectors on one CPU thread.

A torch operation costs 3 to 10 µs before it computes anything, a numpy one less than 1, and an answer for a small block
calls some forty of them. The numbers are torch's up to rounding, and the noise is the very same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import nn

from srl_ray.core.types import Arrays
from srl_ray.models.distributions import LOG_2PI, SMALLEST_NOISE
from srl_ray.models.heads import CategoricalHead
from srl_ray.models.layers import Mlp
from srl_ray.models.normalization import RunningMoments, RunningValueScale
from srl_ray.models.tower import Tower

if TYPE_CHECKING:
    from srl_ray.models.actor_critic import ActorCritic


def _relu(x: np.ndarray, out: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0, out=out)


_ACTIVATIONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {"tanh": np.tanh, "relu": _relu}


class ArrayActor:
    """`Policy.act` of an `ActorCritic` whose weights may change in place at any time. One thread.

    Make one only where `fits` says so.
    """

    def __init__(self, policy: ActorCritic) -> None:
        assert policy.vector_fields is not None
        self._fields = list(policy.vector_fields.fields)
        self._obs_units = None if policy.normalizer is None else _Units(policy.normalizer.moments)
        self._clip = policy.config.obs_clip
        self._activate = _ACTIVATIONS[policy.config.activation]
        self._actor = _layers(policy.actor)
        self._critic = None if policy.critic is None else _layers(policy.critic)
        self._value = _Linear(policy.value_head)
        scale = policy.value_scale
        self._value_units = _Units(scale.moments) if isinstance(scale, RunningValueScale) else None
        head = policy.action_head
        if isinstance(head, CategoricalHead):
            self._outputs, self._groups = _Linear(head.logits), head.distribution.groups
        else:
            self._outputs, self._groups = _Linear(head.mean), ()
            self._log_std = head.log_std.detach().numpy()

    @staticmethod
    def fits(policy: ActorCritic) -> bool:
        """Dense layers over vectors and nothing else, float32, on the CPU with one math thread."""
        config, weight = policy.config, policy.value_head.weight
        return (
            policy.vector_fields is not None
            and list(policy.vector_fields.fields) == policy.obs_names
            and config.recurrent == "none"
            and config.precision == "float32"
            and not config.is_inference_compiled
            and not config.layer_norm
            and config.activation in _ACTIVATIONS
            and weight.is_cpu
            and weight.dtype == torch.float32
            and torch.get_num_threads() == 1
        )

    def act(
        self, obs: Arrays, deterministic: np.ndarray, generator: torch.Generator | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Action [n, k], log-probability float32 [n] and value float32 [n]; see `Policy.act`."""
        parts = [obs[name].reshape(len(deterministic), -1).astype(np.float32, copy=False) for name in self._fields]
        x = parts[0] if len(parts) == 1 else np.concatenate(parts, 1)
        if self._obs_units is not None:
            x = np.clip(self._obs_units.normalize(x), -self._clip, self._clip)
        actor = self._forward(self._actor, x)
        value = self._value(actor if self._critic is None else self._forward(self._critic, x))[:, 0]
        if self._value_units is not None:
            value = self._value_units.denormalize(value)
        outputs = self._outputs(actor)
        noise = torch.empty(outputs.shape)
        if self._groups:
            exponential = noise.exponential_(generator=generator).numpy()
            return *_sample_categorical(outputs, self._groups, exponential, deterministic), value
        normal = noise.normal_(generator=generator).numpy()
        return *_sample_gaussian(outputs, self._log_std, normal, deterministic), value

    def _forward(self, layers: list[_Linear], x: np.ndarray) -> np.ndarray:
        for layer in layers:
            x = layer(x)
            self._activate(x, x)
        return x


class _Linear:
    """A dense layer. Keeps its weight transposed, with which small products are twice as fast."""

    def __init__(self, layer: nn.Linear) -> None:
        self._weight, self._bias = layer.weight, layer.bias.detach().numpy()
        self._transposed = np.zeros(0, np.float32)
        self._version = -1

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """[n, in] → a new [n, out]."""
        if self._weight._version != self._version:  # counts how often it was written
            self._transposed = np.ascontiguousarray(self._weight.detach().numpy().T)
            self._version = self._weight._version
        y = x @ self._transposed
        y += self._bias
        return cast(np.ndarray, y)


class _Units:
    """Views of running statistics."""

    def __init__(self, moments: RunningMoments) -> None:
        self._offset, self._scale = moments.offset.numpy(), moments.scale.numpy()

    def normalize(self, x: np.ndarray) -> np.ndarray:
        return (x - self._offset) * self._scale

    def denormalize(self, x: np.ndarray) -> np.ndarray:
        return x / self._scale + self._offset


def _layers(tower: Tower) -> list[_Linear]:
    mlp = cast(Mlp, cast(nn.Sequential, tower.encoder)[1])
    return [_Linear(cast(nn.Linear, layer)) for layer in mlp.linears]


def _sample_categorical(
    logits: np.ndarray, groups: tuple[tuple[int, int], ...], noise: np.ndarray, is_mode: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """See `MultiCategorical.sample`; noise is exponential [n, F]."""
    np.log(np.maximum(noise, SMALLEST_NOISE, out=noise), out=noise)
    noise[is_mode] = 0.0
    perturbed = logits - noise
    n = len(logits)
    actions, log_prob, begin = [], np.zeros(n, np.float32), 0
    for size, count in groups:
        columns = slice(begin, begin := begin + size * count)
        part = logits[:, columns].reshape(n * count, size)
        action = perturbed[:, columns].reshape(n * count, size).argmax(1)
        part = part - part.max(1, keepdims=True)
        chosen = part[np.arange(n * count), action] - np.log(np.exp(part).sum(1))
        log_prob += chosen if count == 1 else chosen.reshape(n, count).sum(1)
        actions.append(action.reshape(n, count))
    return actions[0] if len(actions) == 1 else np.concatenate(actions, 1), log_prob


def _sample_gaussian(
    mean: np.ndarray, log_std: np.ndarray, noise: np.ndarray, is_mode: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """See `DiagonalGaussian.sample`; noise is normal [n, k]."""
    noise[is_mode] = 0.0
    action = mean + np.exp(log_std) * noise
    return action, (-0.5 * np.square(noise) - (log_std + np.float32(0.5 * LOG_2PI))).sum(1)
