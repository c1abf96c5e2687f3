"""One run of the benchmark: comparison after comparison, then the report."""

import gc
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyro
import torch
from rich.console import Console
from tqdm.auto import tqdm

from eve_pyro._checks import check_int
from eve_pyro.bench.comparisons import comparisons
from eve_pyro.bench.figure import draw
from eve_pyro.bench.growth import growths
from eve_pyro.bench.harness import measure
from eve_pyro.bench.report import WIDTH, Results, render, to_json
from eve_pyro.bench.sizes import MODES, Mode
from eve_pyro.bench.verdict import judge
from eve_pyro.experiments.output import OutputFolder, environment


def run_and_report(
    mode: Mode = "full", out: str | Path = "eve-bench", threads: int = 0, *, progress: bool = True
) -> Results:
    """Run the benchmark, print what it found, and write it to a folder.

    The folder gets ``bench.json``, with all samples, and ``bench.png``. An interrupt ends the
    run, not the report: comparisons that had finished are printed and written first.

    Arguments:
        mode: ``"full"``, ``"quick"``, or ``"smoke"``, whose numbers mean nothing.
        out: the folder.
        threads: of torch; 0 for all cores.
        progress: show a progress bar.

    Raises:
        OSError: if the folder cannot be written to.
        ValueError: for a negative number of threads.
        KeyboardInterrupt: after the report, if the run was interrupted.
    """
    check_int("threads", threads, 0)
    folder = OutputFolder(out)
    results = run(mode, threads or _cores(), progress=progress)
    if results.finished:
        console = Console(width=min(WIDTH, Console().width), highlight=False)
        console.print(render(results))
        folder.write("bench.json", to_json(results))
        folder.write_figure("bench.png", draw(results))
        console.print(f"numbers and figure are in {folder.path}")
    if results.interrupted:
        raise KeyboardInterrupt
    return results


def run(mode: Mode, threads: int, *, progress: bool = True) -> Results:
    """Measure all comparisons of a mode, or those that finish before an interrupt."""
    started = time.perf_counter()
    sizes = MODES[mode]
    todo = comparisons(sizes)
    results = Results(mode, sizes, threads, _environment(), len(todo))
    bar = tqdm(
        total=sum(c.turns for c in todo),
        unit="turn",
        disable=not progress,
        bar_format="{desc:<34.34}|{bar}| {percentage:3.0f} % {elapsed}",
        ncols=WIDTH,
    )
    with _conditions(threads, compiles=sizes.backend == "inductor"), bar:
        try:
            for comparison in todo:
                bar.set_description_str(comparison.name)
                measurements = measure(comparison, on_turn=bar.update)
                results.measurements += measurements
                results.verdicts += judge(comparison, measurements)
                results.finished.append(comparison.name)
                if not comparison.goals:
                    results.growths = growths(sizes, measurements)
                _forget()
        except KeyboardInterrupt:
            bar.set_description_str("interrupted")
    results.seconds = time.perf_counter() - started
    return results


@contextmanager
def _conditions(threads: int, *, compiles: bool) -> Iterator[None]:
    """What holds for all contestants: threads, no checks, own parameters, an empty code cache."""
    before = torch.get_num_threads()
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, before)
        torch.set_num_threads(threads)
        stack.enter_context(pyro.validation_enabled(False))
        stack.enter_context(pyro.settings.context(module_local_params=True))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        if compiles:
            from torch._inductor.utils import fresh_inductor_cache

            stack.enter_context(fresh_inductor_cache())
        stack.callback(_forget)
        yield


def _forget() -> None:
    """Let go of a comparison's contestants and their code."""
    torch.compiler.reset()
    gc.collect()


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _environment() -> dict[str, Any]:
    found = {**environment(), "vectors": torch.backends.cpu.get_cpu_capability()}
    for peer in ("bayesian-torch", "torchbnn"):
        try:
            found[peer] = version(peer)
        except PackageNotFoundError:
            continue
    return found
