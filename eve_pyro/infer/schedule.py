"""Schedules of beta: functions of the step, applied to every EVE layer of a model."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from eve_pyro._checks import check_int, check_real
from eve_pyro.nn.module import eve_modules

Schedule = Callable[[int], float]


def constant() -> Schedule:
    """Full beta at every step.

    Example:
        >>> constant()(7)
        1.0
    """
    return lambda step: 1.0


def linear_warmup(steps: int) -> Schedule:
    """From 0 to full beta in ``steps`` steps along a line (Bowman et al. 2016, "Generating
    Sentences from a Continuous Space", introduced such annealing).

    Raises:
        ValueError: if steps is below 1.

    Example:
        >>> [linear_warmup(4)(step) for step in (0, 1, 4, 9)]
        [0.0, 0.25, 1.0, 1.0]
    """
    check_int("steps", steps)
    return lambda step: min(1.0, step / steps)


def cosine_warmup(steps: int) -> Schedule:
    """From 0 to full beta in ``steps`` steps along half a cosine.

    Raises:
        ValueError: if steps is below 1.

    Example:
        >>> [round(cosine_warmup(4)(step), 3) for step in (0, 1, 2, 4, 9)]
        [0.0, 0.146, 0.5, 1.0, 1.0]
    """
    check_int("steps", steps)
    return lambda step: 0.5 * (1 - math.cos(math.pi * min(1.0, step / steps)))


def cyclical(period: int, ramp: float = 0.5) -> Schedule:
    """Linear warm-ups again and again: each period rises for a share ``ramp``, then holds.

    Fu et al. 2019, "Cyclical Annealing Schedule: A Simple Approach to Mitigating KL Vanishing".

    Arguments:
        period: steps per cycle.
        ramp: share of a cycle spent rising, in (0, 1].

    Raises:
        ValueError: if period is below 1 or ramp outside (0, 1].

    Example:
        >>> [cyclical(4)(step) for step in range(6)]
        [0.0, 0.5, 1.0, 1.0, 0.0, 0.5]
    """
    check_int("period", period)
    if check_real("ramp", ramp, 0.0, 1.0) == 0:
        raise ValueError(f"ramp must be in (0, 1], got {ramp!r}")
    return lambda step: min(1.0, (step % period) / (ramp * period))


class BetaSchedule:
    """Moves every EVE layer's beta along a schedule, each relative to its own full value.

    Used like a learning-rate scheduler of torch: build it, then call :meth:`step` after every
    optimizer step. The value 0 of a warm-up is exact.

    Arguments:
        model: a module with EVE layers; their betas at this moment are the full values.
        schedule: function from the step (0, 1, ...) to a factor >= 0.

    Raises:
        ValueError: if the schedule returns a negative or non-finite factor.

    Example:
        >>> from eve_pyro import EVEModule
        >>> net = nn.Sequential(EVEModule(3, 4, beta=0.5), EVEModule(4, 1, beta=1.0))
        >>> schedule = BetaSchedule(net, linear_warmup(2))
        >>> [layer.beta.item() for layer in net]
        [0.0, 0.0]
        >>> schedule.step()
        >>> [layer.beta.item() for layer in net]
        [0.25, 0.5]
    """

    def __init__(self, model: nn.Module, schedule: Schedule) -> None:
        self._layers = [layer for _, layer in eve_modules(model)]
        self.full = [float(layer.beta) for layer in self._layers]
        self.schedule = schedule
        self.count = 0
        self._apply()

    def step(self) -> None:
        """Advance by one step."""
        self.count += 1
        self._apply()

    def balance(self, kls: Sequence[float]) -> None:
        """Share the betas out by what the layers say: those of large KL pay more, others less.

        Every full value becomes mean(full) * KL_l / mean(KL), so that no layer's units fall
        silent for another's gain; NVAE does so while it warms up (Vahdat and Kautz 2020, "NVAE:
        A Deep Hierarchical Variational Autoencoder", "balancing the KL terms"). Call it every
        now and then, with KLs of a batch or an epoch.

        Arguments:
            kls: one KL per layer, per unit or in total, in the order of
                :func:`~eve_pyro.nn.eve_modules`. Where all are 0 nothing changes.

        Raises:
            ValueError: for another number of layers, or KLs that are negative or not finite.

        Example:
            >>> from eve_pyro import EVEModule
            >>> schedule = BetaSchedule(nn.Sequential(EVEModule(3, 4), EVEModule(4, 1)), constant())
            >>> schedule.balance([0.3, 0.1])
            >>> [round(beta, 6) for beta in schedule.full]
            [0.0015, 0.0005]
        """
        if len(kls) != len(self._layers):
            raise ValueError(f"kls must be one per EVE layer, {len(self._layers)}, got {len(kls)}")
        values = [check_real("kls", kl, 0.0) for kl in kls]
        total = sum(values)
        if total:
            whole = sum(self.full)
            self.full = [whole * value / total for value in values]
            self._apply()

    def _apply(self) -> None:
        factor = check_real("schedule(step)", self.schedule(self.count), 0.0)
        for layer, full in zip(self._layers, self.full, strict=True):
            layer.set_beta(factor * full)

    def state_dict(self) -> dict[str, Any]:
        """The step count and full betas."""
        return {"count": self.count, "full": list(self.full)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a :meth:`state_dict`."""
        self.count, self.full = state["count"], list(state["full"])
        self._apply()
