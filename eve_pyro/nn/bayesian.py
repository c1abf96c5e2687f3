"""BayesianDense: a deterministic unit whose weights are the random variables."""

import math
from functools import partial

import torch
from pyro.distributions import Distribution, Normal
from pyro.nn import PyroModule, PyroSample
from pyro.poutine.runtime import get_plates
from torch import Tensor
from torch.nn import functional as F

from eve_pyro._checks import check_choice, check_int, check_real
from eve_pyro.nn.emission import ACTIVATIONS
from eve_pyro.nn.latent import PARTICLE_PLATES
from eve_pyro.nn.site import PositionDims


def _normal(layer: "BayesianDense", shape: tuple[int, ...], std: float) -> Distribution:
    return Normal(layer.zero, std).expand(shape).to_event(len(shape))


class BayesianDense(PyroModule):
    """A layer of scalar units with random weights, a = act(W h + b).

    .. math:: W_{ij} \\sim N(0, s^2 / in\\_features), \\qquad b_i \\sim N(0, s^2)

    With s = ``prior_scale`` the spread of W h does not depend on the width (Neal 1996, "Bayesian
    Learning for Neural Networks"). The layer has no parameters: those of the weights' posterior
    belong to a guide. A mean-field one (Blundell et al. 2015, "Weight Uncertainty in Neural
    Networks") is ``EVEGuide(model, guide=AutoNormal)``; Pyro's ``AutoNormal`` starts all means
    at 0, where a deep network learns slowly, so that better is::

        weights = poutine.block(model, hide_fn=is_eve_site)
        guide = EVEGuide(model, AutoNormal(weights, init_loc_fn=init_to_sample, init_scale=0.01))

    The weights are shared by all data: they must be drawn outside of data plates.
    :class:`~eve_pyro.nn.Network` does so; in a model of your own, have the layer as an attribute
    of a ``PyroModule`` and read ``layer.weight, layer.bias`` ahead of the plate.

    Arguments:
        in_features: size of the input's last dim.
        out_features: number of units.
        activation: ``"relu"`` (default), ``"gelu"``, ``"silu"``, ``"tanh"`` or ``"identity"``.
        prior_scale: s, above 0. Default 1.
        position_dims: see :class:`~eve_pyro.nn.SiteModule`.
        device, dtype: of the weights.

    Shapes:
        (*, in_features) -> (*, out_features), with a leading dim of particles under their plate:
        every particle has weights of its own.

    Raises:
        ValueError: for sizes below 1, an unknown activation or a prior_scale that is not
            positive; when called, if the weights were drawn inside a data plate.

    Example:
        >>> BayesianDense(8, 64)(torch.randn(10, 8)).shape
        torch.Size([10, 64])
    """

    zero: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        activation: str = "relu",
        prior_scale: float = 1.0,
        position_dims: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = check_int("in_features", in_features)
        self.out_features = check_int("out_features", out_features)
        self.activation = check_choice("activation", activation, ACTIVATIONS)
        self.prior_scale = check_real("prior_scale", prior_scale, 0.0, exclusive=True)
        self.position_dims = PositionDims(position_dims)
        # Carries device and dtype to the priors, which follow the model in .to() this way.
        self.register_buffer("zero", torch.zeros((), device=device, dtype=dtype), persistent=False)
        # Partials, since PyroSample renames a function, which then cannot be pickled.
        size, std = (out_features, in_features), self.prior_scale / math.sqrt(in_features)
        self.weight = PyroSample(partial(_normal, shape=size, std=std))
        self.bias = PyroSample(partial(_normal, shape=size[:1], std=self.prior_scale))

    def reset_parameters(self) -> None:
        """Nothing to do: the layer has no parameters, its weights are drawn in every run."""

    def forward(self, h: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        # Counted in every run: what is seen outside a plate of particles decides inside one.
        positions = self.position_dims(h)
        if weight.dim() == 2:
            a = F.linear(h, weight, bias)
        else:
            a = self._linear_per_particle(h, positions, weight, bias)
        return ACTIVATIONS[self.activation](a)

    def _linear_per_particle(
        self, h: Tensor, positions: int, weight: Tensor, bias: Tensor
    ) -> Tensor:
        """W h + b where weights have batch dims: one product per particle over all its rows."""
        frames = [f for f in get_plates() if f.name in PARTICLE_PLATES]
        if weight.shape[:-2].numel() != math.prod(f.size for f in frames):
            raise ValueError(
                f"weights of {self._pyro_name!r} were drawn inside a plate, got shape "
                f"{tuple(weight.shape)}: read layer.weight and layer.bias ahead of the data plate, "
                "or use the layer in a Network"
            )
        depth = max((-f.dim for f in frames), default=0)
        plated = h.dim() - 1 - positions
        if plated < depth:  # plain data, which all particles share
            h = h[(None,) * (depth - plated)]
        rows = h.reshape(len(h), -1, self.in_features)
        a = rows @ weight.flatten(0, -3).mT + bias.flatten(0, -2).unsqueeze(1)
        return a.reshape(len(a), *h.shape[1:-1], self.out_features)

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, activation={self.activation!r}, prior_scale={self.prior_scale:g}"
