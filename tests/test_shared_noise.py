"""Noise that the positions of a text share: its law, its price, its way through inference."""

import dataclasses

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch import nn
from torch.distributions import kl_divergence

from eve_pyro import EVEGuide, EVEModule
from eve_pyro.infer import MCNLL_ELBO, CompiledELBO, PosteriorDraw, PosteriorMean, generate
from eve_pyro.infer.mixtures import CategoricalMixture
from eve_pyro.nn import (
    AntitheticDraws,
    EVEFeedForward,
    FreeBits,
    LanguageModel,
    LatentNormal,
    NoiseEncoder,
    TransformerConfig,
    TransformerLM,
    eve_modules,
)

VOCAB, D, UNITS = 11, 8, 12
OWN = TransformerConfig(
    VOCAB,
    d_model=D,
    num_layers=2,
    num_heads=2,
    d_ff=UNITS,
    context=12,
    feed_forward="eve",
    sigma_init=0.7,
    beta=0.1,
    init_std=0.5,
)
SHARED = dataclasses.replace(OWN, shared_noise=True)
# Bounds of statistical tests lie at 5 standard errors: one false alarm in 1.7 million.
SIGMAS = 5


def twins(**changes):
    """The same network with noise of every position's own and with shared noise."""
    networks = []
    for config in (OWN, SHARED):
        torch.manual_seed(0)
        networks.append(TransformerLM(dataclasses.replace(config, **changes), dtype=torch.float64))
    return networks


def text(batch=3, length=6):
    tokens = torch.randint(VOCAB, (batch, length + 1))
    return tokens[:, :-1], tokens[:, 1:]


def noise_of(node):
    """The standardised noise of a traced site."""
    q = node["fn"].base_dist
    return (node["value"] - q.loc) / q.scale


# The law


@pytest.mark.parametrize("form", ["gate", "glu", "swiglu", "residual", "gelu"])
def test_equal_posteriors_draw_equal_values(form):
    block = EVEFeedForward(D, UNITS, form=form, shared_noise=True)
    h = torch.randn(3, 1, D).expand(3, 5, D)
    with PosteriorDraw():
        a, other = block(h), block(h)
    torch.testing.assert_close(a, a[:, :1].expand_as(a))
    assert not torch.allclose(a, other)
    with PosteriorDraw():
        alone = EVEFeedForward(D, UNITS, form=form)(h)
    assert not torch.allclose(alone, alone[:, :1].expand_as(alone))


def test_marginals_are_those_of_independent_noise():
    layer = EVEModule(D, UNITS, 2, shared_noise_dim=-2, dtype=torch.float64)
    q = layer.posterior(torch.randn(3, 5, D, dtype=torch.float64))
    draws = 20_000
    eps = (q.rsample((draws,)) - q.mean) / q.stddev
    assert (eps.mean(0).abs() * draws**0.5).max() < SIGMAS
    # The variance of a squared standard normal is 2.
    assert ((eps.square().mean(0) - 1).abs() * (draws / 2) ** 0.5).max() < SIGMAS
    torch.testing.assert_close(eps, eps[:, :, :1].expand_as(eps))
    # Texts, units and latent dims are independent all the same.
    flat = eps[:, :, 0].flatten(1)
    correlation = flat.mT @ flat / draws - torch.eye(flat.shape[1])
    correlation.fill_diagonal_(0)
    assert correlation.abs().max() * draws**0.5 < SIGMAS


def test_density_and_kl_of_an_element_are_unchanged():
    q = LatentNormal(torch.randn(3, 5, 4, 2), torch.randn(3, 5, 4, 2).exp())
    p = LatentNormal(torch.zeros(1, 1), torch.ones(1, 1))
    shared = q.with_shared_noise(-3)
    for found in (shared, shared.expand((7, 3, 5, 4, 2))):
        assert found.shared_dim == -3
        z = found.rsample()
        torch.testing.assert_close(z, found.at((z - found.loc) / found.scale))
        expected = dist.Normal(found.loc, found.scale)
        torch.testing.assert_close(found.log_prob(z), expected.log_prob(z))
        torch.testing.assert_close(kl_divergence(found, p), kl_divergence(expected, p))
        assert found.noise().shape == (*found.batch_shape[:-3], 1, 4, 2)
    assert q.shared_dim is None


def test_a_posterior_that_is_the_same_for_all_inputs():
    layer = EVEModule(D, UNITS, encoder=NoiseEncoder(UNITS), shared_noise_dim=-2)
    z = layer.posterior(torch.randn(3, 5, D)).rsample()
    torch.testing.assert_close(z, z[:, :1].expand_as(z))


# In a language model


def test_draws_of_a_guide_below_particles():
    model = LanguageModel(twins()[1])
    guide = EVEGuide(model)
    with pyro.plate("num_particles_vectorized", 4, dim=-3):
        guide(*text())
    seen = []
    for _, layer in eve_modules(model):
        eps = noise_of(guide.trace.nodes[layer.site])
        assert eps.shape == (4, 3, 6, UNITS, 1)
        torch.testing.assert_close(eps, eps[:, :, :1].expand_as(eps))
        seen.append(eps[:, :, 0].flatten(0, 1))
    rows = torch.cat(seen)  # of every layer, particle and text
    assert len(rows.unique(dim=0)) == 2 * 4 * 3


def test_antithetic_pairs():
    model = LanguageModel(twins()[1])
    guide = EVEGuide(model)
    with AntitheticDraws(), pyro.plate("num_particles_vectorized", 4, dim=-3):
        guide(*text())
    for _, layer in eve_modules(model):
        eps = noise_of(guide.trace.nodes[layer.site])
        torch.testing.assert_close(eps[::2], -eps[1::2])
        torch.testing.assert_close(eps, eps[:, :, :1].expand_as(eps))


def test_the_means_and_the_weights_are_those_without():
    own, shared = twins()
    assert own.state_dict().keys() == shared.state_dict().keys()
    tokens, _ = text()
    with PosteriorMean():
        torch.testing.assert_close(own(tokens), shared(tokens))
    # It can be switched in a trained network.
    for _, layer in eve_modules(own):
        layer.shared_noise_dim = -2
    values = []
    for network in (own, shared):
        torch.manual_seed(1)
        with PosteriorDraw():
            values.append(network(tokens))
    torch.testing.assert_close(*values)


def test_the_kl_of_one_block_is_that_without():
    losses, kl = {}, {}
    inputs, targets = text()
    for name, network in zip(("own", "shared"), twins(num_layers=1), strict=True):
        model = LanguageModel(network)
        for beta in (0.0, 0.5):
            network.blocks[0].feed_forward.units.set_beta(beta)
            pyro.set_rng_seed(0)
            losses[name, beta] = TraceMeanField_ELBO().loss(model, EVEGuide(model), inputs, targets)
        kl[name] = losses[name, 0.5] - losses[name, 0.0]
    # The first block's posteriors do not depend on noise.
    assert kl["own"] == pytest.approx(kl["shared"])
    assert losses["own", 0.0] != pytest.approx(losses["shared", 0.0])


def test_objectives_by_draws_have_the_mean_of_the_analytic_one():
    model = LanguageModel(twins()[1])
    inputs, targets = text(2, 4)
    losses = {}
    for name, elbo in (("draws", Trace_ELBO), ("analytic", TraceMeanField_ELBO)):
        pyro.set_rng_seed(0)
        objective, guide = elbo(max_plate_nesting=2), EVEGuide(model)
        with torch.no_grad():
            losses[name] = torch.tensor(
                [objective.loss(model, guide, inputs, targets) for _ in range(500)]
            )
    # The same noise in both: what differs are the draws' log q - log p.
    difference = losses["draws"] - losses["analytic"]
    assert difference.mean().abs() < SIGMAS * difference.std() / 500**0.5
    assert difference.std() > 0


@pytest.mark.parametrize("elbo", [TraceMeanField_ELBO, MCNLL_ELBO])
@pytest.mark.parametrize("particles", [1, 3])
def test_compiled_is_eager(elbo, particles):
    model = LanguageModel(twins(eve_form="glu")[1])
    guide, data = EVEGuide(model), text()

    def build():
        return elbo(particles, vectorize_particles=particles > 1, max_plate_nesting=2)

    results = []
    for objective in (build(), CompiledELBO(build(), backend="eager")):
        model.zero_grad()
        pyro.set_rng_seed(0)
        loss = objective(model, guide)(*data)
        loss.backward()
        results.append((loss.detach(), [p.grad.clone() for p in model.parameters()]))
    torch.testing.assert_close(*results)


def test_a_switch_after_compilation_is_seen():
    model, data = LanguageModel(twins()[0]), text()
    guide = EVEGuide(model)
    objective = CompiledELBO(TraceMeanField_ELBO(max_plate_nesting=2), backend="eager")
    losses = []
    for dim in (None, -2, None):
        for _, layer in eve_modules(model):
            layer.shared_noise_dim = dim
        pyro.set_rng_seed(0)
        losses.append(objective(model, guide)(*data).item())
    assert losses[0] == losses[2] != losses[1]
    pyro.set_rng_seed(0)
    eager = TraceMeanField_ELBO(max_plate_nesting=2).loss(model, guide, *data)
    assert losses[2] == pytest.approx(eager)


@pytest.mark.parametrize("latent_dim", [1, 2])
def test_generation_is_the_full_pass_under_the_same_noise(latent_dim):
    """With greedy choices, layers' noise is all that is drawn, once, in both."""
    network, (tokens, _) = twins(latent_dim=latent_dim)[1], text(3, 4)
    made = generate(network, tokens, 8, temperature=0, num_samples=5, seed=7)
    whole = torch.cat((tokens, made.tokens), -1)[:, :-1]
    torch.manual_seed(7)
    with torch.no_grad(), PosteriorDraw():
        y = CategoricalMixture(network(whole.expand(5, *whole.shape))[:, :, 3:])
    assert torch.equal(made.tokens, y.probs.argmax(-1))
    torch.testing.assert_close(made.entropy, y.entropy())
    torch.testing.assert_close(made.mutual_information, y.epistemic)
    assert (made.mutual_information > 0).all()
    # Another call is another draw.
    pyro.set_rng_seed(0)
    first, second = (generate(network, tokens, 8, temperature=0) for _ in range(2))
    assert not torch.allclose(first.mutual_information, second.mutual_information)


def test_generation_with_noise_shared_along_another_dim():
    """Texts of a batch share noise here, and tokens have their own: nothing to keep."""

    def block(layer):
        units = EVEModule(D, UNITS, emission="identity", shared_noise_dim=-3)
        return nn.Sequential(units, nn.Linear(UNITS, D))

    network = TransformerLM(OWN, feed_forward=block)
    made = generate(network, torch.zeros(3, 4, dtype=torch.long), 5, temperature=0, seed=0)
    torch.testing.assert_close(made.entropy, made.entropy[:1].expand(3, 5))
    assert not torch.allclose(made.entropy[0], made.entropy[0, :1].expand(5))


# Errors


class PlainEncoder(nn.Module):
    """An encoder whose posteriors are no LatentNormal."""

    def forward(self, h):
        return dist.Normal(h.new_zeros(*h.shape[:-1], UNITS, 1), 1.0)


@pytest.mark.parametrize("dim", [-1, 0, 1, -2.0, True, "position"])
def test_a_dim_that_cannot_be_shared(dim):
    with pytest.raises(ValueError, match="shared_noise_dim must be None or an integer <= -2, got"):
        EVEModule(D, UNITS, shared_noise_dim=dim)


def test_other_bad_use():
    block = EVEFeedForward(D, UNITS, shared_noise=True)
    with PosteriorDraw():
        with pytest.raises(ValueError, match=r"at least 2 dims for shared_noise_dim=-2, got shape"):
            block(torch.randn(D))
        other = EVEFeedForward(D, UNITS, shared_noise=True, encoder=PlainEncoder())
        with pytest.raises(TypeError, match="must give a LatentNormal for shared_noise_dim"):
            other(torch.randn(3, 5, D))
    q = LatentNormal(torch.zeros(5, 4, 2), torch.ones(5, 4, 2))
    for dim in (-1, -2, -4, 0):
        with pytest.raises(ValueError, match=r"dim must be one of \[-3\], dims ahead of the units"):
            q.with_shared_noise(dim)
    assert "shared_noise_dim=-2" in repr(block)
    assert "shared" not in repr(EVEFeedForward(D, UNITS))


def test_penalties_see_the_same_posterior():
    inputs, targets = text()
    losses = []
    for network in twins(num_layers=1):
        units = network.blocks[0].feed_forward.units
        units.penalties.append(FreeBits(0.2))
        model = LanguageModel(network)
        guide = EVEGuide(model)
        guide(inputs, targets)
        node = guide.trace.nodes[f"{units.site}.penalty0"]
        losses.append(node["fn"].log_prob(node["value"]))
    torch.testing.assert_close(*losses)
