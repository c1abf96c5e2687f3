"""The demo as a command: run it, print its tables, write its files and figures."""

import math
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from rich.console import Console

from eve_pyro.data import Table, load_table
from eve_pyro.experiments.demo import DemoConfig, Run, run
from eve_pyro.experiments.report import (
    OutputFolder,
    comparison_table,
    layer_table,
    layers_frame,
    score_table,
    write_tables,
)
from eve_pyro.experiments.tabular import TabularModel

NOTES = (
    "calibrated: the predictive spread times a temperature fitted by NLL on validation rows. "
    "Coverage is of the central 90 % interval; sigma_y is the learned output scale. Of layers: "
    "energy is the mean of squared posterior means, in [-1, 1] the share of them there, active "
    "the share of units whose posterior mean varies with the input. A KL near 0 would mean a "
    "layer that passes on noise."
)


def run_and_report(config: DemoConfig, out: str | Path, *, progress: bool = True) -> pd.DataFrame:
    """Run the demo, print what it measured and write it to a folder.

    The folder gets ``scores.csv`` (every run), ``summary.csv``, ``layers.csv``, ``config.json``,
    the first seed's models (``eve.pt``, ...) with their training curves, and the figures
    ``predictions.png``, ``calibration.png``, ``layers.png`` and ``training.png``.

    Returns:
        The summary, see :func:`~eve_pyro.experiments.summarise`.

    Raises:
        OSError: if the folder cannot be written to.
        ValueError: for an unknown table.
    """
    console = Console()
    folder = OutputFolder(out)
    table = load_table(config.data)
    runs = run(config, progress=progress)
    if not runs:
        raise KeyboardInterrupt
    seeds = sorted({r.seed for r in runs})
    summary = write_tables(folder, config, runs)
    unit = table.target_unit
    title = f"{table.name}: scores on test rows, seeds {seeds[0]} to {seeds[-1]}"
    console.print(score_table(summary, unit, title))
    console.print(comparison_table(summary, config.models[0]))
    layers = layers_frame(runs)
    if len(layers):
        console.print(layer_table(layers, "EVE layers on test rows, mean over seeds"))
    console.print(NOTES, highlight=False)
    kept = {r.model: r for r in runs if r.fit is not None}
    _write_models(folder, kept, table)
    _write_figures(folder, kept, unit)
    console.print(f"tables, figures and the model are in {folder.path}", highlight=False)
    return summary


def _write_models(folder: OutputFolder, kept: Mapping[str, Run], table: Table) -> None:
    for name, kept_run in kept.items():
        fit = kept_run.fit
        assert fit is not None
        TabularModel.from_fit(fit, table).save(folder.path / f"{name}.pt")
        for history in fit.histories[:1]:
            folder.write_frame(f"training-{name}.csv", history.frame)


def _write_figures(folder: OutputFolder, kept: Mapping[str, Run], unit: str) -> None:
    """Figures of the first seed: calibrated predictions, calibration, layers, training."""
    from matplotlib.figure import Figure

    from eve_pyro.diagnostics import plot_calibration, plot_layers, plot_predictions, plot_training

    fits = {name: r.fit for name, r in kept.items() if r.fit is not None}
    in_units, y = {}, None
    for name, fit in fits.items():
        test, target = fit.data.test, fit.data.target
        shift, scale = float(target.shift), float(target.scale)
        in_units[name] = fit.predict(test.x).affine(shift, scale)
        y = shift + scale * test.y
    rows, columns = math.ceil(len(fits) / 2), min(2, len(fits))
    figure = Figure(figsize=(5.2 * columns, 4.4 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat
    for ax, (name, predictive) in zip(axes, in_units.items(), strict=False):
        plot_predictions(predictive, y, unit=unit, ax=ax)
        ax.set_title(f"{name}, calibrated")
    folder.write_figure("predictions.png", figure)
    raw = {name: fit.predict(fit.data.test.x, calibrated=False) for name, fit in fits.items()}
    calibrated = {name: fit.predict(fit.data.test.x) for name, fit in fits.items()}
    y = next(iter(fits.values())).data.test.y
    figure = Figure(figsize=(10, 4.8), layout="constrained")
    for ax, curves, title in zip(
        figure.subplots(1, 2), (raw, calibrated), ("raw", "after calibration"), strict=True
    ):
        plot_calibration(curves, y, ax=ax)
        ax.set_title(title)
    folder.write_figure("calibration.png", figure)
    histories = {name: fit.histories[0] for name, fit in fits.items()}
    figure = Figure(figsize=(8, 5.2), layout="constrained")
    label = "training objective, validation NLL (nats per datum)"
    ax = plot_training(histories, loss_label=label, ax=figure.subplots())
    ax.legend(fontsize=7, ncols=2)
    folder.write_figure("training.png", figure)
    for kept_run in kept.values():
        if kept_run.layers is not None:
            folder.write_figure("layers.png", plot_layers(kept_run.layers).get_figure())
