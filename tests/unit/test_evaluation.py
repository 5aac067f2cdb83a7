"""Evaluation counts what happened: episodes exactly, short ones not preferred, recurrent state where it belongs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from srl_ray import evaluate as evaluate_command
from srl_ray.config import compose, to_mapping, to_yaml
from srl_ray.core.errors import CheckpointError, ConfigError, EnvironmentFault
from srl_ray.core.types import ACTION_MASK, ContinuousActions, DiscreteActions, EpisodeRecord
from srl_ray.envs.config import EnvConfig
from srl_ray.envs.factory import make_block
from srl_ray.envs.testing import agents_end_one_by_one, changing_teams, turn_based
from srl_ray.evaluation.baselines import UniformPolicy
from srl_ray.evaluation.evaluator import evaluate, evaluate_block
from srl_ray.evaluation.loading import find_saved_run, load_policy
from srl_ray.evaluation.player import BlockPlayer, EpisodeQuota
from srl_ray.models.factory import make_policy
from srl_ray.models.policy import ActResult
from srl_ray.runtime.checkpoint import Checkpoint, save_checkpoint

pytestmark = pytest.mark.unit

COUNTING = EnvConfig(factory="srl_ray.envs.testing:CountingEnv", kwargs={"length": [1, 20]})


class Remember(UniformPolicy):
    """Its state counts the rows of the episode; the initial state is 100, so that a reset is told from a zero."""

    state_size = 1

    def __init__(self, action: Any) -> None:
        super().__init__(action)
        self.log: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def initial_state(self, rows: int) -> torch.Tensor:
        return torch.full((rows, 1), 100.0)

    def act(self, obs: Any, state: Any, on_reset: Any, deterministic: Any, generator: Any = None) -> ActResult:
        state = torch.where(on_reset[:, None], self.initial_state(len(on_reset)), state) + 1
        self.log.append((obs["obs"].numpy(), on_reset.numpy(), state.numpy()[:, 0]))
        zeros = torch.zeros(len(on_reset))
        return ActResult(torch.zeros(len(on_reset), 1, dtype=torch.int64), zeros, zeros, state)


def uniform(config: EnvConfig) -> UniformPolicy:
    block = make_block(config, 1)
    block.close()
    return UniformPolicy(block.spec.group.action)


# ----------------------------------------------------------------------------------------------------------- counting


def test_returns_and_lengths_are_those_of_the_environment() -> None:
    result = evaluate(uniform(COUNTING), COUNTING, episodes=50, num_envs=4)
    assert len(result.episodes) == 50
    assert result.returns == [float(record.length) for record in result.episodes]
    assert {1 <= record.length <= 20 for record in result.episodes} == {True}
    assert result.return_mean == pytest.approx(result.length.mean)


def test_every_environment_contributes_its_first_episodes_so_short_ones_are_not_preferred() -> None:
    quota = EpisodeQuota(5, num_envs=2)
    short = [EpisodeRecord(0, 1, {"a": 0.0}) for _ in range(40)]
    counted = [quota.add(record) for record in short]
    assert sum(counted) == 3
    assert not quota.is_met
    assert [quota.add(EpisodeRecord(1, 1000, {"a": 0.0})) for _ in range(3)] == [True, True, False]
    assert quota.is_met
    assert [record.length for record in quota.counted] == [1, 1, 1, 1000, 1000]


def test_mean_length_is_unbiased_when_long_and_short_episodes_mix() -> None:
    result = evaluate(uniform(COUNTING), COUNTING, episodes=400, num_envs=16, seed=3)
    assert result.length.mean == pytest.approx(10.5, abs=1.0)


def test_discarded_episodes_are_replaced_and_counted() -> None:
    config = EnvConfig(factory="srl_ray.envs.testing:CrashingEnv", kwargs={"probability": 0.3, "length": 5})
    result = evaluate(uniform(config), config, episodes=20, num_envs=2)
    assert len(result.episodes) == 20
    assert result.discarded > 0
    assert {record.length for record in result.episodes} == {5}


def test_an_environment_that_breaks_every_episode_ends_the_evaluation() -> None:
    config = EnvConfig(
        factory="srl_ray.envs.testing:CrashingEnv", kwargs={"at_step": 2, "length": 5}, max_faults=100_000
    )
    with pytest.raises(EnvironmentFault, match="were discarded, 0 finished"):
        evaluate(uniform(config), config, episodes=1)


def test_agents_that_end_at_different_times_have_their_own_returns() -> None:
    block = agents_end_one_by_one()
    result = evaluate_block(UniformPolicy(block.spec.group.action), block, episodes=4)
    assert [spread.mean for spread in result.agent_returns.values()] == [6.0, 9.0, 14.0]
    assert result.agent_steps == 4 * (1 + 4 + 9)


def test_absent_agents_are_not_asked() -> None:
    block = turn_based()
    policy = Remember(block.spec.group.action)
    result = evaluate_block(policy, block, episodes=2)
    asked = sum(len(rows) for rows, _, _ in policy.log)
    assert asked == result.agent_steps == 2 * 36
    assert max(len(rows) for rows, _, _ in policy.log) == 1


def test_absent_team_members_do_not_pull_the_mean_down() -> None:
    block = changing_teams()
    result = evaluate_block(UniformPolicy(block.spec.group.action), block, episodes=6)
    assert result.returns == [10.0] * 6
    assert {spread.mean for spread in result.team_returns.values()} == {10.0}
    assert sorted(spread.count for spread in result.agent_returns.values()) == [2, 4, 6, 6]


# ---------------------------------------------------------------------------------------------------- recurrent state


def test_recurrent_state_begins_anew_with_every_episode_and_never_leaks_between_environments() -> None:
    policy = Remember(uniform(COUNTING).action_spec)
    evaluate(policy, COUNTING, episodes=30, num_envs=3)
    for obs, on_reset, state in policy.log:
        np.testing.assert_array_equal(state, 101 + obs[:, 0])  # CountingEnv observes its own step number
        np.testing.assert_array_equal(on_reset, obs[:, 0] == 0)


def test_a_lane_keeps_its_state_while_it_is_absent() -> None:
    block = turn_based(num_agents=4, length=40)
    policy = Remember(block.spec.group.action)
    evaluate_block(policy, block, episodes=1)
    rows = {slot: [float(state[0]) for obs, _, state in policy.log if obs[0, 1] == slot][:9] for slot in range(4)}
    assert rows[0][:3] == [101.0, 102.0, 103.0]
    assert all(states == sorted(states) for states in rows.values())


def test_next_step_autoreset_gives_the_same_episodes() -> None:
    results = []
    for mode in ("same_step", "next_step", "disabled"):
        config = EnvConfig(id="CartPole-v1", vectorization="native", autoreset=mode)
        policy = Remember(DiscreteActions((2,)))
        results.append([record.length for record in evaluate(policy, config, episodes=4, num_envs=2).episodes])
    assert results[0] == results[1] == results[2]


# --------------------------------------------------------------------------------------------------------- cross-play


def red_against_blue() -> Any:
    block = changing_teams(num_envs=3)
    group = replace(block.spec.group, teams=("red", "blue", "red", "blue"))
    block.spec = replace(block.spec, group=group)
    return block


def test_every_team_plays_by_its_own_policy_with_its_own_state() -> None:
    block = red_against_blue()
    red, blue = (Remember(block.spec.group.action) for _ in range(2))
    result = evaluate_block({"red": red, "blue": blue}, block, episodes=9)
    for policy, slots in ((red, {0.0, 2.0}), (blue, {1.0, 3.0})):
        assert {slot for obs, _, _ in policy.log for slot in obs[:, 1]} == slots
        for obs, _, state in policy.log:
            np.testing.assert_array_equal(state, 101 + obs[:, 2])  # the block observes its own step number
    assert result.agent_steps == sum(len(obs) for policy in (red, blue) for obs, _, _ in policy.log)
    assert result.returns == [10.0] * 9


def test_actions_of_a_team_reach_its_own_agents() -> None:
    block = red_against_blue()
    taken: list[np.ndarray] = []
    step = block.step
    block.step = lambda actions: taken.append(actions[..., 0].copy()) or step(actions)
    red, blue = (Remember(block.spec.group.action) for _ in range(2))
    act = blue.act
    blue.act = lambda *args: replace(act(*args), action=torch.ones(len(args[2]), 1, dtype=torch.int64))  # type: ignore[method-assign]
    evaluate_block({"red": red, "blue": blue}, block, episodes=9)
    actions = np.array(taken)
    assert not actions[..., [0, 2]].any()
    assert actions[..., 1].all()
    assert actions[..., 3].any()


def test_teams_without_a_policy_are_named() -> None:
    block = red_against_blue()
    with pytest.raises(ConfigError, match=r"given for \['red'\], the teams are \['blue', 'red'\]"):
        BlockPlayer({"red": UniformPolicy(block.spec.group.action)}, block, deterministic=True, seed=1)


def test_the_command_wants_teams_to_play_against_an_opponent(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["opponent=random"], ["team=agents"], ["team=agents", "opponent=random"]):
        assert evaluate_command.main([f"checkpoint={saved}", *argv]) == 2
        assert "the teams of CartPole-v1 are: agents" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------ repeatability


def test_the_same_seed_takes_the_same_actions_and_another_does_not() -> None:
    config = compose(["experiment=cartpole_lstm"])
    block = make_block(config.env, 1)
    policy = make_policy(config.policy, block.spec.group.obs, block.spec.group.action, 7)
    for deterministic in (True, False):
        play = [evaluate(policy, config.env, episodes=6, seed=seed, deterministic=deterministic) for seed in (5, 5, 6)]
        assert play[0].actions_hash == play[1].actions_hash != play[2].actions_hash
        assert play[0].returns == play[1].returns


def test_the_network_is_in_evaluation_mode() -> None:
    config = compose(["experiment=cartpole"])
    block = make_block(config.env, 2)
    policy: Any = make_policy(config.policy, block.spec.group.obs, block.spec.group.action, 7)
    policy.train()
    BlockPlayer(policy, block, deterministic=True, seed=1)
    assert not policy.training


# ---------------------------------------------------------------------------------------------------------- baselines


def test_uniform_actions_obey_masks_and_bounds() -> None:
    on_reset = torch.zeros(200, dtype=torch.bool)
    mask = torch.tensor([[True, False, True, False, True]]).expand(200, 5)
    discrete = UniformPolicy(DiscreteActions((3, 2))).act({ACTION_MASK: mask}, on_reset[:, None], on_reset, on_reset)
    assert set(map(tuple, discrete.action.tolist())) == {(0, 1), (2, 1)}
    low, high = np.array([0.0, -2.0, -np.inf], np.float32), np.array([1.0, 5.0, np.inf], np.float32)
    action = UniformPolicy(ContinuousActions(low, high)).act({}, on_reset[:, None], on_reset, on_reset).action.numpy()
    assert action.dtype == np.float32
    assert ((action >= low) & (action <= high)).all()
    assert action[:, 1].min() < -1.5
    assert action[:, 1].max() > 4.5


# ------------------------------------------------------------------------------------------------------------ loading


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A run directory with two checkpoints of CartPole, as a training run leaves it."""
    config = compose(["experiment=cartpole", "run.seed=3"])
    block = make_block(config.env, 1)
    run = tmp_path / "runs" / "cartpole" / "first"
    for steps in (1000, 2000):
        policy: Any = make_policy(config.policy, block.spec.group.obs, block.spec.group.action, steps)
        facts = {"env_steps": steps, "policy_version": steps // 100, "config": to_mapping(config)}
        path = run / "checkpoints" / f"step_{steps:012d}"
        save_checkpoint(path, Checkpoint({"policy": policy.state_dict()}, {"algorithm": {}}, facts))
    (run / "config.yaml").write_text(to_yaml(config))
    (run.parent / "latest").symlink_to("first")
    return run


@pytest.mark.parametrize("where", ["", "checkpoints", "checkpoints/step_000000002000", "../latest", ".."])
def test_any_path_of_a_run_finds_its_newest_checkpoint(saved: Path, where: str) -> None:
    assert find_saved_run(saved / where).checkpoint.resolve() == saved / "checkpoints/step_000000002000"


def test_latest_is_the_newest_run_below_runs(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(saved.parents[2])
    assert find_saved_run("latest").checkpoint.name == "step_000000002000"


def test_a_damaged_newest_checkpoint_is_skipped_but_not_when_it_was_named(saved: Path) -> None:
    newest = saved / "checkpoints/step_000000002000"
    tensors = newest / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:100])
    assert find_saved_run(saved).checkpoint.name == "step_000000001000"
    assert evaluate_command.main([f"checkpoint={newest}", "episodes=1"]) == 1


def test_a_copied_checkpoint_travels_alone(saved: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere" / "mine"
    target.parent.mkdir()
    (saved / "checkpoints/step_000000002000").rename(target)
    saved.rename(tmp_path / "gone")
    assert evaluate_command.main([str(target), "episodes=2"]) == 0
    assert (tmp_path / "elsewhere" / "evaluation.json").exists()


def test_initial_weights_are_those_of_the_run_seed(saved: Path) -> None:
    run, config = find_saved_run(saved), compose(["experiment=cartpole", "run.seed=3"])
    spec = make_block(config.env, 1).spec
    policies: list[Any] = [
        load_policy(run, config.policy, spec, seed=3, which="initial"),
        make_policy(config.policy, spec.group.obs, spec.group.action, 3),
        load_policy(run, config.policy, spec, seed=3),
    ]
    weights = [next(iter(policy.state_dict().values())) for policy in policies]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_checkpoint_of_another_environment_explains_itself(saved: Path) -> None:
    config = compose(["experiment=cartpole", "env.id=Acrobot-v1"])
    with pytest.raises(CheckpointError, match=r"\[64, 4\] in the checkpoint, \[64, 6\] in this run"):
        load_policy(find_saved_run(saved), config.policy, make_block(config.env, 1).spec, seed=1)
    with pytest.raises(ConfigError, match="checkpoint, initial or random"):
        load_policy(find_saved_run(saved), config.policy, make_block(config.env, 1).spec, seed=1, which="best")


# ------------------------------------------------------------------------------------------------------------ command


def test_the_command_prints_a_table_and_writes_json(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hashes = []
    for policy in ("checkpoint", "checkpoint", "initial", "random"):
        assert evaluate_command.main([f"checkpoint={saved}", "episodes=3", f"policy={policy}"]) == 0
        hashes.append(capsys.readouterr().out.split("actions ")[-1].split(",")[0])
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3
    document = json.loads((saved / "evaluation.json").read_text())
    assert document["actions_hash"] == hashes[0]
    assert document["num_episodes"] == len(document["episodes"]) == 3
    assert document["checkpoint"].endswith("step_000000002000")
    assert (saved / "evaluation_initial.json").exists()


@pytest.mark.parametrize(
    ("argv", "status", "text"),
    [
        (["checkpoint=/does/not/exist"], 1, "/does/not/exist: does not exist"),
        (["checkpont=x"], 2, "Did you mean checkpoint?"),
        (["checkpoint={run}", "episodes=0"], 2, "episodes must be a whole number above 0, got '0'"),
        (["checkpoint={run}", "policy=best"], 2, "policy must be checkpoint, initial or random"),
        (["checkpoint={run}", "env.idd=x"], 2, "Did you mean env.id?"),
        (["checkpoint={run}", "env.id=CartPole-v9"], 2, "CartPole"),
        (["checkpoint={run}", "env.id=Acrobot-v1"], 1, "[64, 4] in the checkpoint, [64, 6]"),
        (["--what"], 2, "unknown option --what"),
    ],
)
def test_mistakes_are_explained_without_a_traceback(
    saved: Path, capsys: pytest.CaptureFixture[str], argv: list[str], status: int, text: str
) -> None:
    assert evaluate_command.main([part.format(run=saved) for part in argv]) == status
    error = capsys.readouterr().err
    assert text in error
    assert "Traceback" not in error


def test_a_checkpoint_of_a_later_format_names_both_versions(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = saved / "checkpoints/step_000000002000/state.json"
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "format": "99.0"}))
    assert evaluate_command.main([f"checkpoint={file.parent}"]) == 1
    error = capsys.readouterr().err
    assert "99.0" in error
    assert "1.0" in error


def test_evaluating_does_not_import_ray(saved: Path) -> None:
    code = (
        "import sys\n"
        "from srl_ray import evaluate, render, plot\n"
        f"assert evaluate.main(['checkpoint={saved}', 'episodes=1']) == 0\n"
        "import srl_ray.rendering.episode, srl_ray.plotting.curves\n"
        "assert 'ray' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
