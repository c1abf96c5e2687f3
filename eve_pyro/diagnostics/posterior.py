"""One guide pass, read layer by layer: what every EVE layer believes about a batch."""

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from pyro.distributions import Distribution
from pyro.infer.autoguide import AutoGuide
from pyro.poutine.trace_struct import Trace
from torch import Tensor, nn
from torch.distributions import Independent, kl_divergence

from eve_pyro.infer import EVEGuide, PosteriorMean
from eve_pyro.nn import EVEModule, eve_modules

Band = tuple[float, float]


class Field(NamedTuple):
    """A statistic's name for readers, its units, and whether it is kept per latent dim."""

    long_name: str
    units: str
    per_latent: bool


FIELDS = {
    "kl": Field("local KL(q || p), summed over latent dims", "nats", False),
    "mean": Field("posterior mean", "1", True),
    "sigma": Field("posterior standard deviation", "1", True),
    "variance": Field("posterior variance", "1", True),
    "energy": Field("posterior-mean energy", "1", False),
    "band_occupancy": Field("share of posterior means inside the band", "1", False),
    "energy_band_occupancy": Field("whether the energy lies inside the band", "1", False),
    "saturation": Field("share of log sigmas at a clamp bound", "1", False),
}

# Nats from a bound at which a log sigma counts as clamped: far above rounding, far below any
# width of the range that would be of use.
_AT_BOUND = 1e-3


class LayerPosterior(NamedTuple):
    """A layer, its posterior q and prior p, of batch shape (rows, *positions, units, latent)."""

    layer: EVEModule
    q: Distribution
    p: Distribution


def eve_layers(model: nn.Module) -> dict[str, EVEModule]:
    """The EVE layers of a model by site name; an error if there are none."""
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model must be the module that holds the EVE layers, got {model!r}; "
            "for a model function pass its network, and EVEGuide(function) as the guide"
        )
    layers = {layer.site: layer for _, layer in eve_modules(model)}
    if not layers:
        raise ValueError(f"model must have an EVEModule, got a {type(model).__name__} without one")
    return layers


def fitted_guide(model: nn.Module, guide: Any) -> EVEGuide:
    """The guide as an ``EVEGuide``; an error if it is or has an AutoGuide that never ran."""
    other = guide.guide if isinstance(guide, EVEGuide) else guide
    untrained = isinstance(other, AutoGuide) and other.prototype_trace is None
    if untrained or (isinstance(other, type) and issubclass(other, AutoGuide)):
        name = other.__name__ if isinstance(other, type) else type(other).__name__
        raise ValueError(f"guide must be fitted, got an {name} that has no parameters yet")
    return guide if isinstance(guide, EVEGuide) else EVEGuide(model, guide)


def run_guide(
    guide: EVEGuide, layers: dict[str, EVEModule], at: str, args: Any, kwargs: dict[str, Any]
) -> dict[str, LayerPosterior]:
    """Run the guide once on a batch; the posteriors of the layers that ran, in their order."""
    with PosteriorMean() if at == "mean" else nullcontext():
        guide(*args, **kwargs)
    nodes = guide.trace.nodes
    guide.trace = Trace()  # lets go of the latents
    for name, node in nodes.items():
        if (node.get("infer") or {}).get("layer", layers.get(name)) is not layers.get(name):
            raise ValueError(
                f"guide must be one of this very model, got one that runs another layer {name!r}"
            )
    return {
        name: LayerPosterior(layers[name], _base(node["fn"]), _base(node["infer"]["prior"]))
        for name, node in nodes.items()
        if name in layers
    }


def layer_statistics(posterior: LayerPosterior, rows: int, band: Band) -> dict[str, Tensor]:
    """The statistics of one layer on a batch, of shape (rows, positions, units[, latent]).

    A layer without positions has one. Without known bounds of log sigma, ``saturation`` is left
    out.
    """
    layer, q, p = posterior
    if q.batch_shape[0] != rows:
        raise ValueError(
            f"the first dim of site {layer.site!r} must be the {rows} rows of the batch, got shape "
            f"{tuple(q.batch_shape)}"
        )
    mean, sigma = q.mean, q.stddev
    # NaN stands for absence in tables of layers of several sizes: it must not come from here.
    if not torch.isfinite(mean + sigma).all():
        raise ValueError(f"the posterior of site {layer.site!r} is not finite")
    energy = mean.square().mean(-1)
    values = {
        "kl": _kl(q, p).sum(-1),
        "mean": mean,
        "sigma": sigma,
        "variance": sigma.square(),
        "energy": energy,
        "band_occupancy": _inside(mean, band).to(mean.dtype).mean(-1),
        "energy_band_occupancy": _inside(energy, band).to(mean.dtype),
    }
    bounds = log_sigma_bounds(layer)
    if bounds is not None:
        lower, upper = torch.tensor(bounds).exp().tolist()
        slack = 1.0 + _AT_BOUND
        clamped = (sigma <= lower * slack) | (sigma >= upper / slack)
        values["saturation"] = clamped.to(mean.dtype).mean(-1)
    # NumPy has no bfloat16.
    dtype = torch.promote_types(mean.dtype, torch.float32)
    return {
        name: value.reshape(rows, -1, *value.shape[-2 if FIELDS[name].per_latent else -1 :]).to(
            dtype
        )
        for name, value in values.items()
    }


def log_sigma_bounds(layer: EVEModule) -> Band | None:
    """The clamp bounds of the layer's encoder, if it says them."""
    return getattr(layer.encoder, "log_sigma_bounds", None)


def _base(fn: Distribution) -> Distribution:
    """The distribution whose units and latent dims are batch dims, not an event."""
    while isinstance(fn, Independent):
        fn = fn.base_dist
    return fn


def _inside(value: Tensor, band: Band) -> Tensor:
    return (value >= band[0]) & (value <= band[1])


def _kl(q: Distribution, p: Distribution) -> Tensor:
    try:
        return kl_divergence(q, p)
    except NotImplementedError:
        z = q.sample()  # unbiased from one draw; averages over inputs take its noise away
        return q.log_prob(z) - p.log_prob(z)
