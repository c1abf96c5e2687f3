"""Objectives that average the likelihood over draws inside the logarithm."""

import functools
import math
from typing import Any, ClassVar

import torch
from pyro.distributions import Normal
from pyro.distributions.util import scale_and_mask
from torch import Tensor

from eve_pyro._checks import check_real
from eve_pyro.infer._sites import (
    as_normal,
    data_plates,
    is_particles,
    observed_sites,
    scaled_sum,
    subsampling,
)
from eve_pyro.infer.elbo import PathwiseELBO, Traces


class MCNLL_ELBO(PathwiseELBO):
    """Negative log of the averaged likelihood, plus beta * KL.

    .. math:: -\\sum_n \\log \\frac{1}{S} \\sum_s p(y_n | z_{ns}) + \\beta \\, KL(q || p),
              \\qquad z_{ns} \\sim q(z | x_n)

    The posterior acts as a conditional prior of the prediction, so sigma learns the spread of
    the data; under the plain ELBO, whose average stands outside the logarithm, it does not. It
    is neither ``Trace_ELBO`` nor ``RenyiELBO``, which weigh draws by p(z)/q(z). Biased for small
    S, where an output scale acts as a kernel bandwidth.

    A datum is an element of the plates that all observed sites share: the likelihoods of its
    observations are multiplied before averaging. Each datum is weighted by the N/B of
    those plates and by a ``poutine.scale`` around the model.

    With ``elbo_weight`` = w the likelihood term is (1 - w) times this one plus w times that of
    the plain ELBO, the average outside the logarithm. Between the two, noise that the training
    data would rather silence stays as a regulariser, and still spreads the prediction.

    Arguments:
        num_particles: S. Default 8.
        elbo_weight: w, in [0, 1]. Default 0.
        Others: see :class:`PathwiseELBO`.

    Raises:
        ValueError: see :class:`PathwiseELBO`; also for an elbo_weight outside [0, 1], and when
            called on a model without observed sites, or whose observed sites carry different
            ``poutine.scale``.

    Example:
        >>> from eve_pyro import EVEGuide, EVEModule
        >>> net = EVEModule(3, 1, emission="identity")
        >>> def model(x, y=None):
        ...     with pyro.plate("data", len(x)):
        ...         return pyro.sample("y", dist.Normal(net(x).squeeze(-1), 0.1), obs=y)
        >>> x, y = torch.randn(5, 3), torch.zeros(5)
        >>> guide, plain = EVEGuide(model), pyro.infer.Trace_ELBO(16, vectorize_particles=True)
        >>> MCNLL_ELBO(16).loss(model, guide, x, y) < plain.loss(model, guide, x, y)
        True
    """

    def __init__(self, num_particles: int = 8, *, elbo_weight: float = 0.0, **kwargs: Any) -> None:
        super().__init__(num_particles, **kwargs)
        self.elbo_weight = check_real("elbo_weight", elbo_weight, 0.0, 1.0)

    def log_likelihood(self, traces: Traces) -> Tensor:
        dim, weight = self._particle_dim, 1.0
        terms: list[Tensor] = []
        for model_trace, _ in traces:
            sites = observed_sites(model_trace)
            plates = data_plates(sites.values())
            weight = self._weight(sites, plates)
            per_site = [self._per_datum(site, plates) for site in sites.values()]
            terms.append(functools.reduce(torch.add, per_site))
        joint = torch.stack(terms) if dim is None else terms[0]
        dim = 0 if dim is None else dim
        averaged = joint.logsumexp(dim) - math.log(self.num_particles)
        if self.elbo_weight:
            averaged = torch.lerp(averaged, joint.mean(dim), self.elbo_weight)
        return (averaged * weight).sum()

    def _per_datum(self, site: dict, plates: dict[int, Any]) -> Tensor:
        """Log likelihood of one site, summed to the shape of the data plates (and particles)."""
        log_prob = scale_and_mask(site["fn"].log_prob(site["value"]), mask=site["mask"])
        inner = [f for f in site["cond_indep_stack"] if f.vectorized and not is_particles(f)]
        inner = [f for f in inner if f.dim not in plates]
        kept = {*plates, self._particle_dim}
        summed = [d for d in range(-log_prob.dim(), 0) if d not in kept]
        if summed:
            log_prob = log_prob.sum(summed, keepdim=True)
        return log_prob * subsampling(inner)

    def _weight(self, sites: dict[str, dict], plates: dict[int, Any]) -> Any:
        """The weight of a datum: N/B of its plates times the user's own scale."""
        weights = {}
        for name, site in sites.items():
            frames = [f for f in site["cond_indep_stack"] if f.vectorized and f.dim not in plates]
            weights[name] = site["scale"] / subsampling(frames)
        first, *others = weights.values()
        for other in others:
            tensors = isinstance(first, Tensor) and isinstance(other, Tensor)
            same = torch.equal(first, other) if tensors else math.isclose(first, other)
            if other is not first and not same:
                raise ValueError(
                    "observed sites of one datum need one scale, since their likelihoods are "
                    f"multiplied before averaging; got {weights}"
                )
        return first


class MomentMatchedELBO(PathwiseELBO):
    """Gaussian with the moments of the predictive mixture, plus beta * KL.

    .. math:: -\\sum_n \\log N(y_n; m_n, v_n + \\overline{s^2_n}) + \\beta \\, KL(q || p)

    m and v are the mean and unbiased variance over S draws of the observed site's mean, and the
    last term the mean of its variance. The cheapest estimator of the predictive likelihood where
    that is near Gaussian; it cannot represent skew or several modes. It does not mind how v and
    s^2 share the spread: s may shrink until all of it is the draws', and a mixture of few draws
    then has gaps. Read such predictions by
    :meth:`~eve_pyro.infer.GaussianMixture.moment_matched`, or take some hundred draws.

    Arguments:
        num_particles: S, at least 2. Default 10.
        Others: see :class:`PathwiseELBO`.

    Raises:
        ValueError: see :class:`PathwiseELBO`; also when called on a model with an observed site
            that is not Normal.

    Example:
        >>> MomentMatchedELBO(num_particles=1)
        Traceback (most recent call last):
        ...
        ValueError: num_particles must be an integer >= 2, got 1
    """

    min_particles: ClassVar[int] = 2

    def __init__(self, num_particles: int = 10, **kwargs: Any) -> None:
        super().__init__(num_particles, **kwargs)

    def log_likelihood(self, traces: Traces) -> Tensor:
        total: Any = 0.0
        for name, site in observed_sites(traces[0][0]).items():
            normals = [as_normal(name, model_trace.nodes[name]["fn"]) for model_trace, _ in traces]
            event_dim = site["fn"].event_dim
            if self._particle_dim is None:
                dim, loc = 0, torch.stack([n.loc for n in normals])
                variance = torch.stack([n.variance for n in normals])
                y = site["value"]
            else:
                dim = self._particle_dim - event_dim
                loc, variance = normals[0].loc, normals[0].variance
                # The data are the same for every particle.
                y = site["value"]
                if y.dim() >= -dim:
                    y = y.select(dim, 0)
            v, m = torch.var_mean(loc, dim)
            scale = (v + variance.mean(dim)).sqrt()
            # Unchecked, as the site's own observation was: masked values may be anything.
            matched = Normal(m, scale, validate_args=False).to_event(event_dim)
            total = total + scaled_sum(matched.log_prob(y), site, self._particle_dim)
        return total
