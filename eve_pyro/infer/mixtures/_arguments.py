"""Arguments that the mixtures have in common: draws, their weights, and quantile levels."""

from collections.abc import Sequence

import torch
from torch import Tensor

Levels = float | Sequence[float] | Tensor


def check_draws(name: str, value: Tensor, dims: int, layout: str) -> None:
    """Raise a ``ValueError`` unless ``value`` is a finite float tensor of >= ``dims`` dims.

    >>> check_draws("loc", torch.zeros(()), 1, "(S, *shape)")
    Traceback (most recent call last):
    ...
    ValueError: loc must be a non-empty floating-point tensor (S, *shape), got torch.float32 ()
    """
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor {layout}, got {type(value).__name__}")
    if not value.is_floating_point() or value.dim() < dims or not value.numel():
        given = f"{value.dtype} {tuple(value.shape)}"
        raise ValueError(f"{name} must be a non-empty floating-point tensor {layout}, got {given}")
    if not value.isfinite().all():
        raise ValueError(f"{name} must be finite, got nan or inf among its values")


def normalised_log_weights(log_weights: Tensor | None, draws: Tensor) -> Tensor:
    """Return log weights that sum to one over dim 0, with ``draws``' dims (1 where constant).

    >>> normalised_log_weights(torch.tensor([0.0, 0.0]), torch.zeros(2, 3)).exp()
    tensor([[0.5000],
            [0.5000]])
    """
    per_draw = (len(draws),) + (1,) * (draws.dim() - 1)
    if log_weights is None:
        return draws.new_zeros(per_draw).log_softmax(0)
    given = tuple(log_weights.shape)
    # Plain broadcasting would read (S,) as one weight per datum wherever S is the data's number.
    if given == (len(draws),):
        log_weights = log_weights.reshape(per_draw)
    fits = log_weights.dim() == draws.dim() and len(log_weights) == len(draws)
    if not fits or not broadcasts(log_weights.shape, draws.shape):
        accepted = f"({len(draws)},) or broadcast to {tuple(draws.shape)}"
        raise ValueError(f"log_weights must have shape {accepted}, got {given}")
    if not log_weights.isfinite().all():
        raise ValueError("log_weights must be finite, got nan or inf among its values")
    return log_weights.to(draws).log_softmax(0)


def as_levels(name: str, value: Levels, like: Tensor) -> Tensor:
    """Return ``value`` as a 0-d or 1-d tensor of probabilities in (0, 1), in ``like``'s dtype.

    >>> as_levels("q", 0.5, torch.zeros(2))
    tensor(0.5000)
    >>> as_levels("q", 1.5, torch.zeros(2))
    Traceback (most recent call last):
    ...
    ValueError: q must be one level in (0, 1), or a non-empty 1-d sequence of them, got 1.5
    """
    levels = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    if levels.dim() > 1 or not levels.numel() or not ((levels > 0) & (levels < 1)).all():
        accepted = "one level in (0, 1), or a non-empty 1-d sequence of them"
        raise ValueError(f"{name} must be {accepted}, got {value}")
    return levels


def broadcasts(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether ``shape`` broadcasts to ``target`` without enlarging it.

    >>> broadcasts((1, 3), (2, 3)), broadcasts((2, 3), (3,))
    (True, False)
    """
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(a in (1, b) for a, b in pairs)
