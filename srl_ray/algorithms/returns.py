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
    rho: Tensor | None = None,
) -> Tensor:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16), optionally with V-trace's weights.

        δ_t = r_t + γ·V_{t+1}·(1 − terminated_{t+1}) − V_t
        A_t = ρ̄_t·δ_t + γλ·(1 − final_{t+1})·ρ̄_t·A_{t+1},   ρ̄_t = min(1, π(a_t)/μ(a_t))

    With λ = 1 the target V + A is v_t of V-trace (Espeholt et al. 2018, eq. 1, ρ̄ = c̄ = 1).

    Args:
        reward, value: float [T, B], value in the rewards' units.
        terminated, truncated, valid: bool [T, B].
        discount: γ.
        gae_lambda: λ.
        rho: Unclipped importance weights float [T, B]; None means 1.

    Returns:
        Advantages float32 [T, B]; the last row's is 0.
    """
    final = terminated | truncated
    acting = valid & ~final
    reward, value = reward.double(), value.double()
    next_value = value[1:].masked_fill(terminated[1:] | ~valid[1:], 0.0)
    delta = reward[:-1] + discount * next_value - value[:-1]
    decay = torch.full_like(delta, discount * gae_lambda).masked_fill_(final[1:] | ~valid[1:], 0.0)
    if rho is not None:
        clipped = rho[:-1].double().clamp(max=1.0)
        delta, decay = delta * clipped, decay * clipped
    delta.masked_fill_(~acting[:-1], 0.0)
    decay.masked_fill_(~acting[:-1], 0.0)
    # Sums over 1, 2, 4 ... rows ahead: log2(T) operations on all rows in place of T on one. `decay` spans as many rows.
    span, rows = 1, len(delta)
    while span < rows:
        delta[: rows - span] += decay[: rows - span] * delta[span:]
        decay = decay[:-span] * decay[span:]
        span *= 2
    return torch.cat([delta, torch.zeros_like(value[:1])]).float()


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
