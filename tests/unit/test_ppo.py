"""PPO: losses, options, masks, several trainer workers, errors, and learning."""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np
import pytest
import torch
from lanes import Bandit, Collector, Recall
from ranks import Ranks

from srl_ray.algorithms.algorithm import Collective, explained_variance
from srl_ray.algorithms.config import AlgorithmConfig, CustomAlgorithmConfig, PPOConfig
from srl_ray.algorithms.factory import make_algorithm
from srl_ray.algorithms.on_policy.losses import clipped_value_error, surrogate_loss, value_error
from srl_ray.algorithms.on_policy.minibatches import trained_rows
from srl_ray.algorithms.on_policy.update import OnPolicy
from srl_ray.algorithms.optimizer import linear_schedule
from srl_ray.algorithms.returns import gae
from srl_ray.core.errors import ConfigError, NonFiniteError
from srl_ray.core.types import ChunkLayout, ContinuousActions, DiscreteActions
from srl_ray.models.config import ActorCriticConfig
from srl_ray.models.factory import make_policy

pytestmark = pytest.mark.unit

TWO, THREE = DiscreteActions((2,)), DiscreteActions((3,))
LAYOUT = ChunkLayout(0, 8, 1, 4)
BUILDING = threading.Lock()
METRICS = {
    "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm", "grad_outliers",
    "explained_variance", "advantage_mean", "advantage_std", "value_mean", "target_mean", "rows", "learning_rate",
    "entropy_cost",
}  # fmt: skip


def setup(
    config: PPOConfig | None = None,
    policy_config: ActorCriticConfig | None = None,
    *,
    layout: ChunkLayout = LAYOUT,
    lanes: int = 8,
    collective: Collective | None = None,
) -> tuple[Any, Any, Collector]:
    """Policy, PPO and a collector of Recall chunks."""
    with BUILDING:  # torch's global generator is shared by all threads
        policy: Any = make_policy(policy_config or ActorCriticConfig(), Recall.obs, TWO, 0)
    algorithm: Any = make_algorithm(config or PPOConfig(), policy, layout, collective or Collective(), 0)
    return policy, algorithm, Collector(lambda i: Recall(i, TWO), policy, layout, lanes)


def weights_of(policy: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in policy.state_dict().items()}


def is_equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return a.keys() == b.keys() and all(is_equal(a[key], b[key]) for key in a)


# -- losses ------------------------------------------------------------------------------------------------------------


def test_surrogate_literal_numbers() -> None:
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 5.0])
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0])
    plain = surrogate_loss(ratio, advantage, clip_eps=0.2, dual_clip=None)
    assert plain.tolist() == pytest.approx([-1.2, 1.5, -0.5, 0.8, 5.0])
    dual = surrogate_loss(ratio, advantage, clip_eps=0.2, dual_clip=3.0)
    assert dual.tolist() == pytest.approx([-1.2, 1.5, -0.5, 0.8, 3.0])


def test_value_error_literal_numbers() -> None:
    value, target = torch.tensor([0.0, 0.0]), torch.tensor([1.0, 4.0])
    assert value_error(value, target, kind="mse", delta=2.0).tolist() == [1.0, 16.0]
    assert value_error(value, target, kind="huber", delta=2.0).tolist() == [0.5, 6.0]
    assert value_error(value, target, kind="smooth_l1", delta=2.0).tolist() == [0.25, 3.0]


def test_clipped_value_error_takes_the_worse() -> None:
    value, old, target = torch.tensor([1.0, 0.1]), torch.zeros(2), torch.ones(2)
    error = clipped_value_error(value, old, target, clip_eps=0.2, kind="mse", delta=1.0)
    assert error.tolist() == pytest.approx([0.64, 0.81])


def test_linear_schedule() -> None:
    assert linear_schedule(1.0, None, 0.7) == 1.0
    assert linear_schedule(1.0, 0.0, 0.25) == 0.75
    assert linear_schedule(1.0, 0.5, 2.0) == 0.5


# -- one update --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recurrent", ["none", "lstm"])
def test_one_full_batch_step_equals_the_formula_written_out(recurrent: str) -> None:
    """Advantages, z-score, losses, masks and Adam from the definitions, on rows with resets of both kinds."""
    config = PPOConfig(epochs=1, minibatches=1, max_grad_norm=None, entropy_cost=0.02, value_cost=0.7, gae_lambda=0.8)
    policy, algorithm, collector = setup(config, ActorCriticConfig(recurrent=recurrent))
    collector.batch()
    batch = collector.batch()
    twin = copy.deepcopy(policy)
    metrics = algorithm.update(batch, 0.0)

    advantage = gae(
        *(batch[name] for name in ("reward", "value", "terminated", "truncated", "valid")),
        discount=0.99,
        gae_lambda=0.8,
    )[:8]
    rows = trained_rows(batch, LAYOUT, is_recurrent=twin.state_size > 0)
    mask = rows.fields["mask"]
    target = (advantage + batch["value"][:8])[mask]
    a = advantage[mask]
    a = (a - a.mean()) / (a.std(correction=0) + 1e-5)
    evaluation = twin.evaluate({**rows.fields, "state": rows.state})
    ratio = (evaluation.log_prob[mask] - batch["log_prob"][:8][mask]).exp()
    policy_loss = -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
    value_loss = (evaluation.value[mask] - target).square().mean()
    entropy = evaluation.entropy[mask].mean()
    (policy_loss + 0.7 * value_loss - 0.02 * entropy).backward()
    torch.optim.Adam(twin.parameters(), lr=3e-4, eps=1e-5).step()

    for got, expected in zip(policy.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-4)
    assert metrics.keys() == METRICS
    assert metrics["policy_loss"] == pytest.approx(policy_loss.item(), abs=1e-5)
    assert metrics["value_loss"] == pytest.approx(value_loss.item(), rel=1e-4)
    assert metrics["entropy"] == pytest.approx(entropy.item(), rel=1e-4)
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-5)
    assert metrics["rows"] == int(mask.sum())
    assert metrics["advantage_mean"] == pytest.approx(float(advantage[mask].mean()), abs=1e-5)
    assert metrics["advantage_std"] == pytest.approx(float(advantage[mask].std(correction=0)), rel=1e-4)
    assert metrics["target_mean"] == pytest.approx(float(target.mean()), rel=1e-4)
    values = batch["value"][:8][mask].numpy()
    assert metrics["explained_variance"] == pytest.approx(explained_variance(target.numpy(), values), abs=1e-4)
    assert all(isinstance(number, float) for number in metrics.values())


@pytest.mark.parametrize(
    ("layout", "recurrent"), [(LAYOUT, "none"), (LAYOUT, "gru"), (ChunkLayout(4, 8, 2, 4), "lstm")], ids=str
)
def test_rows_outside_the_loss_mask_have_no_influence(layout: ChunkLayout, recurrent: str) -> None:
    config = PPOConfig(clip_value=True, dual_clip=3.0, normalize_advantage="batch")
    policy_config = ActorCriticConfig(recurrent=recurrent, normalize_obs=True, normalize_value=True)
    results = []
    for is_disturbed in (False, True):
        policy, algorithm, collector = setup(config, policy_config, layout=layout)
        batch = collector.batch()
        batch = {name: x.clone() for name, x in batch.items()}
        batch["valid"][: layout.burn_in + 2, 0] = False
        batch["on_reset"][layout.burn_in + 2, 0] = True
        if is_disturbed:
            final = batch["terminated"] | batch["truncated"]
            batch["log_prob"][final], batch["reward"][final] = -200.0, 1e6
            batch["value"][batch["terminated"]] = 1e6
            for name in ("log_prob", "reward", "value"):
                batch[name][: layout.burn_in + 2, 0] = 1e6
        results.append((algorithm.update(batch, 0.0), weights_of(policy)))
    assert results[0][0] == pytest.approx(results[1][0])
    assert is_equal(results[0][1], results[1][1])


def test_the_batch_is_not_written() -> None:
    config = PPOConfig(staleness_correction="vtrace", recompute_advantage=True, epochs=2)
    _, algorithm, collector = setup(
        config, ActorCriticConfig(recurrent="lstm", normalize_obs=True, normalize_value=True)
    )
    batch = collector.batch()
    before = copy.deepcopy(batch)
    algorithm.update(batch, 0.0)
    assert is_equal(batch, before)


def test_a_batch_without_a_single_row_changes_no_statistic() -> None:
    policy, algorithm, collector = setup(policy_config=ActorCriticConfig(normalize_obs=True, normalize_value=True))
    batch = collector.batch()
    batch["valid"] = torch.zeros_like(batch["valid"])
    before = weights_of(policy)
    metrics = algorithm.update(batch, 0.0)
    assert metrics["rows"] == 0
    assert is_equal(before, weights_of(policy))


@pytest.mark.parametrize("unit", ["row", "segment", "chunk"])
def test_an_epoch_takes_every_row_once(unit: str) -> None:
    layout = ChunkLayout(4, 8, 1, 4) if unit == "chunk" else LAYOUT
    _, algorithm, collector = setup(
        policy_config=ActorCriticConfig(recurrent="none" if unit == "row" else "lstm"), layout=layout
    )
    batch = collector.batch()
    rows = trained_rows(batch, layout, is_recurrent=unit != "row")
    assert rows.unit == unit
    number = torch.arange(8 * 8).view(8, 8)
    rows.fields["number"] = number
    taken = [rows.take(units) for units in algorithm._shuffle(rows.units())]
    assert len(taken) == 4
    seen = torch.cat([part["number"][part["mask"]] for part in taken])
    assert sorted(seen.tolist()) == number[rows.fields["mask"]].tolist()
    assert seen.tolist() != sorted(seen.tolist())
    sizes = [part["number"].numel() for part in taken]
    assert max(sizes) - min(sizes) <= {"row": 1, "segment": 4, "chunk": 8}[unit]


@pytest.mark.parametrize(
    ("layout", "recurrent"), [(LAYOUT, "none"), (LAYOUT, "gru"), (ChunkLayout(4, 8, 2, 4), "lstm")], ids=str
)
def test_microbatches_change_the_memory_but_not_the_step(layout: ChunkLayout, recurrent: str) -> None:
    results = []
    for microbatches in (1, 3):
        config = PPOConfig(microbatches=microbatches, epochs=2, minibatches=2)
        policy, algorithm, collector = setup(config, ActorCriticConfig(recurrent=recurrent), layout=layout)
        sizes: list[int] = []
        evaluate = policy.evaluate
        policy.evaluate = lambda batch, evaluate=evaluate, sizes=sizes: (
            sizes.append(batch["mask"].numel()) or evaluate(batch)
        )
        results.append((algorithm.update(collector.batch(), 0.0), list(policy.parameters()), sizes))
    (metrics, weights, sizes), (same_metrics, same_weights, smaller_sizes) = results
    assert (len(sizes), len(smaller_sizes)) == (4, 12)
    assert max(smaller_sizes) < max(sizes)
    for one, other in zip(weights, same_weights, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-3)
    assert metrics == pytest.approx(same_metrics, rel=1e-3, abs=1e-5)


def test_schedules_follow_progress() -> None:
    config = PPOConfig(learning_rate=1e-3, learning_rate_end=0.0, entropy_cost=0.1, entropy_cost_end=0.0)
    policy, algorithm, collector = setup(config)
    batch = collector.batch()
    metrics = algorithm.update(batch, 0.5)
    assert metrics["learning_rate"] == pytest.approx(5e-4)
    assert metrics["entropy_cost"] == pytest.approx(0.05)
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    algorithm.update(batch, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_target_kl_ends_the_epochs() -> None:
    steps = []
    for target_kl in (None, 1e-9):
        _, algorithm, collector = setup(PPOConfig(learning_rate=1e-2, target_kl=target_kl))
        algorithm.update(collector.batch(), 0.0)
        steps.append(float(next(iter(algorithm.state_dict()["optimizer"].values()))["step"]))
    assert steps == [16.0, 4.0]


@pytest.mark.parametrize("recurrent", ["none", "lstm"])
@pytest.mark.parametrize("layout", [ChunkLayout(0, 8, 1, 4), ChunkLayout(3, 8, 2, 4)], ids=str)
def test_recomputed_rows_equal_the_stored_ones_while_the_weights_stand(layout: ChunkLayout, recurrent: str) -> None:
    _, algorithm, collector = setup(
        policy_config=ActorCriticConfig(recurrent=recurrent, normalize_value=True), layout=layout
    )
    collector.batch()
    batch = collector.batch()
    rows = trained_rows(batch, layout, is_recurrent=recurrent != "none")
    log_prob, value = algorithm._evaluate_rows(batch, rows)
    assert log_prob.shape == value.shape == (8 + layout.bootstrap, 8)
    known = ~(batch["terminated"] | batch["truncated"])[layout.burn_in :]
    torch.testing.assert_close(log_prob[known], batch["log_prob"][layout.burn_in :][known], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(value[known], batch["value"][layout.burn_in :][known], atol=1e-5, rtol=1e-4)


def test_corrections_change_nothing_on_policy() -> None:
    results = []
    for correction in ("none", "vtrace", "td"):
        policy, algorithm, collector = setup(PPOConfig(staleness_correction=correction, epochs=1))
        algorithm.update(collector.batch(), 0.0)
        results.append(weights_of(policy))
    for name in results[0]:
        torch.testing.assert_close(results[0][name], results[1][name], atol=1e-5, rtol=1e-4)


def test_value_statistics_are_of_the_targets() -> None:
    policy, algorithm, collector = setup(policy_config=ActorCriticConfig(normalize_value=True))
    metrics = algorithm.update(collector.batch(), 0.0)
    assert float(policy.value_scale.moments.mean) == pytest.approx(metrics["target_mean"], rel=1e-5)


def test_observation_statistics_change_after_the_epochs() -> None:
    """Stored and new log-probabilities are compared under the same statistics."""
    config = PPOConfig(epochs=1, minibatches=1)
    policy, algorithm, collector = setup(config, ActorCriticConfig(normalize_obs=True))
    assert algorithm.update(collector.batch(), 0.0)["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert float(policy.normalizer.moments.weight[0]) > 0


# -- state and errors --------------------------------------------------------------------------------------------------


def test_a_restored_algorithm_continues_as_if_nothing_happened() -> None:
    policy, algorithm, collector = setup(policy_config=ActorCriticConfig(recurrent="lstm"))
    algorithm.update(collector.batch(), 0.0)
    saved, weights = algorithm.state_dict(), weights_of(policy)
    batch = collector.batch()
    expected = algorithm.update(batch, 0.0)

    other, restored, _ = setup(policy_config=ActorCriticConfig(recurrent="lstm"))
    other.load_state_dict(weights)
    restored.load_state_dict(copy.deepcopy(saved))
    assert restored.update(batch, 0.0) == expected
    assert is_equal(weights_of(other), weights_of(policy))


def test_the_state_is_nested_dicts_of_tensors() -> None:
    def check(node: Any) -> None:
        if isinstance(node, dict):
            assert all(isinstance(key, str) for key in node)
            for child in node.values():
                check(child)
        else:
            assert isinstance(node, torch.Tensor | int | float)

    policy, algorithm, collector = setup()
    check(algorithm.state_dict())
    algorithm.update(collector.batch(), 0.0)
    state = algorithm.state_dict()
    check(state)
    assert state["optimizer"].keys() == dict(policy.named_parameters()).keys()


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("field", ["reward", "log_prob", "obs.cue", "value"])
def test_a_number_that_is_not_finite_leaves_everything_as_it_was(field: str, is_first: bool) -> None:
    policy, algorithm, collector = setup(policy_config=ActorCriticConfig(normalize_obs=True, normalize_value=True))
    if not is_first:
        algorithm.update(collector.batch(), 0.0)
    batch = collector.batch()
    batch["policy_version"] += 41
    good = {name: x.clone() for name, x in batch.items()}
    t = int((~(batch["terminated"] | batch["truncated"]))[:, 3].nonzero()[2])
    batch[field][t, 3] = torch.nan
    before, state = weights_of(policy), copy.deepcopy(algorithm.state_dict()["optimizer"])
    with pytest.raises(NonFiniteError, match="after policy version 41"):
        algorithm.update(batch, 0.0)
    assert is_equal(before, weights_of(policy))
    assert is_equal(state, algorithm.state_dict()["optimizer"])
    algorithm.update(good, 0.0)
    assert not is_equal(before, weights_of(policy))


# -- several trainer workers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize_advantage", ["none", "batch", "minibatch"])
def test_two_trainer_workers_step_like_one_with_both_batches(normalize_advantage: str) -> None:
    """Although the rows that count are spread unevenly over them."""
    config = PPOConfig(epochs=1, minibatches=1, normalize_advantage=normalize_advantage)
    policy_config = ActorCriticConfig(recurrent="gru", normalize_obs=True, normalize_value=True)
    alone, algorithm, collector = setup(config, policy_config)
    batch = collector.batch()
    batch["valid"][:6, :3] = False
    expected = algorithm.update(batch, 0.0)

    def train(rank: int, collective: Collective) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        policy, worker, _ = setup(config, policy_config, collective=collective)
        half = {name: x[:, 4 * rank : 4 * rank + 4] for name, x in batch.items()}
        return worker.update(half, 0.0), weights_of(policy)

    results = Ranks(2).run(train)
    assert results[0][0] == results[1][0]
    assert is_equal(results[0][1], results[1][1])
    assert results[0][0] == pytest.approx(expected, abs=1e-5)
    for name, tensor in weights_of(alone).items():
        torch.testing.assert_close(results[0][1][name], tensor, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("recurrent", ["none", "lstm", "gru"])
def test_every_rank_calls_collectives_equally_often_even_without_data(recurrent: str) -> None:
    config = PPOConfig(target_kl=1e-9, epochs=3, minibatches=4, staleness_correction="vtrace", recompute_advantage=True)
    policy_config = ActorCriticConfig(normalize_obs=True, normalize_value=True, recurrent=recurrent)
    ranks = Ranks(2)

    def train(rank: int, collective: Collective) -> dict[str, torch.Tensor]:
        policy, worker, collector = setup(config, policy_config, collective=collective)
        batch = collector.batch()
        batch["valid"] &= rank == 0
        worker.update(batch, 0.0)
        return weights_of(policy)

    results = ranks.run(train)
    assert ranks.calls[0] == ranks.calls[1]
    assert is_equal(results[0], results[1])


def test_a_lost_rank_leaves_the_weights_as_they_were() -> None:
    calls = iter(range(100))

    def backward(loss: torch.Tensor, module: Any) -> None:
        if next(calls) == 2:
            raise ConnectionError("peer closed the connection")
        loss.backward()

    policy, algorithm, collector = setup(collective=Collective(backward=backward))
    before = weights_of(policy)
    with pytest.raises(ConnectionError):
        algorithm.update(collector.batch(), 0.0)
    assert is_equal(before, weights_of(policy))
    assert algorithm.state_dict()["optimizer"] == {}


def test_all_ranks_refuse_what_one_of_them_finds_not_finite() -> None:
    def train(rank: int, collective: Collective) -> bool:
        policy, worker, collector = setup(collective=collective)
        batch, before = collector.batch(), weights_of(policy)
        if rank == 1:
            batch["reward"][0, 0] = torch.inf
        with pytest.raises(NonFiniteError):
            worker.update(batch, 0.0)
        return is_equal(before, weights_of(policy))

    assert Ranks(2).run(train) == [True, True]


# -- the factory -------------------------------------------------------------------------------------------------------


def test_an_algorithm_by_import_path() -> None:
    config = CustomAlgorithmConfig(target="types:SimpleNamespace")
    with pytest.raises(TypeError):  # it is called with five arguments
        make_algorithm(config, None, LAYOUT, Collective(), 0)  # type: ignore[arg-type]
    policy: Any = make_policy(ActorCriticConfig(), Recall.obs, TWO, 0)
    assert isinstance(make_algorithm(PPOConfig(), policy, LAYOUT, Collective(), 0), OnPolicy)
    with pytest.raises(ConfigError, match="AlgorithmConfig"):
        make_algorithm(AlgorithmConfig(), policy, LAYOUT, Collective(), 0)


# -- learning ----------------------------------------------------------------------------------------------------------


def learn(
    task: Any, action: Any, config: ActorCriticConfig, layout: ChunkLayout, updates: int, **options: Any
) -> list[float]:
    policy = make_policy(config, task.obs, action, 1)
    algorithm = make_algorithm(PPOConfig(learning_rate=3e-3, **options), policy, layout, Collective(), 1)
    collector = Collector(lambda i: task(i, action), policy, layout, 16)
    returns = []
    for i in range(updates):
        batch = collector.batch()
        returns.append(collector.mean_return())
        algorithm.update(batch, i / updates)
    return returns


def test_a_bandit_is_solved() -> None:
    returns = learn(Bandit, THREE, ActorCriticConfig(), LAYOUT, 12)
    assert returns[0] < 0.5
    assert np.mean(returns[-3:]) > 0.95


def test_a_continuous_bandit_is_solved() -> None:
    box = ContinuousActions(np.array([-1.0], np.float32), np.array([1.0], np.float32))
    config = ActorCriticConfig(normalize_obs=True, normalize_value=True)
    returns = learn(Bandit, box, config, LAYOUT, 25, entropy_cost=0.0)
    assert returns[0] < -0.8
    assert np.mean(returns[-3:]) > -0.2


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        (ChunkLayout(0, 16, 1, 8), {}),
        (
            ChunkLayout(4, 16, 1, 8),
            {"recompute_advantage": True, "staleness_correction": "vtrace", "clip_value": True, "dual_clip": 3.0},
        ),
    ],
    ids=["stored_states", "burn_in_and_options"],
)
def test_recall_is_solved_with_memory(layout: ChunkLayout, options: dict[str, Any]) -> None:
    returns = learn(Recall, TWO, ActorCriticConfig(recurrent="lstm", recurrent_size=32), layout, 20, **options)
    assert np.mean(returns[-3:]) > 0.9
