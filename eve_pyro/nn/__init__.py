"""Units and networks: layers of distributional neurons, their parts, and the controls."""

from eve_pyro.nn.emission import (
    ActivationEmission,
    Emission,
    GatedEmission,
    ResidualEmission,
)
from eve_pyro.nn.encoder import GaussianEncoder, clamp_straight_through
from eve_pyro.nn.latent import LatentNormal
from eve_pyro.nn.module import (
    EVEModule,
    StandardNormal,
    eve_modules,
    is_eve_site,
    name_sites,
    set_beta,
)
from eve_pyro.nn.penalty import FreeBits, Penalty, TargetBand

__all__ = [
    "ActivationEmission",
    "EVEModule",
    "Emission",
    "FreeBits",
    "GatedEmission",
    "GaussianEncoder",
    "LatentNormal",
    "Penalty",
    "ResidualEmission",
    "StandardNormal",
    "TargetBand",
    "clamp_straight_through",
    "eve_modules",
    "is_eve_site",
    "name_sites",
    "set_beta",
]
