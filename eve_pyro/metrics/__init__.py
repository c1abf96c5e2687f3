"""Scores of predictive distributions: functions of ``(predictive, y)``.

One convention holds throughout. Every element of ``y`` is one datum, ``y`` has exactly the
predictive's ``batch_shape``, scores are averages over data (0-dim tensors), logarithms are
natural (nats), and lower is better unless a docstring says otherwise. Real-valued scores are in
the units of ``y``: bring the predictive back to original units with ``affine`` first.
"""

from eve_pyro.metrics.calibration import (
    calibration_curve,
    coverage,
    fit_temperature,
    pit,
    width,
)
from eve_pyro.metrics.classification import accuracy, brier, ece
from eve_pyro.metrics.likelihood import cross_entropy, mc_nll, nll
from eve_pyro.metrics.regression import crps, mae, mse, pinball, rmse
from eve_pyro.metrics.summary import evaluate

__all__ = [
    "accuracy",
    "brier",
    "calibration_curve",
    "coverage",
    "cross_entropy",
    "crps",
    "ece",
    "evaluate",
    "fit_temperature",
    "mae",
    "mc_nll",
    "mse",
    "nll",
    "pinball",
    "pit",
    "rmse",
    "width",
]
