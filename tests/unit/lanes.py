"""A slow, obvious collector of chunks for tests: one lane at a time, one row at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from srl_ray.core.types import ActionSpec, ChunkLayout, FieldSpec

torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other


class Task(Protocol):
    """An environment with one agent, as plain as can be."""

    obs: dict[str, FieldSpec]
    action: ActionSpec

    def reset(self) -> dict[str, np.ndarray]: ...
    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool]:
        """Observation, reward, terminated, truncated."""
        ...


@dataclass
class Lane:
    """Writes the rows of one task for ever; final row and reset row of an episode follow each other."""

    task: Task
    policy: Any
    generator: torch.Generator

    def __post_init__(self) -> None:
        self.state = self.policy.initial_state(1)
        self.obs = self.task.reset()
        self.on_reset, self.terminated, self.truncated = True, False, False
        self.returns: list[float] = []
        self.episode_return = 0.0

    def row(self) -> dict[str, Any]:
        before = self.state
        obs = {name: torch.from_numpy(np.asarray(x)[None]) for name, x in self.obs.items()}
        answer = self.policy.act(obs, self.state, torch.tensor([self.on_reset]), torch.tensor([False]), self.generator)
        row = {
            **{"obs." + name: np.asarray(x) for name, x in self.obs.items()},
            "action": answer.action[0].numpy(),
            "log_prob": answer.log_prob[0].numpy(),
            "value": np.float32(0.0) if self.terminated else answer.value[0].numpy(),
            "reward": np.float32(0.0),
            "on_reset": np.bool_(self.on_reset),
            "terminated": np.bool_(self.terminated),
            "truncated": np.bool_(self.truncated),
            "valid": np.bool_(True),
            "policy_version": np.int64(0),
            "state": before[0].numpy(),
        }
        self.state = answer.state
        if self.terminated or self.truncated:
            self.obs = self.task.reset()
            self.on_reset, self.terminated, self.truncated = True, False, False
            self.returns.append(self.episode_return)
            self.episode_return = 0.0
        else:
            self.obs, reward, self.terminated, self.truncated = self.task.step(row["action"])
            row["reward"] = np.float32(reward)
            self.episode_return += reward
            self.on_reset = False
        return row


class Collector:
    """Chunks of several lanes; consecutive chunks overlap by burn_in + bootstrap rows, as actor workers make them."""

    def __init__(self, make_task: Callable[[int], Task], policy: Any, layout: ChunkLayout, lanes: int) -> None:
        self.layout = layout
        generator = torch.Generator().manual_seed(7)
        self.lanes = [Lane(make_task(i), policy, generator) for i in range(lanes)]
        self.history: list[list[dict[str, Any]]] = [[] for _ in range(lanes)]

    def batch(self) -> dict[str, Tensor]:
        """The next sample batch [T, B, ...]."""
        overlap = self.layout.burn_in + self.layout.bootstrap
        chunks = []
        for lane, history in zip(self.lanes, self.history, strict=True):
            kept = history[-overlap:] if history else []
            history[:] = kept + [lane.row() for _ in range(self.layout.rows - len(kept))]
            chunks.append(history)
        batch = {
            name: torch.from_numpy(np.stack([np.stack([row[name] for row in chunk]) for chunk in chunks], 1))
            for name in chunks[0][0]
        }
        first = [0] if self.layout.burn_in else []
        starts = range(self.layout.burn_in, self.layout.burn_in + self.layout.sample_steps, self.layout.bptt_steps)
        batch["state"] = batch["state"][[*first, *starts]]
        return batch

    def mean_return(self) -> float:
        """Mean over the episodes since the last call."""
        returns = [episode for lane in self.lanes for episode in lane.returns]
        for lane in self.lanes:
            lane.returns.clear()
        return float(np.mean(returns)) if returns else 0.0


class Bandit:
    """One step: the context [3] says which of three arms pays 1."""

    obs: ClassVar = {"context": FieldSpec((3,), np.dtype(np.float32))}

    def __init__(self, seed: int, action: ActionSpec) -> None:
        self.action = action
        self.rng = np.random.default_rng(seed)

    def reset(self) -> dict[str, np.ndarray]:
        self.context = np.eye(3, dtype=np.float32)[self.rng.integers(3)]
        return {"context": self.context}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool]:
        if action.dtype == np.int64:
            reward = float(self.context[action[0]])
        else:
            reward = -float((action[0] - self.context[0]) ** 2)
        return {"context": np.zeros(3, np.float32)}, reward, True, False


class Recall:
    """A cue at the first row, noise for `delay` rows, then the cue must be named. Truncates instead at odd seeds."""

    obs: ClassVar = {"cue": FieldSpec((3,), np.dtype(np.float32))}

    def __init__(self, seed: int, action: ActionSpec, delay: int = 2) -> None:
        self.action = action
        self.rng = np.random.default_rng(seed)
        self.delay = delay
        self.is_truncating = bool(seed % 2)

    def reset(self) -> dict[str, np.ndarray]:
        self.t, self.cue = 0, int(self.rng.integers(2))
        return {"cue": np.array([self.cue == 0, self.cue == 1, 0], np.float32)}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool]:
        is_last = self.t == self.delay
        reward = float(action[0] == self.cue) if is_last else 0.0
        self.t += 1
        obs: ClassVar = {"cue": np.array([0, 0, self.t == self.delay], np.float32)}
        return obs, reward, is_last and not self.is_truncating, is_last and self.is_truncating
