"""Objectives beyond the stock ELBOs: the same traces, another likelihood term.

All numbers are sums in nats. The likelihood term of a mini-batch is scaled by N/B by the
subsampled plate, and so is the KL of its local latents; beta weighs the KL alone. Dividing a
loss by N gives nats per datum.
"""

import functools
import logging
import math
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import torch
from pyro import poutine
from pyro.distributions import Delta, Normal, Unit
from pyro.distributions.util import scale_and_mask
from pyro.infer.elbo import ELBO
from pyro.infer.util import is_validation_enabled
from pyro.poutine.guide import GuideMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import prune_subsample_sites
from pyro.util import check_model_guide_match, warn_if_nan
from torch import Tensor
from torch.distributions import Independent, kl_divergence

from eve_pyro._checks import check_int
from eve_pyro.nn.latent import PARTICLE_PLATES

Traces = list[tuple[Trace, Trace]]


class PathwiseELBO(ELBO):
    """Base of objectives of the form -(likelihood term) + KL, differentiated by the pathwise rule.

    The KL of every latent site is analytic where Pyro knows it, else the sampled log q - log p,
    averaged over particles and scaled as its site is (plates, beta). ``pyro.factor`` terms are
    averaged over particles too. Subclasses define :meth:`log_likelihood`.

    Arguments:
        num_particles: S, posterior draws per datum.
        vectorize_particles: draw all particles in one run (default); the model must then accept
            a leading dim of particles, as Pyro asks of any vectorized model.
        max_plate_nesting: depth of the model's plates, guessed by a first run if not given. The
            guess is kept: use an objective for one model.

    Raises:
        ValueError: for fewer particles than the objective needs, and when called on a model
            whose guide has a latent without reparameterized sampling.
    """

    min_particles: ClassVar[int] = 1

    def __init__(
        self,
        num_particles: int = 1,
        *,
        vectorize_particles: bool = True,
        max_plate_nesting: float = math.inf,
        **kwargs: Any,
    ) -> None:
        check_int("num_particles", num_particles, self.min_particles)
        super().__init__(
            num_particles=num_particles,
            # One particle needs no plate, and no first run to find the plate's dim.
            vectorize_particles=vectorize_particles and num_particles > 1,
            max_plate_nesting=max_plate_nesting,
            **kwargs,
        )

    def log_likelihood(self, traces: Traces) -> Tensor:
        """The likelihood term, summed over data, from (model_trace, guide_trace) pairs."""
        raise TypeError(f"{type(self).__name__} must define log_likelihood(traces)")

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        """The loss as a 0-dim tensor whose gradient is the gradient estimate."""
        check_guides_model(model, guide)
        traces = list(self._get_traces(model, guide, args, kwargs))
        regulariser = sum(_kl(*pair) for pair in traces) / self._runs
        return regulariser - self.log_likelihood(traces)

    def loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """The loss as a float."""
        with torch.no_grad():
            loss = self.differentiable_loss(model, guide, *args, **kwargs).item()
        warn_if_nan(loss, "loss")
        return loss

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """The loss as a float, its gradients added to the parameters; what ``SVI`` calls."""
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        if loss.requires_grad:
            loss.backward(retain_graph=self.retain_graph)
        value = loss.item()
        warn_if_nan(value, "loss")
        return value

    def _guess_max_plate_nesting(self, model: Any, guide: Any, args: Any, kwargs: Any) -> None:
        # Pyro announces its guess on the console, in the middle of a user's output.
        logger = logging.getLogger("pyro.infer.elbo")
        level = logger.level
        logger.setLevel(logging.WARNING)
        try:
            super()._guess_max_plate_nesting(model, guide, args, kwargs)
        finally:
            logger.setLevel(level)

    @property
    def _runs(self) -> int:
        """Number of program runs per loss; in one vectorized run, sums span the particles."""
        return self.num_particles

    @property
    def _particle_dim(self) -> int | None:
        """The dim of the plate of particles, or None where particles are separate runs."""
        return -int(self.max_plate_nesting) if self.vectorize_particles else None

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> tuple[Trace, Trace]:
        # As Pyro's get_importance_trace, less the log probabilities of the latents, which an
        # analytic KL does not need.
        unwrapped = poutine.unwrap(guide)
        if isinstance(unwrapped, Messenger):
            guide(*args, **kwargs)
            model_trace, guide_trace = unwrapped.get_traces()
        else:
            guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
            replayed = poutine.replay(model, trace=guide_trace)
            model_trace = poutine.trace(replayed).get_trace(*args, **kwargs)
        model_trace, guide_trace = map(prune_subsample_sites, (model_trace, guide_trace))
        if is_validation_enabled():
            check_model_guide_match(model_trace, guide_trace, self.max_plate_nesting)
            for name, site in _observed(model_trace).items():
                _check_value(name, site)
        return model_trace, guide_trace


def check_guides_model(model: Any, guide: Any) -> None:
    """Raise a ``ValueError`` unless an effect-handler guide is one of this very model.

    Such a guide runs its own model; another one, or a handler around the model that it is given
    beside the guide, would be ignored without a word.
    """
    guide = poutine.unwrap(guide)
    if isinstance(guide, GuideMessenger) and guide.model is not model:
        raise ValueError(
            "guide must be a guide of this very model, handlers included: build it as "
            f"EVEGuide(model) for the model that you pass, got a guide of {guide.model!r}"
        )


def _latents(trace: Trace) -> Iterator[tuple[str, dict]]:
    for name, site in trace.nodes.items():
        if site["type"] == "sample" and not site["is_observed"]:
            yield name, site


def _observed(trace: Trace) -> dict[str, dict]:
    """The likelihood sites of a trace: observed, and neither computed nor a penalty's factor."""
    sites = {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample"
        and site["is_observed"]
        and not isinstance(site["fn"], Unit)
        and not (site["infer"] or {}).get("_deterministic")
    }
    if not sites:
        raise ValueError("the model has no observed site: pass the targets as the model expects")
    return sites


def _check_value(name: str, site: dict) -> None:
    """Raise an error if an observation's shape is not its distribution's, but broadcasts to it."""
    if any(not f.vectorized for f in site["cond_indep_stack"]):
        raise ValueError(
            f"observed site {name!r} is in a sequential plate, whose elements this objective "
            "would take for one datum: use a vectorized plate, with pyro.plate(...)"
        )
    expected = site["fn"].batch_shape + site["fn"].event_shape
    given = site["value"].shape
    # Particles, and dims of size 1 between them and the data, are the distribution's alone.
    if given != expected[len(expected) - len(given) :] or any(
        size != 1 and -dim not in _particle_dims(site)
        for dim, size in enumerate(reversed(site["fn"].batch_shape), 1)
        if dim > len(given) - site["fn"].event_dim
    ):
        raise ValueError(
            f"observed site {name!r} must have values of the shape {tuple(expected)} of its "
            f"distribution, got {tuple(given)}"
        )


def _particle_dims(site: dict) -> set[int]:
    return {f.dim for f in site["cond_indep_stack"] if f.vectorized and _is_particles(f)}


def _log_ratio(q_site: dict, p_site: dict) -> Tensor:
    """KL(q || p) per batch element, or a draw's log q - log p where no closed form is known."""
    q, p, value = q_site["fn"], p_site["fn"], p_site["value"]
    # A Delta made by an AutoGuide carries its density in log_density, which Pyro's KL ignores.
    if not isinstance(q, Delta):
        try:
            return kl_divergence(q, p)
        except NotImplementedError:
            pass
    return q.log_prob(value) - p.log_prob(value)


def _kl(model_trace: Trace, guide_trace: Trace) -> Tensor | float:
    """Scaled KL of all latents, plus what the factor sites cost, summed over the batch."""
    total: Tensor | float = 0.0
    for name, q_site in _latents(guide_trace):
        p_site = model_trace.nodes.get(name)
        if p_site is not None and p_site["fn"] is q_site["fn"]:
            continue  # left to the prior
        if not q_site["fn"].has_rsample:
            raise ValueError(
                f"site {name!r} has no reparameterized sampling, which this objective needs; "
                "use Trace_ELBO or another posterior"
            )
        if p_site is None:  # an auxiliary site of the guide
            term = q_site["fn"].log_prob(q_site["value"])
        else:
            term = _log_ratio(q_site, p_site)
        total = total + scale_and_mask(term, q_site["scale"], q_site["mask"]).sum()
    for site in model_trace.nodes.values():
        if site["type"] == "sample" and isinstance(site["fn"], Unit):
            term = site["fn"].log_prob(site["value"])
            total = total - scale_and_mask(term, site["scale"], site["mask"]).sum()
    return total


def _data_plates(sites: Iterable[dict]) -> dict[int, Any]:
    """Frames by dim of the plates that all sites share; their elements are the data."""
    shared = [
        {f.dim: f for f in site["cond_indep_stack"] if f.vectorized and not _is_particles(f)}
        for site in sites
    ]
    return {dim: f for dim, f in shared[0].items() if all(dim in other for other in shared[1:])}


def _is_particles(frame: Any) -> bool:
    return frame.name in PARTICLE_PLATES


def _subsampling(frames: Iterable[Any]) -> float:
    """Product of N/B over plates."""
    return math.prod((f.full_size or f.size) / f.size for f in frames)


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

    Arguments:
        num_particles: S. Default 8.
        Others: see :class:`PathwiseELBO`.

    Raises:
        ValueError: see :class:`PathwiseELBO`; also when called on a model without observed
            sites, or whose observed sites carry different ``poutine.scale``.

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

    def __init__(self, num_particles: int = 8, **kwargs: Any) -> None:
        super().__init__(num_particles, **kwargs)

    def log_likelihood(self, traces: Traces) -> Tensor:
        dim, weight = self._particle_dim, 1.0
        terms: list[Tensor] = []
        for model_trace, _ in traces:
            sites = _observed(model_trace)
            plates = _data_plates(sites.values())
            weight = self._weight(sites, plates)
            per_site = [self._per_datum(site, plates) for site in sites.values()]
            terms.append(functools.reduce(torch.add, per_site))
        joint = torch.stack(terms) if dim is None else terms[0]
        dim = 0 if dim is None else dim
        averaged = joint.logsumexp(dim) - math.log(self.num_particles)
        return (averaged * weight).sum()

    def _per_datum(self, site: dict, plates: dict[int, Any]) -> Tensor:
        """Log likelihood of one site, summed to the shape of the data plates (and particles)."""
        log_prob = scale_and_mask(site["fn"].log_prob(site["value"]), mask=site["mask"])
        inner = [f for f in site["cond_indep_stack"] if f.vectorized and not _is_particles(f)]
        inner = [f for f in inner if f.dim not in plates]
        kept = {*plates, self._particle_dim}
        summed = [d for d in range(-log_prob.dim(), 0) if d not in kept]
        if summed:
            log_prob = log_prob.sum(summed, keepdim=True)
        return log_prob * _subsampling(inner)

    def _weight(self, sites: dict[str, dict], plates: dict[int, Any]) -> Any:
        """The weight of a datum: N/B of its plates times the user's own scale."""
        weights = {}
        for name, site in sites.items():
            frames = [f for f in site["cond_indep_stack"] if f.vectorized and f.dim not in plates]
            weights[name] = site["scale"] / _subsampling(frames)
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
    that is near Gaussian; it cannot represent skew or several modes.

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
        for name, site in _observed(traces[0][0]).items():
            normals = [_normal(name, model_trace.nodes[name]["fn"]) for model_trace, _ in traces]
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
            total = total + _scaled(matched.log_prob(y), site, self._particle_dim)
        return total


def _normal(name: str, fn: Any) -> Normal:
    base = fn.base_dist if isinstance(fn, Independent) else fn
    if not isinstance(base, Normal):
        raise ValueError(f"observed site {name!r} must be Normal for this objective, got {fn}")
    return base


def _scaled(log_prob: Tensor, site: dict, particle_dim: int | None) -> Tensor:
    """Scaled, masked sum of a log probability from which the particles were reduced."""
    mask = site["mask"]
    if isinstance(mask, Tensor) and particle_dim is not None and mask.dim() >= -particle_dim:
        mask = mask.select(particle_dim, 0)
    return scale_and_mask(log_prob, site["scale"], mask).sum()
