"""The classifier of object counting finds what is in a memory, and nothing that is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from srl_ray.core.errors import ConfigError
from srl_ray.core.types import DiscreteActions
from srl_ray.envs.hide_and_seek import make_block
from srl_ray.evaluation.baselines import UniformPolicy
from srl_ray.evaluation.counting import memories, score_counting
from srl_ray.models.config import HideAndSeekPolicyConfig
from srl_ray.models.factory import make_policy
from srl_ray.models.policy import ActResult

pytestmark = pytest.mark.unit

MOVES = DiscreteActions((11, 11, 11, 2, 2))


class Watcher(UniformPolicy):
    """Remembers of every box on which side it was seen last: state [6], -1, 0 (never off the middle) or 1."""

    state_size = 6

    def initial_state(self, rows: int) -> Tensor:
        return torch.zeros(rows, self.state_size)

    def act(self, obs: dict[str, Tensor], state: Tensor, on_reset: Tensor, *rest: Any) -> ActResult:
        state = torch.where(on_reset[:, None], 0.0, state)
        side = torch.sign(torch.round(obs["boxes"][:, :6, 0] - 3.0, decimals=1))
        state = torch.where(obs["mask_boxes"][:, :6] & (side != 0), side, state)
        result: ActResult = super().act(obs, state, on_reset, *rest)
        return ActResult(result.action, result.log_prob, result.value, state)


class Sleeper(Watcher):
    """Its memory is noise."""

    def act(self, obs: dict[str, Tensor], state: Tensor, on_reset: Tensor, *rest: Any) -> ActResult:
        result = super().act(obs, state, on_reset, *rest)
        return ActResult(result.action, result.log_prob, result.value, torch.randn(state.shape))


def test_a_memory_that_holds_the_sides_is_read() -> None:
    score = score_counting(Watcher(MOVES), train_episodes=64, test_episodes=32, horizon=80)
    assert score.accuracy > 0.9
    assert score.chance < 0.5
    assert score.samples == 32 * 2


def test_noise_is_worth_no_more_than_chance() -> None:
    score = score_counting(Sleeper(MOVES), train_episodes=64, test_episodes=64, horizon=70)
    assert score.accuracy < score.chance + 0.12
    assert score.loss > 1.2


def test_only_the_actors_memory_counts_and_nothing_is_trained() -> None:
    group = make_block(1, task="object_counting").spec.group
    policy: Any = make_policy(HideAndSeekPolicyConfig(), group.obs, group.action, 0)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    states, labels = memories(policy, 8, seed=1, horizon=80)
    assert states.shape == (8 * 2, policy.actor.state_size)
    assert set(labels.tolist()) <= set(range(7))
    for name, tensor in policy.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


def test_a_policy_without_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="no recurrent state"):
        score_counting(UniformPolicy(MOVES))
