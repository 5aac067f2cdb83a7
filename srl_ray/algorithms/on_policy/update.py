"""The update that on-policy algorithms share: targets once (or per epoch), then epochs of minibatches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from srl_ray.algorithms.algorithm import Collective
from srl_ray.algorithms.config import OnPolicyConfig
from srl_ray.algorithms.frame_stacks import rebuild, split_frames
from srl_ray.algorithms.on_policy.minibatches import TrainedRows, observation_names, trained_rows
from srl_ray.algorithms.optimizer import Optimizer, Snapshot, linear_schedule
from srl_ray.algorithms.returns import gae, off_policy_advantage
from srl_ray.core.errors import NonFiniteError
from srl_ray.core.types import ChunkLayout
from srl_ray.models.normalization import RunningMoments
from srl_ray.models.policy import Evaluation, Policy, Tensors

_SUMS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "rows")
ADVANTAGE_EPS = 1e-5
_MAX_LOG_RATIO = 20.0
"""Far beyond any bound of an importance weight, and exp does not overflow."""


@dataclass
class RowLosses:
    """What an algorithm makes of the rows of a minibatch, float32 [T', B] each; rows outside the mask are ignored.

    Attributes:
        policy: Loss of the policy, with gradients.
        value: Loss of the critic, with gradients.
        is_clipped: 1 where the probability ratio was too far from 1 to count fully.
    """

    policy: Tensor
    value: Tensor
    is_clipped: Tensor


LossFunction = Callable[[Evaluation, Tensor, Tensors], RowLosses]
"""(evaluation, log-ratio, minibatch) → losses.

The log-ratio float32 [T', B] is of the weights that are trained to those that acted, 0 outside the mask. The minibatch
holds, besides what `Policy.evaluate` reads, float32 [T', B] each: `advantage` (normalised), `target` and `old_value`
(in the value head's units).
"""


@dataclass
class Targets:
    """What the trained rows are taught, float32 [T', B] each, in the rewards' units.

    Attributes:
        advantage: For the policy.
        target: For the critic.
        value: The critic's opinion before the update.
    """

    advantage: Tensor
    target: Tensor
    value: Tensor


class OnPolicy:
    """An `Algorithm`, complete but for what a row loses. One call of `update` makes one policy version, whatever the
    number of epochs and minibatches.

    Order within an update: targets → value statistics → epochs → observation statistics (last, so that the stored
    log-probabilities are compared under the statistics that they were made with).

    Collectives per update, the same on every rank: two for value statistics, one for the advantage, per epoch one (with
    `target_kl` two), per minibatch one for the gradients, one for the metrics, two for observation statistics.
    Minibatch means are exact over all ranks however unevenly the loss masks fall.

    Waits for the device at the beginning, for how many rows count (value statistics, units), and at the end
    (observation statistics, metrics); with `target_kl` once per epoch, and with a recurrent policy per minibatch and
    network for where episodes end.
    """

    takes_frames = True
    """Stacks are rebuilt for a minibatch at a time."""

    def __init__(
        self,
        config: OnPolicyConfig,
        losses: LossFunction,
        policy: Policy,
        layout: ChunkLayout,
        collective: Collective,
        seed: int,
    ) -> None:
        self.config = config
        self.losses = losses
        self.policy = policy
        self.layout = layout
        self.collective = collective
        self.module = cast(nn.Module, policy)
        self.optimizer = Optimizer(self.module, config)
        self._generator = torch.Generator().manual_seed(seed)
        self._snapshot = Snapshot(self.module, self.optimizer)
        for part in self.module.modules():
            if isinstance(part, RunningMoments):
                part.reduce_sum = collective.reduce_sum

    def update(self, batch: Tensors, progress: float) -> dict[str, float]:
        self._snapshot.take()
        try:
            return self._update(batch, progress)
        except BaseException:
            # Half an update is worse than none: a lost rank or a number that is not finite leaves no trace.
            self._snapshot.restore()
            raise

    def _update(self, batch: Tensors, progress: float) -> dict[str, float]:
        config = self.config
        learning_rate = linear_schedule(config.learning_rate, config.learning_rate_end, progress)
        entropy_cost = linear_schedule(config.entropy_cost, config.entropy_cost_end, progress)
        self.optimizer.set_learning_rate(learning_rate)

        batch, frames = split_frames(batch)
        rows = trained_rows(batch, self.layout, is_recurrent=self.policy.state_size > 0, frames=frames)
        mask, units = rows.fields["mask"], rows.units()
        targets = self._targets(batch, rows, recompute=config.staleness_correction != "none")
        self.policy.value_scale.update(targets.target, mask)
        stats = self._statistics(targets, mask)

        sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=mask.device)
        grad_norms: list[Tensor] = []
        for epoch in range(config.epochs):
            if epoch and config.recompute_advantage:
                targets = self._targets(batch, rows, recompute=True)
            epoch_sums = self._epoch(rows, units, targets, stats, entropy_cost, grad_norms)
            sums += epoch_sums
            if config.target_kl is not None and self._is_past_target_kl(epoch_sums):
                break
        self.policy.update_statistics(rows.whole())

        metrics = self._metrics(sums, stats, torch.stack(grad_norms))
        self._check_finite(metrics, batch)
        metrics["learning_rate"] = learning_rate
        metrics["entropy_cost"] = entropy_cost
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict(), "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"].cpu())

    # -- targets ------------------------------------------------------------------------------------------------------

    def _targets(self, batch: Tensors, rows: TrainedRows, *, recompute: bool) -> Targets:
        """From the values that were stored, or from those of the current weights, which a correction needs."""
        config, start = self.config, self.layout.burn_in
        reward, *flags = (batch[name][start:] for name in ("reward", "terminated", "truncated", "valid"))
        gamma, lambda_ = config.discount, config.gae_lambda
        value, acted = batch["value"][start:], batch["log_prob"][start:]
        if recompute:
            log_prob, value = self._evaluate_rows(batch, rows)
        if config.staleness_correction == "none":
            advantage = gae(reward, value, *flags, discount=gamma, gae_lambda=lambda_)
            target = advantage + value
        else:
            rho = (log_prob - acted).clamp_(max=_MAX_LOG_RATIO).exp_()
            c_clip = config.c_clip if config.staleness_correction == "vtrace" else None
            advantage, target = off_policy_advantage(
                reward,
                value,
                *flags,
                discount=gamma,
                gae_lambda=lambda_,
                rho=rho,
                rho_clip=config.rho_clip,
                c_clip=c_clip,
            )
        return Targets(advantage[: rows.rows], target[: rows.rows], value[: rows.rows])

    @torch.no_grad()
    def _evaluate_rows(self, batch: Tensors, rows: TrainedRows) -> tuple[Tensor, Tensor]:
        """Log-probabilities and values (rewards' units) [T' + bootstrap, B] under the current weights.

        Evaluates a minibatch's worth of chunks at a time; the bootstrap rows are reached through the last segment.
        """
        layout = self.layout
        tail_rows = (layout.bptt_steps if rows.unit != "row" else 0) + layout.bootstrap
        names = [*observation_names(batch), "action", "on_reset"]
        log_probs, values = [], []
        for chunks in torch.arange(rows.chunks, device=rows.state.device).tensor_split(self.config.minibatches):
            if not len(chunks):
                continue
            whole = {name: x.index_select(1, chunks) for name, x in rows.fields.items()}
            whole["state"] = rows.state.index_select(1, chunks)
            for name, x in rows.burn_in.items():
                whole[name] = x.index_select(0 if name.endswith("state") else 1, chunks)
            tail = {name: batch[name][-tail_rows:].index_select(1, chunks) for name in names}
            tail["mask"] = torch.ones_like(tail["on_reset"])
            tail["state"] = whole["state"][-1:]
            parts = [self.policy.evaluate(rebuild(part, rows.frames)) for part in (whole, tail)]
            log_probs.append(torch.cat([parts[0].log_prob, parts[1].log_prob[-layout.bootstrap :]]))
            values.append(torch.cat([parts[0].value, parts[1].value[-layout.bootstrap :]]))
        return torch.cat(log_probs, 1), self.policy.value_scale.denormalize(torch.cat(values, 1))

    def _statistics(self, targets: Targets, mask: Tensor) -> Tensor:
        """float64 [8]: rows, and first and second moments over the masked rows of all trainer workers."""
        a, t, v = (_masked(x, mask) for x in (targets.advantage, targets.target, targets.value))
        sums = [mask.sum().double(), a.sum(), (a * a).sum(), t.sum(), (t * t).sum(), v.sum()]
        error = t - v
        return self.collective.reduce_sum(torch.stack([*sums, error.sum(), (error * error).sum()]))

    # -- epochs -------------------------------------------------------------------------------------------------------

    def _epoch(
        self,
        rows: TrainedRows,
        units: Tensor,
        targets: Targets,
        stats: Tensor,
        entropy_cost: float,
        grad_norms: list[Tensor],
    ) -> Tensor:
        """One pass over the trained rows; returns the sums named in `_SUMS` [6] of this rank."""
        config, scale = self.config, self.policy.value_scale
        extra = {
            "advantage": targets.advantage,
            "target": scale.normalize(targets.target),
            "old_value": scale.normalize(targets.value),
        }
        data = replace(rows, fields={**rows.fields, **extra})
        minibatches = self._shuffle(units)
        counts, means, stds = self._minibatch_statistics(data, minibatches, stats)
        sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=counts.device)
        for i, minibatch_units in enumerate(minibatches):
            self.optimizer.zero_grad()
            for part, microbatch_units in enumerate(minibatch_units.tensor_split(config.microbatches), start=1):
                microbatch = data.take(microbatch_units)
                microbatch["advantage"] = (microbatch["advantage"] - means[i]) / stds[i]
                loss, row_sums = self._loss(microbatch, counts[i], entropy_cost)
                if part < config.microbatches:
                    loss.backward()  # type: ignore[no-untyped-call]
                else:
                    self.collective.backward(loss, self.module)
                sums += row_sums
            grad_norms.append(self.optimizer.step())
        return sums

    def _shuffle(self, units: Tensor) -> list[Tensor]:
        """Units of each minibatch; always `minibatches` pieces, some may be empty."""
        order = torch.randperm(len(units), generator=self._generator).to(units.device)
        return list(units[order].tensor_split(self.config.minibatches))

    def _minibatch_statistics(
        self, rows: TrainedRows, minibatches: list[Tensor], stats: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, mean and standard deviation of the advantage per minibatch, over all trainer workers: float32 [M] each.

        The mean and deviation are those that `normalize_advantage` asks for.
        """
        moments = []
        selected = TrainedRows(
            {name: rows.fields[name] for name in ("mask", "advantage")}, rows.state, {}, rows.unit, rows.bptt_steps
        )
        for units in minibatches:
            part = selected.take(units)
            a = _masked(part["advantage"], part["mask"])
            moments.append(torch.stack([part["mask"].sum().double(), a.sum(), (a * a).sum()]))
        count, total, squares = self.collective.reduce_sum(torch.stack(moments)).unbind(-1)
        match self.config.normalize_advantage:
            case "none":
                return count.float(), torch.zeros_like(count).float(), torch.ones_like(count).float()
            case "batch":
                mean, std = (x.expand_as(count) for x in _mean_std(stats[0], stats[1], stats[2]))
            case _:
                mean, std = _mean_std(count, total, squares)
        return count.float(), mean.float(), (std + ADVANTAGE_EPS).float()

    def _loss(self, minibatch: Tensors, count: Tensor, entropy_cost: float) -> tuple[Tensor, Tensor]:
        """A part's share of the minibatch's loss, and sums [6]. The gradients of the parts add up, and their mean over
        ranks is the gradient of the mean over all `count` rows."""
        config, mask = self.config, minibatch["mask"]
        evaluation = self.policy.evaluate(minibatch)
        # Rows outside the mask carry meaningless log-probabilities: cut them before exp can overflow.
        log_ratio = (evaluation.log_prob - minibatch["log_prob"]).masked_fill(~mask, 0.0).clamp(max=_MAX_LOG_RATIO)
        losses = self.losses(evaluation, log_ratio, minibatch)
        row_loss = losses.policy + config.value_cost * losses.value - entropy_cost * evaluation.entropy
        loss = row_loss.masked_fill(~mask, 0.0).sum() * (self.collective.world_size / count.clamp_min(1.0))
        with torch.no_grad():
            kl = log_ratio.expm1() - log_ratio
            ones = torch.ones_like(kl)
            per_row = torch.stack([losses.policy, losses.value, evaluation.entropy, kl, losses.is_clipped, ones])
            sums = per_row.masked_fill_(~mask, 0.0).sum((1, 2)).double()
        return loss, sums

    def _is_past_target_kl(self, sums: Tensor) -> bool:
        assert self.config.target_kl is not None
        kl, count = self.collective.reduce_sum(sums[[3, 5]]).tolist()
        return bool(kl > self.config.target_kl * max(count, 1.0))

    # -- the end of an update -----------------------------------------------------------------------------------------

    def _metrics(self, sums: Tensor, stats: Tensor, grad_norms: Tensor) -> dict[str, float]:
        """All numbers in one transfer; they are over all trainer workers."""
        sums = self.collective.reduce_sum(sums)
        means = sums[:5] / sums[5].clamp_min(1.0)
        weights_sum = torch.stack([p.detach().sum() for p in self.module.parameters()]).sum()
        outliers = self.optimizer.take_outliers()
        ends = torch.stack([grad_norms.mean(), weights_sum, outliers.to(weights_sum)]).double()
        numbers = torch.cat([means, stats, ends]).tolist()
        named = dict(zip(_SUMS[:5], numbers[:5], strict=True))
        count, a, aa, t, tt, v, e, ee, grad_norm, weights, num_outliers = numbers[5:]
        n = max(count, 1.0)
        target_variance, error_variance = tt / n - (t / n) ** 2, ee / n - (e / n) ** 2
        return {
            **named,
            "grad_norm": grad_norm,
            "grad_outliers": num_outliers,
            "explained_variance": 1.0 - error_variance / target_variance if target_variance > 1e-12 else 0.0,
            "advantage_mean": a / n,
            "advantage_std": max(aa / n - (a / n) ** 2, 0.0) ** 0.5,
            "value_mean": v / n,
            "target_mean": t / n,
            "rows": count,
            "_weights": weights,
        }

    def _check_finite(self, metrics: dict[str, float], batch: Tensors) -> None:
        """Raise if any number is not finite; `update` then goes back."""
        bad = [name for name, number in metrics.items() if not abs(number) < float("inf")]
        del metrics["_weights"]
        if bad:
            what = {"_weights": "a weight", "grad_norm": "the gradient"}.get(bad[0], bad[0])
            raise NonFiniteError(what=what, policy_version=int(batch["policy_version"].max()))


def _masked(x: Tensor, mask: Tensor) -> Tensor:
    """float64, 0 where masked out: for sums; selecting the rows would wait for the device to count them."""
    return x.masked_fill(~mask, 0.0).double()


def _mean_std(count: Tensor, total: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    n = count.clamp_min(1.0)
    mean = total / n
    return mean, (squares / n - mean * mean).clamp_min(0.0).sqrt()
