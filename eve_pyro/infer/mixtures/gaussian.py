"""Mixtures of Gaussians: the predictive distribution of a real-valued target."""

import math
from collections.abc import Sequence
from typing import Any, Self

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.special import ndtri

from eve_pyro._checks import check_int, check_real
from eve_pyro.infer.mixtures._arguments import (
    Levels,
    as_levels,
    broadcasts,
    check_draws,
    normalised_log_weights,
)


class GaussianMixture(dist.MixtureSameFamily):
    r"""Mixture of Gaussians, one for every element of ``shape``.

    .. math:: p(y) = \sum_s w_s \, N(y; m_s, \sigma_s^2)

    The spread splits by the law of total variance over draws *d*,
    Var(y) = E[Var(y | d)] + Var(E[y | d]), into ``aleatoric`` and ``epistemic`` (Depeweg,
    Hernandez-Lobato, Doshi-Velez and Udluft, "Decomposition of uncertainty in Bayesian deep
    learning for efficient and risk-sensitive learning", 2018).

    Args:
        loc: means, (S, \*shape), components first.
        scale: standard deviations, (S, \*shape), positive.
        log_weights: (S,), or ``1 + len(shape)`` dims that broadcast to (S, \*shape);
            normalised over dim 0. Equal weights by default.
        num_draws: number of posterior draws, of which each brings S / num_draws components (a
            mixture density head), ordered draw by draw. Default: S, one component per draw.

    Raises:
        ValueError: for wrong shapes, an empty ``loc``, values that are not finite floats, or
            scales that are not positive.

    >>> y = GaussianMixture(loc=torch.tensor([[-1.0], [1.0]]), scale=torch.ones(2, 1))
    >>> y.mean, y.aleatoric, y.epistemic
    (tensor([0.]), tensor([1.]), tensor([1.]))
    >>> y.quantile([0.1, 0.9]).T
    tensor([[-1.8495,  1.8495]])
    """

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor,
        log_weights: Tensor | None = None,
        *,
        num_draws: int | None = None,
        validate_args: bool | None = None,
    ) -> None:
        check_draws("loc", loc, 1, "(S, *shape)")
        check_draws("scale", scale, 1, "(S, *shape)")
        if scale.shape != loc.shape:
            given = tuple(scale.shape)
            raise ValueError(f"scale must have the shape {tuple(loc.shape)} of loc, got {given}")
        if not (scale > 0).all():
            raise ValueError(f"scale must be positive, got a minimum of {scale.min().item()}")
        self.num_draws = check_int("num_draws", len(loc) if num_draws is None else num_draws)
        if len(loc) % self.num_draws:
            raise ValueError(f"num_draws must divide S = {len(loc)}, got {num_draws}")
        self.loc, self.scale = loc, scale
        self.log_weights = normalised_log_weights(log_weights, loc)
        weights = dist.Categorical(logits=self.log_weights.movedim(0, -1)).expand(loc.shape[1:])
        components = dist.Normal(loc.movedim(0, -1), scale.movedim(0, -1))
        super().__init__(weights, components, validate_args=validate_args)

    def _with(self, loc: Tensor, scale: Tensor) -> Self:
        return type(self)(loc, scale, self.log_weights, num_draws=self.num_draws)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Return the mixture in another dtype or on another device, as ``Tensor.to``."""
        return self._with(self.loc.to(*args, **kwargs), self.scale.to(*args, **kwargs))

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        """Return the mixture broadcast to ``batch_shape``."""
        ones = (1,) * (len(batch_shape) - len(self.batch_shape))
        loc, scale, log_weights = (
            t.reshape(len(t), *ones, *t.shape[1:]) for t in (self.loc, self.scale, self.log_weights)
        )
        loc, scale = (t.expand(-1, *batch_shape) for t in (loc, scale))
        return type(self)(loc, scale, log_weights, num_draws=self.num_draws)

    def _per_draw(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return each draw's weight, its mean less the mixture's, and its variance."""
        # About the mixture's mean, so that rounding meets the spread and not the size of y.
        loc, scale, log_weights = (
            t.unflatten(0, (self.num_draws, -1))
            for t in (self.loc - self.mean, self.scale, self.log_weights)
        )
        log_totals = log_weights.logsumexp(1, keepdim=True)
        within = (log_weights - log_totals).exp()
        mean = (within * loc).sum(1)
        variance = (within * (scale**2 + (loc - mean.unsqueeze(1)) ** 2)).sum(1)
        return log_totals.squeeze(1).exp(), mean, variance

    @property
    def mean(self) -> Tensor:
        """Mean of the mixture, (*shape)."""
        # About a member, since weights sum to one only up to rounding.
        return self.loc[0] + (self.log_weights.exp() * (self.loc - self.loc[0])).sum(0)

    @property
    def aleatoric(self) -> Tensor:
        """Mean over draws of the variance within a draw, (*shape)."""
        weights, _, variance = self._per_draw()
        return (weights * variance).sum(0)

    @property
    def epistemic(self) -> Tensor:
        """Variance over draws of the mean within a draw, (*shape).

        What the draws stand for decides how to read it: under objectives that average inside the
        logarithm (:class:`~eve_pyro.infer.MCNLL_ELBO`) they hold noise of the data as well.
        """
        weights, mean, _ = self._per_draw()
        return (weights * (mean - (weights * mean).sum(0)) ** 2).sum(0)

    @property
    def variance(self) -> Tensor:
        """Variance of the mixture, (*shape): ``aleatoric + epistemic``."""
        return self.aleatoric + self.epistemic

    def moment_matched(self) -> dist.Normal:
        """The normal with this mixture's mean and variance, of batch shape (*shape).

        The reading of a network that :class:`~eve_pyro.infer.MomentMatchedELBO` has trained, up
        to that objective's S / (S - 1) on the variance over S draws.
        Where the components are narrow beside the spread of their means, a mixture of few draws
        has gaps between them, in which its density is near 0 though more draws would fill them.

        Example:
            >>> y = GaussianMixture(torch.tensor([[-1.0], [1.0]]), torch.full((2, 1), 0.1))
            >>> y.log_prob(torch.zeros(1)), y.moment_matched().log_prob(torch.zeros(1))
            (tensor([-48.616...]), tensor([-0.9239]))
        """
        return dist.Normal(self.mean, self.variance.sqrt())

    def cdf(self, value: Tensor) -> Tensor:
        """Return P(y <= value); ``value`` broadcasts against (*shape)."""
        value = value.expand(torch.broadcast_shapes(value.shape, self.batch_shape))
        component = -1 - len(self.batch_shape)
        # erfc keeps its relative precision in the lower tail, where Normal.cdf's 1 + erf is 0.
        below = torch.erfc((self.loc - value.unsqueeze(component)) / (math.sqrt(2) * self.scale))
        return (self.log_weights.exp() * below).sum(component) / 2

    def quantile(self, q: Levels) -> Tensor:
        """Return the y with ``cdf(y) = q``, found to the precision of the dtype by bisection.

        Args:
            q: levels in (0, 1). One gives (*shape), a sequence or 1-d tensor (len(q), *shape).
        """
        levels = as_levels("q", q, self.loc)
        # One level at a time, so that memory does not grow with their number.
        found = torch.stack([self._quantile(level) for level in levels.reshape(-1)])
        return found.reshape(levels.shape + self.batch_shape)

    def _quantile(self, q: Tensor) -> Tensor:
        # No component has reached q before the least of their quantiles, and all have at the
        # greatest: a bracket without a search, however far apart the components are.
        ends = self.loc + self.scale * ndtri(q)
        lower, upper = ends.amin(0), ends.amax(0)
        # Bisect down to eps * scale: the least change that the steepest component can feel.
        halvings = (upper - lower).log2() - self.scale.amin(0).log2()
        steps = halvings.max().item() - math.log2(torch.finfo(q.dtype).eps)
        for _ in range(math.ceil(max(steps, 0.0))):
            middle = lower + (upper - lower) / 2
            below = self.cdf(middle) < q
            lower, upper = middle.where(below, lower), upper.where(below, middle)
        return lower + (upper - lower) / 2

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """Return the ends of the central interval of probability ``level``, (*shape) each."""
        level = check_real("level", level, 0.0, 1.0, exclusive=True)
        lower, upper = self.quantile([(1 - level) / 2, (1 + level) / 2])
        return lower, upper

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw (*sample_shape, *shape) values, by torch's global random number generator."""
        with torch.no_grad():
            # The base class draws from every component and keeps one: S times the memory.
            chosen = self.mixture_distribution.sample(torch.Size(sample_shape)).unsqueeze(-1)
            loc, scale = (
                t.movedim(0, -1).expand(*chosen.shape[:-1], -1).gather(-1, chosen).squeeze(-1)
                for t in (self.loc, self.scale)
            )
            return torch.normal(loc, scale)

    def rescale(self, tau: float) -> Self:
        """Return the mixture with its spread about the mean multiplied by ``tau`` > 0."""
        tau = check_real("tau", tau, 0.0, exclusive=True)
        mean = self.mean
        return self._with(mean + tau * (self.loc - mean), tau * self.scale)

    def affine(self, shift: float | Tensor, scale: float | Tensor) -> Self:
        """Return the distribution of ``shift + scale * y``, for instance in original units.

        Args:
            shift: a number, or a tensor that broadcasts to (*shape).
            scale: the same, positive.
        """
        shift, scale = (torch.as_tensor(t).to(self.loc) for t in (shift, scale))
        for name, value in (("shift", shift), ("scale", scale)):
            if not broadcasts(value.shape, self.batch_shape):
                accepted, given = tuple(self.batch_shape), tuple(value.shape)
                raise ValueError(f"{name} must broadcast to {accepted}, got shape {given}")
        if not (scale > 0).all():
            raise ValueError(f"scale must be positive, got a minimum of {scale.min().item()}")
        return self._with(shift + scale * self.loc, scale * self.scale)
