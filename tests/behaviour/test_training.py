"""Whole runs, short: what training promises whatever the layout. All share one Ray."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import ray
import torch
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation, TimeLimit

import srl_ray
from srl_ray.actors.ring import RingTimes, choose_ring
from srl_ray.algorithms.config import PPOConfig
from srl_ray.core.seeding import derive_seed
from srl_ray.core.types import AgentGroup, BlockSpec, ChunkLayout, DiscreteActions, FieldSpec, FrameStack
from srl_ray.envs.config import EnvConfig
from srl_ray.envs.factory import make_block
from srl_ray.envs.gymnasium_block import env_seed
from srl_ray.envs.testing import ProbeEnv
from srl_ray.experiment import RunResult
from srl_ray.models.config import ActorCriticConfig
from srl_ray.param_server.service import start_parameter_service
from srl_ray.param_server.weights import load_safetensors, unflatten_tensors
from srl_ray.runtime.checkpoint import load_checkpoint, read_facts
from srl_ray.streams.sample_buffer import ChunkMessage, Producer
from srl_ray.trainer.config import TrainersConfig
from srl_ray.trainer.worker import TrainerSettings, TrainerWorker

pytestmark = [pytest.mark.behaviour, pytest.mark.timeout(180)]

QUICK = {"run.plots": False, "run.video": False, "run.tensorboard": False, "run.log_interval_s": 0.5}
CARTPOLE = {"experiment": "cartpole", "algorithm.learning_rate_end": None}
DETERMINISTIC = {"run.deterministic": True, "run.log_interval_s": 0, "trainers.max_staleness": 0}


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[str]:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test file
    context: Any = ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield context.address_info["gcs_address"]
    ray.shutdown()


def train(run_dir: Path, settings: dict[str, Any]) -> RunResult:
    result = srl_ray.run({**QUICK, "run.dir": str(run_dir), **settings})
    assert result.exit_status == 0
    return result


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def updates(result: RunResult, first: int = 10) -> list[dict[str, float]]:
    """Training metrics of the first updates."""
    names = ("train/", "staleness/")
    found = [r for r in lines(result.run_dir / "metrics.jsonl") if "train/policy_loss" in r]
    assert len(found) >= first
    return [{name: value for name, value in r.items() if name.startswith(names)} for r in found[:first]]


def assert_books_balance(result: RunResult, max_staleness: int) -> None:
    """In every record: nothing too stale was trained on, every chunk is accounted for."""
    records = lines(result.run_dir / "metrics.jsonl")
    assert any("staleness/max" in record for record in records)
    for record in records:
        assert record.get("staleness/max", 0) <= max_staleness
        if "buffer/accepted" in record:
            parts = ("finished", "expired", "waiting", "lost")
            assert record["buffer/accepted"] == sum(record[f"buffer/{part}"] for part in parts)


# -------------------------------------------------------------------------------------- seeds, episodes, environment


class Watched(ProbeEnv):
    """Also writes down torch's threads at every reset once torch is there."""

    def reset(self, **kwargs: Any) -> Any:
        answer = super().reset(**kwargs)
        if "torch" in sys.modules:
            self._log("torch", threads=sys.modules["torch"].get_num_threads())
        return answer


def watched(trace: Path, seed: int, env_steps: int) -> dict[str, Any]:
    """Two actor workers with two environments each, in step with one trainer worker."""
    return {
        **DETERMINISTIC,
        "run.seed": seed,
        "env": {"factory": Watched, "kwargs": {"path": str(trace), "length": [1, 20]}, "envs_per_block": 2},
        "actors.count": 2,
        "actors.sample_steps": 16,
        "trainers.batch_chunks": 4,
        "stop.env_steps": env_steps,
    }


def by_instance(trace: Path, run_seed: int) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """(worker, environment) → its lines; the contract check's own environment is left out."""
    first_seed = {
        env_seed(derive_seed(run_seed, "env", worker, 0, 0), e): (worker, e) for worker in range(2) for e in range(2)
    }
    assert len(first_seed) == 4
    found: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for line in lines(trace):
        found[line["pid"], line["instance"]].append(line)
    named = {}
    for story in found.values():
        seeds = [line["seed"] for line in story if line["event"] == "reset"]
        if seeds and seeds[0] in first_seed:
            named[first_seed[seeds[0]]] = story
    return named


def episode_lengths(story: list[dict[str, Any]]) -> list[int]:
    """Lengths of the episodes that came to their end."""
    lengths, steps = [], 0
    for line in story:
        steps += line["event"] == "step"
        if line["event"] == "reset":
            lengths += [steps] if steps else []
            steps = 0
    return lengths


def test_one_seed_gives_one_run_and_every_episode_is_reported_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    runs, traces, stories = [], [], []
    for number, seed in enumerate((7, 7, 8)):
        if number == 2:
            monkeypatch.setenv("OMP_NUM_THREADS", "2")
        before = dict(os.environ), torch.get_num_threads()
        traces.append(tmp_path / f"trace_{number}.jsonl")
        runs.append(train(tmp_path / f"run_{number}", watched(traces[-1], seed, 200 if number == 2 else 1000)))
        assert (dict(os.environ), torch.get_num_threads()) == before, "the driver's own environment changed"
        stories.append(by_instance(traces[-1], seed))
    assert updates(runs[0]) == updates(runs[1])
    assert updates(runs[0], 1) != updates(runs[2], 1)

    randoms = []
    for number, (run, story) in enumerate(zip(runs, stories)):
        assert_books_balance(run, max_staleness=0)
        assert sorted(story) == [(0, 0), (0, 1), (1, 0), (1, 1)], "four environments with derived seeds"
        reported = lines(run.run_dir / "episodes.jsonl")
        assert all(row["returns"] == {"agent": float(row["length"])} for row in reported)
        for worker in range(2):
            lived = sorted(n for e in range(2) for n in episode_lengths(story[worker, e]))
            assert sorted(row["length"] for row in reported if row["worker"] == worker) == lived
        assert len(reported) == run.record["episodes"]
        for one in story.values():
            resets = [line for line in one if line["event"] == "reset"]
            assert [line["seed"] for line in resets[1:]] == [None] * (len(resets) - 1)
            assert len({line["first_random"] for line in resets}) == len(resets)
            (made,) = [line for line in one if line["event"] == "construct"]
            threads = 2 if number == 2 else 1
            assert (made["CUDA_VISIBLE_DEVICES"], made["OMP_NUM_THREADS"]) == ("", str(threads))
            assert {line["threads"] for line in one if line["event"] == "torch"} == {threads}
        randoms.append({line["first_random"] for one in story.values() for line in one if line["event"] == "reset"})
    shared = {who: min(len(stories[0][who]), len(stories[1][who])) for who in stories[0]}
    told = ("event", "seed", "first_random", "action", "obs", "reward")
    for who, length in shared.items():
        first, second = (
            [{k: line.get(k) for k in told} for line in stories[i][who] if line["event"] in ("reset", "step")][:500]
            for i in (0, 1)
        )
        common = min(len(first), len(second), 150)
        assert length > 100
        assert first[:common] == second[:common]
    assert not randoms[0] & randoms[2]


def test_a_recurrent_policy_is_deterministic_too(tmp_path: Path) -> None:
    settings = {
        **CARTPOLE,
        **DETERMINISTIC,
        "policy": "lstm",
        "policy.bptt_steps": 8,
        "actors.sample_steps": 16,
        "env.envs_per_block": 4,
        "trainers.batch_chunks": 4,
        "stop.env_steps": 900,
    }
    first, second, other = (
        updates(train(tmp_path / f"run_{number}", {**settings, "run.seed": seed}))
        for number, seed in enumerate((7, 7, 8))
    )
    assert first == second
    assert all(a != b for a, b in zip(first, other))


class MovingDot(gymnasium.Env[Any, Any]):
    """Images [8, 8] of a dot that the action moves, with a little noise; 1 for every step on the right."""

    observation_space = spaces.Box(0, 255, (8, 8), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.column, self.left = 4, int(self.np_random.integers(3, 12))
        return self.image(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.column = (self.column + 2 * int(action) - 1) % 8
        self.left -= 1
        return self.image(), float(self.column > 3), self.left == 0, False, {}

    def image(self) -> np.ndarray:
        image = self.np_random.integers(0, 32, (8, 8), np.uint8)
        image[4, self.column] = 255
        return image


def make_moving_dot() -> Any:
    return TimeLimit(FrameStackObservation(MovingDot(), 4), 9)


def test_training_is_the_same_when_frames_are_stored_once(tmp_path: Path) -> None:
    settings = {
        **CARTPOLE,
        **DETERMINISTIC,
        "env.factory": make_moving_dot,
        "env.envs_per_block": 4,
        "policy": "lstm",
        "policy.bptt_steps": 8,
        "actors.sample_steps": 16,
        "actors.burn_in": 4,
        "trainers.batch_chunks": 4,
        "stop.env_steps": 900,
    }
    by_frame, whole = (
        train(tmp_path / option, {**settings, "env.frame_stack": option, "run.seed": 7}) for option in ("auto", "none")
    )
    assert updates(by_frame) == updates(whole)
    assert make_block(EnvConfig(factory=make_moving_dot)).spec.group.obs["obs"].stack == FrameStack(0, 4, "repeat")


# ------------------------------------------------------------------------------------------------------ recurrence


def test_states_stay_within_their_episode_and_light_actor_workers_have_no_torch(tmp_path: Path) -> None:
    facts = tmp_path / "facts.jsonl"
    result = train(
        tmp_path / "run",
        {
            "layout": "remote",
            "env": {
                "factory": "tests.behaviour.counting_env:CountsAlong",
                "kwargs": {"path": str(facts)},
                "envs_per_block": 4,
            },
            "policy": "custom",
            "policy.target": "tests.behaviour.counting:StepCount",
            "policy.bptt_steps": 4,
            "actors.sample_steps": 16,
            "actors.burn_in": 3,
            "trainers.batch_chunks": 8,
            "trainers.max_staleness": 2,
            "algorithm.minibatches": 2,
            "failure.max_restarts": 0,
            "stop.env_steps": 4000,
        },
    )
    assert result.record["lost/discarded_episodes"] == 0, "some episode was played with another one's state"
    assert result.record["episodes"] > 100
    assert_books_balance(result, max_staleness=2)
    at_end = lines(facts)
    assert len(at_end) >= 8
    said = (result.run_dir / "logs" / "driver.log").read_text()
    assert "without torch" in said
    training = at_end[-8:]
    assert not any(line["torch"] for line in training)
    rss_mib = max(line["rss"] for line in training) / 2**20
    print(f"light actor worker: {rss_mib:.0f} MiB resident at its end")
    assert rss_mib < 220


def test_a_light_actor_worker_imports_no_torch_and_quickly() -> None:
    code = (
        "import sys, time, psutil; begin = time.perf_counter()\n"
        "import srl_ray.actors.worker, srl_ray.streams.remote, srl_ray.envs.factory, srl_ray.param_server.client\n"
        "assert 'torch' not in sys.modules and 'hydra' not in sys.modules and 'mujoco' not in sys.modules\n"
        "print(time.perf_counter() - begin, psutil.Process().memory_info().rss / 2**20)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    seconds, rss_mib = map(float, done.stdout.split())
    print(f"imports of a light actor worker: {seconds:.2f} s, {rss_mib:.0f} MiB")
    assert rss_mib < 200


# --------------------------------------------------------------------------------------------------------- layouts


@pytest.fixture(scope="module")
def two_of_everything(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Two actor workers, a policy worker, two trainer workers."""
    run_dir = tmp_path_factory.mktemp("two") / "run"
    more = {"layout": "remote", "actors.count": 2, "trainers.count": 2, "trainers.batch_chunks": 16}
    return train(run_dir, {**CARTPOLE, **more, "stop.env_steps": 12_000})


def test_one_experiment_in_three_layouts(tmp_path: Path, two_of_everything: RunResult) -> None:
    runs = {
        "inline": (0, train(tmp_path / "inline", {**CARTPOLE, "trainers.max_staleness": 0, "stop.env_steps": 12_000})),
        "remote": (
            2,
            train(
                tmp_path / "remote",
                {**CARTPOLE, "layout": "remote", "trainers.max_staleness": 2, "stop.env_steps": 12_000},
            ),
        ),
        "two of everything": (1, two_of_everything),
    }
    for name, (max_staleness, run) in runs.items():
        assert_books_balance(run, max_staleness)
        records = [r for r in lines(run.run_dir / "metrics.jsonl") if "return/agents" in r]
        staleness = [r["staleness/mean"] for r in records if "staleness/mean" in r]
        rates = [r["rate/agent_steps_per_s"] for r in records]
        first, last = records[0]["return/agents"], records[-1]["return/agents"]
        print(
            f"{name}: {np.median(rates):,.0f} agent steps/s, staleness {np.mean(staleness):.2f} of at most "
            f"{max_staleness}, version {run.policy_version}, return {first:.0f} → {last:.0f}"
        )
        assert run.policy_version >= 8
        assert last > 1.5 * first or last > 60
    assert runs["two of everything"][1].record["buffer/finished"] > 0


def test_a_chosen_ring_splits_the_environments_of_every_actor_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[RingTimes] = []

    def choose(times: list[RingTimes], num_envs: int) -> tuple[int, RingTimes]:
        measured.extend(times)
        assert 1 <= choose_ring(times, num_envs)[0] <= num_envs == 8
        return 4, times[0]

    monkeypatch.setattr("srl_ray.crew.choose_ring", choose)
    settings = {"layout": "remote", "actors.ring_size": "auto", "actors.count": 2, "stop.env_steps": 6000}
    result = train(tmp_path / "run", {**CARTPOLE, **settings})
    assert len(measured) == 2
    assert all(min(times.step_s, times.handling_s, times.inference_s) > 0 for times in measured)
    episodes = lines(result.run_dir / "episodes.jsonl")
    assert {(e["worker"], e["slot"]) for e in episodes} == {(w, s) for w in range(2) for s in range(4)}
    assert_books_balance(result, max_staleness=1)


def test_the_last_version_is_on_disk_at_a_normal_end(two_of_everything: RunResult) -> None:
    checkpoint = load_checkpoint(two_of_everything.checkpoint)
    files = (two_of_everything.run_dir / "parameters" / "main").glob("v*.safetensors")
    newest = max(files)
    assert int(newest.name[1:].partition("_")[0]) == two_of_everything.policy_version
    written = unflatten_tensors(load_safetensors(newest)[0])
    for name, tensor in checkpoint.tensors["policy"].items():
        assert torch.equal(written[name], tensor), name


def test_a_checkpoint_travels_and_opens_with_other_worker_counts(tmp_path: Path, two_of_everything: RunResult) -> None:
    moved = tmp_path / "elsewhere" / "step"
    shutil.copytree(two_of_everything.checkpoint, moved)
    saved = read_facts(moved)
    result = train(
        tmp_path / "alone",
        {**CARTPOLE, "run.resume": str(moved), "stop.env_steps": saved["env_steps"] + 4000},
    )
    records = lines(result.run_dir / "metrics.jsonl")
    assert records[0]["env_steps"] >= saved["env_steps"]
    assert result.env_steps >= saved["env_steps"] + 4000
    assert result.policy_version > saved["policy_version"]
    assert records[-1]["episodes"] > saved["episodes"]
    play = [sys.executable, "-m", "srl_ray.evaluate", f"checkpoint={moved}", "episodes=20", f"out={tmp_path}/e.json"]
    subprocess.run(play, check=True, timeout=120, capture_output=True, cwd=tmp_path)
    assert json.loads((tmp_path / "e.json").read_text())["num_episodes"] == 20


def test_a_checkpoint_of_another_environment_explains_itself(
    tmp_path: Path, two_of_everything: RunResult, local_ray: str
) -> None:
    command = [sys.executable, "-m", "srl_ray.train", "experiment=cartpole", "env.id=Acrobot-v1"]
    command += [f"run.resume={two_of_everything.checkpoint}", f"run.dir={tmp_path / 'run'}"]
    environment = {**os.environ, "RAY_ADDRESS": local_ray}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=tmp_path)
    tail = "\n".join(done.stderr.splitlines()[-10:])
    assert done.returncode == 1, done.stderr
    assert "spaces.obs.obs: [[4]" in tail
    assert "[[6]" in tail
    assert "Traceback" not in done.stderr


# ---------------------------------------------------------------------------------------------------- trainer group


class Rank(TrainerWorker):
    """A trainer worker that trains once when asked."""

    def train_once(self, message: ChunkMessage) -> dict[str, float]:
        self.push(Producer(self.settings.rank, 0), message, 0, 5.0)
        chunks: list[Any] | None = []
        while not chunks:
            chunks = self._next_chunks()
        self._train(chunks)
        return self._updates[-1].metrics

    def weights(self) -> dict[str, np.ndarray]:
        return {name: tensor.numpy().copy() for name, tensor in self._policy.state_dict().items()}


def made_up_chunks(layout: ChunkLayout, chunks: int, state_size: int) -> ChunkMessage:
    rng = np.random.default_rng(5)
    shape = (layout.rows, chunks)
    ends = rng.random(shape) < 0.15
    ends[0] = ends[-1] = False
    on_reset = np.roll(ends, 1, axis=0)
    terminated = ends & (rng.random(shape) < 0.5)
    number = lambda *more: rng.normal(size=(*shape, *more)).astype(np.float32)  # noqa: E731
    arrays = {
        "obs.obs": number(4),
        "action": rng.integers(0, 2, (*shape, 1)),
        "log_prob": -rng.random(shape, np.float32),
        "value": number(),
        "reward": number(),
        "on_reset": on_reset,
        "terminated": terminated,
        "truncated": ends & ~terminated,
        "valid": np.ones(shape, np.bool_),
        "policy_version": np.zeros(shape, np.int64),
        "state": 0.1
        * rng.normal(size=(layout.sample_steps // layout.bptt_steps, chunks, state_size)).astype(np.float32),
    }
    trained = (~ends[: layout.sample_steps]).sum(axis=0)
    zeros = np.zeros(chunks, np.int64)
    return ChunkMessage(arrays, np.arange(chunks), zeros, trained, zeros)


def part_of(message: ChunkMessage, columns: slice) -> ChunkMessage:
    arrays = {name: array[:, columns] for name, array in message.arrays.items()}
    rest = (message.lanes, message.oldest_version, message.trained_rows, message.trainer_epoch)
    return ChunkMessage(arrays, *(array[columns] for array in rest))


def trainer_group(count: int, namespace: str) -> list[Any]:
    group = AgentGroup("agents", ("agent",), {"obs": FieldSpec((4,), np.dtype(np.float32))}, DiscreteActions((2,)))
    spec = BlockSpec("made up", 1, group)
    make_rank: Any = ray.remote(Rank)
    ranks = [
        make_rank.options(num_cpus=0.5, max_concurrency=2).remote(
            TrainerSettings(
                rank=rank,
                epoch=0,
                seed=3,
                trainers=TrainersConfig(count=count, batch_chunks=8),
                algorithm=PPOConfig(epochs=2, minibatches=1, normalize_advantage="batch", learning_rate=1e-3),
                policy=ActorCriticConfig(
                    recurrent="lstm", separate=False, bptt_steps=4, normalize_obs=True, normalize_value=True
                ),
                layout=ChunkLayout(0, 8, 1, 4),
                namespace=namespace,
                policy_name="main",
            )
        )
        for rank in range(count)
    ]
    ray.get([rank.setup.remote(spec) for rank in ranks], timeout=60)
    if count > 1:
        address = ray.get(ranks[0].free_address.remote(), timeout=30)
        ray.get([rank.join_group.remote(address) for rank in ranks], timeout=60)
    ray.get([rank.begin.remote() for rank in ranks], timeout=60)
    return ranks


def test_two_trainer_workers_make_the_update_of_one_with_the_joined_batch() -> None:
    services = [start_parameter_service(name) for name in ("one trainer", "two trainers")]
    (alone,) = trainer_group(1, "one trainer")
    pair = trainer_group(2, "two trainers")
    whole = made_up_chunks(ChunkLayout(0, 8, 1, 4), 8, 128)
    before = ray.get(alone.weights.remote(), timeout=30)
    of_alone = ray.get(alone.train_once.remote(whole), timeout=60)
    halves = [part_of(whole, slice(0, 4)), part_of(whole, slice(4, 8))]
    of_pair = ray.get([rank.train_once.remote(half) for rank, half in zip(pair, halves)], timeout=60)
    expected, first, second = ray.get([rank.weights.remote() for rank in (alone, *pair)], timeout=30)
    moved = 0.0
    for name, tensor in expected.items():
        assert np.array_equal(first[name], second[name]), f"{name} differs between the trainer workers"
        np.testing.assert_allclose(first[name], tensor, rtol=1e-4, atol=2e-6, err_msg=name)
        moved = max(moved, float(np.abs(tensor - before[name]).max()))
    assert moved > 1e-3
    for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "explained_variance", "rows"):
        assert of_pair[0][name] == pytest.approx(of_alone[name], rel=1e-4, abs=1e-6), name
        assert of_pair[0][name] == of_pair[1][name]
    for handle in (alone, *pair, *services):
        ray.kill(handle)


# ------------------------------------------------------------------------------------------ environments in JAX


def test_an_actor_worker_learns_from_a_simulation_in_jax(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="the package jax is missing: pip install 'srl_ray[jax]'")
    quick = {"env.envs_per_block": 16, "trainers.batch_chunks": 16, "algorithm.learning_rate_end": None}
    result = train(tmp_path, {"experiment": "cartpole_jax", **quick, "stop.env_steps": 70_000})
    returns = [r["return/agents"] for r in lines(tmp_path / "metrics.jsonl") if "return/agents" in r]
    assert result.env_steps >= 70_000
    assert returns[-1] > 80  # a random policy has 22


def test_agents_that_take_turns_learn_from_their_own_rows_only(tmp_path: Path) -> None:
    """The environment raises unless exactly the agents that it asked have acted."""
    result = train(
        tmp_path / "run",
        {
            "env.factory": "tests.behaviour.turns_env:Turns",
            "env.on_error": "stop",
            "actors.sample_steps": 16,
            "trainers.batch_chunks": 16,
            "algorithm.learning_rate": 1e-2,
            "stop.env_steps": 12_000,
        },
    )
    assert result.exit_status == 0
    last = lines(tmp_path / "run" / "metrics.jsonl")[-1]
    assert last["agent_steps"] == pytest.approx(0.9 * last["env_steps"], rel=0.02), "every tenth step nobody acts"
    episodes = lines(tmp_path / "run" / "episodes.jsonl")
    late = [sum(episode["returns"].values()) / 36 for episode in episodes[-20:]]
    assert np.mean(late) > 0.9, "of 40 steps 36 ask somebody"
