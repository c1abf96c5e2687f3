"""The studies as protocols: models by name, paired seeds, calibration for all, reports."""

from eve_pyro.experiments.demo import DemoConfig, run
from eve_pyro.experiments.models import MODELS, ModelConfig
from eve_pyro.experiments.protocol import Fit, Protocol, fit, score
from eve_pyro.experiments.statistics import summarise
from eve_pyro.experiments.tabular import TabularModel

__all__ = [
    "MODELS",
    "DemoConfig",
    "Fit",
    "ModelConfig",
    "Protocol",
    "TabularModel",
    "fit",
    "run",
    "score",
    "summarise",
]
