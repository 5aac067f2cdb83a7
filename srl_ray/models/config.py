"""Configuration of policies. One dataclass per kind; `conf/policy/` picks one."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True, slots=True)
class PolicyConfig:
    """What every policy has.

    Attributes:
        bptt_steps: Rows trained through time for recurrent policies (a segment); divides actors.sample_steps.
        normalize_obs: Keep running mean and variance of the observations inside the policy and feed it the
            normalised, clipped values. Images (uint8) are scaled by 1/255 instead.
        normalize_value: Train the value head in units of a running mean and standard deviation of its targets.
        obs_clip: Bound of normalised observations.
        start_from: PATH of a run directory or a checkpoint whose weights the run begins with; null: fresh weights.
        reset_outputs: With start_from: begin with fresh heads and layer norms below them, for another task.
        precision: float32 | bfloat16: of the encoders' arithmetic, the same wherever the policy is used, so that
            probabilities are compared like with like. Weights, recurrent cores, heads, statistics and losses are
            float32 always.
        compile: none | inference | training | both: which passes through the networks torch.compile translates, while
            the workers are set up; inference is for policy workers and inline inference. A worker without a compiler
            says so and goes on without.
        cuda_graphs: Inference on a GPU replays the networks from CUDA graphs, captured once per power of two of rows:
            one launch in place of one per kernel.
    """

    bptt_steps: int = 16
    normalize_obs: bool = False
    normalize_value: bool = False
    obs_clip: float = 5.0
    start_from: str | None = None
    reset_outputs: bool = True
    precision: str = "float32"
    compile: str = "none"
    cuda_graphs: bool = False

    def __post_init__(self) -> None:
        if self.bptt_steps < 1:
            raise ValueError(f"policy.bptt_steps must be >= 1, got {self.bptt_steps}")
        if self.obs_clip <= 0:
            raise ValueError(f"policy.obs_clip must be > 0, got {self.obs_clip}")
        if self.precision not in ("float32", "bfloat16"):
            raise ValueError(f"policy.precision must be float32 or bfloat16, got {self.precision!r}")
        if self.compile not in ("none", "inference", "training", "both"):
            raise ValueError(f"policy.compile must be none, inference, training or both, got {self.compile!r}")
        if self.start_from:
            self.start_from = os.path.realpath(self.start_from)  # "latest" may mean another run tomorrow

    @property
    def is_inference_compiled(self) -> bool:
        return self.compile in ("inference", "both")

    @property
    def is_training_compiled(self) -> bool:
        return self.compile in ("training", "both")


@dataclass(kw_only=True, slots=True)
class ActorCriticConfig(PolicyConfig):
    """Encoder chosen from the observation fields, optional recurrent core, heads chosen from the actions.

    Attributes:
        hidden: Widths of the dense layers.
        activation: tanh | relu | elu | gelu.
        recurrent: none | lstm | gru.
        recurrent_size: Width of the recurrent core.
        separate: Give actor and critic a network each; false shares everything below the heads.
        layer_norm: Normalise after every dense layer.
        init_log_std: First log standard deviation of continuous actions.
    """

    hidden: list[int] = field(default_factory=lambda: [64, 64])
    activation: str = "tanh"
    recurrent: str = "none"
    recurrent_size: int = 64
    separate: bool = True
    layer_norm: bool = False
    init_log_std: float = 0.0

    def __post_init__(self) -> None:
        PolicyConfig.__post_init__(self)
        if self.recurrent not in ("none", "lstm", "gru"):
            raise ValueError(f"policy.recurrent must be none, lstm or gru, got {self.recurrent!r}")
        if self.activation not in ("tanh", "relu", "elu", "gelu"):
            raise ValueError(f"policy.activation must be tanh, relu, elu or gelu, got {self.activation!r}")


@dataclass(kw_only=True, slots=True)
class HideAndSeekPolicyConfig(PolicyConfig):
    """Entity attention with an omniscient critic (Baker et al. 2019, appendix B).

    Attributes:
        scale: `paper` restores the published sizes (128 / 4 heads / 256), `small` fits a laptop core.
        embed: Width of an entity embedding; 0 takes the scale's.
        heads: Attention heads; 0 takes the scale's.
        dense: Width of the dense layer after pooling; 0 takes the scale's.
        recurrent_size: LSTM width; 0 takes the scale's.
    """

    scale: str = "small"
    embed: int = 0
    heads: int = 0
    dense: int = 0
    recurrent_size: int = 0
    bptt_steps: int = 10
    normalize_obs: bool = True
    normalize_value: bool = True

    def __post_init__(self) -> None:
        PolicyConfig.__post_init__(self)
        if self.scale not in ("small", "paper"):
            raise ValueError(f"policy.scale must be small or paper, got {self.scale!r}")


@dataclass(kw_only=True, slots=True)
class CustomPolicyConfig(PolicyConfig):
    """A user's own policy.

    Attributes:
        target: Import path `module:callable`; called as callable(obs_specs, action_spec, config) → Policy.
        kwargs: Free settings for it.
    """

    target: str = "???"
    kwargs: dict[str, Any] = field(default_factory=dict)
