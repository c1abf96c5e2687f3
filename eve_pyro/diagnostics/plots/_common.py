"""What the plots share: axes, colours, and data of any kind as arrays."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle, product
from typing import TYPE_CHECKING, Any

import numpy as np

from eve_pyro._checks import check_real

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito, "Color universal design", 2008: eight colours that colour-blind readers tell
# apart; here in the order in which lines use them, without the yellow too pale for a line.
BLUE, VERMILLION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
PURPLE, SKY, BLACK, GREY = "#CC79A7", "#56B4E9", "#000000", "#808080"
PALETTE = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, BLACK)


def make_axes(ax: "Axes | None", width: float = 6.4, height: float = 4.0) -> "Axes":
    """Return ``ax``, or the axes of a new figure that no global state knows of."""
    if ax is not None:
        return ax
    from eve_pyro.diagnostics.plots._figure import NotebookFigure

    return NotebookFigure(figsize=(width, height), layout="constrained").subplots()


def line_styles() -> Iterator[dict[str, Any]]:
    """Yield a style per line without end; dashes tell lines apart after the last colour.

    >>> next(line_styles())
    {'linestyle': '-', 'color': '#0072B2'}
    """
    dashes = ("-", "--", ":", "-.")
    return ({"linestyle": d, "color": c} for d, c in cycle(product(dashes, PALETTE)))


def as_array(name: str, values: Any, ndim: int | None = 1) -> np.ndarray:
    """Return tensors, frames, series and lists alike as a finite, non-empty float64 array.

    With ``ndim=None`` every shape will do, and is flattened.

    >>> as_array("y", torch.ones(2, requires_grad=True))
    array([1., 1.])
    >>> as_array("y", [])
    Traceback (most recent call last):
    ...
    ValueError: y must be a non-empty 1-d array, got shape (0,)
    """
    if hasattr(values, "detach"):  # a tensor, perhaps in bfloat16 or on another device
        values = values.detach().cpu().double()
    array = np.asarray(values, dtype=np.float64)
    accepted = "" if ndim is None else f" {ndim}-d"
    if not array.size or (ndim is not None and array.ndim != ndim):
        raise ValueError(f"{name} must be a non-empty{accepted} array, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got nan or inf among its values")
    return array.reshape(-1) if ndim is None else array


def as_target(predictive: Any, y: Any) -> Any:
    """Return ``y`` as a tensor of the predictive's dtype and device, as the metrics take it."""
    if hasattr(y, "detach"):
        y = y.detach().cpu().double()
    return predictive.mean.new_tensor(np.asarray(y, dtype=np.float64))


def check_same_length(**arrays: np.ndarray) -> None:
    """Raise a ``ValueError`` unless all arrays have the same length.

    >>> check_same_length(x=np.ones(2), y=np.ones(3))
    Traceback (most recent call last):
    ...
    ValueError: x and y must have the same length, got 2 and 3
    """
    lengths = [len(array) for array in arrays.values()]
    if len(set(lengths)) > 1:
        given = " and ".join(map(str, lengths))
        raise ValueError(f"{' and '.join(arrays)} must have the same length, got {given}")


def check_levels(levels: Iterable[float]) -> list[float]:
    """Return probabilities of central intervals, in (0, 1), from the narrowest to the widest."""
    found = sorted(check_real("levels", level, 0.0, 1.0, exclusive=True) for level in levels)
    if not found:
        raise ValueError("levels must hold at least one probability, got none")
    return found


def check_named(name: str, values: Mapping[str, Any]) -> None:
    """Raise a ``ValueError`` unless ``values`` is a mapping that holds anything."""
    if not isinstance(values, Mapping) or not values:
        raise ValueError(f"{name} must be a non-empty mapping from names, got {values!r}")


def check_columns(name: str, frame: Any, columns: Sequence[str]) -> None:
    """Raise a ``ValueError`` unless a data frame has rows and these columns."""
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise ValueError(f"{name} must have the columns {missing}, got {list(frame.columns)}")
    if not len(frame):
        raise ValueError(f"{name} must have at least one row, got none")


def with_unit(label: str, unit: str) -> str:
    """Return the label of an axis with its unit, if there is one.

    >>> with_unit("strength", "MPa"), with_unit("strength", "")
    ('strength (MPa)', 'strength')
    """
    return f"{label} ({unit})" if unit else label


def percent(share: float) -> str:
    """Return a share as a percentage with the digits that it needs.

    >>> percent(0.9), percent(0.975)
    ('90 %', '97.5 %')
    """
    return f"{100 * share:.3g} %"


def label_observations(ax: "Axes", key: np.ndarray | None, name: str) -> None:
    """Label an x axis of observations 0, 1, ... by the values of the sorted key that ordered them.

    Without a key they stand in the order in which they were given.
    """
    if key is None:
        ax.set_xlabel("observations, as given")
        return
    ax.set_xlabel(f"observations, by {name}")
    places = np.unique(np.linspace(0, len(key) - 1, 6).round().astype(int))
    ax.set_xticks(places, [f"{key[place]:.3g}".replace("-", "−") for place in places])


def tint(color: str, share: float) -> str:
    """Return ``color`` mixed with white, of which it keeps a share.

    >>> tint("#0072B2", 0.5)
    '#7fb8d8'
    """
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{int(255 - share * (255 - part)):02x}" for part in parts)
