"""The losses of Pyro's stock objectives as tensors alone.

Pyro's ``differentiable_loss`` reads the loss into a Python float on the way, which no trace can
hold. Here is the same estimate from the same traces, without that.
"""

from collections.abc import Iterator
from typing import Any

from pyro.distributions.util import is_identically_zero, scale_and_mask
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.trace_elbo import _compute_log_r
from pyro.poutine.trace_struct import Trace
from torch import Tensor, as_tensor
from torch.distributions import kl_divergence


def tensor_loss(elbo: Any, model: Any, guide: Any, args: Any, kwargs: Any) -> Tensor:
    """The value and gradient of ``elbo.differentiable_loss``, without reading any value.

    Objectives that define a loss of their own are taken at their word.

    Example:
        >>> from pyro.infer import TraceMeanField_ELBO
        >>> def model():
        ...     pyro.sample("y", dist.Normal(pyro.sample("z", dist.Normal(0.0, 1.0)), 1.0),
        ...                 obs=torch.tensor(2.0))
        >>> def guide():
        ...     pyro.sample("z", dist.Normal(pyro.param("loc", torch.tensor(1.0)), 1.0))
        >>> elbo = TraceMeanField_ELBO()
        >>> _ = pyro.set_rng_seed(0)
        >>> expected = elbo.differentiable_loss(model, guide)
        >>> _ = pyro.set_rng_seed(0)
        >>> torch.equal(tensor_loss(elbo, model, guide, (), {}), expected)
        True
    """
    kind = type(elbo)
    estimate = None
    if getattr(kind, "differentiable_loss", None) is Trace_ELBO.differentiable_loss:
        estimate = _STOCK.get(kind._differentiable_loss_particle)
    if estimate is None:
        return as_tensor(elbo.differentiable_loss(model, guide, *args, **kwargs))
    runs = [estimate(*traces) for traces in elbo._get_traces(model, guide, args, kwargs)]
    return as_tensor(sum(runs) / elbo.num_particles)


def _sampled(model_trace: Trace, guide_trace: Trace) -> Any:
    """-(log p - log q), with the score-function terms of what has no reparameterization."""
    elbo: Any = sum(site["log_prob_sum"] for _, site in _samples(model_trace))
    surrogate, log_r = elbo, None
    for _, site in _samples(guide_trace):
        _, score_function, entropy = site["score_parts"]
        elbo = elbo - site["log_prob_sum"]
        if not is_identically_zero(entropy):
            surrogate = surrogate - entropy.sum()
        if not is_identically_zero(score_function):
            log_r = log_r or _compute_log_r(model_trace, guide_trace)
            weight = log_r.sum_to(site["cond_indep_stack"])
            surrogate = surrogate + (weight * score_function).sum()
    if log_r is None:  # all reparameterized: the estimate is its own surrogate
        return -surrogate
    return surrogate.detach() - elbo.detach() - surrogate


def _mean_field(model_trace: Trace, guide_trace: Trace) -> Any:
    """-log p(observed) + KL, sampled where no closed form is known."""
    loss: Any = 0.0
    for name, site in _samples(model_trace):
        if site["is_observed"]:
            loss = loss - site["log_prob_sum"]
            continue
        q_site = guide_trace.nodes[name]
        try:
            kl = kl_divergence(q_site["fn"], site["fn"])
        except NotImplementedError:
            loss = loss + q_site["score_parts"].entropy_term.sum() - site["log_prob_sum"]
            continue
        kl = scale_and_mask(kl, scale=q_site["scale"], mask=q_site["mask"])
        # KLs that are zero by type come as a number per batch element.
        loss = loss + (
            kl.sum() if isinstance(kl, Tensor) else kl * q_site["fn"].batch_shape.numel()
        )
    for name, site in _samples(guide_trace):
        if name not in model_trace.nodes:
            loss = loss + site["score_parts"].entropy_term.sum()
    return loss


_STOCK = {
    Trace_ELBO._differentiable_loss_particle: _sampled,
    TraceMeanField_ELBO._differentiable_loss_particle: _mean_field,
}


def _samples(trace: Trace) -> Iterator[tuple[str, dict]]:
    return ((k, site) for k, site in trace.nodes.items() if site["type"] == "sample")
