"""Requests and replies survive packing; inline inference joins, keeps slots apart and repeats itself with its seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from srl_ray.core.types import DiscreteActions, FieldSpec
from srl_ray.models.config import ActorCriticConfig
from srl_ray.models.factory import make_policy
from srl_ray.streams.inference import InferenceRequest, PolicySignature, reply_packer, request_packer
from srl_ray.streams.inline import InlineInference, NoiseKey
from srl_ray.streams.sample_buffer import Chunk, ChunkMessage, Producer
from srl_ray.trainer.batches import assemble, trained_rows

pytestmark = pytest.mark.unit

OBS = {
    "image": FieldSpec((3, 5), np.dtype(np.uint8)),
    "x": FieldSpec((4,), np.dtype(np.float32)),
    "mask": FieldSpec((7,), np.dtype(np.bool_)),
}
ACTION = DiscreteActions((3, 2))


@pytest.mark.parametrize("rows", [0, 1, 13])
def test_packed_requests_and_replies_come_out_as_they_went_in(rows: int) -> None:
    rng = np.random.default_rng(0)
    for packer in (request_packer(OBS, 6), reply_packer(PolicySignature(ACTION.field, 6))):
        arrays = {
            name: (rng.random((rows, *spec.shape)) * 9).astype(spec.dtype) for name, spec in packer.fields.items()
        }
        packed = packer.pack(arrays)
        assert packed.nbytes == rows * packer.row_bytes
        for name, array in packer.unpack(packed).items():
            assert array.dtype == packer.fields[name].dtype
            assert array.flags.aligned
            np.testing.assert_array_equal(array, arrays[name])


def make_inference(*, joint: bool) -> InlineInference:
    policy = make_policy(ActorCriticConfig(recurrent="lstm", recurrent_size=8), {"x": OBS["x"]}, ACTION, seed=0)
    return InlineInference(policy, None, NoiseKey(1, 0), joint=joint)


def request(inference: InlineInference, rows: int, seed: int) -> InferenceRequest:
    rng = np.random.default_rng(seed)
    return InferenceRequest(
        {"x": rng.normal(size=(rows, 4)).astype(np.float32)},
        rng.normal(size=(rows, inference.signature.state_size)).astype(np.float32),
        np.zeros(rows, np.bool_),
        np.ones(rows, np.bool_),
    )


def test_slots_answered_together_get_the_answers_they_would_get_alone() -> None:
    together, alone = make_inference(joint=True), make_inference(joint=False)
    replies = []
    for inference in (together, alone):
        for slot in range(3):
            inference.post(slot, request(inference, slot + 1, seed=slot))
        replies.append([inference.take(slot, 1.0) for slot in range(3)])
    for joined, single in zip(*replies):
        assert joined is not None
        assert single is not None
        np.testing.assert_array_equal(joined.action, single.action)
        np.testing.assert_allclose(joined.value, single.value, atol=1e-5)
        np.testing.assert_allclose(joined.state, single.state, atol=1e-5)


def test_noise_is_a_function_of_seed_worker_slot_and_sequence() -> None:
    def actions() -> list[np.ndarray]:
        inference = make_inference(joint=False)
        taken = []
        for _ in range(3):
            asked = request(inference, 50, seed=5)
            asked.deterministic[:] = False
            inference.post(0, asked)
            reply = inference.take(0, 1.0)
            assert reply is not None
            taken.append(reply.action)
        return taken

    first, second = actions(), actions()
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first[0], first[1])


def test_a_sample_batch_is_the_chunks_side_by_side() -> None:
    def message(worker: int, chunks: int) -> ChunkMessage:
        reward = np.arange(4 * chunks, dtype=np.float32).reshape(4, chunks) + 100 * worker
        return ChunkMessage(
            {"reward": reward, "state": reward[:2, :, None]},
            np.arange(chunks),
            np.zeros(chunks, np.int64),
            np.arange(chunks) + 1,
            np.zeros(chunks, np.int64),
        )

    first, second = message(1, 3), message(2, 2)
    chosen = [(first, 0), (first, 2), (second, 1)]
    chunks = [Chunk(m, column, Producer(0, 0), 0) for m, column in chosen]
    batch = assemble(chunks, torch.device("cpu"))
    expected = np.stack([m.arrays["reward"][:, column] for m, column in chosen], axis=1)
    np.testing.assert_array_equal(batch["reward"].numpy(), expected)
    assert batch["state"].shape == (2, 3, 1)
    assert trained_rows(chunks) == 1 + 3 + 2
