"""Tables: EVE in small networks against the models one would otherwise use."""

from functools import partial

from eve_pyro.experiments.studies.tables.page import write_boston, write_concrete, write_judged
from eve_pyro.experiments.studies.tables.tasks import judged_tasks, tasks
from eve_pyro.experiments.study import Study

CONCRETE = Study(
    "concrete", "Concrete strength", partial(tasks, "concrete", convergence=True), write_concrete
)
BOSTON = Study("boston", "Boston housing", partial(tasks, "boston"), write_boston)
JUDGED = Study("uci", "Tables on which nothing was chosen", judged_tasks, write_judged)
