"""Scores of the predictive distribution of a real-valued target."""

import torch
from torch import Tensor

from eve_pyro.infer.mixtures import GaussianMixture
from eve_pyro.infer.mixtures._arguments import Levels, as_levels
from eve_pyro.metrics._targets import check_real_target

# Pairs of components per chunk of rows in `crps`: a chunk's arrays then stay in the cache.
_CRPS_PAIRS = 2**18


def mse(predictive: GaussianMixture, y: Tensor) -> Tensor:
    """Return the mean squared error of the predictive mean.

    Args:
        predictive: of shape (*shape).
        y: targets, (*shape).

    >>> mse(GaussianMixture(torch.zeros(4, 2), torch.ones(4, 2)), torch.tensor([1.0, 3.0]))
    tensor(5.)
    """
    check_real_target(predictive, y)
    return (predictive.mean - y).square().mean()


def rmse(predictive: GaussianMixture, y: Tensor) -> Tensor:
    """Return the root of ``mse``.

    Args:
        predictive: of shape (*shape).
        y: targets, (*shape).

    >>> rmse(GaussianMixture(torch.zeros(4, 2), torch.ones(4, 2)), torch.tensor([1.0, 7.0]))
    tensor(5.)
    """
    return mse(predictive, y).sqrt()


def mae(predictive: GaussianMixture, y: Tensor) -> Tensor:
    """Return the mean absolute error of the predictive mean.

    The error of the median, which it is that minimises an absolute error, is
    ``2 * pinball(predictive, y, 0.5)``.

    Args:
        predictive: of shape (*shape).
        y: targets, (*shape).

    >>> mae(GaussianMixture(torch.zeros(4, 2), torch.ones(4, 2)), torch.tensor([1.0, -3.0]))
    tensor(2.)
    """
    check_real_target(predictive, y)
    return (predictive.mean - y).abs().mean()


def crps(predictive: GaussianMixture, y: Tensor) -> Tensor:
    r"""Return the continuous ranked probability score, exact for the mixture.

    .. math:: \mathrm{CRPS}(F, y) = \int (F(x) - 1[y \le x])^2 dx
              = \mathrm{E}|X - y| - \tfrac{1}{2} \mathrm{E}|X - X'|

    Closed form of Grimit, Gneiting, Berrocal and Johnson, "The continuous ranked probability
    score for circular variables", 2006, by ``scoringrules``. Strictly proper (Gneiting and
    Raftery, "Strictly proper scoring rules, prediction, and estimation", 2007). The time grows
    with the square of the number S of components; the memory is that of one row, S**2 numbers,
    or of a fixed chunk of rows. In float64 it is good to 1e-8, the library's constants.

    Args:
        predictive: of shape (*shape).
        y: targets, (*shape).

    >>> crps(GaussianMixture(torch.zeros(1, 1), torch.ones(1, 1)), torch.zeros(1))
    tensor(0.2337)
    """
    check_real_target(predictive, y)
    import scoringrules  # here, because it takes 0.2 s to import

    size = len(predictive.loc)
    weights = predictive.log_weights.exp().expand_as(predictive.loc)
    components = (t.reshape(size, -1).T for t in (predictive.loc, predictive.scale, weights))
    chunks = (t.split(max(1, _CRPS_PAIRS // size**2)) for t in (y.reshape(-1), *components))
    total = y.new_zeros(())
    for chunk in zip(*chunks, strict=True):
        # Summed at once: a small result kept per chunk would pin the allocator's freed blocks.
        total = total + scoringrules.crps_mixnorm(*chunk, backend="torch").sum()
    return total / y.numel()


def pinball(predictive: GaussianMixture, y: Tensor, levels: Levels) -> Tensor:
    r"""Return the pinball loss of predictive quantiles, one average over data per level.

    .. math:: \frac{1}{N} \sum_n \max(p (y_n - q_p), (p - 1)(y_n - q_p))

    Koenker and Bassett, "Regression quantiles", 1978. Twice its integral over levels is the CRPS.

    Args:
        predictive: of shape (*shape).
        y: targets, (*shape).
        levels: probabilities p in (0, 1): one, a sequence, or a 1-d tensor. One gives a 0-dim
            tensor, several (len(levels),).

    >>> pinball(GaussianMixture(torch.zeros(1, 1), torch.ones(1, 1)), torch.ones(1), [0.1, 0.5])
    tensor([0.2282, 0.5000])
    """
    check_real_target(predictive, y)
    levels = as_levels("levels", levels, predictive.loc)
    error = (y - predictive.quantile(levels)).reshape(*levels.shape, -1)
    p = levels.unsqueeze(-1)
    return torch.maximum(p * error, (p - 1) * error).mean(-1)
