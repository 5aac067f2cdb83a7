"""Small environments with known right answers and known defects, for tests of this project and of its users.

Everything here can be named by import path, for example `env.factory=srl_ray.envs.testing:MemoryCue`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from srl_ray.core.types import AgentGroup, BlockSpec, DiscreteActions, EpisodeRecord, FieldSpec
from srl_ray.envs.block import BlockStep

Step = tuple[Any, float, bool, bool, dict[str, Any]]
Reset = tuple[Any, dict[str, Any]]


# ----------------------------------------------------------------------------------------------- gymnasium environments


@dataclass(frozen=True)
class Episode:
    """Script of one episode: observations (one more than rewards), rewards, and how it ends."""

    obs: Sequence[float]
    rewards: Sequence[float]
    terminated: bool = True
    truncated: bool = False


class ScriptedEnv(gymnasium.Env[Any, Any]):
    """Plays given episodes one after the other, from the first again after the last. Raises when it is misused.

    Misuse: stepped after its end or before its first reset, reset in mid-episode, reset twice in a row.

    Args:
        episodes: The scripts, or one `[obs, rewards, terminated, truncated]` list each (from a config file).
        is_strict: Raise on misuse.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, episodes: Sequence[Episode | Sequence[Any]], is_strict: bool = True) -> None:
        self.episodes = [episode if isinstance(episode, Episode) else Episode(*episode) for episode in episodes]
        self.is_strict = is_strict
        self.num_resets = 0
        self.num_steps = 0
        self._t: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        if self.is_strict and self._t is not None:
            raise RuntimeError(f"reset at step {self._t} of a running episode")
        self._script = self.episodes[self.num_resets % len(self.episodes)]
        self.num_resets += 1
        self._t = 0
        return self._obs(), {}

    def step(self, action: Any) -> Step:
        if self._t is None:
            raise RuntimeError("stepped although the episode has ended")
        reward = self._script.rewards[self._t]
        self._t += 1
        self.num_steps += 1
        obs = self._obs()
        is_last = self._t == len(self._script.rewards)
        if is_last:
            self._t = None
        return obs, float(reward), is_last and self._script.terminated, is_last and self._script.truncated, {}

    def _obs(self) -> np.ndarray:
        assert self._t is not None
        return np.array([self._script.obs[self._t]], np.float32)


class CountingEnv(gymnasium.Env[Any, Any]):
    """Observes [step of the episode, episode number]; pays 1 per step; ends after `length` steps.

    Args:
        length: Steps per episode; a pair draws it anew for every episode, both ends included.
        truncates: End by truncation in place of termination.
        is_strict: Raise when reset in mid-episode or twice in a row.
    """

    observation_space = spaces.Box(0.0, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int | Sequence[int] = 5, truncates: bool = False, is_strict: bool = False) -> None:
        self._is_strict = is_strict
        self._bounds = (length, length) if isinstance(length, int) else (length[0], length[1])
        self._truncates = truncates
        self._t = 0
        self._episode = -1
        self._length = 0
        self._is_running = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        if self._is_strict and self._is_running:
            raise RuntimeError(f"reset at step {self._t} of a running episode")
        self._t = 0
        self._episode += 1
        self._length = int(self.np_random.integers(self._bounds[0], self._bounds[1] + 1))
        self._is_running = True
        return self._obs(), {}

    def step(self, action: Any) -> Step:
        if not self._is_running:
            raise RuntimeError("stepped although the episode has ended")
        self._t += 1
        ends = self._t == self._length
        self._is_running = not ends
        return self._obs(), 1.0, ends and not self._truncates, ends and self._truncates, {}

    def _obs(self) -> np.ndarray:
        return np.array([self._t, self._episode], np.float32)


class Catch(gymnasium.Env[Any, Any]):
    """A ball falls through a grid; the paddle in the last row moves left, stays or moves right. +1 caught, -1 missed.

    Args:
        rows: Height; an episode has rows - 1 steps.
        columns: Width.
        is_image: Observe uint8 [rows, columns, 1] with 255 for ball and paddle; else float32 [rows * columns], 0 or 1.
    """

    def __init__(self, rows: int = 6, columns: int = 5, is_image: bool = False) -> None:
        self._rows, self._columns, self._is_image = rows, columns, is_image
        self.observation_space = (
            spaces.Box(0, 255, (rows, columns, 1), np.uint8)
            if is_image
            else spaces.Box(0.0, 1.0, (rows * columns,), np.float32)
        )
        self.action_space = spaces.Discrete(3)
        self._ball_row = self._ball_column = self._paddle = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self._ball_row = 0
        self._ball_column = int(self.np_random.integers(self._columns))
        self._paddle = self._columns // 2
        return self._obs(), {}

    def step(self, action: Any) -> Step:
        self._paddle = min(max(self._paddle + int(action) - 1, 0), self._columns - 1)
        self._ball_row += 1
        ends = self._ball_row == self._rows - 1
        is_caught = ends and self._ball_column == self._paddle
        reward = (1.0 if is_caught else -1.0) if ends else 0.0
        return self._obs(), reward, ends, False, {"is_success": is_caught} if ends else {}

    def _obs(self) -> np.ndarray:
        board = np.zeros((self._rows, self._columns), np.uint8)
        board[self._ball_row, self._ball_column] = 1
        board[-1, self._paddle] = 1
        return board[..., None] * np.uint8(255) if self._is_image else board.reshape(-1).astype(np.float32)


class MemoryCue(gymnasium.Env[Any, Any]):
    """Shows one of `cues` symbols in the first observation; the action `delay` steps later must name it. Reward 1 or 0.

    Without memory the best mean return is 1 / cues; with memory it is 1.

    Observation: float32 [cues + 1]: one-hot of the cue (zeros after the first observation), then the time as a fraction
    of `delay`. Only the last action counts: an episode has delay + 1 steps.
    """

    def __init__(self, delay: int = 8, cues: int = 2) -> None:
        self._delay, self._cues = delay, cues
        self.observation_space = spaces.Box(0.0, 1.0, (cues + 1,), np.float32)
        self.action_space = spaces.Discrete(cues)
        self._cue = self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(self._cues))
        self._t = 0
        return self._obs(), {}

    def step(self, action: Any) -> Step:
        ends = self._t == self._delay
        is_right = ends and int(action) == self._cue
        self._t += 1
        return self._obs(), float(is_right), ends, False, {"is_success": is_right} if ends else {}

    def _obs(self) -> np.ndarray:
        obs = np.zeros(self._cues + 1, np.float32)
        if self._t == 0:
            obs[self._cue] = 1.0
        obs[-1] = min(self._t / max(self._delay, 1), 1.0)
        return obs


class MaskedEnv(gymnasium.Env[Any, Any]):
    """Half of the actions are legal, others at every step; raises on an illegal one. Pays 1 for the lowest legal one.

    Observation: {"obs": float32 [actions], the mask again; "action_mask": int8 [actions]}. Best return: `length`.
    """

    def __init__(self, actions: int = 4, length: int = 10) -> None:
        self._actions, self._length = actions, length
        self.action_space = spaces.Discrete(actions)
        self.observation_space = spaces.Dict(
            {"obs": spaces.Box(0.0, 1.0, (actions,), np.float32), "action_mask": spaces.MultiBinary(actions)}
        )
        self._mask = np.zeros(actions, np.int8)
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self._t = 0
        return self._obs(), {}

    def step(self, action: Any) -> Step:
        if not self._mask[action]:
            raise ValueError(f"illegal action {action}, legal are {np.flatnonzero(self._mask).tolist()}")
        reward = float(action == self._mask.argmax())
        self._t += 1
        return self._obs(), reward, self._t == self._length, False, {}

    def _obs(self) -> dict[str, np.ndarray]:
        self._mask = np.zeros(self._actions, np.int8)
        self._mask[self.np_random.permutation(self._actions)[: max(1, self._actions // 2)]] = 1
        return {"action_mask": self._mask, "obs": self._mask.astype(np.float32)}


# -------------------------------------------------------------------------------------------------- defects, on demand


class CrashingEnv(CountingEnv):
    """Raises ValueError("sim diverged") in some episodes.

    Args:
        probability: Chance per episode to raise at a random step of it.
        at_step: Raise at this step of every episode instead (0 = in reset).
        only_episode: With `at_step`, only in this episode of the instance.
        log_path: A file that gets one line "crash" per raise.
    """

    def __init__(
        self,
        probability: float = 0.0,
        at_step: int | None = None,
        only_episode: int | None = None,
        length: int | Sequence[int] = 10,
        log_path: str | None = None,
    ) -> None:
        super().__init__(length)
        self._probability, self._at_step, self._only_episode = probability, at_step, only_episode
        self._log_path = log_path
        self._crash_at: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        answer = super().reset(seed=seed, options=options)
        self._crash_at = None
        if self._at_step is not None:
            if self._only_episode is None or self._only_episode == self._episode:
                self._crash_at = self._at_step
        elif self.np_random.random() < self._probability:
            self._crash_at = int(self.np_random.integers(1, self._length + 1))
        self._maybe_crash(0)
        return answer

    def step(self, action: Any) -> Step:
        self._maybe_crash(self._t + 1)
        return super().step(action)

    def _maybe_crash(self, step: int) -> None:
        if step == self._crash_at:
            if self._log_path:
                with open(self._log_path, "a") as log:
                    log.write("crash\n")
            raise ValueError("sim diverged")


class UnbuildableEnv(CountingEnv):
    """Its constructor always raises RuntimeError("licence server not reachable")."""

    def __init__(self) -> None:
        raise RuntimeError("licence server not reachable")


class SlowEnv(CountingEnv):
    """Sleeps `step_s` in every step (in step `at_step` of an episode only, if given) and `reset_s` in every reset."""

    def __init__(
        self, step_s: float = 0.0, reset_s: float = 0.0, at_step: int | None = None, length: int | Sequence[int] = 10
    ) -> None:
        super().__init__(length)
        self._step_s, self._reset_s, self._at_step = step_s, reset_s, at_step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        time.sleep(self._reset_s)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Step:
        if self._at_step is None or self._at_step == self._t + 1:
            time.sleep(self._step_s)
        return super().step(action)


class NonFiniteEnv(CountingEnv):
    """Its observation or reward is `value` at step `at_step` of every `every`-th episode (0, every, 2 every, ...)."""

    def __init__(
        self,
        what: str = "obs",
        at_step: int = 3,
        every: int = 1,
        value: float = float("nan"),
        length: int | Sequence[int] = 5,
    ) -> None:
        super().__init__(length)
        self._what, self._at_step, self._every, self._value = what, at_step, every, value

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        obs, info = super().reset(seed=seed, options=options)
        return (np.full_like(obs, self._value) if self._is_due("obs") else obs), info

    def step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = super().step(action)
        if self._is_due("obs"):
            obs = np.full_like(obs, self._value)
        return obs, self._value if self._is_due("reward") else reward, terminated, truncated, info

    def _is_due(self, what: str) -> bool:
        return self._what == what and self._t == self._at_step and self._episode % self._every == 0


class BrokenContract(gymnasium.Env[Any, Any]):
    """One defect each, named by `defect`; see the class attribute `DEFECTS`."""

    DEFECTS = (
        "reset_without_info",
        "four_values",
        "reset_refuses_seed",
        "wrong_shape",
        "float64",
        "none_obs",
        "outside_space",
        "float_for_uint8",
        "nan_obs",
        "missing_key",
        "reward_none",
        "flag_is_float",
    )

    def __init__(self, defect: str) -> None:
        if defect not in self.DEFECTS:
            raise ValueError(f"defect must be one of {self.DEFECTS}, got {defect!r}")
        self.defect = defect
        self.observation_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (4,), np.float32)
        if defect == "float_for_uint8":
            self.observation_space = spaces.Box(0, 255, (4,), np.uint8)
        if defect == "missing_key":
            self.observation_space = spaces.Dict({"x": self.observation_space, "y": self.observation_space})
        self.action_space = spaces.Discrete(2)
        if defect == "reset_refuses_seed":
            self.reset = self._reset_without_seed  # type: ignore[method-assign,assignment]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._obs() if self.defect == "reset_without_info" else (self._obs(), {})

    def _reset_without_seed(self) -> Reset:
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        reward = None if self.defect == "reward_none" else 0.0
        if self.defect == "four_values":
            return self._obs(), reward, False, {}
        return self._obs(), reward, 0.5 if self.defect == "flag_is_float" else False, False, {}

    def _obs(self) -> Any:
        match self.defect:
            case "wrong_shape":
                return np.zeros(3, np.float32)
            case "float64" | "float_for_uint8":
                return np.full(4, 0.25)
            case "none_obs":
                return None
            case "outside_space":
                return np.full(4, 1.5, np.float32)
            case "nan_obs":
                return np.full(4, np.nan, np.float32)
            case "missing_key":
                return {"x": np.zeros(4, np.float32)}
        return np.zeros(4, np.float32)


class ProbeEnv(CountingEnv):
    """Writes one JSON line per construction, reset, step and close to `path`; many processes may share the file.

    Keys: event, pid, instance, seed, first_random (reset), obs, action, reward, CUDA_VISIBLE_DEVICES, OMP_NUM_THREADS
    (construction).
    """

    _count = 0

    def __init__(self, path: str, length: int | Sequence[int] = 5, is_strict: bool = True) -> None:
        super().__init__(length, is_strict=is_strict)
        self._path = Path(path)
        ProbeEnv._count += 1
        self._instance = ProbeEnv._count
        variables = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
        self._log("construct", **{name: os.environ.get(name) for name in variables})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        obs, info = super().reset(seed=seed, options=options)
        self._log("reset", seed=seed, first_random=float(self.np_random.random()), obs=obs.tolist())
        return obs, info

    def step(self, action: Any) -> Step:
        answer = super().step(action)
        self._log("step", action=np.asarray(action).tolist(), obs=answer[0].tolist(), reward=answer[1])
        return answer

    def close(self) -> None:
        self._log("close")

    def _log(self, event: str, **facts: Any) -> None:
        line = json.dumps({"event": event, "pid": os.getpid(), "instance": self._instance, **facts}) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


# ------------------------------------------------------------------------------------------------------------- a block


@dataclass(frozen=True)
class RaggedEpisode:
    """Who does what in one episode of a RaggedBlock.

    Attributes:
        asked: Per time step the slots that have an observation, beginning with the first observation. A slot is asked
            only until its end.
        ends: Slot → (time step in which its episode ends, "terminated" or "truncated"). Slots without an entry end with
            the episode, terminated.
        with_final_obs: Slots whose last observation is given.
    """

    asked: Sequence[Sequence[int]]
    ends: dict[int, tuple[int, str]]
    with_final_obs: Sequence[int] = ()


class RaggedBlock:
    """An EnvBlock whose agents come, pause and end at times that a script gives.

    Observation: float32 [3] = [environment, slot, time step of the episode]. Reward: 1 to every slot that was asked in
    the previous step, and `end_bonus` in the step in which the slot ends. The environment's episode ends when the
    script does; the next episode begins in the same step. The action of a lane that was asked must be in range; those
    of all others are never looked at.

    Args:
        episodes: Scripts, played in turn by every environment, environment e beginning with script e.
        num_envs: E.
        num_agents: A.
        end_bonus: Reward on top in a slot's last step.
    """

    def __init__(
        self,
        episodes: Sequence[RaggedEpisode],
        num_envs: int = 1,
        num_agents: int = 3,
        end_bonus: float = 0.0,
        num_actions: int = 2,
    ) -> None:
        self._episodes = list(episodes)
        self._end_bonus = end_bonus
        group = AgentGroup(
            name="agents",
            agent_ids=tuple(f"agent_{slot}" for slot in range(num_agents)),
            obs={"obs": FieldSpec((3,), np.dtype(np.float32))},
            action=DiscreteActions(nvec=(num_actions,), start=(0,)),
        )
        self.spec = BlockSpec(env_id="ragged", num_envs=num_envs, group=group)
        self._num_actions = num_actions
        self._script = [0] * num_envs
        self._t = [0] * num_envs
        self._present = np.zeros((num_envs, num_agents), np.bool_)
        self._alive = np.zeros((num_envs, num_agents), np.bool_)
        self._seen = np.zeros((num_envs, num_agents), np.bool_)
        self._returns = np.zeros((num_envs, num_agents))
        self._lengths = np.zeros((num_envs, num_agents), np.int64)
        self.received: list[np.ndarray] = []
        """Actions of every step, -1 where the lane was not asked."""

    def reset(self, seed: int) -> BlockStep:
        answer = self._blank()
        for e in range(self.spec.num_envs):
            self._script[e] = e
            self._begin(e, answer)
        return self._publish(answer)

    def step(self, actions: np.ndarray) -> BlockStep:
        chosen = np.where(self._present, actions[..., 0], -1)
        wrong = self._present & ((chosen < 0) | (chosen >= self._num_actions))
        if wrong.any():
            raise ValueError(f"action out of range at (environment, slot) {np.argwhere(wrong).tolist()}")
        self.received.append(chosen)
        answer = self._blank()
        for e in range(self.spec.num_envs):
            self._advance(e, answer)
        return self._publish(answer)

    def close(self) -> None:
        pass

    def _advance(self, e: int, answer: BlockStep) -> None:
        episode = self._episodes[self._script[e] % len(self._episodes)]
        acted = self._present[e].copy()
        self._lengths[e] += acted
        answer.reward[e] += acted
        self._t[e] += 1
        t = self._t[e]
        is_over = t >= len(episode.asked)
        for slot in np.flatnonzero(self._alive[e]).tolist():
            at, how = episode.ends.get(slot, (len(episode.asked), "terminated"))
            if t < at and not is_over:
                continue
            self._alive[e, slot] = False
            if not self._seen[e, slot]:
                continue
            answer.reward[e, slot] += self._end_bonus
            (answer.terminated if how == "terminated" else answer.truncated)[e, slot] = True
            if slot in episode.with_final_obs:
                lane = e * self.spec.group.num_agents + slot
                answer.final_lanes = np.append(answer.final_lanes, lane)
                answer.final_obs["obs"] = np.concatenate([answer.final_obs["obs"], self._obs(e, slot)[None]])
        self._returns[e] += answer.reward[e]
        if is_over:
            ids = self.spec.group.agent_ids
            took_part = np.flatnonzero(self._seen[e]).tolist()
            answer.episodes.append(
                EpisodeRecord(
                    env_index=e,
                    length=t,
                    returns={ids[slot]: float(self._returns[e, slot]) for slot in took_part},
                    lengths={ids[slot]: int(self._lengths[e, slot]) for slot in took_part},
                )
            )
            self._script[e] += 1
            self._begin(e, answer)
        else:
            self._ask(e, episode, answer)

    def _begin(self, e: int, answer: BlockStep) -> None:
        episode = self._episodes[self._script[e] % len(self._episodes)]
        self._t[e] = 0
        self._alive[e] = False
        self._alive[e, sorted({slot for asked in episode.asked for slot in asked})] = True
        self._seen[e] = False
        self._returns[e] = 0
        self._lengths[e] = 0
        self._ask(e, episode, answer)

    def _ask(self, e: int, episode: RaggedEpisode, answer: BlockStep) -> None:
        for slot in episode.asked[self._t[e]]:
            if self._alive[e, slot]:
                answer.present[e, slot] = True
                answer.on_reset[e, slot] = not self._seen[e, slot]
                answer.obs["obs"][e, slot] = self._obs(e, slot)
                self._seen[e, slot] = True

    def _obs(self, e: int, slot: int) -> np.ndarray:
        return np.array([e, slot, self._t[e]], np.float32)

    def _blank(self) -> BlockStep:
        shape = (self.spec.num_envs, self.spec.group.num_agents)
        return BlockStep(
            obs={"obs": np.zeros((*shape, 3), np.float32)},
            present=np.zeros(shape, np.bool_),
            on_reset=np.zeros(shape, np.bool_),
            reward=np.zeros(shape, np.float32),
            terminated=np.zeros(shape, np.bool_),
            truncated=np.zeros(shape, np.bool_),
            final_lanes=np.zeros(0, np.int64),
            final_obs={"obs": np.zeros((0, 3), np.float32)},
        )

    def _publish(self, answer: BlockStep) -> BlockStep:
        self._present = answer.present.copy()
        return answer


def agents_end_one_by_one() -> RaggedBlock:
    """Three agents that end at steps 1, 4 and 9 with 1 per own step and 5 at the end: returns 6, 9 and 14."""
    ends = {0: (1, "terminated"), 1: (4, "terminated"), 2: (9, "terminated")}
    asked = [[slot for slot in range(3) if t < ends[slot][0]] for t in range(9)]
    return RaggedBlock([RaggedEpisode(asked, ends)], num_agents=3, end_bonus=5.0)


def turn_based(num_agents: int = 4, length: int = 40) -> RaggedBlock:
    """Only agent t mod 4 is asked at step t, and nobody at every 10th step."""
    asked = [[] if t % 10 == 9 else [t % num_agents] for t in range(length)]
    return RaggedBlock([RaggedEpisode(asked, {})], num_agents=num_agents)


def changing_teams(num_envs: int = 1) -> RaggedBlock:
    """Episodes of 10 steps with 2, 3 and 4 of four agents; everyone present earns 10."""
    episodes = [RaggedEpisode([list(range(size))] * 10, {}) for size in (2, 3, 4)]
    return RaggedBlock(episodes, num_envs=num_envs, num_agents=4)
