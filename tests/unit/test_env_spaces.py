"""Spaces: every kind becomes named fields and comes back as the environment wants it."""

import logging

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from srl_ray.core.errors import ConfigError
from srl_ray.core.types import ACTION_MASK, ContinuousActions, DiscreteActions, FieldSpec
from srl_ray.envs import spaces as env_spaces
from srl_ray.envs.spaces import ActionAdapter, ContractBreach, ObservationAdapter

pytestmark = pytest.mark.unit

TWO = DiscreteActions(nvec=(2,), start=(0,))


def observe(space, obs, action=TWO):
    adapter = ObservationAdapter(space, action, "test")
    buffers = adapter.allocate(2)
    adapter.writer(buffers)(1, obs)
    return {name: rows[1] for name, rows in buffers.items()}


def box(low=-1.0, high=1.0, shape=(2,), dtype=np.float32):
    return spaces.Box(low, high, shape, dtype)


def test_plain_space_becomes_the_field_obs():
    row = observe(box(), np.array([0.5, -0.5], np.float32))
    assert list(row) == ["obs"]
    np.testing.assert_array_equal(row["obs"], [0.5, -0.5])


def test_uint8_image_stays_uint8():
    row = observe(box(0, 255, (2, 2, 1), np.uint8), np.full((2, 2, 1), 255, np.uint8))
    assert row["obs"].dtype == np.uint8
    assert row["obs"].max() == 255


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.int64, np.int8])
def test_other_boxes_are_cast_once_to_float32_without_a_warning(dtype, caplog):
    row = observe(box(-5, 5, (2,), dtype), np.array([3, -2], dtype))
    assert row["obs"].dtype == np.float32
    np.testing.assert_array_equal(row["obs"], [3, -2])
    assert not caplog.records


def test_nested_spaces_are_flattened_to_names_by_path():
    space = spaces.Dict({"a": spaces.Dict({"b": box(), "c": spaces.Discrete(3)}), "t": spaces.Tuple((box(), box()))})
    vector = np.array([0.25, 0.5], np.float32)
    row = observe(space, {"t": (vector, -vector), "a": {"c": np.int64(2), "b": vector}})
    assert set(row) == {"a.b", "a.c", "t.0", "t.1"}
    np.testing.assert_array_equal(row["a.c"], [0, 0, 1])
    np.testing.assert_array_equal(row["t.1"], -vector)


def test_key_order_of_a_returned_dict_is_irrelevant():
    space = spaces.Dict({"x": box(), "y": box(), "img": box(0, 255, (2, 2, 3), np.uint8)})
    x, y, img = np.ones(2, np.float32), -np.ones(2, np.float32), np.full((2, 2, 3), 255, np.uint8)
    one = observe(space, {"x": x, "y": y, "img": img})
    other = observe(space, {"img": img, "y": y, "x": x})
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])
    np.testing.assert_array_equal(one["y"], y)


def test_discrete_observations_are_one_hot_from_their_start():
    np.testing.assert_array_equal(observe(spaces.Discrete(3, start=-1), 1)["obs"], [0, 0, 1])
    np.testing.assert_array_equal(observe(spaces.Discrete(3, start=-1), np.int64(-1))["obs"], [1, 0, 0])
    many = spaces.MultiDiscrete([2, 3], start=[5, 0])
    np.testing.assert_array_equal(observe(many, np.array([6, 0]))["obs"], [0, 1, 1, 0, 0])
    np.testing.assert_array_equal(observe(spaces.MultiBinary(3), np.array([1, 0, 1], np.int8))["obs"], [1, 0, 1])


def test_rows_are_overwritten_and_not_added_to():
    adapter = ObservationAdapter(spaces.Discrete(3), TWO, "test")
    buffers = adapter.allocate(1)
    write = adapter.writer(buffers)
    write(0, 0)
    write(0, 2)
    np.testing.assert_array_equal(buffers["obs"], [[0, 0, 1]])


@pytest.mark.parametrize(
    ("space", "obs", "words"),
    [
        (box(), None, ["obs", "float32", "(2,)", "None"]),
        (box(), np.zeros(3, np.float32), ["obs", "(2,)", "(3,)"]),
        (box(), np.zeros(1, np.float32), ["obs", "(2,)", "(1,)"]),
        (box(0, 255, (2,), np.uint8), np.zeros(2), ["obs", "uint8", "float64"]),
        (spaces.Discrete(3), 3, ["obs", "0", "2", "3"]),
        (spaces.Discrete(3), 1.5, ["obs", "integer", "float64"]),
        (spaces.MultiDiscrete([2, 2]), np.array([0, 2]), ["obs", "[0, 2]"]),
        (spaces.Dict({"x": box(), "y": box()}), {"x": np.zeros(2, np.float32)}, ["'y'", "['x']"]),
        (spaces.Dict({"x": box()}), np.zeros(2, np.float32), ["'x'", "ndarray"]),
    ],
)
def test_observation_that_does_not_fit_is_refused_in_words(space, obs, words):
    with pytest.raises(ContractBreach) as caught:
        observe(space, obs)
    for word in words:
        assert word in str(caught.value)


def test_castable_dtype_warns_once(caplog):
    env_spaces._warned.clear()
    adapter = ObservationAdapter(box(), TWO, "test-castable")
    write = adapter.writer(adapter.allocate(2))
    with caplog.at_level(logging.WARNING):
        write(0, np.zeros(2))
        write(1, np.zeros(2))
    assert len(caplog.records) == 1
    assert "float64" in caplog.text
    assert "float32" in caplog.text


def test_action_mask_becomes_bool():
    space = spaces.Dict({"grid": box(), "action_mask": spaces.MultiBinary(3)})
    action = DiscreteActions(nvec=(3,), start=(0,))
    row = observe(space, {"grid": np.zeros(2, np.float32), "action_mask": np.array([1, 0, 1], np.int8)}, action)
    assert row[ACTION_MASK].dtype == np.bool_
    assert row[ACTION_MASK].tolist() == [True, False, True]


def test_action_mask_of_several_components_is_concatenated():
    masks = spaces.Tuple((spaces.MultiBinary(2), spaces.MultiBinary(3)))
    space = spaces.Dict({"grid": box(), "action_mask": masks})
    action = DiscreteActions(nvec=(2, 3), start=(0, 0))
    obs = {"grid": np.zeros(2, np.float32), "action_mask": (np.array([0, 1]), np.array([1, 1, 0]))}
    assert observe(space, obs, action)[ACTION_MASK].tolist() == [False, True, True, True, False]


def test_action_mask_of_the_wrong_size_is_refused():
    space = spaces.Dict({"grid": box(), "action_mask": spaces.MultiBinary(4)})
    with pytest.raises(ConfigError, match=r"4 flags.*3"):
        ObservationAdapter(space, DiscreteActions(nvec=(3,), start=(0,)), "test")


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(box()),
        spaces.Graph(box(), None),
        spaces.Dict({"inner": spaces.Dict({"word": spaces.Text(5)})}),
        spaces.Discrete(10**9),
    ],
)
def test_unsupported_observation_spaces_are_refused_by_name(space):
    with pytest.raises(ConfigError) as caught:
        ObservationAdapter(space, TWO, "my-env")
    assert "my-env" in str(caught.value)
    leaf = "word" if isinstance(space, spaces.Dict) else "obs"
    assert leaf in str(caught.value)


BATCHED = [
    box(),
    box(0, 255, (2, 2, 1), np.uint8),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 3], start=[5, 0]),
    spaces.MultiBinary(3),
    spaces.Dict({"a": spaces.Dict({"b": box(), "c": spaces.Discrete(3)}), "t": spaces.Tuple((box(), box()))}),
    spaces.Dict({"grid": box(), "action_mask": spaces.MultiBinary(2)}),
]


@pytest.mark.parametrize("space", BATCHED, ids=str)
def test_batched_writing_equals_writing_one_by_one(space):
    from gymnasium.vector.utils import concatenate, create_empty_array

    space.seed(0)
    samples = [space.sample() for _ in range(4)]
    batch = concatenate(space, samples, create_empty_array(space, 4))
    adapter = ObservationAdapter(space, TWO, "test")
    one_by_one, at_once = adapter.allocate(4), adapter.allocate(4)
    write = adapter.writer(one_by_one)
    for index, sample in enumerate(samples):
        write(index, sample)
    adapter.write_all(at_once, batch)
    for name, spec in adapter.fields.items():
        assert at_once[name].dtype == spec.dtype
        np.testing.assert_array_equal(one_by_one[name], at_once[name])


# -------------------------------------------------------------------------------------------------------------- actions

DISCRETE = [
    (spaces.Discrete(3), (3,), (0,)),
    (spaces.Discrete(3, start=-1), (3,), (-1,)),
    (spaces.MultiDiscrete([2, 3]), (2, 3), (0, 0)),
    (spaces.MultiDiscrete([2, 3], start=[5, -7]), (2, 3), (5, -7)),
    (spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 2], [3, 4]]), (2, 3, 4, 2), (1, 2, 3, 4)),
    (spaces.MultiBinary(3), (2, 2, 2), (0, 0, 0)),
    (spaces.Box(-1, 1, (5,), np.int32), (3,) * 5, (-1,) * 5),
    (spaces.Box(np.array([0, -2]), np.array([1, 5]), dtype=np.int64), (2, 8), (0, -2)),
    (spaces.Tuple((spaces.Discrete(2, start=4), spaces.MultiBinary(2))), (2, 2, 2), (4, 0, 0)),
    (
        spaces.Dict({"move": spaces.Discrete(3, start=1), "hands": spaces.Dict({"left": spaces.Discrete(2, start=9)})}),
        None,
        None,
    ),
]


@pytest.mark.parametrize(("space", "nvec", "start"), DISCRETE, ids=lambda value: str(value))
def test_discrete_actions_stay_in_their_space_whatever_the_start(space, nvec, start):
    adapter = ActionAdapter(space, "test")
    assert isinstance(adapter.spec, DiscreteActions)
    if nvec is not None:
        assert adapter.spec.nvec == nvec
        assert adapter.spec.start == start
    counts = np.asarray(adapter.spec.nvec)
    lowest, highest = np.zeros_like(counts), counts - 1
    rng = np.random.default_rng(0)
    actions = np.stack([lowest, highest, *(rng.integers(0, counts) for _ in range(30))])
    decoded = adapter.decode(actions)
    assert all(action in space for action in decoded)
    assert adapter.decode_all(actions) in batch_space(space, len(actions))
    assert len({str(action) for action in decoded}) > 1


def test_discrete_start_is_added():
    assert ActionAdapter(spaces.Discrete(3, start=-1), "test").decode(np.array([[0], [2]])) == [-1, 1]


def test_nested_action_has_the_structure_of_its_space():
    space = spaces.Dict(
        {"b": spaces.Discrete(2, start=7), "a": spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2)))}
    )
    adapter = ActionAdapter(space, "test")
    names = list(space.spaces)
    columns = {"a": [2, 1, 0], "b": [1]}
    action = adapter.decode(np.array([[value for name in names for value in columns[name]]]))[0]
    assert action["b"] == 8
    assert action["a"][0] == 2
    assert action["a"][1].tolist() == [1, 0]


def test_float_box_is_clipped_to_asymmetric_bounds_in_its_own_dtype():
    space = spaces.Box(np.array([0.0, -2.0], np.float32), np.array([1.0, 5.0], np.float32))
    adapter = ActionAdapter(space, "test")
    assert isinstance(adapter.spec, ContinuousActions)
    sample = np.array([[-9.0, 9.0], [0.25, -1.5], [9.0, -9.0]], np.float32)
    decoded = adapter.decode(sample)
    assert all(action in space for action in decoded)
    np.testing.assert_array_equal(np.stack(decoded), np.array([[0, 5], [0.25, -1.5], [1, -2]], np.float32))
    np.testing.assert_array_equal(sample[0], [-9, 9])


def test_float64_box_with_a_shape_gets_its_dtype_and_shape():
    space = spaces.Box(-0.1, 0.1, (2, 3), np.float64)
    adapter = ActionAdapter(space, "test")
    assert adapter.spec.field == FieldSpec((6,), np.dtype(np.float32))
    assert adapter.spec.shape == (2, 3)
    action = adapter.decode(np.full((1, 6), 0.1, np.float32))[0]
    assert action in space


def test_environment_may_write_to_its_action():
    stored = np.array([[0.5, 0.5]], np.float32)
    stored.flags.writeable = False
    action = ActionAdapter(box(), "test").decode(stored)[0]
    action += 1.0
    assert stored[0, 0] == 0.5


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Box(-(2**31), 2**31 - 1, (2,), np.int32), ["integer Box"]),
        (spaces.Text(3), ["Text"]),
        (spaces.Dict({"word": spaces.Text(3)}), ["'word'", "Text"]),
        (spaces.Tuple((spaces.Discrete(2), box())), ["mixes discrete and continuous"]),
    ],
)
def test_unsupported_action_spaces_are_refused_by_name(space, words):
    with pytest.raises(ConfigError) as caught:
        ActionAdapter(space, "my-env")
    for word in ["my-env", *words]:
        assert word in str(caught.value)
