"""Generation: the full pass token by token, its numbers, its end, its randomness."""

import dataclasses
import math

import pyro
import pytest
import torch

from eve_pyro.infer import PosteriorDraw, PosteriorMean, generate
from eve_pyro.nn import FeedForward, LanguageModel, TransformerConfig, TransformerLM

VOCAB = 11
DENSE = TransformerConfig(
    VOCAB, d_model=8, num_layers=2, num_heads=2, d_ff=12, context=12, init_std=0.5
)
EVE = dataclasses.replace(DENSE, feed_forward="eve", sigma_init=1.0)
MC = dataclasses.replace(DENSE, dropout=0.3, mc_dropout=True)
NUMBERS = ("entropy", "expected_entropy", "mutual_information", "max_probability")


def prompts(batch=3, length=4):
    return torch.randint(VOCAB, (batch, length))


def test_greedy_at_the_mean_is_the_full_pass_for_every_token():
    network, tokens = TransformerLM(EVE, dtype=torch.float64), prompts()
    made = generate(network, tokens, 8, temperature=0, num_samples=None)
    assert made.lengths.tolist() == [8, 8, 8]
    whole = torch.cat((tokens, made.tokens), -1)
    with torch.no_grad(), PosteriorMean():
        probs = network(whole[:, :-1])[:, 3:].softmax(-1)
    assert torch.equal(made.tokens, probs.argmax(-1))
    entropy = torch.special.entr(probs).sum(-1)
    torch.testing.assert_close(made.entropy, entropy)
    torch.testing.assert_close(made.expected_entropy, entropy)
    torch.testing.assert_close(made.max_probability, probs.amax(-1))
    assert made.mutual_information.max() < 1e-12


@pytest.mark.parametrize("config", [EVE, MC], ids=["eve", "mc-dropout"])
def test_draws_differ_between_streams_and_entropies_add_up(config):
    made = generate(TransformerLM(config), prompts(), 8, num_samples=16, seed=0)
    assert all(getattr(made, name).shape == (3, 8) for name in ("tokens", *NUMBERS))
    assert (made.mutual_information > 0).all()
    torch.testing.assert_close(made.entropy, made.expected_entropy + made.mutual_information)
    assert (made.entropy <= math.log(VOCAB) + 1e-6).all()
    assert (made.max_probability >= 1 / VOCAB).all()


def test_the_first_number_is_that_of_many_full_passes():
    """Entropy of 4000 streams' mean, against as many rows drawn by a full pass."""
    network, tokens = TransformerLM(EVE), prompts(1)
    made = generate(network, tokens, 1, num_samples=4000, seed=0)
    with torch.no_grad(), PosteriorDraw():
        probs = network(tokens.expand(4000, 4))[:, -1].softmax(-1)
    assert torch.special.entr(probs.mean(0)).sum() == pytest.approx(made.entropy.item(), abs=0.03)
    # The next token follows the mean: its standard error over 4000 texts is below .008.
    many = generate(network, tokens.expand(4000, 4), 1, num_samples=50, seed=1)
    shares = many.tokens.flatten().bincount(minlength=VOCAB) / 4000
    assert (shares - probs.mean(0)).abs().max() < 0.04


def test_dropout_is_off_and_the_mode_comes_back():
    network = TransformerLM(dataclasses.replace(DENSE, dropout=0.5)).train()
    a, b = (generate(network, torch.zeros(1, 2).long(), 5, temperature=0) for _ in range(2))
    assert torch.equal(a.tokens, b.tokens)
    assert all(module.training for module in network.modules())
    # One stream suffices: there is no noise to average over.
    assert a.mutual_information.max() < 1e-6


def test_seed():
    model, tokens = LanguageModel(TransformerLM(EVE)), prompts()
    state = torch.get_rng_state()
    first, second = (generate(model, tokens, 8, seed=5) for _ in range(2))
    for field in dataclasses.fields(first):
        assert torch.equal(getattr(first, field.name), getattr(second, field.name))
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(generate(model, tokens, 8, seed=6).entropy, first.entropy)
    pyro.set_rng_seed(5)
    free = generate(model, tokens, 8)
    assert torch.equal(free.tokens, first.tokens)
    assert not torch.equal(torch.get_rng_state(), state)


def test_temperature_and_top_k():
    network, tokens = TransformerLM(EVE, dtype=torch.float64), prompts(300, 2)
    greedy = generate(network, tokens, 1, temperature=0, num_samples=None)
    for options in ({"top_k": 1}, {"temperature": 1e-4}):
        same = generate(network, tokens, 1, num_samples=None, **options)
        assert torch.equal(same.tokens, greedy.tokens)
        # The numbers are the model's own, whatever the choice of a token.
        torch.testing.assert_close(same.entropy, greedy.entropy)
    with torch.no_grad(), PosteriorMean():
        best = network(tokens)[:, -1].topk(3, -1).indices
    few = generate(network, tokens, 1, num_samples=None, top_k=3, temperature=3.0)
    assert (few.tokens == best).any(-1).all()
    assert len({tuple(row) for row in (few.tokens == best).tolist()}) == 3
    generate(network, tokens, 1, top_k=10 * VOCAB)


def test_a_text_ends_at_its_stop():
    network, tokens = TransformerLM(EVE), prompts(20)
    free = generate(network, tokens, 8, temperature=2.0, seed=0)
    stopped = generate(network, tokens, 8, temperature=2.0, seed=0, stop_at=(3, 7))
    for row in range(20):
        ends = [i for i, token in enumerate(free.tokens[row].tolist()) if token in (3, 7)]
        length = ends[0] + 1 if ends else 8
        assert stopped.lengths[row] == length
        assert torch.equal(stopped.tokens[row, :length], free.tokens[row, :length])
        assert (stopped.tokens[row, length:] == stopped.tokens[row, length - 1]).all()
        for name in NUMBERS:
            assert getattr(stopped, name)[row, :length].isfinite().all()
            assert getattr(stopped, name)[row, length:].isnan().all()


def test_it_stops_early_when_all_texts_have():
    network = TransformerLM(DENSE)
    everything = range(VOCAB)
    made = generate(network, prompts(), 8, stop_at=everything)
    assert made.tokens.shape == (3, 1)
    assert made.lengths.tolist() == [1, 1, 1]
    alone = generate(network, prompts(1), 8, temperature=0)
    first = int(alone.tokens[0, 0])
    assert generate(network, prompts(1), 1, stop_at=first).lengths.tolist() == [1]


def test_tokens_of_another_integer_type():
    network, tokens = TransformerLM(EVE), prompts()
    long, short = (generate(network, t, 3, stop_at=0, seed=0) for t in (tokens, tokens.int()))
    assert torch.equal(long.tokens, short.tokens)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model": FeedForward(4, 6)}, TypeError, "model must be a TransformerLM or a Language"),
        ({"tokens": torch.zeros(4).long()}, ValueError, r"tokens must have shape \(batch, pos"),
        ({"tokens": torch.zeros(2, 0).long()}, ValueError, r"tokens must have shape \(batch, pos"),
        ({"tokens": torch.zeros(2, 3)}, TypeError, "tokens must be integers"),
        ({"max_new_tokens": 9}, ValueError, "must fit the context of 12 positions, got 4 and 9"),
        ({"max_new_tokens": 0}, ValueError, "max_new_tokens must be an integer >= 1, got 0"),
        ({"temperature": -1.0}, ValueError, "temperature must be a finite number in"),
        ({"top_k": 0}, ValueError, "top_k must be an integer >= 1, got 0"),
        ({"num_samples": 0}, ValueError, "num_samples must be an integer >= 1, got 0"),
        ({"stop_at": 11}, ValueError, "stop_at must be below the 11 tokens of the vocab"),
        ({"stop_at": [-1]}, ValueError, "stop_at must be an integer >= 0, got -1"),
    ],
)
def test_errors(change, error, message):
    given = {"model": TransformerLM(EVE), "tokens": prompts(), "max_new_tokens": 2}
    with pytest.raises(error, match=message):
        generate(**(given | change))
