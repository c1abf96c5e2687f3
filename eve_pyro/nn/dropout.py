"""MC-dropout: dropout whose masks are random variables of the Pyro model."""

from typing import Any, ClassVar

import pyro
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn
from torch.distributions import constraints

from eve_pyro._checks import check_real
from eve_pyro.nn.controls import Dense
from eve_pyro.nn.site import SiteModule


class DropoutMask(TorchDistribution):
    """Mask of inverted dropout: 0 with probability 1 - keep, else 1 / keep; its mean is 1.

    The density is taken with respect to the mask's own law. It is 1 for every mask, so a mask
    adds an exact 0 to an ELBO, where the logarithms of a mass function would cancel up to
    rounding only.

    Arguments:
        keep: share of ones, a 0-dim tensor in (0, 1]; its dtype and device are the mask's.
        batch_shape: shape of the mask.

    Example:
        >>> mask = DropoutMask(torch.tensor(0.8), (1000,))
        >>> mask.sample().unique()
        tensor([0.0000, 1.2500])
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.nonnegative
    # There is no parameter to differentiate by, hence no score-function term either.
    has_rsample = True

    def __init__(
        self, keep: Tensor, batch_shape: Any = (), validate_args: bool | None = None
    ) -> None:
        self.keep = keep
        super().__init__(torch.Size(batch_shape), validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "DropoutMask":
        return DropoutMask(self.keep, batch_shape, self._validate_args)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(torch.Size(sample_shape))
        u = torch.rand(shape, dtype=self.keep.dtype, device=self.keep.device)
        return (u < self.keep) / self.keep

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return torch.zeros_like(value)

    @property
    def mean(self) -> Tensor:
        return self.keep.new_ones(self.batch_shape)

    @property
    def variance(self) -> Tensor:
        return ((1 - self.keep) / self.keep).expand(self.batch_shape)


class MCDropout(SiteModule):
    """Dropout that stays active in prediction, as a site of the Pyro model.

    .. math:: a = h \\odot m, \\qquad m_j = 0 \\text{ with probability } p, \\text{ else } 1/(1-p)

    Training minimises the likelihood term under random masks, prediction averages over them: Gal
    and Ghahramani 2016, "Dropout as a Bayesian Approximation". The mask is one
    ``pyro.sample`` site, so it follows Pyro's seeds, and every datum, position and particle has
    a mask of its own. Its posterior is its prior: the KL is exactly 0, and an
    :class:`~eve_pyro.infer.EVEGuide` hides it from guides for other latents. The weight prior of
    the paper is weight decay here, in the optimizer.

    ``train()`` and ``eval()`` make no difference. To switch the noise off, run the model under
    :class:`~eve_pyro.infer.PosteriorMean`, which sets masks to their mean 1, or build with
    ``p=0``, which has no site.

    Arguments:
        p: probability that an element is dropped, in [0, 1). Default 0.1.
        position_dims, name: see :class:`~eve_pyro.nn.SiteModule`.

    Shapes:
        (*, features) -> (*, features), with a leading dim of particles under their plate.

    Raises:
        ValueError: for p outside [0, 1).

    Example:
        >>> MCDropout(0.5)(torch.ones(2, 6))
        tensor([[2., 0., 2., 2., 2., 0.],
                [2., 0., 2., 0., 2., 2.]])
    """

    def __init__(
        self, p: float = 0.1, *, position_dims: int | None = None, name: str | None = None
    ) -> None:
        super().__init__(position_dims=position_dims, name=name)
        self.p = check_real("p", p, 0.0, 1.0)
        if self.p == 1.0:
            raise ValueError(f"p must be in [0, 1), got {p!r}")

    def forward(self, h: Tensor) -> Tensor:
        if self.p == 0.0:
            return h
        # In low precision (autocast) a uniform draw is too coarse to hit the rate.
        keep = h.new_full((), 1 - self.p, dtype=torch.promote_types(h.dtype, torch.float32))
        prior = DropoutMask(keep, h.shape).to_event(self.position_dims(h) + 1)
        mask = pyro.sample(self.site, prior, infer={"posterior": lambda: prior})
        return h * mask.to(h.dtype)

    def extra_repr(self) -> str:
        return f"p={self.p:g}"


class DropoutUnit(nn.Module):
    """A layer of deterministic units with MC-dropout on their activations.

    .. math:: a = act(W h + b) \\odot m

    Arguments:
        in_features, out_features, activation, device, dtype: see :class:`~eve_pyro.nn.Dense`.
        p, position_dims, name: see :class:`MCDropout`.

    Shapes:
        (*, in_features) -> (*, out_features), with a leading dim of particles under their plate.

    Raises:
        ValueError: for sizes below 1, an unknown activation, or p outside [0, 1).

    Example:
        >>> DropoutUnit(8, 64, p=0.2)(torch.randn(10, 8)).shape
        torch.Size([10, 64])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        p: float = 0.1,
        activation: str = "relu",
        position_dims: int | None = None,
        name: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dense = Dense(
            in_features, out_features, activation=activation, device=device, dtype=dtype
        )
        self.dropout = MCDropout(p, position_dims=position_dims, name=name)

    def reset_parameters(self) -> None:
        """Draw weights and biases anew."""
        self.dense.reset_parameters()

    def forward(self, h: Tensor) -> Tensor:
        return self.dropout(self.dense(h))
