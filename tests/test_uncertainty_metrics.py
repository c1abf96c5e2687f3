"""Uncertainty of predicted labels, tails of losses, and scores from draws that are not kept."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eve_pyro import metrics
from eve_pyro.infer import CategoricalMixture, GaussianMixture
from eve_pyro.metrics import (
    CategoricalScores,
    calibration_error,
    cvar,
    expected_entropy,
    flip_rate,
    mutual_information,
    perplexity,
    predictive_entropy,
    streaming,
)

quick = settings(max_examples=50, deadline=None, database=None)
sizes = st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 7))
seeds = st.integers(0, 2**31)


def draws(size=(5, 40, 7), seed=0, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(size, generator=generator, dtype=torch.float64)


def entropy(p):
    return -sum(x * math.log(x) for x in p)


def test_two_draws_by_hand():
    log_probs = torch.tensor([[[0.9, 0.1]], [[0.3, 0.7]]], dtype=torch.float64).log()
    total, within = entropy((0.6, 0.4)), (entropy((0.9, 0.1)) + entropy((0.3, 0.7))) / 2
    for predictive in (log_probs, CategoricalMixture(log_probs)):
        assert predictive_entropy(predictive).item() == pytest.approx(total)
        assert expected_entropy(predictive).item() == pytest.approx(within)
        assert mutual_information(predictive).item() == pytest.approx(total - within)
        assert flip_rate(predictive).item() == 0.5


def test_draws_count_by_their_weights():
    log_probs = torch.tensor([[[0.9, 0.1]], [[0.3, 0.7]]], dtype=torch.float64).log()
    mixture = CategoricalMixture(log_probs, torch.tensor([0.2, 0.8], dtype=torch.float64).log())
    total = entropy((0.42, 0.58))
    within = 0.2 * entropy((0.9, 0.1)) + 0.8 * entropy((0.3, 0.7))
    assert mutual_information(mixture).item() == pytest.approx(total - within)
    assert flip_rate(mixture).item() == pytest.approx(0.2)


@quick
@given(sizes, seeds, st.floats(0.01, 30.0))
def test_bounds_of_mutual_information(size, seed, scale):
    logits = draws(size, seed, scale)
    total, within = predictive_entropy(logits), expected_entropy(logits)
    information, rounding = mutual_information(logits), 1e-9
    assert (information >= 0).all()
    assert (information <= math.log(len(logits)) + rounding).all()
    assert (information <= total + rounding).all()
    assert (within <= total + rounding).all()
    assert (total <= math.log(size[-1]) + rounding).all()
    # The mean divergence of a draw from the average, another way to say it.
    log_probs = logits.log_softmax(-1)
    average = log_probs.logsumexp(0) - math.log(len(logits))
    divergence = (log_probs.exp() * (log_probs - average)).sum(-1).mean(0)
    torch.testing.assert_close(information, divergence, atol=1e-9, rtol=1e-6)


@quick
@given(sizes, seeds)
def test_flip_rate_counts_draws(size, seed):
    logits = draws(size, seed)
    mode = logits.softmax(-1).mean(0).argmax(-1)
    expected = torch.stack([draw.argmax(-1) != mode for draw in logits]).double().mean(0)
    torch.testing.assert_close(flip_rate(logits), expected)


def test_one_draw_never_differs_from_itself():
    # Logits so near that their probabilities round to ties.
    logits = 9 + 1e-6 * torch.rand(1, 1000, 5)
    assert not flip_rate(logits).any()
    scores = CategoricalScores(torch.zeros(1000, dtype=torch.long))
    scores.add(logits[0])
    assert not scores.result()["flip_rate"].any()
    assert not scores.result()["mutual_information"].any()


def test_perplexity_is_that_of_a_fair_die():
    predictive = CategoricalMixture(torch.zeros(3, 10, 6))
    assert perplexity(predictive, torch.arange(10) % 6).item() == pytest.approx(6.0)


@quick
@given(
    st.lists(st.floats(-10, 10), min_size=1, max_size=12),
    st.floats(0, 0.99),
)
def test_cvar_is_the_least_of_its_variational_form(values, level):
    losses = torch.tensor(values, dtype=torch.float64)
    # Rockafellar and Uryasev: min over t of t + E[(L - t)+] / (1 - level), attained at a loss.
    excess = (losses - losses[:, None]).clamp(min=0).mean(-1)
    expected = (losses + excess / (1 - level)).min().item()
    assert cvar(losses, level).item() == pytest.approx(expected, abs=1e-9)


def test_cvar_at_the_ends():
    losses = torch.tensor([[3.0, 1.0], [2.0, 6.0]])
    assert cvar(losses, 0.0).item() == pytest.approx(3.0)
    assert cvar(losses, 0.99).item() == 6.0
    assert cvar(losses, 0.5).item() == pytest.approx(4.5)


@pytest.mark.parametrize("level", [-0.1, 1.0, math.nan])
def test_cvar_refuses_levels(level):
    with pytest.raises(ValueError, match="level must be a"):
        cvar(torch.ones(3), level)


@pytest.mark.parametrize("losses", [torch.ones(0), torch.ones(3, dtype=torch.long), [1.0]])
def test_cvar_refuses_what_are_no_losses(losses):
    with pytest.raises(ValueError, match="losses must be a non-empty floating-point tensor, got"):
        cvar(losses)


def test_cvar_refuses_nan():
    with pytest.raises(ValueError, match="losses must be finite"):
        cvar(torch.tensor([1.0, math.nan]))


def test_calibration_error_is_ece_of_two_numbers():
    predictive, y = CategoricalMixture(draws()), torch.arange(40) % 7
    confidence, label = predictive.probs.max(-1)
    for num_bins in (1, 5, 15):
        found = calibration_error(confidence, label == y, num_bins)
        assert torch.equal(found, metrics.ece(predictive, y, num_bins))


def test_calibration_error_checks_its_arguments():
    with pytest.raises(ValueError, match=r"correct must have the shape \(3,\)"):
        calibration_error(torch.ones(3), torch.ones(2))
    with pytest.raises(ValueError, match=r"confidence must be in \[0, 1\], got 1 to 2"):
        calibration_error(torch.tensor([1.0, 2.0]), torch.ones(2))


@pytest.mark.parametrize("block", [1, 30, 2**18])
@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_scores_of_streamed_draws_are_those_of_the_mixture(monkeypatch, block, temperature):
    monkeypatch.setattr(streaming, "_BLOCK", block)
    logits = draws((5, 8, 6, 7))
    y = torch.randint(7, (8, 6))
    scores = CategoricalScores(y)
    for draw in logits:
        scores.add(draw, temperature)
    found, mixture = scores.result(), CategoricalMixture(logits).rescale(temperature)
    chosen = mixture.draw_logits.log_softmax(-1).gather(-1, y.expand(5, 8, 6).unsqueeze(-1))
    expected = {
        "loss": -mixture.log_prob(y),
        "expected_loss": -chosen.squeeze(-1).mean(0),
        "correct": (mixture.mode == y).double(),
        "max_probability": mixture.probs.amax(-1),
        "entropy": predictive_entropy(mixture),
        "expected_entropy": expected_entropy(mixture),
        "mutual_information": mutual_information(mixture),
        "flip_rate": flip_rate(mixture),
    }
    assert {*found} == {*expected, "brier"}
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values)
    torch.testing.assert_close(found["brier"].mean(), metrics.brier(mixture, y))


def test_probabilities_that_underflow_have_finite_losses():
    scores = CategoricalScores(torch.tensor([1]))
    for _ in range(3):
        scores.add(torch.tensor([[0.0, -1000.0]]))
    result = scores.result()
    assert result["loss"].item() == pytest.approx(1000.0)
    assert result["entropy"].item() == 0.0


def test_streamed_draws_are_checked():
    scores = CategoricalScores(torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="result must come after a draw"):
        scores.result()
    with pytest.raises(ValueError, match=r"logits must have shape \(\*\(3,\), C\), got \(4, 7\)"):
        scores.add(torch.zeros(4, 7))
    with pytest.raises(ValueError, match="temperature"):
        scores.add(torch.zeros(3, 7), 0.0)


def test_mixtures_of_other_targets_are_refused():
    gaussian = GaussianMixture(torch.zeros(2, 3), torch.ones(2, 3))
    with pytest.raises(ValueError, match="got GaussianMixture"):
        mutual_information(gaussian)
