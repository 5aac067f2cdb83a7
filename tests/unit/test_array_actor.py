"""Deciding in numpy must be deciding in torch."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

from srl_ray.core.types import ActionSpec, ContinuousActions, DiscreteActions, FieldSpec
from srl_ray.models.actor_critic import ActorCritic
from srl_ray.models.config import ActorCriticConfig
from srl_ray.param_server.weights import install, snapshot
from srl_ray.streams.inference import InferenceRequest
from srl_ray.streams.inline import act

pytestmark = pytest.mark.unit

ROWS = 37
OBS = {"position": FieldSpec((3, 2), np.dtype(np.float64)), "lamp": FieldSpec((4,), np.dtype(np.bool_))}
ACTIONS = {
    "one choice": DiscreteActions((5,)),
    "choices": DiscreteActions((11, 11, 11, 2, 2)),
    "numbers": ContinuousActions(np.full(3, -1, np.float32), np.full(3, 1, np.float32)),
}


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make(action: ActionSpec, **config) -> ActorCritic:
    torch.manual_seed(0)
    policy = ActorCritic(ActorCriticConfig(**config), OBS, action)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return policy


def observations(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"position": rng.normal(1.0, 2.0, (ROWS, 3, 2)), "lamp": rng.random((ROWS, 4)) < 0.5}


def assert_same_decisions(policy: ActorCritic, obs: dict[str, np.ndarray]) -> None:
    deterministic = np.arange(ROWS) % 3 == 0
    assert policy.array_actor is not None
    action, log_prob, value = policy.array_actor.act(obs, deterministic, torch.Generator().manual_seed(3))
    tensors = {name: torch.from_numpy(array) for name, array in obs.items()}
    no = torch.zeros(ROWS, dtype=torch.bool)
    expected = policy.act(
        tensors, policy.initial_state(ROWS), no, torch.from_numpy(deterministic), torch.Generator().manual_seed(3)
    )
    assert (action.dtype, log_prob.dtype, value.dtype) == (expected.action.numpy().dtype, np.float32, np.float32)
    np.testing.assert_allclose(action, expected.action.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(log_prob, expected.log_prob.numpy(), rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(value, expected.value.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_same_noise_same_decisions(action: ActionSpec, activation: str, separate: bool) -> None:
    assert_same_decisions(make(action, activation=activation, separate=separate), observations())


def test_running_statistics_are_used_as_they_change() -> None:
    policy = make(ACTIONS["numbers"], normalize_obs=True, normalize_value=True, obs_clip=1.0)
    assert_same_decisions(policy, observations())
    for seed in (1, 2):
        policy.value_scale.update(torch.randn(50) * 7.0 + 3.0, torch.ones(50, dtype=torch.bool))
        fields = {f"obs.{name}": torch.from_numpy(array)[None] for name, array in observations(seed).items()}
        policy.update_statistics({**fields, "mask": torch.ones(1, ROWS, dtype=torch.bool)})
        assert_same_decisions(policy, observations(seed))


def test_weights_are_used_as_they_change() -> None:
    policy, other = make(ACTIONS["one choice"]), make(ACTIONS["one choice"], separate=True)
    assert_same_decisions(policy, observations())
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.5)
    install(policy, snapshot(other))
    assert_same_decisions(policy, observations())
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.1)
    sum(p.sum() for p in policy.parameters()).backward()
    optimizer.step()
    assert_same_decisions(policy, observations())


@pytest.mark.parametrize("again", [copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_a_copy_follows_its_own_weights(again) -> None:
    policy = make(ACTIONS["choices"])
    assert_same_decisions(policy, observations())
    copied = again(policy)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.mul_(0.5)
    assert_same_decisions(copied, observations())
    assert_same_decisions(policy, observations())


def test_inference_takes_it_and_keeps_the_noise() -> None:
    policy = make(ACTIONS["one choice"])
    request = InferenceRequest(
        observations(), np.zeros((ROWS, 0), np.float32), np.zeros(ROWS, np.bool_), np.zeros(ROWS, np.bool_)
    )
    reply = act(policy, [request], torch.Generator().manual_seed(4), (1, 7))
    expected = policy.array_actor.act(observations(), request.deterministic, torch.Generator().manual_seed(4))
    np.testing.assert_array_equal(reply.action, expected[0])
    assert (reply.version, reply.epoch, reply.state.shape) == (7, 1, (ROWS, 0))


@pytest.mark.parametrize(
    "config",
    [
        {"recurrent": "lstm"},
        {"layer_norm": True},
        {"activation": "gelu"},
        {"precision": "bfloat16"},
        {"compile": "inference"},
    ],
)
def test_other_networks_stay_with_torch(config: dict) -> None:
    assert make(ACTIONS["one choice"], **config).array_actor is None


def test_several_threads_stay_with_torch() -> None:
    torch.set_num_threads(2)
    assert make(ACTIONS["one choice"]).array_actor is None


def test_subclasses_decide_themselves() -> None:
    class Stubborn(ActorCritic):
        pass

    assert Stubborn(ActorCriticConfig(), OBS, ACTIONS["one choice"]).array_actor is None
