"""Heads: from the features of a network to the distribution of its target."""

import math
from typing import Any

import torch
from pyro.distributions import Categorical, MixtureSameFamily, Normal
from torch import Tensor, nn

from eve_pyro._checks import check_int, check_real
from eve_pyro.nn.encoder import clamp_straight_through

# The output scale may span exp(-7) to exp(7), in units of the target.
LOG_SCALE_BOUNDS = (-7.0, 7.0)


def _check_scale_init(scale_init: float) -> float:
    lower, upper = map(math.exp, LOG_SCALE_BOUNDS)
    return check_real("scale_init", scale_init, lower, upper)


def _reset_log_scale(log_scale: nn.Linear, scale_init: float) -> None:
    # Small weights: the scale starts nearly constant and far from its bounds.
    log_scale.reset_parameters()
    with torch.no_grad():
        log_scale.weight.mul_(0.1)
        log_scale.bias.fill_(math.log(scale_init))


class GaussianHead(nn.Module):
    """Normal distribution of a real-valued target.

    .. math:: y \\sim N(w \\cdot h + b, \\sigma_y^2), \\qquad
              \\log \\sigma_y = c \\text{ or } clamp(v \\cdot h + c, -7, 7)

    One learned scale for all inputs, or one that depends on the input (the mean-variance network
    of Nix and Weigend 1994, "Estimating the Mean and Variance of the Target Probability
    Distribution"). Values of the latter's logarithm are clamped; gradients pass
    (:func:`~eve_pyro.nn.clamp_straight_through`).

    The one scale is the parameter ``log_scale``. It often converges last and then distorts every
    likelihood: give it a learning rate of its own, by its name in ``named_parameters()``.

    Arguments:
        in_features: size of the features' last dim.
        heteroscedastic: whether the scale depends on the input. Default False.
        scale_init: scale at initialisation, in units of the target. Default 1.
        device, dtype: of the parameters.

    Shapes:
        (*, in_features) -> distribution of batch shape (*).

    Raises:
        ValueError: for in_features below 1 or a scale_init outside [exp(-7), exp(7)].

    Example:
        >>> head = GaussianHead(8, scale_init=0.5)
        >>> y = head(torch.randn(10, 8))
        >>> y.batch_shape, y.scale[0].item()
        (torch.Size([10]), 0.5)
    """

    def __init__(
        self,
        in_features: int,
        *,
        heteroscedastic: bool = False,
        scale_init: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = check_int("in_features", in_features)
        self.scale_init = _check_scale_init(scale_init)
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.loc = nn.Linear(in_features, 1, **options)
        self.log_scale: nn.Linear | nn.Parameter
        if heteroscedastic:
            self.log_scale = nn.Linear(in_features, 1, **options)
        else:
            self.log_scale = nn.Parameter(torch.empty((), **options))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew, the scale close to ``scale_init``."""
        self.loc.reset_parameters()
        if isinstance(self.log_scale, nn.Linear):
            _reset_log_scale(self.log_scale, self.scale_init)
        else:
            nn.init.constant_(self.log_scale, math.log(self.scale_init))

    def forward(self, h: Tensor) -> Normal:
        # Under autocast the products come in low precision, too coarse for a log likelihood.
        dtype = self.loc.weight.dtype
        loc = self.loc(h).squeeze(-1).to(dtype)
        if isinstance(self.log_scale, nn.Linear):
            raw = self.log_scale(h).squeeze(-1).to(dtype)
            return Normal(loc, clamp_straight_through(raw, *LOG_SCALE_BOUNDS).exp())
        return Normal(loc, self.log_scale.exp())

    def extra_repr(self) -> str:
        heteroscedastic = isinstance(self.log_scale, nn.Linear)
        return (
            f"{self.in_features}, heteroscedastic={heteroscedastic}, scale_init={self.scale_init:g}"
        )


class MixtureDensityHead(nn.Module):
    """Mixture of Normals of a real-valued target: a mixture density network.

    .. math:: p(y|h) = \\sum_k \\pi_k(h) \\, N(y; \\mu_k(h), \\sigma_k(h)^2)

    All three are linear in h, up to the softmax and to log sigma's clamp to [-7, 7], which
    gradients pass. Bishop 1994, "Mixture Density Networks".

    Arguments:
        in_features: size of the features' last dim.
        components: number of Normals. Default 5.
        scale_init: scale of the components at initialisation. Default 1.
        device, dtype: of the parameters.

    Shapes:
        (*, in_features) -> distribution of batch shape (*).

    Raises:
        ValueError: for sizes below 1 or a scale_init outside [exp(-7), exp(7)].

    Example:
        >>> y = MixtureDensityHead(8, components=3)(torch.randn(10, 8))
        >>> y.batch_shape, y.mixture_distribution.probs.shape
        (torch.Size([10]), torch.Size([10, 3]))
    """

    def __init__(
        self,
        in_features: int,
        components: int = 5,
        *,
        scale_init: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = check_int("in_features", in_features)
        self.components = check_int("components", components)
        self.scale_init = _check_scale_init(scale_init)
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.logits = nn.Linear(in_features, components, **options)
        self.loc = nn.Linear(in_features, components, **options)
        self.log_scale = nn.Linear(in_features, components, **options)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew, the scales close to ``scale_init``."""
        self.logits.reset_parameters()
        self.loc.reset_parameters()
        _reset_log_scale(self.log_scale, self.scale_init)

    def forward(self, h: Tensor) -> MixtureSameFamily:
        dtype = self.loc.weight.dtype
        logits, loc, raw = (part(h).to(dtype) for part in (self.logits, self.loc, self.log_scale))
        scale = clamp_straight_through(raw, *LOG_SCALE_BOUNDS).exp()
        return MixtureSameFamily(Categorical(logits=logits), Normal(loc, scale))

    def extra_repr(self) -> str:
        return f"{self.in_features}, components={self.components}, scale_init={self.scale_init:g}"


class CategoricalHead(nn.Module):
    """Categorical distribution of a class label, its logits linear in h.

    Arguments:
        in_features: size of the features' last dim.
        num_classes: number of classes.
        device, dtype: of the parameters.

    Shapes:
        (*, in_features) -> distribution of batch shape (*) over 0, ..., num_classes - 1.

    Raises:
        ValueError: for sizes below 1.

    Example:
        >>> y = CategoricalHead(8, 3)(torch.randn(10, 8))
        >>> y.batch_shape, y.probs.shape
        (torch.Size([10]), torch.Size([10, 3]))
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = check_int("in_features", in_features)
        self.num_classes = check_int("num_classes", num_classes)
        self.logits = nn.Linear(in_features, num_classes, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        self.logits.reset_parameters()

    def forward(self, h: Tensor) -> Categorical:
        return Categorical(logits=self.logits(h).to(self.logits.weight.dtype))

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.num_classes}"
