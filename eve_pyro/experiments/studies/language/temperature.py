"""The softmax temperature of a language model, from one pass over a text."""

import math
from collections.abc import Sequence

import numpy as np

from eve_pyro._checks import check_real
from eve_pyro.experiments.studies.language.passes import Passes, Windows
from eve_pyro.nn import LanguageModel

# In steps over which the loss is near enough a parabola: its least point is right to half a
# percent, which costs some 1e-5 nats per token.
TEMPERATURES = tuple(math.exp(step / 10) for step in range(-7, 13))


def best_temperature(
    model: LanguageModel,
    windows: Windows,
    *,
    num_samples: int | None,
    batch_size: int = 8,
    seed: int = 0,
    mean: bool = False,
    temperatures: Sequence[float] = TEMPERATURES,
) -> float:
    """The temperature for which ``evaluate`` finds the least cross-entropy.

    What :func:`~eve_pyro.metrics.fit_temperature` gives for a mixture that fits in memory, here
    from one pass over the text: the cross-entropy at every given temperature, and the least
    point of the parabola through the best of them and its neighbours. Fit it on validation text.

    Arguments:
        model, windows, num_samples, batch_size, seed, mean: see
            :func:`~eve_pyro.experiments.studies.language.evaluation.evaluate`.
        temperatures: at least three, in equal steps of their logarithm. Default: from 0.5 to 3.3
            in steps of 0.1; each costs about as much as a readout.

    Raises:
        ValueError: for other temperatures, or if the best is the first or the last of them.
    """
    run = Passes(model, windows, num_samples, batch_size, seed, 1.0, mean)
    logs = np.log([check_real("temperatures", t, 0.0, exclusive=True) for t in temperatures])
    steps = np.diff(logs)
    if len(logs) < 3 or steps.min() <= 0 or not np.allclose(steps, steps[0]):
        raise ValueError(
            "temperatures must be at least three, rising in equal steps of their logarithm, got "
            f"{list(temperatures)}"
        )
    losses = run.losses(temperatures)
    best = int(losses.argmin())
    if best in (0, len(logs) - 1):
        raise ValueError(
            "temperatures must have the best one between others, got the least loss at the end "
            f"{temperatures[best]:g}"
        )
    left, middle, right = losses[best - 1 : best + 2]
    vertex = 0.5 * (left - right) / (left - 2 * middle + right)
    return float(np.exp(logs[best] + vertex * steps[0]))
