"""What was aimed at, and the rules by which the runs choose and decide."""

import pandas as pd

from eve_pyro.experiments.page import Verdict, change, number
from eve_pyro.experiments.statistics import entry, summarise
from eve_pyro.experiments.studies.language.text.predictors import CHOSEN_MC, select
from eve_pyro.experiments.studies.language.text.rules import (
    LEAST_FLIPS,
    LEAST_INFORMATION,
    compared,
    every,
    noticed,
    noticed_beside,
    shared,
    shares,
    uncertainty,
)
from eve_pyro.experiments.studies.uncertainty.tasks import (
    BASE,
    CHOSEN,
    CONTROLS,
    DROPOUT,
    JUDGED,
    MECHANISMS,
    PLAIN,
    TRIED,
)

# Whom the chosen are compared with.
WORDS = {PLAIN: "the plain Transformer", CHOSEN_MC: "MC-dropout, its rate tuned"}


def verdicts(rows: pd.DataFrame, layers: pd.DataFrame, texts: pd.DataFrame) -> list[Verdict]:
    """Every aim with what was measured of it, on the judged seeds.

    Arguments:
        rows: of :func:`~eve_pyro.experiments.studies.language.text.predictors.predictors`.
        layers, texts: the runs' tables.
    """
    found = []
    others = texts[texts.text != "own"].assign(case=lambda t: t.text) if len(texts) else texts
    for model in CHOSEN:
        found.append(_more(rows, model))
        for rival, words in WORDS.items():
            found.append(
                compared(
                    rows, f"{model}: cross-entropy against {words}",
                    "better on every seed (aim)", JUDGED, "last", "ce",
                    baseline=rival, model=model,
                )
            )  # fmt: skip
        found += [
            uncertainty(
                rows,
                JUDGED,
                model,
                f"{model}: mutual information and flips, cross-entropy not worse than at the means",
                f"MI >= {LEAST_INFORMATION:g}, flips >= {LEAST_FLIPS:g}, on every seed (aim)",
            ),
            shared(
                layers,
                JUDGED,
                model,
                f"{model}: every block of four gives at least half of an equal share of MI",
                "share >= .125 (aim)",
            ),
            noticed(
                others,
                model,
                f"{model}: windows of another text told by MI better than by max probability or "
                "entropy",
                "AUROC higher for every text and seed (aim)",
            ),
            noticed_beside(
                others,
                model,
                DROPOUT,
                "the same, better than by MC-dropout's MI",
                "AUROC higher for every text and seed (aim)",
            ),
        ]
    return found


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


def by_rule(rows: pd.DataFrame, layers: pd.DataFrame) -> list[str]:
    """The mechanisms to judge: those of more MI and no larger CE on every development seed, of
    them that of the most MI, and that of the evenest shares.

    Arguments:
        rows, layers: see :func:`verdicts`.

    Returns:
        Up to two names; none while a run of the mechanisms is missing.
    """
    frame = select(rows, TRIED, "last", "raw")
    models = [m for m in MECHANISMS if m not in CONTROLS]
    if not {BASE, *models} <= set(frame.model):
        return []
    met = {m: raised(frame, m, BASE) for m in models}
    good = [m for m, (more, kept, pairs) in met.items() if more == kept == pairs > 0]
    if not good:
        return []
    information = frame.groupby("model")["mutual_information"].mean()
    least = shares(layers, TRIED).min(axis=1).groupby("model").mean()
    most = max(good, key=lambda m: float(information[m]))
    evenest = max(good, key=lambda m: float(least[m]))
    return list(dict.fromkeys([most, evenest]))


def _more(rows: pd.DataFrame, model: str) -> Verdict:
    claim = f"{model}: more MI than {BASE}, cross-entropy not worse"
    published = "on every seed (aim)"
    frame = select(rows, JUDGED, "last", "raw")
    if not {model, BASE} <= set(frame.model):
        return Verdict(claim, published, "-", "not tested", "no pair of runs is finished")
    more, kept, pairs = raised(frame, model, BASE)
    summary = summarise(frame[["model", "seed", "ce", "mutual_information"]], BASE)
    own, other = (float(entry(summary, m, "mutual_information")["mean"]) for m in (model, BASE))
    measured = (
        f"MI {number(other, 4)} -> {number(own, 4)}, CE {change(entry(summary, model, 'ce'))}"
    )
    status, _ = every(min(more, kept), pairs, "seeds")
    why = f"more MI on {more} of {pairs} seeds, CE not larger on {kept}"
    return Verdict(claim, published, measured, status, why)
