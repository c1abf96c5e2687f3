"""Signals of uncertainty: their scores as decisions, and how they track a known noise."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import Regression, Sequence, data

from eve_pyro.diagnostics import (
    aurc,
    auroc,
    decision_table,
    internal_signals,
    noise_correlation,
    output_signals,
    posterior_statistics,
    prediction_errors,
    risk_coverage,
)
from eve_pyro.infer import CategoricalMixture, GaussianMixture, StreamingPredictive

scores = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=6)


@settings(max_examples=50, deadline=None, database=None)
@given(scores)
def test_risk_coverage_is_the_mean_over_orders_of_ties(pairs):
    curves = []
    for order in itertools.permutations(pairs):
        ranked = sorted(order, key=lambda pair: pair[0])  # stable: ties stay as permuted
        curves.append(np.cumsum([e for _, e in ranked]) / np.arange(1, len(pairs) + 1))
    uncertainty, error = np.array(pairs, float).T
    coverage, risk = risk_coverage(uncertainty, error)
    np.testing.assert_allclose(risk, np.mean(curves, 0))
    np.testing.assert_allclose(coverage, np.arange(1, len(pairs) + 1) / len(pairs))
    assert aurc(uncertainty, error) == pytest.approx(np.mean(curves))


@settings(max_examples=50, deadline=None, database=None)
@given(scores)
def test_auroc_is_the_share_of_ordered_pairs(pairs):
    wrong = [s for s, e in pairs if e > 1]
    right = [s for s, e in pairs if e <= 1]
    found = auroc([s for s, _ in pairs], [e > 1 for _, e in pairs])
    if not wrong or not right:
        assert np.isnan(found)
        return
    wins = [(w > r) + 0.5 * (w == r) for w in wrong for r in right]
    assert found == pytest.approx(np.mean(wins))


def test_auroc_against_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    score, wrong = rng.integers(0, 20, 500), rng.random(500) < 0.3
    assert auroc(score, wrong) == pytest.approx(metrics.roc_auc_score(wrong, score))


def test_aurc_in_closed_form():
    # m errors among N, ranked last: risk is 0 up to N - m, then (k - N + m) / k.
    n, m = 50, 7
    expected = sum((k - n + m) / k for k in range(n - m + 1, n + 1)) / n
    error = np.r_[np.zeros(n - m), np.ones(m)]
    assert aurc(np.arange(n), error) == pytest.approx(expected)
    assert aurc(np.zeros(n), error) == pytest.approx(m / n)


def regression(rows=300):
    model, (x, y) = Regression(latent_dim=1, sigma_init=0.5), data(rows)
    stats = posterior_statistics(model, None, x, seed=0)
    return StreamingPredictive(model, num_samples=16)(x, seed=0), y, stats


def test_decision_table_for_regression():
    predictive, y, stats = regression()
    table = decision_table(predictive, y, stats, signals={"mine": y.abs()}, per_layer=True)
    assert list(table.index) == [
        *("predictive_sd", "epistemic", "epistemic_share", "kl", "sigma"),
        *("kl[net.0]", "sigma[net.0]", "kl[net.1]", "sigma[net.1]"),
        *("-kl", "combined", "mine", "oracle", "random"),
    ]
    error, wrong = prediction_errors(predictive, y)
    assert wrong.mean() == pytest.approx(0.1)
    for name, signal in output_signals(predictive).items():
        assert table.aurc[name] == pytest.approx(aurc(signal, error))
        assert table.auroc[name] == pytest.approx(auroc(signal, wrong))
    assert table.auroc["kl"] + table.auroc["-kl"] == pytest.approx(1)
    assert table.auroc["oracle"] == 1
    assert table.auroc["random"] == 0.5
    assert table.aurc["random"] == pytest.approx(error.mean())
    assert table.aurc["oracle"] == table.aurc.min()
    np.testing.assert_allclose(table.excess_aurc, table.aurc - table.aurc["oracle"])
    # Ranks alone matter: the variance is the same signal as the standard deviation.
    other = decision_table(predictive, y, signals={"variance": predictive.variance})
    np.testing.assert_allclose(other.loc["variance"], other.loc["predictive_sd"])


def test_decision_table_for_classification():
    logits = 2 * torch.randn(8, 400, 5)
    predictive = CategoricalMixture(logits)
    y = predictive.sample()  # calibrated: the label is as uncertain as it is said to be
    table = decision_table(predictive, y)
    assert list(table.index[:4]) == ["entropy", "error_prob", "epistemic", "epistemic_share"]
    assert table.auroc["error_prob"] > 0.6
    assert table.aurc["error_prob"] < table.aurc["random"]
    assert table.auroc["oracle"] == 1
    error, wrong = prediction_errors(predictive, y)
    assert np.array_equal(error > 0, wrong)
    assert np.array_equal(wrong, (predictive.mode != y).numpy())
    certain = CategoricalMixture(torch.tensor([[[200.0, 0.0]]]))
    assert output_signals(certain)["epistemic_share"].tolist() == [0.0]


def test_sequences_keep_or_average_positions():
    model, x = Sequence(1), torch.randn(6, 4, 3)
    stats = posterior_statistics(model, None, x, seed=0)
    kept, averaged = internal_signals(stats), internal_signals(stats, (6,))
    assert kept["kl"].shape == (6, 4)
    for name in ("kl", "sigma"):
        np.testing.assert_allclose(kept[name].mean(1), averaged[name], rtol=1e-5)
    np.testing.assert_allclose(kept["kl"], stats.kl.sum(("layer", "unit")), rtol=1e-6)
    predictive = GaussianMixture(torch.zeros(1, 6, 4), torch.ones(1, 6, 4))
    assert not decision_table(predictive, torch.randn(6, 4), stats).isna().any(axis=None)
    with pytest.raises(ValueError, match=r"shape \(5,\), got \(6,\)"):
        internal_signals(stats, (5,))


def test_noise_correlation_of_a_tracking_sigma():
    rng = np.random.default_rng(0)
    scale = rng.uniform(0.1, 1.0, 500)
    sigma = scale + 0.1 * rng.standard_normal(500)
    signals = {"sigma": sigma, "kl": -sigma, "constant": np.full(500, 0.3)}
    table = noise_correlation(signals, scale)
    r = np.corrcoef(sigma, scale)[0, 1]
    assert table.r.tolist()[:2] == pytest.approx([r, -r])
    assert table.abs_r.tolist()[:2] == pytest.approx([r, r])
    assert table.loc["constant", ["r", "abs_r", "control"]].isna().all()
    assert table.se_z.iloc[0] == pytest.approx(497**-0.5)
    half = 1.959964 * 497**-0.5
    interval = np.tanh([np.arctanh(r) - half, np.arctanh(r) + half])
    np.testing.assert_allclose(table.loc["sigma", ["lower", "upper"]].astype(float), interval)
    assert table.control["sigma"] == pytest.approx((2 / (np.pi * 500)) ** 0.5, rel=0.2)


def test_fisher_interval_covers():
    # 300 intervals of level 0.9 around r = 0.5: the share that covers leaves [0.84, 0.96] with
    # probability < 0.001.
    rng = np.random.default_rng(1)
    covered = []
    for _ in range(300):
        x, e = rng.standard_normal((2, 40))
        signal = 0.5 * x + 0.75**0.5 * e
        row = noise_correlation({"s": signal}, x, level=0.9, permutations=1).loc["s"]
        covered.append(row.lower < 0.5 < row.upper)
    assert 0.84 <= np.mean(covered) <= 0.96


def test_noise_correlation_from_statistics():
    predictive, _, stats = regression(50)
    scale = stats["sigma"].sel(layer="net.0").mean(("unit", "latent")).values
    table = noise_correlation(stats, scale, predictive=predictive)
    assert list(table.index) == [
        *("kl", "sigma", "kl[net.0]", "sigma[net.0]", "kl[net.1]", "sigma[net.1]"),
        *("predictive_sd", "epistemic", "epistemic_share"),
    ]
    assert table.r["sigma[net.0]"] == pytest.approx(1)
    fixed = Regression(sigma="unit", latent_dim=1)
    stats = posterior_statistics(fixed, None, data(50)[0], seed=0)
    assert np.isnan(noise_correlation(stats, scale).r["sigma"])


def test_errors_name_the_argument():
    predictive = GaussianMixture(torch.zeros(1, 5), torch.ones(1, 5))
    y = torch.randn(5)
    with pytest.raises(ValueError, match=r"error must have shape \(5,\)"):
        risk_coverage(y, y[:4])
    with pytest.raises(ValueError, match="uncertainty must hold finite numbers"):
        aurc(y / 0, y)
    with pytest.raises(ValueError, match="uncertainty must hold finite numbers, at least one"):
        auroc([], [])
    with pytest.raises(ValueError, match="y must have the predictive's shape"):
        decision_table(predictive, y[:4])
    with pytest.raises(ValueError, match="mine must have shape"):
        decision_table(predictive, y, signals={"mine": y[:4]})
    with pytest.raises(ValueError, match="threshold must be a finite number"):
        decision_table(predictive, y, threshold=-1.0)
    with pytest.raises(ValueError, match="quantile must be a finite number"):
        decision_table(predictive, y, quantile=1.0)
    with pytest.raises(ValueError, match="true_scale must vary"):
        noise_correlation({"s": y}, torch.ones(5))
    with pytest.raises(ValueError, match="at least 4 data, got 3"):
        noise_correlation({"s": y[:3]}, y[:3])
    with pytest.raises(ValueError, match="level must be"):
        noise_correlation({"s": y}, y, level=1.0)
    units = posterior_statistics(Regression(), None, data()[0], keep="units")
    with pytest.raises(ValueError, match="with its inputs"):
        internal_signals(units)
