"""RLlib's PPO, APPO or IMPALA (algorithm=ppo, appo or impala) on its new API stack, two environment runners.

APPO and IMPALA make one update per batch of one runner's fragment, without minibatches and without replay; their
learner is a thread of the driver, beside the runners.
"""

from __future__ import annotations

import gymnasium
import protocol
import ray
import torch
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.utils import make_target_network
from ray.rllib.core.rl_module.apis import TARGET_NETWORK_ACTION_DIST_INPUTS, TargetNetworkAPI, ValueFunctionAPI
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.tune.registry import register_env
from torch import nn

CONFIGS = {"ppo": PPOConfig, "appo": APPOConfig, "impala": IMPALAConfig}
MINIBATCH = 544
"""The learner adds a row per episode chunk to the batch and fills up the last minibatch with repeated rows: 2048 steps
in minibatches of 512 would be five full ones, a quarter more work; in minibatches of 544 they are four."""

ASYNCHRONOUS_ITERATION_S = 1.0
"""APPO and IMPALA look for finished fragments in a loop without pause; with a short iteration most of the driver's time
would go into putting together results. Their default, 10 s, would end a run too late."""


class Nature(TorchRLModule, ValueFunctionAPI, TargetNetworkAPI):
    """Nature CNN for uint8 images [4, 84, 84], shared by policy and value."""

    def setup(self) -> None:
        self.torso = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, protocol.CNN_FEATURES),
            nn.ReLU(),
        )
        self.policy = nn.Linear(protocol.CNN_FEATURES, int(self.action_space.n))
        self.value = nn.Linear(protocol.CNN_FEATURES, 1)

    def _features(self, batch, torso=None):
        return (torso or self.torso)(batch[Columns.OBS].float() / 255.0)

    def _forward(self, batch, **_):
        return {Columns.ACTION_DIST_INPUTS: self.policy(self._features(batch))}

    def _forward_train(self, batch, **_):
        features = self._features(batch)
        return {Columns.ACTION_DIST_INPUTS: self.policy(features), Columns.EMBEDDINGS: features}

    def compute_values(self, batch, embeddings=None):
        return self.value(self._features(batch) if embeddings is None else embeddings).squeeze(-1)

    def make_target_networks(self) -> None:
        self.target_torso, self.target_policy = make_target_network(self.torso), make_target_network(self.policy)

    def get_target_network_pairs(self):
        return [(self.torso, self.target_torso), (self.policy, self.target_policy)]

    def forward_target(self, batch, **_):
        features = self._features(batch, self.target_torso)
        return {TARGET_NETWORK_ACTION_DIST_INPUTS: self.target_policy(features)}


def make_env(context):
    """A vector environment where `num_envs` is asked for, else one environment (of which RLlib takes the spaces)."""
    import ale_py

    gymnasium.register_envs(ale_py)
    env_id, count = context["env_id"], context.get("num_envs", 1)
    if "num_envs" in context or env_id.startswith("ALE/"):
        extra = {"num_threads": 1} if env_id.startswith("ALE/") else {}
        return gymnasium.make_vec(env_id, num_envs=count, vectorization_mode="vector_entry_point", **extra)
    return gymnasium.make(env_id, disable_env_checker=True)


def make_config(settings: protocol.Settings):
    name = settings.extra.get("algorithm", "ppo")
    is_ppo, is_image = name == "ppo", settings.task == "pong"
    per_runner = settings.environments // protocol.WORKERS
    config = (
        CONFIGS[name]()
        .environment("peer", env_config={"env_id": settings.env_id})
        .framework("torch")
        .env_runners(
            num_env_runners=protocol.WORKERS,
            num_envs_per_env_runner=per_runner,
            rollout_fragment_length=protocol.ROLLOUT,
            gym_env_vectorize_mode="sync" if settings.task == "cheetah" else "vector_entry_point",
        )
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=settings.batch if is_ppo else per_runner * protocol.ROLLOUT,
            num_epochs=1,
            minibatch_size=MINIBATCH if is_ppo else None,
            lr=protocol.LEARNING_RATE,
            gamma=protocol.DISCOUNT,
            grad_clip=protocol.MAX_GRAD_NORM,
            grad_clip_by="global_norm",
            entropy_coeff=protocol.ENTROPY_COST,
            vf_loss_coeff=protocol.VALUE_COST,
        )
        .rl_module(
            rl_module_spec=RLModuleSpec(module_class=Nature)
            if is_image
            else RLModuleSpec(
                model_config=DefaultModelConfig(
                    fcnet_hiddens=list(protocol.HIDDEN), fcnet_activation="tanh", vf_share_layers=False
                )
            )
        )
        .reporting(min_time_s_per_iteration=0 if is_ppo else ASYNCHRONOUS_ITERATION_S)
        .debugging(log_level="ERROR")
    )
    if name != "impala":
        config.training(lambda_=protocol.GAE_LAMBDA, clip_param=protocol.CLIP_EPS, use_kl_loss=False)
    if is_ppo:
        config.training(vf_clip_param=float("inf"))
    if name == "appo":
        config.training(use_circular_buffer=False)
    return config


def main(settings: protocol.Settings) -> None:
    register_env("peer", make_env)
    config = make_config(settings)
    batch = config.train_batch_size_per_learner
    is_ppo = settings.extra.get("algorithm", "ppo") == "ppo"
    progress, updates, goes_on = protocol.Progress(settings.seconds), 0, True

    class Reporting(config.get_default_learner_class()):
        """With num_learners=0 it lives in this process."""

        def after_gradient_based_update(self, **kwargs) -> None:
            nonlocal updates, goes_on
            super().after_gradient_based_update(**kwargs)
            updates += 1
            goes_on = progress.update(updates * batch) and goes_on

    config.learners(learner_class=Reporting)
    # Runners sample while APPO's and IMPALA's learner works: one thread then; PPO's works alone.
    torch.set_num_threads(settings.threads if is_ppo else 1)
    ray.init(num_cpus=protocol.WORKERS + 1, include_dashboard=False, configure_logging=False)
    algorithm = config.build_algo()
    while goes_on:
        algorithm.train()
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main(protocol.read_settings())
