"""The claims on one neuron, the targets, and the rules by which measurements decide on them."""

import math
from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from eve_pyro.experiments.page import Status, Verdict, change, number
from eve_pyro.experiments.statistics import entry, summarise
from eve_pyro.experiments.studies.attribution.tasks import CURVE_SETTING as GAUSSIAN

SKEWED = "skewed-2000"
SOURCE_A, SOURCE_B = "Ruffenach, A", "Ruffenach, B"
BASELINE = "det-cell"
# The two configurations of EVE that the claims are judged on, and what each is for.
SIGMA, HEAD = "eve-mc-32", "eve-head"
CLOSED = "eve-closed"
NAMES = {
    SIGMA: "EVE, S = 32",
    HEAD: "EVE with a variance head",
    CLOSED: "EVE, closed form",
}
WITHOUT_HEAD = ("eve-mc-4", "eve-mc-10", "eve-mc-32", "eve-moment", "eve-closed")
SCORES = {"nll": "NLL", "mc_nll": "MC-NLL", "crps": "CRPS"}
# A cost that is at most this much above the published one is as published.
COST_SLACK = 1.1

Judged = tuple[Status, str]


def better(row: pd.Series) -> Judged:
    """Whether a score is lower than the baseline's on every seed.

    Arguments:
        row: of :func:`~eve_pyro.experiments.summarise`.

    Example:
        >>> row = pd.Series(
        ...     {"difference": -0.1, "low": -0.2, "high": -0.05, "wins": 9, "pairs": 10}
        ... )
        >>> better(row)
        ('partly', 'lower, clear of 0, but not on every seed')
    """
    if row["pairs"] < 2 or math.isnan(row["difference"]):
        return "not tested", "fewer than two pairs of runs"
    if row["high"] < 0:
        if row["wins"] == row["pairs"]:
            return "reproduced", "lower on every seed"
        return "partly", "lower, clear of 0, but not on every seed"
    if row["low"] > 0:
        return "not reproduced", "higher, clear of 0"
    return "not reproduced", "the interval holds 0"


def within(row: pd.Series, bound: float) -> Judged:
    """Whether a score is at most ``bound``, as a share, above the baseline's mean.

    Example:
        >>> row = pd.Series({"difference": 0.001, "relative": 0.01, "low": -0.001, "high": 0.003,
        ...                  "pairs": 10})
        >>> within(row, 0.0041)
        ('partly', 'above the bound, but the interval reaches below it')
    """
    if row["pairs"] < 2 or math.isnan(row["difference"]):
        return "not tested", "fewer than two pairs of runs"
    if row["relative"] <= bound:
        return "reproduced", "within the bound" if row["relative"] >= -bound else "lower than that"
    lowest = row["low"] * row["relative"] / row["difference"]
    if lowest <= bound:
        return "partly", "above the bound, but the interval reaches below it"
    return "not reproduced", "above the bound, the whole interval"


def at_most(values: pd.Series, bound: float) -> Judged:
    """Whether the mean over seeds is at most ``bound``; partly, if it is for half of the seeds.

    Example:
        >>> at_most(pd.Series([0.5, 0.7, 2.0]), 1.0)
        ('partly', '2 of 3 seeds are, their mean is not')
    """
    values = values.dropna()
    if len(values) < 2:
        return "not tested", "fewer than two runs"
    count = int((values <= bound).sum())
    if values.mean() <= bound:
        return "reproduced", f"the mean is, and {count} of {len(values)} seeds"
    if 2 * count >= len(values):
        return "partly", f"{count} of {len(values)} seeds are, their mean is not"
    return "not reproduced", f"{count} of {len(values)} seeds are"


def up_to(values: pd.Series, bound: float) -> Judged:
    """Whether the largest value reaches ``bound``; partly, if it comes within 0.05.

    Example:
        >>> up_to(pd.Series([0.5, 0.94]), 0.98)
        ('partly', 'the best seed comes within 0.05')
    """
    values = values.dropna()
    if len(values) < 2:
        return "not tested", "fewer than two runs"
    if values.max() >= bound:
        return "reproduced", f"{(values >= bound).sum()} of {len(values)} seeds reach it"
    if values.max() >= bound - 0.05:
        return "partly", "the best seed comes within 0.05"
    return "not reproduced", "no seed comes within 0.05"


def joined(parts: Mapping[str, Judged]) -> Judged:
    """One verdict of several: reproduced if all are, not reproduced if none is even partly.

    Example:
        >>> joined({"NLL": ("reproduced", "lower"), "CRPS": ("not reproduced", "higher")})
        ('partly', 'NLL: lower; CRPS: higher')
    """
    found = {status for status, _ in parts.values()}
    reasons = {why for _, why in parts.values()}
    why = "; ".join(f"{name}: {why}" for name, (_, why) in parts.items())
    if len(reasons) == 1:
        why = reasons.pop()
    if len(found) == 1:
        return found.pop(), why
    return "partly", why


def paired(frame: pd.DataFrame, model: str, baseline: str) -> pd.DataFrame | None:
    """The summary of a model and its baseline in one setting; None if one of them is missing."""
    chosen = frame[frame.model.isin([model, baseline])]
    if not {model, baseline} <= set(chosen.model):
        return None
    return summarise(chosen, baseline)


def verdicts(scores: pd.DataFrame, cost: pd.DataFrame) -> list[Verdict]:
    """All claims of the study, those that cannot be judged yet as not tested.

    Arguments:
        scores: of :func:`~eve_pyro.experiments.engine.scores_frame`.
        cost: the table ``cost``, perhaps empty.
    """
    gaussian = scores[scores.setting == GAUSSIAN]
    skewed = scores[scores.setting == SKEWED]
    return [
        *_published(gaussian),
        *_correlations(gaussian),
        *costs(cost),
        *_targets(gaussian),
        *_skew(skewed),
    ]


def _published(frame: pd.DataFrame) -> list[Verdict]:
    found = []
    for model in (SIGMA, HEAD):
        name = NAMES[model]
        summary = paired(frame, model, BASELINE)
        claim, aim = f"MSE of {name} against DET-cell", f"within 0.41 % ({SOURCE_A})"
        if summary is None:
            found.append(_not_tested(claim, aim))
        else:
            row = entry(summary, model, "mse")
            status, why = within(row, 0.0041)
            measured = change(row, 2, relative=True)
            found.append(Verdict(claim, aim, measured, status, why))
    rivals = {
        BASELINE: ("DET-cell", f"clearly better ({SOURCE_A}, {SOURCE_B}); 10/10 (aim)"),
        "stoch-hetero": (
            "STOCH-hetero, Gaussian noise",
            f"clearly better ({SOURCE_A}); a strong reference ({SOURCE_B})",
        ),
    }
    for rival, (words, aim) in rivals.items():
        for model in (SIGMA, HEAD):
            claim = f"NLL, MC-NLL and CRPS of {NAMES[model]} against {words}"
            found.append(_compared(frame, claim, aim, model, rival, SCORES))
    return found


# Why a comparison with a well-specified control can hardly be won, whatever the numbers are.
_WELL_SPECIFIED = " (this control is the very law that drew the data)"


def _compared(
    frame: pd.DataFrame, claim: str, aim: str, model: str, rival: str, names: Mapping[str, str]
) -> Verdict:
    """A verdict on several scores of a model against a rival."""
    summary = paired(frame, model, rival)
    if summary is None:
        return _not_tested(claim, aim)
    rows = {name: entry(summary, model, score) for score, name in names.items()}
    status, why = joined({name: better(row) for name, row in rows.items()})
    if rival == "stoch-hetero" and "Gaussian" in claim:
        why += _WELL_SPECIFIED
    measured = "; ".join(f"{name} {change(row, 4)}" for name, row in rows.items())
    return Verdict(claim, aim, measured, status, why)


def _correlations(frame: pd.DataFrame) -> list[Verdict]:
    weighted = "sigma as the readout weighs it"
    best, aim = f"up to 0.98 ({SOURCE_A})", "at least 0.98 (aim)"
    aligned = f"93.9 % alignment, deterministic near 0 ({SOURCE_B})"
    asked: list[tuple[str, str, str, str, Callable[[pd.Series], Judged]]] = [
        (SIGMA, "r_sigma", "sigma, mean over units", best, lambda r: up_to(r, 0.98)),
        (SIGMA, "r_kl", "local KL", best, lambda r: up_to(r, 0.98)),
        (SIGMA, "r_sigma", "sigma, mean over units", aligned, lambda r: at_most(-r, -0.939)),
        (SIGMA, "r_sigma", "sigma, mean over units", aim, lambda r: at_most(-r, -0.98)),
        (SIGMA, "r_spread", weighted, aim, lambda r: at_most(-r, -0.98)),
        (CLOSED, "r_spread", weighted, aim, lambda r: at_most(-r, -0.98)),
    ]
    found = []
    for model, score, name, published, judge in asked:
        claim = f"absolute r of {name} with the true scale, {NAMES[model]}"
        r = frame[frame.model == model].get(score, pd.Series(dtype=float)).abs().dropna()
        if r.empty:
            found.append(_not_tested(claim, published))
            continue
        status, why = judge(r)
        if score == "r_kl" and status in ("partly", "not reproduced"):
            why += "; KL holds mu² too, and sigma mainly as -log sigma, which is not linear in s"
        measured = f"{r.mean():.3f} (from {r.min():.3f} to {r.max():.3f}, {len(r)} seeds)"
        if published == aligned:
            measured += "; the predictive sd of DET-cell is constant"
        found.append(Verdict(claim, published, measured, status, why))
    return found


def costs(cost: pd.DataFrame) -> list[Verdict]:
    """Verdicts on the cost of a training step, eager; compiled code may make it partly."""
    found = []
    for rival, words, published in (
        ("det-scalar", "DET-scalar", 4.04),
        ("det-cell", "DET-cell", 1.77),
    ):
        claim = f"cost of a training step of EVE, S = 1, in units of {words}"
        aim = f"{published} ({SOURCE_A}, {SOURCE_B})"
        eager = ratio(cost, "step", "eve, S = 1", rival)
        compiled = ratio(cost, "compiled", "eve, S = 1", rival)
        if math.isnan(eager):
            found.append(_not_tested(claim, aim))
            continue
        status: Status = "not reproduced"
        why = "dearer than published"
        if eager <= COST_SLACK * published:
            status, why = "reproduced", "at most as dear as published"
        elif compiled <= COST_SLACK * published:
            status, why = "partly", "at most as dear as published where compiled"
        else:
            why += "" if math.isnan(compiled) else ", eager and compiled"
        many = ratio(cost, "step", "eve, S = 32", rival)
        measured = (
            f"{eager:.2f} eager, {number(compiled, 2)} compiled; with S = 32, the EVE of the "
            f"claims on scores, {number(many, 2)} eager"
        )
        found.append(Verdict(claim, aim, measured, status, why))
    return found


def ratio(cost: pd.DataFrame, kind: str, model: str, reference: str) -> float:
    """Ratio of two models' median seconds; NaN if one was not measured.

    Example:
        >>> cost = pd.DataFrame({"kind": "step", "contestant": ["a", "b"], "seconds": [3.0, 2.0]})
        >>> ratio(cost, "step", "a", "b"), ratio(cost, "step", "a", "c")
        (1.5, nan)
    """
    if cost.empty:
        return math.nan
    seconds = cost[cost.kind == kind].set_index("contestant")["seconds"]
    return float(seconds.get(model, math.nan) / seconds.get(reference, math.nan))


def _targets(frame: pd.DataFrame) -> list[Verdict]:
    best = best_without_head(frame)
    asked: Sequence[tuple[str, str | None, float]] = [
        (f"NLL above the oracle's, {NAMES[HEAD]}", HEAD, 0.01),
        (f"NLL above the oracle's, EVE without a head ({best or 'best of all'})", best, 0.05),
    ]
    found = []
    for claim, model, bound in asked:
        aim = f"at most {bound:g} nats (aim)"
        own = frame[frame.model == model]
        if own.empty:
            found.append(_not_tested(claim, aim))
            continue
        gap = (own["nll"] - own["oracle_nll"]).dropna()
        status, why = at_most(gap, bound)
        density = (own["mc_nll"] - own["oracle_mc_nll"]).mean()
        measured = f"{gap.mean():+.4f} nats, {len(gap)} seeds (MC-NLL {density:+.4f})"
        found.append(Verdict(claim, aim, measured, status, why))
    return found


def best_without_head(frame: pd.DataFrame) -> str | None:
    """The model without a variance head whose NLL is lowest on average; None without runs."""
    own = frame[frame.model.isin(WITHOUT_HEAD)]
    means = own.groupby("model")["nll"].mean().dropna() if len(own) else own
    return None if means.empty else str(means.idxmin())


def _skew(frame: pd.DataFrame) -> list[Verdict]:
    names = {"mc_nll": "MC-NLL", "crps": "CRPS"}
    rivals = {"stoch-hetero": "STOCH-hetero", "mixture": "a mixture density network"}
    return [
        _compared(
            frame,
            f"MC-NLL and CRPS of {NAMES[HEAD]} against {words}, skewed noise",
            "better, 10/10 (aim)" if rival == "stoch-hetero" else "the fair rival (ours)",
            HEAD,
            rival,
            names,
        )
        for rival, words in rivals.items()
    ]


def _not_tested(claim: str, aim: str) -> Verdict:
    return Verdict(claim, aim, "-", "not tested", "the runs are missing")
