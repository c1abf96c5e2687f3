"""The claims on the very deep network, and the rules by which measurements decide on them."""

import math
from collections.abc import Callable

import pandas as pd

from eve_pyro.experiments.page import Status, Verdict, change, number
from eve_pyro.experiments.statistics import entry, summarise
from eve_pyro.experiments.studies.energy.tasks import DESIGN, RANDOM
from eve_pyro.experiments.studies.tables.claims import gain

SOURCE = "Ruffenach, B"
BASELINE, EVE = "mlp", "eve"
NLL, CRPS, PINBALL = "calibrated_mc_nll_unit", "calibrated_crps", "calibrated_pinball"
RAW_NLL = "raw_mc_nll"
UNCERTAINTY = {"NLL": NLL, "CRPS": CRPS, "pinball loss": PINBALL}
# About equal: the means differ by no more than this share, and the interval ends within twice that.
EQUAL = 0.05
SLOWER = 7.1
# A neuron whose posterior is this close to its prior says nothing; this is far above rounding.
ALIVE = 0.01
AIM = 0.1
# Validation NLL, nats, by which a network that has over-fitted is worse than at its best.
RISE = 0.1


READ = (
    NLL, CRPS, PINBALL, RAW_NLL, "calibrated_mc_nll", "calibrated_mse", "calibrated_mae",
)  # fmt: skip


def complete(scores: pd.DataFrame) -> pd.DataFrame:
    """The scores with NaN where no run has ended well enough to have one that is read here."""
    missing = [name for name in READ if name not in scores]
    return scores.assign(**dict.fromkeys(missing, math.nan))


def pair(scores: pd.DataFrame, setting: str, baseline: str = BASELINE) -> pd.DataFrame:
    """Summary of EVE against a baseline in one setting; empty if either has no run."""
    frame = scores[(scores.setting == setting) & scores.model.isin([baseline, EVE])]
    return summarise(frame, baseline) if frame.model.nunique() == 2 else pd.DataFrame()


def signed(row: pd.Series) -> pd.Series:
    """The row with percent of the baseline's size: an NLL may be negative, better still is less.

    Example:
        >>> row = pd.Series({"difference": -0.3, "relative": 0.2})
        >>> float(signed(row)["relative"])
        -0.2
    """
    return pd.Series(
        {**row.to_dict(), "relative": math.copysign(abs(row["relative"]), row["difference"])}
    )


def equal(row: pd.Series) -> tuple[Status, str]:
    """Whether a score is about equal in both models.

    Example:
        >>> row = pd.Series({"difference": 0.1, "relative": 0.02, "low": 0.05, "high": 0.15,
        ...                  "pairs": 5})
        >>> equal(row)
        ('reproduced', 'within 5 %')
    """
    if row["pairs"] < 2 or math.isnan(row["difference"]):
        return "not tested", "fewer than two pairs of runs"
    # The ends of the interval as shares of the baseline's mean too.
    share = row["relative"] / row["difference"] if row["difference"] else 0.0
    ends = max(abs(row["low"] * share), abs(row["high"] * share))
    if abs(row["relative"]) <= EQUAL and ends <= 2 * EQUAL:
        return "reproduced", f"within {EQUAL:.0%}".replace("%", " %")
    if row["low"] <= 0 <= row["high"]:
        return "partly", "no difference is resolved, but neither is equality: the interval is wide"
    if row["difference"] < 0:
        return "partly", "not equal: EVE is better, clear of 0"
    return "not reproduced", "EVE is worse, clear of 0"


def slower(ratio: float) -> tuple[Status, str]:
    """Whether EVE costs as much more as published, to a quarter.

    Example:
        >>> slower(3.0)
        ('partly', 'slower, but by less than published')
    """
    if math.isnan(ratio):
        return "not tested", "steps were not timed"
    if abs(ratio / SLOWER - 1) <= 0.25:
        return "reproduced", "within a quarter"
    if ratio > SLOWER:
        return "not reproduced", "slower than published"
    if ratio > 1:
        return "partly", "slower, but by less than published"
    return "not reproduced", "no slower"


def above(kl: pd.Series, threshold: float) -> tuple[Status, str]:
    """Whether the neurons of every layer of every run have a KL above a threshold.

    Example:
        >>> above(pd.Series([0.3, 0.2, 0.05]), 0.1)
        ('partly', '2 of 3 layers are above 0.1 nat')
    """
    if not len(kl):
        return "not tested", "no EVE network is trained"
    count = int((kl > threshold).sum())
    why = f"{count} of {len(kl)} layers are above {threshold:g} nat"
    if count == len(kl):
        return "reproduced", why
    return ("partly" if 2 * count >= len(kl) else "not reproduced"), why


def wins(summary: pd.DataFrame) -> tuple[Status, str, str]:
    """Whether EVE is better on every seed by every score of the uncertainty."""
    if summary.empty:
        return "not tested", "-", "fewer than two pairs of runs"
    rows = {name: entry(summary, EVE, score) for name, score in UNCERTAINTY.items()}
    if min(row["pairs"] for row in rows.values()) < 2:
        return "not tested", "-", "fewer than two pairs of runs"
    measured = ", ".join(f"{k} {r['wins']:.0f}/{r['pairs']:.0f}" for k, r in rows.items())
    all_of = [name for name, row in rows.items() if row["wins"] == row["pairs"]]
    why = f"on every seed: {', '.join(all_of) or 'none'}"
    if len(all_of) == len(rows):
        return "reproduced", measured, why
    return ("partly" if all_of else "not reproduced"), measured, why


def over_fits(scores: pd.DataFrame) -> tuple[Status, str, str]:
    """Whether the deterministic network is trained past its best validation score."""
    own = scores[(scores.setting == RANDOM) & (scores.model == BASELINE)]
    rises = own["final_rise"].dropna() if "final_rise" in own else pd.Series(dtype=float)
    if rises.empty:
        return "not tested", "-", "no deterministic network is trained"
    count = int((rises > RISE).sum())
    measured = (
        f"{rises.mean():+.2f} nats from the best epoch to the last; training rows are "
        f"{own['final_gap'].mean():.2f} nats better in the end; {len(rises)} seeds"
    )
    why = f"rises by more than {RISE:g} nats on {count} of {len(rises)} seeds"
    if count == len(rises):
        return "reproduced", measured, why
    return ("partly" if count else "not reproduced"), measured, why


def cost_ratio(cost: pd.DataFrame, contest: str, model: str, reference: str = BASELINE) -> float:
    """Time of a model's step as a multiple of another's; NaN if either was not measured."""
    if cost.empty:
        return math.nan
    seconds = cost[cost.contest == contest].set_index("network")["seconds"]
    known = {model, reference} <= set(seconds.index)
    return float(seconds[model] / seconds[reference]) if known else math.nan


def verdicts(
    scores: pd.DataFrame, layers: pd.DataFrame, cost: pd.DataFrame, depth: int
) -> list[Verdict]:
    """Every claim with what was measured of it.

    Arguments:
        scores: of :func:`~eve_pyro.experiments.engine.scores_frame`.
        layers: the runs' tables of layers.
        cost: the table of step times.
        depth: layers of the deep network.
    """
    scores = complete(scores)
    random = pair(scores, RANDOM)
    found = [
        _compared(
            "NLL, random split, EVE against the deterministic network", random, NLL, -0.188,
            f"about -18.8 %, 5/5 ({SOURCE})",
        ),
        _compared("CRPS, the same", random, CRPS, -0.045, f"-4.5 to -8.3 %, 5/5 ({SOURCE})"),
        _compared(
            "pinball loss, the same", random, PINBALL, -0.045, f"-4.5 to -8.3 %, 5/5 ({SOURCE})"
        ),
    ]  # fmt: skip
    status, measured, why = wins(random)
    found.append(
        Verdict("better on every seed, random split", f"5/5 ({SOURCE})", measured, status, why)
    )
    for name, score in (("MSE", "calibrated_mse"), ("MAE", "calibrated_mae")):
        found.append(
            _compared(
                f"{name}, random split", random, score, None, f"about equal ({SOURCE})", equal
            )
        )
    found += _depth_verdicts(layers, depth)
    ratio = cost_ratio(cost, f"{depth} layers, eager", EVE)
    status, why = slower(ratio)
    measured = "-" if math.isnan(ratio) else f"{number(ratio, 1)} x, one draw, eager"
    found.append(
        Verdict("time of a training step", f"about {SLOWER} x ({SOURCE})", measured, status, why)
    )
    status, measured, why = over_fits(scores)
    claim = "the deterministic network is trained until it over-fits"
    found.append(Verdict(claim, "condition of the comparison", measured, status, why))
    aim = "better, the interval clear of 0 (aim)"
    found.append(
        _compared(
            "NLL, split by design, EVE against the deterministic network",
            pair(scores, DESIGN), NLL, 0.0, aim,
        )
    )  # fmt: skip
    for rival, words in (("cell", "as many deterministic parameters"), ("mc-dropout", "dropout")):
        claim = f"NLL, random split, EVE against {words} ({rival})"
        found.append(_compared(claim, pair(scores, RANDOM, rival), NLL, 0.0, aim))
    return found


def _compared(
    claim: str,
    summary: pd.DataFrame,
    score: str,
    size: float | None,
    published: str,
    rule: Callable[[pd.Series], tuple[Status, str]] | None = None,
) -> Verdict:
    if summary.empty:
        return Verdict(claim, published, "-", "not tested", "no pair of runs is finished")
    row = signed(entry(summary, EVE, score))
    status, why = rule(row) if rule else gain(row, size or 0.0, 1.0 if size else 0.0)
    if score == NLL:
        standard = signed(entry(summary, EVE, "calibrated_mc_nll"))["relative"]
        measured = (
            f"{change(row)} nats; {100 * row['relative']:+.1f} % in kWh/m2, "
            f"{100 * standard:+.1f} % standardised; raw {change(entry(summary, EVE, RAW_NLL))}"
        )
    else:
        measured = change(row, 1, relative=True)
    return Verdict(claim, published, measured, status, why)


def _depth_verdicts(layers: pd.DataFrame, depth: int) -> list[Verdict]:
    own = layers[layers.setting == RANDOM] if len(layers) else pd.DataFrame({"kl": []})
    seeds = own["seed"].nunique() if len(own) else 0
    measured = (
        f"KL per unit {number(float(own['kl'].min()))} to {number(float(own['kl'].max()))} nats, "
        f"{seeds} seeds"
        if seeds
        else "-"
    )
    found = []
    for claim, published, threshold in (
        (f"uncertainty stays alive through all {depth} layers", f"claimed ({SOURCE})", ALIVE),
        (f"KL per unit in every one of {depth} layers", f"> {AIM} nat (aim)", AIM),
    ):
        status, why = above(own["kl"], threshold)
        found.append(Verdict(claim, published, measured, status, why))
    return found
