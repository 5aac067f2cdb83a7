"""Stable-Baselines3's PPO over its DummyVecEnv, with its own networks."""

from __future__ import annotations

import gymnasium
import protocol
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack


class Report(BaseCallback):
    """A rollout begins when the update before it has ended."""

    def __init__(self, progress: protocol.Progress) -> None:
        super().__init__()
        self._progress = progress
        self._goes_on = True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps > 0:
            self._goes_on = self._progress.update(self.num_timesteps)

    def _on_step(self) -> bool:
        return self._goes_on


def make_env(settings: protocol.Settings) -> gymnasium.Env:
    if settings.task == "pong":
        env = gymnasium.wrappers.ReshapeObservation(protocol.make_pong(), (84, 84, 1))
        return gymnasium.wrappers.ClipReward(env, -1.0, 1.0)
    return gymnasium.make(settings.env_id, disable_env_checker=True)


def main(settings: protocol.Settings) -> None:
    torch.set_num_threads(settings.threads)
    envs = DummyVecEnv([lambda: make_env(settings)] * settings.environments)
    is_image = settings.task == "pong"
    model = PPO(
        "CnnPolicy" if is_image else "MlpPolicy",
        VecFrameStack(envs, 4, channels_order="last") if is_image else envs,
        learning_rate=protocol.LEARNING_RATE,
        n_steps=protocol.ROLLOUT,
        batch_size=protocol.MINIBATCH,
        n_epochs=1,
        gamma=protocol.DISCOUNT,
        gae_lambda=protocol.GAE_LAMBDA,
        clip_range=protocol.CLIP_EPS,
        ent_coef=protocol.ENTROPY_COST,
        vf_coef=protocol.VALUE_COST,
        max_grad_norm=protocol.MAX_GRAD_NORM,
        policy_kwargs=None if is_image else {"net_arch": {"pi": [*protocol.HIDDEN], "vf": [*protocol.HIDDEN]}},
        seed=1,
        device="cpu",
    )
    model.learn(10**12, callback=Report(protocol.Progress(settings.seconds)))


if __name__ == "__main__":
    main(protocol.read_settings())
