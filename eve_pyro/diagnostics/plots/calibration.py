"""Pictures of whether predicted probabilities hold, and whether uncertainty ranks errors."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eve_pyro._checks import check_int
from eve_pyro.diagnostics.plots._common import (
    BLACK,
    BLUE,
    GREY,
    as_array,
    as_target,
    check_levels,
    check_named,
    line_styles,
    make_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_calibration(
    curves: Mapping[str, Any],
    y: Any = None,
    *,
    levels: Sequence[float] | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the observed coverage of central intervals against the predicted one.

    A curve below the diagonal promises more than it keeps. If observations are given, a band
    shows where a calibrated model's coverage would be found in 95 % of samples of that size, at
    each level by itself.

    Arguments:
        curves: per model's name the pair (expected, observed) of one coverage per level, (L,)
            each, or a :class:`~eve_pyro.infer.GaussianMixture` of the shape of y.
        y: observations, for predictives.
        levels: probabilities of the intervals, in (0, 1), for predictives. Default: 0.05, 0.1,
            ..., 0.95.
        ax: where to draw. Default: a new figure.

    Raises:
        ValueError: without curves, for a predictive without y, or for data that do not match.

    Example:
        >>> from eve_pyro.infer import GaussianMixture
        >>> predictive = GaussianMixture(torch.zeros(1, 50), torch.ones(1, 50))
        >>> ax = plot_calibration({"EVE": predictive}, torch.randn(50))
        >>> [line.get_label() for line in ax.get_lines()]
        ['calibrated (below: too narrow)', 'EVE']
        >>> ax = plot_calibration({"EVE": ([0.5, 0.9], [0.4, 0.8])})
    """
    check_named("curves", curves)
    grid = check_levels(np.linspace(0.05, 0.95, 19).tolist() if levels is None else levels)
    found = {name: _coverage(name, curve, y, grid) for name, curve in curves.items()}
    ax = make_axes(ax, 4.6, 4.4)
    ax.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1, label="calibrated (below: too narrow)")
    if y is not None:
        edge = np.linspace(0, 1, 201)
        count = as_array("y", y, None).size
        band = _binomial_range(count, edge)
        label = f"95 % range (N = {count})"
        ax.fill_between(edge, *band, color=GREY, alpha=0.2, linewidth=0, label=label)
    for (name, (expected, observed)), style in zip(found.items(), line_styles(), strict=False):
        ax.plot(expected, observed, marker="o", markersize=3, label=name, **style)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ax.set_xlabel("probability of the central interval")
    ax.set_ylabel("share of observations inside")
    ax.legend(fontsize="small")
    return ax


def plot_pit(predictive: Any, y: Any, *, bins: int = 20, ax: "Axes | None" = None) -> "Axes":
    """Draw the histogram of the probability integral transform F(y), flat if calibrated.

    A U shape says that intervals are too narrow, a hump that they are too wide, a slope that
    predictions are biased. Each bar of a calibrated model stays in the band with a probability
    of 95 %, so one in twenty may leave it.

    Arguments:
        predictive: a :class:`~eve_pyro.infer.GaussianMixture`.
        y: observations, of the predictive's shape.
        bins: number of bars. Default 20.
        ax: where to draw. Default: a new figure.

    Raises:
        ValueError: for bins below 1, or a y that does not fit the predictive.

    Example:
        >>> from eve_pyro.infer import GaussianMixture
        >>> predictive = GaussianMixture(torch.zeros(1, 50), torch.ones(1, 50))
        >>> ax = plot_pit(predictive, torch.randn(50), bins=5)
        >>> len(ax.containers[0])  # the bars
        5
    """
    from eve_pyro.metrics import pit

    bins = check_int("bins", bins)
    values = as_array("y", pit(predictive, as_target(predictive, y)), None)
    # A cdf exceeds 1 by rounding at times.
    counts, edges = np.histogram(values.clip(0, 1), bins=bins, range=(0, 1))
    scale = bins / len(values)  # of a count to a density
    ax = make_axes(ax)
    ax.bar(edges[:-1], counts * scale, 1 / bins, align="edge", color=BLUE, edgecolor="white")
    lower, upper = _binomial_range(len(values), np.array([1 / bins]))[:, 0] * bins
    ax.axhspan(
        lower,
        upper,
        color=GREY,
        alpha=0.35,
        linewidth=0,
        zorder=2,
        label=f"95 % range (N = {len(values)})",
    )
    ax.axhline(1, color=BLACK, linestyle="--", linewidth=1, label="calibrated")
    ax.set(xlim=(0, 1), ylim=(0, 1.25 * max(upper, counts.max() * scale)))
    ax.set_xlabel("predicted probability of a lower value, F(y)")
    ax.set_ylabel("density (calibrated: 1)")
    ax.legend(fontsize="small", loc="upper center", ncols=2)
    return ax


def plot_risk_coverage(
    curves: Mapping[str, tuple[Any, Any]],
    *,
    risk_label: str = "risk",
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the error among the observations kept when the least certain are left out.

    The lower a curve, the better its signal ranks errors. One that ranks nothing is flat, at
    the risk of all observations: drawn where all curves end at one risk, as those of several
    signals of one model do.

    Geifman and El-Yaniv, "Selective classification for deep neural networks", 2017.

    Arguments:
        curves: per signal's name the pair (coverage, risk): the share of observations kept, in
            (0, 1], and the mean error among them, (L,) each.
        risk_label: of the y axis, with the unit.
        ax: where to draw. Default: a new figure.

    Raises:
        ValueError: without curves, or for empty, non-finite or unequally long ones.

    Example:
        >>> ax = plot_risk_coverage({"sigma": ([0.5, 1.0], [0.1, 0.3])}, risk_label="RMSE (MPa)")
        >>> [line.get_label() for line in ax.get_lines()]
        ['sigma', 'no ranking']
    """
    check_named("curves", curves)
    found = {name: _pair(name, curve) for name, curve in curves.items()}
    ax = make_axes(ax)
    for (name, (coverage, risk)), style in zip(found.items(), line_styles(), strict=False):
        ax.plot(coverage, risk, label=name, **style)
    ends = [risk[np.argmax(coverage)] for coverage, risk in found.values()]
    if np.allclose(ends, ends[0]):
        ax.axhline(ends[0], color=GREY, linestyle="--", linewidth=1, label="no ranking")
    ax.set_xlim(0, 1)
    ax.set_ylim(bottom=min(0, ax.get_ylim()[0]), auto=True)
    ax.set_xlabel("share of observations kept, most certain first")
    ax.set_ylabel(risk_label)
    ax.legend(fontsize="small")
    return ax


def _coverage(name: str, curve: Any, y: Any, levels: list[float]) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(curve, tuple | list):
        return _pair(name, curve)
    if y is None:
        raise ValueError(f"y must be given with predictives such as {name!r}, got None")
    from eve_pyro.metrics import calibration_curve

    return _pair(name, calibration_curve(curve, as_target(curve, y), levels))


def _pair(name: str, curve: Any) -> tuple[np.ndarray, np.ndarray]:
    if len(curve) != 2:
        raise ValueError(f"curve {name!r} must be a pair, got {len(curve)} items")
    first, second = (as_array(f"curve {name!r}", values) for values in curve)
    if len(first) != len(second):
        raise ValueError(
            f"curve {name!r} must be a pair of one length, got {len(first)} and {len(second)}"
        )
    return first, second


def _binomial_range(count: int, probability: np.ndarray) -> np.ndarray:
    """Return the central 95 % range of a share of ``count`` trials, (2, *probability.shape)."""
    from scipy.stats import binom  # here, because it takes a while to import

    return np.stack(binom.interval(0.95, count, probability)) / count
