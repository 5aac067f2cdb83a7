"""How a sample batch is cut into minibatches.

The unit that is shuffled depends on the policy: a row (feed-forward), a segment of `bptt_steps` rows with the state
before it (recurrent), or a whole chunk (recurrent with burn-in, whose first state is recomputed from the rows before).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from srl_ray.core.types import ChunkLayout
from srl_ray.models.policy import Tensors
from srl_ray.models.tower import BURN_IN_PREFIX, OBS_PREFIX


@dataclass(frozen=True)
class TrainedRows:
    """The trained rows of a sample batch, and how to take some of them.

    Attributes:
        fields: Field → [T', B, ...]; views of the batch, never written.
        state: float32 [K, B, S], before every segment.
        burn_in: The fields of the rows before, with their prefix; empty without burn-in.
        unit: row | segment | chunk.
        bptt_steps: Rows of a segment.
    """

    fields: Tensors
    state: Tensor
    burn_in: Tensors
    unit: str
    bptt_steps: int

    @property
    def rows(self) -> int:
        return self.fields["mask"].shape[0]

    @property
    def chunks(self) -> int:
        return self.fields["mask"].shape[1]

    def units(self) -> Tensor:
        """int64 [units]: the units that have a row in the loss mask."""
        mask = self.fields["mask"]
        match self.unit:
            case "row":
                return mask.flatten().nonzero().squeeze(-1)
            case "segment":
                return mask.unflatten(0, (-1, self.bptt_steps)).any(1).flatten().nonzero().squeeze(-1)
            case _:
                return mask.any(0).nonzero().squeeze(-1)

    def take(self, units: Tensor) -> Tensors:
        """The given units as a sample batch of their own: [1, n], [bptt_steps, n] or [T', n] leading axes."""
        match self.unit:
            case "row":
                batch = {name: _flat(x).index_select(0, units).unsqueeze(0) for name, x in self.fields.items()}
                batch["state"] = self.state.new_zeros(1, len(units), self.state.shape[-1])
            case "segment":
                batch = self._take_segments(units)
            case _:
                batch = {name: x.index_select(1, units) for name, x in self.fields.items()}
                batch["state"] = self.state.index_select(1, units)
                for name, x in self.burn_in.items():
                    batch[name] = x.index_select(0 if name == BURN_IN_PREFIX + "state" else 1, units)
        return batch

    def _take_segments(self, units: Tensor) -> Tensors:
        segment, chunk = units // self.chunks, units % self.chunks
        steps = torch.arange(self.bptt_steps, device=units.device).unsqueeze(-1)
        rows = ((segment * self.bptt_steps + steps) * self.chunks + chunk).flatten()
        shape = (self.bptt_steps, len(units))
        batch = {name: _flat(x).index_select(0, rows).unflatten(0, shape) for name, x in self.fields.items()}
        batch["state"] = self.state.flatten(0, 1).index_select(0, units).unsqueeze(0)
        return batch


def trained_rows(batch: Tensors, layout: ChunkLayout, *, is_recurrent: bool) -> TrainedRows:
    """The rows [burn_in, burn_in + sample_steps) with their loss mask.

    Args:
        batch: As `Algorithm` describes it.
        layout: Rows of a chunk.
        is_recurrent: Whether the policy has a recurrent state.
    """
    start, stop = layout.burn_in, layout.burn_in + layout.sample_steps
    names = [name for name in batch if name.startswith(OBS_PREFIX)]
    fields = {name: batch[name][start:stop] for name in [*names, "action", "log_prob", "value", "on_reset"]}
    final = batch["terminated"] | batch["truncated"]
    fields["mask"] = (batch["valid"] & ~final)[start:stop]
    state, burn_in, unit = batch["state"], {}, "segment" if is_recurrent else "row"
    if layout.burn_in:
        if is_recurrent:
            unit = "chunk"
            burn_in = {BURN_IN_PREFIX + name: batch[name][:start] for name in [*names, "on_reset", "valid"]}
            burn_in[BURN_IN_PREFIX + "state"] = state[0]
        state = state[1:]
    return TrainedRows(fields=fields, state=state, burn_in=burn_in, unit=unit, bptt_steps=layout.bptt_steps)


def _flat(x: Tensor) -> Tensor:
    return x.flatten(0, 1)
