"""Policies: what they accept, and that a batch is evaluated as it was acted."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from lanes import Bandit, Collector, Recall

from srl_ray.algorithms.on_policy.minibatches import trained_rows
from srl_ray.core.errors import ConfigError
from srl_ray.core.types import ActionSpec, ChunkLayout, ContinuousActions, DiscreteActions, FieldSpec
from srl_ray.models.config import ActorCriticConfig, CustomPolicyConfig, HideAndSeekPolicyConfig, PolicyConfig
from srl_ray.models.factory import make_policy

pytestmark = pytest.mark.unit

FLOAT, BOOL, BYTE = np.dtype(np.float32), np.dtype(bool), np.dtype(np.uint8)
TWO = DiscreteActions((2,))
BOX = ContinuousActions(np.full(3, -1, np.float32), np.full(3, 1, np.float32))


def hide_and_seek_obs(others: int = 5, boxes: int = 9, ramps: int = 2) -> dict[str, FieldSpec]:
    obs = {
        "self": FieldSpec((10,), FLOAT),
        "others": FieldSpec((others, 10), FLOAT),
        "boxes": FieldSpec((boxes, 15), FLOAT),
        "ramps": FieldSpec((ramps, 15), FLOAT),
        "lidar": FieldSpec((30,), FLOAT),
    }
    for name in ("others", "boxes", "ramps"):
        obs["mask_" + name] = FieldSpec(obs[name].shape[:1], BOOL)
        obs["exists_" + name] = FieldSpec(obs[name].shape[:1], BOOL)
    return obs


def random_obs(obs: dict[str, FieldSpec], *leading: int, seed: int = 0) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    fields = {}
    for name, spec in obs.items():
        shape = (*leading, *spec.shape)
        x = rng.integers(0, 256, shape) if spec.dtype == np.uint8 else rng.normal(size=shape)
        fields[name] = torch.from_numpy((x > 0 if spec.dtype == bool else x).astype(spec.dtype))
    return fields


def act(policy: Any, obs: dict[str, torch.Tensor], **kwargs: Any) -> Any:
    rows = len(next(iter(obs.values())))
    options = {
        "state": policy.initial_state(rows),
        "on_reset": torch.ones(rows, dtype=torch.bool),
        "deterministic": torch.zeros(rows, dtype=torch.bool),
        "generator": torch.Generator().manual_seed(1),
    }
    return policy.act(obs, **(options | kwargs))


@pytest.mark.parametrize(
    "obs",
    [
        {"obs": FieldSpec((4,), FLOAT)},
        {
            "a": FieldSpec((), np.dtype(np.int64)),
            "b": FieldSpec((3, 2), np.dtype(np.float64)),
            "c": FieldSpec((2,), BOOL),
        },
        {"screen": FieldSpec((84, 84, 4), BYTE)},
        {"screen": FieldSpec((4, 84, 84), BYTE)},
        {"board": FieldSpec((7, 7, 3), BYTE), "compass": FieldSpec((4,), FLOAT)},
    ],
    ids=["vector", "mixed_vectors", "image_hwc", "image_chw", "small_image_and_vector"],
)
@pytest.mark.parametrize("action", [TWO, DiscreteActions((3, 3, 2)), BOX], ids=["discrete", "multi", "continuous"])
@pytest.mark.parametrize(
    "config",
    [ActorCriticConfig(), ActorCriticConfig(separate=False, recurrent="lstm", normalize_obs=True, layer_norm=True)],
    ids=["feed_forward", "recurrent"],
)
def test_observations_and_actions_of_every_kind(obs: Any, action: ActionSpec, config: ActorCriticConfig) -> None:
    policy = make_policy(config, obs, action, 0)
    answer = act(policy, random_obs(obs, 3))
    assert answer.action.numpy().dtype == action.field.dtype
    assert answer.action.shape == (3, *action.field.shape)
    assert answer.log_prob.shape == answer.value.shape == (3,)
    assert answer.state.shape == (3, policy.state_size)
    batch = {"obs." + name: x for name, x in random_obs(obs, 4, 3).items()}
    batch |= {
        "action": torch.from_numpy(action.field.zeros(4, 3)),
        "on_reset": torch.zeros(4, 3, dtype=torch.bool),
        "state": torch.zeros(2, 3, policy.state_size),
        "mask": torch.ones(4, 3, dtype=torch.bool),
    }
    policy.update_statistics(batch)
    evaluation = policy.evaluate(batch)
    (evaluation.log_prob + evaluation.entropy + evaluation.value).sum().backward()
    for name, parameter in policy.named_parameters():  # type: ignore[attr-defined]
        assert parameter.grad is not None, name


def test_channel_order_of_an_image_does_not_matter() -> None:
    last, first = FieldSpec((84, 84, 4), BYTE), FieldSpec((4, 84, 84), BYTE)
    image = random_obs({"screen": last}, 2)["screen"]
    a = act(make_policy(ActorCriticConfig(), {"screen": last}, TWO, 0), {"screen": image})
    b = act(make_policy(ActorCriticConfig(), {"screen": first}, TWO, 0), {"screen": image.movedim(-1, 1).contiguous()})
    torch.testing.assert_close(a.value, b.value)


@pytest.mark.parametrize(
    "spec", [FieldSpec((64, 64, 3), FLOAT), FieldSpec((5,), np.dtype("U8")), FieldSpec((2, 2, 2, 2), BYTE)]
)
def test_a_field_without_an_encoder_is_named(spec: FieldSpec) -> None:
    with pytest.raises(ConfigError, match=r"observation field 'strange' has shape .* expected numbers"):
        make_policy(ActorCriticConfig(), {"fine": FieldSpec((2,), FLOAT), "strange": spec}, TWO, 0)


def test_an_action_mask_must_fit_the_actions() -> None:
    obs = {"x": FieldSpec((2,), FLOAT), "action_mask": FieldSpec((3,), BOOL)}
    with pytest.raises(ConfigError, match=r"'action_mask' has shape \(3,\), expected \(2,\)"):
        make_policy(ActorCriticConfig(), obs, TWO, 0)
    with pytest.raises(ConfigError, match="goes with discrete actions"):
        make_policy(ActorCriticConfig(), obs, BOX, 0)


def test_masked_actions_are_never_taken_and_padding_does_not_hurt() -> None:
    obs = {"x": FieldSpec((2,), FLOAT), "action_mask": FieldSpec((5,), BOOL)}
    policy = make_policy(ActorCriticConfig(), obs, DiscreteActions((3, 2)), 0)
    fields = {"x": torch.randn(500, 2), "action_mask": torch.tensor([0, 1, 1, 1, 0]).bool().expand(500, 5)}
    answer = act(policy, fields)
    assert set(answer.action[:, 0].tolist()) == {1, 2}
    assert set(answer.action[:, 1].tolist()) == {0}
    batch = {
        "obs.x": torch.zeros(1, 2, 2),
        "obs.action_mask": torch.tensor([[[0] * 5, [0, 1, 1, 1, 0]]]).bool(),
        "action": torch.tensor([[[0, 0], [1, 0]]]),
        "on_reset": torch.zeros(1, 2, dtype=torch.bool),
        "state": torch.zeros(1, 2, 0),
    }
    assert policy.evaluate(batch).log_prob.isfinite().all()
    with pytest.raises(ValueError, match="no legal action"):
        act(policy, {"x": torch.zeros(1, 2), "action_mask": torch.zeros(1, 5, dtype=torch.bool)})


def test_weights_depend_on_the_seed_alone() -> None:
    obs = {"x": FieldSpec((4,), FLOAT)}
    torch.manual_seed(0)
    before = torch.get_rng_state()
    weights = [make_policy(ActorCriticConfig(), obs, TWO, seed).state_dict() for seed in (1, 1, 2)]  # type: ignore[attr-defined]
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])


class Own(torch.nn.Module):
    def __init__(self, obs: Any, action: Any, config: CustomPolicyConfig) -> None:
        super().__init__()
        self.arguments = (obs, action, config)


def test_a_policy_by_import_path() -> None:
    config = CustomPolicyConfig(target=f"{__name__}:Own", kwargs={"width": 3})
    policy: Any = make_policy(config, {"x": FieldSpec((4,), FLOAT)}, TWO, 0)
    assert isinstance(policy, Own)
    assert policy.arguments[2].kwargs == {"width": 3}


def test_a_config_without_a_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="PolicyConfig"):
        make_policy(PolicyConfig(), {"x": FieldSpec((4,), FLOAT)}, TWO, 0)


# -- evaluated as acted ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("recurrent", ["none", "lstm", "gru"])
@pytest.mark.parametrize(
    "layout", [ChunkLayout(0, 12, 1, 4), ChunkLayout(5, 12, 1, 6), ChunkLayout(3, 8, 2, 8)], ids=str
)
def test_a_batch_is_evaluated_as_it_was_acted(layout: ChunkLayout, recurrent: str, separate: bool) -> None:
    """Across resets of two kinds, segment borders, stored states and burn-in, in the third chunk of eight lanes."""
    config = ActorCriticConfig(recurrent=recurrent, separate=separate, recurrent_size=16, normalize_value=True)
    policy: Any = make_policy(config, Recall.obs, TWO, 0)
    for parameter in policy.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.3)
    policy.value_scale.update(torch.randn(30) * 5 + 2, torch.ones(30, dtype=torch.bool))
    collector = Collector(lambda i: Recall(i, TWO, delay=2 + i % 3), policy, layout, 8)
    for _ in range(3):
        batch = collector.batch()
    if layout.burn_in:
        batch["state"][1] = torch.nan  # must be recomputed from the burn-in rows
    rows = trained_rows(batch, layout, is_recurrent=policy.state_size > 0)
    assert rows.fields["on_reset"].any()
    assert batch["truncated"].any()
    assert batch["terminated"].any()
    evaluation = policy.evaluate({**rows.fields, "state": rows.state, **rows.burn_in})
    mask = rows.fields["mask"]
    torch.testing.assert_close(evaluation.log_prob[mask], rows.fields["log_prob"][mask], atol=1e-5, rtol=1e-4)
    value = policy.value_scale.denormalize(evaluation.value)
    torch.testing.assert_close(value[mask], rows.fields["value"][mask], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layout", [ChunkLayout(0, 12, 1, 4), ChunkLayout(0, 12, 1, 12)], ids=str)
def test_shuffled_units_are_evaluated_as_they_were_acted(layout: ChunkLayout) -> None:
    for recurrent in ("none", "lstm"):
        policy: Any = make_policy(ActorCriticConfig(recurrent=recurrent), Recall.obs, TWO, 0)
        batch = Collector(lambda i: Recall(i, TWO), policy, layout, 6).batch()
        rows = trained_rows(batch, layout, is_recurrent=policy.state_size > 0)
        units = rows.units()
        part = rows.take(units[torch.randperm(len(units))[: len(units) // 2]])
        evaluation = policy.evaluate(part)
        torch.testing.assert_close(
            evaluation.log_prob[part["mask"]], part["log_prob"][part["mask"]], atol=1e-5, rtol=1e-4
        )


def test_continuous_actions_are_evaluated_as_they_were_acted() -> None:
    policy: Any = make_policy(ActorCriticConfig(init_log_std=-0.7, normalize_obs=True), Bandit.obs, BOX, 0)
    batch = Collector(lambda i: Bandit(i, BOX), policy, ChunkLayout(0, 6, 1, 6), 4).batch()
    rows = trained_rows(batch, ChunkLayout(0, 6, 1, 6), is_recurrent=False)
    mask = rows.fields["mask"]
    evaluation = policy.evaluate({**rows.fields, "state": rows.state})
    torch.testing.assert_close(evaluation.log_prob[mask], rows.fields["log_prob"][mask])


# -- hide-and-seek -----------------------------------------------------------------------------------------------------

MOVES = DiscreteActions((11, 11, 11, 2, 2))


def hide_and_seek(**kwargs: Any) -> Any:
    return make_policy(HideAndSeekPolicyConfig(**kwargs), hide_and_seek_obs(), MOVES, 0)


def test_the_paper_scale_has_the_published_number_of_parameters() -> None:
    policy = hide_and_seek(scale="paper")
    count = {name: sum(p.numel() for p in part.parameters()) for name, part in policy.named_children()}
    assert count["actor"] + count["action_head"] == 817_737
    assert count["critic"] + count["value_head"] == 808_485
    assert sum(count.values()) == 1_626_222


def test_the_actor_sees_what_is_visible_and_the_critic_what_exists() -> None:
    policy = hide_and_seek()
    obs = random_obs(hide_and_seek_obs(), 4)
    for name in ("others", "boxes", "ramps"):
        obs["exists_" + name] |= obs["mask_" + name]
        obs["exists_" + name][:, 0], obs["mask_" + name][:, 0] = True, False
    deterministic = torch.ones(4, dtype=torch.bool)
    plain = act(policy, obs, deterministic=deterministic)
    for name in ("others", "boxes", "ramps"):
        hidden = {**obs, name: obs[name].clone()}
        hidden[name][:, 0] += 1.0
        answer = act(policy, hidden, deterministic=deterministic)
        torch.testing.assert_close(answer.log_prob, plain.log_prob)
        assert not torch.isclose(answer.value, plain.value).any()
        absent = {**obs, name: obs[name].clone()}
        absent[name][~obs["exists_" + name]] += 1.0
        answer = act(policy, absent, deterministic=deterministic)
        torch.testing.assert_close(answer.log_prob, plain.log_prob)
        torch.testing.assert_close(answer.value, plain.value)


def test_the_order_of_entities_does_not_matter() -> None:
    policy = hide_and_seek()
    obs = random_obs(hide_and_seek_obs(), 4)
    order = torch.randperm(9)
    shuffled = {name: x[:, order] if name.endswith("boxes") else x for name, x in obs.items()}
    torch.testing.assert_close(act(policy, obs).value, act(policy, shuffled).value, atol=1e-5, rtol=1e-4)


def test_the_split_first_layer_equals_a_dense_layer_of_main_and_features() -> None:
    embedding = hide_and_seek().actor.encoder.embedding
    main, others = torch.randn(3, 280), torch.randn(3, 5, 10)
    weight = torch.cat([embedding.main.weight[64:128], embedding.features[0].weight], 1)
    both = torch.cat([main[:, None].expand(3, 5, 280), others], -1)
    expected = torch.relu(both @ weight.t() + embedding.main.bias[64:128])
    alone, got = embedding(main, [others, torch.randn(3, 9, 15), torch.randn(3, 2, 15)])
    torch.testing.assert_close(got[:, 1:6], expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(got[:, 0], alone)


def test_the_lidar_convolution_is_circular() -> None:
    encoder = hide_and_seek().actor.encoder
    lidar = torch.randn(2, 30)
    padded = torch.cat([lidar[:, -1:], lidar, lidar[:, :1]], 1)
    expected = torch.conv1d(padded[:, None], encoder.lidar.weight[:, None], encoder.lidar.bias).relu()
    torch.testing.assert_close(encoder._convolve(lidar).unflatten(1, (30, 9)).transpose(1, 2), expected)


def test_entities_that_do_not_exist_are_left_out_of_the_statistics() -> None:
    policy = hide_and_seek()
    obs = random_obs(hide_and_seek_obs(), 6, 4)
    obs["boxes"][~obs["exists_boxes"]] = 1e6
    batch = {"obs." + name: x for name, x in obs.items()} | {"mask": torch.rand(6, 4) < 0.7}
    policy.update_statistics(batch)
    rows = obs["boxes"][batch["mask"]][obs["exists_boxes"][batch["mask"]]]
    mean = dict(
        zip(("self", "lidar", "others", "boxes", "ramps"), policy.normalizer.moments.mean.split([10, 30, 10, 15, 15]))
    )
    torch.testing.assert_close(mean["boxes"], rows.double().mean(0))


def test_hide_and_seek_is_evaluated_as_it_was_acted() -> None:
    policy = hide_and_seek()
    specs = hide_and_seek_obs()
    steps, lanes = 6, 3
    obs, on_reset = random_obs(specs, steps, lanes), torch.rand(steps, lanes) < 0.3
    state = first = torch.randn(lanes, policy.state_size)
    answers = []
    for t in range(steps):
        answers.append(act(policy, {name: x[t] for name, x in obs.items()}, state=state, on_reset=on_reset[t]))
        state = answers[-1].state.clone()
    batch = {"obs." + name: x for name, x in obs.items()}
    batch |= {"action": torch.stack([a.action for a in answers]).clone(), "on_reset": on_reset, "state": first[None]}
    evaluation = policy.evaluate(batch)
    torch.testing.assert_close(
        evaluation.log_prob, torch.stack([a.log_prob for a in answers]).clone(), atol=1e-5, rtol=1e-4
    )
    torch.testing.assert_close(evaluation.value, torch.stack([a.value for a in answers]).clone(), atol=1e-5, rtol=1e-4)


def test_no_rows_have_a_gradient_of_zero() -> None:
    """A trainer worker without data still takes part in the reductions."""
    policy = hide_and_seek()
    batch = {"obs." + name: x for name, x in random_obs(hide_and_seek_obs(), 4, 0).items()}
    batch |= {"action": torch.zeros(4, 0, 5, dtype=torch.int64), "on_reset": torch.zeros(4, 0, dtype=torch.bool)}
    batch |= {"state": torch.zeros(1, 0, policy.state_size), "mask": torch.zeros(4, 0, dtype=torch.bool)}
    policy.update_statistics(batch)
    evaluation = policy.evaluate(batch)
    (evaluation.log_prob + evaluation.entropy + evaluation.value).sum().backward()
    assert all((parameter.grad == 0).all() for parameter in policy.parameters())


def test_other_entity_numbers_are_accepted() -> None:
    obs = hide_and_seek_obs(3, 2, 1)
    policy: Any = make_policy(HideAndSeekPolicyConfig(normalize_obs=False), obs, MOVES, 0)
    assert act(policy, random_obs(obs, 2)).action.shape == (2, 5)


def test_a_missing_field_is_named() -> None:
    obs = hide_and_seek_obs()
    del obs["exists_ramps"]
    with pytest.raises(ConfigError, match="'exists_ramps'"):
        make_policy(HideAndSeekPolicyConfig(), obs, MOVES, 0)
    obs["exists_ramps"] = FieldSpec((3,), BOOL)
    with pytest.raises(ConfigError, match=r"'exists_ramps' has the unexpected shape \(3,\)"):
        make_policy(HideAndSeekPolicyConfig(), obs, MOVES, 0)


@pytest.mark.parametrize("name", ["actor_critic", "hide_and_seek"])
def test_the_state_dict_holds_everything(name: str) -> None:
    config: PolicyConfig = HideAndSeekPolicyConfig()
    obs, action = hide_and_seek_obs(), MOVES
    if name == "actor_critic":
        config = ActorCriticConfig(recurrent="gru", normalize_obs=True, normalize_value=True)
        obs, action = {"x": FieldSpec((4,), FLOAT)}, TWO
    trained: Any = make_policy(config, obs, action, 0)
    trained.value_scale.update(torch.randn(9) + 4, torch.ones(9, dtype=torch.bool))
    batch = {"obs." + key: x for key, x in random_obs(obs, 5, 2).items()} | {"mask": torch.ones(5, 2, dtype=torch.bool)}
    trained.update_statistics(batch)
    other: Any = make_policy(config, obs, action, 1)
    weights = copy.deepcopy(trained.state_dict())
    for key, tensor in other.state_dict().items():
        tensor.copy_(weights[key])
    fields = random_obs(obs, 4, seed=3)
    torch.testing.assert_close(act(other, fields).value, act(trained, fields).value, atol=0, rtol=0)
    assert torch.equal(act(other, fields).action, act(trained, fields).action)


def test_a_board_is_a_vector_whatever_its_axes() -> None:
    """Numbers that are no picture are flattened: a float board [3, 3, 2] decides as its 18 numbers do."""
    board = random_obs({"board": FieldSpec((3, 3, 2), FLOAT)}, 4)["board"]
    a = act(make_policy(ActorCriticConfig(), {"board": FieldSpec((3, 3, 2), FLOAT)}, TWO, 0), {"board": board})
    b = act(make_policy(ActorCriticConfig(), {"board": FieldSpec((18,), FLOAT)}, TWO, 0), {"board": board.flatten(1)})
    torch.testing.assert_close(a.value, b.value)
