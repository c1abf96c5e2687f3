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
    eve_modules,
    is_eve_site,
    set_beta,
)
from eve_pyro.nn.multiplicative import MultiplicativeEmission, NoiseEncoder, multiplicative_unit
from eve_pyro.nn.networks import MLP, Network, PreNormResidual
from eve_pyro.nn.penalty import FreeBits, Penalty, TargetBand
from eve_pyro.nn.prior import LearnedNormal, StandardNormal
from eve_pyro.nn.site import SiteModule, name_sites
from eve_pyro.nn.transformer import (
    EVEFeedForward,
    FeedForward,
    GLUEmission,
    KVCache,
    LanguageModel,
    TransformerConfig,
    TransformerLM,
    replace_feed_forward,
    weight_decay_groups,
)

__all__ = [
    "MLP",
    "ActivationEmission",
    "AntitheticDraws",
    "BayesianDense",
    "CategoricalHead",
    "Dense",
    "DeterministicCell",
    "DropoutUnit",
    "EVEFeedForward",
    "EVEModule",
    "Emission",
    "FeedForward",
    "FreeBits",
    "GLUEmission",
    "GatedEmission",
    "GaussianEncoder",
    "GaussianHead",
    "KVCache",
    "LanguageModel",
    "LatentNormal",
    "LearnedNormal",
    "MCDropout",
    "MixtureDensityHead",
    "MultiplicativeEmission",
    "Network",
    "NoiseEncoder",
    "Penalty",
    "PreNormResidual",
    "ResidualEmission",
    "SiteModule",
    "StandardNormal",
    "TargetBand",
    "TransformerConfig",
    "TransformerLM",
    "clamp_straight_through",
    "deep_ensemble",
    "eve_modules",
    "is_eve_site",
    "multiplicative_unit",
    "name_sites",
    "replace_feed_forward",
    "set_beta",
    "weight_decay_groups",
]
