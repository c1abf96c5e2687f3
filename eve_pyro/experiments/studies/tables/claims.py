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


def gain(row: pd.Series, size: float, share: float, seeds: int = 2) -> tuple[Status, str]:
    """Whether a score is as much lower, on as many seeds, as claimed.

    Reproduced: clear of 0, as large and on as many seeds as claimed. Partly: clear of 0.

    Arguments:
        row: of :func:`~eve_pyro.experiments.summarise`.
        size: claimed relative difference, below 0; 0 claims that it is lower at all.
        share: claimed share of seeds that are better.
        seeds: pairs of runs that the claim speaks of; with fewer it is at most partly
            reproduced. Default 2, without which nothing is tested.

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
    if row["pairs"] < seeds:
        said.append(f"{row['pairs']:.0f} of {seeds} pairs of runs are there")
    elif clear and large and often:
        return "reproduced", said[0]
    return ("partly" if clear else "not reproduced"), "; ".join(said)


# Of a 70/15/15 split: test rows over training rows.
OVERLAP = 0.15 / 0.70


def _verdict(
    frame: pd.DataFrame,
    baseline: str,
    claim: str,
    name: str,
    published: str,
    *,
    size: float = 0.0,
    share: float = 0.0,
    seeds: int = 2,
    model: str = EVE,
) -> Verdict:
    score = SCORES[name]
    row = entry(_compare(frame, baseline, model), model, score)
    status, why = gain(row, size, share, seeds)
    nats = name == "NLL"
    measured = change(row, 3) + " nats" if nats else change(row, 1, relative=True)
    if nats and size and f"{score}_unit" in frame:
        # A relative size means nothing where the unit is not known.
        unit = entry(_compare(frame, baseline, model, "_unit"), model, f"{score}_unit")
        measured += (
            f"; {100 * row['relative']:+.1f} % standardised, {100 * unit['relative']:+.1f} % in "
            "the target's unit"
        )
        status = "partly" if status == "reproduced" else status
        why += "; the size compares if the paper standardises, which it does not say"
    corrected = entry(_compare(frame, baseline, model, overlap=OVERLAP), model, score)
    if row["high"] < 0 <= corrected["high"]:
        factor, unit_name = (1.0, "") if nats else (100 * row["relative"] / row["difference"], " %")
        low, high = factor * corrected["low"], factor * corrected["high"]
        digits = 3 if nats else 1
        why += (
            f"; corrected for rows that splits share the interval holds 0: "
            f"[{low:+.{digits}f}, {high:+.{digits}f}]{unit_name}"
        )
    return Verdict(claim, published, measured, status, why)


SCORES = {
    "MSE": "calibrated_mse",
    "MAE": "calibrated_mae",
    "NLL": "calibrated_mc_nll",
    "CRPS": "calibrated_crps",
}


def _compare(
    frame: pd.DataFrame, baseline: str, model: str, suffix: str = "", *, overlap: float = 0.0
) -> pd.DataFrame:
    pair = frame[frame.model.isin([baseline, model])]
    names = [name for score in SCORES.values() if (name := f"{score}{suffix}") in pair]
    return summarise(pair[["model", "seed", *names]], baseline, overlap=overlap)


def _first_seeds(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame.seed.isin(sorted(frame.seed.unique())[:CLAIM_SEEDS])]


def concrete_verdicts(frame: pd.DataFrame) -> list[Verdict]:
    """The published claims on Concrete, against the plain MLP, on the first 10 seeds."""
    if not {"mlp", EVE} <= set(frame.model):
        return []
    asked = (
        ("NLL", "NLL, EVE against the plain MLP", "-17.85 %, 10/10", -0.1785, 1.0),
        ("CRPS", "CRPS, the same", "-2.51 %, 10/10", -0.0251, 1.0),
        ("MSE", "MSE, the same", "better on 7/10", 0.0, 0.7),
    )
    first = _first_seeds(frame)
    return [
        _verdict(
            first, "mlp", claim, name, f"{number} ({SOURCE})",
            size=size, share=share, seeds=CLAIM_SEEDS,
        )
        for name, claim, number, size, share in asked
    ]  # fmt: skip


def boston_verdicts(frame: pd.DataFrame) -> list[Verdict]:
    """The published claims on Boston, against the plain MLP, on the first 10 seeds."""
    if not {"mlp", EVE} <= set(frame.model):
        return []
    first = _first_seeds(frame)
    return [
        _verdict(
            first, "mlp", f"{name}, EVE against the plain MLP, calibrated", name,
            f"better ({SOURCE})", seeds=CLAIM_SEEDS,
        )
        for name in ("MSE", "MAE", "NLL", "CRPS")
    ]  # fmt: skip


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
            for name in ("NLL", "CRPS"):
                claim = f"{name}, {form} against {words}"
                verdicts.append(_verdict(frame, rival, claim, name, aim, model=model))
    return verdicts
