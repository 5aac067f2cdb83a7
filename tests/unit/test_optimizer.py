"""Every kind of optimiser is torch's own, clipped, and can be saved and taken back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from srl_ray.algorithms.config import PPOConfig
from srl_ray.algorithms.optimizer import Optimizer, Snapshot

pytestmark = pytest.mark.unit

REFERENCES: dict[str, Any] = {
    "adam": lambda p: torch.optim.Adam(p, 0.1, eps=1e-5, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.1, eps=1e-5, weight_decay=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.1, eps=1e-5, weight_decay=0.01),
    "sgd": lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.01),
}


def make(kind: str) -> tuple[nn.Linear, Optimizer]:
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    return module, Optimizer(module, kind=kind, lr=0.1, eps=1e-5, weight_decay=0.01)


def step(module: nn.Module, optimizer: Any, number: int, max_grad_norm: float | None) -> None:
    torch.manual_seed(number)
    optimizer.zero_grad()
    module(torch.randn(4, 3)).square().sum().backward()
    if isinstance(optimizer, Optimizer):
        optimizer.step(max_grad_norm)
    else:
        if max_grad_norm is not None:
            nn.utils.clip_grad_norm_(module.parameters(), max_grad_norm)
        optimizer.step()


@pytest.mark.parametrize("kind", REFERENCES)
@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
def test_steps_are_those_of_torch(kind: str, max_grad_norm: float | None) -> None:
    module, optimizer = make(kind)
    other, _ = make(kind)
    reference = REFERENCES[kind](other.parameters())
    for number in range(3):
        step(module, optimizer, number, max_grad_norm)
        step(other, reference, number, max_grad_norm)
    for mine, theirs in zip(module.parameters(), other.parameters()):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("kind", REFERENCES)
def test_a_loaded_state_goes_on_as_the_saved_one(kind: str) -> None:
    module, optimizer = make(kind)
    step(module, optimizer, 0, None)
    state, weights = optimizer.state_dict(), {k: v.clone() for k, v in module.state_dict().items()}
    step(module, optimizer, 1, None)
    other, loaded = make(kind)
    other.load_state_dict(weights)
    loaded.load_state_dict(state)
    step(other, loaded, 1, None)
    for mine, theirs in zip(module.parameters(), other.parameters()):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("kind", REFERENCES)
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_snapshot_takes_back_what_came_after(kind: str, steps_before: int) -> None:
    module, optimizer = make(kind)
    for number in range(steps_before):
        step(module, optimizer, number, None)
    snapshot = Snapshot(module, optimizer)
    snapshot.take()
    results = []
    for _ in range(2):
        step(module, optimizer, 7, None)
        results.append([p.detach().clone() for p in module.parameters()])
        snapshot.restore()
    for first, second in zip(*results):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="rmsprop"):
        PPOConfig(optimizer="adamm")
