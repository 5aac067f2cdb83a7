"""Single gymnasium environments stepped one after the other in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from srl_ray.core.errors import EnvironmentFault
from srl_ray.core.types import ACTION_MASK, AgentGroup, Arrays, BlockSpec, DiscreteActions, EpisodeRecord
from srl_ray.envs.block import BlockStep
from srl_ray.envs.faults import Faults, TooSlow, build_env, check_time, close_env
from srl_ray.envs.spaces import ActionAdapter, ContractBreach, MaskFromInfo, ObservationAdapter, find_stacking

AGENT_ID = "agent"
"""Id of the only agent of a gymnasium environment."""

Env = gymnasium.Env[Any, Any]
MAX_FLOAT32 = float(np.finfo(np.float32).max)


class GymBlock:
    """E gymnasium environments; each is reset at once, in the step in which its episode ends.

    Faults: an environment that raises, takes longer than `step_timeout_s` (seen after the fact; a call that never
    returns is noticed by whoever waits for the worker) or, with `on_nonfinite="drop"`, produces NaN or infinity loses
    its episode: the lane ends truncated without a final observation, a discarded EpisodeRecord counts it, and the
    environment is rebuilt (only reset after non-finite numbers). Its siblings are not touched. An environment that
    breaks its contract (shapes, dtypes, tuples) ends the run whatever `on_error` says.

    Args:
        make_env: Builds one environment; called E times, and again for every rebuild.
        num_envs: E.
        env_id: Name for messages.
        step_timeout_s: A step or reset that took longer is a fault.
        on_error: restart | stop.
        on_nonfinite: stop | drop.
        max_faults: Faults in a row of one environment, without a finished episode between, that are still answered.
        first_env: An environment that is already built and not reset yet, taken as the first one.
        frame_stack: auto | first | last | none; see `EnvConfig`.
        frame_stack_pad: repeat | zero.
        clip_rewards: Answer the signs of rewards; the returns of episodes stay those of the environment.
        episodic_life: A lost life (`info["lives"]`) terminates the lane's episode, and the game goes on.

    Raises:
        EnvironmentFault: from the constructor when an environment cannot be built; from `reset` and `step` as above.

    Lifecycle: build, `reset(seed)`, `step(actions)` for ever, `close()`; all in one thread.

    Example:
        block = GymBlock(lambda: gymnasium.make("CartPole-v1"), 8, env_id="CartPole-v1")
        answer = block.reset(seed=7)
        answer = block.step(np.zeros((8, 1, 1), np.int64))
    """

    def __init__(
        self,
        make_env: Callable[[], Env],
        num_envs: int,
        *,
        env_id: str,
        step_timeout_s: float = 60.0,
        on_error: str = "restart",
        on_nonfinite: str = "stop",
        max_faults: int = 5,
        first_env: Env | None = None,
        frame_stack: str = "auto",
        frame_stack_pad: str = "repeat",
        clip_rewards: bool = False,
        episodic_life: bool = False,
    ) -> None:
        self._make_env = make_env
        self._env_id = env_id
        self._step_timeout_s = step_timeout_s
        self._clip_rewards = clip_rewards
        self._lives: list[int] | None = [0] * num_envs if episodic_life else None
        self.stagger_steps = 0  # see EnvBlock
        self._cut_at: dict[int, int] = {}  # environments in their first episode → the length at which it is truncated
        self._faults = Faults(env_id, num_envs, on_error=on_error, on_nonfinite=on_nonfinite, max_faults=max_faults)

        self._envs: list[Env] = []
        try:
            for e in range(num_envs):
                self._envs.append(prepare_env(first_env) if e == 0 and first_env is not None else self._build(e))
        except BaseException:
            self.close()
            raise
        self._step_calls: list[Callable[[Any], Any]] = [env.step for env in self._envs]
        self._actions = ActionAdapter(self._envs[0].action_space, env_id)
        # The stack that follows a lost life goes on, so it cannot be put together again from its frames.
        stacking = find_stacking(self._envs[0], "none" if episodic_life else frame_stack, frame_stack_pad)
        self._obs = ObservationAdapter(self._envs[0].observation_space, self._actions.spec, env_id, stacking)
        group = AgentGroup(
            name="agents", agent_ids=(AGENT_ID,), obs=self._obs.fields, action=self._actions.spec, teams=("agents",)
        )
        self.spec = BlockSpec(env_id=env_id, num_envs=num_envs, group=group, frame_skip=frame_skip_of(self._envs[0]))

        self._obs_buffers = self._obs.allocate(num_envs, 1)
        self._rows: Arrays = {name: buffer[:, 0] for name, buffer in self._obs_buffers.items()}
        self._final: Arrays = self._obs.allocate(num_envs)
        self._write = self._obs.writer(self._rows)
        self._finite_checks = [
            (self._rows[name], np.ones(self._rows[name].shape, np.bool_)) for name in self._obs.float_fields
        ]
        self._always_present = np.ones((num_envs, 1), np.bool_)
        self._on_reset = np.zeros((num_envs, 1), np.bool_)
        self._reward = np.zeros((num_envs, 1), np.float32)
        self._terminated = np.zeros((num_envs, 1), np.bool_)
        self._truncated = np.zeros((num_envs, 1), np.bool_)
        self._mask_check = MaskCheck.make(self._rows, self._actions.spec, env_id)

        self._seed = 0
        self._is_started = False
        self._returns = [0.0] * num_envs
        self._lengths = [0] * num_envs
        self._rebuilds = [0] * num_envs

    @property
    def num_faults(self) -> int:
        """Faults of all environments since the block was built."""
        return self._faults.total

    # ------------------------------------------------------------------------------------------------ the contract

    def reset(self, seed: int) -> BlockStep:
        """Reset every environment with a seed of its own (`env_seed`)."""
        self._seed = seed
        self._is_started = True
        episodes: list[EpisodeRecord] = []
        self._reward[...] = 0
        self._terminated[...] = False
        self._truncated[...] = False
        self._on_reset[...] = True
        if self.stagger_steps:
            lengths = np.random.default_rng((seed, 1)).integers(1, self.stagger_steps + 1, self.spec.num_envs)
            self._cut_at = dict(enumerate(lengths.tolist()))
        for e in range(self.spec.num_envs):
            self._begin_episode(e, env_seed(seed, e), episodes)
        return self._answer(0, [], episodes)

    def step(self, actions: np.ndarray) -> BlockStep:
        """Step every environment; reset those whose episode ended or failed."""
        if not self._is_started:
            raise RuntimeError("GymBlock.step was called before reset")
        if self._mask_check is not None:
            self._mask_check.look_at_actions(self._always_present[:, 0], actions[:, 0], self._lengths)
        decoded = self._actions.decode(actions[:, 0])
        write, rewards, returns, lengths = self._write, self._reward, self._returns, self._lengths
        terminated_flags, truncated_flags = self._terminated, self._truncated
        terminated_flags[...] = False
        truncated_flags[...] = False
        self._on_reset[...] = False
        timeout_s, clock = self._step_timeout_s, time.perf_counter
        ended: list[tuple[int, Any]] = []
        failed: list[tuple[int, BaseException]] = []
        broken_reward: list[tuple[int, float]] = []
        lost_life: list[int] = []

        e = 0
        before = clock()
        for step_call in self._step_calls:
            try:
                result = step_call(decoded[e])
            except ContractBreach as error:
                raise self._breach(e, error) from error
            except Exception as error:
                failed.append((e, error))
                e += 1
                before = clock()
                continue
            now = clock()
            if now - before > timeout_s:
                failed.append((e, TooSlow(f"step took {now - before:.1f} s (env.step_timeout_s={timeout_s:g})")))
                e += 1
                before = now
                continue
            before = now
            try:
                obs, reward_t, terminated, truncated, info = result
                write(e, obs)
                reward_t = float(reward_t)
            except (TypeError, ValueError) as error:
                raise self._breach(e, explain_step(result, error)) from error
            lengths[e] += 1
            if not -MAX_FLOAT32 <= reward_t <= MAX_FLOAT32:
                broken_reward.append((e, reward_t))
            else:
                rewards[e, 0] = reward_t
                returns[e] += reward_t
            if terminated:
                terminated_flags[e, 0] = True
                ended.append((e, info))
            elif truncated:
                truncated_flags[e, 0] = True
                ended.append((e, info))
            elif self._lives is not None and self._loses_life(e, info):
                lost_life.append(e)
            e += 1

        if self._clip_rewards:
            np.sign(rewards, out=rewards)
        if self._cut_at:
            self._cut_first_episodes(ended, failed)
        bad = self._find_nonfinite()
        if not (ended or failed or broken_reward or bad or lost_life):
            return self._answer(0, [], [])
        for e, value in broken_reward:
            bad.setdefault(e, f"reward became {value}")
        return self._finish_episodes(ended, failed, bad, lost_life)

    def close(self) -> None:
        """Close every environment; errors while closing are logged."""
        envs, self._envs = self._envs, []
        self._step_calls = []
        self._is_started = False
        for env in envs:
            close_env(env, self._env_id)

    # ------------------------------------------------------------------------------------------------ episode ends

    def _cut_first_episodes(self, ended: list[tuple[int, Any]], failed: list[tuple[int, BaseException]]) -> None:
        """Truncate those that have reached their length, and forget those that ended before."""
        over = {e for e, _ in (*ended, *failed)}
        for e in [e for e, length in self._cut_at.items() if e in over or self._lengths[e] >= length]:
            del self._cut_at[e]
            if e not in over:
                self._truncated[e, 0] = True
                ended.append((e, {}))
        ended.sort(key=lambda item: item[0])

    def _loses_life(self, e: int, info: Mapping[str, Any]) -> bool:
        assert self._lives is not None
        before, self._lives[e] = self._lives[e], lives_in(info, self._env_id, e)
        return 0 < self._lives[e] < before  # some games show no lives for a while before they end

    def _finish_episodes(
        self,
        ended: list[tuple[int, Any]],
        failed: list[tuple[int, BaseException]],
        bad: dict[int, str],
        lost_life: list[int],
    ) -> BlockStep:
        episodes: list[EpisodeRecord] = []
        final_lanes: list[int] = []

        def keep_final(e: int) -> None:
            for name, rows in self._rows.items():
                self._final[name][len(final_lanes)] = rows[e]
            final_lanes.append(e)

        over = {e for e, _ in ended}
        for e in lost_life:
            if e not in bad and e not in over:  # truncated by `stagger_steps` all the same
                keep_final(e)
                self._terminated[e] = self._on_reset[e] = True
        for e, info in ended:
            if e in bad:
                continue
            keep_final(e)
            episodes.append(self._record(e, info))
            self._faults.finished(e)
            self._begin_episode(e, None, episodes)
        for e, text in bad.items():
            self._cut(e)
            self._count_nonfinite(e, text, episodes)
            self._begin_episode(e, None, episodes)
        for e, error in failed:
            self._cut(e)
            self._begin_episode(e, self._rebuild(e, error, episodes), episodes)
        return self._answer(len(final_lanes), final_lanes, episodes)

    def _cut(self, e: int) -> None:
        self._reward[e] = 0
        self._terminated[e] = False
        self._truncated[e] = True

    def _begin_episode(self, e: int, seed: int | None, episodes: list[EpisodeRecord]) -> None:
        """Reset environment e until that works, within its budget of faults; its first observation is then written."""
        while True:
            try:
                self._reset_env(e, seed)
            except EnvironmentFault:
                raise
            except _NonFinite as error:
                self._count_nonfinite(e, str(error), episodes)
                seed = None
            except Exception as error:
                seed = self._rebuild(e, error, episodes)
            else:
                return

    def _reset_env(self, e: int, seed: int | None) -> None:
        self._returns[e] = 0.0
        self._lengths[e] = 0
        before = time.perf_counter()
        try:
            result = self._envs[e].reset() if seed is None else self._envs[e].reset(seed=seed)
        except ContractBreach as error:
            raise self._breach(e, error) from error
        except TypeError as error:
            if seed is not None and "seed" in str(error):
                text = f"reset(seed=...): expected the keyword argument `seed`, found {error}"
                raise self._breach(e, ContractBreach(text)) from error
            raise
        check_time("reset", time.perf_counter() - before, self._step_timeout_s)
        try:
            obs, info = split_reset(result)
            self._write(e, obs)
        except ContractBreach as error:
            raise self._breach(e, error) from error
        self._on_reset[e] = True
        if self._lives is not None:
            self._lives[e] = lives_in(info, self._env_id, e)
        for name in self._obs.float_fields:
            row = self._rows[name][e]
            if not np.isfinite(row).all():
                raise _NonFinite(describe_nonfinite(name, row))

    def _count_nonfinite(self, e: int, text: str, episodes: list[EpisodeRecord]) -> None:
        self._faults.add_nonfinite(e, text, self._lengths[e])
        self._discard(e, episodes)

    def _rebuild(self, e: int, error: BaseException, episodes: list[EpisodeRecord]) -> int:
        """Count the fault and replace environment e; returns the seed for its first reset."""
        while True:
            self._faults.add_error([e], error)
            self._discard(e, episodes)
            self._rebuilds[e] += 1
            close_env(self._envs[e], self._env_id)
            try:
                self._envs[e] = self._build(e)
            except EnvironmentFault as fault:
                error = fault.__cause__ or fault
            else:
                self._step_calls[e] = self._envs[e].step
                return env_seed(self._seed, e, self._rebuilds[e])

    def _discard(self, e: int, episodes: list[EpisodeRecord]) -> None:
        episodes.append(self._record(e, {}, discarded=True))
        self._returns[e] = 0.0
        self._lengths[e] = 0

    def _record(self, e: int, info: Any, discarded: bool = False) -> EpisodeRecord:
        return EpisodeRecord(
            env_index=e,
            length=self._lengths[e],
            returns={AGENT_ID: self._returns[e]},
            lengths={AGENT_ID: self._lengths[e]},
            summary=episode_summary(info),
            discarded=discarded,
        )

    # ----------------------------------------------------------------------------------------------------- helpers

    def _answer(self, num_final: int, final_lanes: list[int], episodes: list[EpisodeRecord]) -> BlockStep:
        if self._mask_check is not None:
            self._mask_check.look_at_masks(self._always_present[:, 0], self._lengths)
        return BlockStep(
            obs=self._obs_buffers,
            present=self._always_present,
            on_reset=self._on_reset,
            reward=self._reward,
            terminated=self._terminated,
            truncated=self._truncated,
            final_lanes=np.array(final_lanes, np.int64),
            final_obs={name: rows[:num_final] for name, rows in self._final.items()},
            episodes=episodes,
        )

    def _find_nonfinite(self) -> dict[int, str]:
        """Environments with a NaN or infinite observation → what was found."""
        bad: dict[int, str] = {}
        for name, (rows, finite) in zip(self._obs.float_fields, self._finite_checks, strict=True):
            if not np.isfinite(rows, out=finite).all():
                for e in np.flatnonzero(~finite.reshape(len(rows), -1).all(axis=1)).tolist():
                    bad.setdefault(e, describe_nonfinite(name, rows[e]))
        return bad

    def _build(self, e: int) -> Env:
        return build_env(lambda: prepare_env(self._make_env()), self._env_id, e)

    def _breach(self, e: int, error: BaseException) -> EnvironmentFault:
        return EnvironmentFault(self._env_id, str(error), env_index=e)


class _NonFinite(Exception):
    """A first observation holds NaN or infinity."""


# ------------------------------------------------------------------------------ shared with the vector block and checks


def env_seed(seed: int, e: int, rebuild: int = 0) -> int:
    """Seed of environment e of a block: distinct per (seed, e, rebuild), below 2^31 as some simulators need."""
    entropy = [seed, e] if rebuild == 0 else [seed, e, rebuild]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0] & 0x7FFFFFFF)


def prepare_env(env: Any) -> Env:
    """Check that it is a gymnasium environment; wrap it when it declares an action mask in `info`."""
    if not hasattr(env, "observation_space") or not hasattr(env, "action_space"):
        raise TypeError(f"expected a gymnasium.Env with observation_space and action_space, found {type(env).__name__}")
    if (getattr(env, "metadata", None) or {}).get(ACTION_MASK) == "info":
        return MaskFromInfo(env)
    return env  # type: ignore[no-any-return]


def split_reset(result: Any) -> tuple[Any, Mapping[str, Any]]:
    """Observation and info of a `reset`; a ContractBreach for anything but the pair."""
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], Mapping):
        found = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"{type(result).__name__} alone"
        raise ContractBreach(f"reset: expected the pair (observation, info dict), found {found}")
    return result[0], result[1]


def lives_in(info: Mapping[str, Any], env_id: str, e: int | None = None) -> Any:
    """`info["lives"]`: of environment e, or an array [E] of all."""
    if "lives" not in info:
        raise EnvironmentFault(
            env_id, f"env.episodic_life=true needs info['lives'], found {sorted(map(str, info))}", env_index=e
        )
    return info["lives"]


def frame_skip_of(env: Any) -> int:
    """Simulator frames per step, where the environment or a wrapper says it (`frame_skip`, `_frameskip`); else 1."""
    look_up = getattr(env, "get_wrapper_attr", lambda name: getattr(env, name))
    for name in ("frame_skip", "_frameskip"):
        try:
            value = look_up(name)
        except AttributeError:
            continue
        if isinstance(value, int | np.integer) and value > 1:
            return int(value)
    return 1


def episode_summary(info: Any) -> dict[str, float]:
    """The environment's own numbers about an episode: the dict `info["summary"]`, and `is_success` or `success`."""
    if not isinstance(info, Mapping):
        return {}
    summary: dict[str, float] = {}
    own = info.get("summary")
    if isinstance(own, Mapping):
        summary.update({str(key): float(value) for key, value in own.items()})
    for key in ("is_success", "success"):
        if key in info and np.ndim(info[key]) == 0:
            summary[key] = float(info[key])
    return summary


def describe_nonfinite(name: str, row: np.ndarray) -> str:
    """Which number of an observation is NaN or infinite, in words."""
    flat = row.reshape(-1)
    index = int(np.flatnonzero(~np.isfinite(flat))[0])
    return f"observation field {name!r} became {flat[index]} (element {index})"


class MaskCheck:
    """Looks that every environment that is asked has a legal action, and that the policy chose one.

    Args:
        mask: The block's buffer bool [E, sum(nvec)], rewritten at every step.
        nvec: Choices per component.
        env_id: Name for messages.
    """

    def __init__(self, mask: np.ndarray, nvec: tuple[int, ...], env_id: str) -> None:
        self._mask = mask
        self._nvec = nvec
        self._begins = np.concatenate([[0], np.cumsum(nvec)[:-1]])
        self._env_id = env_id

    @classmethod
    def make(cls, rows: Arrays, action: Any, env_id: str) -> MaskCheck | None:
        """None without an action mask."""
        if ACTION_MASK not in rows or not isinstance(action, DiscreteActions):
            return None
        return cls(rows[ACTION_MASK], action.nvec, env_id)

    def look_at_masks(self, present: np.ndarray, lengths: Any) -> None:
        """Raises EnvironmentFault if a present [E] environment has a component without a legal choice."""
        is_legal = np.logical_or.reduceat(self._mask, self._begins, axis=1).all(axis=1)
        stuck = np.flatnonzero(present & ~is_legal)
        if len(stuck):
            e = int(stuck[0])
            raise EnvironmentFault(
                self._env_id,
                f"{AGENT_ID!r} has no legal action at step {int(lengths[e])} of the episode: {ACTION_MASK!r} is "
                f"{self._mask[e].astype(int).tolist()} (components of {list(self._nvec)})",
                env_index=e,
            )

    def look_at_actions(self, present: np.ndarray, actions: np.ndarray, lengths: Any) -> None:
        """Raises EnvironmentFault if actions [E, k] of present environments are illegal: then nothing is sent."""
        columns = np.clip(actions, 0, np.asarray(self._nvec) - 1) + self._begins
        wrong = np.flatnonzero(present & ~np.take_along_axis(self._mask, columns, axis=1).all(axis=1))
        if len(wrong):
            e = int(wrong[0])
            raise EnvironmentFault(
                self._env_id,
                f"the policy chose the illegal action {actions[e].tolist()} for {AGENT_ID!r} at step {int(lengths[e])} "
                f"of the episode: {ACTION_MASK!r} is {self._mask[e].astype(int).tolist()}",
                env_index=e,
            )


def explain_step(result: Any, error: BaseException | None) -> ContractBreach:
    """Why the answer of `step` could not be read."""
    if isinstance(error, ContractBreach):
        return error
    if not isinstance(result, tuple) or len(result) != 5:
        found = f"{len(result)} values" if isinstance(result, tuple | list) else type(result).__name__
        hint = " (the API of gym before 0.26)" if isinstance(result, tuple | list) and len(result) == 4 else ""
        return ContractBreach(
            f"step: expected the five values (observation, reward, terminated, truncated, info), found {found}{hint}"
        )
    return ContractBreach(f"reward: expected a number, found {result[1]!r} ({error})")
