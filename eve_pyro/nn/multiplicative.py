"""Multiplicative noise after the nonlinearity: Gaussian and log-normal dropout as EVE layers."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eve_pyro._checks import check_choice, check_int, check_real
from eve_pyro.nn.emission import ACTIVATIONS, Emission
from eve_pyro.nn.latent import LatentNormal
from eve_pyro.nn.module import EVEModule

LAWS = ("log-normal", "gaussian")


class NoiseEncoder(nn.Module):
    """A posterior that is the same for all inputs: noise of a given or a learned size.

    .. math:: q(z|h) = N(m, \\alpha_j^2), \\qquad m = -\\alpha_j^2 / 2 \\text{ or } 0

    The mean makes the factor exp(z) of log-normal noise 1 on average; Gaussian noise has mean 0.
    alpha is fixed, or learned per unit above a floor: training data would rather silence noise
    that they can silence, and the floor keeps it as a regulariser.

    Arguments:
        out_features: number of units.
        latent_dim: latent dims per unit. Default 1.
        alpha: size of the noise, above 0; with ``learn`` the initial one. Default 0.5.
        learn: whether alpha is a parameter per unit. Default False.
        floor: lower bound of a learned alpha, in [0, alpha). Default 0.
        law: ``"log-normal"`` (default) or ``"gaussian"``.
        device, dtype: of the parameters.

    Shapes:
        (*, in_features) -> distribution of batch shape (out_features, latent_dim).

    Raises:
        ValueError: for sizes below 1, numbers out of range, or an unknown law.

    Example:
        >>> q = NoiseEncoder(64, alpha=0.2)(torch.randn(10, 8))
        >>> q.batch_shape, round(q.rsample((10_000,)).exp().mean().item(), 2)
        (torch.Size([64, 1]), 1.0)
    """

    def __init__(
        self,
        out_features: int,
        latent_dim: int = 1,
        *,
        alpha: float = 0.5,
        learn: bool = False,
        floor: float = 0.0,
        law: str = "log-normal",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.out_features = check_int("out_features", out_features)
        self.latent_dim = check_int("latent_dim", latent_dim)
        self.alpha = check_real("alpha", alpha, 0.0, exclusive=True)
        self.floor = check_real("floor", floor, 0.0)
        if self.floor >= self.alpha:
            raise ValueError(f"floor must be below alpha={alpha!r}, got {floor!r}")
        self.learn = learn
        self.law = check_choice("law", law, LAWS)
        # In memory (latent, units), like the latents. What is learned is the excess over the
        # floor, before a softplus.
        size = (latent_dim, out_features)
        self.raw: Tensor
        raw = torch.empty(size, device=device, dtype=dtype)
        if learn:
            self.raw = nn.Parameter(raw)
        else:
            self.register_buffer("raw", raw)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set alpha back to its initial value."""
        with torch.no_grad():
            self.raw.fill_(math.log(math.expm1(self.alpha - self.floor)))

    def forward(self, h: Tensor) -> LatentNormal:
        scale = (self.floor + F.softplus(self.raw)).mT
        loc = -0.5 * scale.square() if self.law == "log-normal" else torch.zeros_like(scale)
        return LatentNormal(loc, scale)

    def extra_repr(self) -> str:
        return (
            f"{self.out_features}, alpha={self.alpha:g}, learn={self.learn}, "
            f"floor={self.floor:g}, law={self.law!r}"
        )


class MultiplicativeEmission(Emission):
    """A deterministic activation times the latent's noise.

    .. math:: a = act(U h + d) \\cdot e^{w \\cdot z} \\quad\\text{or}\\quad
              a = act(U h + d) \\cdot (1 + w \\cdot z)

    Noise ahead of the nonlinearity is escaped by scaling its input up; a factor behind it is not.

    Arguments:
        activation: ``"relu"`` (default), ``"gelu"``, ``"silu"``, ``"tanh"`` or ``"identity"``.
        law: ``"log-normal"`` (default) for the exponential, ``"gaussian"`` for the other.
        Others: see :class:`~eve_pyro.nn.Emission`.

    Example:
        >>> emission = MultiplicativeEmission(3, 4, activation="tanh")
        >>> h = torch.randn(5, 3)
        >>> silent = emission(torch.zeros(5, 4, 1), h)
        >>> torch.allclose(silent, torch.tanh(emission.dense(h)))
        True
    """

    def __init__(
        self, *args: Any, activation: str = "relu", law: str = "log-normal", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.activation = check_choice("activation", activation, ACTIVATIONS)
        self.law = check_choice("law", law, LAWS)
        options: dict[str, Any] = {k: kwargs.get(k) for k in ("device", "dtype")}
        self.dense = nn.Linear(self.in_features, self.out_features, **options)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.dense.reset_parameters()

    def forward(self, z: Tensor, h: Tensor) -> Tensor:
        noise = self.pool(z)
        factor = noise.exp() if self.law == "log-normal" else 1 + noise
        return ACTIVATIONS[self.activation](self.dense(h)) * factor

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}, law={self.law!r}, {super().extra_repr()}"


def multiplicative_unit(
    in_features: int,
    out_features: int,
    *,
    alpha: float = 0.5,
    learn: bool = False,
    floor: float = 0.0,
    law: str = "log-normal",
    activation: str = "relu",
    beta: float | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> EVEModule:
    """An EVE layer whose noise multiplies deterministic activations.

    By their right names: with ``law="gaussian"`` this is Gaussian dropout (Srivastava et al. 2014,
    "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", section 10), and
    variational dropout where alpha is learned (Kingma, Salimans and Welling 2015, "Variational
    Dropout and the Local Reparameterization Trick"); with ``law="log-normal"`` the noise of
    information dropout (Achille and Soatto 2018, "Information Dropout"), there with a size that
    depends on the input. It has the parameters of a deterministic layer, and regularises as
    dropout does.

    Fixed noise has nothing to learn: by default its KL is not priced (beta 0). Learned noise is
    priced against N(0, 1), which keeps it from silence.

    Arguments:
        in_features, out_features: sizes.
        alpha, learn, floor, law: of the noise, see :class:`NoiseEncoder`.
        activation: see :class:`MultiplicativeEmission`.
        beta: weight of the KL. Default: 0 for fixed noise, 1e-3 for learned.
        device, dtype: of the parameters.
        options: others of :class:`~eve_pyro.nn.EVEModule`.

    Raises:
        ValueError: see the parts.

    Example:
        >>> layer = multiplicative_unit(8, 64, alpha=0.3)
        >>> layer(torch.randn(10, 8)).shape
        torch.Size([10, 64])
        >>> sum(p.numel() for p in layer.parameters()) == 8 * 64 + 64
        True
    """
    made: dict[str, Any] = {"device": device, "dtype": dtype}
    encoder = NoiseEncoder(
        out_features,
        options.get("latent_dim", 1),
        alpha=alpha,
        learn=learn,
        floor=floor,
        law=law,
        **made,
    )
    emission = MultiplicativeEmission(
        in_features,
        out_features,
        options.get("latent_dim", 1),
        activation=activation,
        law=law,
        **made,
    )
    if beta is None:
        beta = 1e-3 if learn else 0.0
    return EVEModule(
        in_features, out_features, encoder=encoder, emission=emission, beta=beta, **made, **options
    )
