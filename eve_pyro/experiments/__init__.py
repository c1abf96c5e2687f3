"""The studies: models by name, paired seeds, calibration for all, an engine and its pages."""

from eve_pyro.experiments.demo import DemoConfig, run
from eve_pyro.experiments.engine import Record, run_tasks, scores_frame, tables_frame
from eve_pyro.experiments.models import MODELS, ModelConfig
from eve_pyro.experiments.page import Page, Verdict
from eve_pyro.experiments.protocol import Fit, Protocol, fit, score
from eve_pyro.experiments.reproduce import reproduce
from eve_pyro.experiments.statistics import bootstrap_interval, summarise, t_interval
from eve_pyro.experiments.store import Outcome, Store, Task
from eve_pyro.experiments.study import Study
from eve_pyro.experiments.tabular import TabularModel

__all__ = [
    "MODELS",
    "DemoConfig",
    "Fit",
    "ModelConfig",
    "Outcome",
    "Page",
    "Protocol",
    "Record",
    "Store",
    "Study",
    "TabularModel",
    "Task",
    "Verdict",
    "bootstrap_interval",
    "fit",
    "reproduce",
    "run",
    "run_tasks",
    "score",
    "scores_frame",
    "summarise",
    "t_interval",
    "tables_frame",
]
