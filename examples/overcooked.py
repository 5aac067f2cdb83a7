"""Two cooks in Overcooked (Carroll et al. 2019) as an EnvBlock: many kitchens, two agents each, one shared policy.

    pip install 'srl_ray[overcooked]'
    python -m srl_ray.train --config-dir examples/conf experiment=overcooked

Run it in the repository's root, so that `examples.overcooked` can be imported.
"""

from __future__ import annotations

import numpy as np

from srl_ray.core.types import AgentGroup, BlockSpec, DiscreteActions, EpisodeRecord, FieldSpec
from srl_ray.envs.block import BlockStep

COOKS = ("cook_0", "cook_1")


class OvercookedBlock:
    """E kitchens. Each cook sees all layers of the kitchen from its own side, flattened.

    Args:
        num_envs: E.
        layout: Name of a kitchen, for example cramped_room, coordination_ring, asymmetric_advantages.
        horizon: Steps after which a shift is truncated.
        shaping: Weight of the rewards for onions, plates and soups on the way to a delivery (20 for both cooks).
            Reported returns hold them too; the summary's `soups` does not.
    """

    def __init__(self, num_envs: int, layout: str = "cramped_room", horizon: int = 400, shaping: float = 1.0) -> None:
        from overcooked import Action, OvercookedEnv, OvercookedGridworld

        self._actions = Action.ALL_ACTIONS
        self._shaping = shaping
        self._kitchens = [
            OvercookedEnv.from_mdp(OvercookedGridworld.from_layout_name(layout), horizon=horizon, info_level=0)
            for _ in range(num_envs)
        ]
        self._kitchens[0].reset()
        size = np.size(self._look(0)[0])
        group = AgentGroup(
            name="cooks",
            agent_ids=COOKS,
            obs={"kitchen": FieldSpec((size,), np.dtype(np.float32))},
            action=DiscreteActions(nvec=(len(self._actions),), start=(0,)),
        )
        self.spec = BlockSpec(f"overcooked/{layout}", num_envs, group)
        self._obs = np.zeros((num_envs, 2, size), np.float32)
        self._returns, self._soups = np.zeros((num_envs, 2)), np.zeros(num_envs)

    def reset(self, seed: int) -> BlockStep:
        """Begin a shift in every kitchen; they all begin alike, whatever the seed."""
        for e in range(len(self._kitchens)):
            self._begin(e)
        shape = (len(self._kitchens), 2)
        return self._answer(np.zeros(shape), np.ones(shape, np.bool_), self._obs[:0], [])

    def step(self, actions: np.ndarray) -> BlockStep:
        """One move of every cook."""
        reward = np.zeros((len(self._kitchens), 2))
        ended: list[int] = []
        episodes: list[EpisodeRecord] = []
        for e, kitchen in enumerate(self._kitchens):
            moves = tuple(self._actions[a] for a in actions[e, :, 0])
            _, delivered, is_over, info = kitchen.step(moves)
            reward[e] = delivered + self._shaping * np.asarray(info["shaped_r_by_agent"])
            self._returns[e] += reward[e]
            self._soups[e] += delivered / 20
            self._obs[e] = self._look(e)
            if is_over:
                returns = dict(zip(COOKS, self._returns[e].tolist()))
                length = kitchen.state.timestep
                lengths = dict.fromkeys(COOKS, length)
                episodes.append(EpisodeRecord(e, length, returns, lengths, {"soups": float(self._soups[e])}))
                ended.append(e)
        final, on_reset = self._obs[ended], np.zeros(reward.shape, np.bool_)
        on_reset[ended] = True
        for e in ended:
            self._begin(e)
        return self._answer(reward, on_reset, final, episodes)

    def close(self) -> None:
        """Nothing to release."""

    def _begin(self, e: int) -> None:
        self._returns[e] = self._soups[e] = 0
        self._kitchens[e].reset(regen_mdp=False)
        self._obs[e] = self._look(e)

    def _look(self, e: int) -> np.ndarray:
        """[2, n]: what each cook sees."""
        kitchen = self._kitchens[e]
        return np.asarray(kitchen.mdp.lossless_state_encoding(kitchen.state), np.float32).reshape(2, -1)

    def _answer(
        self, reward: np.ndarray, on_reset: np.ndarray, final: np.ndarray, episodes: list[EpisodeRecord]
    ) -> BlockStep:
        """`on_reset` bool [E, 2]: also says whose shift was over; `final` [lanes of those, n]."""
        shape, size = self._obs.shape[:2], self._obs.shape[2]
        truncated = on_reset & bool(len(final))
        return BlockStep(
            obs={"kitchen": self._obs},
            present=np.ones(shape, np.bool_),
            on_reset=on_reset,
            reward=reward.astype(np.float32),
            terminated=np.zeros(shape, np.bool_),
            truncated=truncated,
            final_lanes=np.flatnonzero(truncated),
            final_obs={"kitchen": final.reshape(-1, size)},
            episodes=episodes,
        )
