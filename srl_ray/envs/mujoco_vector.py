"""Gymnasium's planar MuJoCo runners with all environments of a block in one call: the same episodes, bit for bit.

`mujoco.batch` steps the simulations; observations and rewards are computed for all of them at once. Model, weights,
ranges and spaces are read from one environment that `gymnasium.make` builds, so `env.kwargs` mean what they mean there.
What is saved is Python per environment and step, and the forces that gymnasium computes and these tasks do not observe.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from srl_ray.core.threads import told_threads


class MujocoVectorEnv(VectorEnv[Any, Any, Any]):
    """E runners. Environment e draws its starts as the single environment with the same seed does.

    Args:
        env_id: HalfCheetah-v5, Hopper-v5 or Walker2d-v5.
        num_envs: E.
        num_threads: That step simulations; None: the worker's math threads.
        kwargs: Of the gymnasium environment.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    takes_seeds = True
    """`reset(seed=[...])` seeds every environment by itself."""

    def __init__(self, env_id: str, num_envs: int, *, num_threads: int | None = None, **kwargs: Any) -> None:
        from mujoco.batch import Batch

        made = gymnasium.make(env_id, disable_env_checker=True, **kwargs)
        env: Any = made.unwrapped
        self._rules, self.frame_skip = env, env.frame_skip
        limit = made.spec.max_episode_steps if made.spec is not None else None
        self._max_steps = np.inf if limit is None else limit
        self._has_health = hasattr(env, "_healthy_reward")
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.observation_space = batch_space(env.observation_space, num_envs)
        self.action_space = batch_space(env.action_space, num_envs)
        self._batch = Batch(env.model, num_envs, nthread=num_threads or told_threads() or 1, persistent=True)
        self._qpos, self._qvel, self._ctrl = (self._batch.bind(name) for name in ("qpos", "qvel", "ctrl"))
        self._steps = np.zeros(num_envs, np.int64)
        self._rngs = [np.random.default_rng() for _ in range(num_envs)]
        self._hidden = int(env._exclude_current_positions_from_observation)  # leading positions

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Start all episodes; `seed` is a number, one per environment, or None to go on with the random streams."""
        if seed is not None:
            seeds = [seed + e for e in range(self.num_envs)] if isinstance(seed, int) else seed
            self._rngs = [seeding.np_random(number)[0] for number in seeds]
        self._restart(np.arange(self.num_envs))
        return self._obs(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Actions [E, k], float32 as the single environment gets them; ended environments restart at once."""
        rules = self._rules
        before = self._qpos[:, 0].copy()
        self._ctrl[:] = actions
        self._batch.step(nstep=self.frame_skip)
        self._steps += 1
        reward = rules._forward_reward_weight * ((self._qpos[:, 0] - before) / rules.dt)
        terminated = np.zeros(self.num_envs, np.bool_)
        if self._has_health:
            is_healthy = self._is_healthy()
            reward = reward + is_healthy * rules._healthy_reward
            if rules._terminate_when_unhealthy:
                terminated = ~is_healthy
        reward = reward - rules._ctrl_cost_weight * np.square(actions).sum(axis=1)
        truncated = self._steps >= self._max_steps
        obs, ended = self._obs(), terminated | truncated
        if not ended.any():
            return obs, reward, terminated, truncated, {}
        self._restart(np.flatnonzero(ended))
        return self._obs(), reward, terminated, truncated, {"final_obs": obs, "_final_obs": ended}

    def close(self, **kwargs: Any) -> None:
        """Nothing to release beyond memory."""

    def _obs(self) -> np.ndarray:
        """[E, n] float64, fresh."""
        speed = np.clip(self._qvel, -10, 10) if self._has_health else self._qvel
        return np.concatenate([self._qpos[:, self._hidden :], speed], axis=1)

    def _is_healthy(self) -> np.ndarray:
        rules, height, angle = self._rules, self._qpos[:, 1], self._qpos[:, 2]
        (low_z, high_z), (low_angle, high_angle) = rules._healthy_z_range, rules._healthy_angle_range
        is_healthy = (low_z < height) & (height < high_z) & (low_angle < angle) & (angle < high_angle)
        if hasattr(rules, "_healthy_state_range"):
            low, high = rules._healthy_state_range
            state = np.concatenate([self._qpos[:, 2:], self._qvel], axis=1)
            is_healthy &= ((low < state) & (state < high)).all(axis=1)
        return is_healthy  # type: ignore[no-any-return]

    def _restart(self, ids: np.ndarray) -> None:
        rules, scale = self._rules, self._rules._reset_noise_scale
        self._batch.reset(ids, stage=int(mujoco.mjtStage.mjSTAGE_NONE))
        for e in ids.tolist():
            rng = self._rngs[e]
            self._qpos[e] = rules.init_qpos + rng.uniform(-scale, scale, len(rules.init_qpos))
            size = len(rules.init_qvel)
            noise = rng.uniform(-scale, scale, size) if self._has_health else scale * rng.standard_normal(size)
            self._qvel[e] = rules.init_qvel + noise
        self._steps[ids] = 0
