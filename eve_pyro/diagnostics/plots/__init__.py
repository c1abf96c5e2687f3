"""Pictures of predictions, of their calibration, of neurons, of texts and of training.

Every function draws on the ``ax`` it is given, or on a figure of its own, and returns the axes.
Nothing touches pyplot or the global style, so all works headless; in a notebook end a cell with
``plot_pit(predictive, y).figure``. Data may be arrays, tensors, pandas or xarray objects alike.
Colours are told apart by colour-blind readers. Matplotlib is loaded by the first plot.
"""

from eve_pyro.diagnostics.plots.calibration import (
    plot_calibration,
    plot_pit,
    plot_risk_coverage,
)
from eve_pyro.diagnostics.plots.layers import plot_layers, plot_neurons, plot_sigma_vs_scale
from eve_pyro.diagnostics.plots.predictions import (
    plot_predictions,
    plot_predictive_band,
    plot_uncertainty_split,
)
from eve_pyro.diagnostics.plots.text import plot_tokens
from eve_pyro.diagnostics.plots.training import plot_evolution, plot_training

__all__ = [
    "plot_calibration",
    "plot_evolution",
    "plot_layers",
    "plot_neurons",
    "plot_pit",
    "plot_predictions",
    "plot_predictive_band",
    "plot_risk_coverage",
    "plot_sigma_vs_scale",
    "plot_tokens",
    "plot_training",
    "plot_uncertainty_split",
]
