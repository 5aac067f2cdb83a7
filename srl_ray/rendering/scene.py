"""Hide-and-seek in three dimensions: a MuJoCo scene made from snapshots, and its pictures where OpenGL can draw them.

The scene is a model of its own, for looking at only: nothing in it moves by itself or collides. It is compiled from the
first snapshot of an episode, and every further one moves its bodies and colours what is locked.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import mujoco
import numpy as np
from PIL import Image

from srl_ray.core.errors import ConfigError
from srl_ray.envs.hide_and_seek.snapshot import SEEKERS, Snapshot
from srl_ray.rendering.bars import frame, is_hider_seen
from srl_ray.rendering.geometry import Camera, cameras
from srl_ray.rendering.palette import (
    BOX,
    FLOOR,
    FLOOR_EDGE,
    GROUND,
    INK,
    INNER_WALL,
    OUTER_WALL,
    PAPER,
    PREPARATION,
    RAMP_HIGH,
    RAMP_LOW,
    SOFT_INK,
    TEAM_COLORS,
    Color,
    Style,
    lighter,
    mix,
)

OUTER_WALL_TOP = 0.12
"""The border's 4 m high walls are drawn up to here, m: even panes would hide the floor in their shadow."""
RAMP = mix(RAMP_LOW, RAMP_HIGH, 0.5)
LOCKED_EMISSION = 0.2
FIELD_OF_VIEW = 38.0
"""Vertical, degrees."""
ELEVATION = -62.0
"""Degrees; the camera looks towards +y, so that up in the picture is up in the view from above."""
MAX_GEOMS = 400
_RAMP_CORNERS = np.array([[-1, -1, -1], [1, -1, -1], [-1, 1, -1], [1, 1, -1], [-1, -1, 1], [1, -1, 1]]) / 2
"""Of a ramp of side 1: the vertical face at -y, the slope down towards +y."""


class Scene:
    """What a camera sees of an episode, as geoms. Needs no OpenGL.

    Args:
        first: A snapshot of the episode: its walls, sizes and agents.
        style: The size of the picture, and whether sight lines are drawn.

    Attributes:
        model: Walls as fixed geoms; a mocap body per box, ramp and present agent, named box_0, ramp_1, seeker_2.
        data: Where they are.
        view: The geoms to draw, after `show`.
    """

    def __init__(self, first: Snapshot, style: Style) -> None:
        self.model = mujoco.MjModel.from_xml_string(scene_xml(first, style.size))
        self.data = mujoco.MjData(self.model)
        self.view = mujoco.MjvScene(self.model, MAX_GEOMS)
        self.view.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 1
        self.view.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        self._style = style
        self._option = mujoco.MjvOption()
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FREE
        self._camera.azimuth, self._camera.elevation = 90.0, ELEVATION

    def show(self, world: Snapshot, camera: Camera) -> mujoco.MjvScene:
        """Move everything to where it is in a snapshot of the same episode."""
        for index in range(len(world.box_centres)):
            self._move(f"box_{index}", world.box_centres[index], world.box_yaws[index])
            self._color(f"box_{index}", BOX, bool(world.box_locked[index]), int(world.box_owner_teams[index]))
        for index in range(len(world.ramp_centres)):
            self._move(f"ramp_{index}", world.ramp_centres[index], world.ramp_yaws[index])
            self._color(f"ramp_{index}", RAMP, bool(world.ramp_locked[index]), int(world.ramp_owner_teams[index]))
        for slot in np.flatnonzero(world.agent_present):
            name, team = world.agent_names[slot], int(world.agent_teams[slot])
            self._move(name, world.agent_positions[slot], world.agent_yaws[slot])
            is_frozen = team == SEEKERS and world.phase == "preparation"
            self._paint(name, mix(TEAM_COLORS[team], GROUND, 0.55 if is_frozen else 0.0), 0.0)
        mujoco.mj_forward(self.model, self.data)
        self._camera.lookat[:] = (camera.x, camera.y - 0.12 * camera.half, 0.0)
        self._camera.distance = 1.08 * camera.half / np.tan(np.radians(FIELD_OF_VIEW / 2))
        category = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self.model, self.data, self._option, None, self._camera, category, self.view)
        if self._style.show_seen and world.phase != "preparation":
            self._sight_lines(world)
        self._grab_lines(world)
        self._labels(world)
        return self.view

    def _move(self, name: str, position: np.ndarray, yaw: float) -> None:
        mocap = self.model.body(name).mocapid[0]
        self.data.mocap_pos[mocap] = position
        self.data.mocap_quat[mocap] = (np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2))

    def _color(self, name: str, base: Color, is_locked: bool, team: int) -> None:
        color = mix(base, TEAM_COLORS.get(team, SOFT_INK), 0.75) if is_locked else base
        self._paint(name, color, LOCKED_EMISSION if is_locked else 0.0)

    def _paint(self, name: str, color: Color, emission: float) -> None:
        material = self.model.material(name)
        material.rgba[:] = (*np.array(color) / 255, 1.0)
        material.emission[:] = emission

    def _sight_lines(self, world: Snapshot) -> None:
        """From every seeker to the hiders that it sees."""
        for viewer, target in np.argwhere(world.sees_agents):
            if world.agent_teams[viewer] == SEEKERS != world.agent_teams[target]:
                self._line(world.agent_positions[viewer], world.agent_positions[target], 0.015, TEAM_COLORS[SEEKERS])

    def _grab_lines(self, world: Snapshot) -> None:
        """From the top of an agent to the top of what it holds."""
        objects = np.concatenate([world.box_centres, world.ramp_centres])
        heights = np.concatenate([world.box_sizes[:, 2], np.full(len(world.ramp_centres), world.ramp_size)])
        for slot in np.flatnonzero(world.agent_present & (world.agent_grabs >= 0)):
            held = world.agent_grabs[slot]
            start = world.agent_positions[slot] + (0.0, 0.0, world.agent_radius)
            self._line(start, objects[held] + (0.0, 0.0, heights[held] / 2), 0.03, INK)

    def _labels(self, world: Snapshot) -> None:
        """A number above every agent, and its height where it stands on something."""
        for slot in np.flatnonzero(world.agent_present):
            number = world.agent_names[slot].rpartition("_")[2]
            height = float(world.agent_positions[slot, 2]) - world.agent_radius
            above = world.agent_positions[slot] + (0.0, 0.0, 1.3 * world.agent_radius)
            geom = self._line(above, above + np.array([0.0, 0.0, 1e-3]), 1e-3, INK)
            if geom is not None:
                geom.label = number if height < 0.1 else f"{number}  +{height:.1f} m"

    def _line(self, start: np.ndarray, end: np.ndarray, radius: float, color: Color) -> mujoco.MjvGeom | None:
        """Add a geom to the view; none if that is full."""
        if self.view.ngeom >= self.view.maxgeom:
            return None
        geom = self.view.geoms[self.view.ngeom]
        rgba = np.array((*np.array(color) / 255, 0.9), np.float32)
        capsule = mujoco.mjtGeom.mjGEOM_CAPSULE
        mujoco.mjv_initGeom(geom, capsule, np.zeros(3), np.zeros(3), np.eye(3).ravel(), rgba)
        mujoco.mjv_connector(geom, capsule, radius, np.asarray(start, float), np.asarray(end, float))
        geom.emission = 0.5
        self.view.ngeom += 1
        return geom


def scene_xml(world: Snapshot, size: int) -> str:
    """The model of an episode, for pictures of `size` pixels square."""
    half, side = world.floor_size / 2, world.ramp_size
    high = 2.0 * world.floor_size  # of the light, which aims at the middle of the floor
    names = [world.agent_names[slot] for slot in np.flatnonzero(world.agent_present)]
    boxes = [f"box_{index}" for index in range(len(world.box_centres))]
    ramps = [f"ramp_{index}" for index in range(len(world.ramp_centres))]
    materials = [f'<material name="{name}" specular=".2" shininess=".3"/>' for name in (*names, *boxes, *ramps)]
    walls = []
    for (x0, y0, x1, y1), height in zip(world.walls, world.wall_heights):
        top = min(height, OUTER_WALL_TOP) if height > 1.0 else height
        color = OUTER_WALL if height > 1.0 else INNER_WALL
        walls.append(
            f'<geom type="box" size="{(x1 - x0) / 2} {(y1 - y0) / 2} {top / 2}" '
            f'pos="{(x0 + x1) / 2} {(y0 + y1) / 2} {top / 2}" rgba="{_rgba(color)}"/>'
        )
    for x, y, radius in world.cylinders:
        pale = _rgba(lighter(INNER_WALL, 0.35))
        walls.append(f'<geom type="cylinder" size="{radius} .25" pos="{x} {y} .25" rgba="{pale}"/>')
    for x, y in world.sites:
        walls.append(f'<geom type="box" size=".25 .25 .003" pos="{x} {y} .003" rgba="{_rgba(PREPARATION)}"/>')
    bodies = [
        _body(name, f'<geom type="box" size="{x / 2} {y / 2} {z / 2}" material="{name}"/>')
        for name, (x, y, z) in zip(boxes, world.box_sizes)
    ]
    bodies += [_body(name, f'<geom type="mesh" mesh="ramp" material="{name}"/>') for name in ramps]
    bodies += [_body(name, _agent(name, world.agent_radius)) for name in names]
    vertices = " ".join(f"{number:g}" for number in (_RAMP_CORNERS * side).ravel())
    return f"""
    <mujoco model="hide_and_seek_scene">
      <visual>
        <global offwidth="{size}" offheight="{size}" fovy="{FIELD_OF_VIEW}"/>
        <quality shadowsize="4096" offsamples="4"/>
        <headlight ambient=".38 .38 .38" diffuse=".22 .22 .22" specular="0 0 0"/>
        <map znear=".1" zfar="50" shadowclip="0.75"/>
      </visual>
      <statistic center="{half} {half} 0" extent="{world.floor_size}"/>
      <asset>
        <mesh name="ramp" vertex="{vertices}"/>
        <texture name="sky" type="skybox" builtin="flat" rgb1="{_rgb(GROUND)}" rgb2="{_rgb(GROUND)}"
                 width="8" height="8"/>
        <texture name="floor" type="2d" builtin="checker" mark="edge" rgb1="{_rgb(FLOOR)}" rgb2="{_rgb(FLOOR)}"
                 markrgb="{_rgb(FLOOR_EDGE)}" width="256" height="256"/>
        <material name="floor" texture="floor" texrepeat="{world.floor_size / 2} {world.floor_size / 2}" specular="0"/>
        {" ".join(materials)}
      </asset>
      <default><geom contype="0" conaffinity="0"/></default>
      <worldbody>
        <light directional="true" castshadow="true" diffuse=".45 .45 .45"
               pos="{half - 0.2 * high} {half + 0.14 * high} {high}" dir=".2 -.14 -1"/>
        <geom type="plane" size="{half} {half} 1" pos="{half} {half} 0" material="floor"/>
        {" ".join(walls)}
        {" ".join(bodies)}
      </worldbody>
    </mujoco>"""


def _body(name: str, geoms: str) -> str:
    return f'<body name="{name}" mocap="true">{geoms}</body>'


def _agent(material: str, radius: float) -> str:
    """A sphere with arms and eyes; it looks along -y."""

    def ball(size: float, x: float, y: float, z: float, look: str) -> str:
        return f'<geom type="sphere" size="{size * radius}" pos="{x * radius} {y * radius} {z * radius}" {look}/>'

    team, white, black = f'material="{material}"', f'rgba="{_rgba(PAPER)}"', f'rgba="{_rgba(INK)}"'
    pieces = [ball(1.0, 0, 0, 0, team)]
    for sign in (-1, 1):
        pieces.append(ball(0.33, 0.87 * sign, -0.5, -0.33, team))
        pieces.append(ball(0.34, 0.36 * sign, -0.66, 0.48, white))
        pieces.append(ball(0.18, 0.36 * sign, -0.84, 0.58, black))
    return "".join(pieces)


def _rgb(color: Color) -> str:
    return " ".join(f"{value / 255:.3f}" for value in color)


def _rgba(color: Color, alpha: float = 1.0) -> str:
    return f"{_rgb(color)} {alpha}"


# ------------------------------------------------------------------------------------------------------------- pictures


def draw_frames(snapshots: Sequence[Snapshot], style: Style | None = None, outcome: str = "") -> Iterator[Image.Image]:
    """Frames of an episode as `top_down.draw_frames` makes them, but seen from a camera beside the floor.

    Raises:
        ConfigError: OpenGL cannot draw here; says what to install or set.
    """
    style = style or Style()
    scene = Scene(snapshots[0], style)
    seen = [is_hider_seen(snapshot) for snapshot in snapshots]
    with Screen(scene.model, style.size) as screen:
        for index, (snapshot, camera) in enumerate(zip(snapshots, cameras(snapshots))):
            view = screen.draw(scene.show(snapshot, camera))
            is_last = index == len(snapshots) - 1
            yield frame(view, snapshot, style, outcome=outcome if is_last else "", seen=seen[: index + 1])


class Screen:
    """Draws scenes into memory. One thread uses it; `close` gives the OpenGL context back.

    The library is the one that MUJOCO_GL names (egl, osmesa, glfw), without it EGL, which needs no display.

    Args:
        model: Whose scenes are drawn.
        size: Width and height, pixels.

    Raises:
        ConfigError: there is no such library, or it cannot draw without a display.
    """

    def __init__(self, model: mujoco.MjModel, size: int) -> None:
        self._rectangle = mujoco.MjrRect(0, 0, size, size)
        self._pixels = np.zeros((size, size, 3), np.uint8)
        library = os.environ.get("MUJOCO_GL", "").lower().strip() or _default_library()
        self._gl: Any = None
        try:
            self._gl = importlib.import_module(f"mujoco.{library}").GLContext(size, size)
            self._gl.make_current()
            self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        except Exception as error:  # a missing library shows as anything from ImportError to AttributeError
            self._free()
            raise ConfigError(f"view=3d: {_advice(library, error)}") from error
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def draw(self, view: mujoco.MjvScene) -> Image.Image:
        self._gl.make_current()
        mujoco.mjr_render(self._rectangle, view, self._context)
        mujoco.mjr_readPixels(self._pixels, None, self._rectangle, self._context)
        return Image.fromarray(self._pixels[::-1].copy())

    def close(self) -> None:
        self._context.free()
        self._free()

    def _free(self) -> None:
        if self._gl is not None:
            self._gl.free()
        self._gl = None


def _default_library() -> str:
    return {"darwin": "cgl", "win32": "glfw"}.get(sys.platform, "egl")


def _advice(library: str, error: Exception) -> str:
    cause = " ".join(str(error).split())[:120] or type(error).__name__
    return (
        f"OpenGL cannot draw with MUJOCO_GL={library} ({cause}). Install EGL (Debian: apt-get install libegl1 "
        "libgl1-mesa-dri) or set MUJOCO_GL=osmesa (libosmesa6) or, with a display, MUJOCO_GL=glfw; view=top needs none."
    )


def why_no_screen() -> str:
    """Why OpenGL cannot draw here; empty where it can."""
    try:
        Screen(mujoco.MjModel.from_xml_string("<mujoco/>"), 64).close()
    except ConfigError as error:
        return str(error)
    return ""
