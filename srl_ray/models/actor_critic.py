"""The general policy: an encoder by observation fields, dense layers, an optional recurrent core, heads by actions."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from srl_ray.core.types import ACTION_MASK, ActionSpec, FieldSpec
from srl_ray.models.config import ActorCriticConfig
from srl_ray.models.encoders import Encoder, VectorFields, split_fields
from srl_ray.models.heads import check_action_mask, make_action_head
from srl_ray.models.layers import Mlp, orthogonal
from srl_ray.models.normalization import ObservationNormalizer, make_value_scale
from srl_ray.models.policy import ActResult, Evaluation, Tensors, ValueScale
from srl_ray.models.recurrent import RecurrentCore, unroll_segments

OBS_PREFIX = "obs."
BURN_IN_PREFIX = "burn_in."


class ActorCritic(nn.Module):
    """A `Policy` for vectors, images or both; discrete or continuous actions; one network or two (`separate`).

    The recurrent state is the concatenation of the networks' states.
    """

    def __init__(self, config: ActorCriticConfig, obs: Mapping[str, FieldSpec], action: ActionSpec) -> None:
        super().__init__()
        vectors, images = split_fields(obs)
        self.action_spec = action
        self.has_action_mask = check_action_mask(obs, action)
        self.obs_names = list(obs)
        self.vectors = VectorFields(vectors) if vectors else None
        vector_size = self.vectors.size if self.vectors else 0
        self.normalizer: ObservationNormalizer | None = None
        if config.normalize_obs and self.vectors:
            self.normalizer = ObservationNormalizer([vector_size], clip=config.obs_clip)
        self.actor = Tower(config, vector_size, images)
        self.critic = Tower(config, vector_size, images) if config.separate else None
        self.action_head = make_action_head(self.actor.out_size, action, init_log_std=config.init_log_std)
        self.value_head = orthogonal(nn.Linear(self.actor.out_size, 1), 1.0)
        self.value_scale: ValueScale = make_value_scale(config.normalize_value)
        self.state_size = self.actor.state_size * (2 if config.separate else 1)

    def initial_state(self, rows: int) -> Tensor:
        return self.value_head.weight.new_zeros(rows, self.state_size)

    @torch.inference_mode()
    def act(
        self,
        obs: Tensors,
        state: Tensor,
        on_reset: Tensor,
        deterministic: Tensor,
        generator: torch.Generator | None = None,
    ) -> ActResult:
        actor, critic, state = self._step(obs, state, on_reset)
        legal = obs[ACTION_MASK] if self.has_action_mask else None
        action, log_prob = self.action_head.sample(actor, legal, deterministic, generator)
        value = self.value_scale.denormalize(self.value_head(critic).squeeze(-1))
        return ActResult(action=action, log_prob=log_prob, value=value, state=state)

    def evaluate(self, batch: Tensors) -> Evaluation:
        rows, chunks = batch["action"].shape[:2]
        state = batch["state"]
        if BURN_IN_PREFIX + "state" in batch and self.state_size:
            state = torch.cat([self._burn_in(batch).unsqueeze(0), state[1:]])
        obs = flatten_obs(batch, self.obs_names)
        vector = self._vector(obs)
        states = state.split(self.actor.state_size, -1) if self.state_size else (state, state)
        actor = self.actor.unroll(vector, obs, states[0], batch["on_reset"])
        critic = actor if self.critic is None else self.critic.unroll(vector, obs, states[1], batch["on_reset"])
        legal = batch[OBS_PREFIX + ACTION_MASK] if self.has_action_mask else None
        log_prob, entropy = self.action_head.log_prob_entropy(actor, legal, batch["action"])
        value = self.value_head(critic).squeeze(-1)
        assert value.shape == (rows, chunks)
        return Evaluation(log_prob=log_prob, entropy=entropy, value=value)

    def update_statistics(self, batch: Tensors) -> None:
        if self.normalizer is not None and self.vectors is not None:
            vector = self.vectors(flatten_obs(batch, list(self.vectors.fields)))
            self.normalizer.update([(vector, batch["mask"].flatten())])

    def _vector(self, obs: Tensors) -> Tensor | None:
        """Vector fields, normalised: float32 [n, F]."""
        if self.vectors is None:
            return None
        vector = self.vectors(obs)
        return vector if self.normalizer is None else self.normalizer([vector])[0]

    def _step(self, obs: Tensors, state: Tensor, on_reset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features of both networks [n, F] and the next state [n, S]."""
        vector = self._vector(obs)
        if self.critic is None:
            actor, state = self.actor.step(vector, obs, state, on_reset)
            return actor, actor, state
        if not self.state_size:
            return self.actor.encode(vector, obs), self.critic.encode(vector, obs), state
        actor_state, critic_state = state.split(self.actor.state_size, -1)
        actor, actor_state = self.actor.step(vector, obs, actor_state, on_reset)
        critic, critic_state = self.critic.step(vector, obs, critic_state, on_reset)
        return actor, critic, torch.cat([actor_state, critic_state], -1)

    @torch.no_grad()
    def _burn_in(self, batch: Tensors) -> Tensor:
        """State [B, S] before the first trained row, recomputed under the current weights."""
        obs = flatten_obs(batch, self.obs_names, prefix=BURN_IN_PREFIX + OBS_PREFIX)
        vector = self._vector(obs)
        on_reset = batch[BURN_IN_PREFIX + "on_reset"]
        towers = [self.actor] if self.critic is None else [self.actor, self.critic]
        states = batch[BURN_IN_PREFIX + "state"].split(self.actor.state_size, -1)
        return torch.cat(
            [tower.last_state(vector, obs, state, on_reset) for tower, state in zip(towers, states, strict=True)], -1
        )


class Tower(nn.Module):
    """Everything below a head: encoder, dense layers, recurrent core."""

    def __init__(self, config: ActorCriticConfig, vector_size: int, images: Mapping[str, FieldSpec]) -> None:
        super().__init__()
        self.encoder = Encoder(vector_size, images)
        self.mlp = Mlp(self.encoder.out_size, config.hidden, activation=config.activation, layer_norm=config.layer_norm)
        self.core: RecurrentCore | None = None
        self.out_size, self.state_size = self.mlp.out_size, 0
        if config.recurrent != "none":
            self.core = RecurrentCore(config.recurrent, self.mlp.out_size, config.recurrent_size)
            self.out_size, self.state_size = self.core.size, self.core.state_size

    def encode(self, vector: Tensor | None, obs: Tensors) -> Tensor:
        """[n, ...] → features below the core [n, F]."""
        features: Tensor = self.mlp(self.encoder(vector, obs))
        return features

    def step(self, vector: Tensor | None, obs: Tensors, state: Tensor, on_reset: Tensor) -> tuple[Tensor, Tensor]:
        """One row each [n, ...] → features [n, F], state [n, S]."""
        features = self.encode(vector, obs)
        return (features, state) if self.core is None else self.core.step(features, state, on_reset)

    def unroll(self, vector: Tensor | None, obs: Tensors, state: Tensor, on_reset: Tensor) -> Tensor:
        """Flat rows [T'·B, ...], state [K, B, S], on_reset [T', B] → features [T', B, F]."""
        features = self.encode(vector, obs).unflatten(0, on_reset.shape)
        return features if self.core is None else unroll_segments(self.core, features, state, on_reset)

    def last_state(self, vector: Tensor | None, obs: Tensors, state: Tensor, on_reset: Tensor) -> Tensor:
        """State [B, S] after flat rows [U·B, ...] that began with `state` [B, S]."""
        if self.core is None:
            return state
        return self.core.unroll(self.encode(vector, obs).unflatten(0, on_reset.shape), state, on_reset)[1]


def flatten_obs(batch: Tensors, names: list[str], *, prefix: str = OBS_PREFIX) -> Tensors:
    """Observation fields of a sample batch with time and chunks as one axis: [T', B, ...] → [T'·B, ...]."""
    return {name: batch[prefix + name].flatten(0, 1) for name in names}
