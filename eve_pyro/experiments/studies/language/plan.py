"""How the models of a setting are trained."""

import math
from dataclasses import dataclass
from typing import Literal

from eve_pyro._checks import check_int, check_real


@dataclass(frozen=True)
class Plan:
    """How to train: the same for all models of a setting.

    Arguments:
        epochs: passes over the training windows.
        batch_size: windows of a step; those of an epoch that fill no batch wait for the next.
        learning_rate: of AdamW. It rises from 0 over a share ``warm_up`` of the steps, then
            falls to 0 along a cosine.
        weight_decay: of matrices, see :func:`~eve_pyro.nn.weight_decay_groups`.
        clip_norm: bound on the norm of the gradient of the loss per token.
        num_samples: draws of the prediction that is looked at after each epoch.
        backend: of :class:`~eve_pyro.infer.CompiledELBO`; None (default) for no compiling.
            Without a C++ compiler ``"inductor"`` is ``"eager"``: the same numbers, up to rounding.
        checkpoint_every: steps between two writes of the state. Default 200.
        progress: show a progress bar. Default False.

    Raises:
        ValueError: for a value out of range.

    Example:
        >>> Plan(epochs=0)
        Traceback (most recent call last):
        ...
        ValueError: epochs must be an integer >= 1, got 0
    """

    epochs: int
    batch_size: int = 16
    learning_rate: float = 3e-3
    warm_up: float = 0.05
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    num_samples: int = 4
    backend: Literal["inductor", "eager"] | None = None
    checkpoint_every: int = 200
    progress: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "num_samples", "checkpoint_every"):
            check_int(name, getattr(self, name))
        check_real("learning_rate", self.learning_rate, 0.0, exclusive=True)
        check_real("warm_up", self.warm_up, 0.0, 1.0)
        check_real("weight_decay", self.weight_decay, 0.0)
        check_real("clip_norm", self.clip_norm, 0.0, exclusive=True)

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step.

        Example:
            >>> plan = Plan(epochs=1, learning_rate=1.0, warm_up=0.2)
            >>> [round(plan.rate(step, 10), 2) for step in (0, 1, 2, 6, 9)]
            [0.5, 1.0, 1.0, 0.5, 0.04]
        """
        rise = max(1, round(self.warm_up * steps))
        if step < rise:
            return self.learning_rate * (step + 1) / rise
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - rise) / (steps - rise)))
