"""The recurrent core against a loop that is easy to believe."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from srl_ray.models.recurrent import RecurrentCore, cut_at_resets, unroll_segments

pytestmark = pytest.mark.unit


def naive(core: RecurrentCore, x: Tensor, state: Tensor, on_reset: Tensor) -> tuple[Tensor, Tensor]:
    """Row by row, lane by lane, from the papers' equations."""
    steps, lanes, _ = x.shape
    outputs = torch.zeros(steps, lanes, core.size)
    states = list(state)
    for t in range(steps):
        for lane in range(lanes):
            before = torch.zeros(core.state_size) if on_reset[t, lane] else states[lane]
            outputs[t, lane], states[lane] = cell(core, x[t, lane], before)
    return outputs, torch.stack(states)


def cell(core: RecurrentCore, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    from_x = core.weight_input @ x + core.bias
    if core.kind == "lstm":
        hidden, memory = state[: core.size], state[core.size :]
        i, f, g, o = (from_x + core.weight_hidden @ hidden).chunk(4)
        memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * memory.tanh()
        return hidden, torch.cat([hidden, memory])
    from_hidden = core.weight_hidden @ state + core.bias_hidden
    (r_x, z_x, n_x), (r_h, z_h, n_h) = from_x.chunk(3), from_hidden.chunk(3)
    z = (z_x + z_h).sigmoid()
    n = (n_x + (r_x + r_h).sigmoid() * n_h).tanh()
    hidden = (1 - z) * n + z * state
    return hidden, hidden


def make(kind: str) -> RecurrentCore:
    torch.manual_seed(3)
    core = RecurrentCore(kind, 5, 4)
    torch.nn.init.normal_(core.bias)
    return core


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("rows_per_call", [0, 4, 1000])
def test_unroll_equals_the_naive_loop(
    kind: str, share: float, rows_per_call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("srl_ray.models.recurrent.ROWS_PER_CALL", rows_per_call)
    core = make(kind)
    x, state, on_reset = torch.randn(7, 6, 5), torch.randn(6, core.state_size), torch.rand(7, 6) < share
    on_reset[0, 0] = True
    output, last = core.unroll(x, state, on_reset), core.last_state(x, state, on_reset)
    expected, expected_last = naive(core, x, state, on_reset)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(last, expected_last)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_unroll_has_the_naive_loops_gradients(kind: str) -> None:
    core = make(kind)
    x, state, on_reset = (
        torch.randn(7, 6, 5, requires_grad=True),
        torch.randn(6, core.state_size),
        torch.rand(7, 6) < 0.3,
    )
    wanted = [x, *core.parameters()]
    weights = torch.randn(7, 6, 4)
    got = torch.autograd.grad((core.unroll(x, state, on_reset) * weights).sum(), wanted)
    expected = torch.autograd.grad((naive(core, x, state, on_reset)[0] * weights).sum(), wanted)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_step_equals_a_row_of_unroll(kind: str) -> None:
    core = make(kind)
    x, state, on_reset = torch.randn(1, 6, 5), torch.randn(6, core.state_size), torch.rand(6) < 0.5
    output, after = core.step(x[0], state, on_reset)
    expected, expected_after = naive(core, x, state, on_reset[None])
    torch.testing.assert_close(output, expected[0])
    torch.testing.assert_close(after, expected_after)


def test_a_reset_forgets_a_state_that_is_not_a_number() -> None:
    core = make("lstm")
    output, _ = core.step(torch.randn(1, 5), torch.full((1, 8), torch.nan), torch.tensor([True]))
    assert output.isfinite().all()


def test_segments_begin_with_their_stored_states() -> None:
    core = make("lstm")
    x, on_reset = torch.randn(6, 3, 5), torch.rand(6, 3) < 0.3
    state = torch.randn(2, 3, 8)
    output = unroll_segments(core, x, state, on_reset)
    for k in range(2):
        rows = slice(3 * k, 3 * k + 3)
        torch.testing.assert_close(output[rows], naive(core, x[rows], state[k], on_reset[rows])[0])


def test_pieces_of_similar_length_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("srl_ray.models.recurrent.ROWS_PER_CALL", 0)
    on_reset = torch.tensor([[0, 1], [0, 0], [1, 0], [0, 1]]).bool()
    pieces = cut_at_resets(on_reset)
    # Column 0: rows 0-1 and 2-3; column 1: rows 0-2 and 3. Flat row = 2·t + column.
    assert pieces.column.tolist() == [1, 0, 0, 1]
    assert pieces.is_fresh.tolist() == [True, False, True, True]
    assert [rows.tolist() for rows in pieces.rows] == [[[1], [3], [5], [7]], [[0, 4], [2, 6]], [[7]]]
    assert pieces.position_of_row.tolist() == [4, 0, 6, 1, 5, 2, 7, 8]


def test_few_pieces_share_one_call() -> None:
    on_reset = torch.rand(16, 40, generator=torch.Generator().manual_seed(0)) < 0.02
    pieces = cut_at_resets(on_reset)
    assert [rows.shape[0] for rows in pieces.rows] == [16]
    assert sorted(pieces.rows[0].flatten()[pieces.position_of_row].tolist()) == list(range(640))
