"""What a network's neurons do: statistics of their posteriors, tables, and what they are good for.

Names are loaded on first use, so that parts without torch can be imported without it.
"""

from importlib import import_module
from typing import Any

_EXPORTS = {
    "Monitor": "monitor",
    "Thresholds": "summary",
    "aurc": "decision",
    "auroc": "decision",
    "decision_table": "decision",
    "from_groups": "arviz_compat",
    "get_group": "arviz_compat",
    "group_names": "arviz_compat",
    "internal_signals": "signals",
    "is_datatree_line": "arviz_compat",
    "layer_epistemic": "spread",
    "layer_spread": "spread",
    "layer_table": "summary",
    "load_netcdf": "arviz_compat",
    "noise_correlation": "noise",
    "output_signals": "signals",
    "plot_calibration": "plots",
    "plot_evolution": "plots",
    "plot_layers": "plots",
    "plot_neurons": "plots",
    "plot_pit": "plots",
    "plot_predictions": "plots",
    "plot_predictive_band": "plots",
    "plot_risk_coverage": "plots",
    "plot_sigma_vs_scale": "plots",
    "plot_tokens": "plots",
    "plot_training": "plots",
    "plot_uncertainty_split": "plots",
    "posterior_statistics": "statistics",
    "prediction_errors": "decision",
    "risk_coverage": "decision",
    "save_netcdf": "arviz_compat",
    "to_arviz": "convert",
    "unit_statistics": "reduction",
    "unit_table": "summary",
}

__all__ = list(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
