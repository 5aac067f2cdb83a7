"""Action distributions on raw tensors. Log-probabilities and entropies are summed over the action's components.

Shapes: [..., F] logits of all components side by side (F = sum(nvec)); [..., k] actions; [...] log_prob and entropy.
"""

from __future__ import annotations

import math
from itertools import groupby

import torch
from torch import Tensor

ILLEGAL_LOGIT = -1e10
"""Logit of an illegal action; its softmax is exactly 0 in float32 as soon as one action is legal."""

LOG_2PI = math.log(2.0 * math.pi)
SMALLEST_NOISE = 1e-30
"""A zero would turn into +inf and could lift an illegal action above the legal ones."""


class NoLegalActionError(ValueError):
    """An action mask without a single legal action.

    Attributes:
        row: Of the request, so that the caller can name environment and agent.
        component: Of the action.
    """

    def __init__(self, row: int, component: int) -> None:
        super().__init__(row, component)
        self.row = row
        self.component = component

    def __str__(self) -> str:
        return (
            f"action_mask: row {self.row} has no legal action for component {self.component}; every row that asks for "
            "an action needs at least one legal choice per component."
        )


class MultiCategorical:
    """Independent categorical choices whose logits lie side by side.

    Components of equal size that are neighbours are handled together: [11, 11, 11, 2, 2] costs two softmaxes.
    """

    def __init__(self, nvec: tuple[int, ...]) -> None:
        self.nvec = nvec
        runs = [(size, len(list(run))) for size, run in groupby(nvec)]
        self.groups = tuple(runs)
        """(choices, components) of neighbouring components of equal size."""
        self._widths = [size * count for size, count in runs]

    def sample(
        self, logits: Tensor, deterministic: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw by the Gumbel-max trick with one flat noise tensor.

        Args:
            logits: float [n, F].
            deterministic: bool [n]; the most likely action instead of a sample.
            generator: Source of the noise.

        Returns:
            Actions int64 [n, k] and their log-probabilities float [n].
        """
        noise = torch.empty_like(logits).exponential_(generator=generator)
        anti_gumbel = noise.clamp_min_(SMALLEST_NOISE).log_().masked_fill_(deterministic.unsqueeze(-1), 0.0)
        actions, log_probs = [], []
        for part, perturbed in zip(self._split(logits), self._split(logits - anti_gumbel), strict=True):
            chosen = perturbed.argmax(-1, keepdim=True)
            actions.append(chosen.squeeze(-1))
            log_probs.append(part.log_softmax(-1).gather(-1, chosen).sum((-2, -1)))
        if len(actions) == 1:
            return actions[0], log_probs[0]
        return torch.cat(actions, -1), torch.stack(log_probs).sum(0)

    def log_prob_entropy(self, logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability [...] of actions int64 [..., k] and entropy [...]."""
        log_prob, entropy = logits.new_zeros(()), logits.new_zeros(())
        for part, chosen in zip(self._split(logits), self._split_action(action), strict=True):
            log_p = part.log_softmax(-1)
            log_prob = log_prob + log_p.gather(-1, chosen.unsqueeze(-1)).sum((-2, -1))
            entropy = entropy - (log_p.exp() * log_p).sum((-2, -1))
        return log_prob, entropy

    def mask(self, logits: Tensor, legal: Tensor) -> Tensor:
        """Give illegal actions probability 0.

        Args:
            logits: float [..., F].
            legal: bool [..., F].

        Raises:
            NoLegalActionError: a component of a row has no legal action.
        """
        has_legal = torch.cat([part.any(-1) for part in self._split(legal)], -1)
        if not bool(has_legal.all()):
            row, *_, component = (~has_legal).nonzero()[0].tolist()
            raise NoLegalActionError(row, component)
        return logits.masked_fill(~legal, ILLEGAL_LOGIT)

    def mask_where_any(self, logits: Tensor, legal: Tensor) -> Tensor:
        """Like `mask`, but components without a legal action (rows outside the loss mask: padding) stay unmasked."""
        parts = [part | ~part.any(-1, keepdim=True) for part in self._split(legal)]
        return logits.masked_fill(~torch.cat([part.flatten(-2) for part in parts], -1), ILLEGAL_LOGIT)

    def _split(self, flat: Tensor) -> list[Tensor]:
        """[..., F] → per group [..., components, choices]."""
        parts = (flat,) if len(self._widths) == 1 else flat.split(self._widths, -1)
        return [part.unflatten(-1, (count, size)) for part, (size, count) in zip(parts, self.groups, strict=True)]

    def _split_action(self, action: Tensor) -> tuple[Tensor, ...]:
        return (action,) if len(self.groups) == 1 else action.split([count for _, count in self.groups], -1)


class DiagonalGaussian:
    """Independent normal components with means [..., k] and log standard deviations that broadcast to them."""

    def sample(
        self, mean: Tensor, log_std: Tensor, deterministic: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Actions float [n, k] (the mean where deterministic bool [n]) and their log-probabilities [n]."""
        noise = torch.empty_like(mean).normal_(generator=generator).masked_fill_(deterministic.unsqueeze(-1), 0.0)
        action = torch.addcmul(mean, log_std.exp(), noise)
        return action, (-0.5 * noise.square() - (log_std + 0.5 * LOG_2PI)).sum(-1)

    def log_prob(self, mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
        """Log-density [...] of actions [..., k]."""
        scaled = (action - mean) * torch.exp(-log_std)
        return (-0.5 * scaled * scaled - log_std - 0.5 * LOG_2PI).sum(-1)

    def log_prob_entropy(self, mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density [...] of actions [..., k] and differential entropy [...]."""
        entropy = (log_std + 0.5 * (1.0 + LOG_2PI)).expand_as(mean).sum(-1)
        return self.log_prob(mean, log_std, action), entropy
