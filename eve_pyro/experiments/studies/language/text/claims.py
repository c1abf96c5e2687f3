"""The claims on language models, each with what was measured of it."""

import pandas as pd

from eve_pyro.experiments.page import Verdict, number
from eve_pyro.experiments.studies.language.tasks import FEW, LARGE, MANY
from eve_pyro.experiments.studies.language.text.aims import aims
from eve_pyro.experiments.studies.language.text.predictors import at_mean, select
from eve_pyro.experiments.studies.language.text.rules import (
    EVE,
    compared,
    counted,
    draws_differ,
    shares,
)

A, B = "Ruffenach, A", "Ruffenach, B"
EARLY = f"better over 4 early epochs, passes per token not stated ({A})"
# Published differences by study and score; of other texts and sizes than ours.
PUBLISHED: dict[str, dict[str, str]] = {
    "writingprompts": {
        "ce": f"-0.17 ({A})",
        "perplexity": f"-26.95 ({A})",
        "error": f"+0.015 ({A})",
        "uncertainty": f"MI about .16, flips about .30 ({A})",
    },
    "wikitext2": {
        "ce": EARLY,
        "perplexity": EARLY,
        "error": EARLY,
        "gap": f"0.10 against 1.04 at epoch 4 ({A})",
    },
    "pg19": {
        "ce": f"MC-NLL better ({B})",
        "perplexity": f"189.74 -> 161.94 ({B})",
        "error": f".1938 -> .2064, +.0126 ({B})",
        "depth": f"mostly from the first layer ({B})",
    },
}
OTHERS = "none for this text"
PUBLISHED_INFORMATION, PUBLISHED_FLIPS = 0.16, 0.30
NAMES = {"ce": "cross-entropy", "perplexity": "perplexity", "error": "accuracy"}


def verdicts(
    study: str,
    rows: pd.DataFrame,
    layers: pd.DataFrame,
    shift: pd.DataFrame,
    cost: pd.DataFrame,
) -> list[Verdict]:
    """Every claim with what was measured of it.

    Arguments:
        study: name of the corpus's study.
        rows: of :func:`~eve_pyro.experiments.studies.language.text.predictors.predictors`.
        layers, shift: the runs' tables of these names.
        cost: the table of times.
    """
    published = PUBLISHED.get(study, {})
    settings = [s for s in (MANY, FEW, LARGE) if s in (MANY, FEW) or s in set(rows.setting)]
    found = []
    for setting in settings:
        for score, name in NAMES.items():
            claim = f"{name}, {setting}, last epoch: EVE against the plain Transformer"
            said = published.get(score, OTHERS)
            found.append(compared(rows, claim, said, setting, "last", score))
    first = settings[-1] if LARGE in settings else MANY
    claim = f"gap between training and validation, {first}, last epoch"
    found.append(compared(rows, claim, published.get("gap", OTHERS), first, "last", "gap"))
    found.append(_uncertainty(rows, first, published.get("uncertainty", OTHERS)))
    found.append(_depth_claim(layers, first, published.get("depth", OTHERS)))
    return [*found, *aims(rows, layers, shift, cost, first)]


def _uncertainty(rows: pd.DataFrame, setting: str, published: str) -> Verdict:
    claim = f"mutual information and flips from training alone, {setting}, last epoch, {EVE}"
    frame = select(rows, setting, "last", "raw")
    own, mean = frame[frame.model == EVE], frame[frame.model == at_mean(EVE)]
    if own.empty:
        return Verdict(claim, published, "-", "not tested", f"{EVE} is not trained")
    reached = (
        float(own["mutual_information"].mean()) >= 0.75 * PUBLISHED_INFORMATION,
        float(own["flip_rate"].mean()) >= 0.75 * PUBLISHED_FLIPS,
    )
    near = ["near" if met else "not near" for met in reached]
    why = f"MI {near[0]} .16, flips {near[1]} .30"
    return Verdict(claim, published, draws_differ(own, mean), counted(reached), why)


def _depth_claim(layers: pd.DataFrame, setting: str, published: str) -> Verdict:
    claim = f"uncertainty comes mostly from the first layer, {setting}, {EVE} and eve-gelu"
    table = shares(layers, setting)
    models = [m for m in (EVE, "eve-gelu") if len(table) and m in table.index.unique("model")]
    if not models:
        return Verdict(claim, published, "-", "not tested", "no EVE model is trained")
    firsts = {m: table.loc[m][1] for m in models}
    measured = "first layer's share of MI: " + ", ".join(
        f"{m} {number(float(s.mean()), 2)}" for m, s in firsts.items()
    )
    most = [m for m, s in firsts.items() if bool((s > 0.5).all())]
    why = f"more than half on every seed: {', '.join(most) or 'none'}"
    if len(most) == len(models):
        return Verdict(claim, published, measured, "reproduced", why)
    return Verdict(claim, published, measured, "partly" if most else "not reproduced", why)
