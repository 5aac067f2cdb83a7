"""Gymnasium vector environments, in all three autoreset modes, with identical rows.

NEXT_STEP   the step that ends an episode returns its last observation; the next step ignores the action and returns the
            first observation of the next episode. The lane is not present in between.
SAME_STEP   the step that ends an episode returns the first observation of the next one; the last observation is in
            `info["final_obs"]` (an episode without one there ends without a final observation).
DISABLED    the step that ends an episode returns its last observation; the block resets at once with
            `reset(options={"reset_mask": ended})`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from srl_ray.core.errors import ConfigError, EnvironmentFault
from srl_ray.core.types import AgentGroup, BlockSpec, EpisodeRecord
from srl_ray.envs.block import BlockStep
from srl_ray.envs.faults import Faults, build_env, check_time, close_env
from srl_ray.envs.gymnasium_block import (
    AGENT_ID,
    MAX_FLOAT32,
    MaskCheck,
    describe_nonfinite,
    env_seed,
    frame_skip_of,
    lives_in,
    split_reset,
)
from srl_ray.envs.spaces import PLAIN_FIELD, ActionAdapter, ContractBreach, ObservationAdapter, find_stacking

logger = logging.getLogger(__name__)

_MODES = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}


class VectorBlock:
    """A `gymnasium.vector.VectorEnv` as a block; its autoreset mode is read from `metadata["autoreset_mode"]`.

    Faults: a vector environment cannot be repaired in part. When it raises or exceeds `step_timeout_s`, the episodes of
    all its environments are discarded and the whole is rebuilt. An episode dropped for NaN or infinity is discarded
    alone: its lane is absent until that environment's own next episode (in DISABLED mode it is reset at once).

    Args:
        make_env: Builds the vector environment; called again for every rebuild.
        env_id: Name for messages.
        autoreset: same_step | next_step | disabled; used where the metadata say nothing.
        step_timeout_s: A step or reset that took longer is a fault.
        on_error: restart | stop.
        on_nonfinite: stop | drop.
        max_faults: Faults in a row of one environment, without a finished episode between, that are still answered.
        first_env: A vector environment that is already built and not reset yet.
        frame_stack: auto | first | last | none; see `EnvConfig`.
        frame_stack_pad: repeat | zero.
        clip_rewards: See `GymBlock`.
        episodic_life: Likewise; `infos["lives"]` is an array [E].

    Lifecycle: build, `reset(seed)`, `step(actions)` for ever, `close()`; all in one thread.
    """

    def __init__(
        self,
        make_env: Callable[[], VectorEnv[Any, Any, Any]],
        *,
        env_id: str,
        autoreset: str = "same_step",
        step_timeout_s: float = 60.0,
        on_error: str = "restart",
        on_nonfinite: str = "stop",
        max_faults: int = 5,
        first_env: VectorEnv[Any, Any, Any] | None = None,
        frame_stack: str = "auto",
        frame_stack_pad: str = "repeat",
        clip_rewards: bool = False,
        episodic_life: bool = False,
    ) -> None:
        self._make_env = make_env
        self._env_id = env_id
        self._step_timeout_s = step_timeout_s
        self._clip_rewards = clip_rewards
        self._has_lives = episodic_life

        self._env = build_env(make_env, env_id) if first_env is None else first_env
        self._mode = _autoreset_mode(self._env, autoreset, env_id)
        count = self._env.num_envs
        self._faults = Faults(env_id, count, on_error=on_error, on_nonfinite=on_nonfinite, max_faults=max_faults)
        self._actions = ActionAdapter(self._env.single_action_space, env_id)
        # The stack that follows a lost life goes on, so it cannot be put together again from its frames.
        stacking = find_stacking(self._env, "none" if episodic_life else frame_stack, frame_stack_pad)
        self._obs = ObservationAdapter(self._env.single_observation_space, self._actions.spec, env_id, stacking)
        group = AgentGroup(
            name="agents", agent_ids=(AGENT_ID,), obs=self._obs.fields, action=self._actions.spec, teams=("agents",)
        )
        self.spec = BlockSpec(env_id=env_id, num_envs=count, group=group, frame_skip=frame_skip_of(self._env))

        self._own_rows = self._obs.allocate(count)
        self._rows = self._own_rows
        self._scratch = self._obs.allocate(count)
        self._final = self._obs.allocate(count)
        self._write_final = self._obs.writer(self._final)
        self._mask_check = MaskCheck.make(self._rows, self._actions.spec, env_id)

        self._is_started = False
        self._seed = 0
        self._rebuilds = 0
        self._nobody = np.zeros(count, np.bool_)
        self._present = np.zeros(count, np.bool_)
        self._waiting = np.zeros(count, np.bool_)  # NEXT_STEP: ended in the previous step
        self._skipped = np.zeros(count, np.bool_)  # episode dropped, its environment still in it
        self._returns = np.zeros(count, np.float64)
        self._lengths = np.zeros(count, np.int64)
        self._lives = np.zeros(count, np.int64)

    @property
    def num_faults(self) -> int:
        """Faults since the block was built; one that hits the whole vector environment counts once."""
        return self._faults.total

    # ------------------------------------------------------------------------------------------------ the contract

    def reset(self, seed: int) -> BlockStep:
        """Reset all environments; those of gymnasium's own vector environments get the seeds that GymBlock gives."""
        self._seed = seed
        self._is_started = True
        self._present[:] = False
        episodes: list[EpisodeRecord] = []
        try:
            self._start(seed)
        except EnvironmentFault:
            raise
        except Exception as error:
            self._rebuild(error, episodes)
        fresh_bad = self._find_nonfinite(self._rows, self._present)
        self._drop(fresh_bad, episodes, was_running=False)
        return self._answer(self._present.copy(), None, None, None, [], episodes)

    def step(self, actions: np.ndarray) -> BlockStep:
        """Step all environments; see the module's text for what each autoreset mode returns."""
        if not self._is_started:
            raise RuntimeError("VectorBlock.step was called before reset")
        flat = actions[:, 0]
        if self._mask_check is not None:
            self._mask_check.look_at_actions(self._present, flat, self._lengths)
        if not self._present.all():
            flat = np.where(self._present[:, None], flat, 0).astype(flat.dtype, copy=False)
        before = time.perf_counter()
        try:
            result = self._env.step(self._actions.decode_all(flat))
            check_time("step", time.perf_counter() - before, self._step_timeout_s)
        except Exception as error:
            return self._restart_all(error)
        try:
            return self._digest(*self._unpack(result))
        except ContractBreach as error:
            raise EnvironmentFault(self._env_id, str(error)) from error

    def close(self) -> None:
        """Close the vector environment; an error while closing is logged."""
        self._is_started = False
        close_env(self._env, self._env_id)

    # ------------------------------------------------------------------------------------------------------ a step

    def _take_obs(self, obs: Any) -> None:
        """Images that come as one array of the right kind are used in place, until the environment's next call.

        Not in DISABLED mode, in which a masked reset replaces some rows.
        """
        own = self._own_rows.get(PLAIN_FIELD)
        if (
            type(obs) is np.ndarray
            and own is not None
            and (obs.dtype, obs.shape) == (np.uint8, own.shape)
            and own.dtype == np.uint8
            and obs.flags.c_contiguous
            and self._mode is not AutoresetMode.DISABLED
        ):
            self._rows = {PLAIN_FIELD: obs}
        else:
            self._rows = self._own_rows
            self._obs.write_all(self._rows, obs)

    def _unpack(self, result: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Mapping[str, Any]]:
        if not isinstance(result, tuple) or len(result) != 5:
            found = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
            raise ContractBreach(
                f"step: expected the five values (observations, rewards, terminated, truncated, infos), found {found}"
            )
        obs, reward, terminated, truncated, infos = result
        arrays = []
        for name, value, dtype in (
            ("rewards", reward, np.float64),
            ("terminated", terminated, np.bool_),
            ("truncated", truncated, np.bool_),
        ):
            array = np.asarray(value, dtype)
            if array.shape != (self.spec.num_envs,):
                raise ContractBreach(f"{name}: expected shape ({self.spec.num_envs},), found {array.shape}")
            arrays.append(array)
        return obs, arrays[0], arrays[1], arrays[2], infos

    def _digest(
        self, obs: Any, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, infos: Mapping[str, Any]
    ) -> BlockStep:
        self._take_obs(obs)
        ended = terminated | truncated
        lost_life = self._lose_lives(infos) & ~ended if self._has_lives else self._nobody
        if self._present.all() and not (ended | lost_life).any() and self._is_finite(reward):
            self._lengths += 1
            self._returns += reward
            return self._answer(self._nobody, reward, self._nobody, self._nobody, [], [])
        acting = self._present.copy()
        restarted = self._waiting.copy()
        ended &= ~restarted
        lost_life = lost_life & acting

        reward = np.where(acting, reward, 0.0)
        bad = self._find_bad_rewards(reward)
        final_lanes: list[int] = []
        if self._mode is AutoresetMode.SAME_STEP:
            final_lanes = self._take_final_obs(np.flatnonzero(ended & acting), infos)
            for index, e in enumerate(final_lanes):
                self._note_nonfinite(bad, self._final, index, e)
            for e, text in self._find_nonfinite(self._rows, acting & ~ended).items():
                bad.setdefault(e, text)
        else:
            for e, text in self._find_nonfinite(self._rows, acting).items():
                bad.setdefault(e, text)
            self._keep_final(ended & acting, final_lanes)
        self._keep_final(lost_life, final_lanes)

        is_bad = np.zeros_like(acting)
        is_bad[list(bad)] = True
        good = acting & ~is_bad
        self._lengths += acting
        self._returns += np.where(good, reward, 0.0)
        reward = np.where(is_bad, 0.0, reward)
        finished = ended & good
        if is_bad.any():
            keep = [index for index, e in enumerate(final_lanes) if not is_bad[e]]
            for rows in self._final.values():
                rows[: len(keep)] = rows[keep]
            final_lanes = [final_lanes[index] for index in keep]

        episodes = [self._record(e, self._summary(infos, e)) for e in np.flatnonzero(finished).tolist()]
        self._faults.finished(finished)
        self._drop(bad, episodes, was_running=True)
        lost_life &= good
        new_terminated = (terminated & finished) | lost_life
        new_truncated = (truncated & finished & ~new_terminated) | is_bad
        on_reset, lost = self._move_on(ended, restarted, is_bad, episodes)
        new_truncated |= lost & ~lost_life
        on_reset |= lost_life
        return self._answer(on_reset, reward, new_terminated, new_truncated, final_lanes, episodes)

    def _move_on(
        self, ended: np.ndarray, restarted: np.ndarray, is_bad: np.ndarray, episodes: list[EpisodeRecord]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Decide who is present now.

        Returns:
            on_reset [E], and lost [E]: running episodes that ended because everything had to be rebuilt.
        """
        lost = np.zeros_like(ended)
        if self._mode is AutoresetMode.NEXT_STEP:
            fresh = restarted
            self._waiting = ended.copy()
            self._skipped = (self._skipped | is_bad) & ~fresh & ~ended
        elif self._mode is AutoresetMode.SAME_STEP:
            fresh = ended
            self._skipped = (self._skipped | is_bad) & ~fresh
        else:
            fresh = ended | is_bad
            was_absent = ~self._present
            self._skipped &= ~fresh
            if fresh.any() and not self._reset_some(fresh, episodes):
                lost = ~fresh & ~was_absent
                fresh = np.ones_like(fresh)
        self._returns[fresh] = 0.0
        self._lengths[fresh] = 0
        self._present = ~self._waiting & ~self._skipped
        self._drop(self._find_nonfinite(self._rows, fresh), episodes, was_running=False)
        return fresh & self._present, lost

    def _reset_some(self, chosen: np.ndarray, episodes: list[EpisodeRecord]) -> bool:
        """Masked reset; False when that failed and everything was rebuilt."""
        before = time.perf_counter()
        try:
            result = self._env.reset(options={"reset_mask": chosen.copy()})
            check_time("reset", time.perf_counter() - before, self._step_timeout_s)
        except Exception as error:
            self._present &= ~chosen
            self._rebuild(error, episodes)
            return False
        self._obs.write_all(self._scratch, split_reset(result)[0])
        for name, rows in self._rows.items():
            rows[chosen] = self._scratch[name][chosen]
        return True

    def _lose_lives(self, infos: Mapping[str, Any]) -> np.ndarray:
        """bool [E]: environments with fewer lives than before; some games show none for a while before they end."""
        before, self._lives = self._lives, np.array(lives_in(infos, self._env_id), np.int64)
        return (self._lives < before) & (self._lives > 0)

    def _keep_final(self, which: np.ndarray, final_lanes: list[int]) -> None:
        """Copy the observations of some environments [E], before anything is reset, behind the `final_lanes` so far."""
        for e in np.flatnonzero(which).tolist():
            for name, rows in self._rows.items():
                self._final[name][len(final_lanes)] = rows[e]
            final_lanes.append(e)

    def _take_final_obs(self, ended: np.ndarray, infos: Mapping[str, Any]) -> list[int]:
        """Copy the last observations of ended environments from `info["final_obs"]`; returns those that had one."""
        found = infos.get("final_obs")
        if found is None or not len(ended):
            return []
        lanes: list[int] = []
        if isinstance(found, np.ndarray) and found.dtype == object:
            for e in ended.tolist():
                if found[e] is not None:
                    self._write_final(len(lanes), found[e])
                    lanes.append(e)
            return lanes
        has_one = np.asarray(infos.get("_final_obs", np.ones(self.spec.num_envs, np.bool_)), np.bool_)
        self._obs.write_all(self._scratch, found)
        lanes = [e for e in ended.tolist() if has_one[e]]
        for name, rows in self._final.items():
            rows[: len(lanes)] = self._scratch[name][lanes]
        return lanes

    def _answer(
        self,
        on_reset: np.ndarray,
        reward: np.ndarray | None,
        terminated: np.ndarray | None,
        truncated: np.ndarray | None,
        final_lanes: list[int],
        episodes: list[EpisodeRecord],
    ) -> BlockStep:
        nothing = self._nobody
        present = self._present[:, None].copy()
        if self._mask_check is not None:
            self._mask_check.look_at_masks(self._present, self._lengths)
        reward = (nothing if reward is None else reward).astype(np.float32)
        if self._clip_rewards:
            np.sign(reward, out=reward)
        return BlockStep(
            obs={name: rows[:, None] for name, rows in self._rows.items()},
            present=present,
            on_reset=on_reset[:, None],
            reward=reward[:, None],
            terminated=(nothing if terminated is None else terminated)[:, None],
            truncated=(nothing if truncated is None else truncated)[:, None],
            final_lanes=np.array(final_lanes, np.int64),
            final_obs={name: rows[: len(final_lanes)] for name, rows in self._final.items()},
            episodes=episodes,
        )

    # ------------------------------------------------------------------------------------------------------ faults

    def _is_finite(self, reward: np.ndarray) -> bool:
        """Rewards and all observations."""
        return bool(np.abs(reward).max() <= MAX_FLOAT32) and all(
            np.isfinite(self._rows[name]).all() for name in self._obs.float_fields
        )

    def _find_bad_rewards(self, reward: np.ndarray) -> dict[int, str]:
        is_bad = ~(np.abs(reward) <= MAX_FLOAT32)
        return {e: f"reward became {reward[e]}" for e in np.flatnonzero(is_bad).tolist()}

    def _find_nonfinite(self, rows: Mapping[str, np.ndarray], where: np.ndarray) -> dict[int, str]:
        bad: dict[int, str] = {}
        for name in self._obs.float_fields:
            finite = np.isfinite(rows[name])
            if not finite.all():
                per_env = finite.reshape(len(finite), -1).all(axis=1)
                for e in np.flatnonzero(~per_env & where).tolist():
                    bad.setdefault(e, describe_nonfinite(name, rows[name][e]))
        return bad

    def _note_nonfinite(self, bad: dict[int, str], rows: Mapping[str, np.ndarray], index: int, e: int) -> None:
        for name in self._obs.float_fields:
            if not np.isfinite(rows[name][index]).all():
                bad.setdefault(e, describe_nonfinite(name, rows[name][index]))

    def _drop(self, bad: Mapping[int, str], episodes: list[EpisodeRecord], *, was_running: bool) -> None:
        """Discard episodes with NaN or infinity; an environment whose first observation is bad is skipped."""
        for e, text in bad.items():
            self._faults.add_nonfinite(e, text, int(self._lengths[e]))
            episodes.append(self._record(e, {}, discarded=True))
            if not was_running:
                self._skipped[e] = True
                self._present[e] = False

    def _restart_all(self, error: BaseException) -> BlockStep:
        episodes: list[EpisodeRecord] = []
        running = self._present.copy()
        self._rebuild(error, episodes)
        self._drop(self._find_nonfinite(self._rows, self._present), episodes, was_running=False)
        return self._answer(self._present.copy(), None, None, running, [], episodes)

    def _rebuild(self, error: BaseException, episodes: list[EpisodeRecord]) -> None:
        """Count the fault, discard the episodes of all present lanes, and replace the vector environment."""
        everyone = list(range(self.spec.num_envs))
        while True:
            self._faults.add_error(everyone, error)
            episodes += [self._record(e, {}, discarded=True) for e in np.flatnonzero(self._present).tolist()]
            self._present[:] = False
            close_env(self._env, self._env_id)
            self._rebuilds += 1
            try:
                self._env = build_env(self._make_env, self._env_id)
                self._start(env_seed(self._seed, 0, self._rebuilds))
            except EnvironmentFault as fault:
                if fault.__cause__ is None or isinstance(fault.__cause__, ContractBreach):
                    raise
                error = fault.__cause__
            except Exception as again:
                error = again
            else:
                return

    # ----------------------------------------------------------------------------------------------------- helpers

    def _start(self, seed: int) -> None:
        count = self.spec.num_envs
        is_listed = isinstance(self._env.unwrapped, SyncVectorEnv | AsyncVectorEnv) or hasattr(self._env, "takes_seeds")
        seeds: Any = [env_seed(seed, e) for e in range(count)] if is_listed else env_seed(seed, 0)
        before = time.perf_counter()
        result = self._env.reset(seed=seeds)
        check_time("reset", time.perf_counter() - before, self._step_timeout_s)
        try:
            obs, infos = split_reset(result)
            self._take_obs(obs)
        except ContractBreach as error:
            raise EnvironmentFault(self._env_id, str(error)) from error
        if self._has_lives:
            self._lives = np.array(lives_in(infos, self._env_id), np.int64)
        self._present[:] = True
        self._waiting[:] = False
        self._skipped[:] = False
        self._returns[:] = 0.0
        self._lengths[:] = 0

    def _record(self, e: int, summary: dict[str, float], discarded: bool = False) -> EpisodeRecord:
        length = int(self._lengths[e])
        return EpisodeRecord(
            env_index=e,
            length=length,
            returns={AGENT_ID: float(self._returns[e])},
            lengths={AGENT_ID: length},
            summary=summary,
            discarded=discarded,
        )

    def _summary(self, infos: Mapping[str, Any], e: int) -> dict[str, float]:
        """Numbers of environment e's ended episode: `summary` and `is_success` or `success` of its last info."""
        last = infos.get("final_info", infos) if self._mode is AutoresetMode.SAME_STEP else infos
        if not isinstance(last, Mapping):
            return {}
        own = last.get("summary")
        summary: dict[str, float] = {}
        if isinstance(own, Mapping):  # "_key" beside "key" says which environments have it
            summary = _numbers_of(own, [key for key in own if not (key[0] == "_" and key[1:] in own)], e)
        return {**summary, **_numbers_of(last, ["is_success", "success"], e)}


def _autoreset_mode(env: VectorEnv[Any, Any, Any], autoreset: str, env_id: str) -> AutoresetMode:
    declared = (env.metadata or {}).get("autoreset_mode")
    if declared is None:
        return _MODES[autoreset]
    try:
        return declared if isinstance(declared, AutoresetMode) else AutoresetMode(declared)
    except ValueError as error:
        raise ConfigError(
            f"environment {env_id!r}: metadata['autoreset_mode']={declared!r}; expected gymnasium.vector.AutoresetMode."
        ) from error


def _numbers_of(infos: Mapping[str, Any], keys: list[str], e: int) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for key in keys:
        values, has_one = infos.get(key), infos.get(f"_{key}")
        is_number = isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "fiub"
        if is_number and (has_one is None or has_one[e]):
            numbers[str(key)] = float(values[e])  # type: ignore[index]
    return numbers
