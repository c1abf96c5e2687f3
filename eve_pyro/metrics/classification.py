"""Scores of the predictive distribution of a label."""

import torch
from torch import Tensor

from eve_pyro._checks import check_int
from eve_pyro.infer.mixtures import CategoricalMixture
from eve_pyro.metrics._targets import check_labels


def accuracy(predictive: CategoricalMixture, y: Tensor) -> Tensor:
    """Return the share of labels that are the most probable one; higher is better.

    Args:
        predictive: of shape (*shape).
        y: labels, (*shape), integers.

    >>> y = CategoricalMixture(torch.tensor([[[2.0, 1.0], [0.0, 1.0]]]))
    >>> accuracy(y, torch.tensor([0, 0]))
    tensor(0.5000)
    """
    check_labels(predictive, y)
    return (predictive.mode == y).to(predictive.probs).mean()


def brier(predictive: CategoricalMixture, y: Tensor) -> Tensor:
    r"""Return the Brier score over all classes, from 0 (best) to 2.

    .. math:: \frac{1}{N} \sum_n \sum_c (p_{nc} - 1[y_n = c])^2

    Brier, "Verification of forecasts expressed in terms of probability", 1950; strictly proper.
    With two classes it is twice the score of the one event.

    Args:
        predictive: of shape (*shape).
        y: labels, (*shape), integers.

    >>> brier(CategoricalMixture(torch.zeros(5, 3, 2)), torch.tensor([0, 1, 1]))
    tensor(0.5000)
    """
    check_labels(predictive, y)
    truth = torch.nn.functional.one_hot(y.long(), predictive.probs.shape[-1])
    return (predictive.probs - truth).square().sum(-1).mean()


def ece(predictive: CategoricalMixture, y: Tensor, num_bins: int = 15) -> Tensor:
    r"""Return the expected calibration error of the most probable label.

    .. math:: \sum_b \frac{N_b}{N} |\mathrm{accuracy}_b - \mathrm{confidence}_b|

    over bins of equal width of the confidence, the largest probability (Guo, Pleiss, Sun and
    Weinberger, "On calibration of modern neural networks", 2017). Not a proper score: a constant
    prediction of the class frequencies has none of this error.

    Args:
        predictive: of shape (*shape).
        y: labels, (*shape), integers.
        num_bins: number of bins.

    >>> ece(CategoricalMixture(torch.zeros(5, 4, 2)), torch.tensor([0, 0, 0, 1]))
    tensor(0.2500)
    """
    check_labels(predictive, y)
    num_bins = check_int("num_bins", num_bins)
    confidence, label = predictive.probs.max(-1)
    return calibration_error(confidence, label == y, num_bins)


def calibration_error(confidence: Tensor, correct: Tensor, num_bins: int = 15) -> Tensor:
    """Return what :func:`ece` does, from the confidence of every datum and whether it was right.

    For predictions that were not kept: of each, two numbers are enough.

    Args:
        confidence: probability of the most probable label, any shape, flattened.
        correct: of the same shape; 1 or True where that label was right.
        num_bins: number of bins.

    Raises:
        ValueError: for shapes that differ, no data, or a confidence outside [0, 1].

    >>> calibration_error(torch.full((4,), 0.5), torch.tensor([True, True, True, False]))
    tensor(0.2500)
    """
    num_bins = check_int("num_bins", num_bins)
    if confidence.shape != correct.shape or not confidence.numel():
        raise ValueError(
            f"correct must have the shape {tuple(confidence.shape)} of confidence, at least one "
            f"datum, got {tuple(correct.shape)}"
        )
    # Sums of rounded probabilities may be 1 and a little more.
    if not ((confidence >= 0) & (confidence <= 1 + 1e-3)).all():
        low, high = confidence.min().item(), confidence.max().item()
        raise ValueError(f"confidence must be in [0, 1], got {low:g} to {high:g}")
    confidence = confidence.reshape(-1)
    excess = correct.reshape(-1).to(confidence) - confidence
    # Bins are open on the left, as in the paper: the confidence 1 belongs to the last.
    index = (confidence * num_bins).ceil().long().sub(1).clamp(0, num_bins - 1)
    sums = excess.new_zeros(num_bins).index_add(0, index, excess)
    return sums.abs().sum() / len(excess)
