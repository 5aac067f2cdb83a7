"""Promises about sight and lidar, and their agreement with MuJoCo's own rays."""

from __future__ import annotations

import numpy as np
import pytest

from srl_ray.envs.hide_and_seek import HideAndSeekBlock, make_block
from srl_ray.envs.hide_and_seek.config import RAMP_CENTRE_OF_MASS, VIEW_HALF_ANGLE
from srl_ray.envs.hide_and_seek.physics import PARKED_GROUP
from srl_ray.envs.hide_and_seek.staging import Stage
from srl_ray.envs.hide_and_seek.walls import Wall, outer_walls

pytestmark = pytest.mark.unit

RIGHT, LEFT = np.pi / 2, -np.pi / 2


@pytest.fixture(scope="module")
def stage() -> Stage:
    return Stage(make_block(1, prep_fraction=0.0))


@pytest.mark.parametrize("distance", [0.6, 5.0])
@pytest.mark.parametrize("side", [-1, 1])
def test_the_field_of_view_ends_at_67_5_degrees_whatever_the_distance(stage: Stage, distance: float, side: int) -> None:
    for angle, is_seen in ((67.4, True), (67.6, False), (180.0, False)):
        bearing = np.radians(side * angle) - np.pi / 2
        place = (distance * np.cos(bearing), distance * np.sin(bearing))
        stage.start(hiders=[(0.0, 0.0)], seekers=[place])
        assert stage.sees("hider_0", "seeker_0") == is_seen
        stage.start(hiders=[(0.0, 0.0)], seekers=[(9.0, 9.0)], boxes=[place])
        assert stage.sees("hider_0", "box_0") == is_seen


def test_a_low_wall_hides_from_the_floor_but_not_from_the_top_of_a_cube(stage: Stage) -> None:
    # wall at x = 2.1, 0.5 m high; seeker close to it, hider 3 m behind
    wall = [Wall(1, 10, 2, 27)]
    stage.start(hiders=[(5.0, 3.0)], seekers=[(1.7, 3.0)], boxes=[(1.7, 3.0)], walls=wall)
    stage.place("box_0", x=0.9)
    stage.place("seeker_0", yaw=RIGHT)
    assert not stage.sees("seeker_0", "hider_0")
    stage.place("box_0", x=1.7)
    stage.place("seeker_0", z=0.65)
    assert stage.sees("seeker_0", "hider_0")  # the ray passes the wall's far face at z = 0.65 - 0.5 * 0.45 / 3.3 = 0.58
    stage.place("hider_0", x=2.5)  # now at z = 0.65 - 0.5 * 0.45 / 0.8 = 0.37
    assert not stage.sees("seeker_0", "hider_0")


def test_a_cube_between_two_agents_hides_one_from_the_other(stage: Stage) -> None:
    for cube_y, is_seen in ((3.0, False), (3.6, True)):
        stage.start(hiders=[(1.0, 3.0)], seekers=[(5.0, 3.0)], boxes=[(3.0, cube_y)])
        stage.place("hider_0", yaw=RIGHT)
        assert stage.sees("hider_0", "seeker_0") == is_seen


def test_a_slope_hides_only_what_is_below_it(stage: Stage) -> None:
    # looking along -y over the ramp's lower half, where the wedge is at most 0.05 m high
    stage.start(hiders=[(3.0, 5.0)], seekers=[(3.0, 1.0)], ramps=[(3.0, 3.0)])
    assert not stage.sees("hider_0", "seeker_0")
    stage.place("ramp_0", yaw=RIGHT)  # the slope now rises towards +x; its foot is at x = 2.75
    stage.place("hider_0", x=2.8)
    stage.place("seeker_0", x=2.8)
    assert stage.sees("hider_0", "seeker_0")
    stage.place("hider_0", x=3.1)
    stage.place("seeker_0", x=3.1)
    assert not stage.sees("hider_0", "seeker_0")


def test_masks_know_themselves_padding_and_existence() -> None:
    block = make_block(12)
    answer = block.reset(seed=1)
    present = answer.present
    diagonal = np.arange(6)
    np.testing.assert_array_equal(block.rays.sees[:, diagonal, diagonal], present)
    obs = answer.obs
    order = (diagonal[:, None] - 1 - np.arange(5)) % 6
    np.testing.assert_array_equal(obs["exists_others"], present[:, order])
    boxes = [len(layout.boxes) for layout in block.episodes.layouts if layout is not None]
    np.testing.assert_array_equal(obs["exists_boxes"].sum(axis=2), np.repeat(boxes, 6).reshape(12, 6))
    assert obs["exists_ramps"].all()
    for kind in ("others", "boxes", "ramps"):
        assert not (obs[f"mask_{kind}"] & ~obs[f"exists_{kind}"]).any()
        assert (obs[kind][~obs[f"exists_{kind}"]] == 0).all()


def test_lidar_reads_the_walls_of_an_empty_room_whatever_the_yaw(stage: Stage) -> None:
    stage.start(hiders=[(3.0, 3.0)], seekers=[(0.5, 0.5)], walls=outer_walls())
    lidar = stage.observation("hider_0", "lidar")
    assert lidar[[0, 15]] == pytest.approx(2.85, abs=1e-4)
    assert lidar[7] == pytest.approx(2.866, abs=1e-3)
    stage.place("hider_0", yaw=1.0)
    np.testing.assert_array_equal(stage.observation("hider_0", "lidar"), lidar)


def test_lidar_misses_read_6_and_parked_bodies_are_never_hit(stage: Stage) -> None:
    stage.start(hiders=[(3.0, 3.0)], seekers=[(3.0, -9.0)])
    lidar = stage.observation("hider_0", "lidar")
    assert (lidar == 6.0).all()
    stage.start(hiders=[(3.0, 3.0)], seekers=[(13.0, 3.0)])
    assert stage.observation("hider_0", "lidar")[0] == pytest.approx(9.85, abs=1e-3)  # farther than 6 m, and told so


@pytest.mark.parametrize(("task", "least_sights"), [("hide_and_seek", 4000), ("shelter", 900)])
def test_lidar_and_sight_equal_mujocos_own_rays(task: str, least_sights: int) -> None:
    block = make_block(16, task=task)
    block.reset(seed=7)
    rng = np.random.default_rng(0)
    rays = sights = different_rays = different_sights = 0
    for step in range(30):
        if step % 3 == 0:
            actions = rng.integers(0, [11, 11, 11, 2, 2], size=(16, block.physics.num_agents, 5))
        block.step(actions)
        lidar, sees = _reference(block)
        present = block.episodes.present
        different_rays += (np.abs(lidar - block.rays.lidar)[present] > 1e-3).sum()
        different_sights += (sees != block.rays.sees).sum()
        rays += lidar[present].size
        sights += sees.sum()
    assert sights > least_sights
    assert different_sights == 0
    assert different_rays <= rays * 2e-4  # grazing rays


def _reference(block: HideAndSeekBlock) -> tuple[np.ndarray, np.ndarray]:
    """Lidar [E, A, K] and sights [E, A, N] by `Batch.ray`."""
    batch, pose = block.physics.batch, block.physics.pose
    num_envs, bodies, _ = pose.shape
    agents = block.physics.num_agents
    groups = np.ones(6, np.uint8)
    groups[PARKED_GROUP] = 0
    angles = np.arange(30) * 2 * np.pi / 30
    directions = np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=-1)
    centres = pose[:, :agents, :3]
    distance, _ = batch.ray(
        np.repeat(centres, 30, axis=1),
        np.broadcast_to(np.tile(directions, (agents, 1)), (num_envs, agents * 30, 3)),
        geomgroup=groups,
        bodyexclude=np.repeat(np.arange(1, 1 + agents), 30),
    )
    lidar = np.where(distance < 0, 6.0, distance).reshape(num_envs, agents, 30)
    aims = pose[..., :3].copy()
    ramps = slice(bodies - block.physics.num_ramps, None)
    yaw = pose[:, ramps, 3]
    aims[:, ramps, 0] -= RAMP_CENTRE_OF_MASS[1] * np.sin(yaw)
    aims[:, ramps, 1] += RAMP_CENTRE_OF_MASS[1] * np.cos(yaw)
    aims[:, ramps, 2] += RAMP_CENTRE_OF_MASS[2]
    vectors = aims[:, None] - centres[:, :, None]
    vectors[:, np.arange(agents), np.arange(agents)] = (0.0, 0.0, 1.0)
    _, geom = batch.ray(
        np.repeat(centres, bodies, axis=1),
        vectors.reshape(num_envs, -1, 3),
        geomgroup=groups,
        bodyexclude=np.repeat(np.arange(1, 1 + agents), bodies),
    )
    body = np.where(geom >= 0, block.physics.model.geom_bodyid[geom], -1).reshape(num_envs, agents, bodies)
    offset = pose[:, None, :, :2] - pose[:, :agents, None, :2]
    agent_yaw = pose[:, :agents, 3, None]
    ahead = offset[..., 0] * np.sin(agent_yaw) - offset[..., 1] * np.cos(agent_yaw)
    is_in_cone = ahead >= np.linalg.norm(offset, axis=-1) * np.cos(VIEW_HALF_ANGLE)
    exists = np.concatenate([block.episodes.present, block.episodes.exists], axis=1)
    sees = (body == np.arange(1, 1 + bodies)) & is_in_cone & exists[:, None] & exists[:, :agents, None]
    sees[:, np.arange(agents), np.arange(agents)] = exists[:, :agents]
    return lidar, sees
