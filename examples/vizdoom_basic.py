"""ViZDoom's own gymnasium environment, seen at a quarter of its resolution: all that training it takes.

    pip install 'srl_ray[vizdoom]'
    python -m srl_ray.train --config-dir examples/conf experiment=vizdoom_basic

Run it in the repository's root, so that `examples.vizdoom_basic` can be imported.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


def make_env(env_id: str = "VizdoomBasic-v1", shrink: int = 4, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Observes the screen, uint8 [240 / shrink, 320 / shrink, 3], and the game's variables (ammunition, health …)."""
    import vizdoom.gymnasium_wrapper  # noqa: F401  registers the ids

    env = gymnasium.make(env_id, **kwargs)
    inner: Any = env.observation_space
    height, width, channels = inner["screen"].shape
    small = spaces.Box(0, 255, (height // shrink, width // shrink, channels), np.uint8)
    return gymnasium.wrappers.TransformObservation(
        env,
        lambda obs: {**obs, "screen": np.ascontiguousarray(obs["screen"][::shrink, ::shrink])},
        spaces.Dict({**inner.spaces, "screen": small}),
    )
