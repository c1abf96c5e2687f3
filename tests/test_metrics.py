"""Scores against closed forms, numerical integration and hand-worked numbers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Normal

from eve_pyro import metrics
from eve_pyro.infer.mixtures import CategoricalMixture, GaussianMixture
from eve_pyro.metrics import regression

SHAPES = [(), (6,), (3, 2)]
REGRESSION = ["mse", "rmse", "mae", "nll", "mc_nll", "crps"]
CLASSIFICATION = ["accuracy", "cross_entropy", "brier", "ece"]


def gaussians(num_components=5, shape=(6,), dtype=torch.float64, seed=0, weighted=False):
    rng = torch.Generator().manual_seed(seed)
    size = (num_components, *shape)
    loc = 2 * torch.randn(size, generator=rng, dtype=dtype)
    scale = torch.rand(size, generator=rng, dtype=dtype) + 0.2
    log_weights = torch.randn(size, generator=rng, dtype=dtype) if weighted else None
    return GaussianMixture(loc, scale, log_weights), torch.randn(shape, generator=rng, dtype=dtype)


def from_probs(*rows):
    return CategoricalMixture(torch.tensor([rows], dtype=torch.float64).log())


def test_scores_of_one_gaussian():
    predictive, y = gaussians(1)
    loc, scale = predictive.loc[0], predictive.scale[0]
    normal, z = Normal(loc, scale), (y - loc) / scale
    unit = Normal(torch.zeros_like(z), torch.ones_like(z))
    closed = scale * (
        z * (2 * unit.cdf(z) - 1) + 2 * unit.log_prob(z).exp() - 1 / math.sqrt(math.pi)
    )
    expected = {
        "mse": (y - loc).square().mean(),
        "rmse": (y - loc).square().mean().sqrt(),
        "mae": (y - loc).abs().mean(),
        "nll": -normal.log_prob(y).mean(),
        "mc_nll": -normal.log_prob(y).mean(),
        "crps": closed.mean(),
    }
    for name, value in expected.items():
        # scoringrules keeps its constants in float32, hence 1e-7.
        assert getattr(metrics, name)(predictive, y).item() == pytest.approx(value.item(), rel=1e-7)


def test_nll_uses_moments_and_mc_nll_the_density():
    predictive = GaussianMixture(torch.tensor([[-3.0], [3.0]]), torch.ones(2, 1))
    y = torch.tensor([3.0])
    moments = 0.5 * math.log(2 * math.pi * 10) + 9 / 20
    assert metrics.nll(predictive, y).item() == pytest.approx(moments)
    density = 0.5 * (1 + math.exp(-18)) / math.sqrt(2 * math.pi)
    assert metrics.mc_nll(predictive, y).item() == pytest.approx(-math.log(density))


@pytest.mark.parametrize("weighted", [False, True])
def test_crps_is_the_integral_of_the_squared_cdf_error(weighted):
    predictive, y = gaussians(weighted=weighted)
    # From 40 below to 40 above y in two smooth halves; the trapezoid errs by about h**2 = 4e-6.
    step = torch.linspace(0, 40, 20001, dtype=torch.float64)[:, None]
    below = torch.trapezoid(predictive.cdf(y - step).square(), step, dim=0)
    above = torch.trapezoid((1 - predictive.cdf(y + step)).square(), step, dim=0)
    expected = (below + above).mean().item()
    assert metrics.crps(predictive, y).item() == pytest.approx(expected, abs=1e-5)


def test_crps_agrees_with_samples():
    predictive, y = gaussians()
    a, b = predictive.sample((20000,)), predictive.sample((20000,))
    scores = ((a - y).abs() - (a - b).abs() / 2).mean(-1)
    # The bound is 4.5 standard errors, passed by chance once in 150,000.
    error = 4.5 * scores.std().item() / math.sqrt(len(scores))
    assert metrics.crps(predictive, y).item() == pytest.approx(scores.mean().item(), abs=error)


def test_crps_does_not_depend_on_chunks(monkeypatch):
    predictive, y = gaussians(weighted=True)
    whole = metrics.crps(predictive, y)
    for pairs in (1, 50):  # one row and two rows at a time
        monkeypatch.setattr(regression, "_CRPS_PAIRS", pairs)
        assert torch.allclose(metrics.crps(predictive, y), whole)


def test_twice_the_integral_of_pinball_is_crps():
    predictive, y = gaussians()
    levels = (torch.arange(400, dtype=torch.float64) + 0.5) / 400
    integral = 2 * metrics.pinball(predictive, y, levels).mean().item()
    assert integral == pytest.approx(metrics.crps(predictive, y).item(), rel=1e-3)


def test_pinball_by_hand():
    predictive = GaussianMixture(torch.zeros(1, 2), torch.ones(1, 2))
    y = torch.tensor([2.0, -1.0])
    assert metrics.pinball(predictive, y, 0.5).item() == pytest.approx(0.75)
    q = 1.2815516
    expected = (0.9 * (2 - q) + 0.1 * (1 + q)) / 2
    assert metrics.pinball(predictive, y, [0.9]).tolist() == pytest.approx([expected])


def test_mixture_of_the_truth_scores_best():
    predictive, _ = gaussians(shape=(2000,))
    y = predictive.sample()
    for name in ("mc_nll", "crps"):
        score = getattr(metrics, name)
        for tau in (0.6, 1.6):
            assert score(predictive, y) < score(predictive.rescale(tau), y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_row_of_regression_scores(shape, dtype):
    predictive, y = gaussians(shape=shape, dtype=dtype)
    row = metrics.evaluate(predictive, y, level=0.8)
    assert list(row) == [*REGRESSION, "coverage", "width"]
    assert row["coverage"] == pytest.approx(metrics.coverage(predictive, y, 0.8).item())
    for name in REGRESSION:
        score = getattr(metrics, name)(predictive, y)
        assert score.shape == ()
        assert score.dtype == dtype
        assert row[name] == pytest.approx(score.item())
    exact = metrics.evaluate(predictive.to(torch.float64), y.double(), level=0.8)
    assert row == pytest.approx(exact, rel=1e-4)


def test_units_carry_through_affine():
    predictive, y = gaussians()
    row = metrics.evaluate(predictive, y)
    other = metrics.evaluate(predictive.affine(5.0, 10.0), 5 + 10 * y)
    for name in ("rmse", "mae", "crps", "width"):
        assert other[name] == pytest.approx(10 * row[name])
    assert other["coverage"] == pytest.approx(row["coverage"])
    assert other["mc_nll"] == pytest.approx(row["mc_nll"] + math.log(10))


def test_classification_by_hand():
    predictive = from_probs([0.7, 0.2, 0.1], [0.3, 0.3, 0.4])
    y = torch.tensor([0, 1])
    assert metrics.accuracy(predictive, y).item() == 0.5
    expected = -(math.log(0.7) + math.log(0.3)) / 2
    assert metrics.cross_entropy(predictive, y).item() == pytest.approx(expected)
    assert metrics.mc_nll(predictive, y).item() == pytest.approx(expected)
    assert metrics.brier(predictive, y).item() == pytest.approx((0.14 + 0.74) / 2)
    # Bins of their own: |1 - 0.7| and |0 - 0.4|. One bin: |0.5 - 0.55|.
    assert metrics.ece(predictive, y).item() == pytest.approx(0.35)
    assert metrics.ece(predictive, y, num_bins=1).item() == pytest.approx(0.05)


def test_ece_counts_certainty_and_vanishes_when_calibrated():
    certain = CategoricalMixture(torch.tensor([[[200.0, 0.0]]]).expand(1, 4, 2))
    assert metrics.ece(certain, torch.tensor([0, 0, 0, 1])).item() == pytest.approx(0.25)
    predictive = from_probs(*[[0.75, 0.25]] * 4)
    assert metrics.ece(predictive, torch.tensor([0, 0, 0, 1])).item() == pytest.approx(0)


def test_ece_bins_are_closed_on_the_right():
    predictive = CategoricalMixture(torch.tensor([[[0.0, 0.0], [math.log(3), 0.0]]]))
    y = torch.tensor([0, 1])  # confidence 0.5, right, and 0.75, wrong: bins of their own
    assert metrics.ece(predictive, y, num_bins=2).item() == pytest.approx((0.5 + 0.75) / 2)


@pytest.mark.parametrize("shape", SHAPES)
def test_row_of_classification_scores(shape):
    predictive = CategoricalMixture(torch.randn(4, *shape, 3))
    y = torch.randint(3, shape)
    row = metrics.evaluate(predictive, y)
    assert list(row) == CLASSIFICATION
    for name in CLASSIFICATION:
        assert row[name] == pytest.approx(getattr(metrics, name)(predictive, y).item())


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.sampled_from(SHAPES), st.integers(1, 8), st.integers(0, 10**6))
def test_crps_lies_between_zero_and_the_absolute_error(shape, num_components, seed):
    predictive, y = gaussians(num_components, shape, seed=seed)
    expected_error = torch.stack([predictive.sample() for _ in range(400)]).sub(y).abs().mean()
    assert 0 < metrics.crps(predictive, y) < 1.5 * expected_error


@pytest.mark.parametrize("name", REGRESSION)
def test_regression_scores_check_their_arguments(name):
    predictive, y = gaussians()
    score = getattr(metrics, name)
    with pytest.raises(
        ValueError, match=r"y must have the predictive's shape \(6,\), got \(6, 1\)"
    ):
        score(predictive, y.unsqueeze(-1))
    with pytest.raises(ValueError, match="y must be finite"):
        score(predictive, y.clone().fill_(torch.nan))
    with pytest.raises(ValueError, match="y must be a tensor, got list"):
        score(predictive, y.tolist())
    with pytest.raises(ValueError, match="predictive must be a GaussianMixture"):
        score(y, y)


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_classification_scores_check_their_arguments(name):
    predictive = CategoricalMixture(torch.zeros(2, 4, 3))
    score = getattr(metrics, name)
    with pytest.raises(ValueError, match="y must hold labels 0 to 2, got labels from 0 to 3"):
        score(predictive, torch.tensor([0, 1, 2, 3]))
    with pytest.raises(ValueError, match="y must hold integer labels, got"):
        score(predictive, torch.zeros(4))
    with pytest.raises(ValueError, match="y must have the predictive's shape"):
        score(predictive, torch.zeros(4, 1).long())
    with pytest.raises(ValueError, match="predictive must be a CategoricalMixture"):
        score(gaussians(shape=(4,))[0], torch.zeros(4).long())


def test_levels_and_bins_are_checked():
    predictive, y = gaussians()
    with pytest.raises(ValueError, match="levels must be one level in"):
        metrics.pinball(predictive, y, [0.0, 0.5])
    with pytest.raises(ValueError, match="level must be a finite number in"):
        metrics.evaluate(predictive, y, level=90)
    with pytest.raises(ValueError, match="num_bins must be an integer"):
        metrics.ece(from_probs([0.5, 0.5]), torch.tensor([0]), num_bins=0)
