"""Networks: trunks of units, and the supervised Pyro model made of a trunk and a head."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from eve_pyro._checks import check_int
from eve_pyro.nn._reset import reset_children
from eve_pyro.nn.module import EVEModule


class PreNormResidual(PyroModule):
    """A unit around which its input passes: h + scale * unit(LayerNorm(h)).

    With scale = 1 / sqrt(L) in all of L blocks the spread of h stays bounded at any depth.
    Normalising ahead of the unit follows Xiong et al. 2020, "On Layer Normalization in the
    Transformer Architecture"; the scale is as in Hayou et al. 2021, "Stable ResNet".

    Arguments:
        features: width of h.
        unit: module from (*, features) to (*, features).
        scale: weight of the unit. Default 1.
        device, dtype: of the normalisation's parameters.

    Example:
        >>> block = PreNormResidual(4, nn.Linear(4, 4), scale=0.0)
        >>> h = torch.randn(5, 4)
        >>> torch.equal(block(h), h)
        True
    """

    def __init__(
        self,
        features: int,
        unit: nn.Module,
        scale: float = 1.0,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features, device=device, dtype=dtype)
        self.unit = unit
        self.scale = scale

    def reset_parameters(self) -> None:
        """Draw the parameters of the unit, and the normalisation's, anew."""
        reset_children(self)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.scale * self.unit(self.norm(h))

    def extra_repr(self) -> str:
        return f"scale={self.scale:.4g}"


class MLP(PyroModule):
    """A chain of layers of one kind of unit.

    ``residual=True`` makes very deep chains trainable: after a linear projection to the common
    width, each of the L layers is h <- h + unit(LayerNorm(h)) / sqrt(L)
    (:class:`PreNormResidual`). ``MLP(8, [128] * 128, residual=True)`` has 128 layers of 128
    units on top of the projection.

    Arguments:
        in_features: size of the input's last dim.
        hidden_features: number of units of every layer, at least one layer.
        unit: class or function called as ``unit(in_features, out_features, **options)`` that
            returns a module from (*, in_features) to (*, out_features). Default:
            :class:`~eve_pyro.nn.EVEModule`.
        residual: whether layers are residual, which needs one width for all. Default False.
        device, dtype: of the parameters; passed on to the units where given.
        unit_options: passed on to every unit. A module among them is shared by all layers.

    Shapes:
        (*, in_features) -> (*, hidden_features[-1]), with a leading dim of particles under
        their plate.

    Raises:
        ValueError: for sizes below 1, no layer, or a residual chain of several widths.

    Example:
        >>> trunk = MLP(8, [64, 32], latent_dim=2)
        >>> trunk(torch.randn(10, 8)).shape
        torch.Size([10, 32])
        >>> [name for name, _ in trunk.named_children()]
        ['layer0', 'layer1']
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: Sequence[int],
        *,
        unit: Callable[..., nn.Module] = EVEModule,
        residual: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **unit_options: Any,
    ) -> None:
        super().__init__()
        self.in_features = check_int("in_features", in_features)
        self.hidden_features = tuple(check_int("hidden_features", n) for n in hidden_features)
        if not self.hidden_features:
            raise ValueError("hidden_features must name at least one layer, got none")
        if residual and len(set(self.hidden_features)) > 1:
            raise ValueError(f"a residual MLP needs one width, got {self.hidden_features}")
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        given = {k: v for k, v in options.items() if v is not None}
        if residual:
            in_features = self.hidden_features[0]
            self.project = nn.Linear(self.in_features, in_features, **given)
        for i, out_features in enumerate(self.hidden_features):
            layer = unit(in_features, out_features, **given, **unit_options)
            if residual:
                scale = 1 / math.sqrt(len(self.hidden_features))
                layer = PreNormResidual(out_features, layer, scale, **given)
            self.add_module(f"layer{i}", layer)
            in_features = out_features

    def reset_parameters(self) -> None:
        """Draw the parameters of all layers anew."""
        reset_children(self)

    def forward(self, h: Tensor) -> Tensor:
        # By attribute, not from self._modules: so Pyro learns of plain layers' parameters.
        for name in tuple(self._modules):
            h = getattr(self, name)(h)
        return h


class Network(PyroModule):
    """The supervised model: a trunk, and a head that gives the distribution of the target.

    .. math:: y_n \\sim head(trunk(x_n))

    The data are a plate, ``"data"``; for sequences with one label per position the positions are
    another, ``"positions"``. The target's site is ``"y"``. It goes wherever a Pyro model goes:
    ``SVI`` and every ELBO with ``EVEGuide(network)``, particles vectorized or not,
    ``Predictive``. Random weights (``PyroSample``) of trunk and head are drawn once, ahead of
    the plates.

    Arguments:
        trunk: module from (*, in_features) to features, such as an :class:`MLP`.
        head: module from features to a distribution of batch shape (*), such as a
            :class:`~eve_pyro.nn.GaussianHead`.

    Shapes:
        x (batch, in_features) and y (batch,), or x (batch, positions, in_features) and
        y (batch, positions). With a leading dim of particles under their plate.

    Raises:
        ValueError: when called, for an x of another number of dims, a y that does not fit x, or
            a num_data below the rows of x.

    Example:
        >>> from pyro.infer import SVI, Trace_ELBO
        >>> from eve_pyro import EVEGuide
        >>> from eve_pyro.nn import GaussianHead
        >>> network = Network(MLP(3, [16, 16]), GaussianHead(16))
        >>> adam = pyro.optim.Adam({"lr": 1e-3})
        >>> svi = SVI(network, EVEGuide(network), adam, Trace_ELBO())
        >>> x, y = torch.randn(5, 3), torch.randn(5)
        >>> loss = svi.step(x, y, num_data=100)
        >>> network(x).shape
        torch.Size([5])
    """

    def __init__(self, trunk: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = head

    def reset_parameters(self) -> None:
        """Draw the parameters of trunk and head anew."""
        reset_children(self)

    def forward(self, x: Tensor, y: Tensor | None = None, num_data: int | None = None) -> Tensor:
        """Draw, or with y observe, the target.

        Arguments:
            x: the inputs.
            y: the targets; drawn if None (default).
            num_data: N of all data, of which x is a batch of B: sums over data are scaled by
                N / B. Default: B.

        Returns the targets.
        """
        if x.dim() not in (2, 3):
            raise ValueError(
                "x must have shape (batch, in_features) or (batch, positions, in_features), "
                f"got {tuple(x.shape)}"
            )
        if num_data is None:
            num_data = x.shape[0]
        elif check_int("num_data", num_data) < x.shape[0]:
            raise ValueError(
                f"num_data must be at least the {x.shape[0]} rows of x, got {num_data}"
            )
        self._draw_weights()
        # The rows are chosen already: given indices save Pyro from drawing its own.
        rows = torch.arange(x.shape[0], device=x.device)
        data = pyro.plate("data", num_data, subsample=rows, dim=1 - x.dim())
        positions = pyro.plate("positions", x.shape[1], dim=-1) if x.dim() == 3 else nullcontext()
        with data, positions:
            target = self.head(self.trunk(x))
            expected = x.shape[:-1] + target.event_shape
            if y is not None and y.shape != expected:
                raise ValueError(
                    f"y must have shape {tuple(expected)} to go with x of shape "
                    f"{tuple(x.shape)}, got {tuple(y.shape)}"
                )
            return pyro.sample("y", target, obs=y)

    def _draw_weights(self) -> None:
        """Read random weights, which PyroModule keeps for the rest of this run."""
        for module in self.modules():
            for name in getattr(module, "_pyro_samples", ()):
                getattr(module, name)
