"""What the numbers of a text's tokens sum up to."""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from eve_pyro.diagnostics import aurc, auroc
from eve_pyro.metrics import calibration_error, cvar

if TYPE_CHECKING:
    import pandas as pd

# What tells of a token that the network is unsure of it, from its output and from inside.
UNCERTAINTY = ("max_probability", "entropy", "mutual_information", "kl")


def token_scores(tokens: "pd.DataFrame") -> dict[str, float]:
    """Sum up the rows of ``Evaluation.tokens``, all or some of them, as one row of a table.

    - ``ce``: mean ``loss``, the cross-entropy of the averaged distribution (the MC-NLL);
      ``perplexity``: its exponential; ``expected_ce``: mean over draws of a draw's.
    - ``accuracy``, ``brier``, ``ece``: of the averaged distribution; ``cvar``: the mean of the
      worst twentieth of losses.
    - ``entropy``, ``expected_entropy``, ``mutual_information``, ``flip_rate``, ``kl``: means.
    - ``auroc_...``: how well wrong tokens are told from right ones by 1 - ``max_probability``,
      ``entropy``, ``mutual_information``, ``kl``, and ``combined``, the mean of the ranks of the
      first and of mutual information, which has no weight to choose. 0.5 for a signal that is
      the same everywhere.
    - ``aurc``: mean share of wrong tokens among those kept, the most probable ones first.

    Arguments:
        tokens: at least one row.

    Raises:
        ValueError: if there is none.
    """
    from scipy.stats import rankdata  # here, because it takes a while to import

    if not len(tokens):
        raise ValueError("tokens must have at least one row, got none")
    means = tokens.mean()
    losses, confidence, correct = (
        torch.tensor(tokens[name].to_numpy(np.float64))  # a copy, as in `signal`
        for name in ("loss", "max_probability", "correct")
    )
    scores = {
        "ce": means["loss"],
        "perplexity": math.exp(means["loss"]),
        "expected_ce": means["expected_loss"],
        "accuracy": means["correct"],
        "ece": calibration_error(confidence, correct).item(),
        "brier": means["brier"],
        "cvar": cvar(losses, 0.95).item(),
        **{name: means[name] for name in (*UNCERTAINTY[1:], "expected_entropy", "flip_rate")},
    }
    signals = {name: signal(tokens, name) for name in UNCERTAINTY}
    ranks = [rankdata(signals[name]) for name in ("max_probability", "mutual_information")]
    signals["combined"] = ranks[0] + ranks[1]
    wrong = tokens["correct"].to_numpy() == 0
    for name, values in signals.items():
        scores[f"auroc_{name}"] = auroc(values, wrong)
    scores["aurc"] = aurc(signals["max_probability"], wrong)
    return {name: float(value) for name, value in scores.items()}


def signal(tokens: "pd.DataFrame", name: str) -> np.ndarray:
    """A column of ``UNCERTAINTY``, turned so that larger is less certain."""
    # A copy: torch warns of arrays that it may not write to, such as a frame's columns.
    values = tokens[name].to_numpy(np.float64, copy=True)
    return 1 - values if name == "max_probability" else values
