"""PPO in one process and one loop, in the shape of CleanRL's `ppo_atari_envpool.py` and `ppo_continuous_action.py`.

envs=envpool, native (the environment's own vector environment) or sync (gymnasium's loop over environments).
"""

from __future__ import annotations

import numpy as np
import protocol
import torch
from torch import nn
from torch.distributions import Categorical, Normal


def make_envs(settings: protocol.Settings):
    """A vector environment and the space of one action."""
    kind, count = settings.extra.get("envs", "envpool"), settings.environments
    if kind == "envpool":
        import envpool

        sticky = {"repeat_action_probability": 0.25, "reward_clip": True} if settings.task == "pong" else {}
        name = settings.env_id.removeprefix("ALE/")
        envs = envpool.make(name, env_type="gymnasium", num_envs=count, num_threads=settings.threads, seed=1, **sticky)
        return envs, envs.action_space
    import gymnasium

    if kind == "native":
        if settings.task == "pong":
            import ale_py

            gymnasium.register_envs(ale_py)
        envs = gymnasium.make_vec(settings.env_id, num_envs=count, vectorization_mode="vector_entry_point")
    else:
        envs = gymnasium.vector.SyncVectorEnv([lambda: make_env(settings)] * count)
    return envs, envs.single_action_space


def make_env(settings: protocol.Settings):
    import gymnasium

    if settings.task == "pong":
        return gymnasium.wrappers.FrameStackObservation(protocol.make_pong(), 4)
    return gymnasium.make(settings.env_id, disable_env_checker=True)


def layer(module: nn.Module, gain: float = 2**0.5) -> nn.Module:
    nn.init.orthogonal_(module.weight, gain)
    nn.init.zeros_(module.bias)
    return module


def mlp(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    first, second = protocol.HIDDEN
    return nn.Sequential(
        layer(nn.Linear(inputs, first)),
        nn.Tanh(),
        layer(nn.Linear(first, second)),
        nn.Tanh(),
        layer(nn.Linear(second, outputs), gain),
    )


class Agent(nn.Module):
    """Nature CNN with two heads for images [4, 84, 84]; a network each for policy and value otherwise."""

    def __init__(self, is_image: bool, inputs: int, action_space) -> None:
        super().__init__()
        self.is_discrete = hasattr(action_space, "n")
        outputs = int(action_space.n) if self.is_discrete else action_space.shape[0]
        if is_image:
            self.torso = nn.Sequential(
                layer(nn.Conv2d(4, 32, 8, 4)),
                nn.ReLU(),
                layer(nn.Conv2d(32, 64, 4, 2)),
                nn.ReLU(),
                layer(nn.Conv2d(64, 64, 3, 1)),
                nn.ReLU(),
                nn.Flatten(),
                layer(nn.Linear(64 * 7 * 7, protocol.CNN_FEATURES)),
                nn.ReLU(),
            )
            self.policy = layer(nn.Linear(protocol.CNN_FEATURES, outputs), 0.01)
            self.value = layer(nn.Linear(protocol.CNN_FEATURES, 1), 1.0)
        else:
            self.torso = nn.Identity()
            self.policy, self.value = mlp(inputs, outputs, 0.01), mlp(inputs, 1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(1, outputs))
        self.scale = 255.0 if is_image else 1.0

    def evaluate(self, obs, action=None):
        """Observations [n, ...] → action, its log-probability [n], entropy [n], value [n]."""
        features = self.torso(obs / self.scale)
        out, value = self.policy(features), self.value(features).squeeze(-1)
        if self.is_discrete:
            chosen = Categorical(logits=out)
            action = chosen.sample() if action is None else action
            return action, chosen.log_prob(action), chosen.entropy(), value
        chosen = Normal(out, self.log_std.exp().expand_as(out))
        action = chosen.sample() if action is None else action
        return action, chosen.log_prob(action).sum(1), chosen.entropy().sum(1), value


def train(settings: protocol.Settings) -> None:
    torch.manual_seed(1)
    torch.set_num_threads(settings.threads)
    envs, action_space = make_envs(settings)
    first_obs, _ = envs.reset()
    is_image = first_obs.ndim == 4
    agent = Agent(is_image, int(np.prod(first_obs.shape[1:])), action_space)
    optimizer = torch.optim.Adam(agent.parameters(), lr=protocol.LEARNING_RATE, eps=protocol.ADAM_EPS)

    steps, count = protocol.ROLLOUT, settings.environments
    obs = torch.zeros((steps, count, *first_obs.shape[1:]))
    actions = torch.zeros((steps, count, *action_space.shape))
    log_probs, rewards, dones, values = (torch.zeros((steps, count)) for _ in range(4))
    next_obs, next_done = torch.as_tensor(first_obs).float(), torch.zeros(count)
    progress, env_steps = protocol.Progress(settings.seconds), 0
    while True:
        for t in range(steps):
            obs[t], dones[t] = next_obs, next_done
            with torch.no_grad():
                actions[t], log_probs[t], _, values[t] = agent.evaluate(next_obs)
            command = actions[t].numpy()
            if agent.is_discrete:
                command = command.astype(np.int32)
            else:
                command = np.clip(command, action_space.low, action_space.high).astype(action_space.dtype)
            seen, reward, terminated, truncated, _ = envs.step(command)
            rewards[t] = torch.as_tensor(reward)
            next_obs = torch.as_tensor(seen).float()
            next_done = torch.as_tensor(terminated | truncated).float()
        env_steps += steps * count
        with torch.no_grad():
            next_value = agent.evaluate(next_obs)[3]
        advantages = gae(rewards, values, dones, next_value, next_done)
        batch = {
            "obs": obs.flatten(0, 1),
            "action": actions.flatten(0, 1),
            "log_prob": log_probs.flatten(),
            "advantage": advantages.flatten(),
            "return": (advantages + values).flatten(),
        }
        for rows in torch.randperm(steps * count).split(protocol.MINIBATCH):
            optimizer.zero_grad()
            loss(agent, {name: field[rows] for name, field in batch.items()}).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), protocol.MAX_GRAD_NORM)
            optimizer.step()
        if not progress.update(env_steps):
            return


def gae(rewards, values, dones, next_value, next_done):
    """Advantages [t, n]; `dones` [t, n] says that the observation is the first of an episode."""
    advantages, carried = torch.zeros_like(rewards), 0.0
    for t in reversed(range(len(rewards))):
        is_last = t == len(rewards) - 1
        goes_on = 1.0 - (next_done if is_last else dones[t + 1])
        value_after = next_value if is_last else values[t + 1]
        delta = rewards[t] + protocol.DISCOUNT * value_after * goes_on - values[t]
        carried = delta + protocol.DISCOUNT * protocol.GAE_LAMBDA * goes_on * carried
        advantages[t] = carried
    return advantages


def loss(agent: Agent, rows) -> torch.Tensor:
    _, log_prob, entropy, value = agent.evaluate(rows["obs"], rows["action"])
    ratio = (log_prob - rows["log_prob"]).exp()
    advantage = rows["advantage"]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = ratio.clamp(1 - protocol.CLIP_EPS, 1 + protocol.CLIP_EPS)
    policy_loss = torch.max(-advantage * ratio, -advantage * clipped).mean()
    value_loss = 0.5 * (value - rows["return"]).pow(2).mean()
    return policy_loss - protocol.ENTROPY_COST * entropy.mean() + protocol.VALUE_COST * value_loss


if __name__ == "__main__":
    train(protocol.read_settings())
