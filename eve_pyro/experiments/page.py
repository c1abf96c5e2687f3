"""A results page: Markdown with tables, figures and verdicts, written by the command alone."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pandas as pd

from eve_pyro._checks import check_choice
from eve_pyro.experiments.output import OutputFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Status = Literal["reproduced", "partly", "not reproduced", "not tested"]
STATUSES: tuple[Status, ...] = ("reproduced", "partly", "not reproduced", "not tested")


@dataclass(frozen=True)
class Verdict:
    """A published or aimed-at number beside the measured one.

    Arguments:
        claim: what is claimed, of which models and data.
        published: the claim's number, with its source if it is a paper's.
        measured: ours, with the number of seeds.
        status: ``"reproduced"``, ``"partly"``, ``"not reproduced"`` or ``"not tested"``.
        why: the reason, or the condition under which it holds.

    Raises:
        ValueError: for another status.

    Example:
        >>> Verdict("NLL", "-18 %", "-20 %, 10 seeds", "yes", "")
        Traceback (most recent call last):
        ...
        ValueError: status must be one of 'reproduced', 'partly', ... got 'yes'
    """

    claim: str
    published: str
    measured: str
    status: Status
    why: str

    def __post_init__(self) -> None:
        check_choice("status", self.status, STATUSES)


class Page:
    """A page under construction, and the files that go with it.

    Arguments:
        name: of the page's file and of the folder of its figures and tables.
        title: its heading.

    Example:
        >>> import tempfile
        >>> page = Page("line", "A line")
        >>> page.text("Two points.")
        >>> page.table(["x", "y"], [["0", "1"]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page.write(OutputFolder(folder))
        ...     print((OutputFolder(folder).path / "line.md").read_text())
        # A line
        <BLANKLINE>
        Two points.
        <BLANKLINE>
        | x | y |
        |---|---|
        | 0 | 1 |
        <BLANKLINE>
    """

    def __init__(self, name: str, title: str) -> None:
        self.name = name
        self._blocks = [f"# {title}"]
        self._figures: dict[str, Figure] = {}
        self._frames: dict[str, pd.DataFrame] = {}

    def heading(self, text: str) -> None:
        """Begin a section."""
        self._blocks.append(f"## {text}")

    def text(self, text: str) -> None:
        """Add a paragraph, or any Markdown."""
        self._blocks.append(text.strip())

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Add a table of finished strings."""
        lines = [columns, ["---"] * len(columns), *rows]
        self._blocks.append("\n".join(_row(line) for line in lines))

    def verdicts(self, verdicts: Iterable[Verdict]) -> None:
        """Add the table of claims."""
        self.table(
            ["claim", "published or aimed at", "measured", "verdict", "why"],
            [[v.claim, v.published, v.measured, f"**{v.status}**", v.why] for v in verdicts],
        )

    def figure(self, name: str, figure: "Figure", caption: str) -> None:
        """Add a figure, to be written as ``<name>.png``."""
        self._figures[name] = figure
        self._blocks.append(f"![{caption}]({self.name}/{name}.png)\n\n{caption}")

    def frame(self, name: str, frame: pd.DataFrame, text: str) -> None:
        """Add a link to a frame, to be written as ``<name>.csv`` with all its digits."""
        self._frames[name] = frame
        self._blocks.append(f"[{self.name}/{name}.csv]({self.name}/{name}.csv): {text}")

    def write(self, folder: OutputFolder) -> None:
        """Write the page, and its figures and tables into a folder beside it."""
        beside = OutputFolder(folder.path / self.name)
        for name, figure in self._figures.items():
            beside.write_figure(f"{name}.png", figure)
        for name, frame in self._frames.items():
            beside.write_frame(f"{name}.csv", frame)
        folder.write(f"{self.name}.md", "\n\n".join(self._blocks) + "\n")


def _row(cells: Sequence[str]) -> str:
    if set(cells) == {"---"}:
        return "|" + "---|" * len(cells)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def number(value: float, digits: int = 3) -> str:
    """A number for a table; a dash for NaN.

    Example:
        >>> number(1.23456), number(math.nan)
        ('1.235', '-')
    """
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def change(row: pd.Series, digits: int = 3, *, relative: bool = False) -> str:
    """A paired difference out of a summary: mean, interval and wins.

    Arguments:
        row: of :func:`~eve_pyro.experiments.summarise`.
        digits: behind the point. Default 3.
        relative: in percent of the baseline's mean. Default False.

    Example:
        >>> row = pd.Series({"difference": -0.1, "low": -0.2, "high": 0.0, "wins": 9, "pairs": 10,
        ...                  "mean": 0.9, "relative": -0.1})
        >>> change(row), change(row, 1, relative=True)
        ('-0.100 [-0.200, +0.000] 9/10', '-10.0 % [-20.0, +0.0] 9/10')
    """
    if math.isnan(row["difference"]):
        return "-"
    unit, factor = ("", 1.0)
    if relative:
        share = row["relative"] / row["difference"] if row["difference"] else 0.0
        unit, factor = " %", 100 * share
    mean, low, high = (factor * row[c] for c in ("difference", "low", "high"))
    if factor < 0:
        low, high = high, low
    interval = "" if math.isnan(low) else f" [{low:+.{digits}f}, {high:+.{digits}f}]"
    return f"{mean:+.{digits}f}{unit}{interval} {row['wins']:.0f}/{row['pairs']:.0f}"


def mean_sd(mean: float, sd: float, digits: int = 3) -> str:
    """A mean with its standard deviation for a table; the mean alone where there is none.

    Example:
        >>> mean_sd(0.5, 0.1, 2), mean_sd(0.5, math.nan, 2)
        ('0.50 ± 0.10', '0.50')
    """
    text, spread = number(mean, digits), number(sd, digits)
    return text if "-" in (text, spread) else f"{text} ± {spread}"
