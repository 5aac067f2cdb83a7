"""Hide-and-seek: attention over entities, a critic that sees everything (Baker et al. 2019, arXiv 1909.07528, app. B).

Each of the two networks, for one row:

    lidar → circular convolution (9 filters of width 3), ReLU ┐
    self ────────────────────────────────────────────────────┴─ main
    every entity (others, boxes, ramps): dense + ReLU of [main, features]; main itself likewise
    → residual self-attention over the entities that the mask shows → masked mean
    → with main's embedding: layer norm, dense + ReLU, layer norm → LSTM → layer norm → heads

The actor's masks say what is visible, the critic's what exists. Entity numbers and feature widths come from the specs,
so that the quadrant game and the random-rooms game use the same code; so do further kinds of entities (the sites of a
blueprint), which come last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from srl_ray.core.errors import ConfigError
from srl_ray.core.types import ActionSpec, FieldSpec
from srl_ray.models.config import HideAndSeekPolicyConfig
from srl_ray.models.normalization import ObservationNormalizer, make_value_scale
from srl_ray.models.policy import Tensors
from srl_ray.models.recurrent import RecurrentCore
from srl_ray.models.tower import OBS_PREFIX, Tower, TowerPolicy

ENTITIES = ("others", "boxes", "ramps")
"""Kinds that there must be."""
LIDAR_FILTERS = 9
LIDAR_WIDTH = 3


@dataclass(frozen=True)
class Sizes:
    """Widths of a network."""

    embed: int
    heads: int
    dense: int
    recurrent: int


def sizes_of(config: HideAndSeekPolicyConfig) -> Sizes:
    """The scale's sizes with the config's own where they are not 0."""
    scale = Sizes(128, 4, 256, 256) if config.scale == "paper" else Sizes(64, 2, 96, 64)
    sizes = Sizes(
        config.embed or scale.embed,
        config.heads or scale.heads,
        config.dense or scale.dense,
        config.recurrent_size or scale.recurrent,
    )
    if sizes.embed % sizes.heads:
        raise ConfigError(f"policy.embed={sizes.embed} must be a multiple of policy.heads={sizes.heads}.")
    return sizes


class HideAndSeekPolicy(TowerPolicy):
    """A `Policy` for observations with the fields `self`, `lidar`, `others`, `boxes`, `ramps`, whatever further kinds
    of entities, and for each kind `mask_<entity>` (what the agent sees) and `exists_<entity>` (what there is)."""

    def __init__(self, config: HideAndSeekPolicyConfig, obs: Mapping[str, FieldSpec], action: ActionSpec) -> None:
        check_fields(obs)
        sizes = sizes_of(config)
        self.entities = entities_of(obs)
        self.normalized = ("self", "lidar", *self.entities)

        def make_tower(masks: str) -> Tower:
            core = RecurrentCore("lstm", sizes.dense, sizes.recurrent)
            return Tower(EntityEncoder(sizes, obs, masks=masks), sizes.dense, core, layer_norm=True)

        super().__init__(
            obs,
            action,
            make_tower("mask_"),
            make_tower("exists_"),
            make_value_scale(config.normalize_value),
            precision=config.precision,
        )
        nn.init.xavier_uniform_(self.value_head.weight)
        self.normalizer: ObservationNormalizer | None = None
        if config.normalize_obs:
            widths = [obs[name].shape[-1] for name in self.normalized]
            self.normalizer = ObservationNormalizer(widths, clip=config.obs_clip)

    def prepare(self, obs: Tensors) -> Tensors:
        if self.normalizer is None:
            return obs
        normalized = self.normalizer([obs[name] for name in self.normalized])
        return {**obs, **dict(zip(self.normalized, normalized, strict=True))}

    def update_statistics(self, batch: Tensors) -> None:
        """One statistic per feature, pooled over rows and over the entities that exist."""
        if self.normalizer is None:
            return
        mask = batch["mask"].flatten()
        obs = {name: x[mask] for name, x in self._flat_obs(batch, OBS_PREFIX).items()}
        parts = []
        for name in self.normalized:
            if name in self.entities:
                parts.append((obs[name].flatten(0, 1), obs["exists_" + name].flatten()))
            else:
                parts.append((obs[name], torch.ones_like(obs[name][:, 0], dtype=torch.bool)))
        self.normalizer.update(parts)


class EntityEncoder(nn.Module):
    """Prepared fields of n rows → float32 [n, dense].

    Args:
        sizes: Widths.
        obs: Field → spec.
        masks: Prefix of the mask fields.
    """

    def __init__(self, sizes: Sizes, obs: Mapping[str, FieldSpec], *, masks: str) -> None:
        super().__init__()
        self.entities = entities_of(obs)
        self.mask_names = [masks + name for name in self.entities]
        self.lidar = nn.Linear(LIDAR_WIDTH, LIDAR_FILTERS)
        main_size = obs["self"].size + obs["lidar"].size * LIDAR_FILTERS
        self.embedding = EntityEmbedding(main_size, [obs[name].shape[-1] for name in self.entities], sizes.embed)
        self.attention = EntityAttention(sizes.embed, sizes.heads)
        self.norm_in = nn.LayerNorm(2 * sizes.embed)
        self.dense = nn.Linear(2 * sizes.embed, sizes.dense)
        self.norm_out = nn.LayerNorm(sizes.dense)
        for layer in (self.lidar, self.dense):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, inputs: Tensors) -> Tensor:
        main = torch.cat([inputs["self"], self._convolve(inputs["lidar"])], -1)
        main_embedding, entities = self.embedding(main, [inputs[name] for name in self.entities])
        # Main is entity 0 and always there, so that no row's mask is empty.
        mask = torch.cat(
            [torch.ones_like(main[:, :1], dtype=torch.bool), *(inputs[name] for name in self.mask_names)], 1
        )
        attended = self.attention(entities, mask)
        weights = mask.to(attended.dtype)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-5)
        pooled = torch.bmm(weights.unsqueeze(1), attended).squeeze(1)
        features = self.norm_in(torch.cat([main_embedding, pooled], -1))
        return self.norm_out(torch.relu(self.dense(features)))

    def _convolve(self, lidar: Tensor) -> Tensor:
        """Circular convolution and ReLU: [n, rays] → [n, rays · filters]."""
        around = torch.cat([lidar[:, -1:], lidar, lidar[:, :1]], 1).unfold(1, LIDAR_WIDTH, 1)
        return torch.relu(self.lidar(around)).flatten(1)


class EntityEmbedding(nn.Module):
    """Dense layer and ReLU of [main, features] per kind of entity, and of main alone.

    W·[main, features] is W_main·main once per row plus W_features·features per entity; `main` holds the W_main of all
    kinds (its own first) and their biases.
    """

    def __init__(self, main_size: int, feature_sizes: list[int], embed: int) -> None:
        super().__init__()
        self.embed = embed
        self.main = nn.Linear(main_size, (1 + len(feature_sizes)) * embed)
        features = [nn.Linear(size, embed, bias=False) for size in feature_sizes]
        self.features = nn.ModuleList(features)
        nn.init.zeros_(self.main.bias)
        with torch.no_grad():
            main_weights = self.main.weight.split(embed)
            # Xavier with the fan-in of the whole layer [main, features].
            for weight, size in zip(main_weights, [0, *feature_sizes], strict=True):
                bound = math.sqrt(6.0 / (main_size + size + embed))
                weight.uniform_(-bound, bound)
            for layer, size in zip(features, feature_sizes, strict=True):
                bound = math.sqrt(6.0 / (main_size + size + embed))
                layer.weight.uniform_(-bound, bound)

    def forward(self, main: Tensor, entities: list[Tensor]) -> tuple[Tensor, Tensor]:
        """main [n, M], entities [n, N_i, F_i] → main's [n, embed] and all [n, 1 + ΣN_i, embed], main's first."""
        # Without slices of what is differentiated: the gradient of a slice is a large tensor of zeros.
        alone, *shared = self.main(main).unflatten(-1, (-1, self.embed)).unbind(1)
        parts = [alone.unsqueeze(1)]
        for layer, features, base in zip(self.features, entities, shared, strict=True):
            parts.append(layer(features) + base.unsqueeze(1))
        return torch.relu(alone), torch.relu_(torch.cat(parts, 1))


class EntityAttention(nn.Module):
    """x + dense(attention(layer_norm(x))), then layer norm; the entities outside the mask are attended by nobody."""

    def __init__(self, embed: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_in = nn.LayerNorm(embed)
        self.query_key_value = nn.Linear(embed, 3 * embed)
        self.dense = nn.Linear(embed, embed)
        self.norm_out = nn.LayerNorm(embed)
        for layer in (self.query_key_value, self.dense):
            nn.init.normal_(layer.weight, std=math.sqrt(0.125 / embed))
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x [n, N, embed], mask bool [n, N] with at least one entity per row → [n, N, embed]."""
        projected = self.query_key_value(self.norm_in(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
        return self.norm_out(x + self.dense(attended.transpose(1, 2).flatten(2)))


def entities_of(obs: Mapping[str, FieldSpec]) -> tuple[str, ...]:
    """Kinds of entities: the usual three, then every other field that has masks."""
    return (*ENTITIES, *(name for name in obs if "mask_" + name in obs and name not in ENTITIES))


def check_fields(obs: Mapping[str, FieldSpec]) -> None:
    """Raise a ConfigError that names the first observation field that is missing or has the wrong shape."""
    expected = {"self": 1, "lidar": 1, **dict.fromkeys(entities_of(obs), 2)}
    expected |= {prefix + name: 1 for name in entities_of(obs) for prefix in ("mask_", "exists_")}
    for name, axes in expected.items():
        if name not in obs:
            raise ConfigError(
                f"policy=hide_and_seek needs the observation field {name!r}; this environment has {sorted(obs)}. "
                "Choose another policy, for example policy=actor_critic."
            )
        shape = obs[name].shape
        entity = name.rpartition("_")[2]
        if len(shape) != axes or (entity != name and shape[0] != obs[entity].shape[0]):
            raise ConfigError(f"policy=hide_and_seek: the observation field {name!r} has the unexpected shape {shape}.")
