"""The world as an environment block: many simulations stepped together, every rule vectorised over all of them.

Moving, grabbing, locking and seeing are here and the same for every game; what the agents are to do is the `Task`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy as np

from srl_ray.core.types import AgentGroup, Arrays, BlockSpec, DiscreteActions, EpisodeRecord
from srl_ray.envs.block import BlockStep
from srl_ray.envs.hide_and_seek.config import (
    AGENT_RADIUS,
    MOVEMENT_LEVELS,
    MOVEMENT_LIMIT,
    RAMP_SIZE,
    REACH,
    VIEW_HALF_ANGLE,
    HideAndSeekConfig,
)
from srl_ray.envs.hide_and_seek.episode import Episodes
from srl_ray.envs.hide_and_seek.foraging import Foraging, ForagingConfig
from srl_ray.envs.hide_and_seek.game import HideAndSeek
from srl_ray.envs.hide_and_seek.grab_lock import Grabbing, Locking, surface_distance
from srl_ray.envs.hide_and_seek.layout import Layout
from srl_ray.envs.hide_and_seek.model import agent_names
from srl_ray.envs.hide_and_seek.observation import Observation, observation_specs
from srl_ray.envs.hide_and_seek.physics import Physics
from srl_ray.envs.hide_and_seek.rays import RayCaster
from srl_ray.envs.hide_and_seek.snapshot import NOBODY, Snapshot
from srl_ray.envs.hide_and_seek.task import Task, World
from srl_ray.envs.hide_and_seek.transfer import (
    Blueprint,
    BlueprintConfig,
    Counting,
    CountingConfig,
    LockAndReturn,
    LockAndReturnConfig,
    SequentialLock,
    SequentialLockConfig,
    Shelter,
    ShelterConfig,
)
from srl_ray.envs.hide_and_seek.walls import wall_shapes

NO_FORCE = MOVEMENT_LEVELS // 2
PULL, LOCK = 3, 4
NO_ACTION = np.array([NO_FORCE, NO_FORCE, NO_FORCE, 0, 0])
FORCE_LEVELS = (np.arange(MOVEMENT_LEVELS) - NO_FORCE) * (MOVEMENT_LIMIT / NO_FORCE)


class HideAndSeekBlock:
    """`num_envs` environments of hide-and-seek, or of another task in its world. Implements `EnvBlock`.

    Actions are (x force, y force, yaw torque, pull, lock): three of 11 levels (5 is none) and two bits. Agents of both
    teams share one group; those that an episode's team sizes leave out have no observation and get no reward. Episodes
    end by the time limit (truncated) or by the task's rules (terminated; never in hide-and-seek), and restart in the
    same step.

    Attributes:
        spec: Agents and spaces.
        task: The rules of the game.
        world: The state of all simulations; its parts are also attributes of the block.
        stage_seconds: Seconds spent since construction, by stage of `step`: "grab_lock" (forces included), "physics",
            "rays", "task", "observation" and "reset" (new worlds, their rays and observations included).
        stagger_steps: See `EnvBlock`.
    """

    def __init__(self, num_envs: int, config: HideAndSeekConfig, task: Task | None = None) -> None:
        self.config = config
        self.stagger_steps = 0
        self.task = HideAndSeek(num_envs, config) if task is None else task
        names = agent_names(config)
        teams = ("hiders",) * config.max_hiders + ("seekers",) * config.max_seekers
        action = DiscreteActions((MOVEMENT_LEVELS, MOVEMENT_LEVELS, MOVEMENT_LEVELS, 2, 2))
        group = AgentGroup("agents", names, {**observation_specs(config), **self.task.fields}, action, teams)
        self.spec = BlockSpec(self.task.name, num_envs, group, frame_skip=config.integration.substeps)
        self.stage_seconds = dict.fromkeys(("grab_lock", "physics", "rays", "task", "observation", "reset"), 0.0)
        self.physics = Physics(num_envs, config)
        self.episodes = Episodes(num_envs, config)
        self.rays = RayCaster(num_envs, config)
        self.grabbing = Grabbing(num_envs, config)
        self.locking = Locking(num_envs, config)
        self.world = World(self.episodes, self.physics, self.rays, self.grabbing, self.locking)
        self.observation = Observation(num_envs, config)
        self.observation.fields |= {
            name: spec.zeros(num_envs, config.max_agents) for name, spec in self.task.fields.items()
        }
        self.returns = np.zeros((num_envs, config.max_agents))
        self._agents = config.max_agents
        self._rngs: list[np.random.Generator] = []

    def reset(self, seed: int) -> BlockStep:
        """Start every environment afresh; environment e draws from a stream of its own derived from (seed, e)."""
        num_envs = self.spec.num_envs
        self._rngs = [np.random.default_rng((seed, env)) for env in range(num_envs)]
        everyone = np.arange(num_envs)
        self._begin_episodes(everyone)
        if self.stagger_steps:
            cuts = [rng.integers(1, self.stagger_steps + 1) for rng in self._rngs]
            self.episodes.limit[:] = np.minimum(self.episodes.limit, cuts)
        self.refresh()
        nothing = np.zeros((num_envs, self._agents), bool)
        return self._answer(
            on_reset=self.episodes.present.copy(),
            reward=nothing.astype(np.float32),
            terminated=nothing,
            truncated=nothing,
            episodes=[],
        )

    def step(self, actions: np.ndarray) -> BlockStep:
        """Advance every environment by one step.

        Args:
            actions: int64 [E, A, 5]; rows of absent agents are ignored.
        """
        assert self._rngs, "reset comes before step"
        clock = perf_counter()
        self._act(actions)
        clock = self._count("grab_lock", clock)
        failed = self.physics.step()
        clock = self._count("physics", clock)
        records: list[EpisodeRecord] = []
        was_present = self.episodes.present.copy()
        on_reset = np.zeros_like(was_present)
        self.episodes.step += 1
        if failed.any():
            records += self._discard(np.nonzero(failed)[0])
            on_reset[failed] = self.episodes.present[failed]
            clock = self._count("reset", clock)
        self.rays.cast(self.physics.pose)
        clock = self._count("rays", clock)
        reward, is_over = self.task.score(self.world)
        reward[failed] = 0.0
        self.returns += reward
        clock = self._count("task", clock)
        self._observe()
        clock = self._count("observation", clock)
        is_over = is_over & ~failed
        ended = (self.episodes.step >= self.episodes.limit) & ~failed | is_over
        final_lanes, final_obs = np.zeros(0, np.int64), None
        if ended.any():
            ids = np.nonzero(ended)[0]
            final_lanes = np.flatnonzero(was_present & ended[:, None])
            final_obs = self._rows(final_lanes)
            records += [self._record(int(env)) for env in ids]
            self._begin_episodes(ids)
            self.rays.cast(self.physics.pose, ids)
            self._observe()
            on_reset[ended] = self.episodes.present[ended]
            self._count("reset", clock)
        return self._answer(
            on_reset=on_reset,
            reward=reward,
            terminated=was_present & is_over[:, None],
            truncated=was_present & (failed | ended & ~is_over)[:, None],
            episodes=records,
            final_lanes=final_lanes,
            final_obs=final_obs,
        )

    def start_in(self, env_index: int, layout: Layout | None = None) -> None:
        """Begin a new episode of one environment, in a world of your own for tests, pictures and lessons.

        The running episode is dropped without a record. The config fixes how many agents, boxes and ramps fit.

        Args:
            env_index: Environment.
            layout: Its world; None draws one as usual.

        Raises:
            ValueError: the world has more of something than the config has room for.
        """
        assert self._rngs, "reset comes before start_in"
        if layout is not None:
            self._check_room(layout)
        self._begin_episodes(np.array([env_index]), None if layout is None else [layout])
        self.refresh()

    def _check_room(self, layout: Layout) -> None:
        config = self.config
        for name, count, most, key in (
            ("hiders", len(layout.hiders), config.max_hiders, "max_hiders"),
            ("seekers", len(layout.seekers), config.max_seekers, "max_seekers"),
            ("boxes", len(layout.boxes), config.box_range[1], "num_boxes"),
            ("ramps", len(layout.ramps), config.ramps, "num_ramps"),
            ("walls", len(layout.walls), config.max_walls, "scenario or num_rooms"),
        ):
            if count > most:
                raise ValueError(
                    f"the layout has {count} {name}, but this block has room for {most}; "
                    f"give it another hide_and_seek.{key}"
                )

    def refresh(self) -> None:
        """Bring sights, lidar and observations up to date after poses in `physics` were edited by hand."""
        self.rays.cast(self.physics.pose)
        self._observe()

    def close(self) -> None:
        """Nothing to release: memory goes with the object."""

    def snapshot(self, env_index: int) -> Snapshot:
        """Copies of what a drawing of one environment needs; cheap, but meant for the environments that are drawn."""
        episodes, agents, boxes = self.episodes, self._agents, self.episodes.num_boxes
        layout = episodes.layouts[env_index]
        assert layout is not None, "reset comes before snapshot"
        present, exists = episodes.present[env_index], episodes.exists[env_index]
        objects = np.nonzero(exists)[0]
        box, ramp = objects[objects < boxes], objects[objects >= boxes]
        pose = self.physics.pose[env_index]
        object_pose = pose[agents:]
        owner = self.locking.owner[env_index]
        owner_team = np.where(owner >= 0, episodes.team[owner], NOBODY)
        locked = self.locking.locked[env_index]
        row_of_object = np.full(len(exists) + 1, -1)  # index -1 (nothing held) reads the last entry
        row_of_object[objects] = np.arange(len(objects))
        step = int(episodes.step[env_index])
        walls, wall_heights = wall_shapes(layout.walls)
        return Snapshot(
            scenario=self.config.scenario,
            floor_size=layout.floor_size,
            legal_area=self.config.legal_area(layout.floor_size),
            walls=walls,
            wall_heights=wall_heights,
            box_centres=object_pose[box, :3].copy(),
            box_yaws=object_pose[box, 3].copy(),
            box_sizes=layout.box_sizes.copy(),
            box_locked=locked[box].copy(),
            box_owner_teams=owner_team[box],
            ramp_centres=object_pose[ramp, :3].copy(),
            ramp_yaws=object_pose[ramp, 3].copy(),
            ramp_locked=locked[ramp].copy(),
            ramp_owner_teams=owner_team[ramp],
            ramp_size=RAMP_SIZE,
            agent_names=self.spec.group.agent_ids,
            agent_present=present.copy(),
            agent_teams=episodes.team.copy(),
            agent_positions=pose[:agents, :3] * present[:, None],
            agent_yaws=pose[:agents, 3] * present,
            agent_grabs=row_of_object[self.grabbing.held[env_index]],
            agent_radius=AGENT_RADIUS,
            view_half_angle=VIEW_HALF_ANGLE,
            lidar=self.rays.lidar[env_index] * present[:, None],
            sees_agents=self.rays.sees[env_index, :, :agents].copy(),
            sees_objects=self.rays.sees[env_index][:, agents + objects],
            phase="preparation" if step < self.config.prep_steps else "main",
            step=step,
            preparation_steps=self.config.prep_steps,
            horizon=self.config.steps,
            hiders_reward=float(self.returns[env_index, 0]),
            cylinders=layout.cylinders.copy(),
            sites=layout.sites.copy(),
        )

    # --- the stages of a step -----------------------------------------------------------------------------------------

    def _act(self, actions: np.ndarray) -> None:
        """Forces, grabs and locks for the coming step."""
        episodes = self.episodes
        is_void = self.task.prepare(self.world, actions) | ~episodes.present
        actions = np.where(is_void[..., None], NO_ACTION, actions)
        self.physics.control[...] = FORCE_LEVELS[actions[..., :PULL]]
        distance = surface_distance(self.physics.pose, episodes.half_sizes, self._agents)
        grabbable = self._in_reach(distance, self.config.is_vision_needed_to_grab)
        lockable = self._in_reach(distance, self.config.is_vision_needed_to_lock)
        self.grabbing.update(self.physics, actions[..., PULL] == 1, distance, grabbable)
        self.locking.update(self.physics, episodes, actions[..., LOCK] == 1, lockable)

    def _in_reach(self, distance: np.ndarray, is_vision_needed: bool) -> np.ndarray:
        """bool [E, A, O]; what an agent is near enough to and, if that is needed, saw in the previous observation."""
        if is_vision_needed:
            return (distance <= REACH) & self.rays.sees[:, :, self._agents :]
        return (distance <= REACH) & self.episodes.present[:, :, None] & self.episodes.exists[:, None]

    def _observe(self) -> None:
        self.observation.write(
            self.episodes,
            self.physics.pose,
            self.physics.velocity,
            locked=self.locking.locked,
            owner=self.locking.owner,
            sees=self.rays.sees,
            lidar=self.rays.lidar,
        )
        self.task.observe(self.world, self.observation.fields)

    # --- episodes -----------------------------------------------------------------------------------------------------

    def _begin_episodes(self, ids: np.ndarray, layouts: list[Layout] | None = None) -> None:
        """New worlds for the environments `ids`, drawn or given; rays and observations are still the old ones."""
        layouts = layouts or [self.task.draw(self._rngs[env]) for env in ids]
        slots = []
        for env, layout in zip(ids, layouts, strict=True):
            rng = self._rngs[env]
            self.episodes.begin(int(env), layout, int(rng.integers(2**63)))
            present = self.episodes.present[env]
            walls, wall_heights = wall_shapes(layout.walls)
            self.rays.set_world(
                int(env),
                walls=walls,
                wall_heights=wall_heights,
                box_sizes=layout.box_sizes,
                exists=np.concatenate([present, self.episodes.exists[env]]),
                cylinders=layout.cylinders,
            )
            slots.append(np.nonzero(present)[0])
        self.physics.reset(ids, layouts, slots)
        self.grabbing.reset(ids)
        self.locking.reset(ids)
        self.returns[ids] = 0.0
        self.task.begin(self.world, ids)

    def _discard(self, ids: np.ndarray) -> list[EpisodeRecord]:
        """End the episodes of failed simulations, whose states must not be looked at, and begin new ones."""
        records = []
        for env in ids:
            returns = self._returns(int(env))
            length = int(self.episodes.step[env])
            records.append(EpisodeRecord(int(env), length, returns, dict.fromkeys(returns, length), discarded=True))
        self._begin_episodes(ids)
        return records

    def _record(self, env: int) -> EpisodeRecord:
        returns = self._returns(env)
        length = int(self.episodes.step[env])
        summary = self.task.summary(self.world, env, self.returns[env])
        return EpisodeRecord(env, length, returns, dict.fromkeys(returns, length), summary)

    def _returns(self, env: int) -> dict[str, float]:
        slots = np.nonzero(self.episodes.present[env])[0]
        return {self.spec.group.agent_ids[slot]: float(self.returns[env, slot]) for slot in slots}

    # --- the answer ---------------------------------------------------------------------------------------------------

    def _answer(
        self,
        *,
        on_reset: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        episodes: list[EpisodeRecord],
        final_lanes: np.ndarray | None = None,
        final_obs: Arrays | None = None,
    ) -> BlockStep:
        lanes = np.zeros(0, np.int64) if final_lanes is None else final_lanes
        return BlockStep(
            obs=self.observation.fields,
            present=self.episodes.present,
            on_reset=on_reset,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            final_lanes=lanes,
            final_obs=self._rows(lanes) if final_obs is None else final_obs,
            episodes=episodes,
        )

    def _rows(self, lanes: np.ndarray) -> Arrays:
        """Copies of the observations of some lanes."""
        fields = self.observation.fields
        return {name: field.reshape(-1, *field.shape[2:])[lanes] for name, field in fields.items()}

    def _count(self, stage: str, since: float) -> float:
        now = perf_counter()
        self.stage_seconds[stage] += now - since
        return now


TASKS: Mapping[str, tuple[type[Any], Callable[[int, Any], Task]]] = {
    "hide_and_seek": (HideAndSeekConfig, HideAndSeek),
    "foraging": (ForagingConfig, Foraging),
    "object_counting": (CountingConfig, Counting),
    "lock_and_return": (LockAndReturnConfig, LockAndReturn),
    "sequential_lock": (SequentialLockConfig, SequentialLock),
    "blueprint": (BlueprintConfig, Blueprint),
    "shelter": (ShelterConfig, Shelter),
}
"""What can be played in the world, by name: its settings and its rules."""


def make_block(num_envs: int, *, task: str = "hide_and_seek", **kwargs: Any) -> HideAndSeekBlock:
    """A block of a task whose settings are keyword arguments, e.g. `make_block(64, scenario="quadrant")`.

    Args:
        num_envs: E.
        task: One of `TASKS`.
        kwargs: Fields of the task's config.

    Raises:
        ValueError: A value is out of range, or there is no such task.
    """
    config = task_config(task, **kwargs)
    return HideAndSeekBlock(num_envs, config, TASKS[task][1](num_envs, config))


def task_config(task: str, **kwargs: Any) -> HideAndSeekConfig:
    """The settings of a task, checked."""
    if task not in TASKS:
        raise ValueError(f"hide_and_seek.task is {task!r}; expected one of {', '.join(TASKS)}")
    config: HideAndSeekConfig = TASKS[task][0](**kwargs)
    return config
