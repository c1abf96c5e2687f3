"""Scores of predictive distributions: functions of ``(predictive, y)``.

One convention holds throughout. Every element of ``y`` is one datum, ``y`` has exactly the
predictive's ``batch_shape``, scores are averages over data (0-dim tensors), logarithms are
natural (nats), and lower is better unless a docstring says otherwise. Real-valued scores are in
the units of ``y``: bring the predictive back to original units with ``affine`` first.

Functions of ``(predictive)`` alone say how uncertain it is about every datum, and keep its shape.
What such numbers are good for (``auroc``, ``risk_coverage``, ``aurc``) is in
:mod:`eve_pyro.diagnostics`. Predictives that are too large to keep are reduced to numbers per datum
by ``CategoricalScores``, of which ``calibration_error`` and ``cvar`` take one or two.
"""

from eve_pyro.metrics.calibration import (
    calibration_curve,
    coverage,
    fit_temperature,
    pit,
    width,
)
from eve_pyro.metrics.classification import accuracy, brier, calibration_error, ece
from eve_pyro.metrics.likelihood import cross_entropy, mc_nll, nll, perplexity
from eve_pyro.metrics.regression import crps, mae, mse, pinball, rmse
from eve_pyro.metrics.streaming import CategoricalScores
from eve_pyro.metrics.summary import evaluate
from eve_pyro.metrics.uncertainty import (
    cvar,
    expected_entropy,
    flip_rate,
    mutual_information,
    predictive_entropy,
)

__all__ = [
    "CategoricalScores",
    "accuracy",
    "brier",
    "calibration_curve",
    "calibration_error",
    "coverage",
    "cross_entropy",
    "crps",
    "cvar",
    "ece",
    "evaluate",
    "expected_entropy",
    "fit_temperature",
    "flip_rate",
    "mae",
    "mc_nll",
    "mse",
    "mutual_information",
    "nll",
    "perplexity",
    "pinball",
    "pit",
    "predictive_entropy",
    "rmse",
    "width",
]
