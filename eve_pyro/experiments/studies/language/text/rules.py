"""The rules by which measurements decide on claims and aims."""

from collections.abc import Sequence

import pandas as pd

from eve_pyro.experiments.page import Status, Verdict, change, number
from eve_pyro.experiments.statistics import entry, summarise
from eve_pyro.experiments.studies.language.text.predictors import at_mean, select
from eve_pyro.experiments.studies.tables.claims import gain

BASELINE, EVE = "plain", "eve-gate"
LEAST_INFORMATION, LEAST_FLIPS = 0.05, 0.15


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


def uncertainty(
    rows: pd.DataFrame, setting: str, model: str, claim: str, published: str
) -> Verdict:
    """Decide whether a model's draws differ enough, and cost nothing, at the last epoch.

    Arguments:
        rows: of :func:`~eve_pyro.experiments.studies.language.text.predictors.predictors`.
        setting, model: which rows.
        claim, published: of the verdict.
    """
    frame = select(rows, setting, "last", "raw")
    own, mean = frame[frame.model == model], frame[frame.model == at_mean(model)]
    if own.empty:
        return Verdict(claim, published, "-", "not tested", f"{model} is not trained")
    met = uncertain(own, mean)
    missed = [w for w, good in zip(("MI", "flips", "CE"), met, strict=True) if not good]
    why = f"missed on a seed or more: {', '.join(missed)}" if missed else "on every seed"
    return Verdict(claim, published, draws_differ(own, mean), counted(met), why)


def draws_differ(own: pd.DataFrame, mean: pd.DataFrame) -> str:
    """What a model's draws differ by, in words, with its cross-entropy at the posterior means."""
    information, flips, ce = (
        number(float(own[s].mean())) for s in ("mutual_information", "flip_rate", "ce")
    )
    return (
        f"{own.model.iloc[0]}: MI {information}, flips {flips}, CE {ce} with draws, "
        f"{number(float(mean['ce'].mean()))} at the means, {own.seed.nunique()} seeds"
    )


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


def shared(layers: pd.DataFrame, setting: str, model: str, claim: str, published: str) -> Verdict:
    """Decide whether every layer of a model gives at least half of an equal share.

    An even share of next to nothing says little: reproduced is what also has the mutual
    information that is aimed at, partly what is even alone.

    Arguments:
        layers: the runs' tables of layers.
        setting, model: which of them.
        claim, published: of the verdict.
    """
    table = shares(layers, setting)
    table = table[table.index.get_level_values("model") == model] if len(table) else table
    if table.empty:
        return Verdict(claim, published, "-", "not tested", f"{model} is not trained")
    own = layers[(layers.setting == setting) & (layers.epoch == "last") & (layers.model == model)]
    total = float(own.groupby("seed")["mutual_information"].sum().mean())
    good = int((table.min(axis=1) >= 0.5 / table.shape[1]).sum())
    parts = ", ".join(number(float(share), 2) for share in table.mean())
    measured = f"{model}: shares {parts} of {number(total)} nats, {len(table)} seeds"
    status, why = every(good, len(table), "seeds")
    if total < LEAST_INFORMATION:
        why += f", of less than {LEAST_INFORMATION:g} nats in all"
        status = "partly" if status == "reproduced" else status
    return Verdict(claim, published, measured, status, why)


def noticed(table: pd.DataFrame, model: str, claim: str, published: str) -> Verdict:
    """Decide whether shifted text is told by mutual information better than by the output.

    The output tells it by max probability or by entropy, and in either direction: a model that
    grows surer on text that is not its own says so as well as one that grows less sure. So an
    area a under the ROC curve counts as max(a, 1 - a), and the better of the two signals is what
    mutual information, large where text is shifted, has to exceed.

    Arguments:
        table: columns ``model``, ``seed``, ``case`` (which shift) and ``detect_...``.
        model: whose rows decide.
        claim, published: of the verdict.

    Example:
        >>> frame = pd.DataFrame({"model": "eve-mc", "seed": [0], "case": "40 %",
        ...     "detect_mutual_information": 0.6, "detect_max_probability": 0.3,
        ...     "detect_entropy": 0.5})
        >>> noticed(frame, "eve-mc", "told", "aim").status
        'not reproduced'
    """
    own = table[table.model == model] if len(table) else table
    if own.empty:
        return Verdict(claim, published, "-", "not tested", f"{model} is not trained")
    inside = own["detect_mutual_information"]
    outputs = own[["detect_max_probability", "detect_entropy"]]
    outside = outputs.where(outputs > 0.5, 1 - outputs).max(axis=1)
    names = {
        "MI": "mutual_information",
        "max probability": "max_probability",
        "entropy": "entropy",
    }
    said = [
        f"{case}: "
        + ", ".join(
            f"{name} {number(float(part[f'detect_{column}'].mean()))}"
            for name, column in names.items()
        )
        for case, part in own.groupby("case", sort=False)
    ]
    wins = int((inside > outside).sum())
    return Verdict(
        claim,
        published,
        f"{model}: {'; '.join(said)}",
        *every(wins, len(own), "pairs of case and seed"),
    )


def noticed_beside(
    table: pd.DataFrame, model: str, rivals: Sequence[str], claim: str, published: str
) -> Verdict:
    """Decide whether one model's mutual information tells shifted text better than others'.

    Arguments:
        table: see :func:`noticed`.
        model, rivals: whose mutual information; on a pair of case and seed it has to exceed the
            best of the rivals'.
        claim, published: of the verdict.
    """
    names = [m for m in rivals if len(table) and m in set(table.model)]
    if not names or model not in set(table.model):
        return Verdict(claim, published, "-", "not tested", "no pair of runs is finished")
    some = table[table.model.isin([model, *names])]
    wide = some.pivot(
        index=["case", "seed"], columns="model", values="detect_mutual_information"
    ).dropna()
    means = wide.groupby("case").mean().reindex(table["case"].unique()).dropna()
    measured = "; ".join(
        f"{case}: {model} {number(float(row[model]))}, "
        + ", ".join(f"{name} {number(float(row[name]))}" for name in names)
        for case, row in means.iterrows()
    )
    wins = int((wide[model] > wide[names].max(axis=1)).sum())
    return Verdict(claim, published, measured, *every(wins, len(wide), "pairs of case and seed"))


def every(met: int, of: int, what: str) -> tuple[Status, str]:
    """Reproduced if all are met, partly if three quarters are; not tested if there are none.

    Example:
        >>> every(4, 4, "seeds"), every(3, 4, "seeds"), every(2, 4, "seeds")
        (('reproduced', 'on 4 of 4 seeds'), ('partly', 'on 3 of 4 seeds'),
         ('not reproduced', 'on 2 of 4 seeds'))
    """
    status: Status = "not reproduced"
    if not of:
        status = "not tested"
    elif met == of:
        status = "reproduced"
    elif 4 * met >= 3 * of:
        status = "partly"
    return status, f"on {met} of {of} {what}"
