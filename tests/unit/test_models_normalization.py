"""Running statistics: what they converge to, masks, extremes, several trainer workers."""

from __future__ import annotations

import copy

import pytest
import torch
from ranks import Ranks

from srl_ray.algorithms.algorithm import Collective
from srl_ray.models.normalization import ObservationNormalizer, RunningMoments, RunningValueScale

pytestmark = pytest.mark.unit


def everything(values: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(values, torch.ones(len(values), dtype=torch.bool))]


def test_the_first_batch_is_taken_as_it_is() -> None:
    moments = RunningMoments(3, beta=0.99999)
    batch = torch.randn(100, 3) * 4 + 7
    moments.update(everything(batch))
    torch.testing.assert_close(moments.mean, batch.double().mean(0))
    torch.testing.assert_close(moments.variance, batch.double().var(0, correction=0))


def test_a_slow_average_is_the_moments_of_all_rows() -> None:
    moments = RunningMoments(2, beta=1 - 1e-9)
    batches = [torch.randn(50, 2) * (i + 1) + i for i in range(8)]
    for batch in batches:
        moments.update(everything(batch))
    rows = torch.cat(batches).double()
    torch.testing.assert_close(moments.mean, rows.mean(0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(moments.variance, rows.var(0, correction=0), rtol=1e-6, atol=1e-6)


def test_a_fast_average_equals_debiased_moments() -> None:
    """The textbook form: EMA of x and x², each divided by 1 − β^n."""
    beta, moments = 0.8, RunningMoments(1, beta=0.8)
    first = second = 0.0
    for i in range(1, 6):
        batch = torch.randn(20, 1) + i
        moments.update(everything(batch))
        first = beta * first + (1 - beta) * float(batch.double().mean())
        second = beta * second + (1 - beta) * float(batch.double().square().mean())
        mean = first / (1 - beta**i)
        assert float(moments.mean) == pytest.approx(mean)
        assert float(moments.variance) == pytest.approx(second / (1 - beta**i) - mean**2)


def test_masked_rows_leave_no_trace() -> None:
    moments = RunningMoments(1, beta=0.9)
    values = torch.tensor([[1.0], [3.0], [float("nan")], [1e20]])
    moments.update([(values, torch.tensor([True, True, False, False]))])
    assert float(moments.mean) == 2.0
    before = copy.deepcopy(moments.state_dict())
    moments.update([(values, torch.zeros(4, dtype=torch.bool))])
    assert all(torch.equal(tensor, before[name]) for name, tensor in moments.state_dict().items())


@pytest.mark.parametrize("constant", [0.0, 3.5, 1e20, -1e20])
def test_extreme_features_stay_finite(constant: float) -> None:
    normalizer = ObservationNormalizer([2], clip=5.0)
    batch = torch.full((64, 2), constant)
    batch[:, 1] = torch.randn(64) * 1e20
    for _ in range(3):
        normalizer.update(everything(batch))
        (result,) = normalizer([batch])
        assert result.isfinite().all()
        assert result.abs().max() <= 5.0
    assert all(tensor.isfinite().all() for tensor in normalizer.state_dict().values())


def test_value_scale_inverts() -> None:
    scale = RunningValueScale()
    targets = torch.randn(20, 5) * 30 - 100
    scale.update(targets, torch.ones(20, 5, dtype=torch.bool))
    normalized = scale.normalize(targets)
    assert float(normalized.mean()) == pytest.approx(0.0, abs=1e-4)
    assert float(normalized.std(correction=0)) == pytest.approx(1.0, abs=1e-4)
    torch.testing.assert_close(scale.denormalize(normalized), targets, atol=1e-3, rtol=1e-4)


def test_the_state_dict_holds_everything() -> None:
    first, second = ObservationNormalizer([3], clip=5.0), ObservationNormalizer([3], clip=5.0)
    first.update(everything(torch.randn(30, 3) * 5 + 2))
    for name, tensor in first.state_dict().items():
        second.state_dict()[name].copy_(tensor)
    x = torch.randn(4, 3)
    torch.testing.assert_close(second([x])[0], first([x])[0])


def test_two_trainer_workers_keep_the_statistics_of_all_rows() -> None:
    rows = torch.randn(60, 2) * 3 + 1
    halves = [everything(rows[:20]), everything(rows[20:])]
    alone = RunningMoments(2, beta=0.9)
    alone.update(everything(rows))

    def keep(rank: int, collective: Collective) -> RunningMoments:
        moments = RunningMoments(2, beta=0.9)
        moments.reduce_sum = collective.reduce_sum
        moments.update(halves[rank])
        return moments

    for moments in Ranks(2).run(keep):
        torch.testing.assert_close(moments.mean, alone.mean)
        torch.testing.assert_close(moments.variance, alone.variance)


def test_copies_do_not_carry_the_collective() -> None:
    moments = RunningMoments(1, beta=0.9)
    moments.reduce_sum = lambda tensor: tensor * 2
    assert copy.deepcopy(moments).reduce_sum is not moments.reduce_sum
