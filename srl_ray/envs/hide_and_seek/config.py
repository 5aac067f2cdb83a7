"""Settings of hide-and-seek and the constants of its published scenarios.

The game is that of Baker et al. 2019, "Emergent Tool Use From Multi-Agent Autocurricula" (arXiv 1909.07528).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import ceil
from typing import ClassVar

# --- the world, equal in all scenarios (metres, seconds, newtons) ---------------------------------------------------
FLOOR_SIZE = 6.0
"""Of the published games; scenarios give their areas for a floor of this size."""
GRID = 30
CELL = FLOOR_SIZE / GRID
WALL_THICKNESS = CELL / 2
INNER_WALL_HEIGHT = 0.5
OUTER_WALL_HEIGHT = 4.0
AGENT_RADIUS = 0.15
ARM_RADIUS = 0.05
ARM_OFFSETS = ((-0.13, -0.075, -0.05), (0.13, -0.075, -0.05))
CUBE_SIZE = (0.5, 0.5, 0.5)
BAR_X_SIZE = (1.65, 0.15, 0.5)
BAR_Y_SIZE = (0.15, 1.65, 0.5)
RAMP_SIZE = 0.5
CYLINDER_HEIGHT = 0.5
RAMP_CENTRE_OF_MASS = (0.0, -1.0 / 12.0, -1.0 / 12.0)
TEAM_MATE_RADIUS = 0.5
REACH = 0.25
VIEW_HALF_ANGLE = 3.0 / 8.0 * 3.141592653589793
LIDAR_MISS = 6.0
MOVEMENT_LEVELS = 11
MOVEMENT_LIMIT = 0.9
OUT_OF_AREA_REWARD = -10.0
MIN_GRID, MAX_GRID = 15, 120
"""Cells along a side of the floor that are allowed; what is parked lies beyond the largest."""
MOST_ROOMS = 12

# --- the shape of an observation, equal in all scenarios, so that one network serves both --------------------------
BOX_ROWS = 9
RAMP_ROWS = 2
SELF_DIM = 10
OBJECT_DIM = 15


@dataclass(frozen=True, slots=True)
class Preset:
    """Integration of one environment step of 0.075 s.

    Attributes:
        integrator: MuJoCo's name of the integrator.
        substeps: Simulator steps per environment step.
        timestep: Length of a simulator step, s.
        do_arms_collide: Whether the agents' arms touch things. With steps of 15 ms an arm that slides along a slippery
            wall can pass the wall's middle within one step; it is then pushed out on the far side and flings its agent
            away (measured with arms, discrete 5 x 15 ms: 29 of 384 quadrant and 1 of 256 random-walls episodes).
    """

    integrator: str
    substeps: int
    timestep: float
    do_arms_collide: bool = True


REWARDS = ("joint_zero_sum", "joint_mean", "selfish")
LOCKS = ("all_lock_team_specific", "all_lock", "any_lock", "any_lock_specific")
PRESETS = {
    "faithful": Preset("Euler", 15, 0.005),
    "default": Preset("Euler", 10, 0.0075),
    "fast": Preset("discrete", 5, 0.015, do_arms_collide=False),
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """What distinguishes the published scenarios.

    Attributes:
        horizon: Steps of an episode.
        num_rooms: (min, max) of the random-rooms generator, uniform per episode (randomwalls only).
        outer_walls_probability: Probability that the border of the floor is walled.
        num_boxes: (min, max), uniform per episode.
        num_elongated: (min, max) of the boxes that are bars, uniform per episode, never more than there are boxes.
        num_ramps: Ramps of every episode.
        are_ramps_lockable: Whether the lock action reaches ramps.
        wall_friction: Sliding friction of walls. The original sets none for random walls, so that the simulator's 1.0
            holds and makes walls climbable with a ramp only at high force; the quadrant's walls are slippery.
        legal_area: (x_min, y_min, x_max, y_max) on a floor of 6 m, in proportion on others; an agent whose centre is
            outside is penalised.
        are_objects_penalised: Whether a box or ramp outside the legal area penalises every agent.
        are_team_mates_close: Whether team mates start within TEAM_MATE_RADIUS of the team's first agent, per axis.
        is_quadrant: Whether boxes start in the room in the corner and seekers outside it.
    """

    horizon: int
    num_rooms: tuple[int, int]
    outer_walls_probability: float
    num_boxes: tuple[int, int]
    num_elongated: tuple[int, int]
    num_ramps: int
    are_ramps_lockable: bool
    wall_friction: float
    legal_area: tuple[float, float, float, float]
    are_objects_penalised: bool
    are_team_mates_close: bool
    is_quadrant: bool = False


_RANDOM_WALLS = Scenario(
    horizon=240,
    num_rooms=(1, 4),
    outer_walls_probability=0.5,
    num_boxes=(3, 9),
    num_elongated=(3, 9),
    num_ramps=2,
    are_ramps_lockable=True,
    wall_friction=1.0,
    legal_area=(-6.0, -6.0, 12.0, 12.0),
    are_objects_penalised=False,
    are_team_mates_close=True,
)
_QUADRANT = Scenario(
    horizon=80,
    num_rooms=(1, 1),
    outer_walls_probability=1.0,
    num_boxes=(2, 2),
    num_elongated=(0, 0),
    num_ramps=1,
    are_ramps_lockable=False,
    wall_friction=0.01,
    legal_area=(0.1, 0.1, 5.9, 5.9),
    are_objects_penalised=True,
    are_team_mates_close=False,
    is_quadrant=True,
)
_FIXED_PLAN = replace(
    _RANDOM_WALLS,
    num_rooms=(1, 1),
    outer_walls_probability=1.0,
    wall_friction=_QUADRANT.wall_friction,
    legal_area=_QUADRANT.legal_area,
    are_objects_penalised=True,
)
SCENARIOS = {
    "randomwalls": _RANDOM_WALLS,
    "quadrant": _QUADRANT,
    "var_quadrant": _QUADRANT,
    "empty": _FIXED_PLAN,
    "half": _FIXED_PLAN,
    "var_tri": _FIXED_PLAN,
}
"""The published games are randomwalls and quadrant. Of the others only the walls are published; they are played as the
quadrant (var_quadrant) or with the objects, ramps and horizon of randomwalls inside a slippery border (the rest)."""


@dataclass(kw_only=True, slots=True)
class HideAndSeekConfig:
    """Settings of a block of hide-and-seek environments.

    Attributes:
        scenario: "randomwalls" (the main game), "quadrant" (one room in a corner; small, for debugging),
            "var_quadrant" (the room's size varies), "empty" (border only), "half" (a wall across the middle) or
            "var_tri" (one large and two small rooms).
        floor_size: Side of the square floor, m: a number, or (min, max) for a number of 0.2 m cells that is uniform per
            episode. The legal area is in proportion.
        map_scale: Scales the map: floor, legal area, radius within which team mates start, and the scenario's horizon.
        num_hiders: (min, max) of the hiders of an episode; uniform, redrawn at every episode.
        num_seekers: (min, max) of the seekers of an episode, likewise.
        max_hiders: Agent slots of the hiders; fixes the agent ids and the observation's shape.
        max_seekers: Agent slots of the seekers.
        preset: Integration: "faithful" (Euler, 15 substeps of 5 ms, as the original), "default" (Euler, 10 of 7.5 ms)
            or "fast" (MuJoCo's discrete integrator, 5 of 15 ms: softer locks, stickier grabs, and arms
            that are seen but do not collide).
        horizon: Steps of an episode; None takes the scenario's (240, quadrants 80) times `map_scale`.
        prep_fraction: Share of the horizon in which seekers are frozen and nobody is rewarded.
        num_boxes: (min, max) of the boxes of an episode; None takes the scenario's (3-9, 2). At most 9.
        num_elongated: (min, max) of the boxes that are bars; None takes the scenario's (3-9, 0).
        num_ramps: Ramps; None takes the scenario's (2, 1). At most 2.
        num_rooms: (min, max) of the rooms of randomwalls, uniform per episode; None takes the scenario's (1-4).
        outer_walls_probability: Probability that the border of randomwalls is walled (0.5); elsewhere it always is.
        door_cells: Width of the door in every inner wall in cells of 0.2 m, 2 leaving 0.7 m free; 0 for no doors.
        door_dropout: Quadrants only: probability that one of the room's two walls has no door.
        are_hiders_anywhere: Quadrants only: hiders start anywhere on the floor, not just inside the room.
        reward: "joint_zero_sum" (a team is hidden or seen as a whole), "selfish" (a hider is rewarded for being unseen
            itself, a seeker for seeing somebody itself) or "joint_mean" (a team shares the mean of its selfish ones).
        lock: Who may unlock, and who prevails when agents in reach disagree; an agent that does not ask to lock asks to
            unlock. "all_lock_team_specific" (the owner's team may; who may unlock prevails), "all_lock" (anybody;
            unlocking prevails), "any_lock" (anybody; locking prevails) or "any_lock_specific" (the owner only; locking
            prevails and passes the object on).
        is_vision_needed_to_lock: Only what the agent saw in the previous observation can be locked.
        is_vision_needed_to_grab: The same for grabbing.
        is_grab_exclusive: An object is held by one agent at a time, pairs nearest to each other first.
        lidar_rays: Horizontal rays per agent.
        lidar_scale: Lidar distances d are observed as s * tanh(d / s) with this s, m; 0 observes d itself.
        is_team_size_observed: A further column of `self`: present agents of the observer's team.
        are_box_ids_observed: A further column of `boxes`: the box's number, from 0.
        do_hiders_own_unlocked: Keep an oddity of the original: objects that nobody ever locked count as locked by the
            first hider before, so that an idle hider beside one vetoes a seeker's lock but not the other way round.
        max_placement_tries: Worlds drawn before a reset gives up with an error.
        threads: Threads that step the block's simulations.
        ramp_rows: Ramps that an observation has room for.
        num_cylinders: Upright cylinders that stand in the way.
    """

    ramp_rows: ClassVar[int] = RAMP_ROWS
    num_cylinders: ClassVar[int] = 0

    scenario: str = "randomwalls"
    floor_size: float | tuple[float, float] = FLOOR_SIZE
    map_scale: float = 1.0
    num_hiders: tuple[int, int] = (1, 3)
    num_seekers: tuple[int, int] = (1, 3)
    max_hiders: int = 3
    max_seekers: int = 3
    preset: str = "default"
    horizon: int | None = None
    prep_fraction: float = 0.4
    num_boxes: tuple[int, int] | None = None
    num_elongated: tuple[int, int] | None = None
    num_ramps: int | None = None
    num_rooms: tuple[int, int] | None = None
    outer_walls_probability: float | None = None
    door_cells: int = 2
    door_dropout: float = 0.5
    are_hiders_anywhere: bool = True
    reward: str = REWARDS[0]
    lock: str = LOCKS[0]
    is_vision_needed_to_lock: bool = True
    is_vision_needed_to_grab: bool = True
    is_grab_exclusive: bool = False
    lidar_rays: int = 30
    lidar_scale: float = 0.0
    is_team_size_observed: bool = False
    are_box_ids_observed: bool = False
    do_hiders_own_unlocked: bool = False
    max_placement_tries: int = 1000
    threads: int = 1

    def __post_init__(self) -> None:
        _check("scenario", self.scenario, self.scenario in SCENARIOS, f"one of {', '.join(SCENARIOS)}")
        _check("preset", self.preset, self.preset in PRESETS, f"one of {', '.join(PRESETS)}")
        _check("reward", self.reward, self.reward in REWARDS, f"one of {', '.join(REWARDS)}")
        _check("lock", self.lock, self.lock in LOCKS, f"one of {', '.join(LOCKS)}")
        _check("map_scale", self.map_scale, self.map_scale > 0, "above 0")
        base = SCENARIOS[self.scenario]
        if self.horizon is None:
            self.horizon = round(base.horizon * self.map_scale)
        for item in fields(self):
            if item.default is None and getattr(self, item.name) is None:
                setattr(self, item.name, getattr(base, item.name))
        for name in ("num_hiders", "num_seekers", "num_boxes", "num_elongated", "num_rooms"):
            value = getattr(self, name)
            _check(name, value, len(value) == 2, "a pair (min, max)")
            pair = (int(value[0]), int(value[1]))
            setattr(self, name, pair)
            _check(name, value, 0 <= pair[0] <= pair[1], "a pair with 0 <= min <= max")
        _check("num_hiders", self.num_hiders, self.num_hiders[0] >= 1, "at least one hider")
        are_seekers_fine = self.num_seekers[0] >= 1 or self.max_seekers == 0
        _check("num_seekers", self.num_seekers, are_seekers_fine, "at least one seeker")
        _check("max_hiders", self.max_hiders, self.num_hiders[1] <= self.max_hiders, f"at least {self.num_hiders[1]}")
        _check(
            "max_seekers", self.max_seekers, self.num_seekers[1] <= self.max_seekers, f"at least {self.num_seekers[1]}"
        )
        _check("num_boxes", self.box_range, 1 <= self.box_range[1] <= BOX_ROWS, f"1 to {BOX_ROWS} boxes at most")
        _check("num_ramps", self.num_ramps, self.num_ramps in range(self.ramp_rows + 1), f"0 to {self.ramp_rows}")
        _check("horizon", self.horizon, self.horizon is not None and self.horizon >= 1, "at least 1")
        rooms = self.room_range
        _check("num_rooms", rooms, rooms[0] >= 1 and rooms[1] <= MOST_ROOMS, f"from 1 to {MOST_ROOMS} rooms")
        fewest, most = self.grid_range
        is_floor = MIN_GRID <= fewest <= most <= MAX_GRID
        expected = (
            f"(times map_scale {self.map_scale}) {MIN_GRID * CELL:g} to {MAX_GRID * CELL:g} m, or a pair of these"
        )
        _check("floor_size", self.floor_size, is_floor, expected)
        _check("door_cells", self.door_cells, self.door_cells >= 0, "at least 0")
        _check("prep_fraction", self.prep_fraction, 0.0 <= self.prep_fraction < 1.0, "in [0, 1)")
        _check("door_dropout", self.door_dropout, 0.0 <= self.door_dropout <= 1.0, "in [0, 1]")
        probability = self.outer_walls_probability
        is_probability = probability is not None and 0.0 <= probability <= 1.0
        _check("outer_walls_probability", probability, is_probability, "in [0, 1]")
        _check("lidar_scale", self.lidar_scale, self.lidar_scale >= 0, "at least 0")
        _check("lidar_rays", self.lidar_rays, self.lidar_rays >= 1, "at least 1")
        _check("threads", self.threads, self.threads >= 1, "at least 1")
        _check("max_placement_tries", self.max_placement_tries, self.max_placement_tries >= 1, "at least 1")

    @property
    def rules(self) -> Scenario:
        """Constants of the scenario; its horizon, counts and probabilities are overridden by this config's fields."""
        return SCENARIOS[self.scenario]

    @property
    def grid_range(self) -> tuple[int, int]:
        """(min, max) of the cells along a side of the floor."""
        size = self.floor_size
        low, high = (size, size) if isinstance(size, (int, float)) else size
        return round(low * self.map_scale / CELL), round(high * self.map_scale / CELL)

    @property
    def max_floor_size(self) -> float:
        """Side of the largest floor, m."""
        return self.grid_range[1] * CELL

    def legal_area(self, floor_size: float) -> tuple[float, float, float, float]:
        """(x_min, y_min, x_max, y_max) on a floor of this size, m; an agent whose centre is outside is penalised."""
        x_min, y_min, x_max, y_max = self.rules.legal_area
        scale = floor_size / FLOOR_SIZE
        return x_min * scale, y_min * scale, x_max * scale, y_max * scale

    @property
    def max_walls(self) -> int:
        """Walls of the fullest plan: the border's four, and two pieces of every inner wall around its door."""
        return 4 + 2 * max(2, self.room_range[1] - 1)

    @property
    def team_mate_reach(self) -> int | None:
        """Cells per axis within which team mates start, None for anywhere."""
        return ceil(TEAM_MATE_RADIUS * self.map_scale / CELL - 1e-9) if self.rules.are_team_mates_close else None

    @property
    def room_range(self) -> tuple[int, int]:
        assert self.num_rooms is not None
        return self.num_rooms

    @property
    def integration(self) -> Preset:
        return PRESETS[self.preset]

    @property
    def max_agents(self) -> int:
        return self.max_hiders + self.max_seekers

    @property
    def other_rows(self) -> int:
        """Other agents that an observation has room for."""
        return self.max_agents - 1

    @property
    def box_range(self) -> tuple[int, int]:
        assert self.num_boxes is not None
        return self.num_boxes

    @property
    def elongated_range(self) -> tuple[int, int]:
        assert self.num_elongated is not None
        return self.num_elongated

    @property
    def ramps(self) -> int:
        assert self.num_ramps is not None
        return self.num_ramps

    @property
    def steps(self) -> int:
        """Steps of an episode."""
        assert self.horizon is not None
        return self.horizon

    @property
    def prep_steps(self) -> int:
        """Steps of the preparation phase: floor(horizon * prep_fraction), against rounding of e.g. 240 * 0.4."""
        return int(self.steps * self.prep_fraction + 1e-9)


def _check(name: str, value: object, is_ok: bool, expected: str) -> None:
    if not is_ok:
        raise ValueError(f"hide_and_seek.{name} is {value!r}; expected {expected}")
