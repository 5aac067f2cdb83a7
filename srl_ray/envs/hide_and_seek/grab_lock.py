"""Grabbing and locking: who holds and who locks what, decided on the poses before the step.

Both reach 0.25 m from the agent's centre to the object's surface and need the object to have been visible in the
previous observation. Baker et al. 2019 describe the two actions; the rules in detail are those of their released code.
"""

from __future__ import annotations

import numpy as np

from srl_ray.envs.hide_and_seek.config import HideAndSeekConfig
from srl_ray.envs.hide_and_seek.episode import Episodes
from srl_ray.envs.hide_and_seek.physics import Physics
from srl_ray.envs.hide_and_seek.snapshot import HIDERS, NOBODY, SEEKERS


def surface_distance(pose: np.ndarray, half_sizes: np.ndarray, num_agents: int) -> np.ndarray:
    """[E, A, O]; from agents' centres to the surfaces of the objects' oriented bounding boxes, 0 inside, m.

    Args:
        pose: [E, A + O, 4].
        half_sizes: [E, O, 3].
        num_agents: A.
    """
    places = np.ascontiguousarray(pose.transpose(2, 1, 0))  # simulations innermost, for long inner loops
    half_x, half_y, half_z = np.ascontiguousarray(half_sizes.transpose(2, 1, 0))
    objects = places[:, num_agents:]
    x, y, z = places[:3, :num_agents, None] - objects[:3, None]  # each [A, O, E]
    cos, sin = np.cos(objects[3]), np.sin(objects[3])
    beyond_x = np.maximum(np.abs(x * cos + y * sin) - half_x, 0.0)
    beyond_y = np.maximum(np.abs(y * cos - x * sin) - half_y, 0.0)
    beyond_z = np.maximum(np.abs(z) - half_z, 0.0)
    distance = np.sqrt(beyond_x * beyond_x + beyond_y * beyond_y + beyond_z * beyond_z)
    return np.ascontiguousarray(distance.transpose(2, 0, 1))


class Grabbing:
    """One weld per agent, which ties it to the nearest object in reach for as long as the agent keeps asking.

    Several agents may hold the same object, unless the config's `is_grab_exclusive` says otherwise.

    Attributes:
        held: int [E, A]; object held, -1 for none.
    """

    def __init__(self, num_envs: int, config: HideAndSeekConfig) -> None:
        self.held = np.full((num_envs, config.max_agents), -1)
        self._choose = _match if config.is_grab_exclusive else _nearest

    def reset(self, ids: np.ndarray) -> None:
        self.held[ids] = -1

    def update(self, physics: Physics, asks: np.ndarray, distance: np.ndarray, reachable: np.ndarray) -> None:
        """Release and take hold.

        Args:
            physics: Its welds are written.
            asks: bool [E, A]; agents that ask to hold something.
            distance: [E, A, O].
            reachable: bool [E, A, O]; within reach and, if that is needed, seen before.
        """
        agents = asks.shape[1]
        held = self._choose(np.where(reachable & asks[..., None], distance, np.inf))
        is_held = held >= 0
        env, agent = np.nonzero((held != self.held) & is_held)
        if len(env):
            target = agents + held[env, agent]
            me, other = physics.pose[env, agent], physics.pose[env, target]
            offset, turn = other[:, :3] - me[:, :3], (other[:, 3] - me[:, 3]) / 2
            cos, sin = np.cos(me[:, 3]), np.sin(me[:, 3])
            # MuJoCo's weld: anchor on the object (0-2), its place in the agent's frame (3-5), relative quaternion (6-9)
            data = np.zeros((len(env), 10))
            data[:, 3] = cos * offset[:, 0] + sin * offset[:, 1]
            data[:, 4] = cos * offset[:, 1] - sin * offset[:, 0]
            data[:, 5] = offset[:, 2]
            data[:, 6], data[:, 9] = np.cos(turn), np.sin(turn)
            physics.weld_data[env, agent, :10] = data
            physics.weld_object[env, agent] = 1 + target
        physics.weld_active[...] = is_held
        self.held = held


def _nearest(distance: np.ndarray) -> np.ndarray:
    """int [E, A]; each agent's nearest object, -1 where all of the distances [E, A, O] are infinite."""
    nearest = distance.argmin(axis=2)
    is_finite = np.isfinite(np.take_along_axis(distance, nearest[..., None], 2)[..., 0])
    return np.where(is_finite, nearest, -1)


def _match(distance: np.ndarray) -> np.ndarray:
    """The same with every object going to one agent at most: the closest pair first, then the closest of the rest."""
    envs, agents, objects = distance.shape
    distance = distance.copy()
    held = np.full((envs, agents), -1)
    env = np.arange(envs)
    for _ in range(min(agents, objects)):
        agent, target = np.divmod(distance.reshape(envs, -1).argmin(axis=1), objects)
        is_pair = np.isfinite(distance[env, agent, target])
        held[env[is_pair], agent[is_pair]] = target[is_pair]
        distance[env, agent] = np.inf
        distance[env, :, target] = np.inf
    return held


class Locking:
    """Objects frozen in place by an agent; the config's `lock` says who can free them again.

    Attributes:
        locked: bool [E, O].
        owner: int [E, O]; agent that locked the object last, -1 if nobody has in this episode.
        lockable: bool [E, A, O] or what can be broadcast to it; whom the two actions reach. A task may set it.
    """

    def __init__(self, num_envs: int, config: HideAndSeekConfig) -> None:
        objects = config.box_range[1] + config.ramps
        self.locked = np.zeros((num_envs, objects), bool)
        self._kind = config.lock
        self._first_owner = 0 if config.do_hiders_own_unlocked else NOBODY
        self.owner = np.full((num_envs, objects), self._first_owner)
        self.lockable = np.ones(objects, bool)
        self.lockable[config.box_range[1] :] = config.rules.are_ramps_lockable

    def reset(self, ids: np.ndarray) -> None:
        self.locked[ids] = False
        self.owner[ids] = self._first_owner

    def update(self, physics: Physics, episodes: Episodes, wants: np.ndarray, reachable: np.ndarray) -> None:
        """Lock and unlock.

        An agent that does not ask to lock asks to unlock: there is no neutral.

        Args:
            physics: Joint limits are written: a locked object's four joints may not leave their present values.
            episodes: Teams and tie keys.
            wants: bool [E, A]; agents that ask to lock.
            reachable: bool [E, A, O]; within reach and, if that is needed, seen before.
        """
        near = reachable & self.lockable
        if not near.any():
            return
        willing, freed = self._decide(episodes, near & wants[..., None], near & ~wants[..., None])
        lock = willing.any(axis=1)
        locked = (self.locked & ~freed) | lock
        env, target = np.nonzero(lock & (~self.locked | freed))
        if len(env):
            self.owner[env, target] = _choose(willing[env, :, target], episodes, env, target)
        env, target = np.nonzero(locked & ~self.locked)
        if len(env):
            body = physics.num_agents + target
            physics.joint_range[env, body] = physics.pose[env, body][..., None]
            physics.joint_limited[env, body] = True
        env, target = np.nonzero(self.locked & ~locked)
        if len(env):
            body = physics.num_agents + target
            physics.joint_limited[env, body] = False
            # a negative zero is no motion, but it wakes an object that sleeps in the air
            velocity = physics.velocity[env, body]
            physics.velocity[env, body] = np.where(velocity == 0.0, -0.0, velocity)
        self.locked = locked

    def _decide(self, episodes: Episodes, willing: np.ndarray, refusing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Who locks what, and what is freed from its present lock, given who asks for either [E, A, O].

        Returns:
            bool [E, A, O] and bool [E, O]; what somebody locks is locked afterwards, and changes its owner if it was
            free or is freed.
        """
        somebody_refuses = np.asarray(refusing.any(axis=1))
        match self._kind:
            case "all_lock_team_specific":
                # Of an object that nobody has locked yet, each team vetoes only its own locks.
                owner_team = np.where(self.owner >= 0, episodes.team[self.owner], NOBODY)
                hiders_refuse = np.asarray(refusing[:, episodes.is_hider].any(axis=1))
                seekers_refuse = np.asarray(refusing[:, ~episodes.is_hider].any(axis=1))
                freed = (owner_team == HIDERS) & hiders_refuse | (owner_team == SEEKERS) & seekers_refuse
                is_vetoed = np.where(episodes.is_hider[:, None], hiders_refuse[:, None], seekers_refuse[:, None])
                is_vetoed &= (owner_team == NOBODY)[:, None]
                return willing & ~is_vetoed & ~freed[:, None], freed
            case "all_lock":
                return willing & ~somebody_refuses[:, None], somebody_refuses
            case "any_lock":
                return willing, somebody_refuses & ~willing.any(axis=1)
            case "any_lock_specific":
                owner_refuses = np.take_along_axis(refusing, np.maximum(self.owner, 0)[:, None], axis=1)[:, 0]
                return willing, owner_refuses & (self.owner >= 0)
        raise AssertionError(f"no rule for {self._kind}")


def _choose(willing: np.ndarray, episodes: Episodes, env: np.ndarray, target: np.ndarray) -> np.ndarray:
    """One of the willing agents [n, A] per row, uniformly, by a hash of episode, step, object and agent.

    A hash instead of a generator, so that the choice in one simulation does not depend on its neighbours in the block.
    """
    with np.errstate(over="ignore"):
        moment = episodes.tie_keys[env] + (episodes.step[env].astype(np.uint64) << np.uint64(16))
        moment = moment + (target.astype(np.uint64) << np.uint64(8))
        keys = _mix(moment[:, None] + np.arange(willing.shape[1], dtype=np.uint64))
    return np.where(willing, (keys >> np.uint64(2)).astype(np.int64), -1).argmax(axis=1)


def _mix(values: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64 (Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
