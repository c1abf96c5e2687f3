"""The amortized encoder of a layer: from its input to the local posterior of every unit."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from eve_pyro._checks import check_choice, check_int, check_real
from eve_pyro.nn.latent import LatentNormal

SIGMA_MODES = ("input", "unit", "layer")


def clamp_straight_through(x: Tensor, lower: float, upper: float) -> Tensor:
    """Clamp in value, identity in gradient, so that a bound can always be left again.

    A plain clamp has no gradient outside its range: a log sigma that strays there is stuck for
    good. The straight-through estimator (Bengio, Leonard and Courville 2013, "Estimating or
    Propagating Gradients Through Stochastic Neurons") passes it on.

    Example:
        >>> x = torch.tensor([-9.0, 0.5, 4.0], requires_grad=True)
        >>> y = clamp_straight_through(x, -7.0, 2.0)
        >>> y.sum().backward()
        >>> y.tolist(), x.grad.tolist()
        ([-7.0, 0.5, 2.0], [1.0, 1.0, 1.0])
    """
    y = x.clone()
    with torch.no_grad():  # out of autograd's sight
        y.clamp_(lower, upper)
    return y


class GaussianEncoder(nn.Module):
    """Linear encoder of the local posterior q(z|h) = N(mu(h), diag sigma(h)^2).

    .. math:: mu(h) = W h + b, \\qquad \\log \\sigma(h) = clamp(V h + c, l, u)

    ``sigma`` says what sigma depends on: ``"input"`` (per unit and input, as above), ``"unit"``
    (one learned value per unit and latent dim) or ``"layer"`` (one for the layer).

    V has as many entries as W and costs as much. Log sigma seldom needs them all:
    ``sigma_rank`` = r bounds its rank, V = B A with A of shape (r, in_features) and B of shape
    (units * latent_dim, r), which are r * (in_features + units * latent_dim) entries. No matrix
    has a higher rank than its shorter side: where r reaches that, V is stored as it is, which
    are the same functions with fewer parameters. One r thus fits all layers of a network.

    Arguments:
        in_features: size of the input's last dim.
        out_features: number of units.
        latent_dim: latent dims per unit.
        sigma: ``"input"`` (default), ``"unit"`` or ``"layer"``.
        sigma_rank: highest rank of V; unbounded if None (default). Only with sigma ``"input"``.
        sigma_init: sigma at initialisation, inside the range that log_sigma_bounds allows.
        log_sigma_bounds: range (l, u) of log sigma, in nats. Values are clamped; gradients pass
            (:func:`clamp_straight_through`).
        device, dtype: of the parameters.

    Shapes:
        (*, in_features) -> distribution of batch shape (*, out_features, latent_dim), views of
        (*, latent_dim, out_features) memory.

    Raises:
        ValueError: for sizes or a rank below 1, an unknown sigma mode, a rank with another mode
            than ``"input"``, bounds that are not increasing, or a sigma_init outside them.

    Example:
        >>> q = GaussianEncoder(8, 64, latent_dim=2)(torch.randn(10, 8))
        >>> q.batch_shape
        torch.Size([10, 64, 2])
        >>> count = lambda encoder: sum(p.numel() for p in encoder.log_scale.parameters())
        >>> count(GaussianEncoder(128, 128)), count(GaussianEncoder(128, 128, sigma_rank=8))
        (16512, 2176)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        latent_dim: int = 1,
        *,
        sigma: str = "input",
        sigma_rank: int | None = None,
        sigma_init: float = 0.3,
        log_sigma_bounds: tuple[float, float] = (-7.0, 2.0),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = check_int("in_features", in_features)
        self.out_features = check_int("out_features", out_features)
        self.latent_dim = check_int("latent_dim", latent_dim)
        self.sigma = check_choice("sigma", sigma, SIGMA_MODES)
        if sigma_rank is not None:
            check_int("sigma_rank", sigma_rank)
            if sigma != "input":
                raise ValueError(f'sigma_rank needs sigma="input", got sigma={sigma!r}')
        self.sigma_rank = sigma_rank
        if len(log_sigma_bounds) != 2:
            raise ValueError(f"log_sigma_bounds must be two numbers, got {log_sigma_bounds!r}")
        lower, upper = (check_real("log_sigma_bounds", b) for b in log_sigma_bounds)
        if lower >= upper:
            raise ValueError(f"log_sigma_bounds must increase, got {log_sigma_bounds!r}")
        self.log_sigma_bounds = (lower, upper)
        self.sigma_init = check_real(
            "sigma_init", sigma_init, math.exp(lower), math.exp(upper), exclusive=True
        )
        rows = latent_dim * out_features
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.loc = nn.Linear(in_features, rows, **options)
        self.log_scale: nn.Module | nn.Parameter
        if sigma_rank is not None and sigma_rank < min(in_features, rows):
            self.log_scale = nn.Sequential(
                nn.Linear(in_features, sigma_rank, bias=False, **options),
                nn.Linear(sigma_rank, rows, **options),
            )
        elif sigma == "input":
            self.log_scale = nn.Linear(in_features, rows, **options)
        else:
            size = rows if sigma == "unit" else 1
            self.log_scale = nn.Parameter(torch.empty(size, **options))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew: mu as ``nn.Linear`` does, sigma close to ``sigma_init``."""
        self.loc.reset_parameters()
        with torch.no_grad():
            if not isinstance(self.log_scale, nn.Module):
                self.log_scale.fill_(math.log(self.sigma_init))
                return
            factors = [m for m in self.log_scale.modules() if isinstance(m, nn.Linear)]
            for factor in factors:
                factor.reset_parameters()
            # Small weights: sigma starts nearly constant and far from its bounds. Not zero, or
            # no gradient would reach the factor before.
            factors[-1].weight.mul_(0.1)
            factors[-1].bias.fill_(math.log(self.sigma_init))

    def forward(self, h: Tensor) -> LatentNormal:
        loc = self.loc(h)
        raw = self.log_scale
        log_scale = raw(h) if isinstance(raw, nn.Module) else raw
        # Under autocast the products come in low precision, in which a KL is too coarse.
        loc, log_scale = loc.to(self.loc.weight.dtype), log_scale.to(self.loc.weight.dtype)
        log_scale = clamp_straight_through(log_scale, *self.log_sigma_bounds)
        if self.sigma != "layer":
            log_scale = self._per_unit(log_scale)
        return LatentNormal(self._per_unit(loc), log_scale.exp(), log_scale=log_scale)

    def _per_unit(self, flat: Tensor) -> Tensor:
        return flat.unflatten(-1, (self.latent_dim, self.out_features)).mT

    def extra_repr(self) -> str:
        rank = "" if self.sigma_rank is None else f"sigma_rank={self.sigma_rank}, "
        return (
            f"sigma={self.sigma!r}, {rank}sigma_init={self.sigma_init:g}, "
            f"log_sigma_bounds={self.log_sigma_bounds}"
        )


def make_encoder(encoder: nn.Module | None, *sizes: int, **options: Any) -> nn.Module:
    """The encoder that a user passed, or a :class:`GaussianEncoder` of these sizes and options.

    Raises:
        TypeError: if what was passed is not a module.

    Example:
        >>> make_encoder(None, 3, 4, 1, sigma="unit").sigma
        'unit'
    """
    if encoder is None:
        return GaussianEncoder(*sizes, **options)
    if not isinstance(encoder, nn.Module):
        raise TypeError(f"encoder must be a module from h to a distribution, got {encoder!r}")
    return encoder
