"""What a drawing of one hide-and-seek environment needs: plain copies of numbers, no simulator objects."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

HIDERS, SEEKERS, NOBODY = 0, 1, -1
"""Team numbers used in snapshots and inside the environment."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """One moment of one environment. Lengths are metres, angles radians; the floor is [0, floor_size] in x and y.

    Letters: W built walls, B boxes of this episode, R ramps of this episode, A agent slots (hiders first; absent agents
    keep their slot), O = B + R objects (boxes first).

    Attributes:
        scenario: Name of the floor plan.
        floor_size: Side of the square floor.
        legal_area: (x_min, y_min, x_max, y_max); who leaves it is penalised.
        walls: [W, 4] axis-aligned rectangles (x_min, y_min, x_max, y_max).
        wall_heights: [W]; 0.5 inside, 4.0 at the border of the floor.
        box_centres: [B, 3].
        box_yaws: [B].
        box_sizes: [B, 3] full side lengths along the box's own axes.
        box_locked: bool [B].
        box_owner_teams: int [B], team of whoever locked the box last (0 hiders, 1 seekers, -1 nobody yet).
        ramp_centres: [R, 3] centre of the ramp's bounding cube of side `ramp_size`. In the ramp's own frame the
            vertical face is at -y and the slope descends towards +y.
        ramp_yaws: [R].
        ramp_locked: bool [R].
        ramp_owner_teams: int [R], as box_owner_teams.
        ramp_size: Side of a ramp's bounding cube.
        agent_names: One per slot, "hider_0" ...
        agent_present: bool [A]; the other arrays are zero where an agent is absent.
        agent_teams: int [A] (0 hiders, 1 seekers).
        agent_positions: [A, 3] centre of the body, a sphere of radius `agent_radius`.
        agent_yaws: [A]; an agent with yaw 0 looks along -y: its heading is (sin yaw, -cos yaw).
        agent_grabs: int [A], index of the held object among the O objects, -1 for none.
        agent_radius: Radius of an agent's body.
        view_half_angle: Half of the field of view, to both sides of the heading.
        lidar: [A, K] distances of K world-fixed horizontal rays, counter-clockwise from +x, equally spaced.
        sees_agents: bool [A, A]; [i, j]: i sees j.
        sees_objects: bool [A, O]; [i, o]: i sees object o.
        phase: "preparation" (seekers frozen, no reward) or "main".
        step: Steps done in this episode.
        preparation_steps: Steps of the preparation phase.
        horizon: Steps of the episode.
        hiders_reward: Return of the first present hider so far, in this episode.
        cylinders: [C, 3] x, y and radius of upright cylinders, 0.5 m high.
        sites: [S, 2] centres of construction sites, squares of 0.5 m.
    """

    scenario: str
    floor_size: float
    legal_area: tuple[float, float, float, float]
    walls: np.ndarray
    wall_heights: np.ndarray
    box_centres: np.ndarray
    box_yaws: np.ndarray
    box_sizes: np.ndarray
    box_locked: np.ndarray
    box_owner_teams: np.ndarray
    ramp_centres: np.ndarray
    ramp_yaws: np.ndarray
    ramp_locked: np.ndarray
    ramp_owner_teams: np.ndarray
    ramp_size: float
    agent_names: tuple[str, ...]
    agent_present: np.ndarray
    agent_teams: np.ndarray
    agent_positions: np.ndarray
    agent_yaws: np.ndarray
    agent_grabs: np.ndarray
    agent_radius: float
    view_half_angle: float
    lidar: np.ndarray
    sees_agents: np.ndarray
    sees_objects: np.ndarray
    phase: str
    step: int
    preparation_steps: int
    horizon: int
    hiders_reward: float
    cylinders: np.ndarray = field(default_factory=lambda: np.zeros((0, 3)))
    sites: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))
