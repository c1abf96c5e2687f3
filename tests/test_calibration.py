"""Calibration: known recoveries, closed forms, and data that no temperature fits."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eve_pyro.infer.mixtures import CategoricalMixture, GaussianMixture
from eve_pyro.metrics import (
    calibration_curve,
    coverage,
    fit_temperature,
    mc_nll,
    pit,
    width,
)


def gaussians(num_components=5, shape=(2000,), dtype=torch.float64, seed=0):
    rng = torch.Generator().manual_seed(seed)
    size = (num_components, *shape)
    loc = torch.randn(size, generator=rng, dtype=dtype)
    return GaussianMixture(loc, torch.rand(size, generator=rng, dtype=dtype) + 0.2)


def standard_error(predictive, y, tau):
    """Of log tau, from the curvature of the mean negative log likelihood at its minimum."""
    below, at, above = (mc_nll(predictive.rescale(tau * f), y).item() for f in (0.9, 1.0, 1 / 0.9))
    curvature = (below - 2 * at + above) / math.log(0.9) ** 2
    return 1 / math.sqrt(curvature * y.numel())


def test_calibrated_predictions_look_calibrated():
    predictive = gaussians()
    y = predictive.sample()
    # Kolmogorov's bound, passed with probability 2 exp(-2 * 2.5**2) = 7e-6.
    ranks = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    assert (pit(predictive, y).sort().values - ranks).abs().max() < 2.5 / math.sqrt(2000)
    levels = torch.linspace(0.1, 0.9, 9, dtype=torch.float64)
    expected, observed = calibration_curve(predictive, y, levels)
    assert torch.equal(expected, levels)
    assert (observed - expected).abs().max() < 2.5 / math.sqrt(2000)
    # Half the spread: the curve falls below the diagonal everywhere.
    assert (calibration_curve(predictive.rescale(0.5), y, levels)[1] < levels - 0.04).all()


def test_coverage_counts_targets_inside_the_interval():
    predictive = gaussians(shape=(50, 3))
    y = 2 * torch.randn(50, 3, dtype=torch.float64)
    lower, upper = predictive.interval(0.7)
    inside = ((lower <= y) & (y <= upper)).double().mean()
    assert coverage(predictive, y, 0.7).item() == pytest.approx(inside.item())
    assert width(predictive, 0.7).item() == pytest.approx((upper - lower).mean().item())


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.integers(1, 6),
    st.sampled_from([(), (7,), (3, 2)]),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 10**6),
)
def test_pit_is_a_probability_and_coverage_grows_with_level(num_components, shape, dtype, seed):
    predictive = gaussians(num_components, shape, dtype, seed)
    y = 5 * torch.randn(shape, dtype=dtype)
    u = pit(predictive, y)
    assert u.shape == shape
    assert u.dtype == dtype
    assert ((u >= 0) & (u <= 1)).all()
    _, observed = calibration_curve(predictive, y, torch.linspace(0.05, 0.95, 19, dtype=dtype))
    assert (observed.diff() >= 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_temperature_of_one_gaussian_is_the_rms_of_residuals(dtype):
    predictive = gaussians(1, (50,), dtype)
    y = predictive.loc[0] + 3 * torch.randn(50, dtype=dtype)
    closed = ((y - predictive.loc[0]) / predictive.scale[0]).square().mean().sqrt().item()
    assert fit_temperature(predictive, y) == pytest.approx(closed, rel=1e-6)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_temperature_far_from_one(factor):
    predictive = gaussians(1, (50,))
    y = predictive.loc[0] + torch.randn(50, dtype=torch.float64)
    shrunk = predictive.affine(0.0, factor)
    narrow = GaussianMixture(shrunk.loc / factor, shrunk.scale)
    assert fit_temperature(narrow, y) == pytest.approx(fit_temperature(predictive, y) / factor)


@pytest.mark.parametrize("tau", [0.5, 2.0])
def test_spread_of_a_mixture_is_recovered(tau):
    truth = gaussians()
    y = truth.sample()
    given_spread = truth.rescale(1 / tau)
    fitted = fit_temperature(given_spread, y)
    # 4.5 standard errors: passed by chance once in 150,000.
    error = standard_error(given_spread, y, fitted)
    assert error < 0.05
    assert abs(math.log(fitted / tau)) < 4.5 * error


def test_softmax_temperature_is_recovered():
    truth = CategoricalMixture(torch.randn(1, 2000, 4) * 2)
    y = truth.sample()
    sharp = CategoricalMixture(2 * truth.draw_logits)
    fitted = fit_temperature(sharp, y)
    error = standard_error(sharp, y, fitted)
    assert error < 0.05
    assert abs(math.log(fitted / 2)) < 4.5 * error


def test_temperature_is_a_minimum_for_several_draws():
    predictive = CategoricalMixture(4 * torch.randn(8, 500, 3, dtype=torch.float64))
    y = predictive.rescale(3.0).sample()
    tau = fit_temperature(predictive, y)
    best = mc_nll(predictive.rescale(tau), y)
    assert all(mc_nll(predictive.rescale(tau * f), y) > best for f in (0.5, 0.98, 1.02, 2.0))


def test_no_finite_temperature():
    gaussian = gaussians(3, (20,))
    labels = torch.arange(12) % 3
    right = torch.nn.functional.one_hot(labels, 3).double().unsqueeze(0)
    for predictive, y in [
        (gaussian, gaussian.mean),  # a residual of zero wants no spread at all
        (CategoricalMixture(right), labels),  # always right: wants certainty
        (CategoricalMixture(-right), labels),  # always wrong: wants none
        (CategoricalMixture(0 * right), labels),  # no logit differs: nothing to scale
    ]:
        with pytest.raises(ValueError, match="a minimum at a finite temperature"):
            fit_temperature(predictive, y)


def test_arguments_are_checked():
    predictive = gaussians(2, (4,))
    with pytest.raises(ValueError, match="y must have the predictive's shape"):
        fit_temperature(predictive, torch.zeros(4, 1))
    with pytest.raises(ValueError, match="predictive must be a GaussianMixture"):
        pit(CategoricalMixture(torch.zeros(1, 4, 2)), torch.zeros(4).long())
    for level in (0.0, 1.0):
        with pytest.raises(ValueError, match="level must be a finite number"):
            coverage(predictive, torch.zeros(4), level)
        with pytest.raises(ValueError, match="level must be a finite number"):
            width(predictive, level)
    with pytest.raises(ValueError, match="levels must be one level"):
        calibration_curve(predictive, torch.zeros(4), [0.5, 1.0])
