"""All scores of one predictive distribution, as one row of a table."""

from torch import Tensor

from eve_pyro._checks import check_real
from eve_pyro.infer.mixtures import CategoricalMixture, Mixture
from eve_pyro.metrics.calibration import coverage, width
from eve_pyro.metrics.classification import accuracy, brier, ece
from eve_pyro.metrics.likelihood import cross_entropy, mc_nll, nll
from eve_pyro.metrics.regression import crps, mae, mse, rmse


def evaluate(predictive: Mixture, y: Tensor, *, level: float = 0.9) -> dict[str, float]:
    """Return the scores of a predictive, by the names of their functions.

    For a ``GaussianMixture``: mse, rmse, mae, nll, mc_nll, crps, coverage and width. For a
    ``CategoricalMixture``: accuracy, cross_entropy, brier and ece.

    Args:
        predictive: of shape (*shape).
        y: targets, (*shape).
        level: probability of the central interval of coverage and width, in (0, 1).

    >>> import torch
    >>> row = evaluate(CategoricalMixture(torch.zeros(5, 2, 2)), torch.tensor([0, 1]))
    >>> {name: round(value, 3) for name, value in row.items()}
    {'accuracy': 0.5, 'cross_entropy': 0.693, 'brier': 0.5, 'ece': 0.0}
    """
    level = check_real("level", level, 0.0, 1.0, exclusive=True)
    if isinstance(predictive, CategoricalMixture):
        scores = (accuracy, cross_entropy, brier, ece)
        return {score.__name__: score(predictive, y).item() for score in scores}
    row = {s.__name__: s(predictive, y).item() for s in (mse, rmse, mae, nll, mc_nll, crps)}
    row["coverage"] = coverage(predictive, y, level).item()
    row["width"] = width(predictive, level).item()
    return row
