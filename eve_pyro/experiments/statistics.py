"""Paired comparisons over seeds: means, wins and intervals."""

import math
from typing import Any, cast

import numpy as np
import pandas as pd
from scipy import stats

from eve_pyro._checks import check_int, check_real


def t_interval(
    differences: np.ndarray, level: float = 0.95, *, overlap: float = 0.0
) -> tuple[float, float]:
    """Student's interval of the mean of paired differences.

    .. math:: \\bar d \\pm t_{n-1} \\, s \\sqrt{1/n + r}

    Runs on random splits of one table share most of their rows, so their differences are
    correlated and the plain interval, r = 0, is too narrow as a statement on new data from the
    same source. With r = (test rows) / (training rows) this is the correction of Nadeau and
    Bengio 2003, "Inference for the Generalization Error".

    Arguments:
        differences: one per seed, at least 2.
        level: of confidence, in (0, 1). Default 0.95.
        overlap: r. Default 0.

    Raises:
        ValueError: for a level outside (0, 1) or a negative overlap.

    Example:
        >>> low, high = t_interval(np.array([-1.0, -2.0, -3.0]))
        >>> round(low, 2), round(high, 2)
        (-4.48, 0.48)
    """
    check_real("level", level, 0.0, 1.0, exclusive=True)
    check_real("overlap", overlap, 0.0)
    n = len(differences)
    if n < 2:
        return math.nan, math.nan
    half = (
        stats.t.ppf((1 + level) / 2, n - 1) * differences.std(ddof=1) * math.sqrt(1 / n + overlap)
    )
    mean = differences.mean()
    return float(mean - half), float(mean + half)


def bootstrap_interval(
    differences: np.ndarray, level: float = 0.95, *, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the mean of paired differences over resampled seeds.

    Efron 1979, "Bootstrap Methods: Another Look at the Jackknife". With ten seeds it is
    somewhat narrower than Student's.

    Arguments:
        differences, level: see :func:`t_interval`.
        resamples: number of resamples. Default 10,000.
        seed: of the resampling. Default 0.

    Raises:
        ValueError: for a level outside (0, 1) or resamples below 1.

    Example:
        >>> bootstrap_interval(np.array([-1.0, -2.0, -3.0]), 0.9)
        (-2.666..., -1.333...)
    """
    check_real("level", level, 0.0, 1.0, exclusive=True)
    check_int("resamples", resamples)
    if len(differences) < 2:
        return math.nan, math.nan
    rng = np.random.default_rng(seed)
    means = rng.choice(differences, (resamples, len(differences))).mean(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def summarise(
    scores: pd.DataFrame, baseline: str, *, level: float = 0.95, overlap: float = 0.0
) -> pd.DataFrame:
    """Mean and standard deviation over seeds per model, and the paired comparison.

    Arguments:
        scores: one row per model and seed, with columns ``model``, ``seed`` and scores; others
            than numbers are ignored.
        baseline: the model that others are compared with, seed by seed.
        level, overlap: of the intervals, see :func:`t_interval`.

    Returns:
        A frame indexed by (model, score) with columns ``mean``, ``sd``, ``seeds`` (with a
        score), ``difference`` (mean over paired seeds of this model minus the baseline),
        ``difference_sd``, ``relative`` (the difference as a share of the baseline's mean),
        ``pairs``, ``wins`` (pairs with a lower score than the baseline), ``low`` and ``high``
        (Student's interval of the difference), ``bootstrap_low`` and ``bootstrap_high``.

    Raises:
        ValueError: if the baseline is none of the models.

    Example:
        >>> frame = pd.DataFrame(
        ...     {"model": ["a", "a", "b", "b"], "seed": [0, 1, 0, 1], "nll": [1.0, 2.0, 0.5, 2.5]}
        ... )
        >>> summarise(frame, "a").loc[("b", "nll"), ["mean", "difference", "wins"]].tolist()
        [1.5, 0.0, 1.0]
    """
    table = scores.set_index(["model", "seed"]).select_dtypes("number")
    models = table.index.unique("model")
    if baseline not in models:
        raise ValueError(f"baseline must be one of {list(models)}, got {baseline!r}")
    reference = table.loc[baseline]
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for model in models:
        own = table.loc[model]
        paired = own - reference
        for column in table.columns:
            difference = paired[column].dropna().to_numpy(float)
            low, high = t_interval(difference, level, overlap=overlap)
            bootstrap = bootstrap_interval(difference, level)
            some, base = len(difference) > 0, reference[column].mean()
            rows[model, column] = {
                "mean": own[column].mean(),
                "sd": own[column].std(),
                "seeds": own[column].count(),
                "difference": difference.mean() if some else math.nan,
                "difference_sd": difference.std(ddof=1) if len(difference) > 1 else math.nan,
                "relative": difference.mean() / base if some and base != 0 else math.nan,
                "pairs": len(difference),
                "wins": int((difference < 0).sum()),
                "low": low,
                "high": high,
                "bootstrap_low": bootstrap[0],
                "bootstrap_high": bootstrap[1],
            }
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.index = pd.MultiIndex.from_tuples(frame.index, names=["model", "score"])
    return frame


def entry(summary: pd.DataFrame, model: str, score: str) -> pd.Series:
    """The row of one model and score.

    Example:
        >>> frame = pd.DataFrame({"model": ["a", "a"], "seed": [0, 1], "nll": [1.0, 2.0]})
        >>> float(entry(summarise(frame, "a"), "a", "nll")["mean"])
        1.5
    """
    return cast(pd.Series, summary.loc[(model, score), :])
