"""Whether predicted probabilities hold, and the temperature that makes them hold better."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from eve_pyro._checks import check_real
from eve_pyro.infer.mixtures import GaussianMixture, Mixture
from eve_pyro.infer.mixtures._arguments import as_levels
from eve_pyro.metrics._targets import check_real_target, check_target
from eve_pyro.metrics.likelihood import mc_nll


def pit(predictive: GaussianMixture, y: Tensor) -> Tensor:
    """Return the probability integral transform F(y) of every datum, (*shape).

    Uniform on [0, 1] where the predictive is calibrated (Dawid, "Statistical theory: the
    prequential approach", 1984).

    Args:
        predictive: of shape (*shape).
        y: targets, (*shape).

    >>> pit(GaussianMixture(torch.zeros(1, 2), torch.ones(1, 2)), torch.tensor([0.0, 1.0]))
    tensor([0.5000, 0.8413])
    """
    check_real_target(predictive, y)
    return predictive.cdf(y)


def coverage(predictive: GaussianMixture, y: Tensor, level: float) -> Tensor:
    """Return the share of targets inside the central interval; best where it equals ``level``.

    Args:
        predictive: of shape (*shape).
        y: targets, (*shape).
        level: probability of the interval, in (0, 1).

    >>> y = GaussianMixture(torch.zeros(1, 2), torch.ones(1, 2))
    >>> coverage(y, torch.tensor([1.6, 1.7]), 0.9)
    tensor(0.5000)
    """
    level = check_real("level", level, 0.0, 1.0, exclusive=True)
    return calibration_curve(predictive, y, [level])[1].squeeze(0)


def width(predictive: GaussianMixture, level: float) -> Tensor:
    """Return the mean width of the central interval: sharpness, for comparison at equal coverage.

    Args:
        predictive: of shape (*shape).
        level: probability of the interval, in (0, 1).

    >>> width(GaussianMixture(torch.zeros(1, 2), torch.ones(1, 2)), 0.9)
    tensor(3.2897)
    """
    lower, upper = predictive.interval(level)
    return (upper - lower).mean()


def calibration_curve(
    predictive: GaussianMixture, y: Tensor, levels: Sequence[float] | Tensor
) -> tuple[Tensor, Tensor]:
    """Return expected and observed coverage of central intervals, (len(levels),) each.

    Kuleshov, Fenner and Ermon, "Accurate uncertainties for deep learning using calibrated
    regression", 2018, there for one-sided intervals.

    Args:
        predictive: of shape (*shape).
        y: targets, (*shape).
        levels: probabilities of the intervals, in (0, 1).

    >>> y = GaussianMixture(torch.zeros(1, 2), torch.ones(1, 2))
    >>> calibration_curve(y, torch.tensor([0.5, 1.0]), [0.5, 0.9])
    (tensor([0.5000, 0.9000]), tensor([0.5000, 1.0000]))
    """
    expected = as_levels("levels", levels, predictive.loc).reshape(-1)
    # y lies in the central interval of a level exactly if |2 F(y) - 1| does not exceed it.
    needed = (2 * pit(predictive, y) - 1).abs().reshape(-1)
    return expected, (needed <= expected.unsqueeze(-1)).to(expected).mean(-1)


def fit_temperature(predictive: Mixture, y: Tensor) -> float:
    r"""Return the tau for which ``predictive.rescale(tau)`` has the least ``mc_nll`` on ``y``.

    .. math:: \hat\tau = \arg\min_{\tau > 0} \mathrm{mc\_nll}(\mathrm{rescale}(\tau), y)

    Fit it on validation data and apply it to test data. It multiplies the spread of a Gaussian
    mixture, and divides the logits of every draw of a categorical one (temperature scaling; Guo,
    Pleiss, Sun and Weinberger, "On calibration of modern neural networks", 2017). Brent's method
    over log tau, without bounds, finds a local minimum, in float64 whatever the dtype.

    Args:
        predictive: of shape (*shape), Gaussian or categorical.
        y: targets, (*shape).

    Raises:
        ValueError: if no finite tau is best: every residual is zero, every label is already the
            most probable one, or the labels are no better predicted than by chance.

    >>> y = GaussianMixture(torch.zeros(1, 2), torch.ones(1, 2))
    >>> round(fit_temperature(y, torch.tensor([-2.0, 2.0])), 6)
    2.0
    """
    from scipy.optimize import minimize_scalar  # here, because it takes a while to import

    check_target(predictive, y)
    exact = predictive.to(torch.float64)
    target = y.to(torch.float64) if y.is_floating_point() else y

    def loss(log_tau: float) -> float:
        # The least of a log likelihood that has one is never near the ends of float64.
        if abs(log_tau) > 300:
            raise _no_optimum(log_tau)
        with torch.no_grad():
            return mc_nll(exact.rescale(math.exp(log_tau)), target).item()

    best = minimize_scalar(loss, method="brent")
    # Where the loss only levels off, Brent's method stops on the plateau.
    around = min(loss(best.x - 5), loss(best.x + 5))
    if not best.success or not around > best.fun + 1e-12 * max(1.0, abs(best.fun)):
        raise _no_optimum(best.x)
    return math.exp(best.x)


def _no_optimum(log_tau: float) -> ValueError:
    return ValueError(
        "y must leave mc_nll a minimum at a finite temperature, got one that still falls or is "
        f"flat at log(tau) = {log_tau:.3g} (all residuals zero, all labels most probable, or "
        "predictions no better than chance)"
    )
