"""The block's fields and actions as Gymnasium spaces, and its rows as members of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from gymnasium import spaces

from srl_ray.core.types import Arrays, DiscreteActions, FieldSpec
from srl_ray.envs.hide_and_seek.block import HideAndSeekBlock


def observation_space(fields: Mapping[str, FieldSpec]) -> spaces.Dict:
    """A Box per field of numbers, a MultiBinary per mask; of one agent."""
    return spaces.Dict({name: _space(spec) for name, spec in fields.items()})


def action_space(block: HideAndSeekBlock) -> spaces.MultiDiscrete:
    """x force, y force, yaw torque (0 to 10, 5 is none), pull, lock; of one agent."""
    action = block.spec.group.action
    assert isinstance(action, DiscreteActions)
    return spaces.MultiDiscrete(list(action.nvec))


def members(rows: Arrays) -> Arrays:
    """Copies of rows as the spaces have them: masks become int8."""
    return {name: row.astype(np.int8) if row.dtype == bool else row.copy() for name, row in rows.items()}


def _space(spec: FieldSpec) -> spaces.Box | spaces.MultiBinary:
    if spec.dtype == bool:
        return spaces.MultiBinary(spec.shape)
    return spaces.Box(-np.inf, np.inf, spec.shape, np.float32)
