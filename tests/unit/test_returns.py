"""Advantages and returns: the design's worked example, a slow loop, and stable-baselines3 as an independent oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from srl_ray.algorithms.returns import gae, n_step_returns, off_policy_advantage

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


def slow_gae(rows: dict[str, Tensor], discount: float, gae_lambda: float) -> np.ndarray:
    """Follows every acting row forward to its episode's end and adds the discounted errors up."""
    advantage, _ = slow_off_policy(rows, discount, gae_lambda, torch.ones_like(rows["reward"]), 1.0, 1.0)
    return advantage


def slow_off_policy(
    rows: dict[str, Tensor], discount: float, gae_lambda: float, rho: Tensor, rho_clip: float, c_clip: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """V-trace's eq. 1 written out, row by row: v_s = V_s + Σ_t γ^(t−s) (Π_{i<t} λ·c_i) ρ_t δ_t."""
    r, v, term, trunc, valid = (
        rows[k].double().numpy() for k in ("reward", "value", "terminated", "truncated", "valid")
    )
    ratio = rho.double().numpy()
    steps, lanes = r.shape
    change, advantage = np.zeros((2, steps, lanes))

    def is_acting(t: int, lane: int) -> bool:
        return bool(valid[t, lane] and not term[t, lane] and not trunc[t, lane])

    def error(t: int, lane: int) -> float:
        following = 0.0 if term[t + 1, lane] else v[t + 1, lane]
        return float(r[t, lane] + discount * following - v[t, lane])

    for lane in range(lanes):
        for s in range(steps - 1):
            if not is_acting(s, lane):
                continue
            factor, t = 1.0, s
            while t < steps - 1 and is_acting(t, lane):
                change[s, lane] += factor * min(rho_clip, ratio[t, lane]) * error(t, lane)
                factor *= discount * gae_lambda * (1.0 if c_clip is None else min(c_clip, ratio[t, lane]))
                t += 1
        for s in range(steps - 1):
            if is_acting(s, lane):
                onward = change[s + 1, lane] if is_acting(s + 1, lane) else 0.0
                advantage[s, lane] = error(s, lane) + discount * gae_lambda * onward
    return advantage, v + change


@pytest.mark.parametrize("seed", range(3))
def test_gae_equals_the_slow_loop(seed: int) -> None:
    rows = random_rows(seed)
    advantage = gae(**rows, discount=0.97, gae_lambda=0.9)
    np.testing.assert_allclose(advantage.numpy(), slow_gae(rows, 0.97, 0.9), atol=1e-5)


# -- rows of an older policy -------------------------------------------------------------------------------------------


def random_ratios(seed: int, shape: tuple[int, ...] = (40, 12)) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).exp()


def corrected_example(rho: float, **options: Any) -> tuple[list[float], list[float]]:
    """Rows b0, b1, bF of the worked example, b0 made with ratio rho and b1 with 1.5."""
    columns = [x[4:7, None] for x in (REWARD, VALUE, TERMINATED, TRUNCATED)]
    rho_t = torch.tensor([rho, 1.5, 1.0])[:, None]
    valid = torch.ones(3, 1, dtype=torch.bool)
    both = off_policy_advantage(*columns, valid, rho=rho_t, **{"discount": 0.9, "gae_lambda": 0.8} | options)
    return both[0][:2, 0].tolist(), both[1][:2, 0].tolist()


def test_vtrace_literal_numbers() -> None:
    # b1: δ = 5 − .6 = 4.4, its ratio is clipped to 1: x = 4.4. b0: δ = 4 + .9·.6 − .2 = 4.34,
    # x = ½·4.34 + .72·½·4.4 = 3.754, v = .2 + x; A = 4.34 + .72·4.4 = 7.508, without its own ratio.
    advantage, target = corrected_example(0.5)
    assert advantage == pytest.approx([7.508, 4.4])
    assert target == pytest.approx([3.954, 5.0])


def test_td_literal_numbers() -> None:
    # b1 as before. b0: its error is weighted, the later one is not cut: x = ½·4.34 + .72·4.4 = 5.338.
    advantage, target = corrected_example(0.5, c_clip=None)
    assert advantage == pytest.approx([7.508, 4.4])
    assert target == pytest.approx([5.538, 5.0])


def test_wider_bounds_let_more_of_a_ratio_through() -> None:
    # b1: x = 1.5·4.4 = 6.6, and b0: x = ½·4.34 + .72·½·6.6.
    advantage, target = corrected_example(0.5, rho_clip=2.0)
    assert advantage == pytest.approx([4.34 + 0.72 * 6.6, 4.4])
    assert target == pytest.approx([0.2 + 2.17 + 0.36 * 6.6, 7.2])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("clips", [(1.0, 1.0), (1.7, 0.8), (1.0, None)])
def test_corrections_equal_the_slow_loop(seed: int, clips: tuple[float, float | None]) -> None:
    rows, rho = random_rows(seed), random_ratios(seed)
    found = off_policy_advantage(**rows, discount=0.97, gae_lambda=0.9, rho=rho, rho_clip=clips[0], c_clip=clips[1])
    for ours, slow in zip(found, slow_off_policy(rows, 0.97, 0.9, rho, *clips), strict=True):
        np.testing.assert_allclose(ours.numpy(), slow, atol=1e-5)


@pytest.mark.parametrize("c_clip", [1.0, None])
def test_corrections_are_gae_on_policy(c_clip: float | None) -> None:
    rows = random_rows(4)
    advantage, target = off_policy_advantage(
        **rows, discount=0.97, gae_lambda=0.9, rho=torch.ones(40, 12), c_clip=c_clip
    )
    plain = gae(**rows, discount=0.97, gae_lambda=0.9)
    torch.testing.assert_close(advantage, plain)
    torch.testing.assert_close(target, plain + rows["value"])


def test_a_drift_of_the_critic_leaves_no_trace_in_corrected_advantages() -> None:
    """Values that all moved by a constant since the rows were made: GAE of the stored ones is off by a constant of its
    own, the corrected advantages are those of the critic as it is."""
    rows = random_rows(2)
    rows["terminated"][:] = rows["truncated"][:] = False
    moved = {**rows, "value": rows["value"] + 3.0}
    options = {"discount": 0.9, "gae_lambda": 0.8}
    stale, current = gae(**rows, **options), gae(**moved, **options)
    corrected, _ = off_policy_advantage(**moved, **options, rho=torch.ones(40, 12), c_clip=None)
    torch.testing.assert_close(corrected, current)
    # Far from the chunk's end the stale ones are off by 3·(1 − γ)/(1 − γλ).
    acting = rows["valid"][0]
    drift = (stale - current)[0][acting]
    torch.testing.assert_close(drift, torch.full_like(drift, 3.0 * 0.1 / 0.28), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("gae_lambda", [1.0, 0.9])
@pytest.mark.parametrize("clips", [(1.0, 1.0), (2.0, 1.0)])
def test_vtrace_equals_rlax(gae_lambda: float, clips: tuple[float, float]) -> None:
    """rlax has discounts in place of final rows: an acting row before a termination has discount 0. It uses one bound
    for both weights, so that its c̄ is 1 always."""
    rlax = pytest.importorskip("rlax", reason="rlax is not installed: pip install rlax")
    rng = np.random.default_rng(3)
    steps = 50
    reward, value = rng.normal(size=(2, steps + 1)).astype(np.float32)
    rho = np.exp(rng.normal(size=steps + 1)).astype(np.float32)
    flags = torch.zeros(steps + 1, 1, dtype=torch.bool)
    ours, target = off_policy_advantage(
        *(torch.from_numpy(x)[:, None] for x in (reward, value)), flags, flags, ~flags,
        discount=0.97, gae_lambda=gae_lambda, rho=torch.from_numpy(rho)[:, None], rho_clip=clips[0], c_clip=clips[1],
    )  # fmt: skip
    errors = rlax.vtrace(
        value[:-1], value[1:], reward[:-1], np.full(steps, 0.97, np.float32), rho[:-1], gae_lambda, clips[0]
    )
    np.testing.assert_allclose(target[:-1, 0] - value[:-1], errors, atol=1e-4)
    following = np.concatenate([np.asarray(errors)[1:], [0.0]])
    delta = reward[:-1] + 0.97 * value[1:] - value[:-1]
    np.testing.assert_allclose(ours[:-1, 0], delta + 0.97 * gae_lambda * following, atol=1e-4)


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
    off_policy_advantage(**rows, discount=0.9, gae_lambda=0.9, rho=torch.ones(40, 12))
    n_step_returns(**rows, discount=0.9, steps=3)
    assert all(torch.equal(rows[name], before[name]) for name in rows)
