"""Recurrent cores. The only place where a recurrent state is reset."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from srl_ray.core.errors import ConfigError

ROWS_PER_CALL = 256
"""Rows that cost about as much as one more call of torch's kernel (forward and backward, one core)."""


class RecurrentCore(nn.Module):
    """An LSTM or GRU layer over rows whose state starts at zero wherever `on_reset`.

    The state of a row is one vector [S]: the hidden vector, for an LSTM followed by the cell vector.

    Args:
        kind: lstm (Hochreiter & Schmidhuber 1997, one bias, forget gates start at `forget_bias`) or gru (Cho et al.
            2014).
        in_size: Width of the inputs.
        size: Width of the hidden vector, which is the output.
    """

    bias_hidden: Tensor

    def __init__(self, kind: str, in_size: int, size: int, *, forget_bias: float = 1.0) -> None:
        super().__init__()
        if kind not in ("lstm", "gru"):
            raise ConfigError(f"policy.recurrent={kind!r}: expected lstm or gru.")
        self.kind = kind
        self.size = size
        self.state_size = 2 * size if kind == "lstm" else size
        gates = 4 if kind == "lstm" else 3
        self.weight_input = nn.Parameter(torch.empty(gates * size, in_size))
        self.weight_hidden = nn.Parameter(torch.empty(gates * size, size))
        self.bias = nn.Parameter(torch.zeros(gates * size))
        for weight in (self.weight_input, self.weight_hidden):
            for gate in weight.data.chunk(gates):
                nn.init.orthogonal_(gate)
        if kind == "lstm":
            # A second bias would only double the first; torch's kernels want the argument.
            self.register_buffer("bias_hidden", torch.zeros(gates * size), persistent=False)
            self.bias.data[size : 2 * size] = forget_bias
        else:
            self.bias_hidden = nn.Parameter(torch.zeros(gates * size))

    def step(self, x: Tensor, state: Tensor, on_reset: Tensor) -> tuple[Tensor, Tensor]:
        """One row each: x [n, in_size], state [n, S] before the row, on_reset bool [n] → output [n, size], state."""
        state = state.masked_fill(on_reset.unsqueeze(-1), 0.0)
        weights = (self.weight_input, self.weight_hidden, self.bias, self.bias_hidden)
        if self.kind == "lstm":
            hidden, cell = torch.lstm_cell(x, (state[:, : self.size], state[:, self.size :]), *weights)
            return hidden, torch.cat([hidden, cell], -1)
        hidden = torch.gru_cell(x, state, *weights)
        return hidden, hidden

    def unroll(self, x: Tensor, state: Tensor, on_reset: Tensor) -> Tensor:
        """Rows in time order.

        Args:
            x: [T, n, in_size].
            state: [n, S] before the first row.
            on_reset: bool [T, n].

        Returns:
            Outputs [T, n, size].
        """
        if not bool(on_reset[1:].any()):
            return self._run(x, state.masked_fill(on_reset[0].unsqueeze(-1), 0.0))
        pieces = cut_at_resets(on_reset)
        state = state.index_select(0, pieces.column).masked_fill(pieces.is_fresh.unsqueeze(-1), 0.0)
        flat = x.flatten(0, 1)
        outputs, first = [], 0
        for rows in pieces.rows:
            steps, count = rows.shape
            inputs = flat.index_select(0, rows.flatten()).unflatten(0, (steps, count))
            outputs.append(self._run(inputs, state[first : first + count]).flatten(0, 1))
            first += count
        return torch.cat(outputs).index_select(0, pieces.position_of_row).unflatten(0, on_reset.shape)

    def last_state(self, x: Tensor, state: Tensor, on_reset: Tensor) -> Tensor:
        """Like `unroll`, but the state after the last row [n, S]."""
        for x_t, on_reset_t in zip(x, on_reset, strict=True):
            state = self.step(x_t, state, on_reset_t)[1]
        return state

    def _run(self, x: Tensor, state: Tensor) -> Tensor:
        """torch's kernel, which knows no resets: x [T, n, in_size], state [n, S] → [T, n, size]."""
        weights = [self.weight_input, self.weight_hidden, self.bias, self.bias_hidden]
        options = (True, 1, 0.0, self.training, False, False)
        if self.kind == "lstm":
            initial = (state[None, :, : self.size].contiguous(), state[None, :, self.size :].contiguous())
            return torch.lstm(x, initial, weights, *options)[0]
        return torch.gru(x, state[None].contiguous(), weights, *options)[0]


@dataclass(frozen=True)
class Pieces:
    """Rows [T, n] cut before every reset. Pieces of similar length are neighbours, one group after the other.

    Attributes:
        column: int64 [P], the column that a piece comes from.
        is_fresh: bool [P]: the piece starts at a reset, not with the given state.
        rows: Per group int64 [steps, pieces], flat rows t·n + column; beyond a piece's end any row.
        position_of_row: int64 [T·n], where each flat row's output is when the groups' outputs [steps·pieces] follow
            each other.
    """

    column: Tensor
    is_fresh: Tensor
    rows: list[Tensor]
    position_of_row: Tensor


def cut_at_resets(on_reset: Tensor) -> Pieces:
    """Make sequences without resets, so that a fast kernel can run many at once.

    The groups are padded to T, T/2, T/4 ... steps: less than twice the work, however often episodes end, and at most
    log2(T) + 1 calls. A group that would add few rows to the next longer one joins it, since a call costs as much as
    some hundred rows.

    Args:
        on_reset: bool [T, n].
    """
    steps, columns = on_reset.shape
    device = on_reset.device
    # Column after column, so that a piece is a run of consecutive positions column·T + t.
    is_start = on_reset.t().clone()
    is_start[:, 0] = True
    start = is_start.flatten().nonzero().squeeze(-1)
    piece_of_position = is_start.flatten().cumsum(0) - 1
    length = torch.diff(start, append=start.new_tensor([steps * columns]))

    paddings = [steps]
    while paddings[-1] > 1:
        paddings.append((paddings[-1] + 1) // 2)
    group_of_piece = (length.unsqueeze(-1) <= length.new_tensor(paddings)).sum(-1) - 1
    counts = torch.bincount(group_of_piece, minlength=len(paddings)).tolist()
    joined = list(range(len(paddings)))
    for group in range(len(paddings) - 1, 0, -1):
        if counts[group] * (paddings[group - 1] - paddings[group]) < ROWS_PER_CALL:
            joined = [group - 1 if other == group else other for other in joined]
            counts[group - 1], counts[group] = counts[group - 1] + counts[group], 0
    group_of_piece = length.new_tensor(joined)[group_of_piece]
    order = group_of_piece.argsort(stable=True)

    start_in_order = start[order]
    column = start_in_order // steps
    rows: list[Tensor] = []
    base = torch.empty_like(order)
    stride = torch.empty_like(order)
    first, outputs = 0, 0
    for padding, count in zip(paddings, counts, strict=True):
        if count:
            pieces = slice(first, first + count)
            position = start_in_order[pieces] + torch.arange(padding, device=device).unsqueeze(-1)
            position.clamp_(max=steps * columns - 1)
            rows.append((position % steps) * columns + position // steps)
            base[pieces] = outputs + torch.arange(count, device=device)
            stride[pieces] = count
            first, outputs = first + count, outputs + padding * count

    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=device)
    place_of_position = place[piece_of_position]
    step_in_piece = torch.arange(steps * columns, device=device) - start[piece_of_position]
    position = base[place_of_position] + step_in_piece * stride[place_of_position]
    return Pieces(
        column=column,
        is_fresh=(start_in_order % steps > 0) | on_reset[0][column],
        rows=rows,
        position_of_row=position.view(columns, steps).t().flatten(),
    )


def unroll_segments(core: RecurrentCore, x: Tensor, state: Tensor, on_reset: Tensor) -> Tensor:
    """Run all segments of a sample batch side by side.

    Args:
        x: [T', B, in_size].
        state: [K, B, S], before row k · T'/K of every segment.
        on_reset: bool [T', B].

    Returns:
        Outputs [T', B, size].
    """
    segments, chunks = state.shape[:2]
    if segments == 1:
        return core.unroll(x, state[0], on_reset)
    output = core.unroll(_side_by_side(x, segments), state.flatten(0, 1), _side_by_side(on_reset, segments))
    return output.unflatten(1, (segments, chunks)).transpose(0, 1).flatten(0, 1)


def _side_by_side(x: Tensor, segments: int) -> Tensor:
    """[K·bptt, B, ...] → [bptt, K·B, ...]."""
    return x.unflatten(0, (segments, -1)).transpose(0, 1).flatten(1, 2)
