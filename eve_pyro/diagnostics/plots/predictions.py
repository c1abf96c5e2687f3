"""Pictures of predictive distributions, next to what was observed."""

from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from eve_pyro._checks import check_int
from eve_pyro.diagnostics.plots._common import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    SKY,
    VERMILLION,
    as_array,
    check_levels,
    check_same_length,
    label_observations,
    make_axes,
    percent,
    tint,
    with_unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_predictions(
    predictive: Any,
    y: Any,
    *,
    levels: Sequence[float] = (0.5, 0.9),
    unit: str = "",
    max_points: int = 150,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw observed against predicted values, with the intervals that were predicted.

    Every observation stands at its predictive mean on the x axis, on a bar that spans the
    central intervals. Of a calibrated prediction, nine in ten lie on their 90 % bar; those off
    the widest bar are marked, and counted in the legend.

    Arguments:
        predictive: a :class:`~eve_pyro.infer.GaussianMixture` of shape (N,), or anything with
            its ``mean`` and ``interval(level)``.
        y: observations, (N,).
        levels: probabilities of the central intervals, in (0, 1).
        unit: of y, for the labels.
        max_points: observations to draw; of more, as many are taken at equal steps of the
            ranked means. The legend's count is over all.
        ax: where to draw. Default: a new figure.

    Raises:
        ValueError: for empty, non-finite or unequally long data, levels outside (0, 1), or
            max_points below 1.

    Example:
        >>> from eve_pyro.infer import GaussianMixture
        >>> predictive = GaussianMixture(torch.randn(8, 50), torch.ones(8, 50))
        >>> ax = plot_predictions(predictive, torch.randn(50), unit="MPa")
        >>> ax.get_xlabel(), ax.get_ylabel()
        ('predicted mean (MPa)', 'observed (MPa)')
    """
    levels = check_levels(levels)
    mean, target = as_array("predictive.mean", predictive.mean), as_array("y", y)
    check_same_length(predictive=mean, y=target)
    intervals = [[as_array("interval", end) for end in predictive.interval(p)] for p in levels]
    lowest, highest = intervals[-1]
    outside = (target < lowest) | (target > highest)

    order = np.argsort(mean, kind="stable")
    places = np.linspace(0, len(mean) - 1, min(check_int("max_points", max_points), len(mean)))
    shown = order[places.round().astype(int)]
    x, off = mean[shown], outside[shown]

    ax = make_axes(ax)
    middle = mean[shown].mean()
    ax.axline((middle, middle), slope=1, color=GREY, linewidth=1, linestyle="--", label="ideal")
    widths = np.linspace(4, 1, len(levels)) if len(levels) > 1 else [1.5]
    for level, width, (lower, upper) in zip(levels, widths, intervals, strict=True):
        ax.vlines(
            x,
            lower[shown],
            upper[shown],
            color=SKY,
            linewidth=width,
            alpha=0.6,
            label=f"{percent(level)} interval",
        )
    drawn = "observed" if len(shown) == len(mean) else f"observed ({len(shown)} of {len(mean)})"
    ax.plot(x[~off], target[shown][~off], "o", color=BLUE, markersize=3.5, label=drawn)
    found = f"outside {percent(levels[-1])}: {percent(outside.mean())} of {len(mean)}"
    ax.plot(x[off], target[shown][off], "X", color=VERMILLION, markersize=6, label=found)
    ax.set_xlabel(with_unit("predicted mean", unit))
    ax.set_ylabel(with_unit("observed", unit))
    ax.legend(fontsize="small")
    return ax


def plot_predictive_band(
    x: Any,
    predictive: Any,
    y: Any = None,
    *,
    levels: Sequence[float] = (0.5, 0.9),
    x_label: str = "x",
    y_label: str = "y",
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the prediction along one input: mean, intervals and what the draws disagree about.

    The blue bands are central intervals of the whole prediction. The hatched one inside them is
    its epistemic part: the range that the mean itself would have with the widest level's
    probability if it were Gaussian. What blue adds to it is aleatoric, noise in every draw.

    Arguments:
        x: inputs, (N,), in any order.
        predictive: a :class:`~eve_pyro.infer.GaussianMixture` of shape (N,), or anything with
            its ``mean``, ``epistemic`` and ``interval(level)``.
        y: observations to draw at x, (N,). Default none.
        levels: probabilities of the central intervals, in (0, 1).
        x_label, y_label: of the axes, units included.
        ax: where to draw. Default: a new figure.

    Raises:
        ValueError: for empty, non-finite or unequally long data, or levels outside (0, 1).

    Example:
        >>> from eve_pyro.infer import GaussianMixture
        >>> x = torch.linspace(-1, 1, 30)
        >>> predictive = GaussianMixture(x + 0.1 * torch.randn(8, 1), torch.ones(8, 30))
        >>> ax = plot_predictive_band(x, predictive, torch.randn(30), x_label="time (s)")
        >>> ax.get_xlabel(), ax.get_legend().get_texts()[-1].get_text()
        ('time (s)', 'observed')
    """
    levels = check_levels(levels)
    inputs, mean = as_array("x", x), as_array("predictive.mean", predictive.mean)
    check_same_length(x=inputs, predictive=mean)
    order = np.argsort(inputs, kind="stable")
    inputs, mean = inputs[order], mean[order]
    ax = make_axes(ax)
    # From the widest, so that the narrower bands lie on top.
    shades = np.linspace(0.35, 0.75, len(levels))
    for level, share in zip(levels[::-1], shades, strict=True):
        lower, upper = (as_array("interval", end)[order] for end in predictive.interval(level))
        label = f"{percent(level)} of observations"
        ax.fill_between(inputs, lower, upper, color=tint(SKY, share), linewidth=0, label=label)
    z = NormalDist().inv_cdf((1 + levels[-1]) / 2)
    spread = z * np.sqrt(as_array("predictive.epistemic", predictive.epistemic)[order])
    ax.fill_between(
        inputs,
        mean - spread,
        mean + spread,
        facecolor="none",
        edgecolor=ORANGE,
        hatch="////",
        label=f"{percent(levels[-1])} of means (epistemic)",
    )
    ax.plot(inputs, mean, color=BLUE, label="mean")
    if y is not None:
        target = as_array("y", y)
        check_same_length(x=inputs, y=target)
        ax.plot(
            inputs,
            target[order],
            "o",
            color=BLACK,
            markersize=3,
            markeredgewidth=0,
            alpha=0.6,
            label="observed",
        )
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.margins(x=0)
    ax.legend(fontsize="small")
    return ax


def plot_uncertainty_split(
    predictive: Any,
    order: Any = None,
    *,
    order_label: str = "key",
    unit: str = "",
    max_points: int = 100,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw how the uncertainty of each observation splits into noise and disagreement.

    The two parts are stacked, so that their upper edge is the whole: the variance of a
    real-valued target, the entropy of a label. The legend gives their shares of the sum over
    all observations.

    Arguments:
        predictive: a mixture of shape (N,), or anything with its ``aleatoric`` and
            ``epistemic``.
        order: key to order the observations by, (N,), whose values label the axis. Default: the
            whole uncertainty.
        order_label: what the key is, with its unit.
        unit: of a real-valued target, for the label.
        max_points: observations to draw one by one; of more, neighbours in the order are
            averaged in as many groups.
        ax: where to draw. Default: a new figure.

    Raises:
        ValueError: for empty, non-finite or unequally long data, or max_points below 1.

    Example:
        >>> from eve_pyro.infer import GaussianMixture
        >>> predictive = GaussianMixture(torch.randn(8, 50), torch.rand(8, 50) + 0.5)
        >>> ax = plot_uncertainty_split(predictive, unit="MPa")
        >>> ax.get_ylabel()
        'predictive variance (MPa²)'
    """
    epistemic = as_array("predictive.epistemic", predictive.epistemic)
    aleatoric = as_array("predictive.aleatoric", predictive.aleatoric)
    total = epistemic + aleatoric
    key = total if order is None else as_array("order", order)
    check_same_length(predictive=total, order=key)
    ranked = np.argsort(key, kind="stable")
    share = epistemic.sum() / total.sum() if total.any() else 0.0
    groups = np.array_split(np.arange(len(key)), min(check_int("max_points", max_points), len(key)))
    x = np.linspace(0, len(key) - 1, len(groups))
    parts = ([part[ranked[group]].mean() for group in groups] for part in (epistemic, aleatoric))

    ax = make_axes(ax)
    labels = (f"epistemic ({percent(share)})", f"aleatoric ({percent(1 - share)})")
    ax.stackplot(x, *parts, labels=labels, colors=(ORANGE, SKY))
    label_observations(ax, key[ranked], "uncertainty" if order is None else order_label)
    entropy = hasattr(predictive, "probs")  # a distribution of labels
    variance = with_unit("predictive variance", f"{unit}²" if unit else "")
    ax.set_ylabel("predictive entropy (nats)" if entropy else variance)
    ax.margins(x=0)
    ax.set_ylim(0, 1.15 * ax.dataLim.y1)  # room for the legend
    ax.legend(reverse=True, loc="upper center", ncols=2, fontsize="small")
    return ax
