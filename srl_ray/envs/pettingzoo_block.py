"""PettingZoo environments, parallel and turn-based: agents that come, go, end at different times and take turns."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from srl_ray.core.errors import ConfigError, EnvironmentFault
from srl_ray.core.types import AgentGroup, BlockSpec, EpisodeRecord
from srl_ray.envs.block import BlockStep
from srl_ray.envs.faults import Faults, build_env, check_time, close_env
from srl_ray.envs.gymnasium_block import (
    MAX_FLOAT32,
    describe_nonfinite,
    env_seed,
    episode_summary,
    split_reset,
)
from srl_ray.envs.spaces import ActionAdapter, ContractBreach, ObservationAdapter
from srl_ray.envs.turns import TurnsAsSteps

Inspect = Callable[[Any, Any, str], None]
"""(observation, space, field) → raises ContractBreach."""


def is_pettingzoo(made: Any) -> bool:
    """Whether it has agents as PettingZoo's parallel or AEC environments do."""
    return hasattr(made, "possible_agents") and hasattr(made, "observation_space") and hasattr(made, "step")


class PettingZooBlock:
    """E environments of several agents, stepped one after the other; each is reset in the step that ends its episode.

    A slot per possible agent. An agent has an observation (`present`) when the environment shows it one: an agent that
    joins later begins its episode then, one that has ended stays away until the environment's next episode, or until it
    is shown an observation again, and in a turn-based environment only the agent on turn is there. Rewards count for
    agents without an observation too.

    Faults are those of `GymBlock`: they cost the whole environment its episode, and its siblings nothing.

    Args:
        make_env: Builds one environment, parallel or AEC; called E times, and again for every rebuild.
        num_envs: E.
        env_id: Name for messages.
        step_timeout_s, on_error, on_nonfinite, max_faults: See `EnvConfig`.
        first_env: An environment that is already built and not reset yet, taken as the first one.
        inspect: Looks at every observation; for a contract check.

    Raises:
        ConfigError: it does not say which agents are possible, their spaces differ or are not supported.
        EnvironmentFault: an environment cannot be built, breaks its contract, or fails too often.

    Lifecycle: build, `reset(seed)`, `step(actions)` for ever, `close()`; all in one thread.
    """

    def __init__(
        self,
        make_env: Callable[[], Any],
        num_envs: int,
        *,
        env_id: str,
        step_timeout_s: float = 60.0,
        on_error: str = "restart",
        on_nonfinite: str = "stop",
        max_faults: int = 5,
        first_env: Any = None,
        inspect: Inspect | None = None,
    ) -> None:
        self._make_env = make_env
        self._env_id = env_id
        self._step_timeout_s = step_timeout_s
        self._inspect = inspect
        self._faults = Faults(env_id, num_envs, on_error=on_error, on_nonfinite=on_nonfinite, max_faults=max_faults)
        self._envs: list[Any] = []
        try:
            for e in range(num_envs):
                self._envs.append(as_steps(first_env) if e == 0 and first_env is not None else self._build(e))
            self._agents = possible_agents(self._envs[0], env_id)
            self._observation_space, action_space = common_spaces(self._envs[0], self._agents, env_id)
        except BaseException:
            self.close()
            raise
        self._slots = {agent: slot for slot, agent in enumerate(self._agents)}
        self._actions = ActionAdapter(action_space, env_id)
        self._obs = ObservationAdapter(self._observation_space, self._actions.spec, env_id)
        teams = tuple(team_of(agent) for agent in self._agents)
        group = AgentGroup("agents", self._agents, self._obs.fields, self._actions.spec, teams)
        self.spec = BlockSpec(env_id=env_id, num_envs=num_envs, group=group)

        shape = (num_envs, len(self._agents))
        self._rows = self._obs.allocate(*shape)
        self._write = self._obs.writer({name: x.reshape(-1, *x.shape[2:]) for name, x in self._rows.items()})
        self._final = self._obs.allocate(shape[0] * shape[1])
        self._write_final = self._obs.writer(self._final)
        self._present, self._on_reset, self._terminated, self._truncated = np.zeros((4, *shape), np.bool_)
        self._reward = np.zeros(shape, np.float32)
        self._running = np.zeros(shape, np.bool_)  # the lane's episode has begun and not ended
        self._returns = np.zeros(shape, np.float64)
        self._num_actions = np.zeros(shape, np.int64)
        self._took_part = np.zeros(shape, np.bool_)
        self._lengths = [0] * num_envs
        self._rebuilds = [0] * num_envs
        self._seed = 0
        self._is_started = False
        self._final_lanes: list[int] = []
        self._episodes: list[EpisodeRecord] = []

    @property
    def num_faults(self) -> int:
        """Faults of all environments since the block was built."""
        return self._faults.total

    # ------------------------------------------------------------------------------------------------ the contract

    def reset(self, seed: int) -> BlockStep:
        """Reset every environment with a seed of its own."""
        self._seed, self._is_started = seed, True
        self._clear()
        self._present[...] = self._running[...] = False
        for e in range(self.spec.num_envs):
            self._begin_episode(e, env_seed(seed, e))
        return self._answer()

    def step(self, actions: np.ndarray) -> BlockStep:
        """Step every environment with the actions of the agents that were asked."""
        if not self._is_started:
            raise RuntimeError("PettingZooBlock.step was called before reset")
        asked = self._present.copy()
        flat = actions.reshape(self.spec.num_lanes, -1)
        decoded = self._actions.decode(np.where(asked.reshape(-1, 1), flat, 0).astype(flat.dtype, copy=False))
        self._num_actions += asked
        self._clear()
        self._present[...] = False
        for e in range(self.spec.num_envs):
            lane = e * len(self._agents)
            chosen = {self._agents[slot]: decoded[lane + slot] for slot in np.flatnonzero(asked[e]).tolist()}
            self._step_env(e, chosen)
        return self._answer()

    def close(self) -> None:
        """Close every environment; errors while closing are logged."""
        envs, self._envs = self._envs, []
        self._is_started = False
        for env in envs:
            close_env(env, self._env_id)

    # -------------------------------------------------------------------------------------------- one environment

    def _step_env(self, e: int, actions: dict[str, Any]) -> None:
        env = self._envs[e]
        before = time.perf_counter()
        try:
            result = env.step(actions)
            check_time("step", time.perf_counter() - before, self._step_timeout_s)
        except ContractBreach as error:
            raise self._breach(e, error) from error
        except Exception as error:
            self._discard(e)
            self._begin_episode(e, self._rebuild(e, error))
            return
        self._lengths[e] += 1
        try:
            bad = self._digest(e, result)
        except ContractBreach as error:
            raise self._breach(e, error) from error
        if bad is not None:
            self._discard(e)
            self._faults.add_nonfinite(e, bad, self._lengths[e])
            self._begin_episode(e, None)
        elif not env.agents:
            self._finish(e, result[4])
            self._begin_episode(e, None)

    def _digest(self, e: int, result: Any) -> str | None:
        """Write an answer down; returns what was not finite."""
        if not isinstance(result, tuple) or len(result) != 5 or not all(isinstance(part, Mapping) for part in result):
            raise ContractBreach(
                "step: expected five dicts (observations, rewards, terminations, truncations, infos), found "
                + (f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__)
            )
        observations, rewards, terminations, truncations, _ = result
        for agent, reward in rewards.items():
            slot = self._slot(agent, "reward")
            value = _number(reward, agent)
            if not -MAX_FLOAT32 <= value <= MAX_FLOAT32:
                return f"the reward of {agent!r} became {value}"
            self._reward[e, slot] += value
            self._returns[e, slot] += value
        for agent, obs in observations.items():
            slot = self._slot(agent, "observation")
            is_over = bool(terminations.get(agent, False) or truncations.get(agent, False))
            if is_over and not self._running[e, slot]:
                continue  # it ended before
            bad = self._take(e, slot, obs, is_final=is_over)
            if bad is not None:
                return bad
        for agent in [*terminations, *truncations]:
            slot = self._slot(agent, "flag")
            terminated = bool(terminations.get(agent, False))
            if self._running[e, slot] and (terminated or truncations.get(agent, False)):
                self._terminated[e, slot], self._truncated[e, slot] = terminated, not terminated
                self._running[e, slot] = False
        gone = set(self._agents[slot] for slot in np.flatnonzero(self._running[e])) - set(self._envs[e].agents)
        if gone:
            raise ContractBreach(
                f"agents {sorted(gone)} left `agents` without a termination or a truncation; flag them in the step in "
                "which they end"
            )
        return None

    def _take(self, e: int, slot: int, obs: Any, *, is_final: bool) -> str | None:
        """Write an agent's observation, into its row or as its last one; returns what was not finite."""
        agent = self._agents[slot]
        lane = e * len(self._agents) + slot
        try:
            if self._inspect is not None:
                self._inspect(obs, self._observation_space, "")
            if is_final:
                index, rows = len(self._final_lanes), self._final
                self._write_final(index, obs)
                self._final_lanes.append(lane)
            else:
                self._write(lane, obs)
        except ContractBreach as error:
            raise ContractBreach(f"agent {agent!r}: {error}") from error
        for name in self._obs.float_fields:
            row = rows[name][index] if is_final else self._rows[name][e, slot]
            if not np.isfinite(row).all():
                return f"{describe_nonfinite(name, row)} of agent {agent!r}"
        if not is_final:
            self._present[e, slot] = True
            self._on_reset[e, slot] = not self._running[e, slot]
            self._running[e, slot] = self._took_part[e, slot] = True
        return None

    def _begin_episode(self, e: int, seed: int | None) -> None:
        """Reset environment e until that works, within its budget of faults."""
        while True:
            self._lengths[e] = 0
            for numbers in (self._returns, self._num_actions, self._took_part, self._running):
                numbers[e] = 0
            before = time.perf_counter()
            try:
                observations, _ = split_reset(self._envs[e].reset(seed=seed))
                check_time("reset", time.perf_counter() - before, self._step_timeout_s)
                if not isinstance(observations, Mapping):
                    raise ContractBreach(
                        f"reset: expected a dict of observations by agent, found {type(observations).__name__}"
                    )
                if not self._envs[e].agents:
                    raise ContractBreach("reset: expected agents, found none in `agents`")
                finds = [
                    self._take(e, self._slot(a, "observation"), obs, is_final=False) for a, obs in observations.items()
                ]
            except ContractBreach as error:
                raise self._breach(e, error) from error
            except TypeError as error:
                if "seed" in str(error):
                    text = f"reset(seed=...): expected the keyword argument `seed`, found {error}"
                    raise self._breach(e, ContractBreach(text)) from error
                seed = self._rebuild(e, error)
                continue
            except EnvironmentFault:
                raise
            except Exception as error:
                seed = self._rebuild(e, error)
                continue
            bad = next((found for found in finds if found is not None), None)
            if bad is None:
                return
            self._present[e] = False
            self._faults.add_nonfinite(e, bad, self._lengths[e])
            seed = None

    # ------------------------------------------------------------------------------------------- ends of episodes

    def _finish(self, e: int, infos: Mapping[str, Any]) -> None:
        summary: dict[str, float] = {}
        for info in infos.values():
            summary |= episode_summary(info)
        is_discarded = any(isinstance(info, Mapping) and info.get("discarded", False) for info in infos.values())
        self._record(e, summary, is_discarded)
        self._faults.finished(e)

    def _discard(self, e: int) -> None:
        """Every running lane of environment e is cut, without a last observation."""
        self._final_lanes = [lane for lane in self._final_lanes if lane < e * len(self._agents)]  # its own came last
        cut = self._running[e] | self._terminated[e] | self._truncated[e]
        self._terminated[e], self._truncated[e], self._reward[e] = False, cut, 0.0
        self._present[e] = self._on_reset[e] = self._running[e] = False
        self._record(e, {}, True)

    def _record(self, e: int, summary: dict[str, float], discarded: bool) -> None:
        slots = np.flatnonzero(self._took_part[e]).tolist()
        self._episodes.append(
            EpisodeRecord(
                env_index=e,
                length=self._lengths[e],
                returns={self._agents[slot]: float(self._returns[e, slot]) for slot in slots},
                lengths={self._agents[slot]: int(self._num_actions[e, slot]) for slot in slots},
                summary=summary,
                discarded=discarded,
            )
        )

    def _rebuild(self, e: int, error: BaseException) -> int:
        """Count the fault and replace environment e; returns the seed for its first reset."""
        while True:
            self._faults.add_error([e], error)
            self._rebuilds[e] += 1
            close_env(self._envs[e], self._env_id)
            try:
                self._envs[e] = self._build(e)
            except EnvironmentFault as fault:
                error = fault.__cause__ or fault
            else:
                return env_seed(self._seed, e, self._rebuilds[e])

    # ----------------------------------------------------------------------------------------------------- helpers

    def _clear(self) -> None:
        for array in (self._on_reset, self._terminated, self._truncated, self._reward):
            array[...] = 0
        self._final_lanes, self._episodes = [], []

    def _answer(self) -> BlockStep:
        return BlockStep(
            obs=self._rows,
            present=self._present,
            on_reset=self._on_reset,
            reward=self._reward,
            terminated=self._terminated,
            truncated=self._truncated,
            final_lanes=np.array(self._final_lanes, np.int64),
            final_obs={name: rows[: len(self._final_lanes)] for name, rows in self._final.items()},
            episodes=self._episodes,
        )

    def _slot(self, agent: str, what: str) -> int:
        try:
            return self._slots[agent]
        except KeyError:
            raise ContractBreach(
                f"{what} of {agent!r}, which is not in possible_agents {list(self._agents)}; declare every agent that "
                "may appear"
            ) from None

    def _build(self, e: int) -> Any:
        return build_env(lambda: as_steps(self._make_env()), self._env_id, e)

    def _breach(self, e: int, error: BaseException) -> EnvironmentFault:
        return EnvironmentFault(self._env_id, str(error), env_index=e)


def as_steps(env: Any) -> Any:
    """The environment with the parallel API."""
    return TurnsAsSteps(env) if hasattr(env, "agent_iter") and hasattr(env, "last") else env


def possible_agents(env: Any, env_id: str) -> tuple[str, ...]:
    """Ids of all agents that may ever appear.

    Raises:
        ConfigError: the environment does not say.
    """
    agents = tuple(getattr(env, "possible_agents", None) or ())
    if not agents:
        raise ConfigError(f"environment {env_id!r} has no possible_agents: list every agent that may appear.")
    return agents


def common_spaces(env: Any, agents: tuple[str, ...], env_id: str) -> tuple[Any, Any]:
    """The observation space and the action space that all agents share.

    Raises:
        ConfigError: they differ; says whose and how.
    """
    first = agents[0]
    shared = {"observation": env.observation_space(first), "action": env.action_space(first)}
    for agent in agents[1:]:
        for kind, space in (("observation", env.observation_space(agent)), ("action", env.action_space(agent))):
            if space != shared[kind]:
                raise ConfigError(
                    f"environment {env_id!r}: one policy is trained for all agents, but their {kind} spaces differ: "
                    f"{shared[kind]} of {first!r}, {space} of {agent!r}. Make them equal in a wrapper, for example "
                    "supersuit's pad_observations_v0 and pad_action_space_v0."
                )
    return shared["observation"], shared["action"]


def team_of(agent: str) -> str:
    """Name of an agent without its number: "adversary_0" → "adversary"."""
    return re.sub(r"[_\-]?\d+$", "", agent) or "agents"


def _number(reward: Any, agent: str) -> float:
    try:
        return float(reward)
    except (TypeError, ValueError) as error:
        raise ContractBreach(f"reward of {agent!r}: expected a number, found {reward!r}") from error
