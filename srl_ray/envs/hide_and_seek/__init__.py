"""Hide-and-seek with boxes, ramps and walls: the game of "Emergent Tool Use From Multi-Agent Autocurricula".

A from-scratch implementation on MuJoCo of the environment of Baker et al. 2019 (arXiv 1909.07528), many simulations
at a time. One to three hiders and one to three seekers move in a 6 m square, with boxes and ramps that both can grab
and lock. Hiders are rewarded while no seeker sees any of them, seekers while one does; in the first 40 % of an episode
seekers are frozen and nothing is rewarded. That is the published game, which the defaults are; `HideAndSeekConfig` has
its variants: other floor plans and sizes, rewards, rules of locking, grabbing and observing.

    block = make_block(64, scenario="randomwalls")
    answer = block.reset(seed=0)
    answer = block.step(actions)  # int64 [64, 6, 5]

Where to look: `block` is a step, `task` what a game says to it, `game` hide-and-seek itself, `transfer` the tasks of
one agent, `parallel` and `gymnasium_env` the doors for PettingZoo and Gymnasium, `staging` scenes of your own.

Observation of an agent (all scenarios have equal shapes, so that one network serves them; the quadrant leaves rows
empty). Lengths in metres, velocities in m/s and rad/s, everything in the world's frame, nothing normalised:

    self [10]       x, y, z, yaw, vx, vy, vz, yaw rate, 1 if hider, progress of the preparation phase in [0, 1]
    others [5, 10]  the same of the other agents; agent i sees the slots i-1, i-2, ... (modulo 6)
    boxes [9, 15]   x, y, z, cos yaw, sin yaw, vx, vy, vz, yaw rate, full sizes x, y, z, locked by me, my team, anyone
    ramps [2, 15]   the same with zero sizes
    lidar [30]      distances along horizontal rays, 12 degrees apart, counter-clockwise from +x whatever the yaw
    mask_*          bool; what the agent sees: within 67.5 degrees of its heading and in line of sight
    exists_*        bool; what takes part in this episode, seen or not: for a critic that sees everything

Features of what is not seen are there all the same: an actor must use the masks. Rows of what does not exist are zero.

Deliberate differences to the published code:

- Positions are true centres (there: coordinates of the starting corner, which also skews the field of view of objects).
- Yaw is wrapped to [-pi, pi) (there: it grows with every turn).
- An object that nobody has locked yet has no owner, and each team vetoes only its own locks of it (there: the first
  hider counts as its owner, so that an idle hider vetoes a seeker's lock; `do_hiders_own_unlocked` brings that back).
- Reach to a ramp is measured to its 0.5 m bounding cube (there: to the box of its mesh's inertia frame).
- An agent's footprint at placement includes its arms, so that nothing overlaps at the start (there: 3 cm too narrow).
- Team sizes are redrawn for every episode; absent agents keep their slot but have no observation.
- Team mates are listed by slot, absent ones included (there: present ones first); attention does not mind.
- A simulation that MuJoCo warns about, or in which something exceeds 20 m/s or passes a walled border, ends as
  truncated, is marked as discarded, and starts afresh.
- Random numbers come from one generator per environment; ties among lockers from a hash of the episode's key.
- The default integration is Euler with 10 substeps of 7.5 ms; the preset "faithful" is the original's 15 of 5 ms.
  In the preset "fast" the agents' arms do not collide.
- A floor of random size is a whole number of 0.2 m cells, and the legal area keeps its proportion to it.
- The floor plan "half" can be played (there: it fails); plans that are no published game have rules, see `SCENARIOS`.
- In the task "foraging" nobody eats during the preparation, and a hider eats what it saw in the previous observation.

Kept although they look odd: walls of the random-rooms game have friction 1 (climbable with a ramp at high force), those
of the quadrant 0.01; lidar is not clipped at 6 m, a miss reads 6.0; statistics of the preparation are taken one step
late.
"""

from srl_ray.envs.hide_and_seek.block import HideAndSeekBlock, make_block
from srl_ray.envs.hide_and_seek.config import HideAndSeekConfig
from srl_ray.envs.hide_and_seek.gymnasium_env import register_ids
from srl_ray.envs.hide_and_seek.snapshot import Snapshot

__all__ = ["HideAndSeekBlock", "HideAndSeekConfig", "Snapshot", "make_block"]

register_ids()
