"""From scores of runs to rows of tables: how a trained model predicts is part of what it is."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from eve_pyro.experiments.studies.language.tasks import COMBINED

EPOCHS = ("last", "best")
KINDS = ("raw", "scaled")
SCORES = (
    "ce",
    "expected_ce",
    "perplexity",
    "accuracy",
    "ece",
    "brier",
    "cvar",
    "entropy",
    "expected_entropy",
    "mutual_information",
    "flip_rate",
    "auroc_max_probability",
    "auroc_entropy",
    "auroc_mutual_information",
    "auroc_kl",
    "auroc_combined",
    "aurc",
)
CHOSEN_DROPOUT, CHOSEN_MC, CHOSEN_EVE = "dropout, tuned", "MC-dropout, tuned", "EVE, chosen"


def is_eve(model: str) -> bool:
    """Whether a model's noise is that of EVE alone.

    Example:
        >>> is_eve("eve-gate"), is_eve("eve-dropout"), is_eve("plain")
        (True, False, False)
    """
    return model.startswith("eve-") and not model.startswith(COMBINED)


def at_mean(model: str) -> str:
    """Name of the predictor at the posterior means.

    Example:
        >>> at_mean("eve-gate")
        'eve-gate, at the mean'
    """
    return f"{model}, at the mean"


def one_draw(model: str) -> str:
    """Name of the predictor with one draw."""
    return f"{model}, S = 1"


def predictors(scores: pd.DataFrame) -> pd.DataFrame:
    """A row per setting, predictor, seed, epoch and kind, with the scores of that predictor.

    Predictors are: deterministic models; EVE with S draws, by the model's name, with one draw
    and at the posterior means; ``"EVE, chosen"``, of a seed's EVE models (without dropout) the
    one of the least validation cross-entropy; and likewise dropout (off in prediction) and
    MC-dropout (S draws), the rate chosen by the validation cross-entropy of that way to predict,
    in that epoch.

    Arguments:
        scores: of :func:`~eve_pyro.experiments.engine.scores_frame`; runs that failed have none.

    Returns:
        Columns ``setting``, ``model``, ``seed``, ``epoch``, ``kind``, ``run`` (the trained model),
        ``valid`` (validation cross-entropy, raw), ``train``, ``gap``, ``error`` (1 - accuracy),
        ``temperature``, ``parameters``, ``best_epoch``, and the scores.
    """
    rows = [row for record in scores.to_dict("records") for row in _rows(record)]
    frame = pd.DataFrame(rows, columns=_columns()) if rows else pd.DataFrame(columns=_columns())
    families = {
        CHOSEN_DROPOUT: frame[frame.model.str.startswith("dropout-") & (frame["mode"] == "mean")],
        CHOSEN_MC: frame[frame.model.str.startswith("dropout-") & (frame["mode"] == "draws")],
        CHOSEN_EVE: frame[frame.model.map(is_eve) & (frame["mode"] == "draws")],
    }
    plain = frame[~frame.model.str.startswith("dropout-")]
    parts = [plain, *(_chosen(part, name) for name, part in families.items() if len(part))]
    return pd.concat([p for p in parts if len(p)] or [plain], ignore_index=True)


def _columns() -> list[str]:
    names = ["setting", "model", "seed", "epoch", "kind", "mode", "run", "valid", "train", "gap"]
    return [*names, "temperature", "parameters", "best_epoch", "error", *SCORES]


def _rows(record: Mapping[Any, Any]) -> Iterator[dict[str, Any]]:
    model = str(record["model"])
    names = {"draws": model, "mean": at_mean(model), "one": one_draw(model)}
    for epoch in EPOCHS:
        for mode, name in names.items():
            for kind in KINDS:
                stem = f"{epoch}_{mode}_{kind}"
                ce = record.get(f"{stem}_ce")
                if ce is None or pd.isna(ce):
                    continue
                found = {score: record.get(f"{stem}_{score}") for score in SCORES}
                yield {
                    "setting": record["setting"],
                    "model": name,
                    "seed": record["seed"],
                    "epoch": epoch,
                    "kind": kind,
                    "mode": mode,
                    "run": model,
                    "valid": record[f"{epoch}_valid_mean" if mode == "mean" else f"{epoch}_valid"],
                    "train": record[f"{epoch}_train"],
                    "gap": record[f"{epoch}_gap"],
                    "temperature": record.get(f"{epoch}_{mode}_temperature"),
                    "parameters": record.get("parameters"),
                    "best_epoch": record.get("best_epoch"),
                    "error": 1 - record[f"{stem}_accuracy"],
                    **found,
                }


def _chosen(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    keys = ["setting", "seed", "epoch", "kind"]
    least = frame.groupby(keys)["valid"].idxmin()
    return frame.loc[least].assign(model=name)


def select(frame: pd.DataFrame, setting: str, epoch: str, kind: str) -> pd.DataFrame:
    """The rows of one table, as :func:`~eve_pyro.experiments.summarise` wants them."""
    rows = (frame.setting == setting) & (frame.epoch == epoch) & (frame.kind == kind)
    return frame[rows].drop(columns=["setting", "epoch", "kind", "mode", "run"])
