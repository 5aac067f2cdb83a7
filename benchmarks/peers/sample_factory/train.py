"""Sample Factory's asynchronous PPO: two rollout workers with two splits each, an inference worker, a learner."""

from __future__ import annotations

import tempfile

import gymnasium
import protocol
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.envs.env_wrappers import NumpyObsWrapper
from sample_factory.train import make_runner

IDS = {**protocol.ENV_IDS, "cheetah": "HalfCheetah-v4"}
"""Its gymnasium has no HalfCheetah-v5; the physics are the same."""


class Report(AlgoObserver):
    """Called after each training iteration; ends the run when its time is over."""

    def __init__(self, progress: protocol.Progress, batch: int) -> None:
        self._progress = progress
        self._batch = batch

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        if not self._progress.update(training_iteration_since_resume * self._batch):
            runner.cfg.train_for_env_steps = 0


def make_env(name, cfg, env_config, render_mode=None):
    if name == "pong":
        return NumpyObsWrapper(gymnasium.wrappers.FrameStack(protocol.make_pong(), 4))
    return gymnasium.make(IDS[name], disable_env_checker=True)


def make_config(settings: protocol.Settings, train_dir: str):
    is_image = settings.task == "pong"
    arguments = {
        "algo": "APPO",
        "env": settings.task,
        "experiment": "peer",
        "train_dir": train_dir,
        "device": "cpu",
        "async_rl": True,
        "serial_mode": False,
        "batched_sampling": False,
        "num_workers": protocol.WORKERS,
        "num_envs_per_worker": settings.environments // protocol.WORKERS,
        "worker_num_splits": 2,
        "set_workers_cpu_affinity": False,
        "rollout": protocol.ROLLOUT,
        "recurrence": 1,
        "use_rnn": False,
        "batch_size": protocol.MINIBATCH,
        "num_batches_per_epoch": settings.batch // protocol.MINIBATCH,
        "num_epochs": 1,
        "learning_rate": protocol.LEARNING_RATE,
        "gamma": protocol.DISCOUNT,
        "gae_lambda": protocol.GAE_LAMBDA,
        "ppo_clip_ratio": protocol.CLIP_EPS,
        "exploration_loss_coeff": protocol.ENTROPY_COST,
        "value_loss_coeff": protocol.VALUE_COST,
        "max_grad_norm": protocol.MAX_GRAD_NORM,
        "with_vtrace": False,
        "actor_critic_share_weights": is_image,
        "adaptive_stddev": False,
        "normalize_input": False,
        "normalize_returns": False,
        "obs_scale": 255.0 if is_image else 1.0,
        "env_frameskip": 1,
        "encoder_conv_architecture": "convnet_atari",
        "encoder_conv_mlp_layers": [protocol.CNN_FEATURES],
        "encoder_mlp_layers": list(protocol.HIDDEN),
        "nonlinearity": "relu" if is_image else "tanh",
        "decorrelate_experience_max_seconds": 0,
        "decorrelate_envs_on_one_worker": False,
        "train_for_env_steps": 10**12,
        "restart_behavior": "overwrite",
    }
    argv = []
    for name, value in arguments.items():
        if isinstance(value, list):
            argv += [f"--{name}", *map(str, value)]
        else:
            argv.append(f"--{name}={value}")
    parser, _ = parse_sf_args(argv)
    return parse_full_cfg(parser, argv)


def main(settings: protocol.Settings) -> None:
    register_env(settings.task, make_env)
    with tempfile.TemporaryDirectory(prefix="sample_factory_", ignore_cleanup_errors=True) as folder:
        _, runner = make_runner(make_config(settings, folder))
        runner.register_observer(Report(protocol.Progress(settings.seconds), settings.batch))
        if runner.init() == ExperimentStatus.SUCCESS:
            runner.run()


if __name__ == "__main__":
    main(protocol.read_settings())
