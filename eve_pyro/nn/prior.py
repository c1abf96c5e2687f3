"""The prior of a layer: a module from its input to a distribution."""

from collections.abc import Callable
from typing import Any

import torch
from pyro.distributions import Distribution
from torch import Tensor, nn

from eve_pyro._checks import check_int
from eve_pyro.nn.latent import LatentNormal


class StandardNormal(nn.Module):
    """The default prior, N(0, 1) for every latent dim.

    Example:
        >>> StandardNormal()(torch.zeros(5, 3)).batch_shape
        torch.Size([1, 1])
    """

    def forward(self, h: Tensor) -> LatentNormal:
        # Created from h: dtype and device follow the data. A product of a low-precision
        # (autocast) layer still has a prior in single precision, as its posterior has.
        dtype = torch.promote_types(h.dtype, torch.float32)
        return LatentNormal(h.new_zeros(1, 1, dtype=dtype), h.new_ones(1, 1, dtype=dtype))


class LearnedNormal(nn.Module):
    """A normal prior whose mean and scale are parameters, one pair for every latent dim.

    Trained with the network, by beta * KL alone: it settles where the layer's posteriors are on
    average, and units then pay for what they say of one input beyond what they say of all
    (empirical Bayes; Hoffman and Johnson 2016, "ELBO surgery", split the KL in these two
    parts). It starts as the standard normal, and stays so where beta is 0.

    Arguments:
        out_features, latent_dim: of the layer. Default of the second: 1.
        device, dtype: of the parameters.

    Attributes:
        loc, log_scale: parameters, (out_features, latent_dim).

    Raises:
        ValueError: for sizes below 1.

    Example:
        >>> from eve_pyro import EVEModule
        >>> layer = EVEModule(3, 4, prior=LearnedNormal(4))
        >>> layer.prior(torch.zeros(5, 3)).batch_shape
        torch.Size([4, 1])
    """

    def __init__(
        self,
        out_features: int,
        latent_dim: int = 1,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        shape = check_int("out_features", out_features), check_int("latent_dim", latent_dim)
        self.loc = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.log_scale = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Back to the standard normal."""
        nn.init.zeros_(self.loc)
        nn.init.zeros_(self.log_scale)

    def forward(self, h: Tensor) -> LatentNormal:
        return LatentNormal(self.loc, self.log_scale.exp(), log_scale=self.log_scale)

    def extra_repr(self) -> str:
        return f"{self.loc.shape[0]}, latent_dim={self.loc.shape[1]}"


class _FixedPrior(nn.Module):
    def __init__(self, prior: Distribution | Callable[[Tensor], Distribution]) -> None:
        super().__init__()
        self.distribution = prior

    def forward(self, h: Tensor) -> Distribution:
        fixed = isinstance(self.distribution, torch.distributions.Distribution)
        return self.distribution if fixed else self.distribution(h)


def make_prior(prior: Any) -> nn.Module:
    """The prior that a user passed as a module from h to a distribution; None is the default's.

    Raises:
        TypeError: if what was passed is neither a distribution nor callable.

    Example:
        >>> make_prior(None)
        StandardNormal()
    """
    if prior is None:
        return StandardNormal()
    if isinstance(prior, nn.Module):
        return prior
    if not callable(prior):  # Pyro's distributions can be called
        raise TypeError(f"prior must be a Pyro distribution, a module or a callable, got {prior!r}")
    return _FixedPrior(prior)
