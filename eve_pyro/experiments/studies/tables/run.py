"""One run of a table's study: a model, or the best of its candidates, on one split."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from eve_pyro.data import load_table
from eve_pyro.diagnostics import layer_table, posterior_statistics
from eve_pyro.experiments.models import ModelConfig
from eve_pyro.experiments.protocol import Fit, Protocol, fit, score
from eve_pyro.experiments.store import Outcome
from eve_pyro.nn import eve_modules


def run_table(
    seed: int,
    table: str,
    candidates: Sequence[ModelConfig],
    protocol: Protocol,
    rows: int | None = None,
) -> Outcome:
    """Train every candidate on one split, and score the one of the best validation NLL.

    Arguments:
        seed: of split, order of rows, initial weights and noise.
        table: its name.
        candidates: models to choose from.
        protocol: see :class:`~eve_pyro.experiments.Protocol`.
        rows: number of rows to use, drawn by the seed; None (default) for all.

    Returns the scores of :func:`~eve_pyro.experiments.score`, ``candidate``, the number of the
    chosen one, and, of EVE layers, the table ``layers`` of their statistics on test rows.
    """
    data = load_table(table)
    if rows is not None and rows < len(data.X):
        kept = np.random.default_rng(seed).choice(len(data.X), rows, replace=False)
        groups = None if data.groups is None else data.groups[kept]
        data = replace(data, X=data.X[kept], y=data.y[kept], groups=groups)
    fits = [fit(data, config, seed, protocol) for config in candidates]
    chosen = min(range(len(fits)), key=lambda i: validation_nll(fits[i], seed))
    result = fits[chosen]
    scores = {**score(result, data, protocol, seed=seed), "candidate": float(chosen)}
    network, guide = result.networks[0], result.guides[0]
    tables = {}
    if any(eve_modules(network)):
        stats = posterior_statistics(network, guide, result.data.test.x, seed=seed)
        tables["layers"] = layer_table(stats).reset_index()
    return Outcome(scores, tables)


def validation_nll(result: Fit, seed: int) -> float:
    """Calibrated NLL on validation rows: what a user without the test rows would choose by."""
    part = result.data.validation
    return -float(result.predict(part.x, seed=seed).log_prob(part.y).mean())
