"""Deterministic controls: what an EVE layer is compared with, built by the same constructor."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eve_pyro._checks import check_choice, check_int
from eve_pyro.nn._reset import reset_children
from eve_pyro.nn.emission import ACTIVATIONS, EmissionLike, make_emission
from eve_pyro.nn.encoder import make_encoder


class Dense(nn.Linear):
    """A layer of scalar deterministic units, a = act(W h + b).

    Arguments:
        in_features: size of the input's last dim.
        out_features: number of units.
        activation: ``"relu"`` (default), ``"gelu"``, ``"silu"``, ``"tanh"`` or ``"identity"``.
        device, dtype: of the parameters.

    Shapes:
        (*, in_features) -> (*, out_features).

    Raises:
        ValueError: for sizes below 1 or an unknown activation.

    Example:
        >>> Dense(8, 64)
        Dense(in_features=8, out_features=64, activation='relu')
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        activation: str = "relu",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_int("in_features", in_features)
        check_int("out_features", out_features)
        super().__init__(in_features, out_features, device=device, dtype=dtype)
        self.activation = check_choice("activation", activation, ACTIVATIONS)

    def forward(self, h: Tensor) -> Tensor:
        return ACTIVATIONS[self.activation](super().forward(h))

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, activation={self.activation!r}"


class DeterministicCell(nn.Module):
    """An EVE layer without noise: the deterministic control of equal capacity.

    .. math:: a = g(z, h), \\qquad z = \\mu(h) + \\sigma(h) \\, c

    Encoder and emission are those of :class:`~eve_pyro.nn.EVEModule`; where that draws noise,
    a learned constant c per unit and latent dim stands, drawn from N(0, 1) at initialisation. It
    has out_features * latent_dim parameters more than the EVE layer, and no KL.

    Reference: the control DET-cell of Y. Ruffenach, "The Neuron Is the Distribution".

    Arguments:
        in_features: size of the input's last dim.
        out_features: number of units.
        latent_dim, emission, encoder, sigma, sigma_rank, sigma_init, log_sigma_bounds, device,
            dtype: see :class:`~eve_pyro.nn.EVEModule`.

    Shapes:
        (*, in_features) -> (*, out_features).

    Raises:
        ValueError: for sizes below 1, unknown names, or a sigma_init outside its bounds.

    Example:
        >>> from eve_pyro import EVEModule
        >>> count = lambda layer: sum(p.numel() for p in layer.parameters())
        >>> count(DeterministicCell(8, 64, 2)) - count(EVEModule(8, 64, 2))
        128
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        latent_dim: int = 1,
        *,
        emission: EmissionLike = "relu",
        encoder: nn.Module | None = None,
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
        sizes = (in_features, out_features, latent_dim)
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.encoder = make_encoder(
            encoder,
            *sizes,
            sigma=sigma,
            sigma_rank=sigma_rank,
            sigma_init=sigma_init,
            log_sigma_bounds=log_sigma_bounds,
            **options,
        )
        self.emission = make_emission(emission, *sizes, **options)
        # In memory (latent, units), like the latents.
        self.constant = nn.Parameter(torch.randn(latent_dim, out_features, **options))

    def reset_parameters(self) -> None:
        """Draw the constants, and the parameters of the parts that can, anew."""
        nn.init.normal_(self.constant)
        reset_children(self)

    def forward(self, h: Tensor) -> Tensor:
        q = self.encoder(h)
        return self.emission(torch.addcmul(q.mean, q.stddev, self.constant.mT), h)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, latent_dim={self.latent_dim}"


def deep_ensemble(
    factory: Callable[[], nn.Module], size: int = 5, *, seed: int = 0
) -> nn.ModuleList:
    """Independently initialised networks: the members of a deep ensemble.

    Lakshminarayanan, Pritzel and Blundell 2017, "Simple and Scalable Predictive Uncertainty
    Estimation using Deep Ensembles". Train every member by itself, with a guide and an optimizer
    of its own, and mix the predictions with :func:`~eve_pyro.infer.mixtures.concatenate`. Under
    ``SVI``, clear Pyro's parameter store between members: their parameters have the same names.

    A member depends on ``seed`` and its own number alone: a larger ensemble has the members of
    a smaller one, and the global random number generator is left as it was.

    Arguments:
        factory: function without arguments that builds one member, such as a
            :class:`~eve_pyro.nn.Network` of any units.
        size: number of members. Default 5.
        seed: of the initialisations, >= 0. Default 0.

    Raises:
        ValueError: for a size below 1 or a negative seed.

    Example:
        >>> members = deep_ensemble(lambda: Dense(3, 1), size=2)
        >>> torch.equal(members[0].weight, members[1].weight)
        False
    """
    check_int("seed", seed, 0)
    members = []
    for number in range(check_int("size", size)):
        with torch.random.fork_rng():
            (state,) = np.random.SeedSequence((seed, number)).generate_state(1)
            torch.manual_seed(int(state))
            members.append(factory())
    return nn.ModuleList(members)
