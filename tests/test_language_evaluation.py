"""Language models on held-out text: streamed numbers against those of all draws in memory."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from torch import nn
from torch.nn import functional as F

from eve_pyro import EVEGuide, metrics
from eve_pyro.data.text import TokenWindows
from eve_pyro.diagnostics import auroc
from eve_pyro.experiments.studies.language.evaluation import evaluate
from eve_pyro.experiments.studies.language.shift import (
    CorruptedWindows,
    response_to_corruption,
    response_to_texts,
)
from eve_pyro.experiments.studies.language.temperature import best_temperature
from eve_pyro.experiments.studies.language.token_scores import token_scores
from eve_pyro.infer import CategoricalMixture, PosteriorMean
from eve_pyro.infer.rng import seeded
from eve_pyro.nn import EVEFeedForward, FeedForward, LanguageModel, TransformerConfig, TransformerLM

VOCAB = 11
SMALL = TransformerConfig(
    VOCAB, d_model=8, num_layers=2, num_heads=2, d_ff=12, context=10, init_std=0.5
)
CONFIGS = {
    "dense": SMALL,
    "mc-dropout": dataclasses.replace(SMALL, dropout=0.2, mc_dropout=True),
    "eve": dataclasses.replace(SMALL, feed_forward="eve", beta=0.1),
}
DRAWN = ["mc-dropout", "eve"]


def build(name="eve"):
    torch.manual_seed(0)
    return LanguageModel(TransformerLM(CONFIGS[name]))


def text(length=131, seed=0):
    return TokenWindows(np.random.default_rng(seed).integers(0, VOCAB, length), context=10)


def whole(windows):
    return next(windows.batches(len(windows), seed=0, shuffle=False))


def in_memory(model, windows, num_samples, seed=0):
    """All draws of all windows at once, of the noise that a run in one batch has."""
    inputs, targets = whole(windows)
    guide, logits = EVEGuide(model), []
    with torch.no_grad(), seeded(seed):
        for _ in range(num_samples):
            guide(inputs, targets)
            logits.append(guide.trace.nodes["y"]["fn"].logits)
    return CategoricalMixture(torch.stack(logits)), targets


class Given:
    """Windows of given inputs and targets."""

    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs, targets

    def __len__(self):
        return len(self.inputs)

    def batches(self, batch_size, *, seed, shuffle=True):
        return zip(self.inputs.split(batch_size), self.targets.split(batch_size), strict=True)


def follows(words=5, sharpness=3.0):
    """A model that expects token x + 1 after x, and is at a loss after tokens from words on."""

    class Follows(nn.Module):
        def forward(self, tokens):
            known = (tokens < words).unsqueeze(-1)
            return known * sharpness * F.one_hot((tokens + 1) % words, VOCAB).float()

    return LanguageModel(Follows())


def cycle(rounds=40, words=5):
    return TokenWindows(np.arange(10 * rounds + 1) % words, context=10)


def one_noisy_layer(quiet):
    """Two blocks, of which the second draws; the first is as given."""
    torch.manual_seed(0)
    blocks = [quiet(), EVEFeedForward(8, 12, sigma_init=0.5)]
    return LanguageModel(TransformerLM(SMALL, feed_forward=lambda layer: blocks[layer]))


@pytest.mark.parametrize("name", CONFIGS)
def test_streamed_is_in_memory(name):
    model, windows = build(name).eval(), text()
    result = evaluate(model, windows, num_samples=6, batch_size=len(windows), seed=3)
    mixture, y = in_memory(model, windows, 1 if name == "dense" else 6, seed=3)
    tokens, scores = result.tokens, result.scores
    for column, expected in {
        "target": y,
        "loss": -mixture.log_prob(y),
        "max_probability": mixture.probs.amax(-1),
        "entropy": mixture.entropy(),
        "expected_entropy": mixture.aleatoric,
        "mutual_information": mixture.epistemic,
        "flip_rate": metrics.flip_rate(mixture),
    }.items():
        np.testing.assert_allclose(tokens[column], expected.flatten(), rtol=1e-4, atol=2e-6)
    for score, value in {
        "ce": metrics.cross_entropy(mixture, y),
        "perplexity": metrics.perplexity(mixture, y),
        "accuracy": metrics.accuracy(mixture, y),
        "brier": metrics.brier(mixture, y),
        "ece": metrics.ece(mixture, y),
        "cvar": metrics.cvar(-mixture.log_prob(y)),
        "entropy": mixture.entropy().mean(),
        "flip_rate": metrics.flip_rate(mixture).mean(),
    }.items():
        assert scores[score] == pytest.approx(value.item(), rel=1e-5, abs=1e-6)
    wrong = (mixture.mode != y).flatten()
    assert scores["auroc_entropy"] == pytest.approx(auroc(mixture.entropy().flatten(), wrong))
    # A loss is a concave function's: averaged draws score better than a draw does on average.
    assert scores["ce"] <= scores["expected_ce"] + 1e-6


def test_one_draw_is_the_elbo():
    model, windows = build(), text()
    result = evaluate(model, windows, num_samples=1, batch_size=len(windows), seed=5)
    with seeded(5):
        loss = TraceMeanField_ELBO().loss(model, EVEGuide(model), *whole(windows))
    expected = result.scores["expected_ce"] + 0.1 * result.scores["kl"]
    assert loss / len(result.tokens) == pytest.approx(expected, rel=1e-5)


def test_rows_say_where_a_token_stands():
    windows = text(95)  # 9 windows, the last batch has one
    tokens = evaluate(build(), windows, num_samples=2, batch_size=4).tokens
    assert tokens["window"].tolist() == np.repeat(np.arange(9), 10).tolist()
    assert tokens["position"].tolist() == np.tile(np.arange(10), 9).tolist()
    assert tokens["target"].tolist() == torch.cat([y for _, y in windows]).tolist()[:90]


def test_without_noise_batches_do_not_matter():
    for model, mean in ((build("dense"), False), (build(), True), (build("mc-dropout"), True)):
        one, two = (
            evaluate(model, text(), num_samples=3, batch_size=b, mean=mean).tokens for b in (3, 13)
        )
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", DRAWN)
def test_seeds(name):
    model = build(name)
    one, again, other = (
        evaluate(model, text(), num_samples=3, seed=seed).tokens for seed in (1, 1, 2)
    )
    assert one.equals(again)
    assert not one["loss"].equals(other["loss"])


def test_the_caller_keeps_noise_and_mode():
    model, before = build().train(), torch.random.get_rng_state()
    evaluate(model, text(), num_samples=2, layer_windows=4)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(module.training for module in model.modules())


def test_deterministic_networks_have_no_spread():
    result = evaluate(build("dense"), text(), num_samples=5, layer_windows=4)
    for column in ("mutual_information", "flip_rate", "kl"):
        assert not result.tokens[column].any()
    assert result.scores["auroc_mutual_information"] == 0.5
    assert result.scores["auroc_combined"] == result.scores["auroc_max_probability"]
    assert result.layers is None
    assert evaluate(build("mc-dropout"), text(), num_samples=5, layer_windows=4).layers is None


@pytest.mark.parametrize("name", DRAWN)
def test_posterior_mean(name):
    model, windows = build(name), text()
    result = evaluate(model, windows, num_samples=None)
    assert result.tokens.equals(evaluate(model, windows, num_samples=4, mean=True).tokens)
    inputs, targets = whole(windows)
    with torch.no_grad(), PosteriorMean():
        loss = F.cross_entropy(model.eval().network(inputs).flatten(0, 1), targets.flatten())
    assert result.scores["ce"] == pytest.approx(loss.item(), rel=1e-5)
    assert result.scores["mutual_information"] == result.scores["flip_rate"] == 0.0


def test_temperature_divides_logits():
    model, windows = build("dense"), text()
    inputs, targets = whole(windows)
    logits = model.eval().network(inputs).detach().flatten(0, 1)
    expected = F.cross_entropy(logits / 2.5, targets.flatten()).item()
    found = evaluate(model, windows, num_samples=1, temperature=2.5).scores["ce"]
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["dense", "eve"])
def test_best_temperature_is_that_of_all_draws_in_memory(name):
    model, windows = build(name).eval(), text(401)
    with torch.no_grad():  # targets that the model is right about, but too sharply
        model.network.embedding.weight.mul_(0.6)
        inputs, _ = whole(windows)
        drawn = torch.distributions.Categorical(logits=model.network(inputs) / 1.5).sample()
    windows = Given(inputs, drawn)
    size = len(inputs)
    found = best_temperature(model, windows, num_samples=4, batch_size=size, seed=2)
    expected = metrics.fit_temperature(*in_memory(model, windows, 1 if name == "dense" else 4, 2))
    assert found == pytest.approx(expected, rel=5e-3)
    around = [
        evaluate(model, windows, num_samples=4, batch_size=size, seed=2, temperature=t).scores["ce"]
        for t in (found / 1.1, found, found * 1.1)
    ]
    assert min(around) == around[1]


def test_best_temperature_says_what_it_cannot_find():
    with pytest.raises(ValueError, match=r"least loss at the end 0\.49"):
        best_temperature(follows(), cycle(), num_samples=1)  # always right: the sharper the better
    for wrong in ([1.0, 2.0], [1.0, 2.0, 3.0], [4.0, 2.0, 1.0]):
        with pytest.raises(ValueError, match="temperatures must be at least three"):
            best_temperature(follows(), cycle(), num_samples=1, temperatures=wrong)


def test_a_single_noisy_layer_has_all_of_the_information():
    model = one_noisy_layer(lambda: FeedForward(8, 12))
    layers = evaluate(model, text(), num_samples=4, batch_size=5, layer_windows=7).layers
    assert layers.index.tolist() == ["network.blocks.1.feed_forward.units"]
    assert layers["mutual_information"].item() > 1e-4
    # The same noise on the same tokens: not nearly, but exactly the same.
    assert layers["share"].item() == pytest.approx(1.0, rel=1e-9)


def test_a_quiet_layer_has_none_of_the_information():
    model = one_noisy_layer(lambda: EVEFeedForward(8, 12, sigma_init=1e-3))
    with torch.no_grad():
        model.network.blocks[0].feed_forward.units.encoder.log_scale.weight.zero_()
    layers = evaluate(model, text(), num_samples=4, layer_windows=13).layers
    assert layers["share"].tolist() == pytest.approx([0.0, 1.0], abs=0.01)
    assert layers["sigma"].iloc[0] == pytest.approx(1e-3, rel=1e-3)


def test_layers_and_tokens_tell_of_the_same_posteriors():
    model, windows = build(), text()
    result = evaluate(model, windows, num_samples=None, layer_windows=len(windows))
    assert result.layers["kl_total"].sum() == pytest.approx(result.scores["kl"], rel=1e-5)
    np.testing.assert_allclose(result.layers["kl"] * 12, result.layers["kl_total"])
    assert result.layers[["mutual_information", "share"]].isna().all(axis=None)
    assert ((result.layers["active_fraction"] >= 0) & (result.layers["active_fraction"] <= 1)).all()


def test_dropout_stands_still_while_a_layer_draws():
    torch.manual_seed(0)
    config = dataclasses.replace(CONFIGS["eve"], dropout=0.3, mc_dropout=True)
    result = evaluate(LanguageModel(TransformerLM(config)), text(), num_samples=6, layer_windows=13)
    assert (result.layers["share"] > 0).all()
    assert result.layers["share"].sum() < 0.9  # the rest is that of the masks


def test_scores_of_some_tokens():
    tokens = evaluate(build(), text(), num_samples=2).tokens
    late = token_scores(tokens[tokens["position"] >= 5])
    assert late["ce"] == pytest.approx(tokens["loss"][tokens["position"] >= 5].mean())
    with pytest.raises(ValueError, match="tokens must have at least one row, got none"):
        token_scores(tokens[:0])


def test_arguments_are_checked():
    model = build()
    with pytest.raises(TypeError, match="model must be a LanguageModel, got a TransformerLM"):
        evaluate(model.network, text(), num_samples=1)
    with pytest.raises(ValueError, match="windows must be at least one"):
        evaluate(model, Given(torch.ones(0, 2), torch.ones(0, 2)), num_samples=1)
    for wrong in (
        {"num_samples": 0},
        {"batch_size": 0},
        {"seed": -1},
        {"temperature": 0.0},
        {"layer_windows": -1},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            evaluate(model, text(), **{"num_samples": 1, **wrong})


def test_corrupted_windows_keep_their_targets():
    clean = text()
    inputs, targets = whole(clean)
    low, high = (CorruptedWindows(clean, rate, vocab_size=VOCAB, seed=1) for rate in (0.1, 0.4))
    for windows, count in ((low, 13), (high, 52)):
        batches = list(windows.batches(5, seed=0, shuffle=False))
        assert [len(x) for x, _ in batches] == [5, 5, 3]
        x, y = (torch.cat(part) for part in zip(*batches, strict=True))
        assert torch.equal(y, targets)
        assert torch.equal(x != inputs, windows.replaced)
        assert int(windows.replaced.sum()) == count
    assert (low.replaced <= high.replaced).all()
    with pytest.raises(ValueError, match="shuffle must be False"):
        low.batches(5, seed=0)


def test_loss_under_corruption_in_closed_form():
    # Known tokens have probability e^3 / (e^3 + 10); after an unknown one all have 1 / 11.
    windows = cycle()
    table = response_to_corruption(follows(), windows, [0.25, 1.0], vocab_size=VOCAB, num_samples=1)
    right = math.log(math.exp(3) + 10) - 3
    for row in table.itertuples():
        corrupted = CorruptedWindows(windows, row.rate, vocab_size=VOCAB)
        unknown = corrupted.inputs >= 5
        misled = corrupted.replaced & ~unknown
        loss = torch.where(unknown, math.log(11), right + 3 * misled)
        correct = ~corrupted.replaced | (unknown & (corrupted.targets == 0))  # 0 is first of ties
        assert row.ce == pytest.approx(loss.mean().item(), rel=1e-5)
        assert row.accuracy == pytest.approx(correct.double().mean().item())
    assert table["rate"].tolist() == [0.0, 0.25, 1.0]
    assert table["detect_entropy"].tolist()[0] == 0.5
    assert table["detect_entropy"].tolist()[-1] == 1.0
    assert table["detect_max_probability"].tolist()[-1] == 1.0
    assert table["detect_kl"].tolist() == [0.5] * 3
    assert table["entropy"].is_monotonic_increasing


def test_only_windows_that_lost_a_token_are_to_be_detected():
    # One token of 400 is replaced, by one that the model does not know: one window of 40.
    for seed in range(20):
        corrupted = CorruptedWindows(cycle(), 1 / 400, vocab_size=VOCAB, seed=seed)
        if (corrupted.inputs >= 5).any():
            break
    table = response_to_corruption(
        follows(), cycle(), [1 / 400], vocab_size=VOCAB, corruption_seed=seed, num_samples=1
    )
    assert table["detect_entropy"].tolist() == [0.5, 1.0]


def test_corruption_of_a_stochastic_model():
    options = {"vocab_size": VOCAB, "num_samples": 3, "batch_size": 4, "seed": 1}
    table = response_to_corruption(build(), text(), [0.2], **options)
    clean = evaluate(build(), text(), num_samples=3, batch_size=4, seed=1)
    assert table["mutual_information"].iloc[0] == clean.scores["mutual_information"]
    assert table["max_probability"].iloc[0] == clean.tokens["max_probability"].mean()
    assert (table[["kl", "mutual_information"]] > 0).all(axis=None)
    for rate in (0.0, 1.5):
        with pytest.raises(ValueError, match="rates must be"):
            response_to_corruption(build(), text(), [rate], **options)


def test_other_texts():
    texts = {"own": cycle(), "other": TokenWindows(np.arange(81) % VOCAB, context=10)}
    table = response_to_texts(follows(), texts, num_samples=1)
    assert table["text"].tolist() == ["own", "other"]
    assert table["ce"].is_monotonic_increasing
    assert table["detect_entropy"].tolist() == [0.5, 1.0]
    with pytest.raises(ValueError, match="texts must have at least one"):
        response_to_texts(follows(), {}, num_samples=1)
