"""Energy Efficiency: does uncertainty live through 128 layers of distributional neurons?"""

from eve_pyro.experiments.studies.energy.page import write
from eve_pyro.experiments.studies.energy.tasks import NAME, tasks
from eve_pyro.experiments.study import Study

STUDY = Study(NAME, "Energy Efficiency, 128 layers deep", tasks, write)
