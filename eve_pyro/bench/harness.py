"""The harness: contestants take turns, so that a machine's other work slows them alike."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Step = Callable[[], object]
Meter = Callable[[Step], float]
Clock = Callable[[], float]


class Unavailable(Exception):
    """A contestant cannot run here; the message says why, and what to do."""


@dataclass(frozen=True)
class Goal:
    """One number of a comparison, and the bound it should keep.

    Arguments:
        contestant: what is judged.
        reference: what it is compared with.
        at_most: the bound; None for information.
        quantity: ``"ratio"`` of the two, their ``"difference"``, or the contestant's own
            ``"start-up"``, in seconds.
    """

    contestant: str
    reference: str = ""
    at_most: float | None = None
    quantity: Literal["ratio", "difference", "start-up"] = "ratio"

    def __str__(self) -> str:
        joint = {"ratio": " / ", "difference": " - ", "start-up": ", first step"}[self.quantity]
        return f"{self.contestant}{joint}{self.reference}"


@dataclass(frozen=True)
class Timer:
    """Meter of seconds per step: the mean over steps that fill a turn.

    Each turn begins with a step off the clock, which brings back into the processor's caches what
    other contestants drove out. One measured block per turn keeps the clock's grain out.

    Arguments:
        turn: least seconds of a turn on the clock; at least one step is taken.
        clock: seconds from some origin.

    Example:
        >>> ticks = iter([0.0, 2.0, 4.0, 6.0])
        >>> Timer(turn=5.0, clock=lambda: next(ticks))(lambda: None)
        2.0
    """

    turn: float
    clock: Clock = time.perf_counter

    def __call__(self, step: Step) -> float:
        step()
        started, steps = self.clock(), 0
        while True:
            step()
            steps += 1
            elapsed = self.clock() - started
            if elapsed >= self.turn:
                return elapsed / steps


@dataclass(frozen=True)
class Comparison:
    """Contestants that do the same work, and what is asked of them.

    Arguments:
        name: of the work.
        contestants: by name, functions that build a contestant and return its step. They are
            called when the comparison's turn has come, and raise :class:`Unavailable` if they
            cannot run here.
        goals: in the order of the report.
        meter: what is measured of a step.
        unit: of the meter: ``"s"``, ``"B"`` or ``""`` for a count.
        rounds: turns of each contestant.
    """

    name: str
    contestants: Mapping[str, Callable[[], Step]]
    goals: tuple[Goal, ...]
    meter: Meter
    rounds: int
    unit: str = "s"

    @property
    def turns(self) -> int:
        """Turns of all contestants, preparation included: the length of a progress bar."""
        return len(self.contestants) * (1 + self.rounds)


@dataclass
class Measurement:
    """What was measured of one contestant.

    Arguments:
        comparison, contestant: names.
        unit: of the samples.
        start_up: seconds to build it and take the first step, compilation included.
        samples: one per round.
        unavailable: why there is nothing else, or None.

    Example:
        >>> m = Measurement("step", "EVE", "s", samples=[4.0, 1.0, 2.0])
        >>> m.median, m.quartiles
        (2.0, (1.5, 3.0))
    """

    comparison: str
    contestant: str
    unit: str
    start_up: float = float("nan")
    samples: list[float] = field(default_factory=list)
    unavailable: str | None = None

    @property
    def median(self) -> float:
        return float(np.median(self.samples)) if self.samples else float("nan")

    @property
    def quartiles(self) -> tuple[float, float]:
        return quartiles(self.samples)


def quartiles(samples: list[float]) -> tuple[float, float]:
    """The ends of the middle half.

    Example:
        >>> quartiles([1.0, 2.0, 3.0])
        (1.5, 2.5)
    """
    if not samples:
        return float("nan"), float("nan")
    low, high = np.quantile(samples, (0.25, 0.75))
    return float(low), float(high)


def measure(
    comparison: Comparison,
    *,
    clock: Clock = time.perf_counter,
    on_turn: Callable[[], object] = lambda: None,
) -> list[Measurement]:
    """Build a comparison's contestants, then measure them round by round, one after the other.

    Building and the first step are timed apart. What fails is reported as unavailable, with the
    reason; the others go on.

    Arguments:
        comparison: what to measure.
        clock: for the preparation.
        on_turn: called after each turn.

    Example:
        >>> race = Comparison("a race", {"a": lambda: lambda: 1, "b": lambda: lambda: 2}, (),
        ...                   meter=lambda step: float(step()), rounds=3)
        >>> {m.contestant: m.samples for m in measure(race)}
        {'a': [1.0, 1.0, 1.0], 'b': [2.0, 2.0, 2.0]}
    """
    found: list[Measurement] = []
    ready: list[tuple[Measurement, Step]] = []
    for name, build in comparison.contestants.items():
        measurement = Measurement(comparison.name, name, comparison.unit)
        found.append(measurement)
        started = clock()
        try:
            step = build()
            step()
        except Exception as error:
            measurement.unavailable = _reason(error)
        else:
            measurement.start_up = clock() - started
            ready.append((measurement, step))
        on_turn()
    for _ in range(comparison.rounds):
        for measurement, step in ready:
            measurement.samples.append(comparison.meter(step))
            on_turn()
    return found


def _reason(error: Exception) -> str:
    message = " ".join(str(error).split())
    return message if isinstance(error, Unavailable) else f"{type(error).__name__}: {message}"
