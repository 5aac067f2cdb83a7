"""Stacks of frames that are stored frame by frame come back as they were."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation, TimeLimit, TransformObservation

from srl_ray.actors.lanes import Chunks, LaneTable, Request
from srl_ray.actors.worker import join_chunks
from srl_ray.algorithms.algorithm import Collective
from srl_ray.algorithms.config import PPOConfig
from srl_ray.algorithms.factory import make_algorithm
from srl_ray.algorithms.frame_stacks import with_stacks
from srl_ray.core.errors import ConfigError, EnvironmentFault
from srl_ray.core.types import (
    FRAMES_PREFIX,
    AgentGroup,
    BlockSpec,
    ChunkLayout,
    DiscreteActions,
    FieldSpec,
    FrameStack,
)
from srl_ray.envs.block import BlockStep
from srl_ray.envs.config import EnvConfig
from srl_ray.envs.contract import check_contract
from srl_ray.envs.factory import make_block
from srl_ray.models.config import ActorCriticConfig
from srl_ray.models.factory import make_policy
from srl_ray.streams.inference import InferenceReply
from srl_ray.streams.sample_buffer import Chunk, Producer
from srl_ray.trainer.batches import assemble
from srl_ray.trainer.warm_up import blank_batch, warm_up

pytestmark = pytest.mark.unit
torch.set_num_threads(1)

STATE, DEPTH = 2, 3


def make_spec(stack: FrameStack | None, axis: int, num_envs: int = 3, num_agents: int = 2) -> BlockSpec:
    shape = (DEPTH, 4, 5) if axis == 0 else (4, 5, DEPTH)
    obs = {
        "image": FieldSpec(shape, np.dtype(np.uint8), stack),
        "vector": FieldSpec((2,), np.dtype(np.float32)),
    }
    group = AgentGroup("agents", tuple(f"a{i}" for i in range(num_agents)), obs, DiscreteActions((9,)))
    return BlockSpec("fake", num_envs, group)


class StackedLanes:
    """Random play of agents that see their last frames: episodes end in every way, agents pause, leave, return."""

    def __init__(self, spec: BlockSpec, axis: int, pad: str, rng: np.random.Generator) -> None:
        self.spec, self.axis, self.pad, self.rng = spec, axis, pad, rng
        self.frames: list[list[np.ndarray]] = [[] for _ in range(spec.num_lanes)]  # of the episode; empty: none runs

    def stack(self, lane: int) -> np.ndarray:
        frames = self.frames[lane][-DEPTH:]
        pad = frames[0] if self.pad == "repeat" else np.zeros_like(frames[0])
        return np.stack([pad] * (DEPTH - len(frames)) + frames, self.axis)

    def see(self, lane: int) -> np.ndarray:
        self.frames[lane].append(self.rng.integers(1, 255, (4, 5), np.uint8))
        return self.stack(lane)

    def step(self) -> BlockStep:
        spec, rng, lanes = self.spec, self.rng, self.spec.num_lanes
        obs = spec.group.obs["image"].zeros(lanes)
        present, on_reset, terminated, truncated = (np.zeros(lanes, bool) for _ in range(4))
        finals: dict[int, np.ndarray] = {}
        for lane in range(lanes):
            if self.frames[lane]:
                if rng.random() < 0.15:
                    terminated[lane], truncated[lane] = (kind := rng.random() < 0.5), not kind
                    if rng.random() < 0.7:
                        finals[lane] = self.see(lane)
                    self.frames[lane] = []
                else:
                    present[lane] = rng.random() < 0.9
            if not self.frames[lane] and rng.random() < 0.7:
                present[lane] = on_reset[lane] = True
            if present[lane]:
                obs[lane] = self.see(lane)
        shape = (spec.num_envs, spec.group.num_agents)
        vector = rng.random((*shape, 2), np.float32)
        image = spec.group.obs["image"]
        final_images = np.array([finals[lane] for lane in sorted(finals)], np.uint8).reshape(-1, *image.shape)
        return BlockStep(
            obs={"image": obs.reshape(*shape, *image.shape), "vector": vector},
            present=present.reshape(shape),
            on_reset=on_reset.reshape(shape),
            reward=rng.random(shape, np.float32),
            terminated=terminated.reshape(shape),
            truncated=truncated.reshape(shape),
            final_lanes=np.array(sorted(finals), np.int64),
            final_obs={"image": final_images, "vector": rng.random((len(finals), 2), np.float32)},
        )


def reply_to(request: Request) -> InferenceReply:
    x = request.obs["image"].reshape(request.num_rows, -1).sum(1).astype(np.float32)
    state = np.where(request.on_reset[:, None], 0, request.state) / 2 + x[:, None]
    return InferenceReply((x[:, None] % 9).astype(np.int64), -x, x / 10, state.astype(np.float32), 1)


def play(layout: ChunkLayout, axis: int, pad: str, steps: int, seed: int) -> tuple[list[Chunks], list[Chunks]]:
    """The same play through a lane table that stores whole stacks, and one that stores frames."""
    rng = np.random.default_rng(seed)
    specs = make_spec(None, axis), make_spec(FrameStack(axis % 3, DEPTH, pad), axis)
    tables = [LaneTable(spec, layout, spec.group.action.field, STATE) for spec in specs]
    lanes = StackedLanes(specs[0], axis, pad, rng)
    chunks: tuple[list[Chunks], list[Chunks]] = ([], [])
    for _ in range(steps):
        step = lanes.step()
        requests = [table.observe(step) for table in tables]
        assert_equal(requests)
        for table, request in zip(tables, requests, strict=True):
            table.answer(request, reply_to(request))
        for table, shipped in zip(tables, chunks, strict=True):
            if (made := table.ship()) is not None:
                shipped.append(made)
        waiting = tables[0].ungranted()
        granted = waiting[rng.random(len(waiting)) < 0.5]
        for table in tables:
            table.grant(granted, 0)
        if len(granted):
            again = [table.ask_again(granted) for table in tables]
            assert_equal(again)
            for table, request in zip(tables, again, strict=True):
                table.answer(request, reply_to(request))
    return chunks


def assert_equal(requests: list[Request]) -> None:
    a, b = requests
    for name, obs in a.obs.items():
        np.testing.assert_array_equal(obs, b.obs[name])
    np.testing.assert_array_equal(a.places, b.places)


def batch_of(shipped: list[Chunks]) -> dict[str, torch.Tensor]:
    chunks = []
    for chunk in shipped:
        message = join_chunks([chunk])
        chunks += [Chunk(message, column, Producer(0, 0), 0) for column in range(message.num_chunks)]
    return assemble(chunks, torch.device("cpu"))


LAYOUTS = [ChunkLayout(0, 6, 1, 6), ChunkLayout(3, 4, 1, 2), ChunkLayout(5, 2, 2, 1), ChunkLayout(1, 2, 1, 1)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("pad", ["zero", "repeat"])
@pytest.mark.parametrize("axis", [0, -1])
def test_chunks_equal_those_of_whole_stacks(layout: ChunkLayout, axis: int, pad: str) -> None:
    whole, by_frame = play(layout, axis, pad, steps=250, seed=layout.rows)
    expected, batch = batch_of(whole), batch_of(by_frame)
    assert FRAMES_PREFIX + "image" in batch
    rebuilt = with_stacks(batch)
    assert set(rebuilt) == set(expected)
    valid = expected["valid"]
    assert valid.sum() > 300
    for name, x in expected.items():
        if name.startswith("obs."):
            assert torch.equal(rebuilt[name][valid], x[valid]), name
        else:
            assert torch.equal(rebuilt[name], x), name


@pytest.mark.parametrize("recurrent", ["none", "lstm"])
@pytest.mark.parametrize("layout", [ChunkLayout(0, 6, 1, 3), ChunkLayout(3, 6, 1, 3)], ids=str)
def test_an_update_is_the_same(layout: ChunkLayout, recurrent: str) -> None:
    whole, by_frame = play(layout, 0, "repeat", steps=60, seed=3)
    results = []
    for shipped in (whole, by_frame):
        spec = make_spec(None, 0)
        policy_config = ActorCriticConfig(recurrent=recurrent, recurrent_size=4, hidden=[8], normalize_obs=True)
        policy = make_policy(policy_config, spec.group.obs, spec.group.action, 5)
        batch = batch_of(shipped)
        state_size = policy.state_size
        batch["log_prob"], batch["value"] = batch["log_prob"] / 1e4, batch["value"] / 1e3
        batch["state"] = batch["state"].mean(-1, keepdim=True).expand(*batch["state"].shape[:2], state_size) / 1e4
        config = PPOConfig(
            epochs=2, minibatches=3, microbatches=2, recompute_advantage=True, staleness_correction="vtrace"
        )
        ppo: Any = make_algorithm(config, policy, layout, Collective(), 9)
        metrics = ppo.update(batch, 0.0)
        results.append((metrics, [parameter.clone() for parameter in policy.state_dict().values()]))
    assert results[0][0] == results[1][0]
    assert all(torch.equal(a, b) for a, b in zip(results[0][1], results[1][1], strict=True))


def test_a_warm_up_is_an_update_on_frames() -> None:
    spec, layout = make_spec(FrameStack(0, DEPTH, "zero"), 0), ChunkLayout(0, 6, 1, 3)
    policy = make_policy(ActorCriticConfig(hidden=[8]), spec.group.obs, spec.group.action, 5)
    ppo: Any = make_algorithm(PPOConfig(epochs=1, minibatches=2), policy, layout, Collective(), 9)
    batch = blank_batch(ppo, spec, layout, 2)
    assert {"frames.image", "stack.image", "obs.vector"} <= set(batch)
    assert with_stacks(batch)["obs.image"].shape == (layout.rows, 2, DEPTH, 4, 5)
    warm_up(ppo, spec, layout, 2)


# ------------------------------------------------------------------------------------------------------- environments


class Frames(gymnasium.Env[Any, Any]):
    """Random grey frames [4, 5]; episodes of six steps."""

    observation_space = spaces.Box(0, 255, (4, 5), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.frame(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.frame(), 1.0, self.t == 6, False, {}

    def frame(self) -> np.ndarray:
        return self.np_random.integers(1, 256, (4, 5), np.uint8)


def stacked(padding: str = "reset", depth: int = 3, limit: int = 5) -> gymnasium.Env[Any, Any]:
    return TimeLimit(FrameStackObservation(Frames(), depth, padding_type=padding), limit)


def last(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    space = spaces.Box(0, 255, (4, 5, 3), np.uint8)
    return TransformObservation(env, lambda obs: np.moveaxis(obs, 0, -1), space)


class Uncleared(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Stacks three frames, and goes on with those of the episode before."""

    observation_space = spaces.Box(0, 255, (3, 4, 5), np.uint8)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        is_new = not hasattr(self, "frames")
        self.frames = np.stack([0 * obs, 0 * obs, obs]) if is_new else np.concatenate([self.frames[1:], obs[None]])
        return self.frames, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, *rest = self.env.step(action)
        self.frames = np.concatenate([self.frames[1:], obs[None]])
        return (self.frames, *rest)  # type: ignore[return-value]


def stack_of(factory: Any, **settings: Any) -> FrameStack | None:
    block = make_block(EnvConfig(factory=factory, envs_per_block=2, **settings))
    block.close()
    return block.spec.group.obs["obs"].stack


def test_known_stacks_are_found() -> None:
    assert stack_of(stacked) == FrameStack(0, 3, "repeat")
    assert stack_of(lambda: stacked("zero")) == FrameStack(0, 3, "zero")
    assert stack_of(lambda num_envs: gymnasium.vector.SyncVectorEnv([stacked] * num_envs)) == FrameStack(0, 3, "repeat")
    assert stack_of(stacked, frame_stack="none") is None


def test_stacks_that_may_have_been_changed_are_not_found_but_can_be_declared() -> None:
    assert stack_of(lambda: last(stacked())) is None
    assert stack_of(lambda: stacked(depth=1)) is None
    assert stack_of(lambda: last(stacked()), frame_stack="last") == FrameStack(2, 3, "repeat")
    assert stack_of(lambda: Uncleared(Frames()), frame_stack="first", frame_stack_pad="zero") == FrameStack(
        0, 3, "zero"
    )


@pytest.mark.parametrize("stack", [FrameStack(0, 4, "zero"), FrameStack(3, 3, "zero"), FrameStack(-1, 5, "zero")])
def test_a_stack_must_fit_its_field(stack: FrameStack) -> None:
    with pytest.raises(ValueError, match=r"does not fit an observation of shape \(3, 4, 5\)"):
        FieldSpec((3, 4, 5), np.dtype(np.uint8), stack)


def test_a_declared_stack_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no observation is a stack of frames.*\(4, 5\)"):
        stack_of(Frames, frame_stack="first")


@pytest.mark.parametrize(
    "settings",
    [
        {"factory": stacked},
        {"factory": lambda: stacked("zero")},
        {"factory": lambda: last(stacked()), "frame_stack": "last"},
        {"factory": lambda num_envs: gymnasium.vector.SyncVectorEnv([stacked] * num_envs)},
    ],
)
def test_the_contract_check_accepts_true_stacks(settings: dict[str, Any]) -> None:
    check_contract(EnvConfig(envs_per_block=2, **settings))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"factory": lambda: stacked("zero"), "frame_stack": "first"}, r"2 frames of padding \(repeat\)"),
        ({"factory": lambda: last(stacked()), "frame_stack": "first"}, "4 frames on axis 0"),
        ({"factory": lambda: Uncleared(TimeLimit(Frames(), 99)), "frame_stack_pad": "zero"}, r"padding \(zero\)"),
        ({"factory": lambda: Uncleared(TimeLimit(Frames(), 99)), "frame_stack_pad": "zero", "vector": True}, "padding"),
    ],
)
def test_the_contract_check_refuses_false_stacks(settings: dict[str, Any], text: str) -> None:
    settings = {"frame_stack": "first", **settings}
    if settings.pop("vector", False):
        make_env = settings["factory"]
        settings["factory"] = lambda num_envs: gymnasium.vector.SyncVectorEnv([make_env] * num_envs)
    with pytest.raises(EnvironmentFault, match=rf"(?s){text}.*env.frame_stack=none"):
        check_contract(EnvConfig(envs_per_block=2, **settings))


def test_a_stack_that_breaks_its_promise_later_ends_the_run() -> None:
    block = make_block(
        EnvConfig(factory=lambda: Uncleared(Frames()), envs_per_block=1, frame_stack="first", frame_stack_pad="zero")
    )
    table = LaneTable(block.spec, ChunkLayout(0, 20, 1, 20), block.spec.group.action.field, 0)
    table.observe(block.reset(0))
    table.grant(np.arange(1), 0)
    no_action = np.zeros((1, 1, 1), np.int64)
    for _ in range(5):
        table.observe(block.step(no_action))
    with pytest.raises(EnvironmentFault, match=r"beginning of an episode.*env\.frame_stack=none"):
        table.observe(block.step(no_action))
