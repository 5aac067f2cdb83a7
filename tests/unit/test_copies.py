"""How often an observation is copied on its way from the environment to the gradient: what docs/performance.md says."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from srl_ray.actors.lanes import Chunks, LaneTable
from srl_ray.actors.worker import join_chunks
from srl_ray.algorithms.frame_stacks import split_frames
from srl_ray.algorithms.on_policy.minibatches import trained_rows
from srl_ray.core.types import ChunkLayout, FieldSpec
from srl_ray.envs.config import EnvConfig
from srl_ray.envs.factory import as_block
from srl_ray.models.config import ActorCriticConfig
from srl_ray.models.encoders import ImageEncoder
from srl_ray.models.factory import make_policy
from srl_ray.policy.staging import Staging
from srl_ray.streams.inference import InferenceReply, InferenceRequest, request_arrays, request_fields, request_of
from srl_ray.streams.inline import InlineInference, NoiseKey
from srl_ray.streams.sample_buffer import Chunk, Producer
from srl_ray.streams.shared_memory import Area
from srl_ray.trainer.batches import assemble

pytestmark = pytest.mark.unit
torch.set_num_threads(1)

ENVS, DEPTH, SIDE = 3, 4, 12
LAYOUT = ChunkLayout(0, 16, 1, 1)


class Stacks(VectorEnv[Any, Any, Any]):
    """Stacked noise without end; keeps what it returned last."""

    num_envs = ENVS
    single_observation_space = spaces.Box(0, 255, (DEPTH, SIDE, SIDE), np.uint8)
    observation_space = gymnasium.vector.utils.batch_space(single_observation_space, ENVS)
    single_action_space = spaces.Discrete(2)
    action_space = gymnasium.vector.utils.batch_space(single_action_space, ENVS)

    def __init__(self, mode: AutoresetMode) -> None:
        self.metadata = {"autoreset_mode": mode}
        self.rng = np.random.default_rng(0)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.newest = np.zeros((ENVS, DEPTH, SIDE, SIDE), np.uint8)
        return self.look(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        nobody = np.zeros(ENVS, bool)
        return self.look(), np.zeros(ENVS), nobody, nobody, {}

    def look(self) -> np.ndarray:
        frame = self.rng.integers(1, 255, (ENVS, 1, SIDE, SIDE), np.uint8)
        self.newest = np.concatenate([self.newest[:, 1:], frame], axis=1)
        return self.newest


def make(mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> tuple[Stacks, Any]:
    env = Stacks(mode)
    config = EnvConfig(factory="stacks", envs_per_block=ENVS, frame_stack="first", frame_stack_pad="zero")
    return env, as_block(env, lambda: env, config, ENVS)


def no_actions() -> np.ndarray:
    return np.zeros((ENVS, 1, 1), np.int64)


def some_chunks() -> Chunks:
    _, block = make()
    table = LaneTable(block.spec, LAYOUT, block.spec.group.action.field, 0)
    step = block.reset(0)
    while True:
        request = table.observe(step)
        zeros = np.zeros(request.num_rows, np.float32)
        table.answer(request, InferenceReply(zeros[:, None].astype(np.int64), zeros, zeros, request.state, 0))
        table.grant(np.arange(ENVS), 0)
        if (chunks := table.ship()) is not None:
            return chunks
        step = block.step(no_actions())


# ------------------------------------------------------------------------------------------ environment → inference


def test_a_vector_environments_images_reach_the_policy_in_place() -> None:
    env, block = make()
    table = LaneTable(block.spec, LAYOUT, block.spec.group.action.field, 0)
    policy = make_policy(ActorCriticConfig(), block.spec.group.obs, block.spec.group.action, 0)
    inference = InlineInference(policy, None, NoiseKey(0, 0))
    seen: list[torch.Tensor] = []
    act = policy.act
    policy.act = lambda obs, *rest: (seen.append(obs["obs"]), act(obs, *rest))[1]  # type: ignore[method-assign]
    step = block.reset(0)
    for _ in range(3):
        request = table.observe(step)
        inference.post(
            0, InferenceRequest(request.obs, request.state, request.on_reset, np.zeros(request.num_rows, np.bool_))
        )
        reply = inference.take(0, 1.0)
        assert reply is not None
        for array in (step.obs["obs"], request.obs["obs"], seen[-1].numpy()):
            assert np.shares_memory(array, env.newest)
        table.answer(request, reply)
        table.grant(np.arange(ENVS), 0)
        step = block.step(no_actions())


def test_a_masked_reset_does_not_write_into_the_environments_own_array() -> None:
    env, block = make(AutoresetMode.DISABLED)
    assert not np.shares_memory(block.reset(0).obs["obs"], env.newest)


def test_a_request_is_copied_into_shared_memory_and_into_the_staging_buffer() -> None:
    _, block = make()
    obs = block.spec.group.obs
    image = block.reset(0).obs["obs"][:, 0]
    flags = np.zeros(ENVS, np.bool_)
    request = InferenceRequest({"obs": image}, np.zeros((ENVS, 0), np.float32), flags, flags)
    fields = request_fields(obs, 0)
    memory = np.zeros(Area.bytes_of(ENVS, fields), np.uint8)
    area = Area(memory, ENVS, fields)
    area.write(1, request_arrays(request), (0, 0))
    arrived = request_of(area.view(ENVS))
    assert np.shares_memory(arrived.obs["obs"], memory)
    staging = Staging(obs, 0)
    staged = staging.load([arrived])[0]["obs"].numpy()
    assert np.shares_memory(staged, staging._arrays["obs.obs"])
    np.testing.assert_array_equal(staged, image)


# ------------------------------------------------------------------------------------------- environment → gradient


def test_a_chunk_holds_each_frame_once_and_is_written_once_more_to_travel() -> None:
    chunks = some_chunks()
    frames = chunks.arrays["frames.obs"]
    assert frames.nbytes == (LAYOUT.rows + DEPTH + 1) * ENVS * SIDE * SIDE
    assert chunks.arrays["stack.obs"].nbytes == LAYOUT.rows * ENVS * DEPTH
    message = join_chunks([chunks])
    assert message.arrays["frames.obs"] is frames
    buffers: list[pickle.PickleBuffer] = []
    inside = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    assert len(inside) < 4096, "arrays travel beside the message, not in it"
    assert any(np.shares_memory(np.frombuffer(buffer, np.uint8), frames) for buffer in buffers)
    received = pickle.loads(inside, buffers=[memoryview(bytes(buffer.raw())) for buffer in buffers])
    np.testing.assert_array_equal(received.arrays["frames.obs"], frames)
    assert not received.arrays["frames.obs"].flags.owndata, "and are read where they lie"


def test_a_batch_is_one_copy_and_a_minibatch_one_stack_per_row() -> None:
    message = join_chunks([some_chunks()])
    chunks = [Chunk(message, column, Producer(0, 0), 0) for column in range(ENVS)]
    batch = assemble(chunks, torch.device("cpu"))
    assert batch["frames.obs"].untyped_storage().nbytes() == message.arrays["frames.obs"].nbytes
    rest, frames = split_frames(batch)
    assert frames["obs"].data_ptr() == batch["frames.obs"].data_ptr()
    rows = trained_rows(rest, LAYOUT, is_recurrent=False, frames=frames)
    minibatch = rows.take(torch.tensor([5, 0, 40]))["obs.obs"]
    assert minibatch.shape == (1, 3, DEPTH, SIDE, SIDE)
    assert minibatch.untyped_storage().nbytes() == 3 * DEPTH * SIDE * SIDE
    image = minibatch.flatten(0, 1)
    assert image.data_ptr() == minibatch.data_ptr()
    assert image.contiguous(memory_format=torch.channels_last).data_ptr() == image.data_ptr(), "as the encoder wants it"
    ImageEncoder(FieldSpec((DEPTH, SIDE, SIDE), np.dtype(np.uint8)))(image)
