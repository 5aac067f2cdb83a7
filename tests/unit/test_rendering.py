"""Pictures show what the snapshot says; videos have the frames they were given."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import imageio.v3 as iio
import numpy as np
import pytest
from PIL import Image

from srl_ray.core.errors import ConfigError
from srl_ray.core.types import DiscreteActions
from srl_ray.envs.config import EnvConfig
from srl_ray.envs.hide_and_seek import make_block
from srl_ray.envs.hide_and_seek.snapshot import Snapshot
from srl_ray.envs.testing import CountingEnv
from srl_ray.evaluation.baselines import UniformPolicy
from srl_ray.rendering import scene
from srl_ray.rendering.bars import frame, is_hider_seen
from srl_ray.rendering.episode import choose_view, render_episodes
from srl_ray.rendering.geometry import cameras, heading, nearest_point, outlines, rectangle, sight
from srl_ray.rendering.palette import BOX, TEAM_COLORS, Style
from srl_ray.rendering.top_down import draw, draw_frames
from srl_ray.rendering.video import Stills, VideoWriter, contact_sheet, to_image, write_video

pytestmark = pytest.mark.unit

BARE = Style(show_sight=False, show_lidar=False, show_seen=False, show_bars=False)


def snapshot(**changes: Any) -> Snapshot:
    """A floor with one inner wall, one box, one ramp, a hider at (1, 1) and a seeker at (5, 5)."""
    base = Snapshot(
        scenario="randomwalls",
        floor_size=6.0,
        legal_area=(-6.0, -6.0, 12.0, 12.0),
        walls=np.array([[2.95, 0.15, 3.05, 5.0]]),
        wall_heights=np.array([0.5]),
        box_centres=np.array([[1.5, 4.0, 0.25]]),
        box_yaws=np.array([0.0]),
        box_sizes=np.array([[0.5, 0.5, 0.5]]),
        box_locked=np.array([False]),
        box_owner_teams=np.array([-1]),
        ramp_centres=np.array([[4.5, 1.5, 0.25]]),
        ramp_yaws=np.array([0.0]),
        ramp_locked=np.array([False]),
        ramp_owner_teams=np.array([-1]),
        ramp_size=0.5,
        agent_names=("hider_0", "hider_1", "seeker_0"),
        agent_present=np.array([True, False, True]),
        agent_teams=np.array([0, 0, 1]),
        agent_positions=np.array([[1.0, 1.0, 0.15], [0.0, 0.0, 0.0], [5.0, 5.0, 0.15]]),
        agent_yaws=np.array([0.0, 0.0, 0.0]),
        agent_grabs=np.array([-1, -1, -1]),
        agent_radius=0.15,
        view_half_angle=3 / 8 * np.pi,
        lidar=np.full((3, 30), 2.0),
        sees_agents=np.eye(3, dtype=bool),
        sees_objects=np.zeros((3, 2), bool),
        phase="main",
        step=120,
        preparation_steps=96,
        horizon=240,
        hiders_reward=12.0,
    )
    return dataclasses.replace(base, **changes)


def color_at(image: Image.Image, x: float, y: float, style: Style = BARE) -> np.ndarray:
    """Colour of the frame at a point of the world."""
    camera = cameras([snapshot()])[0]
    zoom = style.size / (2 * camera.half)
    pixel = (x - camera.x) * zoom + style.size / 2, (camera.y - y) * zoom + style.size / 2 + style.header
    return np.array(image.getpixel((round(pixel[0]), round(pixel[1]))), float)


def is_near(color: np.ndarray, other: tuple[int, int, int], within: float = 60) -> bool:
    return float(np.abs(color - other).max()) < within


# ----------------------------------------------------------------------------------------------------------- pictures


def test_present_agents_are_drawn_where_they_are_and_absent_ones_nowhere() -> None:
    image = draw(snapshot(), BARE)
    assert is_near(color_at(image, 0.9, 1.05), TEAM_COLORS[0])
    assert is_near(color_at(image, 4.9, 5.05), TEAM_COLORS[1])
    absent = draw(snapshot(agent_present=np.array([False, False, True])), BARE)
    assert not is_near(color_at(absent, 0.9, 1.05), TEAM_COLORS[0])


def test_a_locked_box_takes_the_colour_of_its_team() -> None:
    free = color_at(draw(snapshot(), BARE), 1.3, 4.0)
    assert is_near(free, BOX, 80)
    for team in (0, 1):
        locked = draw(snapshot(box_locked=np.array([True]), box_owner_teams=np.array([team])), BARE)
        change = color_at(locked, 1.27, 4.0) - free
        toward = np.array(TEAM_COLORS[team]) - free
        assert change @ toward > 0.2 * toward @ toward


def test_the_ramp_is_darker_at_its_high_end() -> None:
    image = draw(snapshot(), BARE)
    low, high = color_at(image, 4.3, 1.68), color_at(image, 4.3, 1.32)  # vertical face at -y
    assert high.sum() < low.sum()
    turned = draw(snapshot(ramp_yaws=np.array([np.pi])), BARE)
    assert color_at(turned, 4.3, 1.68).sum() < color_at(turned, 4.3, 1.32).sum()


def test_frozen_seekers_are_pale() -> None:
    awake, frozen = draw(snapshot(), BARE), draw(snapshot(phase="preparation", step=3), BARE)
    assert color_at(frozen, 4.9, 5.05).sum() > color_at(awake, 4.9, 5.05).sum() + 80


def test_held_and_seen_things_are_connected() -> None:
    held = draw(snapshot(agent_grabs=np.array([0, -1, -1])), BARE)
    assert color_at(held, 1.14, 2.5).sum() < color_at(draw(snapshot(), BARE), 1.14, 2.5).sum() - 200
    sees = np.eye(3, dtype=bool)
    sees[2, 0] = True
    style = dataclasses.replace(BARE, show_seen=True)
    assert is_near(color_at(draw(snapshot(sees_agents=sees), style), 2.0, 2.0), TEAM_COLORS[1], 90)


def test_frames_have_even_sides_and_one_per_snapshot() -> None:
    frames = list(draw_frames([snapshot(step=step) for step in range(3)], Style(size=321), outcome="hiders +3"))
    assert [frame.size for frame in frames] == [Style(size=321).frame_size] * 3
    assert all(side % 2 == 0 for side in frames[0].size)
    assert np.asarray(frames[1]).tolist() != np.asarray(frames[2]).tolist()


def test_an_empty_world_can_be_drawn() -> None:
    nothing = {
        "walls": np.zeros((0, 4)), "wall_heights": np.zeros(0), "box_centres": np.zeros((0, 3)),
        "box_yaws": np.zeros(0), "box_sizes": np.zeros((0, 3)), "box_locked": np.zeros(0, bool),
        "box_owner_teams": np.zeros(0, int),
        "ramp_centres": np.zeros((0, 3)), "ramp_yaws": np.zeros(0), "ramp_locked": np.zeros(0, bool),
        "ramp_owner_teams": np.zeros(0, int), "agent_present": np.zeros(3, bool),
        "sees_objects": np.zeros((3, 0), bool),
    }  # fmt: skip
    assert draw(snapshot(**nothing)).size == Style().frame_size


# ----------------------------------------------------------------------------------------------------------- geometry


def test_an_agent_with_yaw_zero_looks_down_and_turns_counter_clockwise() -> None:
    np.testing.assert_allclose(heading(0.0), [0, -1], atol=1e-12)
    np.testing.assert_allclose(heading(np.pi / 2), [1, 0], atol=1e-12)


def test_a_rectangle_turns_about_its_centre() -> None:
    corners = rectangle(np.array([1.0, 2.0]), np.pi / 2, width=2.0, depth=1.0)
    np.testing.assert_allclose(np.abs(corners - [1, 2]), [[0.5, 1.0]] * 4, atol=1e-12)


def test_sight_ends_at_walls_and_goes_on_beside_and_above_them() -> None:
    world = snapshot(agent_yaws=np.array([np.pi / 2, 0, 0]))
    origin = np.array([1.0, 1.0])
    area = sight(origin, np.pi / 2, world.view_half_angle, 9.0, outlines(world, eye_height=0.15))
    level = area[np.abs(area[:, 1] - 1.0) < 0.2]
    assert level[:, 0].max() == pytest.approx(2.95, abs=0.01)
    above = sight(origin, np.pi / 2, world.view_half_angle, 9.0, outlines(world, eye_height=0.65))
    assert above[:, 0].max() > 9.0


def test_the_camera_shows_the_floor_and_draws_back_smoothly_but_not_for_runaways() -> None:
    inside = cameras([snapshot()])[0]
    assert (inside.x, inside.y) == (3.0, 3.0)
    assert inside.half == pytest.approx(3.35)
    gone = np.array([[30.0, 1.0, 0.15], [0, 0, 0], [5, 5, 0.15]])
    path = cameras([snapshot()] * 60 + [snapshot(agent_positions=gone)] * 60)
    halves = [camera.half for camera in path]
    assert halves[0] == pytest.approx(3.35)
    assert halves[-1] == pytest.approx(4.85)
    assert max(np.abs(np.diff(halves))) < 0.1
    assert min(halves[60:]) == pytest.approx(4.85)  # drawn back by the time it is needed


def test_the_nearest_point_of_a_turned_rectangle() -> None:
    centre = np.array([1.0, 2.0])
    for point, expected in (([1.0, 5.0], [1.0, 3.0]), ([4.0, 2.5], [1.5, 2.5]), ([1.1, 2.2], [1.1, 2.2])):
        np.testing.assert_allclose(
            nearest_point(np.array(point), centre, np.pi / 2, width=2.0, depth=1.0), expected, atol=1e-12
        )


# ---------------------------------------------------------------------------------------------------------------- bars


def test_the_time_bar_is_blue_where_all_were_hidden_and_red_where_one_was_seen() -> None:
    style = Style(size=592)
    world = snapshot(step=160)
    seen = [False] * 97 + [True] * 24 + [False] * 40  # steps 0 to 160; the main phase begins with step 97
    image = frame(Image.new("RGB", (592, 592)), world, style, seen=seen)

    def at(step: float) -> np.ndarray:
        return np.array(image.getpixel((round(16 + 560 * step / 240), 44)), float)

    assert is_near(at(108), TEAM_COLORS[1], 5)
    assert is_near(at(140), TEAM_COLORS[0], 5)
    assert not is_near(at(50), TEAM_COLORS[0], 40)
    assert is_near(at(200), (236, 234, 228), 5)


def test_without_seekers_the_time_bar_takes_no_side() -> None:
    alone = snapshot(agent_present=np.array([True, False, False]), preparation_steps=0)
    image = frame(Image.new("RGB", (592, 592)), alone, Style(), seen=[False] * 121)
    colors = np.asarray(image)[44, 16:290].astype(int)
    assert np.ptp(colors, axis=1).max() < 10  # grey
    assert np.ptp(np.asarray(draw(alone))[5:40, 16:90].reshape(-1, 3).astype(int), axis=1).max() < 10  # no red "SEEK"


def test_only_what_present_seekers_see_counts_as_seen() -> None:
    sees = np.eye(3, dtype=bool)
    sees[0, 2] = True
    assert not is_hider_seen(snapshot(sees_agents=sees))
    sees[2, 0] = True
    assert is_hider_seen(snapshot(sees_agents=sees))
    assert not is_hider_seen(snapshot(sees_agents=sees, agent_present=np.array([True, True, False])))


# --------------------------------------------------------------------------------------------------- three dimensions


def geoms_of(view: Any) -> dict[tuple[float, ...], Any]:
    """Centre, rounded to the millimetre → geom."""
    return {tuple(np.round(geom.pos.astype(float), 3).tolist()): geom for geom in view.geoms[: view.ngeom]}


def test_the_scene_has_everything_at_its_place_in_its_size_and_colour() -> None:
    first = snapshot()
    stage = scene.Scene(first, Style())
    camera = cameras([first])[0]
    moved = snapshot(
        box_centres=np.array([[2.0, 3.5, 0.75]]),
        box_yaws=np.array([np.pi / 2]),
        box_sizes=np.array([[0.5, 0.5, 0.5]]),
        box_locked=np.array([True]),
        box_owner_teams=np.array([1]),
        agent_positions=np.array([[2.0, 3.5, 1.15], [0, 0, 0], [5.0, 4.0, 0.15]]),
    )
    free = geoms_of(stage.show(first, camera))
    assert len(free) == 1 + 1 + 1 + 1 + 2 * (7 + 1)  # floor, wall, box, ramp; agents have seven parts and a label
    np.testing.assert_allclose(free[3.0, 2.575, 0.25].size, [0.05, 2.425, 0.25], atol=1e-6)
    np.testing.assert_allclose(free[1.5, 4.0, 0.25].size, [0.25, 0.25, 0.25])
    np.testing.assert_allclose(free[1.5, 4.0, 0.25].rgba[:3], np.array(BOX) / 255, atol=1e-6)
    assert free[1.5, 4.0, 0.25].emission == 0
    np.testing.assert_allclose(free[1.0, 1.0, 0.15].rgba[:3], np.array(TEAM_COLORS[0]) / 255, atol=1e-6)
    np.testing.assert_allclose(free[5.0, 5.0, 0.15].size, [0.15] * 3)
    assert (4.5, 1.417, 0.167) in free  # the ramp's centre of mass, a third of its half side towards its high end

    later = geoms_of(stage.show(moved, camera))
    box = later[2.0, 3.5, 0.75]
    np.testing.assert_allclose(box.mat @ [1, 0, 0], [0, 1, 0], atol=1e-6)
    assert box.emission > 0
    toward = np.array(TEAM_COLORS[1]) - np.array(BOX)
    assert (255 * box.rgba[:3] - BOX) @ toward > 0.6 * toward @ toward
    assert [geom.label for geom in later.values() if geom.label] == ["0  +1.0 m", "0"]


def test_the_scene_shows_who_sees_whom_who_holds_what_and_who_waits() -> None:
    sees = np.eye(3, dtype=bool)
    sees[2, 0] = sees[0, 2] = True
    first = snapshot(sees_agents=sees, agent_grabs=np.array([0, -1, -1]))
    stage, camera = scene.Scene(first, Style()), cameras([first])[0]
    main = geoms_of(stage.show(first, camera))
    seen = main[3.0, 3.0, 0.15]  # half way between seeker and hider
    np.testing.assert_allclose(seen.rgba[:3], np.array(TEAM_COLORS[1]) / 255, atol=1e-6)
    assert 2 * seen.size[2] == pytest.approx(np.hypot(4, 4), abs=0.1)
    assert (1.25, 2.5, 0.4) in main  # from the top of the hider to the top of the box
    awake = float(main[5.0, 5.0, 0.15].rgba[:3].sum())
    preparing = geoms_of(stage.show(dataclasses.replace(first, phase="preparation"), camera))
    assert (3.0, 3.0, 0.15) not in preparing
    assert preparing[5.0, 5.0, 0.15].rgba[:3].sum() > awake + 0.3


def test_the_scene_agrees_with_the_simulation() -> None:
    """Geoms as the episode's own, padded model has them: what is parked is left out."""
    block = make_block(1, scenario="randomwalls")
    block.reset(seed=5)
    world = block.snapshot(0)
    stage = scene.Scene(world, Style(show_seen=False))
    drawn = geoms_of(stage.show(world, cameras([world])[0]))
    physics, model = block.physics, block.physics.model
    position, size, group = (
        np.array(physics.batch.expand(name)[0]) for name in ("geom_pos", "geom_size", "geom_group")
    )
    checked = 0
    for geom in range(model.ngeom):
        name = model.geom(geom).name or model.body(model.geom_bodyid[geom]).name
        if group[geom] != 0 or not name.startswith(("wall", "box")):
            continue
        body = model.geom_bodyid[geom]
        centre = position[geom] + (physics.pose[0, body - 1, :3] if body else 0)
        half = size[geom].copy()
        if name.startswith("wall") and half[2] > 1:  # the border is drawn lower than it is
            half[2] = centre[2] = scene.OUTER_WALL_TOP / 2
        np.testing.assert_allclose(drawn[tuple(np.round(centre, 3).tolist())].size, half, atol=1e-6)
        checked += 1
    assert checked == len(world.walls) + len(world.box_centres)


def test_three_dimensions_are_drawn_where_opengl_can(tmp_path: Path) -> None:
    reason = scene.why_no_screen()
    if reason:
        pytest.skip(reason)
    style = Style(size=160)
    world = snapshot()
    (image,) = scene.draw_frames([world], style)
    assert image.size == style.frame_size
    view = np.asarray(image, float)[style.header : style.header + style.size]
    red, blue = view[..., 0] - view[..., 2] > 80, view[..., 2] - view[..., 0] > 80
    assert blue[:, :80].sum() > 5  # the hider on the left, the seeker on the right and further up
    assert red[:70, 80:].sum() > 5


def test_without_opengl_one_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "nonesuch")
    config = EnvConfig(id="hide_and_seek", kwargs={"scenario": "quadrant", "horizon": 3})
    policy = UniformPolicy(DiscreteActions((11, 11, 11, 2, 2)))
    with pytest.raises(ConfigError, match=r"MUJOCO_GL=nonesuch.*Install EGL") as caught:
        render_episodes(policy, config, tmp_path / "clip.mp4", view="3d")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert choose_view("auto") == "top"
    assert [record.message[:16] for record in caplog.records] == ["drawn from above"]
    with pytest.raises(ConfigError, match="view=3d is for hide_and_seek"):
        render_episodes(UNIFORM, EnvConfig(factory=Screen), tmp_path / "clip.mp4", view="3d")


def test_a_missing_opengl_library_does_not_stop_the_command() -> None:
    """MuJoCo loads what MUJOCO_GL names on import, and fails where it is missing; drawing from above needs none."""
    program = "import os, srl_ray.render as render; render._import_mujoco(); print(os.environ['MUJOCO_GL'])"
    environment = {**os.environ, "MUJOCO_GL": "osmesa"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "osmesa", done.stderr


# ------------------------------------------------------------------------------------------------------------- videos


def frames(count: int, size: tuple[int, int] = (64, 48)) -> list[Image.Image]:
    return [Image.new("RGB", size, (20 * index % 256, 100, 200)) for index in range(count)]


@pytest.mark.parametrize("ending", ["mp4", "gif"])
def test_a_video_has_the_frames_it_was_given(tmp_path: Path, ending: str) -> None:
    path = write_video(frames(7), tmp_path / "new folder" / f"clip.{ending}", fps=10)
    stored = iio.imread(path, index=None if ending == "mp4" else ..., plugin="FFMPEG" if ending == "mp4" else None)
    assert len(stored) == 7
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_gif_needs_no_video_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise RuntimeError("no ffmpeg")

    monkeypatch.setattr("imageio_ffmpeg.get_ffmpeg_exe", missing)
    with Image.open(write_video(frames(5), tmp_path / "clip.gif", fps=10)) as stored:
        assert stored.n_frames == 5
    with pytest.raises(ConfigError, match=r"no MP4 encoder \(no ffmpeg\)"):
        write_video(frames(5), tmp_path / "clip.mp4", fps=10)


def test_a_video_that_was_interrupted_leaves_no_file(tmp_path: Path) -> None:
    def broken() -> Any:
        yield from frames(3)
        raise RuntimeError("simulator gone")

    for ending in ("mp4", "gif"):
        with pytest.raises(RuntimeError):
            write_video(broken(), tmp_path / f"clip.{ending}", fps=10)
    with pytest.raises(ValueError, match="at least one frame"):
        write_video([], tmp_path / "clip.mp4", fps=10)
    assert list(tmp_path.iterdir()) == []


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.mp4 or \.gif"):
        VideoWriter(tmp_path / "clip.avi", fps=10)


def test_stills_are_spread_evenly_and_hold_both_ends() -> None:
    stills = Stills(most=8)
    for number in range(1000):
        stills.add(frames(1)[0], str(number))
    picked = [int(label) for _, label in stills.pick()]
    assert len(picked) == 8
    assert picked[0] == 0
    assert picked[-1] == 999
    assert max(np.diff(picked)) < 2 * min(np.diff(picked))


def test_a_contact_sheet_is_one_picture(tmp_path: Path) -> None:
    labelled = [(frame, f"{index} s") for index, frame in enumerate(frames(10))]
    path = contact_sheet(labelled, tmp_path / "sheet.png", title="ten")
    with Image.open(path) as sheet:
        assert sheet.width == 1280
    with pytest.raises(ValueError, match="at least one frame"):
        contact_sheet([], path)


def test_frames_that_are_no_pictures_are_refused() -> None:
    assert to_image(np.zeros((4, 6), np.uint8)).size == (6, 4)
    assert to_image(np.zeros((4, 6, 1), np.uint8)).mode == "RGB"
    with pytest.raises(ConfigError, match="float64"):
        to_image(np.zeros((4, 6, 3)))


# ----------------------------------------------------------------------------------------------------------- episodes


class Screen(CountingEnv):
    """A CountingEnv that draws its step number as brightness."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(self, length: int = 6, render_mode: str | None = None) -> None:
        super().__init__(length)
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((32, 32, 3), 10 * self._t, np.uint8)


class Broken(Screen):
    """Says it can be drawn, but its display is missing."""

    def render(self) -> Any:
        raise OSError("no display")


class Undrawn(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says it can be drawn, but needs a package that is missing."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(Screen(render_mode=render_mode))

    def render(self) -> Any:
        raise gymnasium.error.DependencyNotInstalled("pygame is not installed")


UNIFORM = UniformPolicy(DiscreteActions((2,)))


def test_an_environment_that_renders_pixels_is_filmed_to_its_last_step(tmp_path: Path) -> None:
    result = render_episodes(UNIFORM, EnvConfig(factory=Screen), tmp_path / "clip.mp4", episodes=2)
    assert [record.length for record in result.episodes] == [6, 6]
    assert result.fps == 5
    assert result.num_frames == 2 * (6 + 5)  # steps 0 to 5, then the last picture for a second
    stored = iio.imread(result.video, index=None, plugin="FFMPEG")
    assert stored[10].mean() == pytest.approx(60, abs=8)
    assert stored[11].mean() == pytest.approx(0, abs=8)
    assert result.sheet.exists()


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (EnvConfig(factory=CountingEnv), "its render_mode is None"),
        (EnvConfig(factory=Undrawn), "pygame is not installed"),
        (EnvConfig(factory=Broken), "OSError: no display"),
        (EnvConfig(factory="srl_ray.envs.testing:turn_based"), "only single gymnasium environments"),
    ],
)
def test_what_cannot_be_drawn_is_explained_and_leaves_nothing(tmp_path: Path, config: EnvConfig, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        render_episodes(UNIFORM, config, tmp_path / "clip.mp4")
    assert list(tmp_path.iterdir()) == []


def test_hide_and_seek_is_filmed_step_by_step(tmp_path: Path) -> None:
    config = EnvConfig(id="hide_and_seek", kwargs={"scenario": "quadrant", "horizon": 20})
    policy = UniformPolicy(DiscreteActions((11, 11, 11, 2, 2)))
    result = render_episodes(policy, config, tmp_path / "clip.mp4", style=Style(size=160))
    assert result.num_frames == 20 + 15
    assert result.episodes[0].length == 20


def test_cylinders_and_sites_are_drawn_and_a_cylinder_stops_the_look() -> None:
    plain = draw(snapshot(), BARE)
    marked = snapshot(cylinders=np.array([[1.0, 2.8, 0.6]]), sites=np.array([[4.5, 3.5]]))
    picture = draw(marked, BARE)
    for x, y in ((1.0, 2.8), (1.5, 2.8), (4.5, 3.5), (4.7, 3.3)):
        assert np.abs(color_at(picture, x, y) - color_at(plain, x, y)).max() > 8
    np.testing.assert_array_equal(color_at(picture, 1.0, 1.9), color_at(plain, 1.0, 1.9))
    edges = outlines(marked, 0.15)
    area = sight(np.array([1.0, 1.0]), np.pi, marked.view_half_angle, 8.0, edges)  # looking along +y
    ahead = area[1:][np.abs(area[1:, 0] - 1.0) < 0.1]
    assert ahead[:, 1].max() == pytest.approx(2.2, abs=0.08)
