"""Recurrent cores. The only place where a recurrent state is reset."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
            self.bias.data[size : 2 * size] = forget_bias
            self.register_parameter("bias_hidden", None)
        else:
            self.bias_hidden = nn.Parameter(torch.zeros(gates * size))

    def step(self, x: Tensor, state: Tensor, on_reset: Tensor) -> tuple[Tensor, Tensor]:
        """One row each: x [n, in_size], state [n, S] before the row, on_reset bool [n] → output [n, size], state."""
        return self._advance(F.linear(x, self.weight_input, self.bias), state, on_reset)

    def unroll(self, x: Tensor, state: Tensor, on_reset: Tensor) -> tuple[Tensor, Tensor]:
        """Rows in time order.

        Args:
            x: [T, n, in_size].
            state: [n, S] before the first row.
            on_reset: bool [T, n].

        Returns:
            Outputs [T, n, size] and the state after the last row [n, S].
        """
        projected = F.linear(x, self.weight_input, self.bias)
        outputs = []
        for projected_t, on_reset_t in zip(projected.unbind(), on_reset.unbind(), strict=True):
            output, state = self._advance(projected_t, state, on_reset_t)
            outputs.append(output)
        return torch.stack(outputs), state

    def _advance(self, projected: Tensor, state: Tensor, on_reset: Tensor) -> tuple[Tensor, Tensor]:
        state = state.masked_fill(on_reset.unsqueeze(-1), 0.0)
        if self.kind == "lstm":
            hidden, cell = state.split(self.size, -1)
            gates = torch.addmm(projected, hidden, self.weight_hidden.t())
            in_gate, forget, candidate, out_gate = gates.chunk(4, -1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(in_gate) * torch.tanh(candidate)
            hidden = torch.sigmoid(out_gate) * torch.tanh(cell)
            return hidden, torch.cat([hidden, cell], -1)
        recurrent = F.linear(state, self.weight_hidden, self.bias_hidden)
        reset_x, update_x, candidate_x = projected.chunk(3, -1)
        reset_h, update_h, candidate_h = recurrent.chunk(3, -1)
        update = torch.sigmoid(update_x + update_h)
        candidate = torch.tanh(candidate_x + torch.sigmoid(reset_x + reset_h) * candidate_h)
        hidden = candidate + update * (state - candidate)
        return hidden, hidden


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
