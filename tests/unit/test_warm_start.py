"""A run that begins with another run's weights takes over what fits, and says what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from srl_ray.config import ExperimentConfig, compose, from_mapping, to_mapping
from srl_ray.core.errors import CheckpointError, ConfigError
from srl_ray.core.types import ChunkLayout
from srl_ray.envs.hide_and_seek import make_block
from srl_ray.evaluation.loading import find_saved_run, load_policy
from srl_ray.models.config import HideAndSeekPolicyConfig
from srl_ray.models.factory import make_policy
from srl_ray.runtime.checkpoint import Checkpoint, save_checkpoint
from srl_ray.runtime.warm_start import start_policy_from
from srl_ray.trainer.worker import TrainerSettings, TrainerWorker

pytestmark = pytest.mark.unit

HEADS = ("action_head.", "value_head.", "value_scale.", "actor.norm.", "critic.norm.")


def new_policy(task: str, seed: int, **config: Any) -> Any:
    group = make_block(1, task=task).spec.group
    return make_policy(HideAndSeekPolicyConfig(**config), group.obs, group.action, seed)


@pytest.fixture(scope="module")
def teacher() -> Any:
    policy = new_policy("hide_and_seek", 1)
    with torch.no_grad():
        for tensor in policy.state_dict().values():
            tensor.add_(0.5)
    return policy


@pytest.fixture
def run(tmp_path: Path, teacher: Any) -> Path:
    save_checkpoint(tmp_path / "checkpoints" / "step_000000000100", Checkpoint({"policy": teacher.state_dict()}))
    return tmp_path


def test_everything_but_the_outputs_is_taken_over(run: Path, teacher: Any) -> None:
    policy, untouched = new_policy("lock_and_return", 2), new_policy("lock_and_return", 2)
    fresh = start_policy_from(run, policy, reset_outputs=True)
    source, before = teacher.state_dict(), untouched.state_dict()
    assert fresh == [name for name in source if name.startswith(HEADS)]
    for name, tensor in policy.state_dict().items():
        torch.testing.assert_close(tensor, (before if name in fresh else source)[name], rtol=0, atol=0)


def test_outputs_are_taken_over_when_asked(run: Path, teacher: Any) -> None:
    policy = new_policy("hide_and_seek", 2)
    assert start_policy_from(run, policy, reset_outputs=False) == []
    for name, tensor in policy.state_dict().items():
        torch.testing.assert_close(tensor, teacher.state_dict()[name], rtol=0, atol=0)


def test_a_further_kind_of_entity_begins_fresh_behind_the_others(run: Path, teacher: Any) -> None:
    policy, untouched = new_policy("blueprint", 2), new_policy("blueprint", 2)
    fresh = start_policy_from(run, policy, reset_outputs=True)
    assert {name for name in fresh if not name.startswith(HEADS)} == {
        f"{tower}.encoder.embedding.features.3.weight" for tower in ("actor", "critic")
    }
    name = "actor.encoder.embedding.main.weight"
    own, source, before = policy.state_dict()[name], teacher.state_dict()[name], untouched.state_dict()[name]
    torch.testing.assert_close(own[: len(source)], source, rtol=0, atol=0)
    torch.testing.assert_close(own[len(source) :], before[len(source) :], rtol=0, atol=0)
    assert len(own) > len(source)


def test_another_network_is_refused_with_both_shapes(run: Path) -> None:
    policy = new_policy("hide_and_seek", 2, scale="paper")
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"has shape \[.*\] there, \[.*\] in this run"):
        start_policy_from(run, policy, reset_outputs=True)
    for name, tensor in policy.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


def test_a_policy_that_names_no_outputs_is_told_how() -> None:
    with pytest.raises(ConfigError, match=r"policy\.reset_outputs=false"):
        start_policy_from("anywhere", torch.nn.Linear(2, 2), reset_outputs=True)


def test_a_missing_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere: does not exist"):
        start_policy_from(tmp_path / "nowhere", new_policy("shelter", 0), reset_outputs=True)


def test_the_trainer_worker_starts_from_it_and_a_checkpoint_of_the_run_wins(run: Path, teacher: Any) -> None:
    config = compose(["experiment=shelter", f"policy.start_from={run}"])
    spec = make_block(1, task="shelter").spec
    worker = TrainerWorker(settings(config))
    worker.setup(spec)
    name = "actor.encoder.dense.weight"
    torch.testing.assert_close(worker._policy.state_dict()[name], teacher.state_dict()[name], rtol=0, atol=0)
    with torch.no_grad():
        worker._policy.state_dict()[name].zero_()
    path = worker.save(str(run / "own" / "step_000000000200"), {"env_steps": 200})
    again = TrainerWorker(settings(config, checkpoint=path))
    again.setup(spec)
    assert not again._policy.state_dict()[name].any()


def settings(config: ExperimentConfig, checkpoint: str = "") -> TrainerSettings:
    return TrainerSettings(
        rank=0,
        epoch=0,
        seed=1,
        trainers=config.trainers,
        algorithm=config.algorithm,
        policy=config.policy,
        layout=ChunkLayout(0, 80, 1, 10),
        namespace="",
        policy_name="main",
        checkpoint=checkpoint,
    )


def test_initial_weights_of_such_a_run_are_those_it_began_with(run: Path, teacher: Any, tmp_path: Path) -> None:
    config = compose(["experiment=shelter", f"policy.start_from={run}"])
    student = tmp_path / "student" / "checkpoints" / "step_000000000300"
    save_checkpoint(student, Checkpoint({"policy": new_policy("shelter", 9).state_dict()}, facts={"env_steps": 300}))
    policy: Any = load_policy(
        find_saved_run_with(student, config), config.policy, config.env, seed=config.run.seed, which="initial"
    )
    name = "critic.encoder.dense.weight"
    torch.testing.assert_close(policy.state_dict()[name], teacher.state_dict()[name], rtol=0, atol=0)


def find_saved_run_with(checkpoint: Path, config: ExperimentConfig) -> Any:
    from srl_ray.config import to_yaml

    (checkpoint.parents[1] / "config.yaml").write_text(to_yaml(config))
    return find_saved_run(checkpoint)


def test_the_path_is_kept_without_links(run: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(run)
    config = compose(["experiment=shelter", f"policy.start_from={tmp_path / 'latest'}"])
    assert config.policy.start_from == str(run.resolve())
    assert from_mapping(to_mapping(config)).policy == config.policy
