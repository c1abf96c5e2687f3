"""The feed-forward block of a Transformer, of distributional or of deterministic units."""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from pyro.distributions import Distribution
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.nn import functional as F

from eve_pyro._checks import check_choice, check_int, check_real
from eve_pyro.nn._reset import reset_children
from eve_pyro.nn.dropout import MCDropout
from eve_pyro.nn.emission import Emission, EmissionLike, GatedEmission
from eve_pyro.nn.module import EVEModule, is_eve_site

GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "gate": torch.sigmoid,
    "glu": F.gelu,
    "swiglu": F.silu,
}
FORMS = ("gelu", *GATES)
EVE_FORMS = (*FORMS, "residual")


def make_dropout(p: float, mc_dropout: bool = False) -> nn.Module:
    """Ordinary dropout, or dropout whose masks are sites of the model.

    Example:
        >>> make_dropout(0.1), make_dropout(0.1, True)
        (Dropout(p=0.1, inplace=False), MCDropout(p=0.1))
    """
    check_real("dropout", p, 0.0, 1.0)
    return MCDropout(p) if mc_dropout else nn.Dropout(p)


class GLUEmission(GatedEmission):
    """Latent times an activation of the input, a = (w . z) * act(U h + d).

    Linear in z, as :class:`~eve_pyro.nn.GatedEmission`, whose gate is a sigmoid. Shazeer 2020,
    "GLU Variants Improve Transformer", where z is a linear map of the input.

    Arguments:
        activation: ``"gelu"`` (default) or ``"silu"``.
        Others: see :class:`~eve_pyro.nn.Emission`.

    Raises:
        ValueError: for an unknown activation.

    Example:
        >>> GLUEmission(3, 4, 2)(torch.zeros(5, 4, 2), torch.ones(5, 3)).shape
        torch.Size([5, 4])
    """

    def __init__(self, *args: Any, activation: str = "gelu", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.activation = check_choice("activation", activation, ("gelu", "silu"))

    def forward(self, z: Tensor, h: Tensor) -> Tensor:
        gate = self.gate(h)
        return self.pool(z) * (F.gelu(gate) if self.activation == "gelu" else F.silu(gate))

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}, {super().extra_repr()}"


class FeedForward(nn.Module):
    """Feed-forward block of deterministic units: the control of :class:`EVEFeedForward`.

    With u = W h + b, and for all forms but the first g = U h + d,

    ============  =======================================
    ``"gelu"``    out(gelu(u))
    ``"gate"``    out(u * sigmoid(g))
    ``"glu"``     out(u * gelu(g))
    ``"swiglu"``  out(u * silu(g))
    ============  =======================================

    followed by dropout. Hendrycks and Gimpel 2016, "Gaussian Error Linear Units (GELUs)";
    Shazeer 2020, "GLU Variants Improve Transformer".

    Arguments:
        d_model: size of the input's and output's last dim.
        d_ff: number of units.
        form: one of the above. Default ``"gelu"``.
        dropout: probability that an element of the output is dropped. Default 0.
        mc_dropout: whether its masks are sites of the model (:class:`~eve_pyro.nn.MCDropout`),
            active in prediction too, or ordinary dropout (default), off in ``eval()``.
        device, dtype: of the parameters.

    Shapes:
        (*, d_model) -> (*, d_model).

    Raises:
        ValueError: for sizes below 1, an unknown form, or a dropout that is no probability.

    Example:
        >>> FeedForward(8, 32, form="glu")(torch.randn(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        form: str = "gelu",
        dropout: float = 0.0,
        mc_dropout: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = check_int("d_model", d_model)
        self.d_ff = check_int("d_ff", d_ff)
        self.form = check_choice("form", form, FORMS)
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.up = nn.Linear(d_model, d_ff, **options)
        self.gate = nn.Linear(d_model, d_ff, **options) if form in GATES else None
        self.out = nn.Linear(d_ff, d_model, **options)
        self.dropout = make_dropout(dropout, mc_dropout)

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        reset_children(self)

    def forward(self, h: Tensor) -> Tensor:
        u = self.up(h)
        a = F.gelu(u) if self.gate is None else u * GATES[self.form](self.gate(h))
        return self.dropout(self.out(a))

    def extra_repr(self) -> str:
        return f"{self.d_model}, {self.d_ff}, form={self.form!r}"


class EVEFeedForward(nn.Module):
    """Feed-forward block of distributional units, in place of a Transformer's own.

    Every token has a latent z of its own in each of the ``d_ff`` units: the block is one
    :class:`~eve_pyro.nn.EVEModule` and an output projection. With s = w . z the pooled latent
    and m the same of its posterior mean,

    ==============  ==============================================  ============
    ``"gelu"``      out(gelu(s))
    ``"gate"``      out(s * sigmoid(U h + d))                       linear in z
    ``"glu"``       out(s * gelu(U h + d))                          linear in z
    ``"swiglu"``    out(s * silu(U h + d))                          linear in z
    ``"residual"``  out(gelu(m) + gelu'(m) * (s - m))               linear in z
    ==============  ==============================================  ============

    followed by dropout. Where the block is linear in z, its output at the posterior mean is its
    mean output, so that one pass under :class:`~eve_pyro.infer.PosteriorMean` stands for the
    average over draws, exactly in one block and nearly in a stack of them. ``"gelu"`` has no
    such mode: its activation at the mean is not the mean activation. ``"residual"`` is the
    deterministic gelu block plus, to first order, the noise that gelu would let through; its
    encoder runs in the model reading too.

    The KL counts per token: it is summed over units and latent dims, in nats, and weighed by
    ``beta`` against the token's log likelihood.

    **Noise along a text.** By default all tokens have noise of their own. With ``shared_noise``
    a unit draws once for all positions of a window: a draw is then one reading of the whole
    text, as a variational dropout mask is that is kept over time (Gal and Ghahramani 2016, "A
    Theoretically Grounded Application of Dropout in Recurrent Neural Networks"). Every token's
    posterior and KL are what they were: each z has the law N(mu, sigma^2). The latents of a
    window are dependent, though, and as a whole have no density. So the objective prices the
    sum of the tokens' own KLs. That is a choice, not a bound on the evidence: the KL of the
    dependent latents from independent priors is never below that sum, and infinite here.
    Objectives that take the expected log likelihood and a KL keep their meaning, analytic
    (``TraceMeanField_ELBO``, MC-NLL) or by draws (``Trace_ELBO``: its mean is the same).
    Those that weigh draws by p(z)/q(z), such as ``RenyiELBO`` and importance sampling, do not:
    there is no q(z) of a window to weigh by.

    Arguments:
        d_model: size of the input's and output's last dim.
        d_ff: number of units.
        form: one of the above. Default ``"gate"``.
        latent_dim: latent dims per unit. Default 1.
        dropout, mc_dropout: see :class:`FeedForward`.
        beta: see :class:`~eve_pyro.nn.EVEModule`. Default 1e-3.
        sigma_init: sigma at initialisation; default 0.3, far from the bounds of its clamp.
        shared_noise: whether all positions (dim -2) share a draw's noise, unit by unit. Has
            no parameters. Default False.
        device, dtype: of the parameters.
        options: other arguments of :class:`~eve_pyro.nn.EVEModule`, such as ``sigma_rank``,
            ``penalties`` or ``name``; not the emission, which is the form's.

    Shapes:
        (*, d_model) -> (*, d_model), with a leading dim of particles under their plate. The
        site ``units`` has shape (*, d_ff, latent_dim); dims that plates cover are batch dims.

    Raises:
        ValueError: for sizes below 1, an unknown form, a dropout that is no probability, and as
            :class:`~eve_pyro.nn.EVEModule` does.
        TypeError: for an ``emission``, and as :class:`~eve_pyro.nn.EVEModule` does.

    Example:
        >>> block = EVEFeedForward(8, 32, form="glu")
        >>> block(torch.randn(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        form: str = "gate",
        latent_dim: int = 1,
        dropout: float = 0.0,
        mc_dropout: bool = False,
        beta: float = 1e-3,
        sigma_init: float = 0.3,
        shared_noise: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.d_model = check_int("d_model", d_model)
        self.d_ff = check_int("d_ff", d_ff)
        self.form = check_choice("form", form, EVE_FORMS)
        if "emission" in options:
            raise TypeError(
                f"emission follows from form={form!r}, got emission={options['emission']!r}"
            )
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        emission: EmissionLike = {"gelu": "gelu", "residual": "identity"}.get(form, "gated")
        if form in ("glu", "swiglu"):
            activation = "gelu" if form == "glu" else "silu"
            emission = GLUEmission(d_model, d_ff, latent_dim, activation=activation, **place)
        self.units = EVEModule(
            d_model,
            d_ff,
            latent_dim,
            emission=emission,
            beta=beta,
            sigma_init=sigma_init,
            shared_noise_dim=-2 if shared_noise else None,
            **place,
            **options,
        )
        self.out = nn.Linear(d_ff, d_model, **place)
        self.dropout = make_dropout(dropout, mc_dropout)

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        reset_children(self)

    def forward(self, h: Tensor) -> Tensor:
        a = self._with_mean_path(h) if self.form == "residual" else self.units(h)
        return self.dropout(self.out(a))

    def _with_mean_path(self, h: Tensor) -> Tensor:
        with _Encoded() as encoded:
            s = self.units(h)
        posterior = encoded.posterior or self.units.posterior(h)
        m = cast(Emission, self.units.emission).pool(posterior.mean)
        return F.gelu(m) + _gelu_slope(m) * (s - m)

    def extra_repr(self) -> str:
        return f"{self.d_model}, {self.d_ff}, form={self.form!r}"


class _Encoded(Messenger):
    """Keeps the posterior of the layer that runs below it, if a handler further out asks for it."""

    posterior: Distribution | None = None

    def _pyro_sample(self, msg: Any) -> None:
        if is_eve_site(msg):
            encode = msg["infer"]["posterior"]

            def kept() -> Distribution:
                self.posterior = encode()
                return self.posterior

            msg["infer"]["posterior"] = kept


def _gelu_slope(m: Tensor) -> Tensor:
    """The derivative of gelu, Phi(m) + m phi(m)."""
    density = torch.exp(-0.5 * m.square()) / math.sqrt(2 * math.pi)
    return torch.special.ndtr(m) + m * density
