"""Inside a Transformer: what keeps its uncertainty alive in every layer, and what it notices."""

from eve_pyro.experiments.studies.uncertainty.page import write
from eve_pyro.experiments.studies.uncertainty.tasks import NAME, tasks
from eve_pyro.experiments.study import Study

STUDY = Study(NAME, "Uncertainty inside a Transformer", tasks, write)
