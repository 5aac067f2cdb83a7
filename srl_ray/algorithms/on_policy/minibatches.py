"""How a sample batch is cut into minibatches.

The unit that is shuffled depends on the policy: a row (feed-forward), a segment of `bptt_steps` rows with the state
before it (recurrent), or a whole chunk (recurrent with burn-in, whose first state is recomputed from the rows before).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from srl_ray.algorithms.frame_stacks import rebuild
from srl_ray.core.types import STACK_PREFIX, ChunkLayout
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
        frames: Frames of stacked observations, of which `fields` and `burn_in` hold places; see `split_frames`.
    """

    fields: Tensors
    state: Tensor
    burn_in: Tensors
    unit: str
    bptt_steps: int
    frames: Tensors = field(default_factory=dict)

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
        return rebuild(batch, self.frames)

    def whole(self) -> Tensors:
        """All rows as one batch without burn-in; stacked observations are rebuilt if they are looked at."""
        return _Rebuilding({**self.fields, "state": self.state}, self.frames)

    def _take_segments(self, units: Tensor) -> Tensors:
        segment, chunk = units // self.chunks, units % self.chunks
        steps = torch.arange(self.bptt_steps, device=units.device).unsqueeze(-1)
        rows = ((segment * self.bptt_steps + steps) * self.chunks + chunk).flatten()
        shape = (self.bptt_steps, len(units))
        batch = {name: _flat(x).index_select(0, rows).unflatten(0, shape) for name, x in self.fields.items()}
        batch["state"] = self.state.flatten(0, 1).index_select(0, units).unsqueeze(0)
        return batch


class _Rebuilding(dict[str, Tensor]):
    def __init__(self, rows: Tensors, frames: Tensors) -> None:
        super().__init__(rows)
        self._frames = frames

    def __missing__(self, name: str) -> Tensor:
        stack = name.replace(OBS_PREFIX, STACK_PREFIX, 1)
        return rebuild({stack: self[stack]}, self._frames)[name]


def trained_rows(
    batch: Tensors, layout: ChunkLayout, *, is_recurrent: bool, frames: Tensors | None = None
) -> TrainedRows:
    """The rows [burn_in, burn_in + sample_steps) with their loss mask.

    Args:
        batch: As `Algorithm` describes it.
        layout: Rows of a chunk.
        is_recurrent: Whether the policy has a recurrent state.
        frames: As `split_frames` took them out of the batch.
    """
    start, stop = layout.burn_in, layout.burn_in + layout.sample_steps
    names = observation_names(batch)
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
    return TrainedRows(fields, state, burn_in, unit, layout.bptt_steps, frames or {})


def observation_names(batch: Tensors) -> list[str]:
    """Names of the observations' fields, stacked or not."""
    return [name for name in batch if name.startswith((OBS_PREFIX, STACK_PREFIX))]


def _flat(x: Tensor) -> Tensor:
    return x.flatten(0, 1)
