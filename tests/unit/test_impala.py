"""IMPALA and APPO: the formulas written out on stale rows, what they have in common, and learning."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from lanes import Bandit, Collector, Recall

from srl_ray.algorithms.algorithm import Collective
from srl_ray.algorithms.config import APPOConfig, IMPALAConfig, OnPolicyConfig, PPOConfig
from srl_ray.algorithms.factory import make_algorithm
from srl_ray.algorithms.on_policy.minibatches import trained_rows
from srl_ray.algorithms.returns import off_policy_advantage
from srl_ray.core.types import ChunkLayout, DiscreteActions
from srl_ray.models.config import ActorCriticConfig
from srl_ray.models.factory import make_policy

pytestmark = pytest.mark.unit

TWO, THREE = DiscreteActions((2,)), DiscreteActions((3,))
LAYOUT = ChunkLayout(0, 8, 1, 4)
ONE_STEP = {"epochs": 1, "minibatches": 1, "normalize_advantage": "none", "max_grad_norm": None}


def stale(config: OnPolicyConfig, recurrent: str = "none") -> tuple[Any, Any, dict[str, torch.Tensor]]:
    """A policy, its algorithm, and a batch that an older policy made: other weights, other values."""
    acting = make_policy(ActorCriticConfig(recurrent=recurrent), Recall.obs, TWO, 0)
    collector = Collector(lambda i: Recall(i, TWO), acting, LAYOUT, 8)
    collector.batch()
    policy = copy.deepcopy(acting)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(
                0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
            )
    return policy, make_algorithm(config, policy, LAYOUT, Collective(), 0), collector.batch()


@pytest.mark.parametrize("correction", ["vtrace", "td"])
def test_one_step_equals_the_formula_written_out(correction: str) -> None:
    """Forward passes, ratios, targets, losses and Adam from the definitions, on rows of an older policy."""
    config = IMPALAConfig(
        staleness_correction=correction, value_cost=0.7, entropy_cost=0.02, max_grad_norm=None, gae_lambda=0.9
    )
    policy, algorithm, batch = stale(config)
    twin = copy.deepcopy(policy)
    metrics = algorithm.update(batch, 0.0)

    whole = {**batch, "mask": batch["valid"], "state": torch.zeros(1, 8, 0)}
    evaluation = twin.evaluate(whole)
    rho = (evaluation.log_prob.detach() - batch["log_prob"]).exp()
    advantage, target = off_policy_advantage(
        batch["reward"],
        evaluation.value.detach(),
        *(batch[name] for name in ("terminated", "truncated", "valid")),
        discount=0.99,
        gae_lambda=0.9,
        rho=rho,
        c_clip=1.0 if correction == "vtrace" else None,
    )
    mask = trained_rows(batch, LAYOUT, is_recurrent=False).fields["mask"]
    log_prob, value, entropy = (x[:8][mask] for x in (evaluation.log_prob, evaluation.value, evaluation.entropy))
    policy_loss = -(rho[:8][mask].clamp(max=1.0) * advantage[:8][mask] * log_prob).mean()
    value_loss = (value - target[:8][mask]).square().mean()
    optimizer = torch.optim.Adam(twin.parameters(), 3e-4, eps=1e-5)
    (policy_loss + 0.7 * value_loss - 0.02 * entropy.mean()).backward()
    optimizer.step()

    assert float((rho[:8][mask] > 1).float().mean()) == pytest.approx(metrics["clip_fraction"])
    assert 0.1 < metrics["clip_fraction"] < 0.9, "ratios on both sides of 1"
    assert metrics["policy_loss"] == pytest.approx(float(policy_loss.detach()), rel=1e-4)
    assert metrics["value_loss"] == pytest.approx(float(value_loss.detach()), rel=1e-4)
    for ours, theirs in zip(policy.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("recurrent", ["none", "lstm"])
def test_inside_its_bounds_the_surrogate_of_appo_is_the_loss_of_impala(recurrent: str) -> None:
    """∇(π/μ)·A = (π/μ)·A·∇log π: with bounds that no ratio reaches, both take the same step."""
    results = []
    for config in (
        APPOConfig(clip_eps=1e9, rho_clip=1e9, **ONE_STEP),
        IMPALAConfig(rho_clip=1e9, gae_lambda=0.95, **ONE_STEP),
    ):
        policy, algorithm, batch = stale(config, recurrent)
        algorithm.update(batch, 0.0)
        results.append(policy.state_dict())
    for name in results[0]:
        torch.testing.assert_close(results[0][name], results[1][name], atol=1e-5, rtol=1e-3)


def test_appo_keeps_close_to_the_policy_that_acted() -> None:
    """A ratio that is beyond the bound already is not pushed further: most rows of a very stale batch are clipped."""
    _, algorithm, batch = stale(APPOConfig(clip_eps=0.05, **ONE_STEP))
    metrics = algorithm.update(batch, 0.0)
    assert metrics["approx_kl"] > 0.01
    assert metrics["clip_fraction"] > 0.5


def test_the_critic_of_stale_rows_learns_what_the_current_policy_is_worth() -> None:
    """The acting policy pulled arm 0 nearly always, which never pays; the policy that is trained always pulls arm 1,
    which always pays. With the correction the critic's target is 1 where it can be known, not 0."""
    reward = torch.tensor([[0.0, 1.0]]).repeat(3, 1)
    flags = torch.zeros(3, 2, dtype=torch.bool)
    terminated = flags.clone()
    terminated[1] = True
    rho = torch.tensor([1e-3, 100.0]).expand(3, 2)  # π/μ of arm 0 and of arm 1
    value = torch.full((3, 2), 0.5)
    _, target = off_policy_advantage(reward, value, terminated, flags, ~flags, discount=0.99, gae_lambda=1.0, rho=rho)
    assert target[0].tolist() == pytest.approx([0.5, 1.0], abs=1e-3)


def test_a2c_is_impala_without_correction() -> None:
    """Stored values and weights of 1, and no pass over the rows but the one that is trained."""
    policy, algorithm, batch = stale(IMPALAConfig(staleness_correction="none"))
    calls, evaluate = [], policy.evaluate
    policy.evaluate = lambda rows: (calls.append(1), evaluate(rows))[1]
    metrics = algorithm.update(batch, 0.0)
    assert len(calls) == 1
    assert metrics["value_mean"] == pytest.approx(
        float(batch["value"][:8][trained_rows(batch, LAYOUT, is_recurrent=False).fields["mask"]].mean()), rel=1e-4
    )


def test_ratios_beyond_all_bounds_do_no_harm() -> None:
    policy, algorithm, batch = stale(IMPALAConfig())
    batch["log_prob"] = batch["log_prob"] - 200.0
    assert np.isfinite(algorithm.update(batch, 0.0)["policy_loss"])
    assert all(torch.isfinite(parameter).all() for parameter in policy.parameters())


@pytest.mark.parametrize("key", ["rho_clip", "c_clip"])
def test_bounds_must_be_positive(key: str) -> None:
    with pytest.raises(ValueError, match=f"algorithm.{key} must be > 0, got 0"):
        IMPALAConfig(**{key: 0.0})


def test_an_unknown_correction_is_refused() -> None:
    with pytest.raises(ValueError, match="none, vtrace or td, got 'v-trace'"):
        PPOConfig(staleness_correction="v-trace")


@pytest.mark.parametrize("delay", [0, 4])
@pytest.mark.parametrize(
    "config", [IMPALAConfig(learning_rate=1e-2), APPOConfig(learning_rate=3e-3)], ids=["impala", "appo"]
)
def test_a_bandit_is_solved_from_batches_that_are_some_updates_old(config: OnPolicyConfig, delay: int) -> None:
    policy = make_policy(ActorCriticConfig(), Bandit.obs, THREE, 1)
    acting = copy.deepcopy(policy)
    algorithm = make_algorithm(config, policy, LAYOUT, Collective(), 1)
    collector = Collector(lambda i: Bandit(i, THREE), acting, LAYOUT, 16)
    published = [policy.state_dict() for _ in range(delay + 1)]
    returns = []
    for i in range(25):
        acting.load_state_dict(published[i])
        algorithm.update(collector.batch(), i / 25)
        published.append({name: tensor.clone() for name, tensor in policy.state_dict().items()})
        returns.append(collector.mean_return())
    assert returns[0] < 0.5
    assert np.mean(returns[-3:]) > 0.9
