"""Tables and files of a demo run: what was measured, for people and for programs."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import pandas as pd

from eve_pyro.experiments.demo import DemoConfig, Run
from eve_pyro.experiments.models import MODELS
from eve_pyro.experiments.output import OutputFolder, environment
from eve_pyro.experiments.statistics import summarise

if TYPE_CHECKING:
    from rich.table import Table as RichTable

# Row of the printed table -> score, digits. U stands for the target's unit.
SCORES: tuple[tuple[str, str, int], ...] = (
    ("NLL, nats", "raw_mc_nll_unit", 3),
    ("  calibrated", "calibrated_mc_nll_unit", 3),
    ("  standardised", "calibrated_mc_nll", 3),
    ("CRPS, U", "raw_crps_unit", 3),
    ("  calibrated", "calibrated_crps_unit", 3),
    ("RMSE, U", "raw_rmse_unit", 3),
    ("MAE, U", "raw_mae_unit", 3),
    ("90 % coverage", "raw_coverage", 3),
    ("  calibrated", "calibrated_coverage", 3),
    ("temperature", "temperature", 2),
    ("sigma_y / sd", "sigma_y", 3),
    ("parameters", "parameters", 0),
    ("training, s", "seconds", 1),
)
# Column of the printed comparison -> score, whether as a share of the baseline.
COMPARED: dict[str, tuple[str, bool]] = {
    "NLL, nats": ("calibrated_mc_nll_unit", False),
    "CRPS": ("calibrated_crps_unit", True),
    "RMSE": ("calibrated_rmse_unit", True),
    "MAE": ("calibrated_mae_unit", True),
}


def scores_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per model and seed."""
    return pd.DataFrame([{"model": r.model, "seed": r.seed, **r.scores} for r in runs])


def layers_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """Layer statistics of every run that has EVE layers, with its model and seed."""
    frames = [
        r.layers.reset_index().assign(model=r.model, seed=r.seed)
        for r in runs
        if r.layers is not None
    ]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _table(title: str) -> "RichTable":
    from rich import box
    from rich.table import Table

    return Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)


def score_table(summary: pd.DataFrame, unit: str, title: str) -> "RichTable":
    """The printed table of test scores: mean and sd over seeds, one column per model."""
    table = _table(title)
    table.add_column("mean ± sd")
    models = summary.index.unique("model")
    for model in models:
        table.add_column(model, justify="right")
    for label, score, digits in SCORES:
        cells = []
        for model in models:
            mean, sd = (float(summary.loc[(model, score), c]) for c in ("mean", "sd"))
            cell = "-" if math.isnan(mean) else f"{mean:.{digits}f}"
            varies = not math.isnan(sd) and score != "parameters"
            cells.append(f"{cell} ± {sd:.{digits}f}" if varies else cell)
        table.add_row(label.replace("U", unit or "unit"), *cells)
    return table


def comparison_table(summary: pd.DataFrame, baseline: str) -> "RichTable":
    """The printed comparison with the baseline, seed by seed: mean difference and wins."""
    table = _table(f"difference from {baseline}, calibrated: mean over seeds (seeds better)")
    table.add_column("model")
    for column in COMPARED:
        table.add_column(column, justify="right")
    for model in summary.index.unique("model"):
        if model == baseline:
            continue
        cells = []
        for score, relative in COMPARED.values():
            row, base = summary.loc[(model, score)], summary.loc[(baseline, score), "mean"]
            change = (
                f"{100 * row['difference'] / base:+.1f} %"
                if relative
                else f"{row['difference']:+.3f}"
            )
            cells.append(f"{change} ({row['wins']:.0f}/{row['seeds']:.0f})")
        table.add_row(model, *cells)
    return table


# Column of the printed layer table -> statistic.
LAYER_COLUMNS = {
    "KL, nats/unit": "kl",
    "sigma": "sigma",
    "variance": "variance",
    "energy": "energy",
    "in [-1, 1]": "band_occupancy",
    "active": "active_fraction",
}


def layer_table(layers: pd.DataFrame, title: str) -> "RichTable":
    """The printed table of layer statistics, averaged over seeds."""
    table = _table(title)
    table.add_column("layer")
    for column in LAYER_COLUMNS:
        table.add_column(column, justify="right")
    for layer, group in layers.groupby("layer", sort=False):
        means = (group[column].mean() for column in LAYER_COLUMNS.values())
        table.add_row(str(layer), *(f"{mean:.3f}" for mean in means))
    return table


def write_tables(out: OutputFolder, config: DemoConfig, runs: Sequence[Run]) -> pd.DataFrame:
    """Write scores, summary, layer statistics and configuration; return the summary."""
    scores = scores_frame(runs)
    summary = summarise(scores, config.models[0])
    out.write_frame("scores.csv", scores)
    out.write_frame("summary.csv", summary, index=True)
    layers = layers_frame(runs)
    if len(layers):
        out.write_frame("layers.csv", layers)
    seeds = sorted({r.seed for r in runs})
    about = {
        "data": config.data,
        "seeds": seeds,
        "interrupted": len(seeds) < config.seeds,
        "models": {name: asdict(MODELS[name]) for name in config.models},
        "protocol": asdict(config.full_protocol),
        "environment": environment(),
    }
    out.write("config.json", json.dumps(about, indent=2) + "\n")
    return summary
