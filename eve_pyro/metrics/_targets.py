"""Checks that a target fits its predictive, before broadcasting can hide that it does not."""

import torch
from torch import Tensor

from eve_pyro.infer.mixtures import CategoricalMixture, GaussianMixture, Mixture


def check_real_target(predictive: GaussianMixture, y: Tensor) -> None:
    """Raise a ``ValueError`` unless ``y`` holds one finite real number per Gaussian mixture.

    >>> check_real_target(GaussianMixture(torch.zeros(2, 3), torch.ones(2, 3)), torch.zeros(3, 1))
    Traceback (most recent call last):
    ...
    ValueError: y must have the predictive's shape (3,), got (3, 1)
    """
    _check_type(predictive, GaussianMixture)
    _check_shape(predictive, y)
    if not y.isfinite().all():
        raise ValueError("y must be finite, got nan or inf among its values")


def check_labels(predictive: CategoricalMixture, y: Tensor) -> None:
    """Raise a ``ValueError`` unless ``y`` holds one class index per categorical mixture.

    >>> check_labels(CategoricalMixture(torch.zeros(2, 1, 3)), torch.tensor([3]))
    Traceback (most recent call last):
    ...
    ValueError: y must hold labels 0 to 2, got labels from 3 to 3
    """
    _check_type(predictive, CategoricalMixture)
    _check_shape(predictive, y)
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise ValueError(f"y must hold integer labels, got {y.dtype}")
    last, low, high = predictive.probs.shape[-1] - 1, int(y.min()), int(y.max())
    if low < 0 or high > last:
        raise ValueError(f"y must hold labels 0 to {last}, got labels from {low} to {high}")


def check_target(predictive: Mixture, y: Tensor) -> None:
    """Raise a ``ValueError`` unless ``y`` fits ``predictive``, of either type.

    >>> check_target(GaussianMixture(torch.zeros(2, 3), torch.ones(2, 3)), torch.zeros(3))
    """
    if isinstance(predictive, CategoricalMixture):
        check_labels(predictive, y)
    else:
        check_real_target(predictive, y)


def _check_type(predictive: Mixture, accepted: type) -> None:
    if not isinstance(predictive, accepted):
        given = type(predictive).__name__
        raise ValueError(f"predictive must be a {accepted.__name__} for this score, got {given}")


def _check_shape(predictive: Mixture, y: Tensor) -> None:
    if not isinstance(y, Tensor):
        raise ValueError(f"y must be a tensor, got {type(y).__name__}")
    if y.shape != predictive.batch_shape:
        accepted = tuple(predictive.batch_shape)
        raise ValueError(f"y must have the predictive's shape {accepted}, got {tuple(y.shape)}")
