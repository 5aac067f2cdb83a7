from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fault.training import Training


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    """Starts training runs in a folder of their own and ends what is left of them."""
    started: list[Training] = []

    def start(*overrides: str, name: str = "run", **kwargs) -> Training:
        started.append(Training(tmp_path / name, *overrides, **kwargs))
        return started[-1]

    yield start
    for training in started:
        training.end()
