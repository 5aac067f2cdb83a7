"""How well a frozen policy's memory tells how many boxes it saw go left: the published protocol of object counting.

The policy plays `object_counting`, where its actions do nothing, and keeps its weights. A linear classifier learns the
count from the policy's recurrent state after all boxes have disappeared (Baker et al. 2019, section 6.1), and is judged
on episodes of its own. The numbers to compare with are those of a policy with first weights, and of chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from srl_ray.core.errors import ConfigError
from srl_ray.envs.hide_and_seek import make_block
from srl_ray.envs.hide_and_seek.transfer.counting import NUM_BOXES, Counting
from srl_ray.models.policy import Policy
from srl_ray.models.tower import TowerPolicy

NUM_ENVS = 64
EVERY = 10
"""Steps between two samples of a memory; those of neighbouring steps are nearly the same."""
ITERATIONS = 200
WEIGHT_DECAY = 1e-4


@dataclass(frozen=True)
class CountingScore:
    """Of a classifier, over the held-out episodes' steps after the last box has disappeared.

    Attributes:
        accuracy: Share of right counts.
        loss: Cross-entropy, nats.
        chance: Accuracy of always saying the commonest count of the training episodes.
        samples: Memories that were judged.
    """

    accuracy: float
    loss: float
    chance: float
    samples: int


def score_counting(
    policy: Policy, *, train_episodes: int = 1024, test_episodes: int = 256, seed: int = 1, **settings: Any
) -> CountingScore:
    """Train the classifier and judge it.

    Args:
        policy: On the CPU, recurrent, for the observation of hide-and-seek; its weights are not changed.
        train_episodes: Episodes to learn from.
        test_episodes: Episodes to judge by.
        seed: Of the episodes.
        settings: Of the task, e.g. `horizon`.

    Raises:
        ConfigError: The policy has no memory.

    Example:
        run = find_saved_run("runs/hide_and_seek/latest")
        config = srl_ray.config.from_mapping(run.config)
        policy = load_policy(run, config.policy, config.env, seed=config.run.seed)
        print(score_counting(policy))
    """
    if not policy.state_size:
        raise ConfigError("object counting asks what a policy remembers, but this one has no recurrent state.")
    train, labels = memories(policy, train_episodes, seed, **settings)
    test, truth = memories(policy, test_episodes, seed + 1, **settings)
    mean, scale = train.mean(0), train.std(0).clamp_min(1e-6)
    classifier = _fit((train - mean) / scale, labels)
    with torch.no_grad():
        logits = classifier((test - mean) / scale)
    return CountingScore(
        accuracy=float((logits.argmax(1) == truth).float().mean()),
        loss=float(F.cross_entropy(logits, truth)),
        chance=float((truth == labels.mode().values).float().mean()),
        samples=len(truth),
    )


@torch.no_grad()
def memories(policy: Policy, episodes: int, seed: int, **settings: Any) -> tuple[Tensor, Tensor]:
    """Recurrent states float32 [n, S] after the last box has disappeared, and how many went left, int64 [n].

    Of a policy with an actor and a critic only the actor's state: the critic sees through walls.
    """
    num_envs = min(NUM_ENVS, episodes)
    block = make_block(num_envs, task="object_counting", **settings)
    task = block.task
    assert isinstance(task, Counting)
    size = policy.actor.state_size if isinstance(policy, TowerPolicy) else policy.state_size
    generator = torch.Generator().manual_seed(seed)
    if isinstance(policy, torch.nn.Module):
        policy.eval()
    state, deterministic = policy.initial_state(num_envs), torch.zeros(num_envs, dtype=torch.bool)
    kept: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    answer = block.reset(seed)
    for step in range(-(-episodes // num_envs) * block.config.steps):
        obs = {name: torch.from_numpy(field[:, 0].copy()) for name, field in answer.obs.items()}
        result = policy.act(obs, state, torch.from_numpy(answer.on_reset[:, 0]), deterministic, generator)
        state = result.state
        if step % EVERY == EVERY - 1 and task.is_over.any():
            kept.append(state.numpy()[task.is_over, :size].copy())
            labels.append(task.left[task.is_over])
        answer = block.step(result.action.numpy()[:, None])
    block.close()
    return torch.from_numpy(np.concatenate(kept)), torch.from_numpy(np.concatenate(labels))


def _fit(inputs: Tensor, labels: Tensor) -> torch.nn.Linear:
    """Multinomial logistic regression, from zero weights."""
    classifier = torch.nn.Linear(inputs.shape[1], NUM_BOXES + 1)
    torch.nn.init.zeros_(classifier.weight)
    torch.nn.init.zeros_(classifier.bias)
    optimizer = torch.optim.LBFGS(classifier.parameters(), max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(classifier(inputs), labels) + WEIGHT_DECAY * classifier.weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return classifier
