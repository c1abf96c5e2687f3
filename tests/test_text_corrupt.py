"""Corrupted tokens: how many, where, and by which others."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from eve_pyro.data.text import corrupt_tokens

FALSE_ALARMS = 1e-6


@settings(deadline=None)
@given(
    shape=st.sampled_from([(), (0,), (1,), (37,), (4, 9), (2, 3, 5)]),
    rate=st.floats(0.0, 1.0),
    vocab_size=st.integers(2, 40),
    seed=st.integers(0, 2**32),
)
def test_counts_are_exact(shape, rate, vocab_size, seed):
    tokens = torch.randint(vocab_size, shape)
    before = tokens.clone()
    corrupted, mask = corrupt_tokens(tokens, rate, vocab_size, seed)
    assert torch.equal(tokens, before)
    assert corrupted.shape == mask.shape == tokens.shape
    assert (corrupted.dtype, mask.dtype) == (torch.int64, torch.bool)
    assert int(mask.sum()) == round(rate * tokens.numel())
    assert torch.equal(corrupted != tokens, mask)
    assert ((corrupted >= 0) & (corrupted < vocab_size)).all()
    again, same = corrupt_tokens(tokens, rate, vocab_size, seed)
    assert torch.equal(again, corrupted)
    assert torch.equal(same, mask)


def test_others_are_uniform_and_places_too():
    vocab_size, tokens = 6, torch.arange(6).repeat(20_000)
    corrupted, mask = corrupt_tokens(tokens, 0.5, vocab_size, seed=0)
    pairs = torch.bincount(tokens[mask] * vocab_size + corrupted[mask], minlength=36).view(6, 6)
    assert (pairs.diagonal() == 0).all()
    observed = pairs[~torch.eye(6, dtype=torch.bool)].double()
    expected = 60_000 / 30
    statistic = ((observed - expected) ** 2 / expected).sum()
    assert statistic < chi2.isf(FALSE_ALARMS, 29)
    places = mask.view(100, -1).sum(1).double()  # without replacement, so less than chi-squared
    assert ((places - 600) ** 2 / 300).sum() < chi2.isf(FALSE_ALARMS, 99)


def test_the_global_generator_is_left_alone():
    state = torch.get_rng_state()
    one = corrupt_tokens(torch.zeros(50, dtype=torch.long), 0.5, 9, seed=0)[0]
    two = corrupt_tokens(torch.zeros(50, dtype=torch.long), 0.5, 9, seed=1)[0]
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(one, two)


def test_arrays_and_views(tmp_path):
    ids = np.arange(20, dtype=np.uint16)
    path = tmp_path / "ids.npy"
    np.save(path, ids)
    wanted = corrupt_tokens(torch.arange(20), 0.3, 20, seed=0)[0]
    for tokens in (ids, np.load(path, mmap_mode="r"), list(range(20)), torch.from_numpy(ids)):
        assert torch.equal(corrupt_tokens(tokens, 0.3, 20, seed=0)[0], wanted)
    view = torch.arange(20).view(4, 5).T  # not contiguous
    corrupted, mask = corrupt_tokens(view, 0.5, 20, seed=0)
    assert torch.equal(corrupted != view, mask)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"rate": -0.1}, r"rate must be a finite number in \[0, 1\], got -0.1"),
        ({"rate": 1.1}, r"rate must be a finite number in \[0, 1\], got 1.1"),
        ({"rate": float("nan")}, "rate must be a finite number"),
        ({"vocab_size": 1}, "vocab_size must be an integer >= 2, got 1"),
        ({"vocab_size": 3}, r"tokens must be integers in \[0, 3\), got 0 to 3"),
        ({"seed": -1}, "seed must be an integer >= 0, got -1"),
        ({"tokens": torch.rand(3)}, "tokens must be integers, got torch.float32"),
        ({"tokens": torch.tensor([-1])}, "got -1 to -1"),
        ({"tokens": torch.tensor([True])}, "tokens must be integers, got torch.bool"),
    ],
)
def test_arguments_that_cannot_be(arguments, reason):
    given = {"tokens": torch.arange(4), "rate": 0.5, "vocab_size": 4, "seed": 0}
    with pytest.raises(ValueError, match=reason):
        corrupt_tokens(**(given | arguments))
