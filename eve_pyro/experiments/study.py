"""What makes a study."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eve_pyro.experiments.engine import Record
from eve_pyro.experiments.page import Page
from eve_pyro.experiments.store import Task


@dataclass(frozen=True)
class Study:
    """A study: which runs it needs, and how its page is made of them.

    Arguments:
        name: of the command and of the page.
        title: of the page.
        tasks: function of whether it is the smoke run, which takes a minute, to the tasks.
        write: function that fills the page from the records.
        large: function that gives the tasks at published scale, for GPUs; None (default) if the
            study has one size.
    """

    name: str
    title: str
    tasks: Callable[[bool], list[Task]]
    write: Callable[[Page, Sequence[Record]], None]
    large: Callable[[], list[Task]] | None = None
