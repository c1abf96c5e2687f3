"""The page's tables of scores, and of differences from the plain Transformer."""

import pandas as pd

from eve_pyro.experiments.page import Page, change, number
from eve_pyro.experiments.statistics import entry, summarise
from eve_pyro.experiments.studies.language.tasks import MODELS
from eve_pyro.experiments.studies.language.text import figures
from eve_pyro.experiments.studies.language.text.predictors import (
    CHOSEN_DROPOUT,
    CHOSEN_EVE,
    CHOSEN_MC,
    select,
)
from eve_pyro.experiments.studies.language.text.rules import BASELINE

# Column -> score, digits.
MAIN: dict[str, tuple[str, int]] = {
    "CE, nats": ("ce", 3),
    "PPL": ("perplexity", 1),
    "accuracy": ("accuracy", 4),
    "expected CE": ("expected_ce", 3),
    "ECE": ("ece", 3),
    "Brier": ("brier", 4),
    "worst 5 %, nats": ("cvar", 2),
    "MI, nats": ("mutual_information", 4),
    "flips": ("flip_rate", 3),
}
SCALED: dict[str, tuple[str, int]] = {
    "temperature": ("temperature", 2),
    "CE, nats": ("ce", 3),
    "PPL": ("perplexity", 1),
    "ECE": ("ece", 3),
    "Brier": ("brier", 4),
}
RANKING: dict[str, tuple[str, int]] = {
    "1 - max probability": ("auroc_max_probability", 4),
    "entropy": ("auroc_entropy", 4),
    "MI": ("auroc_mutual_information", 4),
    "local KL": ("auroc_kl", 4),
    "max probability and MI": ("auroc_combined", 4),
    "AURC": ("aurc", 4),
}


def scores(page: Page, rows: pd.DataFrame, setting: str, epoch: str) -> None:
    """All predictors of one setting and epoch: raw, scaled, and compared."""
    raw, scaled = (select(rows, setting, epoch, kind) for kind in ("raw", "scaled"))
    if raw.empty:
        return
    which = "Last epoch" if epoch == "last" else "Best epoch, by validation cross-entropy"
    page.text(f"**{which}**, test text, raw; mean ± sd over seeds.")
    columns = {**MAIN, "train CE": ("train", 3), "gap": ("gap", 3), "parameters": ("parameters", 0)}
    if epoch == "best":
        columns["epoch"] = ("best_epoch", 1)
    _means(page, raw, columns)
    page.text(f"{which}, divided by the temperature of the validation text:")
    _means(page, scaled, SCALED)
    if BASELINE not in set(raw.model) or raw.model.nunique() < 2:
        return
    page.text(
        f"{which}, difference from **{BASELINE}**: mean [95 % interval] and the seeds that are "
        "better; error is 1 - accuracy."
    )
    compared = ["ce", "perplexity", "error", "gap"]
    table = summarise(raw[["model", "seed", *compared]], BASELINE)
    other = scaled[["model", "seed", "ce", "ece"]]
    scaled_table = summarise(other, BASELINE) if BASELINE in set(other.model) else None
    lines = []
    for model in _models(raw):
        if model == BASELINE:
            continue
        cells = [
            change(entry(table, model, score), digits)
            for score, digits in zip(compared, (3, 1, 4, 3), strict=True)
        ]
        known = scaled_table is not None and (model, "ce") in scaled_table.index
        scaled_cell = change(entry(scaled_table, model, "ce")) if known else "-"  # type: ignore[arg-type]
        lines.append([model, *cells, scaled_cell])
    page.table(["model", "CE", "PPL", "error", "gap", "CE, scaled"], lines)


def differences(page: Page, rows: pd.DataFrame, setting: str) -> None:
    """The figure of differences, seed by seed."""
    frame = select(rows, setting, "last", "raw")
    frame = frame[frame.model.isin(_models(frame))]
    if BASELINE not in set(frame.model) or frame.model.nunique() < 2:
        return
    summary = summarise(frame[["model", "seed", "ce"]], BASELINE)
    wide = frame.pivot(index="seed", columns="model", values="ce")[_models(frame)]
    page.figure(
        f"differences-{setting.replace(' ', '-')}",
        figures.differences(summary, wide, BASELINE),
        f"{setting.capitalize()}, last epoch: cross-entropy less that of the plain Transformer, "
        "seed by seed, with the mean and its 95 % interval. Left of 0 is better.",
    )


def ranking(page: Page, rows: pd.DataFrame, setting: str) -> None:
    """How well signals tell wrong tokens from right ones."""
    frame = select(rows, setting, "last", "raw")
    if frame.empty:
        return
    page.heading("Which tokens will be wrong?")
    page.text(
        f"{setting.capitalize()}, last epoch: the probability that a wrong token has the "
        "larger signal than a right one (AUROC), and the mean error over the most certain tokens "
        "(AURC, lower is better)."
    )
    own = frame[~frame.model.str.endswith(("at the mean", "S = 1"))]
    _means(page, own, RANKING)


def _means(page: Page, frame: pd.DataFrame, columns: dict[str, tuple[str, int]]) -> None:
    lines = []
    for model in _models(frame):
        own = frame[frame.model == model]
        cells = [model, str(own.seed.nunique())]
        for score, digits in columns.values():
            values = own[score].astype(float)
            text, sd = number(values.mean(), digits), number(values.std(), digits)
            plain = score == "parameters" or "-" in (text, sd)
            cells.append(text if plain else f"{text} ± {sd}")
        lines.append(cells)
    page.table(["model", "seeds", *columns], lines)


def _models(frame: pd.DataFrame) -> list[str]:
    """The rows of a table in its order: controls, EVE, then how else EVE may predict."""
    present = list(dict.fromkeys(frame.model))
    controls = [m for m in present if m in MODELS and not m.startswith("eve-")]
    chosen = [m for m in (CHOSEN_DROPOUT, CHOSEN_MC) if m in present]
    eve = [m for m in present if m.startswith("eve-")]
    return [*controls, *chosen, *sorted(eve), *(m for m in (CHOSEN_EVE,) if m in present)]
