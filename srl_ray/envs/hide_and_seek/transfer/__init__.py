"""The transfer tasks of Baker et al. 2019 (arXiv 1909.07528, section 6.1 and appendix C): what does a hider know?

One agent in the world of hide-and-seek, with its actions and its observation (team mates, ramps and whatever else a
task lacks are empty rows with mask 0), so that a policy trained on hide-and-seek can be loaded and fine-tuned.

    block = make_block(64, task="lock_and_return")

Numbers are those of the paper and its released code. Choices of ours, where neither says anything: the border is always
walled, shaping uses horizontal distances, what is placed does not overlap at the start (construction sites included),
rays of the shelter task rise from the floor to half the cylinder's height; and most of object counting, which was never
released (see its module).
"""

from srl_ray.envs.hide_and_seek.transfer.blueprint import Blueprint, BlueprintConfig
from srl_ray.envs.hide_and_seek.transfer.counting import Counting, CountingConfig
from srl_ray.envs.hide_and_seek.transfer.lock_and_return import LockAndReturn, LockAndReturnConfig
from srl_ray.envs.hide_and_seek.transfer.sequential_lock import SequentialLock, SequentialLockConfig
from srl_ray.envs.hide_and_seek.transfer.shelter import Shelter, ShelterConfig

__all__ = [
    "Blueprint",
    "BlueprintConfig",
    "Counting",
    "CountingConfig",
    "LockAndReturn",
    "LockAndReturnConfig",
    "SequentialLock",
    "SequentialLockConfig",
    "Shelter",
    "ShelterConfig",
]
