"""CartPole as a functional JAX environment: an example of the interface, complete, that needs no gymnax.

python -m srl_ray.train experiment=cartpole_jax          env.factory=srl_ray.envs.functional:CartPole

The same equations and numbers as gymnasium's CartPole-v1 (Barto, Sutton & Anderson 1983), in float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from srl_ray.envs.jax_block import load_jax

jax = load_jax("CartPole")
jnp = jax.numpy

_MAX_POSITION, _MAX_ANGLE = 2.4, 12 * 2 * np.pi / 360
_GRAVITY, _FORCE, _TAU = 9.8, 10.0, 0.02
_POLE_MASS, _TOTAL_MASS, _HALF_LENGTH = 0.1, 1.1, 0.5


class Params(NamedTuple):
    """Attributes:
    max_steps_in_episode: Time limit; an episode that reaches it is truncated.
    """

    max_steps_in_episode: int = 500


class CartPole:
    """State and observation are the same float32 [4]: position, velocity, angle, angular velocity."""

    default_params = Params()

    def observation_space(self, params: Params) -> spaces.Box:
        high = np.array([2 * _MAX_POSITION, np.inf, 2 * _MAX_ANGLE, np.inf], np.float32)
        return spaces.Box(-high, high)

    def action_space(self, params: Params) -> spaces.Discrete:
        return spaces.Discrete(2)

    def reset(self, key: Any, params: Params) -> tuple[Any, Any]:
        state = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        return state, state

    def step(self, key: Any, state: Any, action: Any, params: Params) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        _, velocity, angle, spin = state
        force = jnp.where(action == 1, _FORCE, -_FORCE)
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        push = (force + _POLE_MASS * _HALF_LENGTH * spin**2 * sin) / _TOTAL_MASS
        spin_up = (_GRAVITY * sin - cos * push) / (_HALF_LENGTH * (4 / 3 - _POLE_MASS * cos**2 / _TOTAL_MASS))
        speed_up = push - _POLE_MASS * _HALF_LENGTH * spin_up * cos / _TOTAL_MASS
        state = state + _TAU * jnp.stack([velocity, speed_up, spin, spin_up])
        fell = (jnp.abs(state[0]) > _MAX_POSITION) | (jnp.abs(state[2]) > _MAX_ANGLE)
        return state, state, jnp.float32(1), fell, {}
