"""EVEModule: a layer of distributional neurons."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyro
import torch
from pyro.distributions import Distribution
from pyro.poutine.scale_messenger import ScaleMessenger
from torch import Tensor, nn

from eve_pyro._checks import check_int, check_real
from eve_pyro.nn._reset import reset_children
from eve_pyro.nn.emission import EmissionLike, make_emission
from eve_pyro.nn.encoder import make_encoder
from eve_pyro.nn.latent import LatentNormal
from eve_pyro.nn.penalty import Penalty
from eve_pyro.nn.prior import make_prior
from eve_pyro.nn.site import SiteModule


class _KLScale(ScaleMessenger):
    """``poutine.scale`` by a tensor whose sign was checked when it was set.

    Pyro's own check would read the tensor back to the host in every step, and rejects the 0 at
    which a warm-up starts; 0 times a finite log probability is exactly 0.
    """

    def __init__(self, scale: Tensor) -> None:
        self.scale = scale


class EVEModule(SiteModule):
    """A layer of ``out_features`` distributional neurons.

    Each neuron holds a latent z of ``latent_dim`` dims with prior p(z) = N(0, I), a posterior
    q(z|h) = N(mu(h), diag sigma(h)^2) amortized over the layer's input h, and an emission
    a = g(z, h). The layer is one ``pyro.sample`` site: the model reading draws it from the
    prior, the guide reading (:class:`~eve_pyro.infer.EVEGuide`) from the posterior, and an ELBO
    prices it at beta * KL(q || p), summed over units and latent dims, in nats.

    It drops in where a ``Linear`` and its activation stood, in any container. The site is named
    by the layer's path in the model once an ``EVEGuide`` (or :func:`~eve_pyro.nn.name_sites`) has
    seen the model; before that it has a name of its own.

    Reference: Y. Ruffenach, "The Neuron Is the Distribution".

    Arguments:
        in_features: size of the input's last dim.
        out_features: number of neurons.
        latent_dim: latent dims per neuron. Default 1.
        emission: a = g(z, h): an activation's name (default ``"relu"``), ``"gated"``,
            ``"residual"``, an :class:`~eve_pyro.nn.Emission` class, or a module or callable of
            (z, h).
        beta: weight of the layer's KL against the summed log likelihood. The default 1e-3
            trains well for tables; 1 gives the ELBO itself, 0 exactly the likelihood. It lives
            in a buffer: change it with :meth:`set_beta`. A "mean over units" convention with
            weight b is beta = b / out_features.
        encoder: module from h to the posterior, a reparameterized distribution of batch shape
            (*, out_features, latent_dim). Default: a :class:`~eve_pyro.nn.GaussianEncoder`.
        sigma, sigma_rank, sigma_init, log_sigma_bounds: of the default encoder.
        prior: a distribution, or a module or callable from h to one, whose batch shape
            broadcasts to (*, out_features, latent_dim), without event dims. Default: the
            standard normal. Give a module to learn a prior, such as
            :class:`~eve_pyro.nn.LearnedNormal`. A bare distribution stays on the device it was
            made on.
        penalties: :class:`~eve_pyro.nn.FreeBits`, :class:`~eve_pyro.nn.TargetBand` or your own.
        shared_noise_dim: dim of the input, counted from its end (-2 or less), along whose entries
            a posterior draw has the same noise, z = mu + sigma * eps with one eps for all of
            them. It changes no parameter and no KL, and may be set later, as an attribute. The
            prior's draws are independent all the same. Default None: all noise is independent.
        position_dims: number of input dims between plates and features, inferred from the
            active plates if None (default).
        name: fixed site name; the module path if None (default).
        device, dtype: of the parameters.

    Shapes:
        (*, in_features) -> (*, out_features). The site has shape (*, out_features, latent_dim);
        dims covered by plates are batch dims, all others event dims.

    Raises:
        ValueError: for sizes below 1, a negative or non-finite beta, unknown names, and in
            ``forward`` for an input whose last dim is not in_features or that has no
            shared_noise_dim, or a part whose result has another shape than the layer needs.
        TypeError: for parts that are not what they should be, such as an encoder whose
            posteriors cannot share noise.

    Example:
        >>> layer = EVEModule(8, 64, latent_dim=2)
        >>> layer(torch.randn(10, 8)).shape
        torch.Size([10, 64])
        >>> layer.posterior(torch.randn(10, 8)).stddev.shape
        torch.Size([10, 64, 2])
    """

    beta: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        latent_dim: int = 1,
        *,
        emission: EmissionLike = "relu",
        beta: float = 1e-3,
        encoder: nn.Module | None = None,
        sigma: str = "input",
        sigma_rank: int | None = None,
        sigma_init: float = 0.3,
        log_sigma_bounds: tuple[float, float] = (-7.0, 2.0),
        prior: Distribution | Callable[[Tensor], Distribution] | None = None,
        penalties: Iterable[Penalty] = (),
        shared_noise_dim: int | None = None,
        position_dims: int | None = None,
        name: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(position_dims=position_dims, name=name)
        self.in_features = check_int("in_features", in_features)
        self.out_features = check_int("out_features", out_features)
        self.latent_dim = check_int("latent_dim", latent_dim)
        sizes = (in_features, out_features, latent_dim)
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.encoder = make_encoder(
            encoder,
            *sizes,
            sigma=sigma,
            sigma_rank=sigma_rank,
            sigma_init=sigma_init,
            log_sigma_bounds=log_sigma_bounds,
            **options,
        )
        self.emission = make_emission(emission, *sizes, **options)
        self.prior = make_prior(prior)
        self.penalties = nn.ModuleList()
        for penalty in (penalties,) if isinstance(penalties, nn.Module) else penalties:
            if not isinstance(penalty, nn.Module):
                raise TypeError(f"penalties must be modules such as FreeBits, got {penalty!r}")
            self.penalties.append(penalty)
        if shared_noise_dim is not None and (
            not isinstance(shared_noise_dim, int) or shared_noise_dim > -2
        ):
            raise ValueError(
                f"shared_noise_dim must be None or an integer <= -2, got {shared_noise_dim!r}"
            )
        self.shared_noise_dim = shared_noise_dim
        self.register_buffer("beta", torch.empty((), **options))
        self.set_beta(beta)

    def set_beta(self, beta: float | Tensor) -> None:
        """Set the weight of this layer's KL, in place, so that traced programs see it.

        Raises:
            ValueError: if beta is negative or not finite.
        """
        value = beta.item() if isinstance(beta, Tensor) and beta.numel() == 1 else beta
        self.beta.fill_(check_real("beta", value, 0.0))

    def reset_parameters(self) -> None:
        """Draw the parameters of the layer's parts anew, wherever they can."""
        reset_children(self)

    def posterior(self, h: Tensor) -> Distribution:
        """The local posterior q(z|h), of batch shape (*, out_features, latent_dim)."""
        self._check(h)
        return self._encode(h)

    def forward(self, h: Tensor) -> Tensor:
        self._check(h)
        prior = self._checked("prior", self.prior(h), h)
        event_dims = self.position_dims(h) + 2
        posterior: list[Distribution] = []

        def encode() -> Distribution:
            # Run by the guide alone: the model reading never pays for the encoder.
            posterior[:] = [self._encode(h)]
            return posterior[0].to_event(event_dims)

        infer = {"posterior": encode, "layer": self}
        with _KLScale(self.beta):
            z = pyro.sample(self.site, prior.to_event(event_dims), infer=infer)
        if posterior:
            for i, penalty in enumerate(self.penalties):
                cost = penalty(posterior[0], prior, self.beta)
                pyro.factor(f"{self.site}.penalty{i}", -cost.sum(tuple(range(1 - event_dims, 0))))
        a = self.emission(z, h)
        if a.shape != z.shape[:-1]:
            raise ValueError(
                f"emission of {self.site!r} must turn z of shape {tuple(z.shape)} into "
                f"{tuple(z.shape[:-1])}, got {tuple(a.shape)}"
            )
        return a

    def _encode(self, h: Tensor) -> Distribution:
        posterior = self._checked("encoder", self.encoder(h), h)
        dim = self.shared_noise_dim
        if dim is None:
            return posterior
        if h.dim() < -dim:
            raise ValueError(
                f"input of {self.site!r} must have at least {-dim} dims for "
                f"shared_noise_dim={dim}, got shape {tuple(h.shape)}"
            )
        if not isinstance(posterior, LatentNormal):
            raise TypeError(
                f"encoder of {self.site!r} must give a LatentNormal for shared_noise_dim={dim}, "
                f"got {posterior!r}"
            )
        return posterior.with_shared_noise(dim - 1)

    def _checked(self, part: str, distribution: Any, h: Tensor) -> Distribution:
        """A part's distribution with the layer's batch shape, or an error that names the part."""
        shape = (*h.shape[:-1], self.out_features, self.latent_dim)
        if not hasattr(distribution, "to_event"):
            raise TypeError(
                f"{part} of {self.site!r} must give a Pyro distribution, got {distribution!r}"
            )
        if distribution.event_shape or not _broadcasts(distribution.batch_shape, shape):
            raise ValueError(
                f"{part} of {self.site!r} must give a distribution of batch shape {shape} and no "
                f"event dims, got {tuple(distribution.batch_shape)} and "
                f"{tuple(distribution.event_shape)}"
            )
        same = distribution.batch_shape == torch.Size(shape)
        return distribution if same else distribution.expand(shape)

    def _check(self, h: Tensor) -> None:
        if h.dim() == 0 or h.shape[-1] != self.in_features:
            raise ValueError(
                f"input of {self.site!r} must have shape (*, {self.in_features}), "
                f"got {tuple(h.shape)}"
            )

    def extra_repr(self) -> str:
        dim = self.shared_noise_dim
        shared = "" if dim is None else f", shared_noise_dim={dim}"
        return f"{self.in_features}, {self.out_features}, latent_dim={self.latent_dim}{shared}"


def _broadcasts(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether a shape broadcasts to exactly the target."""
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(a in (1, b) for a, b in pairs)


def eve_modules(model: nn.Module) -> Iterator[tuple[str, EVEModule]]:
    """The EVE layers of a model with their paths, in order of registration.

    Example:
        >>> net = nn.Sequential(EVEModule(3, 4), nn.Linear(4, 1))
        >>> [path for path, _ in eve_modules(net)]
        ['0']
    """
    for path, module in model.named_modules():
        if isinstance(module, EVEModule):
            yield path, module


def set_beta(model: nn.Module, beta: float) -> None:
    """Set the KL weight of every EVE layer of a model.

    Raises:
        ValueError: if beta is negative or not finite.

    Example:
        >>> net = nn.Sequential(EVEModule(3, 4), nn.Linear(4, 1))
        >>> set_beta(net, 0.5)
        >>> net[0].beta
        tensor(0.5000)
    """
    for _, layer in eve_modules(model):
        layer.set_beta(beta)


def is_eve_site(site: dict[str, Any]) -> bool:
    """Whether a site of a trace (or a message) brings a posterior of its own.

    Such are the latents of EVE layers, and the masks of :class:`~eve_pyro.nn.MCDropout`, whose
    posterior is their prior. Use it to hide these sites from a guide for a model's other latents:
    ``AutoNormal(poutine.block(model, hide_fn=is_eve_site))``.

    Example:
        >>> from pyro import poutine
        >>> trace = poutine.trace(EVEModule(3, 4, name="layer")).get_trace(torch.randn(5, 3))
        >>> is_eve_site(trace.nodes["layer"])
        True
    """
    return site["type"] == "sample" and "posterior" in (site["infer"] or {})
