"""Every kind of optimiser is torch's own, clipped, and can be saved and taken back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from srl_ray.algorithms.config import PPOConfig
from srl_ray.algorithms.gradient_clip import OutlierGuard, clip_units
from srl_ray.algorithms.lamb import Lamb
from srl_ray.algorithms.optimizer import Optimizer, Snapshot

pytestmark = pytest.mark.unit

REFERENCES: dict[str, Any] = {
    "adam": lambda p: torch.optim.Adam(p, 0.1, eps=1e-5, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.1, eps=1e-5, weight_decay=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.1, eps=1e-5, weight_decay=0.01),
    "sgd": lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.01),
}


def make(kind: str, **options: Any) -> tuple[nn.Linear, Optimizer]:
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    config = PPOConfig(optimizer=kind, learning_rate=0.1, weight_decay=0.01, **{"max_grad_norm": None} | options)
    return module, Optimizer(module, config)


def step(module: nn.Module, optimizer: Any, number: int, max_grad_norm: float | None = None) -> None:
    torch.manual_seed(number)
    optimizer.zero_grad()
    module(torch.randn(4, 3)).square().sum().backward()
    if isinstance(optimizer, Optimizer):
        optimizer.step()
    else:
        if max_grad_norm is not None:
            nn.utils.clip_grad_norm_(module.parameters(), max_grad_norm)
        optimizer.step()


@pytest.mark.parametrize("kind", REFERENCES)
@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
def test_steps_are_those_of_torch(kind: str, max_grad_norm: float | None) -> None:
    module, optimizer = make(kind, max_grad_norm=max_grad_norm)
    other, _ = make(kind)
    reference = REFERENCES[kind](other.parameters())
    for number in range(3):
        step(module, optimizer, number, max_grad_norm)
        step(other, reference, number, max_grad_norm)
    for mine, theirs in zip(module.parameters(), other.parameters()):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("kind", [*REFERENCES, "lamb"])
def test_a_loaded_state_goes_on_as_the_saved_one(kind: str) -> None:
    module, optimizer = make(kind)
    step(module, optimizer, 0)
    state, weights = optimizer.state_dict(), {k: v.clone() for k, v in module.state_dict().items()}
    step(module, optimizer, 1)
    other, loaded = make(kind)
    other.load_state_dict(weights)
    loaded.load_state_dict(state)
    step(other, loaded, 1)
    for mine, theirs in zip(module.parameters(), other.parameters()):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("kind", [*REFERENCES, "lamb"])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_snapshot_takes_back_what_came_after(kind: str, steps_before: int) -> None:
    module, optimizer = make(kind)
    for number in range(steps_before):
        step(module, optimizer, number)
    snapshot = Snapshot(module, optimizer)
    snapshot.take()
    results = []
    for _ in range(2):
        step(module, optimizer, 7)
        results.append([p.detach().clone() for p in module.parameters()])
        snapshot.restore()
    for first, second in zip(*results):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="rmsprop"):
        PPOConfig(optimizer="adamm")


# -- LAMB --------------------------------------------------------------------------------------------------------------


def slow_lamb(
    weights: list[np.ndarray], gradients: list[list[np.ndarray]], lr: float, decay: float
) -> list[np.ndarray]:
    """Algorithm 2 of You et al. 2020, layer by layer."""
    moments = [(np.zeros_like(w), np.zeros_like(w)) for w in weights]
    for t, step_gradients in enumerate(gradients, start=1):
        for i, g in enumerate(step_gradients):
            m, v = moments[i]
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            moments[i] = m, v
            u = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-5) + decay * weights[i]
            w_norm, u_norm = np.linalg.norm(weights[i]), np.linalg.norm(u)
            trust = w_norm / u_norm if w_norm > 0 and u_norm > 0 else 1.0
            weights[i] = weights[i] - lr * trust * u
    return weights


def test_lamb_equals_its_algorithm_layer_by_layer() -> None:
    rng = np.random.default_rng(0)
    shapes = [(4, 3), (4,), (2, 3, 3)]
    start = [rng.normal(size=shape) for shape in shapes]
    start[1] = np.zeros(4)  # a bias that begins at 0 is not held there
    gradients = [[rng.normal(size=shape) for shape in shapes] for _ in range(5)]
    parameters = [nn.Parameter(torch.from_numpy(w.copy())) for w in start]
    optimizer = Lamb(parameters, 0.05, eps=1e-5, weight_decay=0.1)
    for step_gradients in gradients:
        for parameter, gradient in zip(parameters, step_gradients):
            parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
    for mine, slow in zip(parameters, slow_lamb(start, gradients, 0.05, 0.1)):
        np.testing.assert_allclose(mine.detach().numpy(), slow, rtol=1e-6)


# -- bounds for gradients ----------------------------------------------------------------------------------------------


def test_units_are_clipped_by_the_length_of_their_weights() -> None:
    layer, head = nn.Linear(2, 3), nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 4.0], [0.0, 0.0], [3.0, 4.0]]))
        layer.bias.zero_()
    layer.weight.grad = torch.tensor([[0.0, 2.0], [0.0, 2.0], [0.0, 0.01]])
    layer.bias.grad, head.weight.grad = torch.full((3,), 1.0), torch.full((1, 2), 9.0)
    named = {**{f"body.{n}": p for n, p in layer.named_parameters()}, "value_head.weight": head.weight}
    clip_units(named, 0.1)
    # 5 · 0.1 = 0.5; the shortest weights count as 10⁻³; 0.01 is within its bound; biases are one unit; heads are free.
    torch.testing.assert_close(layer.weight.grad, torch.tensor([[0.0, 0.5], [0.0, 1e-4], [0.0, 0.01]]))
    assert float(layer.bias.grad.norm()) == pytest.approx(1e-4)
    assert head.weight.grad.tolist() == [[9.0, 9.0]]


def test_an_unusual_gradient_is_scaled_down_and_counted() -> None:
    guard = OutlierGuard(3.0)
    scales = [float(guard.scale(torch.tensor(norm))) for norm in [1.0] * 30 + [2.9, 30.0, 1.0]]
    assert scales[:31] == [1.0] * 31
    assert 0.09 < scales[31] < 0.11, "about 3 of 30"
    assert scales[32] == 1.0
    assert float(guard.take_outliers()) == 1.0
    assert float(guard.take_outliers()) == 0.0


def test_the_first_gradients_are_never_unusual() -> None:
    guard = OutlierGuard(1.5)
    assert [float(guard.scale(torch.tensor(norm))) for norm in (1.0, 100.0, 1.0)] == [1.0, 1.0, 1.0]


def test_a_gradient_that_is_not_finite_stays_so_for_the_check_to_find() -> None:
    module, optimizer = make("adam", grad_outlier=2.0, max_grad_norm=0.5)
    step(module, optimizer, 0)
    optimizer.zero_grad()
    (module(torch.ones(1, 3)).sum() * torch.nan).backward()
    assert not torch.isfinite(optimizer.step())


def test_the_guard_is_saved_and_taken_back() -> None:
    module, optimizer = make("sgd", grad_outlier=2.0)
    snapshot = Snapshot(module, optimizer)
    snapshot.take()
    step(module, optimizer, 0)
    saved = optimizer.state_dict()["grad_outlier"]
    assert float(saved["steps"]) == 1.0
    snapshot.restore()
    assert float(optimizer.state_dict()["grad_outlier"]["steps"]) == 0.0
    optimizer.load_state_dict({"grad_outlier": saved})
    assert float(optimizer.state_dict()["grad_outlier"]["steps"]) == 1.0


@pytest.mark.parametrize(("key", "value"), [("grad_clip", "units"), ("adaptive_clip", 0.0), ("grad_outlier", 1.0)])
def test_bounds_out_of_range_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"algorithm.{key} must be"):
        PPOConfig(**{key: value})
