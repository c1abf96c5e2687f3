"""The demo: EVE next to the models one would otherwise use, on one table, paired by seed."""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import torch
from tqdm.auto import tqdm

from eve_pyro._checks import check_choice, check_int
from eve_pyro.data import Table, load_table
from eve_pyro.experiments.models import MODELS
from eve_pyro.experiments.protocol import Fit, Protocol, fit, score

# Configurations were fixed on Concrete with seeds 0 to 3; the demo's begin here.
FIRST_SEED = 100
DEMO_MODELS = ("mlp", "hetero-mlp", "mc-dropout", "eve")


@dataclass(frozen=True)
class Run:
    """One model trained on one split: what is kept of it."""

    model: str
    seed: int
    scores: dict[str, Any]
    layers: pd.DataFrame | None
    fit: Fit | None  # of the first seed alone, for figures and the saved model


@dataclass(frozen=True)
class DemoConfig:
    """What the demo runs.

    Arguments:
        data: name of a table. Default ``"concrete"``.
        seeds: number of seeds, each a split and an initialisation. Default 8.
        epochs: of training. Default 300.
        models: names out of ``eve_pyro.experiments.MODELS``; the first is the baseline.
        jobs: processes at once, one thread each; 0 (default) for one per core.
        protocol: what all models have in common.

    Raises:
        ValueError: for an unknown model or a number below 1.

    Example:
        >>> DemoConfig(seeds=0)
        Traceback (most recent call last):
        ...
        ValueError: seeds must be an integer >= 1, got 0
    """

    data: str = "concrete"
    seeds: int = 8
    epochs: int = 300
    models: tuple[str, ...] = DEMO_MODELS
    jobs: int = 0
    protocol: Protocol = field(default_factory=Protocol)

    @property
    def seed_list(self) -> range:
        """The seeds themselves."""
        return range(FIRST_SEED, FIRST_SEED + self.seeds)

    @property
    def full_protocol(self) -> Protocol:
        """The protocol with the demo's own number of epochs."""
        training = replace(self.protocol.training, epochs=self.epochs)
        return replace(self.protocol, training=training)

    def __post_init__(self) -> None:
        check_int("seeds", self.seeds)
        check_int("epochs", self.epochs)
        check_int("jobs", self.jobs, 0)
        for model in self.models:
            check_choice("models", model, MODELS)


def _run(table: Table, model: str, seed: int, protocol: Protocol, keep: bool) -> Run:
    from eve_pyro.diagnostics import layer_table, posterior_statistics
    from eve_pyro.nn import eve_modules

    torch.set_num_threads(1)  # processes run side by side
    result = fit(table, MODELS[model], seed, protocol)
    layers = None
    network, guide = result.networks[0], result.guides[0]
    if any(eve_modules(network)):
        stats = posterior_statistics(network, guide, result.data.test.x, seed=seed)
        layers = layer_table(stats)
    return Run(model, seed, score(result, table, protocol), layers, result if keep else None)


def run(config: DemoConfig, *, progress: bool = True) -> list[Run]:
    """Train and score every model on every seed.

    Ctrl-C returns the runs of those seeds that every model has finished.
    """
    from joblib import Parallel, delayed

    table = load_table(config.data)
    tasks = [
        delayed(_run)(table, model, seed, config.full_protocol, seed == FIRST_SEED)
        for seed in config.seed_list
        for model in config.models
    ]
    runs: list[Run] = []
    parallel = Parallel(n_jobs=config.jobs or os.cpu_count(), return_as="generator_unordered")
    finished: Iterator[Run] = parallel(tasks)
    with tqdm(total=len(tasks), desc=f"training on {table.name}", disable=not progress) as bar:
        try:
            for done in finished:
                runs.append(done)
                bar.set_postfix_str(f"{done.model}, seed {done.seed}")
                bar.update()
        except KeyboardInterrupt:
            bar.write("interrupted: reporting the seeds that every model has finished")
    order = {model: i for i, model in enumerate(config.models)}
    finished_by = Counter(r.seed for r in runs)
    paired = [r for r in runs if finished_by[r.seed] == len(order)]
    return sorted(paired, key=lambda r: (r.seed, order[r.model]))
