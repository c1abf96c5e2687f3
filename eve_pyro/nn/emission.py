"""Emissions: how a unit turns its sampled latent into an activation, a = g(z, h)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eve_pyro._checks import check_choice, check_int

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


class Emission(nn.Module):
    """Base of the emissions: a module called as ``emission(z, h)``.

    Subclass it for an emission of your own; any callable of (z, h) does as well.

    Arguments:
        in_features, out_features, latent_dim: as in :class:`~eve_pyro.nn.EVEModule`.
        readout: how the latent dims of a unit become one number. ``"mean"`` averages them;
            ``"learned"`` is a linear readout per unit, starting at the mean.
        device, dtype: of the parameters, if there are any.

    Shapes:
        z: (*, out_features, latent_dim), h: (*, in_features) -> (*, out_features). z may have
        further leading dims (particles) that h lacks.

    Example:
        >>> class Square(Emission):
        ...     def forward(self, z, h):
        ...         return self.pool(z).square()
        >>> Square(3, 4, 2)(torch.ones(5, 4, 2), torch.ones(5, 3)).shape
        torch.Size([5, 4])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        latent_dim: int = 1,
        *,
        readout: str = "mean",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = check_int("in_features", in_features)
        self.out_features = check_int("out_features", out_features)
        self.latent_dim = check_int("latent_dim", latent_dim)
        self.readout = check_choice("readout", readout, ("mean", "learned"))
        if readout == "learned":
            # In memory (latent, units), like the latents.
            shape = (latent_dim, out_features)
            self.weight = nn.Parameter(
                torch.full(shape, 1 / latent_dim, device=device, dtype=dtype)
            )

    def reset_parameters(self) -> None:
        """Set the readout back to the mean."""
        if self.readout == "learned":
            nn.init.constant_(self.weight, 1 / self.latent_dim)

    def pool(self, z: Tensor) -> Tensor:
        """One number per unit: (*, out_features, latent_dim) -> (*, out_features)."""
        if self.readout == "learned":
            return (z * self.weight.mT).sum(-1)
        return z.squeeze(-1) if self.latent_dim == 1 else z.mean(-1)

    def forward(self, z: Tensor, h: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} must define forward(z, h)")

    def extra_repr(self) -> str:
        return f"readout={self.readout!r}"


class ActivationEmission(Emission):
    """Activation of the pooled latent, a = act(w . z).

    Arguments:
        activation: ``"relu"`` (default), ``"gelu"``, ``"silu"``, ``"tanh"`` or ``"identity"``.
        Others: see :class:`Emission`.

    Example:
        >>> emission = ActivationEmission(3, 4, 2, activation="tanh")
        >>> emission(torch.zeros(5, 4, 2), torch.ones(5, 3)).abs().max().item()
        0.0
    """

    def __init__(self, *args: Any, activation: str = "relu", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.activation = check_choice("activation", activation, ACTIVATIONS)

    def forward(self, z: Tensor, h: Tensor) -> Tensor:
        return ACTIVATIONS[self.activation](self.pool(z))

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}, {super().extra_repr()}"


class GatedEmission(Emission):
    """Latent gated by the input, a = (w . z) * sigmoid(U h + d).

    Linear in z, so the activation at the posterior mean is the mean activation and a single pass
    at the mean stands for the average over draws. After the gated linear unit of Dauphin et al.
    2017, "Language Modeling with Gated Convolutional Networks".

    Arguments: see :class:`Emission`.

    Example:
        >>> GatedEmission(3, 4, 2)(torch.zeros(5, 4, 2), torch.ones(5, 3)).shape
        torch.Size([5, 4])
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        options: dict[str, Any] = {k: kwargs.get(k) for k in ("device", "dtype")}
        self.gate = nn.Linear(self.in_features, self.out_features, **options)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.gate.reset_parameters()

    def forward(self, z: Tensor, h: Tensor) -> Tensor:
        return self.pool(z) * torch.sigmoid(self.gate(h))


class ResidualEmission(ActivationEmission):
    """Activation added to the input, a = h + act(w . z).

    The input passes unchanged where in_features equals out_features, else through a learned
    linear map without bias.

    Arguments: see :class:`ActivationEmission`.

    Example:
        >>> h = torch.randn(5, 4)
        >>> torch.equal(ResidualEmission(4, 4)(torch.zeros(5, 4, 1), h), h)
        True
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        options: dict[str, Any] = {k: kwargs.get(k) for k in ("device", "dtype")}
        self.skip: nn.Module = (
            nn.Identity()
            if self.in_features == self.out_features
            else nn.Linear(self.in_features, self.out_features, bias=False, **options)
        )

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if isinstance(self.skip, nn.Linear):
            self.skip.reset_parameters()

    def forward(self, z: Tensor, h: Tensor) -> Tensor:
        return self.skip(h) + super().forward(z, h)


class _CallableEmission(nn.Module):
    """A plain function of (z, h) in a module's clothes, so that a layer has modules for parts."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, z: Tensor, h: Tensor) -> Tensor:
        return self.function(z, h)

    def extra_repr(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))


EmissionLike = str | type[nn.Module] | Callable[[Tensor, Tensor], Tensor]


def make_emission(emission: EmissionLike, *sizes: int, **options: Any) -> nn.Module:
    """The emission module for what a user passed: a name, a class, a module or a callable.

    Arguments:
        emission: the name of an activation, ``"gated"`` or ``"residual"``; a class, which is
            built with the layer's sizes; a module or callable of (z, h), used as it is.
        sizes: in_features, out_features, latent_dim.
        options: device and dtype.

    Raises:
        ValueError: for an unknown name.
        TypeError: for anything that is not callable.

    Example:
        >>> make_emission("gelu", 3, 4, 1)
        ActivationEmission(activation='gelu', readout='mean')
    """
    if isinstance(emission, str):
        names = (*ACTIVATIONS, "gated", "residual")
        check_choice("emission", emission, names)
        if emission == "gated":
            return GatedEmission(*sizes, **options)
        if emission == "residual":
            return ResidualEmission(*sizes, **options)
        return ActivationEmission(*sizes, activation=emission, **options)
    if isinstance(emission, type):
        return emission(*sizes, **options)
    if isinstance(emission, nn.Module):
        return emission
    if callable(emission):
        return _CallableEmission(emission)
    raise TypeError(
        f"emission must be a name, a module class, a module or a callable of (z, h), "
        f"got {emission!r}"
    )
