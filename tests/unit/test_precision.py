"""bfloat16 in the encoders: close to float32, the same to act and to evaluate, and good enough to learn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from lanes import Collector, Recall

from srl_ray.algorithms.algorithm import Collective
from srl_ray.algorithms.config import PPOConfig
from srl_ray.algorithms.factory import make_algorithm
from srl_ray.algorithms.on_policy.minibatches import trained_rows
from srl_ray.core.types import ActionSpec, ChunkLayout, DiscreteActions, FieldSpec
from srl_ray.envs.hide_and_seek import make_block
from srl_ray.models.config import ActorCriticConfig, HideAndSeekPolicyConfig, PolicyConfig
from srl_ray.models.factory import make_policy

pytestmark = pytest.mark.unit

FLOAT, BYTE = np.dtype(np.float32), np.dtype(np.uint8)
TWO = DiscreteActions((2,))
VECTOR = {"x": FieldSpec((4,), FLOAT)}
FRAMES = {"screen": FieldSpec((4, 84, 84), BYTE)}


class CartPole:
    """The environment of gymnasium as a test's task."""

    obs: ClassVar = VECTOR

    def __init__(self, seed: int, action: ActionSpec) -> None:
        self.action, self.seed = action, seed
        self.env: Any = gymnasium.make("CartPole-v1")

    def reset(self) -> dict[str, np.ndarray]:
        self.seed += 100
        return {"x": self.env.reset(seed=self.seed)[0]}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool]:
        obs, reward, terminated, truncated, _ = self.env.step(int(action[0]))
        return {"x": obs}, float(reward), bool(terminated), bool(truncated)


def observations(obs: dict[str, FieldSpec], rows: int) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(0)
    arrays = {name: rng.integers(0, 256, (rows, *spec.shape)).astype(spec.dtype) for name, spec in obs.items()}
    return {name: torch.from_numpy(array / 64 if array.dtype == FLOAT else array) for name, array in arrays.items()}


@pytest.mark.parametrize(
    ("obs", "config"),
    [
        (VECTOR, ActorCriticConfig(normalize_obs=True, normalize_value=True)),
        (VECTOR, ActorCriticConfig(recurrent="lstm", separate=False, layer_norm=True)),
        (FRAMES, ActorCriticConfig(separate=False, hidden=[64], activation="relu")),
    ],
    ids=["dense", "recurrent", "images"],
)
def test_bfloat16_is_close_to_float32_and_ends_in_the_encoder(obs: Any, config: PolicyConfig) -> None:
    exact: Any = make_policy(config, obs, TWO, 0)
    half: Any = make_policy(replace(config, precision="bfloat16"), obs, TWO, 0)
    rows, no = 16, torch.zeros(16, dtype=torch.bool)
    given = (observations(obs, rows), exact.initial_state(rows), no, ~no)
    expected, got = exact.act(*given), half.act(*given)
    for name in ("log_prob", "value", "state"):
        a, b = getattr(got, name), getattr(expected, name)
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, atol=0.03, rtol=0.03)
    assert not torch.equal(got.value, expected.value), "otherwise nothing was computed in bfloat16"
    assert {tensor.dtype for tensor in half.parameters()} == {torch.float32}


def test_hide_and_seek_in_bfloat16_is_close_to_float32() -> None:
    block = make_block(2)
    group = block.spec.group
    step = block.reset(seed=0)
    obs = {name: torch.from_numpy(x.reshape(-1, *x.shape[2:])) for name, x in step.obs.items()}
    rows = len(obs["self"])
    no = torch.zeros(rows, dtype=torch.bool)
    answers = []
    for precision in ("float32", "bfloat16"):
        policy: Any = make_policy(HideAndSeekPolicyConfig(precision=precision), group.obs, group.action, 0)
        answers.append(policy.act(obs, policy.initial_state(rows), no, ~no))
    torch.testing.assert_close(answers[0].state, answers[1].state, atol=0.03, rtol=0.03)
    torch.testing.assert_close(answers[0].value, answers[1].value, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("recurrent", ["none", "gru"])
def test_a_batch_is_evaluated_as_it_was_acted_in_bfloat16(recurrent: str) -> None:
    """The ratio of an update's first minibatch is 1: the acting and the training side round alike."""
    layout = ChunkLayout(0, 12, 1, 6)
    policy: Any = make_policy(ActorCriticConfig(recurrent=recurrent, precision="bfloat16"), Recall.obs, TWO, 0)
    batch = Collector(lambda i: Recall(i, TWO), policy, layout, 8).batch()
    rows = trained_rows(batch, layout, is_recurrent=policy.state_size > 0)
    evaluation = policy.evaluate({**rows.fields, "state": rows.state})
    mask = rows.fields["mask"]
    torch.testing.assert_close(evaluation.log_prob[mask], rows.fields["log_prob"][mask], atol=1e-4, rtol=1e-3)


def test_cartpole_updates_in_bfloat16_lower_the_loss() -> None:
    layout = ChunkLayout(0, 32, 1, 8)
    policy: Any = make_policy(ActorCriticConfig(precision="bfloat16", normalize_value=True), VECTOR, TWO, 0)
    config = PPOConfig(epochs=2, minibatches=2, learning_rate=1e-3)
    algorithm = make_algorithm(config, policy, layout, Collective(), 0)
    batch = Collector(lambda i: CartPole(i, TWO), policy, layout, 8).batch()
    metrics = [algorithm.update(batch, 0.0) for _ in range(8)]
    losses = [m["policy_loss"] + config.value_cost * m["value_loss"] for m in metrics]
    assert losses[-1] < 0.9 * losses[0]
    assert metrics[-1]["policy_loss"] < metrics[0]["policy_loss"]
    assert {tensor.dtype for tensor in policy.parameters()} == {torch.float32}
