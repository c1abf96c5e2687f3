"""The experiment engine: the runs of a study in parallel, each kept as soon as it is finished."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

import pandas as pd
import torch
from joblib import Parallel, delayed
from joblib.parallel import get_active_backend
from tqdm.auto import tqdm

from eve_pyro._checks import check_int
from eve_pyro.experiments.store import Outcome, Store, Task

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Record:
    """A task and what its run measured."""

    task: Task
    outcome: Outcome


def run_tasks(
    tasks: Sequence[Task], folder: str | Path, *, jobs: int = 0, progress: bool = True
) -> list[Record]:
    """Compute the tasks that ``folder`` does not hold yet, and return the records of all.

    A run is written by the process that computed it, the moment it ends. So whatever ends this
    function, SIGKILL included, finished runs are kept and not repeated; a result is never half
    there. Ctrl-C returns the records so far.

    Processes are joblib's, one torch thread each. Under ``joblib.parallel_config`` its backend
    is used, so the same call runs on a cluster; the folder must then be one that all workers
    share::

        from dask.distributed import Client         # or: from ray.util.joblib import register_ray
        client = Client("scheduler:8786")           #     register_ray()
        with joblib.parallel_config(backend="dask", n_jobs=-1):  # or: backend="ray"
            run_tasks(tasks, "/shared/folder")

    Arguments:
        tasks: the runs, in the order in which to start them; those that measure time come last,
            one by one.
        folder: where results are kept, see :class:`~eve_pyro.experiments.store.Store`.
        jobs: processes at once; 0 (default) for joblib's configuration, or one per core.
        progress: show a progress bar. Default True.

    Raises:
        ValueError: for negative jobs, or two tasks that are the same run.
        OSError: if the folder cannot be written to.

    Example:
        >>> import tempfile
        >>> from eve_pyro.experiments.store import Outcome, Task
        >>> def run(seed):
        ...     return Outcome({"nll": float(seed)})
        >>> tasks = [Task("study", "line", "mlp", seed, run) for seed in (0, 1)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     records = run_tasks(tasks, folder, jobs=1, progress=False)
        >>> scores_frame(records)[["model", "seed", "nll"]]
          model  seed  nll
        0   mlp     0  0.0
        1   mlp     1  1.0
    """
    check_int("jobs", jobs, 0)
    names = [task.label for task in tasks]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"tasks must differ in setting, model or seed, got twice: {min(twice)}")
    store = Store(folder)
    outcomes = {task.label: found for task in tasks if (found := store.load(task))}
    for name, why in store.rejected.items():
        logger.warning("%s %s: it is computed again", name, why)
    missing = [task for task in tasks if task.label not in outcomes]
    together = [task for task in missing if not task.alone]
    configured = get_active_backend()[1]  # of joblib.parallel_config; 1 or None without
    count = jobs or (None if configured not in (None, 1) else os.cpu_count())
    parallel = Parallel(n_jobs=count, return_as="generator_unordered")
    finished = chain(
        parallel(delayed(_compute)(task, folder, store.code) for task in together),
        (_compute(task, folder, store.code) for task in missing if task.alone),
    )
    total = len(tasks)
    with tqdm(total=total, initial=len(outcomes), unit="run", disable=not progress) as bar:
        try:
            for task in finished:
                outcome = store.load(task)
                if outcome is None:
                    raise OSError(
                        f"folder must be shared by all workers: {task.label} is not in {folder}"
                    )
                outcomes[task.label] = outcome
                bar.set_postfix_str(task.label)
                bar.update()
        except KeyboardInterrupt:
            bar.write(f"interrupted: {len(outcomes)} of {total} runs are finished and kept")
    return [Record(task, outcomes[task.label]) for task in tasks if task.label in outcomes]


def _compute(task: Task, folder: str | Path, code: str) -> Task:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # processes run side by side
    try:
        started = perf_counter()
        outcome = task.compute()
        Store(folder, code=code).save(task, outcome, perf_counter() - started)
    finally:
        torch.set_num_threads(threads)
    return task


def _where(task: Task) -> dict[str, Any]:
    return {"setting": task.setting, "model": task.model, "seed": task.seed}


def scores_frame(records: Sequence[Record]) -> pd.DataFrame:
    """One row per run: ``setting``, ``model``, ``seed``, scores, and ``failure`` where one failed.

    A run that failed has NaN for scores.
    """
    rows = []
    for record in records:
        outcome = record.outcome
        failure = {"failure": outcome.failure} if outcome.failure else {}
        rows.append({**_where(record.task), **outcome.scores, **failure})
    return pd.DataFrame(rows)


def tables_frame(records: Sequence[Record], name: str) -> pd.DataFrame:
    """The runs' tables of one name, below each other, each row with its run."""
    frames = [
        record.outcome.tables[name].assign(**_where(record.task))
        for record in records
        if name in record.outcome.tables
    ]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
