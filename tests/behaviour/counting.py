"""A policy that counts the rows of an episode. Workers import it by name."""

from __future__ import annotations

from typing import Any

import torch

from srl_ray.models.actor_critic import ActorCritic
from srl_ray.models.config import ActorCriticConfig, PolicyConfig
from srl_ray.models.policy import ActResult, Evaluation, Tensors
from tests.behaviour.counting_env import ACTIONS


class StepCount(ActorCritic):
    """Its state counts the rows of the episode and its action tells the count; training compares every trained row's
    count with the observation, which is the step of the episode."""

    def __init__(self, obs: Any, action: Any, config: PolicyConfig) -> None:
        super().__init__(ActorCriticConfig(hidden=[8], separate=False), obs, action)
        self.state_size = 1
        self.bptt_steps = config.bptt_steps

    def initial_state(self, rows: int) -> torch.Tensor:
        return torch.zeros(rows, 1)

    def act(
        self,
        obs: Tensors,
        state: torch.Tensor,
        on_reset: torch.Tensor,
        deterministic: torch.Tensor,
        generator: torch.Generator | None = None,
    ) -> ActResult:
        answer = super().act(obs, state[:, :0], on_reset, deterministic, generator)
        count = _counted(state[:, 0], on_reset)[:, None]
        return ActResult((count % ACTIONS).long(), answer.log_prob, answer.value, count)

    def evaluate(self, batch: Tensors) -> Evaluation:
        step, mask, on_reset, state = batch["obs.obs"][..., 0], batch["mask"], batch["on_reset"], batch["state"]
        count = state[0, :, 0]
        if "burn_in.state" in batch:
            count = batch["burn_in.state"][:, 0]
            for reset in batch["burn_in.on_reset"]:
                count = _counted(count, reset)
            count = torch.where(batch["burn_in.valid"].all(0), count, state[0, :, 0])
        for row in range(len(step)):
            if row and row % self.bptt_steps == 0:
                count = state[row // self.bptt_steps, :, 0]
            count = _counted(count, on_reset[row])
            wrong = mask[row] & (count != step[row] + 1)
            if wrong.any():
                raise AssertionError(f"row {row}: counted {count[wrong]} at step {step[row][wrong]} of the episode")
        rest = {name: array for name, array in batch.items() if not name.startswith("burn_in.")}
        return super().evaluate({**rest, "state": state[..., :0]})


def _counted(count: torch.Tensor, on_reset: torch.Tensor) -> torch.Tensor:
    return torch.where(on_reset, 0.0, count) + 1
