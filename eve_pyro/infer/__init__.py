"""Inference: the guide, the objectives, training and prediction."""

from eve_pyro.infer.elbo import MCNLL_ELBO, MomentMatchedELBO, PathwiseELBO
from eve_pyro.infer.guide import EVEGuide, PosteriorMean, StaleParameterError, local_parameters
from eve_pyro.infer.linear import LinearGaussianELBO
from eve_pyro.infer.schedule import (
    BetaSchedule,
    constant,
    cosine_warmup,
    cyclical,
    linear_warmup,
)

__all__ = [
    "MCNLL_ELBO",
    "BetaSchedule",
    "EVEGuide",
    "LinearGaussianELBO",
    "MomentMatchedELBO",
    "PathwiseELBO",
    "PosteriorMean",
    "StaleParameterError",
    "constant",
    "cosine_warmup",
    "cyclical",
    "linear_warmup",
    "local_parameters",
]
