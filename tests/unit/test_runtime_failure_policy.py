"""Back-off, budget and the errors that are never retried."""

from __future__ import annotations

import pytest

from srl_ray.core.errors import EnvironmentFault, NonFiniteError, WorkerFailure
from srl_ray.runtime.config import FailureConfig
from srl_ray.runtime.failure_policy import FailurePolicy, Raise, Restart, Wait

pytestmark = pytest.mark.unit


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


class ActorUnavailableError(Exception):
    """Ray's class of that name, by name."""


class RayTaskError(Exception):
    """Ray's wrapper: the cause as an attribute, the remote traceback as text."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__()
        self.cause = cause
        self.traceback_str = 'File "env.py", line 7, in step\nRuntimeError: licence server not reachable'

    def __str__(self) -> str:
        return self.traceback_str


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def policy(clock: Clock) -> FailurePolicy:
    return FailurePolicy(FailureConfig(max_restarts=3, restart_window_s=100.0, backoff_s=2.0), clock)


def test_delays_double_and_the_budget_ends_with_the_original_traceback(policy: FailurePolicy):
    error = RayTaskError(RuntimeError("licence server not reachable"))
    decisions = [policy.decide("actor", 0, error) for _ in range(4)]
    assert decisions[:3] == [Restart(0.0, 1), Restart(2.0, 2), Restart(4.0, 3)]
    last = decisions[3]
    assert isinstance(last, Raise)
    assert isinstance(last.error, WorkerFailure)
    assert last.error.attempts == 4
    assert "line 7, in step" in str(last.error)
    assert policy.restarts_total == {"actor": 3}


def test_the_budget_refills_with_time(policy: FailurePolicy, clock: Clock):
    for _ in range(10):
        assert isinstance(policy.decide("actor", 0, RuntimeError()), Restart)
        clock.s += 60.0


def test_budgets_are_per_worker(policy: FailurePolicy):
    for index in range(5):
        assert policy.decide("actor", index, RuntimeError()) == Restart(0.0, 1)


def test_no_budget_raises_at_once(clock: Clock):
    policy = FailurePolicy(FailureConfig(max_restarts=0), clock)
    assert isinstance(policy.decide("trainer", 0, RuntimeError("x")), Raise)


def test_out_of_reach_is_waited_for_but_not_for_ever(policy: FailurePolicy, clock: Clock):
    assert policy.decide("actor", 0, ActorUnavailableError()) == Wait(2.0)
    clock.s = 29.0
    assert isinstance(policy.decide("actor", 0, ActorUnavailableError()), Wait)
    clock.s = 31.0
    assert policy.decide("actor", 0, ActorUnavailableError()) == Restart(0.0, 1)


def test_an_answer_ends_a_spell_out_of_reach(policy: FailurePolicy, clock: Clock):
    policy.decide("actor", 0, ActorUnavailableError())
    policy.is_well("actor", 0)
    clock.s = 31.0
    assert isinstance(policy.decide("actor", 0, ActorUnavailableError()), Wait)


def test_what_a_new_process_would_repeat_is_final(policy: FailurePolicy):
    error = NonFiniteError("loss", 12)
    assert policy.decide("trainer", 0, RayTaskError(error)) == Raise(error)


def test_environment_faults_are_final_unless_allowed(policy: FailurePolicy, clock: Clock):
    error = EnvironmentFault("CartPole-v1", "raised ValueError: sim diverged")
    assert policy.decide("actor", 0, error) == Raise(error)
    tolerant = FailurePolicy(FailureConfig(), clock, restart_environment_faults=True)
    assert isinstance(tolerant.decide("actor", 0, error), Restart)


def test_a_local_error_keeps_its_traceback(clock: Clock):
    policy = FailurePolicy(FailureConfig(max_restarts=0), clock)
    try:
        raise RuntimeError("boom")
    except RuntimeError as error:
        decision = policy.decide("actor", 1, error)
    assert isinstance(decision, Raise)
    assert "test_runtime_failure_policy.py" in str(decision.error)
