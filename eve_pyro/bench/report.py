"""What a benchmark found, for people (tables of 80 columns) and for programs (JSON)."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from eve_pyro.bench.growth import Growth
from eve_pyro.bench.harness import Measurement
from eve_pyro.bench.sizes import Mode, Sizes
from eve_pyro.bench.verdict import Verdict

FORMAT = 1
WIDTH = 80
CONDITIONS = (
    "A step is zero_grad, loss with its noise, backward and fused Adam on fixed data. "
    "Contestants of a comparison take turns in one process; ratios are within rounds, medians "
    "over rounds with quartiles. Pyro's checks are off unless said. Compilation starts from an "
    "empty cache, which later comparisons of the run share."
)


@dataclass
class Results:
    """All that one run of the benchmark found.

    Arguments:
        mode, sizes, threads: of the run.
        environment: machine and versions.
        comparisons: number of all comparisons of the mode, finished or not.
        finished: names of the finished ones.
        seconds: of the whole run.
    """

    mode: Mode
    sizes: Sizes
    threads: int
    environment: dict[str, Any]
    comparisons: int
    finished: list[str] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    growths: list[Growth] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def interrupted(self) -> bool:
        return len(self.finished) < self.comparisons


def to_json(results: Results) -> str:
    """The results with all samples; what is not a number there is null."""
    return json.dumps(_finite(_record(results)), indent=1) + "\n"


def _record(results: Results) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "mode": results.mode,
        "interrupted": results.interrupted,
        "seconds": results.seconds,
        "threads": results.threads,
        "environment": results.environment,
        "conditions": CONDITIONS,
        "sizes": asdict(results.sizes),
        "goals": [
            {
                "comparison": v.comparison,
                **asdict(v.goal),
                "value": v.value,
                "quartiles": [v.low, v.high],
                "unit": v.unit,
                "met": v.met,
                "unavailable": v.unavailable,
            }
            for v in results.verdicts
        ],
        "growth": [asdict(g) for g in results.growths],
        "measurements": [
            {**asdict(m), "median": m.median, "quartiles": list(m.quartiles)}
            for m in results.measurements
        ],
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def quantity(value: float, unit: str) -> str:
    """A measured value in a unit that suits it.

    Example:
        >>> quantity(0.0123, "s"), quantity(2.5e6, "B"), quantity(1.234, ""), quantity(1e4, "")
        ('12.3 ms', '2.38 MiB', '1.23', '10,000')
    """
    if math.isnan(value):
        return "-"
    if unit == "B":
        return f"{value / 2**20:.3g} MiB"
    if unit == "s":
        return f"{value:.3g} s" if abs(value) >= 1 else f"{1e3 * value:.3g} ms"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"


def render(results: Results) -> RenderableType:
    """The report: ratios first, then growth, the measurements behind, and the conditions."""
    return Group(*_parts(results))


def _parts(results: Results) -> Iterator[RenderableType]:
    yield _goal_table(results.verdicts)
    yield ""
    if results.growths:
        yield _growth_table(results.growths)
        yield ""
    yield _measurement_table(results.measurements)
    yield ""
    for m in results.measurements:
        if m.unavailable is not None:
            yield f"{m.contestant} ({m.comparison}): {m.unavailable}"
    judged = [v.met for v in results.verdicts if v.met is not None]
    yield f"{sum(judged)} of {len(judged)} targets met"
    if results.interrupted:
        yield f"interrupted: {len(results.finished)} of {results.comparisons} comparisons finished"
    yield ""
    yield CONDITIONS
    about = ", ".join(f"{k} {v}" for k, v in results.environment.items())
    yield f"{about}; threads {results.threads}; {results.mode} mode, {results.seconds:.0f} s"


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.title_justify = "left"
    table.add_column(first, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _goal_table(verdicts: Sequence[Verdict]) -> Table:
    table = _table("cost against others", "", "median", "quartiles", "target", "")
    section = None
    for v in verdicts:
        if v.comparison != section:
            section = v.comparison
            table.add_row(f"[bold]{section}[/bold]")
        bound = "" if v.goal.at_most is None else quantity(v.goal.at_most, v.unit)
        mark = {True: "[green]met[/green]", False: "[red]missed[/red]", None: ""}[v.met]
        spread = _spread(v.low, v.high, v.unit) if v.goal.quantity != "start-up" else ""
        table.add_row(f" {v.goal}", quantity(v.value, v.unit), spread, bound, mark)
    return table


def _growth_table(growths: Sequence[Growth]) -> Table:
    table = _table("how the cost of a step grows", "axis", "values", "ms", "slope", "matrix work")
    for g in growths:
        values = ", ".join(str(v) for v in g.values)
        cost = ", ".join(f"{1e3 * s:.3g}" for s in g.seconds)
        table.add_row(g.axis, values, cost, f"{g.slope:.2f}", f"{g.expected:.2f}")
    return table


def _measurement_table(measurements: Sequence[Measurement]) -> Table:
    table = _table("measured", "", "median", "quartiles", "first step")
    section = None
    for m in measurements:
        if m.comparison != section:
            section = m.comparison
            table.add_row(f"[bold]{section}[/bold]")
        first = "" if m.unit == "" else quantity(m.start_up, "s")
        cells = (quantity(m.median, m.unit), _spread(*m.quartiles, m.unit), first)
        table.add_row(f" {m.contestant}", *(("unavailable", "", "") if m.unavailable else cells))
    return table


def _spread(low: float, high: float, unit: str) -> str:
    if math.isnan(low):
        return ""
    ends = [quantity(end, unit) for end in (low, high)]
    if unit and ends[0].split()[1] == ends[1].split()[1]:
        ends[0] = ends[0].split()[0]
    return " to ".join(ends)
