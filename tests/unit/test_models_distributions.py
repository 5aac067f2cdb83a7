"""Distributions against torch's and stable-baselines3's, masks, and the source of noise."""

from __future__ import annotations

import pickle

import pytest
import torch

from srl_ray.models.distributions import DiagonalGaussian, MultiCategorical

pytestmark = pytest.mark.unit

NVEC = (3, 3, 2, 5)


def random_logits(rows: int = 64) -> torch.Tensor:
    return torch.randn(rows, sum(NVEC), generator=torch.Generator().manual_seed(0)) * 2


def test_multi_categorical_equals_torch() -> None:
    logits = random_logits()
    parts = [torch.distributions.Categorical(logits=part) for part in logits.split(NVEC, -1)]
    action = torch.stack([part.sample() for part in parts], -1)
    log_prob, entropy = MultiCategorical(NVEC).log_prob_entropy(logits, action)
    expected = sum(part.log_prob(chosen) for part, chosen in zip(parts, action.unbind(-1), strict=True))
    torch.testing.assert_close(log_prob, expected)
    torch.testing.assert_close(entropy, sum(part.entropy() for part in parts))
    sampled, sampled_log_prob = MultiCategorical(NVEC).sample(logits, torch.zeros(64, dtype=torch.bool))
    torch.testing.assert_close(MultiCategorical(NVEC).log_prob_entropy(logits, sampled)[0], sampled_log_prob)


def test_multi_categorical_equals_stable_baselines3() -> None:
    module = pytest.importorskip("stable_baselines3.common.distributions")
    logits = random_logits()
    theirs = module.MultiCategoricalDistribution(list(NVEC)).proba_distribution(logits)
    action = theirs.sample()
    log_prob, entropy = MultiCategorical(NVEC).log_prob_entropy(logits, action)
    torch.testing.assert_close(log_prob, theirs.log_prob(action))
    torch.testing.assert_close(entropy, theirs.entropy())
    mode, _ = MultiCategorical(NVEC).sample(logits, torch.ones(64, dtype=torch.bool))
    assert torch.equal(mode, theirs.mode())


def test_gaussian_equals_stable_baselines3() -> None:
    module = pytest.importorskip("stable_baselines3.common.distributions")
    mean, log_std = torch.randn(16, 3), torch.tensor([-1.0, 0.0, 0.5])
    theirs = module.DiagGaussianDistribution(3).proba_distribution(mean, log_std)
    action = theirs.sample()
    log_prob, entropy = DiagonalGaussian().log_prob_entropy(mean, log_std, action)
    torch.testing.assert_close(log_prob, theirs.log_prob(action))
    torch.testing.assert_close(entropy, theirs.entropy())


def test_samples_have_the_distributions_frequencies() -> None:
    rows = 200_000
    logits = torch.tensor([0.0, 1.0, 2.0, 0.5, -0.5]).expand(rows, 5)
    action, _ = MultiCategorical((3, 2)).sample(
        logits, torch.zeros(rows, dtype=torch.bool), torch.Generator().manual_seed(1)
    )
    frequencies = torch.bincount(action[:, 0], minlength=3) / rows
    torch.testing.assert_close(frequencies, logits[0, :3].softmax(-1), atol=5e-3, rtol=0)
    assert (action[:, 1] == 0).float().mean() == pytest.approx(float(logits[0, 3:].softmax(-1)[0]), abs=5e-3)


def test_samples_depend_on_the_generator_alone() -> None:
    logits, sampled = random_logits(), torch.zeros(64, dtype=torch.bool)
    first = MultiCategorical(NVEC).sample(logits, sampled, torch.Generator().manual_seed(4))[0]
    torch.manual_seed(99)
    again = MultiCategorical(NVEC).sample(logits, sampled, torch.Generator().manual_seed(4))[0]
    other = MultiCategorical(NVEC).sample(logits, sampled, torch.Generator().manual_seed(5))[0]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_deterministic_is_per_row() -> None:
    mean, log_std = torch.zeros(4, 2), torch.zeros(2)
    deterministic = torch.tensor([True, False, True, False])
    action, log_prob = DiagonalGaussian().sample(mean, log_std, deterministic)
    assert torch.equal((action == 0).all(-1), deterministic)
    torch.testing.assert_close(log_prob, DiagonalGaussian().log_prob(mean, log_std, action))
    logits = torch.tensor([0.1, 0.0, 0.0]).expand(400, 3)
    deterministic = torch.arange(400) % 2 == 0
    chosen, _ = MultiCategorical((3,)).sample(logits, deterministic)
    assert (chosen[deterministic] == 0).all()
    assert (chosen[~deterministic] != 0).any()


def test_an_illegal_action_has_probability_zero_and_is_never_drawn() -> None:
    distribution = MultiCategorical((4, 2))
    legal = torch.tensor([True, False, True, False, False, True]).expand(10_000, 6)
    logits = distribution.mask(torch.randn(10_000, 6) * 20, legal)
    assert (logits[:, :4].softmax(-1)[:, [1, 3]] == 0.0).all()
    action, log_prob = distribution.sample(logits, torch.zeros(10_000, dtype=torch.bool))
    assert set(action[:, 0].tolist()) <= {0, 2}
    assert set(action[:, 1].tolist()) == {1}
    assert log_prob.isfinite().all()
    _, entropy = distribution.log_prob_entropy(logits, action)
    assert entropy.isfinite().all()
    assert (entropy <= 0.6932).all()


def test_masked_logits_have_finite_gradients() -> None:
    distribution = MultiCategorical((4, 2))
    raw = torch.randn(5, 6, requires_grad=True)
    legal = torch.tensor([True, False, True, False, False, True]).expand(5, 6)
    log_prob, entropy = distribution.log_prob_entropy(distribution.mask(raw, legal), torch.tensor([[2, 1]] * 5))
    (log_prob.sum() + entropy.sum()).backward()
    assert raw.grad is not None
    assert raw.grad.isfinite().all()
    assert (raw.grad[:, [1, 3]] == 0).all()


def test_a_row_without_a_legal_action_is_an_error() -> None:
    legal = torch.ones(3, 6, dtype=torch.bool)
    legal[1, 4:] = False
    with pytest.raises(ValueError, match=r"action_mask: row 1 has no legal action for component 1") as caught:
        MultiCategorical((4, 2)).mask(torch.zeros(3, 6), legal)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    logits = MultiCategorical((4, 2)).mask_where_any(torch.zeros(3, 6), legal)
    assert torch.equal(logits, torch.zeros(3, 6))
