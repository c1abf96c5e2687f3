"""Feed-forward blocks and attention: one contract for all, then each form alone."""

import copy
import pickle
from contextlib import ExitStack

import hypothesis.strategies as st
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from pyro import poutine
from pyro.infer import Trace_ELBO
from torch import nn
from torch.nn import functional as F

from eve_pyro import EVEGuide
from eve_pyro.infer import PosteriorDraw, PosteriorMean
from eve_pyro.nn import (
    AntitheticDraws,
    EVEFeedForward,
    FeedForward,
    FreeBits,
    GaussianHead,
    Network,
    weight_decay_groups,
)
from eve_pyro.nn.transformer import CausalSelfAttention, KVCache, LayerCache, TransformerBlock

D = 4
EVE_FORMS = ["gelu", "gate", "glu", "swiglu", "residual"]
LINEAR_FORMS = [form for form in EVE_FORMS if form != "gelu"]


def _eve(form, **options):
    return lambda **kw: EVEFeedForward(D, 6, form=form, **options, **kw)


def _dense(form):
    return lambda **kw: FeedForward(D, 6, form=form, **kw)


def _attention(**kw):
    return CausalSelfAttention(D, 2, context=8, **kw)


BLOCKS = {
    **{f"eve-{form}": _eve(form, latent_dim=2) for form in EVE_FORMS},
    "eve-rank": _eve("gate", sigma_rank=2),
    "eve-shared": _eve("gate", shared_noise=True),
    "eve-penalty": _eve("gate", penalties=[FreeBits(0.1)]),
    "eve-mc-dropout": _eve("gate", dropout=0.3, mc_dropout=True),
    **{f"dense-{form}": _dense(form) for form in ("gelu", "gate", "glu", "swiglu")},
    "attention": _attention,
    "block": lambda **kw: TransformerBlock(_attention(**kw), _eve("gate")(**kw), D, **kw),
}
blocks = pytest.mark.parametrize("name", BLOCKS)


def run(module, x):
    pyro.set_rng_seed(1)
    return module(x)


@blocks
@pytest.mark.parametrize("batch", [(5,), (3, 5), (2, 3, 5)])
def test_shape(name, batch):
    assert BLOCKS[name]()(torch.randn(*batch, D)).shape == (*batch, D)


@blocks
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_gradient_reaches_every_parameter_below_any_plates(name, depth):
    block = BLOCKS[name]()

    class Model(pyro.nn.PyroModule):
        def __init__(self):
            super().__init__()
            self.block = block

        def forward(self, x, y):
            with ExitStack() as plates:
                for i in range(depth):
                    plates.enter_context(pyro.plate(f"plate{i}", x.shape[i], dim=i - depth))
                likelihood = dist.Normal(self.block(x), 1.0).to_event(3 - depth)
                pyro.sample("y", likelihood, obs=y)

    model = Model()
    x, y = torch.randn(2, 3, 5, D)
    Trace_ELBO()(model, EVEGuide(model))(x, y).backward()
    for key, p in model.named_parameters():
        assert p.grad is not None, key
        # Scores do not change when one vector is added to all keys.
        grad = p.grad.chunk(3)[::2] if key.endswith("qkv.bias") else (p.grad,)
        assert all(g.abs().sum() > 0 for g in grad), key


@blocks
@pytest.mark.parametrize("particles", [3, 4])
def test_particles_beside_as_many_rows(name, particles):
    """Two blocks in a row under a plate of particles: 3 particles, rows and positions."""
    trunk = nn.Sequential(BLOCKS[name](), BLOCKS[name]())
    model = Network(trunk, GaussianHead(D))
    elbo = Trace_ELBO(particles, vectorize_particles=True)(model, EVEGuide(model))
    assert elbo(torch.randn(3, 3, D), torch.randn(3, 3)).isfinite()


@blocks
def test_state_copies_dtype_device_and_repr(name):
    module, x = BLOCKS[name](), torch.randn(3, 5, D)
    before = run(module, x)
    other = BLOCKS[name]()
    other.load_state_dict(module.state_dict())
    for twin in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(run(twin, x), before)
    double = BLOCKS[name](dtype=torch.float64)
    assert double(x.double()).dtype == torch.float64
    for tensor in BLOCKS[name](device="meta").state_dict().values():
        assert tensor.is_meta
    assert repr(module).startswith(f"{type(module).__name__}(")
    for p in module.parameters():
        nn.init.constant_(p, 7.0)
    module.reset_parameters()
    assert not any((p == 7.0).any() for p in module.parameters())


@blocks
def test_under_autocast(name):
    module, x = BLOCKS[name](), torch.randn(3, 5, D)
    with torch.autocast("cpu", dtype=torch.bfloat16), PosteriorDraw():
        assert module(x).isfinite().all()


@settings(max_examples=40, deadline=None)
@given(
    form=st.sampled_from(EVE_FORMS),
    batch=st.lists(st.integers(1, 4), max_size=3),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 3)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_eve_feed_forward_maps_any_shape_to_itself(form, batch, sizes, dtype):
    width, units, latent = sizes
    block = EVEFeedForward(width, units, form=form, latent_dim=latent, dtype=dtype)
    h = torch.randn(*batch, width, dtype=dtype)
    draws = EVEGuide(block)(h)
    assert list(draws) == ["units"]
    assert draws["units"].shape == (*batch, units, latent)
    for handler in (PosteriorDraw(), PosteriorMean()):
        with handler:
            out = block(h)
        assert out.shape == h.shape
        assert out.dtype == dtype


@pytest.mark.parametrize("form", ["gelu", "gate", "glu", "swiglu"])
def test_eve_block_without_noise_is_the_dense_block(form):
    eve, dense = EVEFeedForward(D, 6, form=form), FeedForward(D, 6, form=form)
    dense.up.load_state_dict(eve.units.encoder.loc.state_dict())
    dense.out.load_state_dict(eve.out.state_dict())
    if dense.gate is not None:
        dense.gate.load_state_dict(eve.units.emission.gate.state_dict())
    h = torch.randn(3, 5, D)
    with PosteriorMean():
        torch.testing.assert_close(eve(h), dense(h))


def test_residual_form_is_the_gelu_block_and_its_first_order():
    block = EVEFeedForward(D, 6, form="residual", latent_dim=2, dtype=torch.float64)
    h = torch.randn(5, D, dtype=torch.float64)
    q = block.units.posterior(h)
    m = q.mean.mean(-1).detach().requires_grad_()
    (slope,) = torch.autograd.grad(F.gelu(m).sum(), m)
    with torch.no_grad(), PosteriorMean():
        torch.testing.assert_close(block(h), block.out(F.gelu(m)))
    z = EVEGuide(block)(h)["units"]
    with torch.no_grad(), poutine.condition(data={block.units.site: z}):
        torch.testing.assert_close(block(h), block.out(F.gelu(m) + slope * (z.mean(-1) - m)))


def test_residual_form_encodes_once():
    block, calls = EVEFeedForward(D, 6, form="residual"), []
    block.units.encoder.register_forward_hook(lambda *args: calls.append(1))
    h = torch.randn(5, D)
    for number, run_once in enumerate([EVEGuide(block), block], 1):
        run_once(h)
        assert len(calls) == number
    with PosteriorMean():
        block(h)
    assert len(calls) == 3


@pytest.mark.parametrize("form", EVE_FORMS)
def test_mean_mode_is_the_average_where_the_block_is_linear_in_z(form):
    """A pair of opposite draws has the posterior mean as its average, to rounding."""
    block = EVEFeedForward(D, 6, form=form, latent_dim=2, sigma_init=1.0, dtype=torch.float64)
    h = torch.randn(5, D, dtype=torch.float64)
    with pyro.plate("data", 5):
        with PosteriorMean():
            mean = block(h)
        particles = pyro.plate("num_particles_vectorized", 2, dim=-2)
        with AntitheticDraws(), particles, PosteriorDraw():
            pair = block(h)
    assert torch.allclose(pair.mean(0), mean, atol=1e-12) == (form in LINEAR_FORMS)


def test_kl_counts_per_token_and_unit():
    block = EVEFeedForward(D, 6, beta=0.25, dtype=torch.float64)
    model = Network(block, GaussianHead(D, dtype=torch.float64))
    x, y = torch.randn(2, 3, D, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    losses = []
    for beta in (0.0, 0.25):
        block.units.set_beta(beta)
        pyro.set_rng_seed(0)
        elbo = pyro.infer.TraceMeanField_ELBO()
        losses.append(elbo.loss(model, EVEGuide(model), x, y, num_data=10))
    q = block.units.posterior(x)
    kl = (0.5 * (q.mean**2 + q.stddev**2 - 1) - q.stddev.log()).sum().item()
    assert losses[1] - losses[0] == pytest.approx(10 / 2 * 0.25 * kl)


def test_dropout_is_off_in_eval_unless_its_masks_are_sites():
    h = torch.ones(50, D)
    plain, sites = FeedForward(D, 6, dropout=0.5), FeedForward(D, 6, dropout=0.5, mc_dropout=True)
    assert (plain(h) == 0).any()
    assert not (plain.eval()(h) == 0).any()
    assert (sites.eval()(h) == 0).any()
    with PosteriorMean():
        assert not (sites(h) == 0).any()


def test_attention_sees_the_past_alone_at_any_distance():
    attention = CausalSelfAttention(D, 2, context=8, dtype=torch.float64)
    h = torch.randn(1, 8, D, dtype=torch.float64, requires_grad=True)
    for position in range(8):
        (grad,) = torch.autograd.grad(attention(h)[0, position].sum(), h)
        seen = grad[0].abs().sum(-1) > 0
        assert seen.tolist() == [i <= position for i in range(8)]


def test_scores_depend_on_distances_alone():
    """What a position attends to does not change when the same words stand further right."""
    attention = CausalSelfAttention(D, 1, context=16, dtype=torch.float64)
    q, k = torch.randn(2, 3, D, dtype=torch.float64)
    scores = [attention._rotate(q, past) @ attention._rotate(k, past).mT for past in (0, 9)]
    torch.testing.assert_close(*scores)
    assert not torch.allclose(scores[0], q @ k.mT)


@pytest.mark.parametrize("pieces", [[8], [1] * 8, [3, 1, 4], [1, 5, 2]])
def test_attention_with_a_cache_is_attention(pieces):
    attention = CausalSelfAttention(D, 2, context=8, dtype=torch.float64)
    h = torch.randn(2, 3, 8, D, dtype=torch.float64)
    cache = LayerCache(8)
    with torch.no_grad():
        parts = [attention(part, cache) for part in h.split(pieces, -2)]
        torch.testing.assert_close(torch.cat(parts, -2), attention(h))


def test_weight_decay_groups():
    block = EVEFeedForward(D, 6, latent_dim=2, sigma="unit")
    embedding = nn.Embedding(5, D)
    tied = nn.Linear(D, 5, bias=False)
    tied.weight = embedding.weight
    frozen = nn.Linear(D, D).requires_grad_(False)
    model = nn.ModuleDict({"a": tied, "b": embedding, "c": block, "d": frozen})
    decayed, others = weight_decay_groups(model, 0.1)
    names = {id(p): name for name, p in model.named_parameters()}
    assert {names[id(p)] for p in decayed["params"]} == {
        "c.units.encoder.loc.weight",
        "c.units.emission.gate.weight",
        "c.out.weight",
    }
    both = [id(p) for group in (decayed, others) for p in group["params"]]
    trained = [p for p in model.parameters() if p.requires_grad]
    assert sorted(both) == sorted(map(id, trained))
    torch.optim.AdamW([decayed, others], lr=1e-3)
    with pytest.raises(ValueError, match="decay must be a finite number in"):
        weight_decay_groups(model, -1.0)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: EVEFeedForward(0, 6), ValueError, "d_model must be an integer >= 1, got 0"),
        (lambda: FeedForward(D, 0), ValueError, "d_ff must be an integer >= 1, got 0"),
        (lambda: EVEFeedForward(D, 6, form="relu"), ValueError, "form must be one of 'gelu'"),
        (lambda: FeedForward(D, 6, form="residual"), ValueError, "form must be one of 'gelu'"),
        (lambda: FeedForward(D, 6, dropout=1.5), ValueError, "dropout must be a finite number"),
        (lambda: EVEFeedForward(D, 6, emission="relu"), TypeError, "emission follows from form"),
        (lambda: EVEFeedForward(D, 6, beta=-1), ValueError, "beta must be"),
        (lambda: CausalSelfAttention(6, 4, context=8), ValueError, "d_model must be num_heads"),
        (lambda: CausalSelfAttention(6, 2, context=8), ValueError, "d_model must be num_heads"),
        (lambda: CausalSelfAttention(D, 2, context=0), ValueError, "context must be an integer"),
        (lambda: KVCache(0, 8), ValueError, "num_layers must be an integer >= 1, got 0"),
        (lambda: _attention()(torch.randn(9, D)), ValueError, "at most 8 positions, got 9"),
        (
            lambda: LayerCache(2).append(*torch.randn(2, 1, 3, D)),
            ValueError,
            "the cache must hold at most 2 positions, got 3",
        ),
    ],
)
def test_errors(make, error, message):
    with pytest.raises(error, match=message):
        make()
