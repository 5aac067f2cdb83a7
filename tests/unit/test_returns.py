"""Advantages and returns: the design's worked example, a slow loop, and stable-baselines3 as an independent oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from srl_ray.algorithms.returns import gae, n_step_returns

pytestmark = pytest.mark.unit

#                     a0   a1   a2   aF   b0   b1   bF   c0
REWARD = torch.tensor([1.0, 2.0, 3.0, 0.0, 4.0, 5.0, 0.0, 6.0])
VALUE = torch.tensor([0.5, 0.4, 0.3, 0.7, 0.2, 0.6, 0.0, 0.1])
TERMINATED = torch.tensor([0, 0, 0, 0, 0, 0, 1, 0]).bool()
TRUNCATED = torch.tensor([0, 0, 0, 1, 0, 0, 0, 0]).bool()


def example(rows: int, **kwargs: Any) -> list[float]:
    columns = [x[:rows, None] for x in (REWARD, VALUE, TERMINATED, TRUNCATED)]
    options = {"discount": 0.9, "gae_lambda": 0.8} | kwargs
    return gae(*columns, torch.ones(rows, 1, dtype=torch.bool), **options)[:, 0].tolist()


def test_worked_example_seven_rows_and_bootstrap() -> None:
    assert example(8) == pytest.approx([3.9327, 4.2676, 3.33, 0.0, 7.508, 4.4, 0.0, 0.0], abs=5e-5)


def test_worked_example_five_rows_and_bootstrap() -> None:
    assert example(6) == pytest.approx([3.9327, 4.2676, 3.33, 0.0, 4.34, 0.0], abs=5e-5)


def test_the_value_stored_with_a_terminated_row_does_not_matter() -> None:
    value = VALUE.clone()
    value[6] = 0.9
    columns = [x[:, None] for x in (REWARD, value, TERMINATED, TRUNCATED)]
    advantage = gae(*columns, torch.ones(8, 1, dtype=torch.bool), discount=0.9, gae_lambda=0.8)[:, 0]
    assert advantage.tolist() == pytest.approx(example(8))


def test_vtrace_of_large_ratios_is_plain_gae() -> None:
    assert example(8, rho=torch.full((8, 1), 1.7)) == example(8)


def test_vtrace_scales_and_cuts_the_trace() -> None:
    # b0: ρ = ½: ½·(4 + .9·.6 − .2) + .72·½·4.4 = 3.754;  b1: ρ = 1.
    rho = torch.ones(8, 1)
    rho[4] = 0.5
    assert example(8, rho=rho)[4:6] == pytest.approx([3.754, 4.4])


def random_rows(seed: int, steps: int = 40, lanes: int = 12) -> dict[str, Tensor]:
    """Lanes with short episodes that terminate or truncate, some beginning with rows that are not there."""
    rng = np.random.default_rng(seed)
    final = rng.random((steps, lanes)) < 0.2
    final[0] = False
    final[1:] &= ~final[:-1]
    terminated = final & (rng.random((steps, lanes)) < 0.5)
    valid = np.arange(steps)[:, None] >= rng.integers(0, 8, lanes) * (rng.random(lanes) < 0.5)
    arrays = {
        "reward": rng.normal(size=(steps, lanes)).astype(np.float32) * ~final,
        "value": rng.normal(size=(steps, lanes)).astype(np.float32) * ~terminated,
        "terminated": terminated & valid,
        "truncated": final & ~terminated & valid,
        "valid": valid,
    }
    return {name: torch.from_numpy(x) for name, x in arrays.items()}


def slow_gae(rows: dict[str, Tensor], discount: float, gae_lambda: float, rho: Tensor | None) -> np.ndarray:
    """Follows every acting row forward to its episode's end and adds the discounted errors up."""
    r, v, term, trunc, valid = (rows[k].numpy() for k in ("reward", "value", "terminated", "truncated", "valid"))
    steps, lanes = r.shape
    weight = np.ones_like(r) if rho is None else np.minimum(rho.numpy(), 1.0)
    advantage = np.zeros((steps, lanes))
    for lane in range(lanes):
        for t in range(steps - 1):
            if not valid[t, lane] or term[t, lane] or trunc[t, lane]:
                continue
            factor, s = 1.0, t
            while True:
                factor *= weight[s, lane]
                following = 0.0 if term[s + 1, lane] else float(v[s + 1, lane])
                advantage[t, lane] += factor * (r[s, lane] + discount * following - v[s, lane])
                factor *= discount * gae_lambda
                s += 1
                if term[s, lane] or trunc[s, lane] or s == steps - 1:
                    break
    return advantage


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("has_rho", [False, True])
def test_gae_equals_the_slow_loop(seed: int, has_rho: bool) -> None:
    rows = random_rows(seed)
    rho = torch.rand(40, 12, generator=torch.Generator().manual_seed(seed)) * 2 if has_rho else None
    advantage = gae(**rows, discount=0.97, gae_lambda=0.9, rho=rho)
    np.testing.assert_allclose(advantage.numpy(), slow_gae(rows, 0.97, 0.9, rho), atol=1e-5)


def test_gae_equals_stable_baselines3() -> None:
    """SB3 has no final rows: it folds γ·V(final) of truncations into the reward, and marks first rows."""
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    gymnasium = pytest.importorskip("gymnasium")
    rng = np.random.default_rng(5)
    steps, discount, gae_lambda = 64, 0.95, 0.9
    rows: list[tuple[float, float, bool, bool]] = []
    buffer = buffers.RolloutBuffer(
        steps, gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2), gamma=discount, gae_lambda=gae_lambda
    )
    is_start, acting = True, []
    for _ in range(steps):
        reward, value = rng.normal(), rng.normal()
        terminated, truncated = rng.random() < 0.1, rng.random() < 0.1
        truncated = truncated and not terminated
        final_value = rng.normal()
        acting.append(len(rows))
        rows.append((reward, value, False, False))
        if terminated or truncated:
            rows.append((0.0, final_value if truncated else 0.0, terminated, truncated))
        folded = reward + discount * final_value * truncated
        buffer.add(
            np.zeros((1, 1)),
            np.zeros((1, 1)),
            np.array([folded]),
            np.array([is_start]),
            torch.tensor([value]),
            torch.zeros(1),
        )
        is_start = terminated or truncated
    last_value = rng.normal()
    buffer.compute_returns_and_advantage(torch.tensor([[last_value]]), np.array([is_start]))
    rows.append((0.0, last_value, False, False))
    reward, value, terminated, truncated = (torch.tensor(column)[:, None] for column in zip(*rows, strict=True))
    advantage = gae(
        reward, value, terminated, truncated, torch.ones_like(terminated), discount=discount, gae_lambda=gae_lambda
    )
    np.testing.assert_allclose(advantage[acting, 0].numpy(), buffer.advantages[:, 0], atol=1e-5)


def slow_n_step(rows: dict[str, Tensor], discount: float, steps: int) -> np.ndarray:
    r, v, term, trunc, valid = (rows[k].numpy() for k in ("reward", "value", "terminated", "truncated", "valid"))
    total = np.zeros(r.shape)
    for t, lane in np.ndindex(*r.shape):
        if t == len(r) - 1 or not valid[t, lane] or term[t, lane] or trunc[t, lane]:
            continue
        s, factor = t, 1.0
        while s - t < steps and s < len(r) - 1 and not (term[s, lane] or trunc[s, lane]):
            total[t, lane] += factor * r[s, lane]
            factor *= discount
            s += 1
        total[t, lane] += 0.0 if term[s, lane] else factor * v[s, lane]
    return total


@pytest.mark.parametrize("steps", [1, 3, 10])
def test_n_step_returns_equal_the_slow_loop(steps: int) -> None:
    rows = random_rows(9)
    got = n_step_returns(**rows, discount=0.9, steps=steps)
    np.testing.assert_allclose(got.numpy(), slow_n_step(rows, 0.9, steps), atol=1e-5)


def test_one_step_return_is_the_td_target() -> None:
    columns = [x[:, None] for x in (REWARD, VALUE, TERMINATED, TRUNCATED)]
    got = n_step_returns(*columns, torch.ones(8, 1, dtype=torch.bool), discount=0.9, steps=1)[:, 0]
    assert got.tolist() == pytest.approx([1.36, 2.27, 3.63, 0.0, 4.54, 5.0, 0.0, 0.0])


def test_inputs_are_not_written() -> None:
    rows = random_rows(1)
    before = {name: x.clone() for name, x in rows.items()}
    gae(**rows, discount=0.9, gae_lambda=0.9, rho=torch.ones(40, 12))
    n_step_returns(**rows, discount=0.9, steps=3)
    assert all(torch.equal(rows[name], before[name]) for name in rows)
