"""The general policy: an encoder by observation fields, dense layers, an optional recurrent core, heads by actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from srl_ray.core.types import ActionSpec, FieldSpec
from srl_ray.models.array_actor import ArrayActor
from srl_ray.models.config import ActorCriticConfig
from srl_ray.models.encoders import VECTOR, FieldEncoder, VectorFields, split_fields
from srl_ray.models.layers import Mlp
from srl_ray.models.normalization import ObservationNormalizer, make_value_scale
from srl_ray.models.policy import Tensors
from srl_ray.models.recurrent import RecurrentCore
from srl_ray.models.tower import OBS_PREFIX, Tower, TowerPolicy


class ActorCritic(TowerPolicy):
    """A `Policy` for vectors, images or both; discrete or continuous actions; one network or two (`separate`)."""

    def __init__(self, config: ActorCriticConfig, obs: Mapping[str, FieldSpec], action: ActionSpec) -> None:
        vectors, images = split_fields(obs)
        vector_fields = VectorFields(vectors) if vectors else None
        vector_size = vector_fields.size if vector_fields else 0

        def make_tower() -> Tower:
            fields = FieldEncoder(vector_size, images)
            mlp = Mlp(fields.out_size, config.hidden, activation=config.activation, layer_norm=config.layer_norm)
            core = None
            if config.recurrent != "none":
                core = RecurrentCore(config.recurrent, mlp.out_size, config.recurrent_size)
            return Tower(nn.Sequential(fields, mlp), mlp.out_size, core)

        actor, critic = make_tower(), make_tower() if config.separate else None
        super().__init__(
            obs,
            action,
            actor,
            critic,
            make_value_scale(config.normalize_value),
            precision=config.precision,
            init_log_std=config.init_log_std,
        )
        self.config = config
        self.vector_fields = vector_fields
        self._array_actor: ArrayActor | None = None
        self.normalizer: ObservationNormalizer | None = None
        if config.normalize_obs and vector_size:
            self.normalizer = ObservationNormalizer([vector_size], clip=config.obs_clip)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array_actor": None}  # its views are of these weights, not of the copy's

    @property
    def array_actor(self) -> ArrayActor | None:
        """The same decisions in numpy; None where it cannot make them, or for a subclass that may decide otherwise."""
        if type(self) is not ActorCritic or not ArrayActor.fits(self):
            return None
        self._array_actor = self._array_actor or ArrayActor(self)
        return self._array_actor

    def prepare(self, obs: Tensors) -> Tensors:
        if self.vector_fields is None:
            return obs
        vector = self.vector_fields(obs)
        return {**obs, VECTOR: vector if self.normalizer is None else self.normalizer([vector])[0]}

    def update_statistics(self, batch: Tensors) -> None:
        if self.normalizer is not None and self.vector_fields is not None:
            fields = {name: batch[OBS_PREFIX + name].flatten(0, 1) for name in self.vector_fields.fields}
            vector = self.vector_fields(fields)
            self.normalizer.update([(vector, batch["mask"].flatten())])
