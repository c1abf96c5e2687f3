"""One neuron under known noise: what its sigma learns, and what the unit itself is worth."""

from eve_pyro.experiments.studies.attribution.tasks import STUDY_NAME, tasks
from eve_pyro.experiments.studies.attribution.text.page import write
from eve_pyro.experiments.study import Study

STUDY = Study(STUDY_NAME, "One neuron under heteroscedastic noise", tasks, write)
