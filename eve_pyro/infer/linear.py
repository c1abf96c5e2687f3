"""The closed form for a Gaussian readout that is linear in the last layer's latents."""

import weakref
from typing import Any

import torch
from pyro import poutine
from pyro.distributions import Normal
from pyro.poutine.messenger import Messenger
from pyro.poutine.trace_struct import Trace
from torch import Tensor, nn

from eve_pyro.infer._sites import as_normal, check_guides_model, observed_sites
from eve_pyro.infer.averaged import MCNLL_ELBO
from eve_pyro.nn.module import eve_modules


class LinearGaussianELBO(MCNLL_ELBO):
    """MC-NLL with the last layer's latents integrated out exactly, plus beta * KL.

    Where the observed site is N(y; w . z + b, s^2) with z ~ N(mu, diag sigma^2) the latents of
    one EVE layer, the average over z is Gaussian as well (Bishop 2006, "Pattern Recognition and
    Machine Learning", section 2.3.3):

    .. math:: p(y|x) = N(y; w \\cdot \\mu + b, \\; \\sum_j w_j^2 \\sigma_j^2 + s^2)

    w is read off as the derivative of the site's mean. Layers before the last are sampled, and
    the logarithm of the average over their S particles is taken as in :class:`MCNLL_ELBO`; with
    one layer a single particle is exact.

    Arguments:
        num_particles: S, draws of the layers before the last. Default 1.
        site: name of the EVE site to integrate out; by default that of the model's last EVE
            layer in order of registration.
        Others: see :class:`~eve_pyro.infer.PathwiseELBO`.

    Raises:
        ValueError: when called on a model that does not have the form above: another EVE layer
            or a nonlinear emission between the latents and the mean, a scale that depends on
            them, more than one observed site, or one that is not a scalar Normal. Linearity is
            tried on the first call for each model.

    Example:
        >>> from eve_pyro import EVEGuide, EVEModule
        >>> net = EVEModule(3, 1, emission="identity", beta=0.0, name="z")
        >>> def model(x, y=None):
        ...     with pyro.plate("data", len(x)):
        ...         return pyro.sample("y", dist.Normal(net(x).squeeze(-1), 0.1), obs=y)
        >>> x, y = torch.randn(5, 3), torch.zeros(5)
        >>> loss = LinearGaussianELBO(site="z").loss(model, EVEGuide(model), x, y)
        >>> q = net.posterior(x)
        >>> exact = dist.Normal(q.mean, (q.variance + 0.01).sqrt()).log_prob(y[:, None, None])
        >>> torch.allclose(torch.tensor(loss), -exact.sum())
        True
    """

    def __init__(self, num_particles: int = 1, *, site: str | None = None, **kwargs: Any) -> None:
        super().__init__(num_particles, **kwargs)
        self.site = site
        self._integrated = ""
        self._verified: weakref.ref | None = None

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        check_guides_model(model, guide)
        site = self._integrated = self.site or _last_site(model)
        if self._verified is None or self._verified() is not model:
            self._verify(site, guide, args, kwargs)
            self._verified = weakref.ref(model)
        # The derivative is needed also where gradients are off, as in SVI.evaluate_loss.
        record = torch.is_grad_enabled()
        with torch.enable_grad(), _AtMean(site):
            loss = super().differentiable_loss(model, guide, *args, **kwargs)
        return loss if record else loss.detach()

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> tuple[Trace, Trace]:
        traces = super()._get_trace(model, guide, args, kwargs)
        name, normal, latent, weight = self._readout(*traces)
        variance = _sum_per_datum(weight.square() * latent["fn"].variance, normal.loc)
        scale = (variance + normal.variance).sqrt()
        marginal = Normal(normal.loc, scale, validate_args=False)
        traces[0].nodes[name] = {**traces[0].nodes[name], "fn": marginal}
        return traces

    def _readout(self, model_trace: Trace, guide_trace: Trace) -> tuple[str, Normal, dict, Tensor]:
        """The observed site's name and Normal, the latents' site, and d loc / d latents."""
        site = self._integrated
        if site not in guide_trace.nodes:
            raise ValueError(f"site must be one of {list(guide_trace.nodes)}, got {site!r}")
        name, observed = _only_observed(model_trace)
        normal, latent = as_normal(name, observed["fn"]), guide_trace.nodes[site]
        return name, normal, latent, _weight(name, normal, latent["value"])

    def _verify(self, site: str, guide: Any, args: Any, kwargs: Any) -> None:
        """Compare the mean far from the latents' mean, on both sides, with its extrapolation."""
        guide_traces = poutine.unwrap(guide).get_traces
        with torch.enable_grad(), _AtMean(site):
            guide(*args, **kwargs)
            model_trace, guide_trace = guide_traces()
            name, normal, latent, weight = self._readout(model_trace, guide_trace)
        values = {k: n["value"] for k, n in guide_trace.nodes.items() if n["type"] == "sample"}
        # Beyond where the latent changes sign: a kink at zero, as of a relu, is met on the way.
        far = 3 * latent["fn"].stddev + 2 * latent["value"].detach().abs() + 1
        for step in (far, -far):
            with torch.no_grad(), _Substitute({**values, site: latent["value"] + step}):
                guide(*args, **kwargs)
                found = as_normal(name, guide_traces()[0].nodes[name]["fn"]).loc
                expected = normal.loc + _sum_per_datum(weight * step, normal.loc)
            size = 1 + expected.abs().max()
            if not torch.allclose(found / size, expected / size, atol=1e-4):
                raise ValueError(
                    f"the mean of {name!r} is not linear in the latents of {site!r}: the closed "
                    "form needs an emission linear in z and a linear readout; use MCNLL_ELBO"
                )


def _sum_per_datum(x: Tensor, batch: Tensor) -> Tensor:
    """Sum over the dims that a latent has beyond the batch: positions, units, latent dims."""
    return x.flatten(batch.dim()).sum(-1)


def _last_site(model: Any) -> str:
    layers = list(eve_modules(model)) if isinstance(model, nn.Module) else []
    if not layers:
        raise ValueError("site must name the EVE site to integrate out: the model is no module")
    return layers[-1][1].site


def _only_observed(trace: Trace) -> tuple[str, dict]:
    (name, site), *more = observed_sites(trace).items()
    if more or site["fn"].event_dim:
        raise ValueError(
            "the closed form needs one observed site with a scalar distribution, got "
            f"{[(k, tuple(s['fn'].event_shape)) for k, s in observed_sites(trace).items()]}"
        )
    return name, site


def _weight(name: str, normal: Normal, z: Tensor) -> Tensor:
    """The readout weights of every datum: d loc / d z, elements of a batch being independent."""
    (weight,) = torch.autograd.grad(normal.loc.sum(), z, create_graph=True, allow_unused=True)
    if weight is None:
        raise ValueError(f"the mean of {name!r} does not depend on the latents")
    scale = normal.scale
    if scale.requires_grad:
        (slope,) = torch.autograd.grad(scale.sum(), z, retain_graph=True, allow_unused=True)
        if slope is not None:
            raise ValueError(
                f"the scale of {name!r} depends on the latents: the closed form does not apply; "
                "use MCNLL_ELBO"
            )
    return weight


class _AtMean(Messenger):
    """Sets a site to the mean of its distribution, as a tensor that can be differentiated by."""

    def __init__(self, site: str) -> None:
        super().__init__()
        self.site = site

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] == self.site and not msg["done"]:
            mean = msg["fn"].mean
            msg["value"] = mean if mean.requires_grad else mean.detach().requires_grad_()
            msg["done"] = True


class _Substitute(Messenger):
    """Sets sites to given values."""

    def __init__(self, values: dict[str, Tensor]) -> None:
        super().__init__()
        self.values = values

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self.values and not msg["is_observed"]:
            msg["value"], msg["done"] = self.values[msg["name"]], True
