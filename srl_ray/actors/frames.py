"""The stacked observations of a block's lanes, each frame stored once (see `core.types.FrameStack`)."""

from __future__ import annotations

import numpy as np

from srl_ray.core.types import FieldSpec


class LaneFrames:
    """One stacked field of a `LaneTable`: frames, and how far back those of each row lie.

    A row's place is row · lanes + lane; the row above it in its lane is one `lanes` before.

    Attributes:
        frames: [rows + lead, L, *frame].
        offsets: int8 [rows, L, *offsets].
    """

    def __init__(self, field: FieldSpec, rows: int, lanes: int) -> None:
        assert field.stack is not None
        self._stack = field.stack
        self._lanes = lanes
        self._own = self._stack.lead * lanes  # from a row's place to that of its newest frame
        self.frames = field.frame.zeros(rows + self._stack.lead, lanes)
        self.offsets = field.offsets.zeros(rows, lanes)
        # The same memory with rows and lanes as one axis, without the stack's.
        self._frames = self.frames.reshape(-1, *_without(field.shape, self._stack.axis))
        self._offsets = self.offsets.reshape(rows * lanes, self._stack.depth)

    def write(self, places: np.ndarray, obs: np.ndarray, on_reset: np.ndarray, is_first: np.ndarray) -> None:
        """Write rows [n, ...] that follow those above them, but for first ones (bool [n]) of an episode or a lane."""
        offsets = self._next(places)
        offsets[on_reset] = self._stack.first
        stacks = self._by_frame(obs)
        if is_first.any():
            offsets[is_first] = np.arange(self._stack.depth)[::-1]
            for back in range(1, self._stack.depth):
                self._frames[places[is_first] + self._own - back * self._lanes] = stacks[is_first, -1 - back]
        self._offsets[places] = offsets
        self._frames[places + self._own] = stacks[:, -1]

    def repeat(self, places: np.ndarray) -> None:
        """Write rows that equal those above them."""
        self._offsets[places] = _back(self._offsets[places - self._lanes])

    def blank(self, places: np.ndarray) -> None:
        """Write rows of zeros."""
        self._offsets[places] = -1

    def read(self, places: np.ndarray) -> np.ndarray:
        """The rows [n, ...], rebuilt."""
        offsets = self._offsets[places]
        own = places[:, None] + self._own
        index = np.where(offsets < 0, places[:, None] % self._lanes, own - offsets.astype(np.int64) * self._lanes)
        return np.moveaxis(self._frames[index], 1, 1 + self._stack.axis)

    def carry(self, shift: int, kept: int, lanes: slice | np.ndarray) -> None:
        """Move `kept` rows from row `shift` on, and the frames before them, to the front."""
        lead = self._stack.lead
        self.offsets[:kept, lanes] = self.offsets[shift : shift + kept, lanes]
        self.frames[1 : lead + kept, lanes] = self.frames[shift + 1 : shift + lead + kept, lanes]

    def _next(self, places: np.ndarray) -> np.ndarray:
        offsets = np.zeros((len(places), self._stack.depth), np.int8)
        offsets[:, :-1] = _back(self._offsets[places - self._lanes])[:, 1:]
        return offsets

    def _by_frame(self, obs: np.ndarray) -> np.ndarray:
        """[n, depth, ...], in place."""
        return np.moveaxis(obs, 1 + self._stack.axis, 1)


def _back(offsets: np.ndarray) -> np.ndarray:
    """As seen from the next row."""
    return offsets + (offsets >= 0)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])
