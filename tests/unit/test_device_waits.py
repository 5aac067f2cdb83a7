"""An update does not wait for its device: what a tensor's numbers decide in Python is counted, and must not grow.

On a GPU every such place stops the queue of kernels. Here it is found without one, by what is asked of torch.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from lanes import Collector, Recall
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from srl_ray.algorithms.algorithm import Collective
from srl_ray.algorithms.config import PPOConfig
from srl_ray.algorithms.factory import make_algorithm
from srl_ray.core.types import ChunkLayout, DiscreteActions
from srl_ray.models.config import ActorCriticConfig
from srl_ray.models.factory import make_policy

pytestmark = pytest.mark.unit

TWO = DiscreteActions((2,))
LAYOUT = ChunkLayout(0, 12, 1, 6)
HOST_METHODS = {"tolist", "numpy", "cpu", "__array__"}
WAITING_OPERATORS = {
    "_local_scalar_dense",  # item(), bool(), int(), float()
    "nonzero",
    "masked_select",
    "bincount",
    "equal",
    "_unique2",
    "repeat_interleave",
}


class HostReads(TorchFunctionMode):
    """Counts methods that hand numbers to Python without an operator."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in HOST_METHODS:
            self.counts[function.__name__] += 1
        return function(*args, **(kwargs or {}))


class Waits(TorchDispatchMode):
    """Counts operators whose result, or its shape, must be known on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._reads = HostReads(self.counts)

    def __enter__(self) -> Any:
        self._reads.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._reads.__exit__(*error)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name in WAITING_OPERATORS:
            self.counts[name] += 1
        if name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        ):
            self.counts["nonzero"] += 1  # a mask as an index
        return function(*args, **(kwargs or {}))


def waits_of_an_update(policy_config: dict[str, Any], **config: Any) -> Counter[str]:
    policy: Any = make_policy(ActorCriticConfig(**policy_config), Recall.obs, TWO, 0)
    algorithm = make_algorithm(PPOConfig(**config), policy, LAYOUT, Collective(), 0)
    batch = Collector(lambda i: Recall(i, TWO), policy, LAYOUT, 8).batch()
    algorithm.update(batch, 0.0)
    with Waits() as waits:
        algorithm.update(batch, 0.0)
    return waits.counts


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
@pytest.mark.parametrize("minibatches", [1, 5])
@pytest.mark.parametrize("normalize", [False, True])
def test_an_update_waits_at_its_beginning_and_its_end_alone(normalize: bool, minibatches: int, optimizer: str) -> None:
    """However many minibatches: the shuffle must know how many rows count, and the metrics are reported. Statistics of
    values (before) and of observations (after) select the rows that count."""
    policy = {"normalize_obs": normalize, "normalize_value": normalize}
    config = {"minibatches": minibatches, "microbatches": 2, "epochs": 3, "optimizer": optimizer}
    assert waits_of_an_update(policy, **config) == {"nonzero": 1 + 2 * normalize, "tolist": 1}


def test_options_that_decide_in_python_wait_once_per_epoch() -> None:
    counts = waits_of_an_update({}, target_kl=1e9, epochs=3, recompute_advantage=True, staleness_correction="vtrace")
    assert counts == {"nonzero": 1, "tolist": 1 + 3}


def test_recurrent_networks_also_wait_for_where_episodes_end() -> None:
    """Per minibatch and network: whether there are resets, where they are, and how long the pieces are."""
    counts = waits_of_an_update({"recurrent": "lstm", "separate": False}, minibatches=2, epochs=2)
    passes = 2 * 2
    assert counts == {"tolist": 1 + passes, "nonzero": 1 + passes, "bincount": passes, "_local_scalar_dense": passes}


def test_a_new_wait_is_noticed() -> None:
    x = torch.ones(3)
    for wait in (
        lambda: x.sum().item(),
        lambda: bool(x[0] > 0),
        lambda: float(x[0]),
        lambda: x[x > 0],
        lambda: x.tolist(),
        lambda: x.cpu(),
        lambda: x.numpy(),
        lambda: torch.nonzero(x),
        lambda: x.masked_select(x > 0),
    ):
        with Waits() as waits:
            wait()
        assert waits.counts.total() == 1
