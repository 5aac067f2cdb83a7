"""Step one block with one policy, or one per team: what evaluation, videos and lessons have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import torch

from srl_ray.core.errors import ConfigError
from srl_ray.core.seeding import derive_seed
from srl_ray.core.types import EpisodeRecord
from srl_ray.envs.block import BlockStep, EnvBlock
from srl_ray.models.policy import Policy


class BlockPlayer:
    """Asks the policy about every lane that has an observation, batched over the block, and steps.

    Lanes keep their recurrent state while they are absent; where an episode begins, the policy itself puts the initial
    state in its place. The policy is put into evaluation mode. One thread.

    Args:
        policy: Lives on the CPU. Team → policy lets teams of different weights meet (cross-play).
        block: Not reset yet; the caller closes it.
        deterministic: The most likely action in place of a sample.
        seed: Of the environments and of the sampling noise.

    Attributes:
        env_steps: Environment steps so far.
        agent_steps: Actions so far.

    Raises:
        ConfigError: the teams of `policy` are not those of the block.

    Example:
        player = BlockPlayer(policy, make_block(config, 8), deterministic=True, seed=1)
        player.reset()
        while not player.step().episodes: ...
    """

    def __init__(
        self, policy: Policy | Mapping[str, Policy], block: EnvBlock, *, deterministic: bool, seed: int
    ) -> None:
        self.block = block
        self.deterministic = deterministic
        self.seed = seed
        self.env_steps = 0
        self.agent_steps = 0
        spec = block.spec
        self._shape = (spec.num_envs, spec.group.num_agents)
        self._seats = _seats(policy, block)
        self._actions = spec.group.action.field.zeros(spec.num_lanes)
        self._generator = torch.Generator().manual_seed(derive_seed(seed, "evaluation", "noise"))
        self._digest = hashlib.blake2b(digest_size=8)
        self._last: BlockStep | None = None

    def reset(self) -> BlockStep:
        """Start every environment afresh."""
        self._last = self.block.reset(derive_seed(self.seed, "evaluation", "env"))
        return self._last

    def step(self) -> BlockStep:
        """Act on the last answer, then step every environment once. Arrays are valid until the next call."""
        assert self._last is not None, "reset comes before step"
        self._act(self._last)
        self._last = self.block.step(self._actions.reshape(*self._shape, -1))
        self.env_steps += self._shape[0]
        return self._last

    @property
    def actions_hash(self) -> str:
        """Of all actions so far, with the lanes they belong to: equal for equal play."""
        return self._digest.hexdigest()

    def _act(self, step: BlockStep) -> None:
        for seat in self._seats:
            lanes = np.flatnonzero(step.present.reshape(-1) & seat.is_mine)
            if len(lanes):
                self._actions[lanes] = seat.act(step, lanes, self.deterministic, self._generator)
                self.agent_steps += len(lanes)
                self._digest.update(lanes.astype("<i8").tobytes())
                self._digest.update(np.ascontiguousarray(self._actions[lanes]).tobytes())


class _Seat:
    """A policy with the lanes it plays and their recurrent state.

    Args:
        policy: Put into evaluation mode.
        is_mine: bool [L].
    """

    def __init__(self, policy: Policy, is_mine: np.ndarray) -> None:
        self.policy = policy
        self.is_mine = is_mine
        self._state = policy.initial_state(len(is_mine)).detach().cpu().numpy().copy()
        if isinstance(policy, torch.nn.Module):
            policy.eval()

    def act(self, step: BlockStep, lanes: np.ndarray, deterministic: bool, generator: torch.Generator) -> np.ndarray:
        """Actions [n, k] for lanes [n]."""
        obs = {
            name: torch.from_numpy(field.reshape(len(self.is_mine), *field.shape[2:])[lanes])
            for name, field in step.obs.items()
        }
        with torch.inference_mode():
            result = self.policy.act(
                obs,
                torch.from_numpy(self._state[lanes]),
                torch.from_numpy(step.on_reset.reshape(-1)[lanes]),
                torch.full((len(lanes),), deterministic),
                generator,
            )
        self._state[lanes] = result.state.cpu().numpy()
        return result.action.cpu().numpy()


def _seats(policy: Policy | Mapping[str, Policy], block: EnvBlock) -> list[_Seat]:
    group, num_envs = block.spec.group, block.spec.num_envs
    if not isinstance(policy, Mapping):
        return [_Seat(policy, np.ones(block.spec.num_lanes, bool))]
    team_of_slot = [group.team_of(slot) for slot in range(group.num_agents)]
    if set(policy) != set(team_of_slot):
        raise ConfigError(f"policies are given for {sorted(policy)}, the teams are {sorted(set(team_of_slot))}.")
    is_of_team = {team: np.array([name == team for name in team_of_slot]) for team in sorted(policy)}
    return [_Seat(policy[team], np.tile(is_of_team[team], num_envs)) for team in is_of_team]


class EpisodeQuota:
    """Which finished episodes count: the first ones of every environment, equally many from each.

    Counting the first N that finish anywhere would favour short episodes, which finish first.
    """

    def __init__(self, episodes: int, num_envs: int) -> None:
        self.counted: list[EpisodeRecord] = []
        self.discarded = 0
        self._left = [episodes // num_envs + (env < episodes % num_envs) for env in range(num_envs)]

    def add(self, record: EpisodeRecord) -> bool:
        """Count an episode if its environment still owes one; broken episodes are replaced by later ones."""
        if not self._left[record.env_index]:
            return False
        if record.discarded:
            self.discarded += 1
            return False
        self._left[record.env_index] -= 1
        self.counted.append(record)
        return True

    @property
    def is_met(self) -> bool:
        return not any(self._left)
