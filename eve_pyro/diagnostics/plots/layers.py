"""Pictures of the neurons: per layer, per unit and observation, and over training."""

from typing import TYPE_CHECKING, Any

import numpy as np

from eve_pyro.diagnostics.plots._common import (
    BLUE,
    GREY,
    SKY,
    VERMILLION,
    as_array,
    check_columns,
    check_same_length,
    label_observations,
    make_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

# Up to this many layers are named one by one; more are numbered.
_NAMED = 8


def plot_layers(table: "DataFrame", *, ax: "Axes | None" = None) -> "Axes":
    """Draw each layer's KL per unit, and below it sigma with its spread, over depth.

    A layer whose KL is near zero has returned to the prior, whatever its sigma: it carries no
    information about its input.

    Arguments:
        table: of :func:`~eve_pyro.diagnostics.layer_table`, or another with a row per layer in
            order, named by the index, and the columns ``kl`` (nats per unit), ``sigma``,
            ``sigma_min`` and ``sigma_max``.
        ax: where to draw; its place is divided in two. Default: a new figure.

    Returns the upper axes, of the KL; those of sigma are the last of the figure.

    Raises:
        ValueError: for missing columns, no rows, or an ``ax`` that is not a subplot.

    Example:
        >>> import pandas as pd
        >>> columns = {"kl": [2.0, 0.9], "sigma": [0.2, 0.5], "sigma_min": [0.1, 0.3]}
        >>> table = pd.DataFrame({**columns, "sigma_max": [0.4, 0.9]}, index=["layer0", "layer1"])
        >>> ax = plot_layers(table)
        >>> [each.get_ylabel() for each in ax.figure.axes]
        ['KL per unit (nats)', 'σ']
    """
    columns = ("kl", "sigma", "sigma_min", "sigma_max")
    check_columns("table", table, columns)
    kl, mean, least, most = (as_array(column, table[column]) for column in columns)
    few = len(table) <= _NAMED
    depth = np.arange(1, len(table) + 1)
    upper, lower = _halves(make_axes(ax, 6.4, 4.8))
    marker = "o" if few else ""
    upper.plot(depth, kl, color=VERMILLION, marker=marker)
    upper.set_ylabel("KL per unit (nats)")
    upper.tick_params(labelbottom=False)
    spread: dict[str, Any] = {"color": SKY, "alpha": 0.5, "label": "least to greatest"}
    if few:
        lower.vlines(depth, least, most, linewidth=10, **spread)
    else:
        lower.fill_between(depth, least, most, linewidth=0, **spread)
    lower.plot(depth, mean, color=BLUE, marker=marker, label="mean")
    lower.axhline(1, color=GREY, linestyle="--", linewidth=1, label="N(0, 1)")
    lower.set_ylabel("σ")
    lower.legend(loc="upper center", ncols=3, fontsize="small")
    for panel, headroom in ((upper, 1.1), (lower, 1.35)):  # which holds the legend
        panel.set_ylim(0, headroom * panel.dataLim.y1 or 1.0)
    if few:
        names = [str(name) for name in table.index]
        crowded = sum(map(len, names)) > 60
        lower.set_xticks(depth, names, rotation=30 * crowded, ha="right" if crowded else "center")
        lower.set_xlim(0.5, len(table) + 0.5)
        lower.set_xlabel("layer")
    else:
        lower.set_xlim(1, len(table))
        lower.set_xlabel(f"layer (of {len(table)})")
    return upper


def plot_neurons(
    values: Any,
    order: Any = None,
    *,
    label: str = "σ",
    order_label: str = "key",
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw a statistic of every unit for every observation, as a heat map.

    A row is a unit, ranked by its mean and not by its index. The colours span the 1 % to 99 %
    quantiles of the values.

    Arguments:
        values: sigma, KL or the like, (N, units). Of a result of
            :func:`~eve_pyro.diagnostics.posterior_statistics`, one layer without its padding:
            ``stats.kl.sel(layer="hidden").dropna("unit")``.
        order: key to order the observations by, (N,), whose values label the axis. Default: as
            given.
        label: what the values are, with their unit.
        order_label: what the key is, with its unit.
        ax: where to draw. Default: a new figure.

    Raises:
        ValueError: for empty, non-finite or unequally long data.

    Example:
        >>> ax = plot_neurons(torch.rand(100, 16), torch.randn(100), order_label="x (m)")
        >>> ax.images[0].get_array().shape, ax.get_xlabel()
        ((16, 100), 'observations, by x (m)')
    """
    array = as_array("values", values, 2)
    key = None
    if order is not None:
        key = as_array("order", order)
        check_same_length(values=array, order=key)
        places = np.argsort(key, kind="stable")
        array, key = array[places], key[places]
    array = array[:, np.argsort(array.mean(0), kind="stable")]
    low, high = np.quantile(array, [0.01, 0.99])
    ax = make_axes(ax)
    image = ax.imshow(array.T, aspect="auto", origin="lower", cmap="cividis", vmin=low, vmax=high)
    ax.figure.colorbar(image, ax=ax, label=label, extend="both")
    label_observations(ax, key, order_label)
    ax.set_ylabel(f"units, by mean {label}")
    ax.locator_params(axis="y", integer=True)
    return ax


def plot_sigma_vs_scale(
    sigma: Any,
    scale: Any,
    *,
    sigma_label: str = "local σ",
    scale_label: str = "scale of the noise",
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the neurons' local sigma against the scale of the noise, with their correlation.

    The line is the least-squares fit of sigma, and r Pearson's correlation; both are of all
    observations. A sigma that is constant has none.

    Arguments:
        sigma: local sigma of every observation, (N,), of one unit or averaged over units.
        scale: true scale of its noise, or the size of its residual, (N,).
        sigma_label, scale_label: of the axes, units included.
        ax: where to draw. Default: a new figure.

    Raises:
        ValueError: for empty, non-finite or unequally long data, or a scale that is constant.

    Example:
        >>> scale = torch.rand(100)
        >>> ax = plot_sigma_vs_scale(2 * scale + 1, scale)
        >>> ax.get_legend().get_texts()[0].get_text()
        'r = 1.000'
    """
    sigma, scale = as_array("sigma", sigma), as_array("scale", scale)
    check_same_length(sigma=sigma, scale=scale)
    if np.ptp(scale) == 0:
        raise ValueError("scale must vary from one observation to another, got a constant")
    constant = np.ptp(sigma) == 0
    slope = np.cov(scale, sigma)[0, 1] / scale.var(ddof=1)
    r = np.nan if constant else slope * scale.std() / sigma.std()
    ax = make_axes(ax, 4.8, 4.0)
    alpha = float(np.clip(200 / len(scale), 0.15, 0.8))
    ax.plot(scale, sigma, "o", color=BLUE, markersize=3.5, markeredgewidth=0, alpha=alpha)
    ends = np.array([scale.min(), scale.max()])
    fitted = sigma.mean() + slope * (ends - scale.mean())
    label = "no r: constant" if constant else f"r = {r:.3f}"
    ax.plot(ends, fitted, color=VERMILLION, label=label)
    ax.set_xlabel(scale_label)
    ax.set_ylabel(sigma_label)
    ax.set_ylim(bottom=0, auto=True)
    ax.legend(fontsize="small")
    return ax


def _halves(ax: "Axes") -> tuple["Axes", "Axes"]:
    """Split the place of ``ax`` into two panels, of which it is the upper one."""
    place = ax.get_subplotspec()
    if place is None:
        raise ValueError("ax must be a subplot, whose place can be divided, got free axes")
    grid = place.subgridspec(2, 1, hspace=0.08)
    ax.set_subplotspec(grid[0])
    lower = ax.figure.add_subplot(grid[1], sharex=ax)
    return ax, lower
