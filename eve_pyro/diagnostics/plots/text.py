"""Pictures of text: every token in the colour of a number."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eve_pyro._checks import check_int
from eve_pyro.diagnostics.plots._common import (
    BLUE,
    VERMILLION,
    as_array,
    check_same_length,
    make_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# In widths of a character of the monospaced font, whose characters are so many ems wide.
_LINE, _EM = 2.2, 0.602


def plot_tokens(
    tokens: Sequence[str],
    values: Any,
    *,
    label: str = "value",
    limits: tuple[float, float] | None = None,
    marked: Any = None,
    width: int = 88,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw a text, every token on the colour of its value.

    Lines are broken between tokens, and after a token that ends a line of the text itself, whose
    end is drawn as ↵. The axis counts the tokens.

    Arguments:
        tokens: the pieces of the text in their order, blanks included.
        values: a number for each, (tokens,), such as its entropy.
        label: what the values are, with their unit.
        limits: values of the palest and the deepest colour; give them to compare texts. Default:
            the 1 % and 99 % quantiles of the values.
        marked: booleans, (tokens,), of tokens to put in a frame. Default: none.
        width: characters of a line. Default 88.
        ax: where to draw. Default: a new figure.

    Raises:
        ValueError: for empty, non-finite or unequally long data, limits that do not rise, or a
            width below 1.

    Example:
        >>> ax = plot_tokens(["Call", " me", " Ish", "mael"], [4.1, 1.3, 6.0, 0.1], width=8)
        >>> [patch.get_label() for patch in ax.patches]
        ['Call', ' me', ' Ish', 'mael']
    """
    array = as_array("values", values)
    frames = np.zeros(len(array)) if marked is None else as_array("marked", marked)
    check_same_length(tokens=np.empty(len(tokens)), values=array, marked=frames)
    low, high = np.quantile(array, [0.01, 0.99]) if limits is None else limits
    if limits is not None and not low < high:
        raise ValueError(f"limits must rise, got {limits}")
    places = list(_places(tokens, check_int("width", width)))
    return _draw(tokens, places, width, array, (low, high), frames, label, ax)


def _places(tokens: Sequence[str], width: int) -> Iterator[tuple[int, int]]:
    """Line and column of every token."""
    line = column = 0
    for token in tokens:
        if column and column + len(token) > width:
            line, column = line + 1, 0
        yield line, column
        column += len(token)
        if token.endswith("\n"):
            line, column = line + 1, 0


def _draw(
    tokens: Sequence[str],
    places: list[tuple[int, int]],
    width: int,
    values: np.ndarray,
    limits: tuple[float, float],
    frames: np.ndarray,
    label: str,
    ax: "Axes | None",
) -> "Axes":
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import PathCollection
    from matplotlib.colors import LinearSegmentedColormap, Normalize
    from matplotlib.font_manager import FontProperties
    from matplotlib.patches import Rectangle
    from matplotlib.path import Path
    from matplotlib.textpath import TextPath

    lines = 1 + places[-1][0]
    ax = make_axes(ax, 9.0, max(1.6, 0.8 + 0.2 * lines))
    shades = ScalarMappable(
        Normalize(*limits), LinearSegmentedColormap.from_list("tokens", ["white", VERMILLION])
    )
    font = FontProperties(family="monospace")
    letters: list[Path] = []
    for token, (line, column), value, frame in zip(tokens, places, values, frames, strict=True):
        top = line * _LINE
        ax.add_patch(
            Rectangle(
                (column, top),
                len(token),
                _LINE,
                facecolor=shades.to_rgba(value),
                edgecolor=BLUE if frame else "none",
                linewidth=1.5,
                zorder=2 if frame else 1,
                label=token,
            )
        )
        # As an outline in the units of the axes: it fits its place at every size of the figure.
        # One of blanks alone has none.
        shown = token.replace("\n", "↵").replace("$", r"\$")  # dollars would begin a formula
        if not shown.strip():
            continue
        outline = TextPath((0, 0), shown, 1 / _EM, prop=font)
        turned = outline.vertices * (1, -1) + (column, top + 0.7 * _LINE)  # the axis runs down
        letters.append(Path(turned, outline.codes))
    ax.add_collection(PathCollection(letters, color="black", linewidth=0, zorder=3), autolim=False)
    ax.set_xlim(0, max(width, *map(len, tokens)))
    ax.set_ylim(lines * _LINE, 0)
    ax.set_aspect("equal")
    ax.spines[:].set_visible(False)
    starts = [number for number, (_, column) in enumerate(places) if not column]
    ax.set_xticks([])
    ax.set_yticks([(places[n][0] + 0.5) * _LINE for n in starts], [str(n + 1) for n in starts])
    ax.tick_params(left=False, labelsize="small")
    ax.set_xlabel("the text, line by line")
    ax.set_ylabel("token")
    ax.figure.colorbar(shades, ax=ax, label=label, extend="both", fraction=0.03)
    return ax
