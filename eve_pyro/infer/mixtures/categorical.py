"""Mixtures of categorical distributions: the predictive distribution of a label."""

from collections.abc import Sequence
from typing import Any, Self

import pyro.distributions as dist
import torch
from torch import Tensor

from eve_pyro._checks import check_real
from eve_pyro.infer.mixtures._arguments import (
    Levels,
    as_levels,
    check_draws,
    normalised_log_weights,
)


class CategoricalMixture(dist.Categorical):
    r"""Mean over draws of categorical distributions, one for every element of ``shape``.

    .. math:: p(y = c) = \sum_s w_s \, \mathrm{softmax}(\ell_s)_c

    The entropy of this mean splits into the expected entropy of a draw (``aleatoric``) and the
    mutual information between label and draw (``epistemic``; BALD, Houlsby, Huszar, Ghahramani
    and Lengyel, "Bayesian active learning for classification and preference learning", 2011).
    ``probs``, ``log_prob``, ``entropy()``, ``mode`` and ``sample`` are those of Pyro's
    ``Categorical``, for the mean.

    Args:
        logits: (S, \*shape, C), finite; kept as ``draw_logits``.
        log_weights: (S,), or ``1 + len(shape)`` dims that broadcast to (S, \*shape);
            normalised over dim 0. Equal weights by default.

    Raises:
        ValueError: for wrong shapes, an empty ``logits``, or values that are not finite floats.

    >>> y = CategoricalMixture(torch.tensor([[[200.0, 0.0]], [[0.0, 200.0]]]))
    >>> y.probs, y.entropy(), y.aleatoric, y.epistemic
    (tensor([[0.5000, 0.5000]]), tensor([0.6931]), tensor([0.]), tensor([0.6931]))
    """

    def __init__(
        self,
        logits: Tensor,
        log_weights: Tensor | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        check_draws("logits", logits, 2, "(S, *shape, C)")
        self.draw_logits, self.num_draws = logits, len(logits)
        self.log_weights = normalised_log_weights(log_weights, logits[..., 0])
        log_mean = (logits.log_softmax(-1) + self.log_weights.unsqueeze(-1)).logsumexp(0)
        super().__init__(logits=log_mean, validate_args=validate_args)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Return the mixture in another dtype or on another device, as ``Tensor.to``."""
        return type(self)(self.draw_logits.to(*args, **kwargs), self.log_weights)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        """Return the mixture broadcast to ``batch_shape``."""
        ones = (1,) * (len(batch_shape) - len(self.batch_shape))
        logits, log_weights = (
            t.reshape(len(t), *ones, *t.shape[1:]) for t in (self.draw_logits, self.log_weights)
        )
        return type(self)(logits.expand(-1, *batch_shape, -1), log_weights)

    @property
    def mean(self) -> Tensor:
        """Mean of the one-hot label, (*shape, C): ``probs``."""
        return self.probs

    @property
    def variance(self) -> Tensor:
        """Variance of the one-hot label, (*shape, C); ``stddev`` is its square root."""
        return self.probs * (1 - self.probs)

    @property
    def aleatoric(self) -> Tensor:
        """Expected entropy of a draw in nats, (*shape)."""
        entropies = torch.special.entr(self.draw_logits.softmax(-1)).sum(-1)
        return (self.log_weights.exp() * entropies).sum(0)

    @property
    def epistemic(self) -> Tensor:
        """Mutual information between label and draw in nats, (*shape): what is not aleatoric."""
        return (self.entropy() - self.aleatoric).clamp(min=0)  # below 0 only by rounding

    def cdf(self, value: int | Tensor) -> Tensor:
        """Return P(y <= value) over ordered labels; ``value`` broadcasts against (*shape)."""
        value = torch.as_tensor(value, device=self.probs.device)
        value = value.expand(torch.broadcast_shapes(value.shape, self.batch_shape))
        last = self.probs.shape[-1] - 1
        totals = self.probs.cumsum(-1).expand(*value.shape, -1)
        index = value.floor().long().clamp(0, last).unsqueeze(-1)
        inside = totals.gather(-1, index).squeeze(-1)
        # Exact at the ends, where a sum of probabilities is 1 only up to rounding.
        return inside.masked_fill(value < 0, 0.0).masked_fill(value >= last, 1.0)

    def quantile(self, q: Levels) -> Tensor:
        """Return the least label k with ``cdf(k) >= q``, over ordered labels.

        Args:
            q: levels in (0, 1). One gives (*shape), a sequence or 1-d tensor (len(q), *shape).
        """
        levels = as_levels("q", q, self.probs)
        totals = self.probs.cumsum(-1)
        below = totals[..., :-1] < levels.reshape(levels.shape + (1,) * totals.dim())
        return below.sum(-1)

    def rescale(self, tau: float) -> Self:
        """Return the mixture with every draw's logits divided by a temperature ``tau`` > 0."""
        tau = check_real("tau", tau, 0.0, exclusive=True)
        return type(self)(self.draw_logits / tau, self.log_weights)
