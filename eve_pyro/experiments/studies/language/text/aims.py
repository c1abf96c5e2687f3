"""What was aimed at beyond the paper, each with what was measured of it."""

import math

import pandas as pd

from eve_pyro.experiments.page import Status, Verdict, number
from eve_pyro.experiments.studies.language.tasks import DEEP
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
    shares,
    uncertainty,
)

# The model trained to have mutual information.
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
    found.append(uncertainty(rows, setting, target, claimed=False))
    found.append(_ranked(rows, setting))
    found += [_detected(shift), _detected_as_by_dropout(shift)]
    found.append(_balance(layers))
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
    return Verdict(claim, published, measured, *_wins(wins, len(own), "seeds"))


def _detected(shift: pd.DataFrame) -> Verdict:
    claim = "windows with replaced tokens told by MI better than by max probability"
    published = "AUROC higher, and above .5, at every rate and seed (aim)"
    own = shift[(shift.model == INFORMATIVE) & (shift.rate > 0)] if len(shift) else shift
    if own.empty:
        return Verdict(claim, published, "-", "not tested", f"{INFORMATIVE} is not trained")
    inside, outside = own["detect_mutual_information"], own["detect_max_probability"]
    said = [
        f"{100 * float(str(rate)):g} % {number(float(part['detect_mutual_information'].mean()))} "
        f"against {number(float(part['detect_max_probability'].mean()))}"
        for rate, part in own.groupby("rate")
    ]
    # Below .5 neither tells anything: corrupted windows would be taken for the clean ones.
    wins = int((inside > outside.clip(lower=0.5)).sum())
    measured = f"{INFORMATIVE}: {'; '.join(said)}"
    return Verdict(claim, published, measured, *_wins(wins, len(own), "pairs of rate and seed"))


def _detected_as_by_dropout(shift: pd.DataFrame) -> Verdict:
    claim = "the same, by EVE's MI against MC-dropout's"
    published = "AUROC higher at every rate and seed (aim)"
    table = shift[shift.rate > 0] if len(shift) else shift
    names = [m for m in table.model.unique() if m.startswith("dropout")] if len(table) else []
    if not names or INFORMATIVE not in set(table.model):
        return Verdict(claim, published, "-", "not tested", "no pair of runs is finished")
    wide = table.pivot(
        index=["rate", "seed"], columns="model", values="detect_mutual_information"
    ).dropna(subset=[INFORMATIVE, *names])
    own = wide[INFORMATIVE].groupby("rate").mean()
    measured = "; ".join(
        f"{name}: "
        + ", ".join(
            f"{number(float(a))} -> {number(float(b))}"
            for a, b in zip(wide[name].groupby("rate").mean(), own, strict=True)
        )
        for name in names
    )
    wins = int((wide[INFORMATIVE] > wide[names].max(axis=1)).sum())
    return Verdict(claim, published, measured, *_wins(wins, len(wide), "pairs of rate and seed"))


def _wins(wins: int, of: int, what: str) -> tuple[Status, str]:
    """All, three quarters or fewer."""
    status: Status = (
        "reproduced" if wins == of else "partly" if 4 * wins >= 3 * of else "not reproduced"
    )
    return status, f"so on {wins} of {of} {what}"


def _balance(layers: pd.DataFrame) -> Verdict:
    claim = "every block of four gives at least half of an equal share of MI"
    published = "share >= .125 (aim)"
    table = shares(layers, DEEP)
    if table.empty:
        return Verdict(claim, published, "-", "not tested", "no deep EVE model is trained")
    by = table.min(axis=1).groupby("model")
    means, leasts = by.mean(), by.min()
    half = 0.5 / table.shape[1]
    best = str(leasts.idxmax())
    # An even share of next to nothing would say little.
    own = layers[(layers.setting == DEEP) & (layers.epoch == "last")]
    sums = own.groupby(["model", "seed"])["mutual_information"].sum().groupby("model").mean()
    measured = "least share, and MI of all blocks one by one: " + ", ".join(
        f"{m} {number(float(share))} of {number(float(sums[str(m)]))}" for m, share in means.items()
    )
    good, near = float(leasts.max()) >= half, float(means.max()) >= half
    why = f"{best} {'on every seed' if good else 'not on every seed'}"
    if float(sums[best]) < LEAST_INFORMATION:
        why += f", of less than {LEAST_INFORMATION:g} nats in all"
    status: Status = "reproduced" if good else "partly" if near else "not reproduced"
    return Verdict(claim, published, measured, status, why)


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
