"""How the cost of a step grows with one size while the others stay."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from eve_pyro.bench.harness import Comparison, Measurement, Timer
from eve_pyro.bench.sizes import Sizes, Sweep, Work
from eve_pyro.bench.steps import eve


@dataclass(frozen=True)
class Growth:
    """The cost along one axis.

    Arguments:
        axis, values: what grew.
        seconds: median per step at each value.
        slope: of log seconds by log value.
        expected: the slope where matrix products dominate; fixed costs lower it.
    """

    axis: str
    values: tuple[int, ...]
    seconds: tuple[float, ...]
    slope: float
    expected: float


def growth_comparison(sizes: Sizes) -> Comparison:
    """All points of all sweeps as contestants of one comparison; the base is in it once.

    Example:
        >>> from eve_pyro.bench.sizes import MODES
        >>> list(growth_comparison(MODES["smoke"]).contestants)[:3]
        ['base', 'batch=10', 'units=8']
    """
    points = {
        _name(sizes.work, sweep, value): sizes.work.but(**{sweep.axis: value})
        for sweep in sizes.sweeps
        for value in sweep.values
    }
    how = "compiled" if sizes.sweep_backend == "inductor" else "traced"
    return Comparison(
        f"growth, {how}, from {sizes.work.layers} x {sizes.work.units}",
        {name: partial(eve, work, sizes.sweep_backend) for name, work in points.items()},
        goals=(),
        meter=Timer(sizes.turn),
        rounds=sizes.rounds,
    )


def growths(sizes: Sizes, measurements: Sequence[Measurement]) -> list[Growth]:
    """The slopes of all sweeps whose points were measured, two or more of them.

    Example:
        >>> from eve_pyro.bench.sizes import MODES
        >>> names = list(growth_comparison(MODES["smoke"]).contestants)
        >>> ms = [Measurement("", n, "s", samples=[2.0 if "=" in n else 1.0]) for n in names]
        >>> [round(g.slope, 6) for g in growths(MODES["smoke"], ms)]
        [1.0, 1.0, 1.0, 1.0, 1.0]
    """
    seconds = {m.contestant: m.median for m in measurements if m.samples}
    found = []
    for sweep in sizes.sweeps:
        named = {value: _name(sizes.work, sweep, value) for value in sweep.values}
        points = {value: seconds[name] for value, name in named.items() if name in seconds}
        if len(points) > 1:
            values, medians = tuple(points), tuple(points.values())
            slope = log_slope(values, medians)
            found.append(Growth(sweep.axis, values, medians, slope, sweep.expected))
    return found


def log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The least-squares slope of log y by log x.

    Example:
        >>> round(log_slope([1, 2, 4], [3.0, 12.0, 48.0]), 6)
        2.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _name(base: Work, sweep: Sweep, value: int) -> str:
    return "base" if value == getattr(base, sweep.axis) else f"{sweep.axis}={value}"
