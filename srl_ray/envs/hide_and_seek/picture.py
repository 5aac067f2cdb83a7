"""Pictures for those who step environments themselves; drawing is loaded when the first is asked for."""

from __future__ import annotations

import numpy as np

from srl_ray.envs.hide_and_seek.block import HideAndSeekBlock

RENDER_FPS = 13
"""A step takes 0.075 s."""


def picture(block: HideAndSeekBlock, env_index: int) -> np.ndarray:
    """uint8 [height, width, 3]; the present moment of one environment, seen from above."""
    from srl_ray.rendering.top_down import draw

    return np.asarray(draw(block.snapshot(env_index)))


def check_render_mode(render_mode: str | None) -> None:
    if render_mode not in (None, "rgb_array"):
        raise ValueError(f"render_mode is {render_mode!r}; expected 'rgb_array' or None")
