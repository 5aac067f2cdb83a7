"""Evaluation: exact numbers of finished episodes, without Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from srl_ray.core.errors import EnvironmentFault
from srl_ray.core.types import AgentGroup, EpisodeRecord
from srl_ray.envs.block import EnvBlock
from srl_ray.envs.config import EnvConfig
from srl_ray.envs.factory import make_block
from srl_ray.evaluation.player import BlockPlayer, EpisodeQuota
from srl_ray.models.policy import Policy

MAX_ENVS = 16
"""Environments stepped together when nobody says how many."""


@dataclass(frozen=True)
class Spread:
    """Mean, standard deviation (of the population), extremes and count of some numbers."""

    mean: float
    std: float
    min: float
    max: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        array = np.asarray(values, np.float64)
        return cls(float(array.mean()), float(array.std()), float(array.min()), float(array.max()), len(array))


@dataclass(frozen=True)
class EvaluationResult:
    """What came of an evaluation.

    Attributes:
        env_id: Environment.
        episodes: The counted ones, in the order in which they finished.
        teams: Agent id → team.
        discarded: Episodes that the environment itself declared broken; others were played in their place.
        env_steps: Steps of all environments, those of episodes that were not counted included.
        agent_steps: Actions, likewise.
        seconds: Wall-clock.
        deterministic: Most likely actions or samples.
        seed: Of environments and noise.
        num_envs: Environments stepped together; part of what makes an evaluation repeatable.
        actions_hash: Equal for two evaluations that took the same actions.
    """

    env_id: str
    episodes: list[EpisodeRecord]
    teams: Mapping[str, str]
    discarded: int
    env_steps: int
    agent_steps: int
    seconds: float
    deterministic: bool
    seed: int
    num_envs: int
    actions_hash: str

    @property
    def returns(self) -> list[float]:
        """One number per episode: the mean of the returns of the agents that took part."""
        return [_mean(record.returns.values()) for record in self.episodes if record.returns]

    @property
    def return_mean(self) -> float:
        return _mean(self.returns)

    @property
    def length(self) -> Spread:
        return Spread.of([record.length for record in self.episodes])

    @property
    def agent_returns(self) -> dict[str, Spread]:
        """Agent → returns of the episodes in which it took part."""
        return _spreads(record.returns for record in self.episodes)

    @property
    def team_returns(self) -> dict[str, Spread]:
        """Team → mean return of its present agents, per episode."""
        return _spreads(_by_team(record.returns, self.teams) for record in self.episodes)

    @property
    def summary(self) -> dict[str, Spread]:
        """The environment's own numbers."""
        return _spreads(record.summary for record in self.episodes)

    def to_mapping(self) -> dict[str, Any]:
        """Everything, as plain numbers and text, for a JSON file."""
        return {
            "env_id": self.env_id,
            "num_episodes": len(self.episodes),
            "discarded_episodes": self.discarded,
            "deterministic": self.deterministic,
            "seed": self.seed,
            "num_envs": self.num_envs,
            "actions_hash": self.actions_hash,
            "env_steps": self.env_steps,
            "agent_steps": self.agent_steps,
            "seconds": round(self.seconds, 3),
            "return": vars(Spread.of(self.returns)) if self.returns else None,
            "length": vars(self.length),
            "team_returns": {team: vars(spread) for team, spread in self.team_returns.items()},
            "agent_returns": {agent: vars(spread) for agent, spread in self.agent_returns.items()},
            "summary": {name: vars(spread) for name, spread in self.summary.items()},
            "episodes": [
                {"length": record.length, "returns": record.returns, "summary": record.summary}
                for record in self.episodes
            ],
        }


def evaluate(
    policy: Policy | Mapping[str, Policy],
    config: EnvConfig,
    *,
    episodes: int = 20,
    deterministic: bool = True,
    seed: int = 1,
    num_envs: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> EvaluationResult:
    """Play until `episodes` episodes have finished that count.

    Every environment contributes its first episodes, equally many from each (one more from the first few where the
    number does not divide), so that short episodes are not preferred.

    Args:
        policy: On the CPU; put into evaluation mode. Team → policy lets different weights play each other.
        config: The environment section of the configuration.
        episodes: How many.
        deterministic: The most likely action in place of a sample.
        seed: The same seed and `num_envs` give the same actions.
        num_envs: Environments stepped together; None: as many as there are episodes, up to 16.
        on_progress: Called after every finished episode that counts with (finished, environment steps).

    Raises:
        ConfigError: there is no such environment.
        EnvironmentFault: it broke its contract, or nearly every episode had to be discarded.
        ValueError: episodes or num_envs is below 1.
    """
    if episodes < 1 or (num_envs is not None and num_envs < 1):
        raise ValueError(f"episodes and num_envs must be >= 1, got {episodes} and {num_envs}")
    block = make_block(config, min(episodes, num_envs or MAX_ENVS))
    try:
        return evaluate_block(
            policy, block, episodes=episodes, deterministic=deterministic, seed=seed, on_progress=on_progress
        )
    finally:
        block.close()


def evaluate_block(
    policy: Policy | Mapping[str, Policy],
    block: EnvBlock,
    *,
    episodes: int,
    deterministic: bool = True,
    seed: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
) -> EvaluationResult:
    """Like `evaluate`, on a block that the caller made and closes."""
    begin = perf_counter()
    spec = block.spec
    player = BlockPlayer(policy, block, deterministic=deterministic, seed=seed)
    quota = EpisodeQuota(episodes, spec.num_envs)
    records = player.reset().episodes
    while True:
        for record in records:
            if quota.add(record) and on_progress is not None:
                on_progress(len(quota.counted), player.env_steps)
        if quota.is_met:
            break
        if quota.discarded > 100 + 10 * episodes:
            raise EnvironmentFault(
                spec.env_id, f"{quota.discarded} episodes were discarded, {len(quota.counted)} finished; giving up"
            )
        records = player.step().episodes
    return EvaluationResult(
        env_id=spec.env_id,
        episodes=quota.counted,
        teams=team_of_agent(spec.group),
        discarded=quota.discarded,
        env_steps=player.env_steps,
        agent_steps=player.agent_steps,
        seconds=perf_counter() - begin,
        deterministic=deterministic,
        seed=seed,
        num_envs=spec.num_envs,
        actions_hash=player.actions_hash,
    )


def team_of_agent(group: AgentGroup) -> dict[str, str]:
    """Agent id → team."""
    return {agent: group.team_of(slot) for slot, agent in enumerate(group.agent_ids)}


def _by_team(returns: Mapping[str, float], teams: Mapping[str, str]) -> dict[str, float]:
    members: dict[str, list[float]] = {}
    for agent, value in returns.items():
        members.setdefault(teams[agent], []).append(value)
    return {team: _mean(values) for team, values in members.items()}


def _spreads(records: Any) -> dict[str, Spread]:
    values: dict[str, list[float]] = {}
    for record in records:
        for name, value in record.items():
            values.setdefault(name, []).append(value)
    return {name: Spread.of(numbers) for name, numbers in values.items()}


def _mean(values: Any) -> float:
    numbers = list(values)
    return float(np.mean(numbers)) if numbers else float("nan")
