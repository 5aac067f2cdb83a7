"""Configuration of algorithms. One dataclass per algorithm; `conf/algorithm/` picks one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True, slots=True)
class AlgorithmConfig:
    """What every algorithm has.

    Attributes:
        discount: γ.
        optimizer: adam | adamw | lamb | rmsprop | sgd; lamb, for large batches, scales every layer's step to its
            weights.
        learning_rate: Of the optimiser.
        learning_rate_end: Final value of the linear schedule over stop.env_steps; null keeps it constant.
        grad_clip: norm | adaptive: bound the norm of the whole gradient (max_grad_norm), or of every unit's gradient by
            that of its weights (adaptive_clip).
        max_grad_norm: With grad_clip=norm, gradients are scaled down to this norm; null switches it off.
        adaptive_clip: With grad_clip=adaptive, the largest ratio of a unit's gradient to its weights.
        grad_outlier: Gradients whose norm is more than this many times the running mean of the norms are scaled down
            to that; counted as train/grad_outliers; null switches it off.
        adam_eps: ε of adam, adamw, lamb and rmsprop.
        weight_decay: L2 coefficient; decoupled with adamw and lamb.
    """

    discount: float = 0.99
    optimizer: str = "adam"
    learning_rate: float = 3e-4
    learning_rate_end: float | None = None
    grad_clip: str = "norm"
    max_grad_norm: float | None = 0.5
    adaptive_clip: float = 0.01
    grad_outlier: float | None = None
    adam_eps: float = 1e-5
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.discount <= 1.0:
            raise ValueError(f"algorithm.discount must be in [0, 1], got {self.discount}")
        if self.optimizer not in ("adam", "adamw", "lamb", "rmsprop", "sgd"):
            raise ValueError(f"algorithm.optimizer must be adam, adamw, lamb, rmsprop or sgd, got {self.optimizer!r}")
        if self.grad_clip not in ("norm", "adaptive"):
            raise ValueError(f"algorithm.grad_clip must be norm or adaptive, got {self.grad_clip!r}")
        if self.adaptive_clip <= 0:
            raise ValueError(f"algorithm.adaptive_clip must be > 0, got {self.adaptive_clip}")
        if self.grad_outlier is not None and self.grad_outlier <= 1:
            raise ValueError(f"algorithm.grad_outlier must be > 1 or null, got {self.grad_outlier}")
        if self.learning_rate <= 0.0:
            raise ValueError(f"algorithm.learning_rate must be > 0, got {self.learning_rate}")
        if self.max_grad_norm is not None and self.max_grad_norm <= 0:
            raise ValueError(f"algorithm.max_grad_norm must be > 0 or null, got {self.max_grad_norm}")


@dataclass(kw_only=True, slots=True)
class OnPolicyConfig(AlgorithmConfig):
    """What PPO, APPO and IMPALA share.

    Attributes:
        gae_lambda: λ of generalised advantage estimation; of V-trace, remark 2 of its paper.
        staleness_correction: none | vtrace | td: what is done about rows that an older version made. none: advantages
            from the values that the actor workers stored. Otherwise values and log-probabilities are computed again at
            the beginning of an update, and clipped importance weights correct them: with vtrace also the traces are
            cut (Espeholt et al. 2018), with td each temporal-difference error bears its own weight only; see
            srl_ray/algorithms/on_policy/README.md.
        rho_clip: ρ̄, upper bound of the importance weights.
        c_clip: c̄, upper bound of the weights in vtrace's traces.
        value_loss: mse | huber | smooth_l1.
        huber_delta: Border between the square and the line, for huber and smooth_l1.
        value_cost: Weight of the value loss.
        entropy_cost: Weight of the entropy bonus.
        entropy_cost_end: Final value of its linear schedule over stop.env_steps; null keeps it constant.
        normalize_advantage: none | batch | minibatch; z-score over the masked rows.
        epochs: Passes over each batch.
        minibatches: Pieces per pass, cut along chunks (recurrent) or rows (feed-forward).
        microbatches: Pieces of each minibatch that go through the network one after the other, their gradients added:
            the same step with less memory.
        recompute_advantage: Recompute values and advantages under the current weights before every epoch after the
            first; otherwise those of the first serve for all epochs.
        target_kl: Stop the epochs of an update once the mean KL estimate passes this; null: never.
    """

    gae_lambda: float = 0.95
    staleness_correction: str = "none"
    rho_clip: float = 1.0
    c_clip: float = 1.0
    value_loss: str = "mse"
    huber_delta: float = 10.0
    value_cost: float = 0.5
    entropy_cost: float = 0.01
    entropy_cost_end: float | None = None
    normalize_advantage: str = "minibatch"
    epochs: int = 4
    minibatches: int = 4
    microbatches: int = 1
    recompute_advantage: bool = False
    target_kl: float | None = None

    def __post_init__(self) -> None:
        AlgorithmConfig.__post_init__(self)
        if not 0.0 <= self.gae_lambda <= 1.0:
            raise ValueError(f"algorithm.gae_lambda must be in [0, 1], got {self.gae_lambda}")
        if self.staleness_correction not in ("none", "vtrace", "td"):
            raise ValueError(
                f"algorithm.staleness_correction must be none, vtrace or td, got {self.staleness_correction!r}"
            )
        for name in ("rho_clip", "c_clip"):
            if getattr(self, name) <= 0:
                raise ValueError(f"algorithm.{name} must be > 0, got {getattr(self, name)}")
        if self.value_loss not in ("mse", "huber", "smooth_l1"):
            raise ValueError(f"algorithm.value_loss must be mse, huber or smooth_l1, got {self.value_loss!r}")
        if self.normalize_advantage not in ("none", "batch", "minibatch"):
            raise ValueError(
                f"algorithm.normalize_advantage must be none, batch or minibatch, got {self.normalize_advantage!r}"
            )
        for name in ("epochs", "minibatches", "microbatches"):
            if getattr(self, name) < 1:
                raise ValueError(f"algorithm.{name} must be >= 1, got {getattr(self, name)}")


@dataclass(kw_only=True, slots=True)
class PPOConfig(OnPolicyConfig):
    """Proximal policy optimisation (Schulman et al. 2017), with the options of MAPPO.

    Attributes:
        clip_eps: Half-width of the trust interval of the probability ratio.
        dual_clip: Lower bound c of the surrogate where the advantage is negative (Ye et al. 2020); null: off.
        clip_value: Also clip the value's change, by value_clip_eps.
        value_clip_eps: Half-width in the value head's units.
    """

    clip_eps: float = 0.2
    dual_clip: float | None = None
    clip_value: bool = False
    value_clip_eps: float = 0.2

    def __post_init__(self) -> None:
        OnPolicyConfig.__post_init__(self)
        if self.clip_eps <= 0:
            raise ValueError(f"algorithm.clip_eps must be > 0, got {self.clip_eps}")
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ValueError(f"algorithm.dual_clip must be > 1 or null, got {self.dual_clip}")


@dataclass(kw_only=True, slots=True)
class APPOConfig(PPOConfig):
    """PPO on asynchronous streams: the same losses, corrected for staleness by default."""

    staleness_correction: str = "vtrace"


@dataclass(kw_only=True, slots=True)
class IMPALAConfig(OnPolicyConfig):
    """The importance-weighted actor-learner (Espeholt et al. 2018): one pass, V-trace, no clipping. With
    staleness_correction=none it is the synchronous actor-critic A2C."""

    gae_lambda: float = 1.0
    max_grad_norm: float | None = 40.0
    staleness_correction: str = "vtrace"
    normalize_advantage: str = "none"
    epochs: int = 1
    minibatches: int = 1


@dataclass(kw_only=True, slots=True)
class CustomAlgorithmConfig(AlgorithmConfig):
    """A user's own algorithm.

    Attributes:
        target: Import path `module:callable`; called as callable(config, policy, layout, collective, seed) →
            Algorithm; see srl_ray.algorithms.factory.make_algorithm.
        kwargs: Free settings for it.
    """

    target: str = "???"
    kwargs: dict[str, Any] = field(default_factory=dict)
