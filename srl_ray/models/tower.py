"""What policies made of an actor and a critic have in common: towers, heads, recurrent states, burn-in."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from srl_ray.core.types import ACTION_MASK, ActionSpec, FieldSpec
from srl_ray.models.heads import check_action_mask, make_action_head
from srl_ray.models.layers import orthogonal
from srl_ray.models.policy import ActResult, Evaluation, Tensors, ValueScale
from srl_ray.models.recurrent import RecurrentCore, unroll_segments

OBS_PREFIX = "obs."
BURN_IN_PREFIX = "burn_in."


class Tower(nn.Module):
    """Everything below a head.

    Args:
        encoder: Maps prepared inputs, field → [n, ...], to features [n, encoder_size].
        encoder_size: Width of its output.
        core: Recurrent core behind it.
        layer_norm: Normalise the output.

    Attributes:
        is_half: Compute the encoder, nearly all of the arithmetic, in bfloat16. Weights stay float32, and so does all
            that follows: a recurrent state adds up its rounding errors, a ratio of probabilities magnifies them.
    """

    def __init__(
        self, encoder: nn.Module, encoder_size: int, core: RecurrentCore | None, *, layer_norm: bool = False
    ) -> None:
        super().__init__()
        self.is_half = False
        self.encoder = encoder
        self.core = core
        self.out_size = encoder_size if core is None else core.size
        self.state_size = 0 if core is None else core.state_size
        self.norm = nn.LayerNorm(self.out_size) if layer_norm else None

    def encode(self, inputs: Tensors) -> Tensor:
        """Prepared inputs [n, ...] → float32 [n, encoder_size]."""
        if not self.is_half:
            features: Tensor = self.encoder(inputs)
            return features
        with torch.autocast(next(iter(inputs.values())).device.type, torch.bfloat16):
            features = self.encoder(inputs)
        return features.float()

    def step(self, inputs: Tensors, state: Tensor, on_reset: Tensor) -> tuple[Tensor, Tensor]:
        """One row each [n, ...] → features [n, out_size], state [n, S]."""
        features = self.encode(inputs)
        if self.core is not None:
            features, state = self.core.step(features, state, on_reset)
        return features if self.norm is None else self.norm(features), state

    def unroll(self, inputs: Tensors, state: Tensor, on_reset: Tensor) -> Tensor:
        """Flat rows [T'·B, ...], state [K, B, S], on_reset [T', B] → features [T', B, out_size]."""
        features = self.encode(inputs).unflatten(0, on_reset.shape)
        if self.core is not None:
            features = unroll_segments(self.core, features, state, on_reset)
        return features if self.norm is None else self.norm(features)

    def last_state(self, inputs: Tensors, state: Tensor, on_reset: Tensor) -> Tensor:
        """State [B, S] after flat rows [U·B, ...] that began with `state` [B, S]."""
        if self.core is None:
            return state
        return self.core.last_state(self.encode(inputs).unflatten(0, on_reset.shape), state, on_reset)


class TowerPolicy(nn.Module):
    """A `Policy` of one shared tower or of an actor's and a critic's, with an action head and a value head.

    A subclass says in `prepare` how observations become the towers' inputs (normalisation) and in `update_statistics`
    what it learns from them. The recurrent state is the concatenation of the towers' states.

    Args:
        obs: Observation field → spec.
        action: Action spec.
        actor: Tower below the action head.
        critic: Tower below the value head; None shares the actor's.
        value_scale: Units of the value head.
        precision: Of the towers' encoders, float32 or bfloat16.
        init_log_std: First log standard deviation of continuous actions.

    Attributes:
        outputs: Prefixes of the names of what a warm start begins afresh: the heads, the value's units, and the layer
            norms below the heads.
    """

    outputs = ("action_head.", "value_head.", "value_scale.", "actor.norm.", "critic.norm.")

    def __init__(
        self,
        obs: Mapping[str, FieldSpec],
        action: ActionSpec,
        actor: Tower,
        critic: Tower | None,
        value_scale: ValueScale,
        *,
        precision: str = "float32",
        init_log_std: float = 0.0,
    ) -> None:
        super().__init__()
        self.action_spec = action
        self.has_action_mask = check_action_mask(obs, action)
        self.obs_names = list(obs)
        self.actor = actor
        self.critic = critic
        self.action_head = make_action_head(actor.out_size, action, init_log_std=init_log_std)
        self.value_head = orthogonal(nn.Linear((critic or actor).out_size, 1), 1.0)
        self.value_scale = value_scale
        self.state_size = sum(tower.state_size for tower in self._towers())
        for tower in self._towers():
            tower.is_half = precision == "bfloat16"

    def prepare(self, obs: Tensors) -> Tensors:
        """Observation fields [n, ...] as the environment made them → the towers' inputs [n, ...]."""
        raise NotImplementedError

    def update_statistics(self, batch: Tensors) -> None:
        """See `Policy`."""
        raise NotImplementedError

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
        outputs, value, state = self.step(obs, state, on_reset)
        legal = obs[ACTION_MASK] if self.has_action_mask else None
        action, log_prob = self.action_head.sample(outputs, legal, deterministic, generator)
        return ActResult(action=action, log_prob=log_prob, value=self.value_scale.denormalize(value), state=state)

    def step(self, obs: Tensors, state: Tensor, on_reset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The part of `act` that depends on the weights alone.

        Returns:
            The action head's outputs [n, O], values [n] in the value head's units, recurrent states [n, S].
        """
        inputs = self.prepare(obs)
        if self.critic is None:
            actor, state = self.actor.step(inputs, state, on_reset)
            critic = actor
        else:
            actor_state, critic_state = self._split_state(state)
            actor, actor_state = self.actor.step(inputs, actor_state, on_reset)
            critic, critic_state = self.critic.step(inputs, critic_state, on_reset)
            state = torch.cat([actor_state, critic_state], -1) if self.state_size else state
        return self.action_head.outputs(actor), self.value_head(critic).squeeze(-1), state

    def evaluate(self, batch: Tensors) -> Evaluation:
        state, on_reset = batch["state"], batch["on_reset"]
        if BURN_IN_PREFIX + "state" in batch and self.state_size:
            state = torch.cat([self._burn_in(batch).unsqueeze(0), state[1:]])
        inputs = self.prepare(self._flat_obs(batch, OBS_PREFIX))
        states = self._split_state(state)
        features = [
            tower.unroll(inputs, tower_state, on_reset)
            for tower, tower_state in zip(self._towers(), states, strict=False)
        ]
        legal = batch[OBS_PREFIX + ACTION_MASK] if self.has_action_mask else None
        outputs = self.action_head.outputs(features[0])
        log_prob, entropy = self.action_head.log_prob_entropy(outputs, legal, batch["action"])
        return Evaluation(log_prob=log_prob, entropy=entropy, value=self.value_head(features[-1]).squeeze(-1))

    @torch.no_grad()
    def _burn_in(self, batch: Tensors) -> Tensor:
        """State [B, S] before the first trained row, recomputed under the current weights where rows precede it."""
        inputs = self.prepare(self._flat_obs(batch, BURN_IN_PREFIX + OBS_PREFIX))
        states = self._split_state(batch[BURN_IN_PREFIX + "state"])
        on_reset = batch[BURN_IN_PREFIX + "on_reset"]
        recomputed = torch.cat(
            [tower.last_state(inputs, state, on_reset) for tower, state in zip(self._towers(), states, strict=False)],
            -1,
        )
        return torch.where(batch[BURN_IN_PREFIX + "valid"].all(0).unsqueeze(-1), recomputed, batch["state"][0])

    def _towers(self) -> list[Tower]:
        return [self.actor] if self.critic is None else [self.actor, self.critic]

    def _split_state(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """[..., S] → the actor's and the critic's part (the same without a recurrent or a second tower)."""
        if self.critic is None or not self.state_size:
            return state, state
        size = self.actor.state_size
        return state[..., :size], state[..., size:]

    def _flat_obs(self, batch: Tensors, prefix: str) -> Tensors:
        """Observation fields with time and chunks as one axis: [T', B, ...] → [T'·B, ...]."""
        return {name: batch[prefix + name].flatten(0, 1) for name in self.obs_names}
