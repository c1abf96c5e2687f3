"""The command ``reproduce``: run a study, or find its finished runs, and write its page."""

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from eve_pyro._checks import check_choice
from eve_pyro.data import DataNotFoundError
from eve_pyro.experiments.engine import Record, run_tasks, scores_frame
from eve_pyro.experiments.output import OutputFolder
from eve_pyro.experiments.page import Page
from eve_pyro.experiments.store import Task
from eve_pyro.experiments.study import Study


def studies() -> dict[str, Study]:
    """The studies by name.

    Example:
        >>> sorted(studies())
        ['attribution', 'boston', 'concrete', 'energy', 'mobydick', 'pg19', 'uci', 'uncertainty',
         'wikitext2', 'writingprompts']
    """
    from eve_pyro.experiments.studies import attribution, energy, language, tables, uncertainty

    found = [attribution.STUDY, tables.CONCRETE, tables.BOSTON, energy.STUDY]
    found += [tables.JUDGED, *language.STUDIES.values(), uncertainty.STUDY]
    return {study.name: study for study in found}


def reproduce(
    name: str, out: str | Path, *, smoke: bool = False, jobs: int = 0, size: str = "compact"
) -> None:
    """Run one study, or ``"all"``, and write their pages.

    A study writes ``<name>.md`` and, in the folder ``<name>``, its figures, the scores of every
    run as ``scores.csv``, and one file per finished run in ``runs``. Finished runs are not
    repeated: after an interruption the same command goes on.

    Arguments:
        name: of a study, or ``"all"``.
        out: output folder.
        smoke: a run of about a minute that shows that everything works; its numbers mean
            nothing. It has a folder of its own, ``smoke``. Default False.
        jobs: processes at once; 0 (default) for one per core, or one on GPUs.
        size: ``"compact"`` (default), or ``"gpu"`` for a text at published scale, whose runs
            follow each other on the GPU, or on all that ``torchrun`` gives, in the folder ``gpu``.

    Raises:
        ValueError: for an unknown study or size, or a study that has no other size.
        OSError: if the folder cannot be written to, or a study's table or text is not here and
            cannot be had; of all studies, those are named in the end instead.
        KeyboardInterrupt: after Ctrl-C, when a page of what is finished has been written.
    """
    console = Console()
    known = studies()
    chosen = list(known) if name == "all" else [check_choice("study", name, [*known, "all"])]
    large = check_choice("size", size, ("compact", "gpu")) == "gpu"
    together = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if together and not large:
        raise ValueError(f"size must be 'gpu' under torchrun, got {size!r}")
    if large and smoke:
        raise ValueError("size must be 'compact' for a smoke run, got 'gpu'")
    if large:
        chosen = [n for n in chosen if known[n].large is not None]
        if not chosen:
            raise ValueError(f"size must be 'compact' for the study {name!r}, got 'gpu'")
        jobs = 1 if together else jobs or 1
    missing: list[str] = []
    folder = OutputFolder(Path(out) / "smoke" if smoke else Path(out) / "gpu" if large else out)
    for study in (known[n] for n in chosen):
        tasks = study.large() if large and study.large else study.tasks(smoke)
        console.print(f"{study.name}: {len(tasks)} runs", highlight=False)
        try:
            records = run_tasks(tasks, folder.path / study.name / "runs", jobs=jobs)
        except DataNotFoundError as error:
            if name != "all":
                raise
            console.print(f"{study.name}: not run: {error}", highlight=False)
            missing.append(study.name)
            continue
        if not records:
            raise KeyboardInterrupt
        page = Page(study.name, study.title)
        options = " --smoke" if smoke else " --size gpu" if large else ""
        page.text(_provenance(study.name + options, tasks, records, smoke))
        study.write(page, records)
        page.frame("scores", scores_frame(records), "the scores of every run.")
        page.write(folder)
        console.print(f"written: {folder.path / study.name}.md", highlight=False)
        if len(records) < len(tasks):
            raise KeyboardInterrupt
    if missing:
        console.print(f"not run, for want of data: {', '.join(missing)}", highlight=False)


def _provenance(command: str, tasks: Sequence[Task], records: Sequence[Record], smoke: bool) -> str:
    """By which command, when, with what and in which time the numbers were made."""
    made = [record.outcome.made for record in records]
    dates = sorted({m["date"] for m in made})
    machines = {
        ", ".join(f"{k} {v}" for k, v in m.items() if k not in ("date", "seconds")) for m in made
    }
    hours = sum(m["seconds"] for m in made) / 3600
    lines = [
        f"Made by `eve-pyro reproduce {command}`, "
        f"{dates[0]}{f' to {dates[-1]}' if len(dates) > 1 else ''}: {len(records)} runs, "
        f"{hours:.1f} core hours. {'; '.join(sorted(machines))}."
    ]
    if smoke:
        lines.append("**This is a smoke run: its numbers mean nothing.**")
    if len(records) < len(tasks):
        lines.append(f"**Interrupted: {len(tasks) - len(records)} runs are missing.**")
    for record in records:
        if record.outcome.failure:
            lines.append(f"**Failed: {record.task.label}: {record.outcome.failure}**")
    return "\n\n".join(lines)
