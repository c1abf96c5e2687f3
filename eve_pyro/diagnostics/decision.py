"""Decisions: whether a signal of uncertainty tells where a prediction is wrong."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from eve_pyro._checks import check_real
from eve_pyro.diagnostics.signals import as_signal, internal_signals, output_signals
from eve_pyro.infer import CategoricalMixture, Mixture
from eve_pyro.metrics._targets import check_target

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

DECISION_COLUMNS = ("aurc", "excess_aurc", "auroc")


def risk_coverage(uncertainty: Any, error: Any) -> tuple[np.ndarray, np.ndarray]:
    r"""Return the risk-coverage curve: the mean error of the k most certain data, for every k.

    .. math:: c_k = k / N, \qquad r_k = \tfrac{1}{k} \sum_{i \le k} e_{(i)}

    where e_(i) is the error of the datum with the i-th smallest uncertainty (Geifman and
    El-Yaniv, "Selective classification for deep neural networks", 2017). Among ties the order is
    random; r is its expectation.

    Arguments:
        uncertainty: any shape, flattened.
        error: of the same shape; what is averaged, such as |y - mean| or 1 for a wrong label.

    Returns:
        (coverage, risk), each of shape (N,).

    Raises:
        ValueError: for shapes that differ, or values that are not finite.

    Example:
        >>> coverage, risk = risk_coverage([0.1, 0.3, 0.2], [0.0, 3.0, 0.0])
        >>> risk.tolist()
        [0.0, 0.0, 1.0]
    """
    scores = as_signal("uncertainty", uncertainty, np.shape(uncertainty))
    errors = as_signal("error", error, np.shape(uncertainty))
    _, group, count = np.unique(scores, return_inverse=True, return_counts=True)
    expected = (np.bincount(group, errors) / count)[np.sort(group)]
    taken = np.arange(1, len(errors) + 1)
    return taken / len(errors), expected.cumsum() / taken


def aurc(uncertainty: Any, error: Any) -> float:
    """Return the area under the risk-coverage curve: the mean of its risks; lower is better.

    The mean error for an uninformative signal, in the units of the error. Geifman, Uziel and
    El-Yaniv, "Bias-reduced uncertainty estimation for deep neural classifiers", 2019.

    Arguments:
        uncertainty, error: see :func:`risk_coverage`.

    Raises:
        ValueError: see :func:`risk_coverage`.

    Example:
        >>> aurc([0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.0, 1.0])
        0.0625
    """
    return float(risk_coverage(uncertainty, error)[1].mean())


def auroc(uncertainty: Any, is_error: Any) -> float:
    """Return the probability that an error has the larger uncertainty than a correct datum.

    The area under the ROC curve as a rank statistic, with ties counted half (Mann and Whitney
    1947): 1 is perfect, 0.5 uninformative, and below 0.5 the reverse of the signal detects.

    Arguments:
        uncertainty: any shape, flattened.
        is_error: booleans of the same shape.

    Returns:
        The area; NaN if all data or none are errors.

    Raises:
        ValueError: for shapes that differ, or values that are not finite.

    Example:
        >>> auroc([0.1, 0.2, 0.3, 0.4], [False, True, False, True])
        0.75
    """
    from scipy.stats import rankdata

    scores = as_signal("uncertainty", uncertainty, np.shape(uncertainty))
    wrong = as_signal("is_error", is_error, np.shape(uncertainty)) > 0
    positive, negative = int(wrong.sum()), int((~wrong).sum())
    if not positive or not negative:
        return float("nan")
    excess = rankdata(scores)[wrong].sum() - positive * (positive + 1) / 2
    return float(excess / (positive * negative))


def prediction_errors(
    predictive: Mixture,
    y: Tensor,
    *,
    threshold: float | None = None,
    quantile: float = 0.9,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the error of every datum, and whether it counts as wrong.

    For real targets the error is |y - mean|, and counts above ``threshold``; for labels it is 1
    where the most probable label is not y, else 0, and counts where it is 1.

    Arguments:
        predictive: of shape (*shape).
        y: targets, (*shape).
        threshold: in units of the target. Default: the quantile of the errors themselves.
        quantile: in (0, 1). Default 0.9: the largest tenth is wrong.

    Returns:
        (error, is_error) of shape (*shape).

    Raises:
        ValueError: for a target that does not fit, a negative threshold, or a quantile outside
            (0, 1).

    Example:
        >>> from eve_pyro.infer import GaussianMixture
        >>> y = GaussianMixture(torch.zeros(1, 3), torch.ones(1, 3))
        >>> prediction_errors(y, torch.tensor([0.5, -2.0, 1.0]), threshold=1.5)[1].tolist()
        [False, True, False]
    """
    check_target(predictive, y)
    check_real("quantile", quantile, 0.0, 1.0, exclusive=True)
    if isinstance(predictive, CategoricalMixture):
        error = (predictive.mode != y).double().cpu().numpy()
        return error, error > 0
    error = (y - predictive.mean).abs().detach().double().cpu().numpy()
    if threshold is None:
        threshold = float(np.quantile(error, quantile))
    return error, error > check_real("threshold", threshold, 0.0)


def decision_table(
    predictive: Mixture,
    y: Tensor,
    stats: "xr.Dataset | None" = None,
    *,
    signals: Mapping[str, Any] | None = None,
    per_layer: bool = False,
    threshold: float | None = None,
    quantile: float = 0.9,
) -> "pd.DataFrame":
    """Tabulate how well each signal ranks predictions by their error.

    Rows: the signals of :func:`output_signals`; with ``stats`` those of
    :func:`internal_signals`, ``-kl``, and ``combined``, the mean of the ranks of ``sigma`` and
    of ``predictive_sd`` or ``entropy``; then your own; last ``oracle`` (the error itself, the
    best that a signal can do) and ``random``. Only ranks matter, so that predictive sd and
    variance are one signal. Which sign of KL detects errors depends on the network, so both
    stand here: choose on validation data.

    Columns: ``aurc`` (lower is better, units of the error), ``excess_aurc`` (above the oracle's)
    and ``auroc`` (higher is better), see :func:`aurc` and :func:`auroc`. Errors are those of
    :func:`prediction_errors`.

    Arguments:
        predictive: of shape (*shape).
        y: targets, (*shape).
        stats: of :func:`posterior_statistics` for the same data. Default none.
        signals: more signals by name, (*shape), larger where less certain. Default none.
        per_layer: add the internal signals of every layer. Default False.
        threshold, quantile: see :func:`prediction_errors`.

    Raises:
        ValueError: for targets, statistics or signals that do not fit the predictive.

    Example:
        >>> from eve_pyro.infer import GaussianMixture
        >>> scale = torch.linspace(0.1, 1.0, 100)
        >>> predictive = GaussianMixture(torch.zeros(1, 100), scale.expand(1, 100))
        >>> table = decision_table(predictive, scale * torch.randn(100))
        >>> bool(table.aurc["predictive_sd"] < table.aurc["random"])
        True
    """
    import pandas as pd
    from scipy.stats import rankdata

    error, wrong = prediction_errors(predictive, y, threshold=threshold, quantile=quantile)
    named: dict[str, Any] = dict(output_signals(predictive))
    if stats is not None:
        output = next(iter(named.values()))
        internal = internal_signals(stats, error.shape, per_layer=per_layer)
        named |= internal
        named["-kl"] = -internal["kl"]
        ranks = rankdata(internal["sigma"]) + rankdata(output)
        named["combined"] = ranks.reshape(error.shape) / 2
    if taken := sorted({*named, "combined", "oracle", "random"} & set(signals or {})):
        raise ValueError(f"signals must have names of their own, got {taken}")
    named |= signals or {}
    named |= {"oracle": error, "random": np.zeros_like(error)}
    flat = {name: as_signal(name, values, error.shape) for name, values in named.items()}
    best = aurc(error.ravel(), error.ravel())
    rows = []
    for name, values in flat.items():
        area = aurc(values, error.ravel())
        rows.append((name, area, area - best, auroc(values, wrong.ravel())))
    return pd.DataFrame(rows, columns=["signal", *DECISION_COLUMNS]).set_index("signal")
