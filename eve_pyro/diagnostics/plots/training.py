"""Pictures of a training run: its curves, and its layers step by step."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from eve_pyro.diagnostics.plots._common import (
    as_array,
    check_columns,
    check_named,
    line_styles,
    make_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

# More layers than this are told apart by a colour scale instead of a legend.
_NAMED = 7


def plot_training(
    history: Any,
    *,
    loss_label: str = "loss (nats per datum)",
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the loss and the validation score of a training run, or of several, by epoch.

    Training is thin, validation bold, with a dot at the best epoch. The y axis is fitted to all
    but the first tenth of the epochs, whose losses would dwarf the others.

    Arguments:
        history: a :class:`~eve_pyro.infer.History`, its frame, or a mapping from models' names
            to either. Columns ``epoch``, ``train_loss`` and, where there was one, ``validation``.
        loss_label: of the y axis, with the unit.
        ax: where to draw. Default: a new figure.

    Raises:
        ValueError: for missing columns, or no rows.

    Example:
        >>> import pandas as pd
        >>> columns = {"epoch": [1, 2, 3], "train_loss": [3.0, 2.0, 1.0]}
        >>> ax = plot_training(pd.DataFrame({**columns, "validation": [3.0, 2.0, 2.5]}))
        >>> [line.get_label() for line in ax.get_lines()]
        ['training', 'validation', 'best: epoch 2']
    """
    several = isinstance(history, Mapping)
    runs: Mapping[str, Any] = history if several else {"": history}
    check_named("history", runs)
    frames = {name: getattr(run, "frame", run) for name, run in runs.items()}
    for name, frame in frames.items():
        check_columns(name or "history", frame, ("epoch", "train_loss"))
    ax = make_axes(ax)
    late = []  # what the y axis is to hold
    for (name, frame), style in zip(frames.items(), line_styles(), strict=False):
        prefix = f"{name}, " if several else ""
        epoch = as_array("epoch", frame["epoch"])
        loss = as_array("train_loss", frame["train_loss"])
        late.append(loss[len(loss) // 10 :])
        ax.plot(epoch, loss, linewidth=1, alpha=0.7, label=f"{prefix}training", **style)
        if "validation" not in frame or frame["validation"].isna().all():
            continue
        score = np.asarray(frame["validation"], dtype=np.float64)
        late.append(score[len(score) // 10 :])
        ax.plot(epoch, score, linewidth=2, label=f"{prefix}validation", **style)
        best = np.nanargmin(score)
        ax.plot(
            epoch[best],
            score[best],
            "o",
            color=style["color"],
            markersize=8,
            markeredgecolor="white",
            label=f"{prefix}best: epoch {epoch[best]:g}",
        )
    values = np.concatenate(late)
    low, high = np.nanmin(values), np.nanmax(values)
    margin = 0.05 * (high - low) or 1.0
    ax.set_ylim(low - margin, high + margin)
    ax.set_xlabel("epoch")
    ax.set_ylabel(loss_label)
    ax.legend(fontsize="small")
    return ax


def plot_evolution(
    frame: "DataFrame", column: str, *, label: str | None = None, ax: "Axes | None" = None
) -> "Axes":
    """Draw a statistic of every layer over the steps of training.

    Few layers have a legend, many are coloured by depth.

    Arguments:
        frame: of a :class:`~eve_pyro.diagnostics.Monitor`, or another with a row per step and layer
            (in order of depth), and the columns ``step``, ``layer`` and ``column``.
        column: the statistic to draw.
        label: of the y axis, with the unit. Default: ``column``.
        ax: where to draw. Default: a new figure.

    Raises:
        ValueError: for missing columns, no rows, or values that are not finite.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"step": [0, 0, 9, 9], "layer": ["a", "b"] * 2, "kl": range(4)})
        >>> ax = plot_evolution(frame, "kl", label="KL per unit (nats)")
        >>> [(line.get_label(), line.get_ydata().tolist()) for line in ax.get_lines()]
        [('a', [0.0, 2.0]), ('b', [1.0, 3.0])]
    """
    check_columns("frame", frame, ("step", "layer", column))
    groups = list(frame.groupby("layer", sort=False))
    ax = make_axes(ax)
    few = len(groups) <= _NAMED
    styles = line_styles() if few else _by_depth(ax, len(groups))
    for (layer, rows), style in zip(groups, styles, strict=False):
        rows = rows.sort_values("step")
        steps, values = as_array("step", rows["step"]), as_array(column, rows[column])
        ax.plot(steps, values, label=str(layer), **style)
    ax.set_xlabel("step")
    ax.set_ylabel(column if label is None else label)
    if few:
        ax.legend(title="layer", fontsize="small")
    return ax


def _by_depth(ax: "Axes", count: int) -> Iterator[dict[str, Any]]:
    """Yield the styles of ``count`` layers, coloured by a scale drawn beside ``ax``."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    # The scale's last tenth would be too pale for a line.
    scale = ScalarMappable(Normalize(1, 1.1 * count), cmap="cividis")
    bar = ax.figure.colorbar(scale, ax=ax, label=f"layer (of {count})")
    bar.ax.set_ylim(1, count)
    return ({"color": c, "linewidth": 1} for c in scale.to_rgba(np.arange(1, count + 1)))
