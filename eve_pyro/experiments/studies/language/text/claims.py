"""The claims on language models, and the rules by which measurements decide on them."""

import math

import pandas as pd

from eve_pyro.experiments.page import Status, Verdict, change, number
from eve_pyro.experiments.statistics import entry, summarise
from eve_pyro.experiments.studies.language.tasks import DEEP, FEW, LARGE, MANY
from eve_pyro.experiments.studies.language.text.predictors import (
    CHOSEN_DROPOUT,
    CHOSEN_EVE,
    CHOSEN_MC,
    at_mean,
    is_eve,
    select,
)
from eve_pyro.experiments.studies.tables.claims import gain

A, B = "Ruffenach, A", "Ruffenach, B"
BASELINE, EVE = "plain", "eve-gate"
# Published differences by study and score; of other texts and sizes than ours.
PUBLISHED: dict[str, dict[str, str]] = {
    "writingprompts": {
        "ce": f"-0.17 ({A})",
        "perplexity": f"-26.95 ({A})",
        "error": f"+0.015 ({A})",
        "uncertainty": f"MI about .16, flips about .30 ({A})",
    },
    "wikitext2": {
        "ce": f"better over 4 early epochs ({A})",
        "perplexity": f"better over 4 early epochs ({A})",
        "error": f"better over 4 early epochs ({A})",
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
NAMES = {"ce": "cross-entropy", "perplexity": "perplexity", "error": "accuracy"}
LEAST_INFORMATION, LEAST_FLIPS = 0.05, 0.15
PUBLISHED_INFORMATION, PUBLISHED_FLIPS = 0.16, 0.30
COMPILED, DRAWS = 1.3, 4.2


def verdicts(
    study: str, rows: pd.DataFrame, layers: pd.DataFrame, cost: pd.DataFrame
) -> list[Verdict]:
    """Every claim with what was measured of it.

    Arguments:
        study: name of the corpus's study.
        rows: of :func:`~eve_pyro.experiments.studies.language.text.predictors.predictors`.
        layers: the runs' tables of layers.
        cost: the table of times.
    """
    published = PUBLISHED.get(study, {})
    settings = [s for s in (MANY, FEW, LARGE) if s in (MANY, FEW) or s in set(rows.setting)]
    found = []
    for setting in settings:
        for score, name in NAMES.items():
            claim = f"{name}, {setting}, last epoch: EVE against the plain Transformer"
            said = published.get(score, OTHERS)
            found.append(_compared(rows, claim, said, setting, "last", score))
    first = settings[-1] if LARGE in settings else MANY
    claim = f"gap between training and validation, {first}, last epoch"
    found.append(_compared(rows, claim, published.get("gap", OTHERS), first, "last", "gap"))
    found.append(_uncertainty(rows, first, published.get("uncertainty", OTHERS), claimed=True))
    found.append(_depth_claim(layers, first, published.get("depth", OTHERS)))
    return [*found, *aims(rows, layers, cost, first)]


def aims(
    rows: pd.DataFrame, layers: pd.DataFrame, cost: pd.DataFrame, setting: str
) -> list[Verdict]:
    """Beyond the paper: against the models one would otherwise use, and what it costs."""
    aim = "better on every seed (aim)"
    found = [
        _compared(
            rows, f"cross-entropy, {setting}, best epoch: EVE against the plain Transformer",
            aim, setting, "best", "ce",
        ),
        _compared(
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
        found.append(_compared(rows, claim, aim, setting, "last", "ce", baseline=rival))
    for rival, words in ((BASELINE, "the plain Transformer"), (CHOSEN_MC, rivals[CHOSEN_MC])):
        for kind, how in (("raw", ""), ("scaled", ", both scaled")):
            claim = f"the same{how}, the EVE model chosen on validation text: against {words}"
            found.append(
                _compared(
                    rows, claim, aim, setting, "last", "ce",
                    kind=kind, baseline=rival, model=CHOSEN_EVE,
                )
            )  # fmt: skip
    target = f"MI >= {LEAST_INFORMATION:g}, flips >= {LEAST_FLIPS:g}, CE not worse (aim)"
    found.append(_uncertainty(rows, setting, target, claimed=False))
    found.append(_balance(layers))
    ratio = cost_ratio(cost, "compiled", EVE, BASELINE)
    claim = "training step, compiled, EVE against the plain Transformer"
    found.append(_cost(claim, ratio, COMPILED))
    ratio = cost_ratio(cost, "prediction", f"{EVE}, S = 4", f"{EVE}, S = 1")
    found.append(_cost("prediction with 4 draws against one pass", ratio, DRAWS))
    return found


def _compared(
    rows: pd.DataFrame,
    claim: str,
    published: str,
    setting: str,
    epoch: str,
    score: str,
    *,
    kind: str = "raw",
    baseline: str = BASELINE,
    model: str = EVE,
) -> Verdict:
    frame = select(rows, setting, epoch, kind)
    frame = frame[frame.model.isin([baseline, model])]
    if frame.model.nunique() < 2:
        return Verdict(claim, published, "-", "not tested", "no pair of runs is finished")
    summary = summarise(frame[["model", "seed", score]], baseline)
    row = entry(summary, model, score)
    status, why = gain(row, 0.0, 1.0)
    own, other = (float(entry(summary, m, score)["mean"]) for m in (model, baseline))
    digits = {"perplexity": 1, "error": 4}.get(score, 3)
    if score == "error":  # of which the claim is the opposite
        own, other = 1 - own, 1 - other
        row = pd.Series(
            {
                **{str(k): v for k, v in row.items()},
                "difference": -row["difference"],
                "low": -row["high"],
                "high": -row["low"],
            }
        )
    measured = f"{number(other, digits)} -> {number(own, digits)}, {change(row, digits)}"
    return Verdict(claim, published, measured, status, why)


def uncertain(frame: pd.DataFrame, mean: pd.DataFrame) -> tuple[bool, bool, bool]:
    """Whether a model's draws differ enough, on every seed, and what that costs.

    Arguments:
        frame, mean: rows of a model's predictor with draws and of that at the posterior means.

    Returns:
        Whether mutual information and flips reach the aim, and whether the cross-entropy with
        draws is not worse than at the means.

    Example:
        >>> draws = pd.DataFrame({"seed": [0], "mutual_information": [0.06], "flip_rate": [0.1],
        ...                       "ce": [5.0]})
        >>> uncertain(draws, pd.DataFrame({"seed": [0], "ce": [5.1]}))
        (True, False, True)
    """
    paired = frame.merge(mean, on="seed", suffixes=("", "_mean"))
    return (
        bool((frame["mutual_information"] >= LEAST_INFORMATION).all()),
        bool((frame["flip_rate"] >= LEAST_FLIPS).all()),
        len(paired) > 0 and bool((paired["ce"] <= paired["ce_mean"]).all()),
    )


def _uncertainty(rows: pd.DataFrame, setting: str, published: str, *, claimed: bool) -> Verdict:
    """The claim on the claims' own model, the aim on the EVE model that fulfils most of it."""
    claim = f"mutual information and flips from training alone, {setting}, last epoch"
    frame = select(rows, setting, "last", "raw")
    present = list(dict.fromkeys(frame.model))
    models = [m for m in present if m == EVE or (not claimed and is_eve(m) and "," not in m)]
    if not models:
        return Verdict(claim, published, "-", "not tested", "no EVE model is trained")
    by = {m: frame[frame.model == m] for m in models}
    met = {m: uncertain(own, frame[frame.model == at_mean(m)]) for m, own in by.items()}
    best = max(models, key=lambda m: (sum(met[m]), by[m]["mutual_information"].mean()))
    own, mean = by[best], frame[frame.model == at_mean(best)]
    information, flips = own["mutual_information"].mean(), own["flip_rate"].mean()
    measured = (
        f"{best}: MI {number(information)}, flips {number(flips)}, CE {number(own['ce'].mean())} "
        f"with draws, {number(mean['ce'].mean())} at the means, {own.seed.nunique()} seeds"
    )
    if claimed:
        reached = (information >= 0.75 * PUBLISHED_INFORMATION, flips >= 0.75 * PUBLISHED_FLIPS)
        near = ["near" if met_ else "not near" for met_ in reached]
        why = f"MI {near[0]} .16, flips {near[1]} .30"
        return Verdict(claim, published, measured, _counted(reached), why)
    words = ("MI", "flips", "CE")
    missed = [word for word, good in zip(words, met[best], strict=True) if not good]
    why = f"missed on a seed or more: {', '.join(missed)}" if missed else "on every seed"
    return Verdict(claim, published, measured, _counted(met[best]), why)


def _counted(met: tuple[bool, ...]) -> Status:
    if all(met):
        return "reproduced"
    return "partly" if any(met[:2]) else "not reproduced"


def shares(layers: pd.DataFrame, setting: str, epoch: str = "last") -> pd.DataFrame:
    """Every layer's part of the mutual information that layers give one by one, summing to 1.

    Returns:
        Indexed by model and seed, a column per layer's number.
    """
    if layers.empty:
        return pd.DataFrame()
    own = layers[(layers.setting == setting) & (layers.epoch == epoch)]
    own = own.dropna(subset=["mutual_information"])
    if own.empty:
        return pd.DataFrame()
    table = own.pivot(index=["model", "seed"], columns="number", values="mutual_information")
    return table.div(table.sum(axis=1), axis=0)


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
