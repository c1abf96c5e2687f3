"""Inference: the guide, the objectives, training and prediction."""

from eve_pyro.infer.averaged import MCNLL_ELBO, MomentMatchedELBO
from eve_pyro.infer.checkpoint import CheckpointError, load_model_state, save_model
from eve_pyro.infer.compiled import (
    CompiledELBO,
    CompiledELBOModule,
    CompiledSVI,
    TraceError,
    best_backend,
)
from eve_pyro.infer.elbo import PathwiseELBO
from eve_pyro.infer.generation import Generation, generate
from eve_pyro.infer.guide import (
    EVEGuide,
    PosteriorDraw,
    PosteriorMean,
    StaleParameterError,
    local_parameters,
)
from eve_pyro.infer.history import History
from eve_pyro.infer.linear import LinearGaussianELBO
from eve_pyro.infer.mixtures import CategoricalMixture, GaussianMixture, Mixture, concatenate
from eve_pyro.infer.predictive import StreamingPredictive
from eve_pyro.infer.schedule import (
    BetaSchedule,
    constant,
    cosine_warmup,
    cyclical,
    linear_warmup,
)
from eve_pyro.infer.serving import Predictor, export_predictor, load_predictor
from eve_pyro.infer.trainer import Trainer, TrainingConfig

__all__ = [
    "MCNLL_ELBO",
    "BetaSchedule",
    "CategoricalMixture",
    "CheckpointError",
    "CompiledELBO",
    "CompiledELBOModule",
    "CompiledSVI",
    "EVEGuide",
    "GaussianMixture",
    "Generation",
    "History",
    "LinearGaussianELBO",
    "Mixture",
    "MomentMatchedELBO",
    "PathwiseELBO",
    "PosteriorDraw",
    "PosteriorMean",
    "Predictor",
    "StaleParameterError",
    "StreamingPredictive",
    "TraceError",
    "Trainer",
    "TrainingConfig",
    "best_backend",
    "concatenate",
    "constant",
    "cosine_warmup",
    "cyclical",
    "export_predictor",
    "generate",
    "linear_warmup",
    "load_model_state",
    "load_predictor",
    "local_parameters",
    "save_model",
]
