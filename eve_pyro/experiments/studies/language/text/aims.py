"""What was aimed at beyond the paper, each with what was measured of it."""

import math

import pandas as pd

from eve_pyro.experiments.page import Verdict, number
from eve_pyro.experiments.studies.language.tasks import BALANCED, DEEP, SHIFTED
from eve_pyro.experiments.studies.language.text.predictors import (
    CHOSEN_DROPOUT,
    CHOSEN_EVE,
    CHOSEN_MC,
    select,
)
from eve_pyro.experiments.studies.language.text.rules import (
    BASELINE,
    EVE,
    LEAST_FLIPS,
    LEAST_INFORMATION,
    compared,
    every,
    noticed,
    noticed_beside,
    shared,
    uncertainty,
)

# Fixed ahead of the runs: the model trained to have mutual information decides what it is good
# for, and BALANCED whether layers share it.
INFORMATIVE = "eve-mc"
COMPILED, DRAWS = 1.3, 4.2


def aims(
    rows: pd.DataFrame,
    layers: pd.DataFrame,
    shift: pd.DataFrame,
    cost: pd.DataFrame,
    setting: str,
) -> list[Verdict]:
    """Against the models one would otherwise use, what uncertainty is good for, what it costs.

    Arguments:
        rows, layers, shift, cost: of
            :func:`~eve_pyro.experiments.studies.language.text.claims.verdicts`.
        setting: that decides.
    """
    aim = "better on every seed (aim)"
    found = [
        compared(
            rows, f"cross-entropy, {setting}, best epoch: EVE against the plain Transformer",
            aim, setting, "best", "ce",
        ),
        compared(
            rows, f"cross-entropy, {setting}, last epoch, both scaled by a temperature",
            aim, setting, "last", "ce", kind="scaled",
        ),
    ]  # fmt: skip
    rivals = {
        "wide": "a plain one with EVE's parameters",
        "glu": "gated units with EVE's parameters",
        "narrow": "a narrow one",
        CHOSEN_DROPOUT: "dropout, its rate tuned",
        CHOSEN_MC: "MC-dropout, its rate tuned",
    }
    for rival, words in rivals.items():
        claim = f"cross-entropy, {setting}, last epoch: EVE against {words}"
        found.append(compared(rows, claim, aim, setting, "last", "ce", baseline=rival))
    for rival, words in ((BASELINE, "the plain Transformer"), (CHOSEN_MC, rivals[CHOSEN_MC])):
        for kind, how in (("raw", ""), ("scaled", ", both scaled")):
            claim = f"the same{how}, the EVE model chosen on validation text: against {words}"
            found.append(
                compared(
                    rows, claim, aim, setting, "last", "ce",
                    kind=kind, baseline=rival, model=CHOSEN_EVE,
                )
            )  # fmt: skip
    target = f"MI >= {LEAST_INFORMATION:g}, flips >= {LEAST_FLIPS:g}, CE not worse (aim)"
    claim = f"mutual information and flips from training alone, {setting}, last epoch"
    found.append(uncertainty(rows, setting, INFORMATIVE, claim, target))
    found.append(_ranked(rows, setting))
    found += _detected(shift)
    claim = "every block of four gives at least half of an equal share of MI"
    found.append(shared(layers, DEEP, BALANCED, claim, "share >= .125 (aim)"))
    ratio = cost_ratio(cost, "compiled", EVE, BASELINE)
    claim = "training step, compiled, EVE against the plain Transformer"
    found.append(_cost(claim, ratio, COMPILED))
    ratio = cost_ratio(cost, "prediction", f"{EVE}, S = 4", f"{EVE}, S = 1")
    found.append(_cost("prediction with 4 draws against one pass", ratio, DRAWS))
    return found


def _ranked(rows: pd.DataFrame, setting: str) -> Verdict:
    """Whether the inside tells of wrong tokens what the output does not."""
    claim = f"wrong tokens told by max probability and MI together, {setting}, last epoch"
    published = "AUROC above that of max probability on every seed (aim)"
    own = select(rows, setting, "last", "raw")
    own = own[own.model == INFORMATIVE]
    if own.empty:
        return Verdict(claim, published, "-", "not tested", f"{INFORMATIVE} is not trained")
    signals = ("max_probability", "combined", "entropy", "mutual_information", "kl")
    names = ("max probability", "both", "entropy", "MI", "local KL")
    means = own[[f"auroc_{s}" for s in signals]].astype(float).mean()
    measured = f"{INFORMATIVE}: " + ", ".join(
        f"{name} {number(float(mean), 4)}" for name, mean in zip(names, means, strict=True)
    )
    wins = int((own["auroc_combined"] > own["auroc_max_probability"]).sum())
    return Verdict(claim, published, measured, *every(wins, len(own), "seeds"))


def _detected(shift: pd.DataFrame) -> list[Verdict]:
    """Whether the inside tells of a context with errors what the output does not."""
    table = shift[shift.rate > 0] if len(shift) else shift
    if len(table):
        table = table.assign(case=[f"{100 * rate:g} %" for rate in table.rate])
    rivals = [m for m in SHIFTED if m.startswith("dropout")]
    return [
        noticed(
            table,
            INFORMATIVE,
            "windows with replaced tokens told by MI better than by max probability or entropy",
            "AUROC higher at every rate and seed (aim)",
        ),
        noticed_beside(
            table,
            INFORMATIVE,
            rivals,
            "the same, by EVE's MI better than by MC-dropout's",
            "AUROC higher at every rate and seed (aim)",
        ),
    ]


def cost_ratio(cost: pd.DataFrame, kind: str, contestant: str, reference: str) -> float:
    """Time of a contestant as a multiple of another's; NaN if either was not measured."""
    if cost.empty:
        return math.nan
    seconds = cost[cost.kind == kind].set_index("contestant")["seconds"]
    known = {contestant, reference} <= set(seconds.index)
    return float(seconds[contestant] / seconds[reference]) if known else math.nan


def _cost(claim: str, ratio: float, bound: float) -> Verdict:
    published = f"<= {bound:g} x (aim)"
    if math.isnan(ratio):
        return Verdict(claim, published, "-", "not tested", "not timed")
    measured = f"{number(ratio, 2)} x"
    if ratio <= bound:
        return Verdict(claim, published, measured, "reproduced", "within the bound")
    near = ratio <= 1.1 * bound
    why = "above the bound by less than a tenth" if near else "above the bound"
    return Verdict(claim, published, measured, "partly" if near else "not reproduced", why)
