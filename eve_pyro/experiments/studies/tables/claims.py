"""The claims on tables, and the rules by which measurements decide on them."""

import math

import pandas as pd

from eve_pyro.experiments.page import Status, Verdict, change
from eve_pyro.experiments.statistics import entry, summarise

SOURCE = "Ruffenach, A"
# The published claims are of 10 paired seeds; the prize is judged on all there are.
CLAIM_SEEDS = 10
EVE = "eve"
FORMS = {
    "eve": "EVE",
    "eve-multiplicative": "multiplicative EVE",
    "eve-ensemble": "5 multiplicative EVE networks",
}


def gain(row: pd.Series, size: float, share: float) -> tuple[Status, str]:
    """Whether a score is as much lower, on as many seeds, as claimed.

    Arguments:
        row: of :func:`~eve_pyro.experiments.summarise`.
        size: claimed relative difference, below 0; 0 claims that it is lower at all.
        share: claimed share of seeds that are better.

    Example:
        >>> row = pd.Series({"difference": -0.1, "relative": -0.2, "low": -0.2, "high": -0.05,
        ...                  "wins": 9, "pairs": 10})
        >>> gain(row, -0.1, 1.0)
        ('partly', 'clear of 0, as large as claimed; better on 9 of 10 seeds, not on 10')
    """
    if row["pairs"] < 2 or math.isnan(row["difference"]):
        return "not tested", "fewer than two pairs of runs"
    large, needed = row["relative"] <= size, math.ceil(share * row["pairs"] - 1e-9)
    often, clear = row["wins"] >= needed, row["high"] < 0
    said = ["clear of 0" if clear else "the interval holds 0" if row["low"] <= 0 else "worse"]
    if size:
        said[0] += ", as large as claimed" if large else ", smaller than claimed"
    if not often:
        said.append(f"better on {row['wins']:.0f} of {row['pairs']:.0f} seeds, not on {needed}")
    if clear and large and often:
        return "reproduced", said[0]
    as_claimed = large and often and bool(size or share)
    better = row["difference"] < 0 and (clear or as_claimed)
    return ("partly" if better else "not reproduced"), "; ".join(said)


def _verdict(
    summary: pd.DataFrame,
    claim: str,
    score: str,
    published: str,
    *,
    size: float = 0.0,
    share: float = 0.0,
    model: str = EVE,
) -> Verdict:
    row = entry(summary, model, score)
    status, why = gain(row, size, share)
    measured = change(row, 3)
    if score.endswith("nll"):
        measured += f" nats; {100 * row['relative']:+.1f} %"
    else:
        measured = change(row, 1, relative=True)
    return Verdict(claim, published, measured, status, why)


SCORES = {
    "MSE": "calibrated_mse",
    "MAE": "calibrated_mae",
    "NLL": "calibrated_mc_nll",
    "CRPS": "calibrated_crps",
}


def _compare(frame: pd.DataFrame, baseline: str, model: str = EVE) -> pd.DataFrame:
    pair = frame[frame.model.isin([baseline, model])]
    return summarise(pair[["model", "seed", *SCORES.values()]], baseline)


def _first_seeds(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame.seed.isin(sorted(frame.seed.unique())[:CLAIM_SEEDS])]


def concrete_verdicts(frame: pd.DataFrame) -> list[Verdict]:
    """The published claims on Concrete, against the plain MLP, on the first 10 seeds."""
    if not {"mlp", EVE} <= set(frame.model):
        return []
    summary = _compare(_first_seeds(frame), "mlp")
    return [
        _verdict(
            summary,
            "NLL, EVE against the plain MLP",
            "calibrated_mc_nll",
            f"-17.85 %, 10/10 ({SOURCE})",
            size=-0.1785,
            share=1.0,
        ),
        _verdict(
            summary,
            "CRPS, the same",
            "calibrated_crps",
            f"-2.51 %, 10/10 ({SOURCE})",
            size=-0.0251,
            share=1.0,
        ),
        _verdict(
            summary, "MSE, the same", "calibrated_mse", f"better on 7/10 ({SOURCE})", share=0.7
        ),
    ]


def boston_verdicts(frame: pd.DataFrame) -> list[Verdict]:
    """The published claims on Boston, against the plain MLP, on the first 10 seeds."""
    if not {"mlp", EVE} <= set(frame.model):
        return []
    summary = _compare(_first_seeds(frame), "mlp")
    return [
        _verdict(
            summary, f"{name}, EVE against the plain MLP, calibrated", score, f"better ({SOURCE})"
        )
        for name, score in SCORES.items()
    ]


def prize(frame: pd.DataFrame) -> list[Verdict]:
    """Beyond the paper: better than the models one would otherwise use, on all seeds."""
    verdicts = []
    rivals = {"mc-dropout": "MC-dropout, its rate tuned", "ensemble": "5 plain MLPs"}
    rivals["dropout-ensemble"] = "5 MC-dropout networks"
    aim = "better, the interval clear of 0 (aim)"
    present = set(frame.model)
    for model, form in FORMS.items():
        for rival, words in rivals.items():
            # Five networks of dropout are the fair rival of five networks alone.
            fair = rival != "dropout-ensemble" or model == "eve-ensemble"
            if not fair or not {rival, model} <= present:
                continue
            summary = _compare(frame, rival, model)
            for name in ("NLL", "CRPS"):
                claim = f"{name}, {form} against {words}"
                verdicts.append(_verdict(summary, claim, SCORES[name], aim, model=model))
    return verdicts
