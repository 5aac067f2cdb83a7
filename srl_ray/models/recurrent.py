"""Recurrent cores. The only place where a recurrent state is reset."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from srl_ray.core.errors import ConfigError


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

    def unroll(self, x: Tensor, state: Tensor, on_reset: Tensor) -> tuple[Tensor, Tensor]:
        """Rows in time order.

        Args:
            x: [T, n, in_size].
            state: [n, S] before the first row.
            on_reset: bool [T, n].

        Returns:
            Outputs [T, n, size] and the state after the last row [n, S].
        """
        if not bool(on_reset[1:].any()):
            output, state = self._run(x, None, state.masked_fill(on_reset[0].unsqueeze(-1), 0.0))
            return output, state
        pieces = cut_at_resets(on_reset)
        state = state.index_select(0, pieces.column).masked_fill(pieces.is_fresh.unsqueeze(-1), 0.0)
        packed, state = self._run(x.flatten(0, 1).index_select(0, pieces.row_of_packed), pieces.batch_sizes, state)
        output = packed.index_select(0, pieces.packed_of_row).unflatten(0, on_reset.shape)
        return output, state.index_select(0, pieces.last)

    def _run(self, x: Tensor, batch_sizes: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
        """torch's kernel over [T, n, F], or over packed rows [rows, F] with the number of sequences at every step."""
        weights = [self.weight_input, self.weight_hidden, self.bias, self.bias_hidden]
        options = (True, 1, 0.0, self.training, False)
        if self.kind == "lstm":
            initial = (state[None, :, : self.size].contiguous(), state[None, :, self.size :].contiguous())
            if batch_sizes is None:
                output, hidden, cell = torch.lstm(x, initial, weights, *options, False)
            else:
                output, hidden, cell = torch.lstm(x, batch_sizes, initial, weights, *options)
            return output, torch.cat([hidden[0], cell[0]], -1)
        if batch_sizes is None:
            output, hidden = torch.gru(x, state[None], weights, *options, False)
        else:
            output, hidden = torch.gru(x, batch_sizes, state[None], weights, *options)
        return output, hidden[0]


@dataclass(frozen=True)
class Pieces:
    """Rows [T, n] cut before every reset, the pieces sorted by falling length and packed step by step.

    Attributes:
        column: int64 [P], the column that a piece comes from.
        is_fresh: bool [P]: the piece starts at a reset, not with the given state.
        batch_sizes: int64 [longest] on the CPU: pieces that have a row at each step.
        row_of_packed: int64 [T·n], packed position → flat row t·n + column.
        packed_of_row: int64 [T·n], the inverse.
        last: int64 [n], the piece that holds the last row of each column.
    """

    column: Tensor
    is_fresh: Tensor
    batch_sizes: Tensor
    row_of_packed: Tensor
    packed_of_row: Tensor
    last: Tensor


def cut_at_resets(on_reset: Tensor) -> Pieces:
    """All pieces then run side by side in one call, instead of step by step with a mask.

    Args:
        on_reset: bool [T, n].
    """
    steps, columns = on_reset.shape
    # Column after column, so that a piece is a run of consecutive positions column·T + t.
    is_start = on_reset.t().clone()
    is_start[:, 0] = True
    start = is_start.flatten().nonzero().squeeze(-1)
    piece_of = is_start.flatten().cumsum(0) - 1
    length = torch.diff(start, append=start.new_tensor([steps * columns]))
    order = length.argsort(descending=True, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)

    step_in_piece = torch.arange(steps * columns, device=start.device) - start[piece_of]
    batch_sizes = torch.bincount(step_in_piece)
    packed_of_position = (batch_sizes.cumsum(0) - batch_sizes)[step_in_piece] + rank[piece_of]
    packed_of_row = packed_of_position.view(columns, steps).t().flatten()
    row_of_packed = torch.empty_like(packed_of_row)
    row_of_packed[packed_of_row] = torch.arange(steps * columns, device=start.device)

    sorted_start = start[order]
    column = sorted_start // steps
    return Pieces(
        column=column,
        is_fresh=(sorted_start % steps > 0) | on_reset[0][column],
        batch_sizes=batch_sizes.cpu(),
        row_of_packed=row_of_packed,
        packed_of_row=packed_of_row,
        last=rank[piece_of.view(columns, steps)[:, -1]],
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
        return core.unroll(x, state[0], on_reset)[0]
    output, _ = core.unroll(_side_by_side(x, segments), state.flatten(0, 1), _side_by_side(on_reset, segments))
    return output.unflatten(1, (segments, chunks)).transpose(0, 1).flatten(0, 1)


def _side_by_side(x: Tensor, segments: int) -> Tensor:
    """[K·bptt, B, ...] → [bptt, K·B, ...]."""
    return x.unflatten(0, (segments, -1)).transpose(0, 1).flatten(1, 2)
