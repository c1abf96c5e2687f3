"""Units and networks: layers of distributional neurons, their parts, and the controls."""

from eve_pyro.nn.bayesian import BayesianDense
from eve_pyro.nn.controls import Dense, DeterministicCell, deep_ensemble
from eve_pyro.nn.dropout import DropoutUnit, MCDropout
from eve_pyro.nn.emission import (
    ActivationEmission,
    Emission,
    GatedEmission,
    ResidualEmission,
)
from eve_pyro.nn.encoder import GaussianEncoder, clamp_straight_through
from eve_pyro.nn.heads import CategoricalHead, GaussianHead, MixtureDensityHead
from eve_pyro.nn.latent import AntitheticDraws, LatentNormal
from eve_pyro.nn.module import (
    EVEModule,
    StandardNormal,
    eve_modules,
    is_eve_site,
    set_beta,
)
from eve_pyro.nn.networks import MLP, Network, PreNormResidual
from eve_pyro.nn.penalty import FreeBits, Penalty, TargetBand
from eve_pyro.nn.site import SiteModule, name_sites

__all__ = [
    "MLP",
    "ActivationEmission",
    "AntitheticDraws",
    "BayesianDense",
    "CategoricalHead",
    "Dense",
    "DeterministicCell",
    "DropoutUnit",
    "EVEModule",
    "Emission",
    "FreeBits",
    "GatedEmission",
    "GaussianEncoder",
    "GaussianHead",
    "LatentNormal",
    "MCDropout",
    "MixtureDensityHead",
    "Network",
    "Penalty",
    "PreNormResidual",
    "ResidualEmission",
    "SiteModule",
    "StandardNormal",
    "TargetBand",
    "clamp_straight_through",
    "deep_ensemble",
    "eve_modules",
    "is_eve_site",
    "name_sites",
    "set_beta",
]
