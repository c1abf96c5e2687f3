"""The benchmark: what a training step, a prediction and an import cost beside alternatives."""

from eve_pyro.bench.harness import Comparison, Goal, Measurement, Unavailable, measure
from eve_pyro.bench.run import run_and_report
from eve_pyro.bench.sizes import MODES, Mode, Sizes, Work
from eve_pyro.bench.verdict import Verdict, judge

__all__ = [
    "MODES",
    "Comparison",
    "Goal",
    "Measurement",
    "Mode",
    "Sizes",
    "Unavailable",
    "Verdict",
    "Work",
    "judge",
    "measure",
    "run_and_report",
]
