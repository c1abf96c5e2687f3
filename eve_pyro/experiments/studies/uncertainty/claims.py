"""What was aimed at, and the rules by which the judged runs decide on it."""

import pandas as pd

from eve_pyro.experiments.page import Status, Verdict, change, number
from eve_pyro.experiments.statistics import entry, summarise
from eve_pyro.experiments.studies.language.text.predictors import at_mean, select
from eve_pyro.experiments.studies.language.text.rules import (
    LEAST_FLIPS,
    LEAST_INFORMATION,
    shares,
    uncertain,
)
from eve_pyro.experiments.studies.uncertainty.tasks import (
    BASE,
    CONTROLS,
    JUDGED,
    MECHANISMS,
    PLAIN,
)

# Of four layers, half of the equal share.
LEAST_SHARE = 0.125


def verdicts(rows: pd.DataFrame, layers: pd.DataFrame, texts: pd.DataFrame) -> list[Verdict]:
    """Every aim with what was measured of it, on the judged seeds.

    Arguments:
        rows: of :func:`~eve_pyro.experiments.studies.language.text.predictors.predictors`.
        layers, texts: the runs' tables.
    """
    frame = select(rows, JUDGED, "last", "raw")
    chosen = [m for m in MECHANISMS if m in set(frame.model) and m not in CONTROLS]
    found = []
    for model in chosen:
        found += [
            _more(frame, model, BASE),
            _compared(frame, model, PLAIN),
            _uncertain(frame, model),
            _shared(layers, model),
            _noticed(texts, model),
        ]
    return [verdict for verdict in found if verdict is not None]


def raised(frame: pd.DataFrame, model: str, baseline: str) -> tuple[int, int, int]:
    """On how many paired seeds a model has more mutual information, and no larger CE.

    Arguments:
        frame: rows of one setting, a row per model and seed.
        model, baseline: what to compare.

    Returns:
        The seeds with more mutual information, those whose cross-entropy is not larger, and all.

    Example:
        >>> frame = pd.DataFrame({"model": ["a", "b"], "seed": [0, 0], "ce": [5.0, 5.1],
        ...                       "mutual_information": [0.01, 0.05]})
        >>> raised(frame, "b", "a")
        (1, 0, 1)
    """
    own, other = (
        frame[frame.model == m].set_index("seed")[["ce", "mutual_information"]].astype(float)
        for m in (model, baseline)
    )
    difference = (own - other).dropna()
    more = int((difference["mutual_information"] > 0).sum())
    return more, int((difference["ce"] <= 0).sum()), len(difference)


def _status(met: int, near: int, of: int) -> Status:
    return "reproduced" if of and met == of else "partly" if near else "not reproduced"


def _more(frame: pd.DataFrame, model: str, baseline: str) -> Verdict | None:
    if baseline not in set(frame.model):
        return None
    more, kept, pairs = raised(frame, model, baseline)
    summary = summarise(frame[["model", "seed", "ce", "mutual_information"]], baseline)
    own, other = (float(entry(summary, m, "mutual_information")["mean"]) for m in (model, baseline))
    return Verdict(
        f"{model}: more MI than {baseline}, cross-entropy not worse",
        "on every seed (aim)",
        f"MI {number(other, 4)} -> {number(own, 4)}, CE {change(entry(summary, model, 'ce'))}",
        _status(min(more, kept), more, pairs),
        f"MI on {more} of {pairs} seeds, CE on {kept}",
    )


def _compared(frame: pd.DataFrame, model: str, baseline: str) -> Verdict | None:
    if baseline not in set(frame.model):
        return None
    _, kept, pairs = raised(frame, model, baseline)
    summary = summarise(frame[["model", "seed", "ce", "error"]], baseline)
    row = entry(summary, model, "ce")
    better = row["high"] < 0
    return Verdict(
        f"{model}: cross-entropy against {baseline}, equal parameters",
        "better on every seed (aim)",
        f"{change(row)}; error {change(entry(summary, model, 'error'), 4)}",
        _status(kept, int(better), pairs),
        f"{kept} of {pairs} seeds",
    )


def _uncertain(frame: pd.DataFrame, model: str) -> Verdict:
    own, mean = frame[frame.model == model], frame[frame.model == at_mean(model)]
    met = uncertain(own, mean)
    words = ("MI", "flips", "CE")
    missed = [word for word, good in zip(words, met, strict=True) if not good]
    return Verdict(
        f"{model}: mutual information and flips, cross-entropy not worse than at the means",
        f"MI >= {LEAST_INFORMATION:g}, flips >= {LEAST_FLIPS:g}, on every seed (aim)",
        f"MI {number(own['mutual_information'].mean())}, flips {number(own['flip_rate'].mean())}, "
        f"CE {number(own['ce'].mean())}, at the means {number(mean['ce'].mean())}",
        _status(sum(met), sum(met[:2]), len(met)),
        f"missed on a seed or more: {', '.join(missed)}" if missed else "on every seed",
    )


def _shared(layers: pd.DataFrame, model: str) -> Verdict | None:
    table = shares(layers, JUDGED)
    own = table[table.index.get_level_values("model") == model] if len(table) else table
    if own.empty:
        return None
    least = own.min(axis=1)
    good = int((least >= LEAST_SHARE).sum())
    by_layer = ", ".join(number(float(s), 2) for s in own.mean())
    return Verdict(
        f"{model}: every block gives at least half of an equal share of MI",
        f"share >= {LEAST_SHARE:g} (aim)",
        f"shares {by_layer}",
        _status(good, good, len(least)),
        f"{good} of {len(least)} seeds",
    )


def _noticed(texts: pd.DataFrame, model: str) -> Verdict | None:
    """Whether another text is told better by what draws disagree on than by the output."""
    own = texts[(texts.model == model) & (texts.text != "own")] if len(texts) else texts
    if own.empty:
        return None
    inside, outside = own["detect_mutual_information"], own["detect_max_probability"]
    wins = int((inside > outside.clip(lower=0.5)).sum())
    said = [
        f"{text} {number(float(part['detect_mutual_information'].mean()), 2)} against "
        f"{number(float(part['detect_max_probability'].mean()), 2)}"
        for text, part in own.groupby("text", sort=False)
    ]
    return Verdict(
        f"{model}: windows of another text told by MI better than by max probability",
        "AUROC higher, and above .5, for every text and seed (aim)",
        "; ".join(said),
        _status(wins, int(bool((inside.groupby(own["text"]).mean() > 0.5).all())), len(own)),
        f"so in {wins} of {len(own)} pairs of text and seed",
    )
