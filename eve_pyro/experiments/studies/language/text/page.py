"""The page of a text's study."""

from collections.abc import Sequence

import pandas as pd

from eve_pyro.experiments.engine import Record, scores_frame, tables_frame
from eve_pyro.experiments.page import Page, number
from eve_pyro.experiments.studies.language.tasks import COST, DEEP, FEW, LARGE, MANY, SHIFTED
from eve_pyro.experiments.studies.language.text import figures, tables
from eve_pyro.experiments.studies.language.text.aims import cost_ratio
from eve_pyro.experiments.studies.language.text.claims import verdicts
from eve_pyro.experiments.studies.language.text.method import method, regime
from eve_pyro.experiments.studies.language.text.predictors import one_draw, predictors
from eve_pyro.experiments.studies.language.text.rules import BASELINE, shares

CURVES = ("plain", "wide", "dropout-0.1", "dropout-0.3", "eve-gate", "eve-floor", "eve-mc")


def write(study: str, page: Page, records: Sequence[Record]) -> None:
    """Fill the page with whatever runs there are.

    Arguments:
        study: name of the corpus's study.
        page: to fill.
        records: of the runs.
    """
    scores = scores_frame([r for r in records if r.task.setting != COST])
    rows = predictors(scores) if len(scores) else predictors(pd.DataFrame())
    layers = tables_frame(records, "layers")
    course = tables_frame(records, "course")
    shift = tables_frame(records, "shift")
    cost = tables_frame(records, "cost")
    settings = [s for s in (MANY, FEW, LARGE, DEEP) if s in set(rows.setting)]
    about = tables_frame(records, "text")
    if len(about):
        page.text(str(about["description"].iloc[0]))
    page.text(method(records, scores))
    page.heading("Verdicts")
    page.text(
        "*x -> y* is from the plain Transformer (or whom the claim names) to EVE, then the paired "
        "difference: mean over seeds [95 % interval] and the seeds that are better. Published "
        "numbers are of models, texts and sizes that are not ours: the sign and the wins decide, "
        "the sizes stand beside."
    )
    page.verdicts(verdicts(study, rows, layers, shift, cost))
    for setting in settings:
        page.heading(setting.capitalize())
        page.text(regime(scores[scores.setting == setting]))
        for epoch in ("last", "best"):
            tables.scores(page, rows, setting, epoch)
        tables.differences(page, rows, setting)
    _curves(page, course, settings)
    if settings:
        tables.ranking(page, rows, settings[0])
    _layers(page, layers, settings)
    _shift(page, shift)
    _cost(page, cost)
    if len(rows):
        page.heading("Files")
        page.frame("predictors", rows, "scores of every way to predict, of every run.")
        if len(course):
            page.frame("course", course, "training and validation over epochs.")
        if len(layers):
            page.frame("layers", layers, "statistics of every layer.")


def _curves(page: Page, course: pd.DataFrame, settings: Sequence[str]) -> None:
    shown = [s for s in settings if len(course) and s in set(course.setting)]
    if not shown:
        return
    page.heading("Over-fitting")
    page.figure(
        "course",
        figures.learning_curves(course, shown, CURVES),
        "Cross-entropy and gap over epochs, mean over seeds, predictions averaged over draws.",
    )


def _layers(page: Page, layers: pd.DataFrame, settings: Sequence[str]) -> None:
    shown = [s for s in settings if len(layers) and s in set(layers.setting)]
    if not shown:
        return
    page.heading("The layers of EVE")
    page.text(
        "Last epoch, test text, mean over seeds. KL is per unit and token. *MI alone* is the "
        "mutual information where this layer draws and all others stand at their means; *share* "
        "is its part of the sum over layers, *of all* its part of the MI where all draw."
    )
    lines = []
    for setting in shown:
        table = shares(layers, setting)
        own = layers[(layers.setting == setting) & (layers.epoch == "last")]
        means = own.groupby(["model", "number"], sort=False).mean(numeric_only=True)
        known = table.groupby("model").mean().to_dict() if len(table) else {}
        for row in means.reset_index().to_dict("records"):
            model, layer = str(row["model"]), int(row["number"])
            share = known.get(layer, {}).get(model, float("nan"))
            cells = [setting, model, str(layer)]
            cells += [number(float(row[c])) for c in ("kl", "sigma", "energy", "active_fraction")]
            cells += [number(float(row["mutual_information"]), 4), number(share, 2)]
            lines.append([*cells, number(float(row["share"]), 2)])
    columns = ["KL, nats", "sigma", "energy", "active", "MI alone, nats", "share", "of all"]
    page.table(["setting", "model", "layer", *columns], lines)


def _shift(page: Page, shift: pd.DataFrame) -> None:
    if shift.empty:
        return
    page.heading("When the text goes wrong")
    page.text(
        "A share of the context's tokens is replaced by others, drawn uniformly; targets are the "
        "author's. Last epoch, predictions over draws; bands from the lowest to the highest seed."
    )
    figure = figures.shift_curves(shift, SHIFTED)
    page.figure("shift", figure, "Losses and uncertainty against the share of replaced tokens.")
    page.text(
        "How well windows with replaced tokens are told from clean ones, by means over the window "
        "of a signal that needs no targets: area under the ROC curve, mean over seeds."
    )
    means = shift[shift.rate > 0].groupby(["model", "rate"], sort=False).mean(numeric_only=True)
    signals = {
        "1 - max probability": "max_probability",
        "entropy": "entropy",
        "MI": "mutual_information",
        "local KL": "kl",
    }
    lines = [
        [str(model), f"{100 * rate:g} %"]
        + [number(float(row[f"detect_{name}"])) for name in signals.values()]
        for (model, rate), row in zip(means.index, means.to_dict("records"), strict=True)
    ]
    page.table(["model", "replaced", *signals], lines)
    page.frame("shift", shift, "scores and uncertainty at every share.")


def _cost(page: Page, cost: pd.DataFrame) -> None:
    if cost.empty:
        return
    page.heading("What it costs")
    page.text(
        "Models take turns in one process, one torch thread; medians over turns, with quartiles. "
        "A step is zero_grad, loss with its noise, backward, clipping and AdamW; *compiled* by "
        f"CompiledELBO. Ratios are to {BASELINE}, and of predictions to one draw of the model."
    )
    lines = []
    for row in cost.to_dict("records"):
        kind, name = str(row["kind"]), str(row["contestant"])
        missing = row["missing"] if isinstance(row["missing"], str) else ""
        times = [f"{1e3 * row[k]:.1f}" for k in ("seconds", "low", "high")]
        ratio = number(cost_ratio(cost, kind, name, BASELINE), 2)
        single = number(cost_ratio(cost, kind, name, one_draw(name.split(", ")[0])), 2)
        time = missing or f"{times[0]} ({times[1]} to {times[2]})"
        lines.append([kind, name, time, ratio, single, number(float(row["start_up"]), 1)])
    columns = ["ms", f"/ {BASELINE}", "/ one draw", "first step, s"]
    page.table(["what", "model", *columns], lines)
    page.frame("cost", cost, "the times.")
