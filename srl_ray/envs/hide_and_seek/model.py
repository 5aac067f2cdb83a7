"""One padded MuJoCo model for every episode: all agent slots, boxes, ramps and walls that could be needed.

Every moving body has joints slide x, slide y, slide z, hinge z, in this order, and its frame at the world's origin, so
that its four joint coordinates are its centre and its yaw, and so that forces act along world axes whatever the yaw.
Bodies come in the order agents, boxes, ramps. What an episode does not use is parked far away.
"""

from __future__ import annotations

import mujoco

from srl_ray.envs.hide_and_seek.config import (
    AGENT_RADIUS,
    ARM_OFFSETS,
    ARM_RADIUS,
    CYLINDER_HEIGHT,
    MOVEMENT_LIMIT,
    HideAndSeekConfig,
)

AGENT_FRICTION = 0.01
FLOOR_FRICTION = 0.2
BOX_FRICTION = 0.2
RAMP_FRICTION = 0.01
MOTOR_GEAR = 100.0
RAMP_VERTICES = (
    "-.25 -.25 -.25  .25 -.25 -.25  -.25 .25 -.25  .25 .25 -.25  -.25 -.25 .25  .25 -.25 .25"  # slope rises towards -y
)


def make_model(config: HideAndSeekConfig, *, jacobian: str = "dense", is_sleep_on: bool = True) -> mujoco.MjModel:
    """Compile the padded model.

    Args:
        config: Counts, wall friction and integration.
        jacobian: "dense" (MuJoCo's automatic choice would turn sparse at 60 degrees of freedom) or "sparse".
        is_sleep_on: Let resting bodies sleep; costs nothing in accuracy and makes resting objects almost free.
    """
    return mujoco.MjModel.from_xml_string(model_xml(config, jacobian=jacobian, is_sleep_on=is_sleep_on))


def model_xml(config: HideAndSeekConfig, *, jacobian: str, is_sleep_on: bool) -> str:
    half = config.max_floor_size / 2
    agents = agent_names(config)
    bodies = [_agent(name, config.integration.do_arms_collide) for name in agents]
    bodies += [_box(f"box_{index}") for index in range(config.box_range[1])]
    bodies += [_ramp(f"ramp_{index}") for index in range(config.ramps)]
    friction = config.rules.wall_friction
    walls = [
        f'<geom name="wall_{index}" type="box" size=".01 .01 .01" pos="0 0 -10" friction="{friction}"/>'
        for index in range(config.max_walls)
    ]
    walls += [
        f'<geom name="cylinder_{index}" type="cylinder" size="1 {CYLINDER_HEIGHT / 2}" friction="{friction}"/>'
        for index in range(config.num_cylinders)
    ]
    limits = f"-{MOVEMENT_LIMIT} {MOVEMENT_LIMIT}"
    motors = [
        f'<motor joint="{name}_{joint}" gear="{MOTOR_GEAR}" ctrllimited="true" ctrlrange="{limits}"/>'
        for name in agents
        for joint in ("x", "y", "yaw")
    ]
    welds = [
        f'<weld name="{name}_grab" body1="{name}" body2="box_0" active="false" relpose="0 0 0 1 0 0 0"/>'
        for name in agents
    ]
    return f"""
    <mujoco model="hide_and_seek">
      <compiler angle="radian"/>
      <option integrator="{config.integration.integrator}" timestep="{config.integration.timestep}" gravity="0 0 -50"
              jacobian="{jacobian}" solver="Newton" cone="pyramidal">
        <flag sleep="{"enable" if is_sleep_on else "disable"}" midphase="disable"/>
      </option>
      <asset><mesh name="ramp" vertex="{RAMP_VERTICES}"/></asset>
      <worldbody>
        <geom name="floor" type="plane" pos="{half} {half} 0" size="{half} {half} 1" friction="{FLOOR_FRICTION}"/>
        {" ".join(walls)}
        {" ".join(bodies)}
      </worldbody>
      <actuator>{" ".join(motors)}</actuator>
      <equality>{" ".join(welds)}</equality>
    </mujoco>"""


def agent_names(config: HideAndSeekConfig) -> tuple[str, ...]:
    """Agent ids in slot order: hiders first."""
    hiders = [f"hider_{index}" for index in range(config.max_hiders)]
    return (*hiders, *(f"seeker_{index}" for index in range(config.max_seekers)))


def _joints(name: str, damping: tuple[float, float, float, float]) -> str:
    kinds = (("x", "slide", "1 0 0"), ("y", "slide", "0 1 0"), ("z", "slide", "0 0 1"), ("yaw", "hinge", "0 0 1"))
    return " ".join(
        f'<joint name="{name}_{joint}" type="{kind}" axis="{axis}" damping="{value}"/>'
        for (joint, kind, axis), value in zip(kinds, damping, strict=True)
    )


def _agent(name: str, do_arms_collide: bool) -> str:
    contact = int(do_arms_collide)
    arms = " ".join(
        f'<geom type="sphere" size="{ARM_RADIUS}" pos="{x} {y} {z}" mass="0" friction="{AGENT_FRICTION}"'
        f' contype="{contact}" conaffinity="{contact}"/>'
        for x, y, z in ARM_OFFSETS
    )
    return f"""<body name="{name}">{_joints(name, (10.0, 10.0, 1.0, 10.0))}
        <geom type="sphere" size="{AGENT_RADIUS}" mass="1" friction="{AGENT_FRICTION}"/>{arms}</body>"""


def _box(name: str) -> str:
    return f"""<body name="{name}">{_joints(name, (0.01,) * 4)}
        <geom type="box" size=".25 .25 .25" mass="1" friction="{BOX_FRICTION}"/></body>"""


def _ramp(name: str) -> str:
    return f"""<body name="{name}">{_joints(name, (0.1,) * 4)}
        <geom type="mesh" mesh="ramp" mass="1" friction="{RAMP_FRICTION}"/></body>"""
