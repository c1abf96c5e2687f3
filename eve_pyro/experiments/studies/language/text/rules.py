"""The rules by which measurements decide on claims and aims."""

import pandas as pd

from eve_pyro.experiments.page import Status, Verdict, change, number
from eve_pyro.experiments.statistics import entry, summarise
from eve_pyro.experiments.studies.language.text.predictors import at_mean, is_eve, select
from eve_pyro.experiments.studies.tables.claims import gain

BASELINE, EVE = "plain", "eve-gate"
LEAST_INFORMATION, LEAST_FLIPS = 0.05, 0.15
PUBLISHED_INFORMATION, PUBLISHED_FLIPS = 0.16, 0.30


def compared(
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
    """Decide by the paired differences of a model from a baseline, seed by seed.

    Reproduced where the interval of the mean is clear of 0 and every seed is better, see
    :func:`~eve_pyro.experiments.studies.tables.claims.gain`.

    Arguments:
        rows: of :func:`~eve_pyro.experiments.studies.language.text.predictors.predictors`.
        claim, published: of the verdict.
        setting, epoch, kind: which rows.
        score: of the rows, lower is better; ``"error"`` is told as accuracy.
        baseline, model: names of predictors.
    """
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


def uncertainty(rows: pd.DataFrame, setting: str, published: str, *, claimed: bool) -> Verdict:
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
        return Verdict(claim, published, measured, counted(reached), why)
    words = ("MI", "flips", "CE")
    missed = [word for word, good in zip(words, met[best], strict=True) if not good]
    why = f"missed on a seed or more: {', '.join(missed)}" if missed else "on every seed"
    return Verdict(claim, published, measured, counted(met[best]), why)


def counted(met: tuple[bool, ...]) -> Status:
    """Reproduced if all conditions are met, partly if one of the first two is.

    Example:
        >>> counted((True, False, True)), counted((False, False, True))
        ('partly', 'not reproduced')
    """
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
