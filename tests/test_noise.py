"""The latent's distribution: its density, its KL, and its noise in antithetic pairs."""

import copy
import math
from contextlib import nullcontext

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive, Trace_ELBO, TraceMeanField_ELBO
from small_models import Regression, Sequence, data
from torch import nn
from torch.distributions import kl_divergence

from eve_pyro import EVEGuide, EVEModule
from eve_pyro.infer import MCNLL_ELBO, CompiledELBO, StreamingPredictive
from eve_pyro.nn import LatentNormal, is_eve_site
from eve_pyro.nn.latent import AntitheticDraws

# Bounds of statistical tests lie at 5 standard errors: one false alarm in 1.7 million.
SIGMAS = 5


def plain(q):
    return dist.Normal(q.loc, q.scale)


def leaf(*shape, log=False):
    x = torch.randn(*shape, dtype=torch.float64)
    return (x.exp() if log else x).requires_grad_()


# Density and KL


@pytest.mark.parametrize("prior_shape", [(1, 1), (4, 2), (5, 4, 2), (3, 1, 4, 1)])
@pytest.mark.parametrize("scale_shape", [(5, 4, 2), (4, 2), (1,)])
@pytest.mark.parametrize("given", [True, False])
def test_kl_and_density_are_those_of_any_normal(prior_shape, scale_shape, given):
    loc, log_scale = leaf(5, 4, 2), leaf(*scale_shape)
    prior = leaf(*prior_shape), leaf(*prior_shape, log=True)
    shape = (3, 5, 4, 2)
    z = torch.randn(shape, dtype=torch.float64)

    def terms(expand, view):
        q = LatentNormal(loc, log_scale.exp(), log_scale=log_scale if given else None)
        p = LatentNormal(*prior)
        q, p = (view(d.expand(shape) if expand else d) for d in (q, p))
        return [kl_divergence(q, p), q.log_prob(z), p.log_prob(z)]

    for expand in (False, True):
        pairs = zip(terms(expand, lambda d: d), terms(expand, plain), strict=True)
        for found, expected in pairs:
            assert found.shape == expected.shape
            torch.testing.assert_close(found, expected)
            weights = torch.randn(found.shape, dtype=found.dtype)
            gradients = [
                torch.autograd.grad(
                    (term * weights).sum(),
                    (loc, log_scale, *prior),
                    retain_graph=True,
                    materialize_grads=True,
                )
                for term in (found, expected)
            ]
            torch.testing.assert_close(*gradients)


def test_kl_of_a_normal_with_itself_is_zero_also_in_single_precision():
    q = LatentNormal(torch.randn(100, 4, 2), torch.randn(100, 4, 2).exp())
    assert kl_divergence(q, q).abs().max() < 1e-6
    assert kl_divergence(q, plain(q)).abs().max() < 1e-6  # mixed classes


def test_second_derivatives():
    q, p = [LatentNormal(leaf(2, 3, 1), leaf(2, 3, 1, log=True)) for _ in range(2)]
    parameters = (q.loc, q.scale, p.loc, p.scale)

    def kl(*args):
        return kl_divergence(LatentNormal(*args[:2]), LatentNormal(*args[2:]))

    assert torch.autograd.gradcheck(kl, parameters)
    assert torch.autograd.gradgradcheck(kl, parameters)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="scale"):
        LatentNormal(torch.zeros(3, 1), torch.full((3, 1), -1.0))
    with pytest.raises(ValueError, match="within the support"):
        LatentNormal(torch.zeros(3, 1), 1.0).log_prob(torch.full((3, 1), math.nan))
    q = copy.deepcopy(LatentNormal(torch.zeros(3, 1), 1.0))
    assert q.expand((5, 3, 1)).log_prob(torch.zeros(5, 3, 1)).shape == (5, 3, 1)


# Antithetic pairs


def latents(guide):
    return {k: n for k, n in guide.trace.nodes.items() if is_eve_site(n)}


def noise(guide):
    """The standardised latents of a run, by site."""
    return {
        k: (n["value"] - n["fn"].mean) / n["fn"].variance.sqrt() for k, n in latents(guide).items()
    }


def particles(count, depth, name="num_particles_vectorized"):
    return pyro.plate(name, count, dim=-depth - 1)


@pytest.mark.parametrize("count", [1, 2, 5, 6])
@pytest.mark.parametrize("plates", [0, 1, 2])
@pytest.mark.parametrize("name", ["num_particles_vectorized", "_num_predictive_samples"])
def test_pairs_in_every_layer_and_a_last_one_alone(count, plates, name):
    model, x = Sequence(plates), torch.randn(6, 7, 3)
    guide = EVEGuide(model)
    guide(x)
    shapes = []
    for handler in (nullcontext(), AntitheticDraws()):
        with handler, particles(count, plates, name):
            guide(x)
        shapes.append([(n["fn"].batch_shape, n["value"].shape) for n in latents(guide).values()])
    assert shapes[0] == shapes[1]
    eps = noise(guide)
    assert len(eps) == 2
    for e in eps.values():
        even, odd = e[0::2], e[1::2]
        torch.testing.assert_close(odd, -even[: len(odd)], rtol=1e-3, atol=1e-4)
        assert len(even.flatten(1).unique(dim=0)) == len(even)
        assert even.std() > 0.5
    first, second = eps.values()
    assert not torch.allclose(first[..., :4, :], second[..., :4, :])


def test_nothing_is_paired_elsewhere():
    model, x = Sequence(1), torch.randn(6, 7, 3)
    guide = EVEGuide(model)
    with AntitheticDraws():
        guide(x)  # no plate of particles
    for e in noise(guide).values():
        assert len(e.abs().flatten(1).unique(dim=0)) == 6
    layer = EVEModule(3, 4)
    with AntitheticDraws(), particles(6, 1), pyro.plate("data", 6, dim=-1):
        z = layer.posterior(torch.zeros(6, 3)).rsample()  # the rows of data are no particles
    assert len((z - layer.posterior(torch.zeros(1, 3)).mean).abs().flatten(1).unique(dim=0)) == 6


def test_it_is_off_by_default_and_leaves_the_generator_where_two_runs_agree():
    model, (x, y) = Regression(), data()
    elbo = Trace_ELBO(4, vectorize_particles=True, max_plate_nesting=1)
    losses = []
    for handler in (nullcontext(), nullcontext(), AntitheticDraws(), AntitheticDraws()):
        pyro.set_rng_seed(3)
        with handler:
            losses.append(elbo.loss(model, EVEGuide(model), x, y))
    assert losses[0] == losses[1] != losses[2] == losses[3]


def test_the_order_of_handlers_does_not_matter():
    model, x = Regression(), data()[0]
    guide = EVEGuide(model)
    inner = EVEGuide(AntitheticDraws()(model))
    draws = []
    for run in range(3):
        pyro.set_rng_seed(0)
        if run == 0:
            with AntitheticDraws(), particles(4, 1):
                draws.append(guide(x))
        elif run == 1:
            with particles(4, 1), AntitheticDraws():
                draws.append(guide(x))
        else:
            with particles(4, 1):
                draws.append(inner(x))
    for other in draws[1:]:
        assert all(torch.equal(draws[0][k], other[k]) for k in draws[0])


def test_a_linear_network_has_no_variance_left():
    net = nn.Sequential(*(EVEModule(3, 3, 2, emission="identity", sigma="unit") for _ in range(3)))
    x, guide = torch.randn(5, 3), EVEGuide(net)
    guide(x)
    mean = x
    for layer in net:
        mean = layer.posterior(mean).mean.mean(-1)
    with AntitheticDraws(), particles(2, 0):
        draws = guide(x)
    torch.testing.assert_close(draws["2"].mean(-1).mean(0), mean)


@pytest.mark.parametrize(
    ("function", "exact", "gain"),
    [
        (torch.relu, 1 / math.sqrt(2 * math.pi), 1.4),
        (torch.exp, math.exp(0.5), 1.4),
        (torch.square, 1.0, 0.55),  # even: twice the variance
    ],
)
def test_unbiased_and_its_variance(function, exact, gain):
    pairs, rows = 2, 100_000
    layer = EVEModule(1, 1, sigma_init=1.0, name="z")
    for p in layer.encoder.parameters():
        nn.init.zeros_(p)
    guide, x = EVEGuide(layer), torch.zeros(rows, 1)
    estimates = []
    for handler in (nullcontext(), AntitheticDraws()):
        with handler, particles(2 * pairs, 1), pyro.plate("data", rows, dim=-1):
            estimates.append(function(guide(x)["z"]).mean(0).flatten())
    free, paired = estimates
    assert abs(paired.mean() - exact) < SIGMAS * paired.std() / math.sqrt(rows)
    ratio = free.var() / paired.var()
    assert ratio > gain if gain > 1 else 0.45 < ratio < gain


@pytest.mark.parametrize("loss", [Trace_ELBO, TraceMeanField_ELBO, MCNLL_ELBO])
def test_objectives_stay_unbiased_and_gradients_grow_steadier(loss):
    model, (x, y) = Regression(units=(4,), emission="gated"), data()
    elbo = loss(2, vectorize_particles=True, max_plate_nesting=1)
    guide, losses, gradients = EVEGuide(model), [], []
    bias = model.net[0].encoder.loc.bias
    for handler in (nullcontext(), AntitheticDraws()):
        runs = []
        for _ in range(150):
            with handler:
                value = elbo.differentiable_loss(model, guide, x, y)
            runs.append((value.detach(), torch.autograd.grad(value, bias)[0]))
        losses.append(torch.stack([v for v, _ in runs]))
        gradients.append(torch.stack([g for _, g in runs]))
    error = math.sqrt(sum(v.var() / len(v) for v in losses))
    if loss is not MCNLL_ELBO:  # its bias depends on how draws go together
        assert abs(losses[0].mean() - losses[1].mean()) < SIGMAS * error
    assert gradients[1].var(0).sum() < 0.7 * gradients[0].var(0).sum()


def test_predictors():
    model, x = Regression(units=(4,), emission="gated"), data(rows=20)[0]
    exact = StreamingPredictive(model, num_samples=20_000, chunk_size=10**6)(x, seed=0).mean
    errors = []
    for handler in (nullcontext(), AntitheticDraws()):
        with handler:
            one, two = (StreamingPredictive(model, num_samples=8)(x, seed=1) for _ in range(2))
            pyro.set_rng_seed(1)
            stock = Predictive(model, guide=EVEGuide(model), num_samples=8, parallel=True)(x)
        assert torch.equal(one.loc, two.loc)
        assert stock["y"].shape == (8, 20)
        assert len(one.loc.unique(dim=0)) == 8
        errors.append((one.mean - exact).abs().max().item())
    # Linear in the latents: eight draws are as good as all.
    assert errors[1] < 0.1 * errors[0]


def test_chunks_without_partners():
    model, x = Regression(), data()[0]
    with AntitheticDraws():
        y = StreamingPredictive(model, num_samples=7, chunk_size=3 * len(x))(x, seed=0)
    assert len(y.loc.unique(dim=0)) == 7


def test_it_is_compiled_along_inside_the_model_and_eager_around_it():
    class Paired(Regression):
        def forward(self, x, y=None):
            with AntitheticDraws():
                return super().forward(x, y)

    x, y = data()
    elbo = TraceMeanField_ELBO(4, vectorize_particles=True, max_plate_nesting=1)
    for model, handler in ((Paired(), nullcontext), (Regression(), AntitheticDraws)):
        guide, losses = EVEGuide(model), []
        compiled = CompiledELBO(elbo, backend="eager")(model, guide)
        for loss in (elbo(model, guide), compiled):
            for seed in (0, 1):
                pyro.set_rng_seed(seed)
                with handler():
                    losses.append(loss(x, y).item())
        assert losses[:2] == pytest.approx(losses[2:], rel=1e-5)
        assert compiled.traces == (model.__class__ is Paired)
