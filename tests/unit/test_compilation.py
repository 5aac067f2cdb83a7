"""torch.compile and CUDA graphs around the networks: the same answers, few programs, a way back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lanes import Collector, Recall

from srl_ray.algorithms.algorithm import Collective
from srl_ray.algorithms.config import PPOConfig
from srl_ray.algorithms.factory import make_algorithm
from srl_ray.core.types import AgentGroup, BlockSpec, ChunkLayout, DiscreteActions
from srl_ray.models.compilation import (
    Compiled,
    GraphedStep,
    StepOutputs,
    compile_inference,
    compile_training,
    graph_inference,
    padded_rows,
)
from srl_ray.models.config import ActorCriticConfig, PolicyConfig
from srl_ray.models.factory import make_policy
from srl_ray.trainer.warm_up import warm_up

pytestmark = pytest.mark.unit

TWO = DiscreteActions((2,))
LAYOUT = ChunkLayout(0, 8, 1, 4)


def recall_policy(**config: Any) -> Any:
    policy: Any = make_policy(ActorCriticConfig(**config), Recall.obs, TWO, 0)
    return policy.eval()


def rows_of(policy: Any, rows: int, seed: int = 0) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    state = torch.randn(rows, policy.state_size, generator=generator)
    return {"cue": torch.randn(rows, 3, generator=generator)}, state, torch.arange(rows) % 3 == 0


def answers(policy: Any, rows: int, seed: int = 0) -> Any:
    obs, state, on_reset = rows_of(policy, rows, seed)
    return policy.act(obs, state, on_reset, torch.ones(rows, dtype=torch.bool))


def counting_backend(programs: list[int]) -> Any:
    """torch's own tracing with the traced graph run as it is: what is compiled, without a compiler."""

    def backend(graph: Any, inputs: Any) -> Any:
        programs.append(len(inputs))
        return graph.forward

    return backend


@pytest.fixture(autouse=True)
def _forget_programs() -> Any:
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("recurrent", ["none", "lstm"])
def test_compiled_inference_answers_alike_with_two_programs_for_all_batch_sizes(recurrent: str) -> None:
    policy, plain = (recall_policy(recurrent=recurrent, normalize_obs=True) for _ in range(2))
    programs: list[int] = []
    compile_inference(policy, Recall.obs, backend=counting_backend(programs))
    made = len(programs)
    assert made == 2, "one for a single row, one for any other number"
    for rows in (1, 2, 3, 17, 64, 100):
        got, expected = answers(policy, rows), answers(plain, rows)
        torch.testing.assert_close(got.value, expected.value)
        torch.testing.assert_close(got.log_prob, expected.log_prob)
        torch.testing.assert_close(got.state, expected.state)
    assert len(programs) == made, "compiled again while the worker was serving"


@pytest.mark.parametrize("config", [{}, {"recurrent": "lstm", "recurrent_size": 8}], ids=["dense", "recurrent"])
def test_a_compiled_update_is_the_same_update_and_compiled_before_the_run(config: dict[str, Any]) -> None:
    programs: list[int] = []
    updated = []
    for is_compiled in (False, True):
        policy = recall_policy(**config)
        if is_compiled:
            compile_training(policy, backend=counting_backend(programs))
        algorithm = make_algorithm(PPOConfig(epochs=2, minibatches=3), policy, LAYOUT, Collective(), 0)
        if is_compiled:
            before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
            group = AgentGroup("agents", ("agent",), Recall.obs, TWO)
            warm_up(algorithm, BlockSpec("recall", 1, group), LAYOUT, 6)
            assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())
            assert algorithm.state_dict()["optimizer"] == {}
            made = len(programs)
            assert made
        batch = Collector(lambda i: Recall(i, TWO), recall_policy(**config), LAYOUT, 6).batch()
        metrics = algorithm.update(batch, 0.0)
        updated.append((metrics, [parameter.detach().clone() for parameter in policy.parameters()]))
    assert len(programs) == made, "the first update of the run had to wait for the compiler"
    assert updated[0][0] == pytest.approx(updated[1][0], abs=1e-5)
    for got, expected in zip(updated[1][1], updated[0][1], strict=True):
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-4)


def test_without_a_compiler_the_policy_goes_on_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    import torch._inductor.config

    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("there-is-no-such-compiler",))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    policy, plain = recall_policy(), recall_policy()
    with caplog.at_level(logging.WARNING):
        compile_inference(policy, Recall.obs)
        for rows in (3, 4):
            torch.testing.assert_close(answers(policy, rows).value, answers(plain, rows).value, atol=0, rtol=0)
    said = [record.getMessage() for record in caplog.records if record.name == "srl_ray.models.compilation"]
    assert len(said) == 1
    assert "policy.compile" in said[0]
    assert "\n" not in said[0]


def test_errors_of_the_function_itself_are_not_taken_for_the_compiler_s() -> None:
    def refuse(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 2:
            raise ValueError("too long")
        return x + 1

    compiled = Compiled(refuse, backend=counting_backend([]))
    assert compiled(torch.zeros(2)).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="too long"):
        compiled(torch.zeros(3))


# -- CUDA graphs -------------------------------------------------------------------------------------------------------


def test_rows_are_padded_to_powers_of_two() -> None:
    assert [padded_rows(rows) for rows in (1, 2, 3, 4, 5, 64, 65, 4096)] == [1, 2, 4, 4, 8, 64, 128, 4096]


class ReplayedOnTheCpu:
    """Captures as CUDA does: outputs at a fixed place, written anew by every replay from the inputs' fixed place."""

    def __init__(self) -> None:
        self.captures = 0

    def __call__(self, call: Callable[[], StepOutputs]) -> tuple[StepOutputs, Callable[[], None]]:
        self.captures += 1
        outputs = tuple(output.clone() for output in call())

        def replay() -> None:
            for place, output in zip(outputs, call(), strict=True):
                place.copy_(output)

        return outputs, replay


@pytest.mark.parametrize("recurrent", ["none", "lstm"])
def test_graphs_answer_alike_whatever_rows_were_there_before(recurrent: str) -> None:
    policy, plain = recall_policy(recurrent=recurrent), recall_policy(recurrent=recurrent)
    capture = ReplayedOnTheCpu()
    policy.step = GraphedStep(policy.step, capture)
    for seed, rows in enumerate((5, 8, 3, 6, 1, 8, 5)):
        got, expected = answers(policy, rows, seed), answers(plain, rows, seed)
        for name in ("action", "log_prob", "value", "state"):
            torch.testing.assert_close(getattr(got, name), getattr(expected, name))
    assert capture.captures == 3, "one per power of two: 8, 4, 1"


def test_newer_weights_are_used_by_graphs_that_are_there_already() -> None:
    policy, newer = recall_policy(), recall_policy()
    policy.step = GraphedStep(policy.step, ReplayedOnTheCpu())
    answers(policy, 5)
    with torch.no_grad():
        for parameter in newer.parameters():
            parameter.add_(0.1)
    policy.load_state_dict(newer.state_dict())
    torch.testing.assert_close(answers(policy, 5).value, answers(newer, 5).value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_cuda_graphs_answer_as_the_policy_does() -> None:
    policy, plain = recall_policy().cuda(), recall_policy().cuda()
    graph_inference(policy)
    for seed, rows in enumerate((5, 8, 3, 1, 5)):
        obs, state, on_reset = (
            {name: x.cuda() for name, x in part.items()} if isinstance(part, dict) else part.cuda()
            for part in rows_of(plain, rows, seed)
        )
        yes = torch.ones_like(on_reset)
        got, expected = (p.act(obs, state, on_reset, yes) for p in (policy, plain))
        torch.testing.assert_close(got.value, expected.value)
        torch.testing.assert_close(got.log_prob, expected.log_prob)


def test_options_that_cannot_be_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"policy\.precision"):
        PolicyConfig(precision="float16")
    with pytest.raises(ValueError, match=r"policy\.compile"):
        PolicyConfig(compile="yes")
