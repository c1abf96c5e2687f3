"""What the objectives read from a pair of traces: sites, plates, KL."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from pyro import poutine
from pyro.distributions import Delta, Normal, Unit
from pyro.distributions.util import scale_and_mask
from pyro.poutine.guide import GuideMessenger
from pyro.poutine.trace_struct import Trace
from torch import Tensor
from torch.distributions import Independent, kl_divergence

from eve_pyro.nn.latent import PARTICLE_PLATES


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


def latents(trace: Trace) -> Iterator[tuple[str, dict]]:
    """The sites of a trace that were drawn, by name."""
    for name, site in trace.nodes.items():
        if site["type"] == "sample" and not site["is_observed"]:
            yield name, site


def observed_sites(trace: Trace) -> dict[str, dict]:
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


def check_value(name: str, site: dict) -> None:
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
    return {f.dim for f in site["cond_indep_stack"] if f.vectorized and is_particles(f)}


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


def total_kl(model_trace: Trace, guide_trace: Trace) -> Tensor | float:
    """Scaled KL of all latents, plus what the factor sites cost, summed over the batch."""
    total: Tensor | float = 0.0
    for name, q_site in latents(guide_trace):
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


def data_plates(sites: Iterable[dict]) -> dict[int, Any]:
    """Frames by dim of the plates that all sites share; their elements are the data."""
    shared = [
        {f.dim: f for f in site["cond_indep_stack"] if f.vectorized and not is_particles(f)}
        for site in sites
    ]
    return {dim: f for dim, f in shared[0].items() if all(dim in other for other in shared[1:])}


def is_particles(frame: Any) -> bool:
    """Whether a plate repeats the program, rather than holding data."""
    return frame.name in PARTICLE_PLATES


def subsampling(frames: Iterable[Any]) -> float:
    """Product of N/B over plates."""
    return math.prod((f.full_size or f.size) / f.size for f in frames)


def as_normal(name: str, fn: Any) -> Normal:
    """The Normal of a site, without its event dims; an error if it is something else."""
    base = fn.base_dist if isinstance(fn, Independent) else fn
    if not isinstance(base, Normal):
        raise ValueError(f"observed site {name!r} must be Normal for this objective, got {fn}")
    return base


def scaled_sum(log_prob: Tensor, site: dict, particle_dim: int | None) -> Tensor:
    """Scaled, masked sum of a log probability from which the particles were reduced."""
    mask = site["mask"]
    if isinstance(mask, Tensor) and particle_dim is not None and mask.dim() >= -particle_dim:
        mask = mask.select(particle_dim, 0)
    return scale_and_mask(log_prob, site["scale"], mask).sum()
