"""TransformerLM and LanguageModel: causality, the objectives by hand, all of Pyro's ways."""

import copy
import dataclasses
import math
import pickle

import hypothesis.strategies as st
import pyro
import pytest
import torch
from hypothesis import given, settings
from pyro import poutine
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO
from pyro.poutine.messenger import Messenger
from torch import nn
from torch.nn import functional as F

from eve_pyro import EVEGuide, EVEModule
from eve_pyro.infer import (
    MCNLL_ELBO,
    CompiledELBO,
    PosteriorMean,
    StreamingPredictive,
    Trainer,
    TrainingConfig,
)
from eve_pyro.nn import (
    EVEFeedForward,
    FeedForward,
    LanguageModel,
    TransformerConfig,
    TransformerLM,
    eve_modules,
    is_eve_site,
    weight_decay_groups,
)

VOCAB = 11
SMALL = TransformerConfig(VOCAB, d_model=8, num_layers=2, num_heads=2, d_ff=12, context=10)
EVE = dataclasses.replace(SMALL, feed_forward="eve", beta=0.1)
CONFIGS = {
    "dense": SMALL,
    "glu": dataclasses.replace(SMALL, feed_forward="glu"),
    "dropout": dataclasses.replace(SMALL, dropout=0.2),
    "mc-dropout": dataclasses.replace(SMALL, dropout=0.2, mc_dropout=True),
    "eve": EVE,
    "eve-gelu": dataclasses.replace(EVE, eve_form="gelu", latent_dim=2),
    "eve-residual": dataclasses.replace(EVE, eve_form="residual", tie_embeddings=False),
    "eve-shared": dataclasses.replace(EVE, shared_noise=True),
    "eve-rank-dropout": dataclasses.replace(EVE, sigma_rank=2, dropout=0.2, mc_dropout=True),
}
EVE_CONFIGS = [name for name in CONFIGS if name.startswith("eve")]
configs = pytest.mark.parametrize("name", CONFIGS)


def text(batch=3, length=5):
    tokens = torch.randint(VOCAB, (batch, length + 1))
    return tokens[:, :-1], tokens[:, 1:]


def language_model(name, **options):
    return LanguageModel(TransformerLM(CONFIGS[name], **options))


class FixedNoise(Messenger):
    """Sets every EVE site to mu + sigma * noise, the noise fixed by site and position."""

    def __init__(self, context=10):
        super().__init__()
        self.context, self.noise, self.past = context, {}, 0

    def _pyro_sample(self, msg):
        if is_eve_site(msg):
            q = msg["infer"]["posterior"]()
            *batch, length, units, latent = q.mean.shape
            shape = (*batch, self.context, units, latent)
            if msg["name"] not in self.noise:
                self.noise[msg["name"]] = torch.randn(shape, dtype=q.mean.dtype)
            eps = self.noise[msg["name"]][..., self.past : self.past + length, :, :]
            msg["value"], msg["done"] = q.mean + q.stddev * eps, True


@configs
def test_logits_are_those_of_tokens(name):
    network = TransformerLM(CONFIGS[name], dtype=torch.float64)
    for shape in [(5,), (3, 5), (2, 3, 5)]:
        logits = network(torch.randint(VOCAB, shape))
        assert logits.shape == (*shape, VOCAB)
        assert logits.dtype == torch.float64


@settings(max_examples=25, deadline=None)
@given(
    heads=st.integers(1, 3),
    half=st.integers(1, 3),
    layers=st.integers(1, 3),
    batch=st.lists(st.integers(1, 3), max_size=2),
    length=st.integers(1, 6),
    feed_forward=st.sampled_from(["dense", "glu", "eve"]),
    tie=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    index=st.sampled_from([torch.int32, torch.int64]),
)
def test_any_sizes(heads, half, layers, batch, length, feed_forward, tie, dtype, index):
    config = TransformerConfig(
        7,
        d_model=2 * half * heads,
        num_layers=layers,
        num_heads=heads,
        d_ff=5,
        context=6,
        feed_forward=feed_forward,
        tie_embeddings=tie,
    )
    network = TransformerLM(config, dtype=dtype)
    tokens = torch.randint(7, (*batch, length), dtype=index)
    logits = network(tokens)
    assert logits.shape == (*batch, length, 7)
    assert logits.dtype == dtype
    assert len(dict(eve_modules(network))) == (layers if feed_forward == "eve" else 0)


@pytest.mark.parametrize("name", ["dense", *EVE_CONFIGS])
@pytest.mark.parametrize("handler", [PosteriorMean, FixedNoise])
def test_a_later_token_changes_no_earlier_prediction(name, handler):
    network = TransformerLM(
        dataclasses.replace(CONFIGS[name], dropout=0.0), dtype=torch.float64
    ).eval()
    handler = handler()
    tokens, _ = text(3, 10)
    with handler:
        before = network(tokens)
        for position in range(10):
            changed = tokens.clone()
            changed[:, position] = (changed[:, position] + 1) % VOCAB
            after = network(changed)
            torch.testing.assert_close(after[:, :position], before[:, :position])
            # What stands there reaches its own prediction and, in a batch, some later one.
            assert not torch.allclose(after[:, position], before[:, position])
            if position < 9:
                assert not torch.allclose(after[:, 9], before[:, 9])


@pytest.mark.parametrize("name", ["dense", *EVE_CONFIGS])
@pytest.mark.parametrize("handler", [PosteriorMean, FixedNoise])
@pytest.mark.parametrize("pieces", [[1] * 10, [4, 1, 5]])
def test_cached_steps_are_the_full_pass(name, handler, pieces):
    config = dataclasses.replace(CONFIGS[name], dropout=0.0)
    network = TransformerLM(config, dtype=torch.float64).eval()
    tokens, _ = text(6, 10)
    tokens = tokens.view(2, 3, 10)
    handler, cache, parts = handler(), network.make_cache(), []
    with torch.no_grad(), handler:
        expected = network(tokens)
        for part in tokens.split(pieces, -1):
            handler.past = cache.length
            parts.append(network(part, cache))
    torch.testing.assert_close(torch.cat(parts, -2), expected)
    with pytest.raises(ValueError, match=r"at most the 10 positions of the context .* got 11"):
        network(tokens[..., :1], cache)


@pytest.mark.parametrize("name", ["eve", "eve-gelu", "eve-residual"])
def test_the_elbo_is_cross_entropy_plus_beta_kl_per_token(name):
    model = language_model(name, dtype=torch.float64)
    tokens, targets = text(3, 5)
    guide, num_data = EVEGuide(model), 12
    pyro.set_rng_seed(3)
    loss = TraceMeanField_ELBO()(model, guide)(tokens, targets, num_data=num_data)
    pyro.set_rng_seed(3)
    draws = guide(tokens, targets)
    kl = 0.0
    for path, layer in eve_modules(model):
        q = guide.trace.nodes[path]["fn"]
        assert q.batch_shape == tokens.shape
        assert layer.beta == 0.1
        kl += (0.5 * (q.mean**2 + q.stddev**2 - 1) - q.stddev.log()).sum()
    with poutine.condition(data=draws):
        logits = model.network(tokens)
    ce = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(loss, num_data / 3 * (ce + 0.1 * kl))


def test_mcnll_averages_per_token():
    model = language_model("eve", dtype=torch.float64)
    tokens, targets = text(3, 5)
    guide = EVEGuide(model)
    elbo = MCNLL_ELBO(4, max_plate_nesting=2)
    for layer in dict(eve_modules(model)).values():
        layer.set_beta(0.0)
    pyro.set_rng_seed(3)
    loss = elbo(model, guide)(tokens, targets)
    pyro.set_rng_seed(3)
    with pyro.plate("num_particles_vectorized", 4, dim=-3):
        guide(tokens, targets)
    log_probs = guide.trace.nodes["y"]["fn"].logits
    chosen = log_probs.gather(-1, targets.expand(4, 3, 5).unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(loss, -(chosen.logsumexp(0) - math.log(4)).sum())


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO, MCNLL_ELBO])
@configs
def test_masked_positions_count_for_nothing(name, elbo):
    """Padding at the end changes neither the loss of the rest nor a gradient."""
    model = language_model(name, dtype=torch.float64)
    tokens, targets = text(3, 6)
    mask = torch.arange(6).expand(3, 6) < torch.tensor([[6], [2], [4]])
    garbage = torch.where(mask, tokens, (tokens + 1) % VOCAB)
    results = []
    for words, aims in ((tokens, targets), (garbage, (targets + mask.logical_not()) % VOCAB)):
        pyro.set_rng_seed(0)
        model.zero_grad()
        loss = elbo(3, vectorize_particles=True)(model, EVEGuide(model))(words, aims, mask)
        loss.backward()
        results.append([loss.detach()] + [p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*results)


@configs
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO, MCNLL_ELBO])
@pytest.mark.parametrize("vectorize", [False, True])
def test_particles(name, elbo, vectorize):
    """3 particles, windows, and positions: sizes cannot tell them apart."""
    model = language_model(name)
    loss = elbo(3, vectorize_particles=vectorize)(model, EVEGuide(model))(*text(3, 3))
    loss.backward()
    assert loss.isfinite()


@pytest.mark.parametrize("name", ["mc-dropout", *EVE_CONFIGS])
def test_every_particle_is_a_run_of_its_own(name):
    model = language_model(name, dtype=torch.float64)
    guide = EVEGuide(model)
    tokens, _ = text(3, 3)
    guide(tokens)  # as an ELBO does, to find the plates
    with pyro.plate("num_particles_vectorized", 3, dim=-3):
        draws = guide(tokens)
    logits = guide.trace.nodes["y"]["fn"].logits
    assert len(logits.flatten(1).unique(dim=0)) == 3
    for s in range(3):
        one = {key: z[s] for key, z in draws.items() if key not in ("data", "positions")}
        with poutine.condition(data=one):
            alone = model.network(tokens)
        torch.testing.assert_close(alone.log_softmax(-1), logits[s])


@configs
def test_svi_moves_every_parameter(name):
    model = language_model(name)
    svi = SVI(model, EVEGuide(model), pyro.optim.SGD({"lr": 1e-2}), Trace_ELBO())
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    for _ in range(2):
        svi.step(*text(), num_data=30)
    same = [key for key, p in model.named_parameters() if torch.equal(p, before[key])]
    assert same == []


@configs
@pytest.mark.parametrize(
    "elbo", [TraceMeanField_ELBO(), MCNLL_ELBO(2)], ids=["mean-field", "mcnll"]
)
def test_compiled_is_eager(name, elbo):
    model = language_model(name, dtype=torch.float64)
    guide = EVEGuide(model)
    compiled = CompiledELBO(copy.deepcopy(elbo), backend="eager")(model, guide)
    eager = copy.deepcopy(elbo)(model, guide)
    results = []
    eager(*text())  # a first call finds the model's plates, and draws for it
    for call in (eager, compiled, compiled, compiled):
        results.append([])
        for seed in (0, 1):
            pyro.set_rng_seed(seed)
            tokens, targets = text()
            model.zero_grad()
            call(tokens, targets, num_data=30).backward()
            grads = {key: p.grad.clone() for key, p in model.named_parameters()}
            results[-1].append((call(tokens, targets, num_data=30).detach(), grads))
    torch.testing.assert_close(results[2], results[0])
    torch.testing.assert_close(results[3], results[0])
    assert compiled.traces == 1


@configs
def test_trainer_learns_a_text(name):
    model = language_model(name)
    tokens = (torch.arange(7) + torch.arange(44).unsqueeze(1)) % VOCAB
    config = TrainingConfig(epochs=6, batch_size=11, learning_rate=3e-2, progress=False)
    history = Trainer(model, config=config).fit(
        tokens[:, :-1], tokens[:, 1:], validation=(tokens[:11, :-1], tokens[:11, 1:])
    )
    losses = history.frame.train_loss.to_list()
    assert losses[-1] < losses[0]


@configs
def test_streaming_predictive(name):
    model = language_model(name)
    tokens, _ = text(4, 5)
    streaming = StreamingPredictive(model, num_samples=6, chunk_size=4)
    y = streaming(tokens, seed=0)
    draws = 6 if "eve" in name or "mc" in name else 1
    assert y.draw_logits.shape == (draws, 4, 5, VOCAB)
    assert (y.epistemic > 0).all() == (draws > 1)
    compiled = StreamingPredictive(model, num_samples=6, chunk_size=4, compile="eager")
    assert torch.equal(compiled(tokens, seed=0).draw_logits, y.draw_logits)


def test_predictive():
    model = language_model("eve")
    draws = Predictive(model, guide=EVEGuide(model), num_samples=4)(text()[0])
    assert draws["y"].shape == (4, 3, 5)


@configs
def test_copies_and_state(name):
    model, (tokens, targets) = language_model(name), text()
    elbo = Trace_ELBO()
    pyro.set_rng_seed(0)
    before = elbo.loss(model, EVEGuide(model), tokens, targets)
    other = language_model(name)
    other.load_state_dict(model.state_dict())
    for twin in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        assert elbo.loss(twin, EVEGuide(twin), tokens, targets) == before


def test_tied_embeddings():
    tied = TransformerLM(SMALL)
    untied = TransformerLM(dataclasses.replace(SMALL, tie_embeddings=False))
    count = [sum(p.numel() for p in network.parameters()) for network in (tied, untied)]
    assert count[1] - count[0] == VOCAB * 8
    assert set(untied.state_dict()) - set(tied.state_dict()) == {"head.weight"}
    h = torch.randn(3, 8)
    torch.testing.assert_close(tied.readout(h), h @ tied.embedding.weight.mT)
    tokens, _ = text(1, 5)
    tokens.fill_(1)
    tied(tokens)[..., 2].sum().backward()
    reached = tied.embedding.weight.grad.abs().sum(-1) > 0
    assert reached.tolist() == [i in (1, 2) for i in range(VOCAB)]
    _, others = weight_decay_groups(tied, 0.1)
    assert any(p is tied.embedding.weight for p in others["params"])
    twin = copy.deepcopy(tied)
    assert twin.readout(h).equal(tied.readout(h))


@pytest.mark.parametrize("name", ["dense", "glu", "eve", "eve-rank-dropout"])
def test_initialisation(name):
    config = dataclasses.replace(CONFIGS[name], d_model=64, d_ff=256, num_layers=4)
    network = TransformerLM(config)
    assert network.embedding.weight.std().item() == pytest.approx(0.02, rel=0.15)
    for block in network.blocks:
        for layer in (block.attention.out, block.feed_forward.out):
            assert layer.weight.std().item() == pytest.approx(0.02 / math.sqrt(8), rel=0.1)
            assert not layer.bias.any()
        assert block.attention.qkv.weight.std().item() == pytest.approx(0.02, rel=0.1)
        if "eve" in name:
            units = block.feed_forward.units
            assert units.encoder.loc.weight.std().item() == pytest.approx(0.02, rel=0.1)
            sigma = units.posterior(torch.randn(20, 64)).stddev
            assert 0.2 < sigma.min() < 0.3 < sigma.max() < 0.45


def test_blocks_of_your_own():
    def last_layer_alone(layer):
        return EVEFeedForward(8, 12, form="glu") if layer == 1 else FeedForward(8, 12)

    model = LanguageModel(TransformerLM(SMALL, feed_forward=last_layer_alone))
    EVEGuide(model)
    assert [path for path, _ in eve_modules(model)] == ["network.blocks.1.feed_forward.units"]
    assert Trace_ELBO().loss(model, EVEGuide(model), *text()) > 0


def test_under_autocast():
    model = language_model("eve")
    tokens, targets = text()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = MCNLL_ELBO(2)(model, EVEGuide(model))(tokens, targets)
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(p.grad.isfinite().all() for p in model.parameters())


class _Unigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = EVEModule(1, VOCAB)

    def forward(self, tokens):
        return self.layer(tokens.unsqueeze(-1).float())


def test_any_network_of_tokens():
    model = LanguageModel(_Unigram())
    loss = MCNLL_ELBO(3)(model, EVEGuide(model))(*text())
    loss.backward()
    model.reset_parameters()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: TransformerConfig(0), ValueError, "vocab_size must be an integer >= 1, got 0"),
        (lambda: TransformerConfig(9, d_model=10), ValueError, "d_model must be num_heads times"),
        (lambda: TransformerConfig(9, dropout=2), ValueError, "dropout must be a finite number"),
        (lambda: TransformerConfig(9, feed_forward="x"), ValueError, "feed_forward must be one of"),
        (lambda: TransformerConfig(9, eve_form="x"), ValueError, "eve_form must be one of 'gelu'"),
        (lambda: TransformerConfig(9, beta=-1), ValueError, "beta must be a finite number in"),
        (lambda: TransformerConfig(9, sigma_rank=0), ValueError, "sigma_rank must be an integer"),
        (lambda: TransformerConfig(9, init_std=0.0), ValueError, "init_std must be a finite"),
        (lambda: TransformerLM(9), TypeError, "config must be a TransformerConfig, got 9"),
        (lambda: LanguageModel(len), TypeError, "network must be a module from tokens to logits"),
        (
            lambda: TransformerLM(SMALL)(torch.zeros(3, 11, dtype=torch.long)),
            ValueError,
            "tokens must have at most the 10 positions of the context .* got 11",
        ),
        (lambda: TransformerLM(SMALL)(torch.zeros(3, 5)), TypeError, "tokens must be integers"),
        (
            lambda: TransformerLM(SMALL)(torch.zeros(3, 0, dtype=torch.long)),
            ValueError,
            r"tokens must have shape \(\*, positions\), got \(3, 0\)",
        ),
    ],
)
def test_errors(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(5).long(),), r"tokens must have shape \(batch, positions\), got \(5,\)"),
        ((text()[0], torch.zeros(3).long()), r"targets must have the shape \(3, 5\) of tokens"),
        ((*text(), torch.ones(5).bool()), r"mask must have the shape \(3, 5\) of tokens"),
        ((*text(), torch.ones(3, 5)), "mask must be of booleans, got torch.float32"),
        ((*text(), None, 2), "num_data must be at least the 3 rows of tokens, got 2"),
    ],
)
def test_errors_of_the_pyro_model(arguments, message):
    with pytest.raises(ValueError, match=message):
        language_model("eve")(*arguments)
