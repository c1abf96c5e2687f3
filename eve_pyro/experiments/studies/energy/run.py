"""One run of the study: a deep network on one split, its scores, its course and its layers."""

import math
from dataclasses import replace
from time import perf_counter
from typing import Any

import pandas as pd
import pyro
import torch
from torch import nn

from eve_pyro.data import Standardized, load_energy, split, standardize
from eve_pyro.data.table import Table
from eve_pyro.diagnostics import layer_spread, layer_table, posterior_statistics
from eve_pyro.experiments.models import ModelConfig
from eve_pyro.experiments.protocol import Fit, Protocol, score
from eve_pyro.experiments.store import Outcome
from eve_pyro.infer import CompiledELBO, StreamingPredictive, Trainer
from eve_pyro.metrics import fit_temperature, mc_nll, pinball
from eve_pyro.nn import Network, eve_modules

# The levels whose mean pinball loss is reported: every 5 %.
LEVELS = tuple(i / 20 for i in range(1, 20))


class Course:
    """Validation score of every ``every``-th epoch, which keeps the training rows' too.

    A prediction of a very deep network costs as much as several steps, so most epochs go
    without: they score infinity, which is never the best.
    """

    def __init__(self, data: Standardized, num_samples: int, every: int, epochs: int) -> None:
        self.data, self.num_samples = data, num_samples
        self.every, self.epochs = every, epochs
        self.epoch = 0
        self.rows: list[dict[str, float]] = []

    def __call__(self, model: nn.Module, guide: Any) -> float:
        self.epoch += 1
        if self.epoch % self.every and self.epoch != self.epochs:
            return math.inf
        predictive = StreamingPredictive(model, guide, self.num_samples)
        train, validation = (
            mc_nll(predictive(part.x, seed=0), part.y).item()
            for part in (self.data.train, self.data.validation)
        )
        self.rows.append({"epoch": self.epoch, "train_nll": train, "validation_nll": validation})
        return validation


def run_deep(
    seed: int,
    config: ModelConfig,
    protocol: Protocol,
    every: int,
    spread: tuple[int, int] | None = None,
    backend: str | None = None,
) -> Outcome:
    """Train one model on the table's split of this seed.

    Arguments:
        seed: of split, order of rows, initial weights and noise.
        config, protocol: see :mod:`eve_pyro.experiments`.
        every: epochs between two looks at training and validation rows.
        spread: test rows and draws for the layers' share of the spread; None to leave it out.
        backend: of :class:`~eve_pyro.infer.CompiledELBO`; None for eager. The numbers are the
            same up to rounding.
    """
    return run_table(load_energy(), seed, config, protocol, every, spread, backend)


def run_table(
    table: Table,
    seed: int,
    config: ModelConfig,
    protocol: Protocol,
    every: int,
    spread: tuple[int, int] | None = None,
    backend: str | None = None,
) -> Outcome:
    """:func:`run_deep` on any table."""
    result, course = train(table, seed, config, protocol, every, backend)
    network, guide = result.networks[0], result.guides[0]
    test = result.data.test
    scores = score(result, table, protocol, seed=seed)
    for name, calibrated in (("raw", False), ("calibrated", True)):
        predictive = result.predict(test.x, seed=seed, calibrated=calibrated)
        scores[f"{name}_pinball"] = pinball(predictive, test.y, LEVELS).mean().item()
    curve = pd.DataFrame(course.rows)
    train_nll, validation_nll = curve.train_nll.to_numpy(), curve.validation_nll.to_numpy()
    best = validation_nll.argmin()
    # How far the network has learned its training rows by heart: at the end, and where it is kept.
    scores["final_gap"] = float(validation_nll[-1] - train_nll[-1])
    scores["final_rise"] = float(validation_nll[-1] - validation_nll[best])
    scores["best_gap"] = float(validation_nll[best] - train_nll[best])
    tables = {"course": curve}
    if any(eve_modules(network)):
        stats = posterior_statistics(network, guide, test.x, keep="units", seed=seed)
        layers = layer_table(stats).reset_index()
        if spread is not None:
            rows, draws = spread
            shares = layer_spread(network, guide, test.x[:rows], num_samples=draws, seed=seed)
            layers = layers.merge(shares.reset_index(), on="layer")
        layers.insert(0, "number", range(1, len(layers) + 1))
        tables["layers"] = layers
    return Outcome(scores, tables)


def train(
    table: Table,
    seed: int,
    config: ModelConfig,
    protocol: Protocol,
    every: int,
    backend: str | None = None,
) -> tuple[Fit, Course]:
    """Train as :func:`~eve_pyro.experiments.fit` does, compiled, and looking up less often."""
    groups = table.groups if protocol.grouped else None
    parts = split(table, seed=seed, fractions=protocol.fractions, groups=groups)
    data = standardize(table, parts)
    start = perf_counter()
    with torch.random.fork_rng([]):
        pyro.set_rng_seed(seed)
        network: Network = config.network(data.train.x.shape[1])
    guide = config.guide(network)
    training = replace(
        protocol.training,
        seed=seed,
        lr_multipliers={**config.lr_multipliers, **protocol.training.lr_multipliers},
    )
    elbo = config.elbo()
    if backend is not None:
        elbo = CompiledELBO(elbo, backend=backend)
    course = Course(data, protocol.validation_samples, every, training.epochs)
    history = Trainer(network, guide, elbo, training).fit(
        *data.train, validation=course, model_kwargs={"num_data": len(data.train.x)}
    )
    seconds = perf_counter() - start
    samples = protocol.num_samples
    raw = StreamingPredictive(network, guide, samples)(data.validation.x, seed=seed)
    temperature = fit_temperature(raw, data.validation.y)
    fitted = Fit([network], [guide], data, temperature, [history], seconds, samples, config)
    return fitted, course
