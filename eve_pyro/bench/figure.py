"""The benchmark's picture: values by their targets, and the growth of the cost."""

import math
from typing import TYPE_CHECKING

from eve_pyro.diagnostics.plots._common import BLUE, GREY, VERMILLION, line_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from eve_pyro.bench.report import Results


def draw(results: "Results") -> "Figure":
    """One row per goal that has a bound, met ones blue; beside them cost by size."""
    from matplotlib.figure import Figure

    rows = sum(v.met is not None for v in results.verdicts)
    figure = Figure(figsize=(11, max(4.0, 1.2 + 0.34 * rows)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _goals(left, results)
    _growth(right, results)
    return figure


def _goals(ax: "Axes", results: "Results") -> None:
    judged = [v for v in results.verdicts if v.met is not None]
    ax.axvline(1.0, color=GREY, linewidth=1)
    for row, v in enumerate(judged):
        bound = v.goal.at_most or math.nan
        ends = [[max(v.value - v.low, 0.0) / bound], [max(v.high - v.value, 0.0) / bound]]
        color, marker = (BLUE, "o") if v.met else (VERMILLION, "X")
        ax.errorbar([v.value / bound], [row], xerr=ends, color=color, marker=marker)
    labels = [f"{v.goal}\n{v.comparison}" for v in judged]
    ax.set_yticks(range(len(judged)), labels, fontsize=7)
    ax.invert_yaxis()
    ax.set_xlabel("value / target (circles: met)")
    ax.grid(axis="x", alpha=0.3)


def _growth(ax: "Axes", results: "Results") -> None:
    for g, style in zip(results.growths, line_styles(), strict=False):
        size = [value / g.values[0] for value in g.values]
        cost = [1e3 * s for s in g.seconds]
        label = f"{g.axis} from {g.values[0]}: slope {g.slope:.2f} ({g.expected:g})"
        ax.loglog(size, cost, marker="o", label=label, **style)
    if results.growths:
        ax.legend(frameon=False, fontsize=8, title="in brackets: matrix work alone")
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_xlabel("size, relative to the first point")
    ax.set_ylabel("ms per step")
