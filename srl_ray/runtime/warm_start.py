"""Begin with the weights of another run: what fits is taken over, the outputs may begin afresh."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from srl_ray.core.errors import CheckpointError, ConfigError
from srl_ray.runtime.checkpoint import load_checkpoint
from srl_ray.runtime.run_directory import find_checkpoint


def start_policy_from(path: Path | str, policy: Any, *, reset_outputs: bool) -> list[str]:
    """Give a policy the weights of a run or checkpoint.

    Where a tensor of this policy has more rows than the saved one (a further kind of entities), the saved rows come
    first; those, and what the saved policy lacks, stay as they are.

    Args:
        path: Run directory, folder of checkpoints, or checkpoint.
        policy: A torch module.
        reset_outputs: Leave what `policy.outputs` lists as it is: heads, their units, and the layer norms below.

    Returns:
        Names of the tensors that were not taken over.

    Raises:
        CheckpointError: There is no such checkpoint, or it is of another network; every difference is told.
        ConfigError: The policy does not say which tensors are its outputs.
    """
    if reset_outputs and not hasattr(policy, "outputs"):
        raise ConfigError(
            f"policy.reset_outputs: {type(policy).__name__} has no attribute `outputs`, prefixes of the names of its "
            "output layers. Give it one, or set policy.reset_outputs=false."
        )
    checkpoint = load_checkpoint(find_checkpoint(path))
    saved: Mapping[str, Any] = next(iter(checkpoint.tensors.values()), {})
    own = policy.state_dict()
    outputs = tuple(policy.outputs) if reset_outputs else ()
    wanted = [name for name in own if name in saved and not name.startswith(outputs)]
    problems = [f"{name} is not part of this run's network" for name in saved if name not in own]
    problems += [
        f"{name} has shape {list(saved[name].shape)} there, {list(own[name].shape)} in this run"
        for name in wanted
        if not _fits(saved[name].shape, own[name].shape)
    ]
    if problems or not wanted:
        text = "\n  ".join([*problems[:20], *([f"… and {len(problems) - 20} more"] if len(problems) > 20 else [])])
        raise CheckpointError(str(checkpoint.path), "is of another network (policy.start_from):\n  " + text)
    for name in wanted:
        saved_rows = saved[name]
        rows = own[name] if not saved_rows.ndim else own[name][: len(saved_rows)]
        rows.copy_(saved_rows)
    return [name for name in own if name not in wanted]


def _fits(saved: tuple[int, ...], own: tuple[int, ...]) -> bool:
    """Whether the shapes are equal, but for further rows."""
    return saved == own or (len(saved) == len(own) > 0 and saved[1:] == own[1:] and saved[0] < own[0])
