"""Verdicts: the numbers that a comparison's goals ask for, and whether they are met."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eve_pyro.bench.harness import Comparison, Goal, Measurement, quartiles


@dataclass(frozen=True)
class Verdict:
    """The value of a goal.

    Arguments:
        comparison: name.
        goal: what was asked.
        value: median over rounds; nan if unavailable.
        low, high: quartiles over rounds.
        unit: ``""`` for a ratio.
        unavailable: why there is no value, or None.
    """

    comparison: str
    goal: Goal
    value: float
    low: float
    high: float
    unit: str
    unavailable: str | None = None

    @property
    def met(self) -> bool | None:
        """Whether the bound is kept; None if there is no bound or no value."""
        if self.goal.at_most is None or math.isnan(self.value):
            return None
        return self.value <= self.goal.at_most


def judge(comparison: Comparison, measurements: Sequence[Measurement]) -> list[Verdict]:
    """The verdict on each goal of a comparison.

    Ratios and differences are taken within rounds, whose turns saw the same machine, and the
    median is over rounds.

    Example:
        >>> race = Comparison("a race", {}, (Goal("a", "b", 0.6),), meter=lambda _: 0.0, rounds=3)
        >>> a = Measurement("a race", "a", "s", samples=[1.0, 2.0, 4.0])
        >>> b = Measurement("a race", "b", "s", samples=[2.0, 4.0, 8.0])
        >>> verdict, = judge(race, [a, b])
        >>> verdict.value, verdict.met
        (0.5, True)
    """
    found = {m.contestant: m for m in measurements}
    return [_verdict(comparison, goal, found) for goal in comparison.goals]


def _verdict(comparison: Comparison, goal: Goal, found: dict[str, Measurement]) -> Verdict:
    named = [found[name] for name in (goal.contestant, goal.reference) if name]
    unit = "" if goal.quantity == "ratio" else "s" if goal.quantity == "start-up" else named[0].unit
    for m in named:
        if m.unavailable is not None:
            why = f"{m.contestant}: {m.unavailable}"
            return Verdict(comparison.name, goal, math.nan, math.nan, math.nan, unit, why)
    if goal.quantity == "start-up":
        values = [named[0].start_up]
    else:
        combine = np.divide if goal.quantity == "ratio" else np.subtract
        values = combine(*(np.asarray(m.samples) for m in named)).tolist()
    return Verdict(comparison.name, goal, float(np.median(values)), *quartiles(values), unit)
