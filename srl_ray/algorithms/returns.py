"""Advantages and value targets over chunks.

All functions take [T, B] tensors of consecutive rows of lanes: `reward[t]` came after the action of row t;
`terminated[t]` and `truncated[t]` say that row t itself is an episode's final row; `valid[t]` is false on padding.
Nothing crosses a final row, and final and invalid rows get 0. The last row only lends its value. Arithmetic is float64
inside, results are float32.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    *,
    discount: float,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16).

        δ_t = r_t + γ·V_{t+1}·(1 − terminated_{t+1}) − V_t
        A_t = δ_t + γλ·(1 − final_{t+1})·A_{t+1}

    Args:
        reward, value: float [T, B], value in the rewards' units.
        terminated, truncated, valid: bool [T, B].
        discount: γ.
        gae_lambda: λ.

    Returns:
        Advantages float32 [T, B]; the last row's is 0.
    """
    delta, decay = _errors(reward, value, terminated, truncated, valid, discount, gae_lambda)
    return _with_last_row(_accumulate(delta, decay)).float()


def off_policy_advantage(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    *,
    discount: float,
    gae_lambda: float,
    rho: Tensor,
    rho_clip: float = 1.0,
    c_clip: float | None = 1.0,
) -> tuple[Tensor, Tensor]:
    """Advantages and value targets of rows that an older policy μ made, for the policy π that is trained.

        x_t = ρ̄_t·δ_t + γλ·(1 − final_{t+1})·c̄_t·x_{t+1},   ρ̄ = min(rho_clip, π(a)/μ(a)), c̄ = min(c_clip, π(a)/μ(a))
        target_t = V_t + x_t,   A_t = δ_t + γλ·(1 − final_{t+1})·x_{t+1}

    δ as in `gae`, of the current critic's values. This is V-trace (Espeholt et al. 2018, eq. 1 and remark 2): with
    λ = 1, target_t is v_t and A_t is r_t + γ·v_{t+1} − V_t, which the policy's gradient takes times ρ̄_t. With traces
    that are not cut (c_clip None: c̄ = 1) every temporal-difference error bears the ratio of its own action only; see
    "td" in on_policy/README.md. On-policy, both are `gae`.

    Args:
        reward: float [T, B].
        value: float [T, B] of the current critic, in the rewards' units.
        terminated, truncated, valid: bool [T, B].
        discount: γ.
        gae_lambda: λ.
        rho: π(a_t)/μ(a_t), float [T, B].
        rho_clip: ρ̄'s bound; the fixed point is the value of a policy between μ and π.
        c_clip: c̄'s bound: how far surprises travel back; None: traces are not cut.

    Returns:
        Advantages and targets, float32 [T, B]; the last row's are 0 and its value.
    """
    delta, decay = _errors(reward, value, terminated, truncated, valid, discount, gae_lambda)
    rho = rho[:-1].double()
    trace = decay if c_clip is None else decay * rho.clamp(max=c_clip)
    change = _accumulate(delta * rho.clamp(max=rho_clip), trace)
    following = torch.cat([change[1:], torch.zeros_like(change[:1])])
    target = value.double() + _with_last_row(change)
    return _with_last_row(delta + decay * following).float(), target.float()


def _errors(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    discount: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """δ_t and the factor γλ of what follows it, float64 [T − 1, B]; 0 where the row does not act or nothing follows."""
    final = terminated | truncated
    idle = ~valid[:-1] | final[:-1]
    reward, value = reward.double(), value.double()
    next_value = value[1:].masked_fill(terminated[1:] | ~valid[1:], 0.0)
    delta = reward[:-1] + discount * next_value - value[:-1]
    decay = torch.full_like(delta, discount * gae_lambda).masked_fill_(final[1:] | ~valid[1:] | idle, 0.0)
    return delta.masked_fill_(idle, 0.0), decay


def _accumulate(delta: Tensor, decay: Tensor) -> Tensor:
    """x_t = delta_t + decay_t · x_{t+1}, as a new tensor [T, B].

    Sums over 1, 2, 4 ... rows ahead: log2(T) operations on all rows in place of T on one. `decay` spans as many rows.
    """
    total = delta.clone()
    span, rows = 1, len(total)
    while span < rows:
        total[: rows - span] += decay[: rows - span] * total[span:]
        decay = decay[:-span] * decay[span:]
        span *= 2
    return total


def _with_last_row(x: Tensor) -> Tensor:
    return torch.cat([x, torch.zeros_like(x[:1])])


def n_step_returns(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    *,
    discount: float,
    steps: int,
) -> Tensor:
    """G_t = Σ_{i<m} γ^i·r_{t+i} + γ^m·V_{t+m}·(1 − terminated_{t+m}), m = min(steps, rows to the final or last row).

    Args:
        reward, value: float [T, B].
        terminated, truncated, valid: bool [T, B].
        discount: γ.
        steps: n ≥ 1.

    Returns:
        float32 [T, B]; 0 on final, invalid and the last rows.
    """
    assert steps >= 1
    final = terminated | truncated
    bootstrap = value.double().masked_fill(terminated | ~valid, 0.0)
    reward = reward.double()
    ahead = bootstrap
    for _ in range(steps):
        following = torch.where(final[1:] | ~valid[1:], bootstrap[1:], ahead[1:])
        # The last row has no successor in the chunk: it keeps its own value as the end of every sum.
        ahead = torch.cat([reward[:-1] + discount * following, bootstrap[-1:]])
    result = ahead.masked_fill(final | ~valid, 0.0)
    result[-1] = 0.0
    return result.float()
