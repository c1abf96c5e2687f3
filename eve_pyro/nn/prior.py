"""The prior of a layer: a module from its input to a distribution."""

from collections.abc import Callable
from typing import Any

import torch
from pyro.distributions import Distribution
from torch import Tensor, nn

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
