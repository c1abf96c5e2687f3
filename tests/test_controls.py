"""The controls: what MC-dropout, the deterministic cell and Bayesian weights promise."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.infer.autoguide.initialization import init_to_sample
from pyro.nn import PyroModule
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from eve_pyro import EVEGuide, EVEModule
from eve_pyro.infer import MCNLL_ELBO, PosteriorMean
from eve_pyro.nn import (
    MLP,
    BayesianDense,
    Dense,
    DeterministicCell,
    DropoutUnit,
    GaussianHead,
    MCDropout,
    Network,
    deep_ensemble,
    is_eve_site,
)
from eve_pyro.nn.dropout import DropoutMask

# Bounds of statistical tests lie at 4 standard errors: one false alarm in 16,000 per fresh seed.
SIGMAS = 4


def count(module):
    return sum(p.numel() for p in module.parameters())


# MC-dropout


@pytest.mark.parametrize("p", [0.05, 0.3, 0.8])
def test_dropout_keeps_rate_and_mean(p):
    n = 200_000
    out = MCDropout(p)(torch.ones(n // 10, 10, dtype=torch.float64))
    kept = out != 0
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / (1 - p)))
    dropped = 1 - kept.double().mean().item()
    assert abs(dropped - p) < SIGMAS * math.sqrt(p * (1 - p) / n)
    assert abs(out.mean().item() - 1) < SIGMAS * math.sqrt(p / (1 - p) / n)


def test_mask_moments():
    mask = DropoutMask(torch.tensor(0.8), (3,))
    assert mask.mean.tolist() == [1, 1, 1]
    torch.testing.assert_close(mask.variance, torch.full((3,), 0.25))
    assert mask.has_rsample
    assert mask.expand((2, 3)).sample((4,)).shape == (4, 2, 3)
    with pytest.raises(ValueError, match="within the support"):
        mask.log_prob(torch.tensor([-1.0, 0.0, 0.0]))


@pytest.mark.parametrize("loss", [Trace_ELBO, TraceMeanField_ELBO, MCNLL_ELBO])
@pytest.mark.parametrize("particles", [1, 3])
def test_dropout_adds_exactly_nothing_to_an_elbo(loss, particles):
    model = Network(MLP(3, [4, 4], unit=DropoutUnit, p=0.3), GaussianHead(4))
    guide = EVEGuide(model)
    x, y = torch.randn(5, 3), torch.randn(5)
    elbo = loss(particles, vectorize_particles=True, max_plate_nesting=1)
    pyro.set_rng_seed(1)
    found = elbo.loss(model, guide, x, y)
    model_trace, guide_trace = guide.get_traces()
    for trace in (model_trace, guide_trace):
        trace.compute_log_prob()
        assert trace.nodes["trunk.layer0.dropout"]["log_prob"].abs().max() == 0
    log_prob = model_trace.nodes["y"]["log_prob"]
    if loss is MCNLL_ELBO and particles > 1:
        expected = -(log_prob.logsumexp(0) - math.log(particles)).sum()
    else:
        expected = -log_prob.sum() / particles
    torch.testing.assert_close(torch.tensor(found), expected)
    if loss is Trace_ELBO and particles == 1:
        assert found == expected.item()


def test_dropout_follows_the_seed_and_not_the_mode():
    unit, x = DropoutUnit(3, 50, p=0.5).eval(), torch.randn(5, 3)
    draws = []
    for seed in (1, 1, 2):
        pyro.set_rng_seed(seed)
        draws.append(unit(x))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_dropout_can_be_switched_off():
    unit, x = DropoutUnit(3, 50, p=0.5), torch.randn(5, 3)
    with PosteriorMean():
        assert torch.equal(unit(x), unit.dense(x))
    off = DropoutUnit(3, 50, p=0.0)
    trace = poutine.trace(off).get_trace(x)
    assert not [site for site in trace.nodes.values() if site["type"] == "sample"]
    assert torch.equal(off(x), off.dense(x))


def test_dropout_masks_are_hidden_from_guides_of_other_latents():
    class Model(PyroModule):
        def __init__(self):
            super().__init__()
            self.weights = BayesianDense(3, 4)
            self.dropout = MCDropout(0.5)

        def forward(self, x):
            return self.dropout(self.weights(x))

    model = Model()
    guide = EVEGuide(model, AutoNormal)
    draws = guide(torch.randn(5, 3))
    assert set(draws) == {"weights.weight", "weights.bias", "dropout"}
    parameters = [name for name, _ in guide.guide.named_parameters()]
    assert len(parameters) == 4
    assert not any("dropout" in name for name in parameters)


def test_dropout_in_low_precision():
    out = MCDropout(0.001)(torch.ones(100_000, dtype=torch.bfloat16))
    assert out.dtype == torch.bfloat16
    assert 0 < (out == 0).sum() < 200


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, math.nan, "half"])
def test_bad_dropout_rate(p):
    with pytest.raises(ValueError, match="p must be"):
        MCDropout(p)


# Deterministic layers


def test_dense_is_a_linear_layer_with_an_activation():
    layer, h = Dense(3, 4, activation="tanh"), torch.randn(5, 3)
    torch.testing.assert_close(layer(h), (h @ layer.weight.T + layer.bias).tanh())


@pytest.mark.parametrize("emission", ["relu", "gated", "residual"])
@pytest.mark.parametrize("sigma", ["input", "unit", "layer"])
@pytest.mark.parametrize("latent_dim", [1, 3])
def test_cell_has_the_capacity_of_an_eve_layer(emission, sigma, latent_dim):
    options = {"latent_dim": latent_dim, "emission": emission, "sigma": sigma}
    cell, eve = DeterministicCell(3, 4, **options), EVEModule(3, 4, **options)
    assert count(cell) == count(eve) + 4 * latent_dim


def test_cell_is_an_eve_layer_at_one_draw():
    h = torch.randn(5, 3)
    cell = DeterministicCell(3, 4, 2, emission="gated")
    eve = EVEModule(3, 4, 2, emission="gated", name="eve")
    eve.encoder.load_state_dict(cell.encoder.state_dict())
    eve.emission.load_state_dict(cell.emission.state_dict())
    q = eve.posterior(h)
    z = q.mean + q.stddev * cell.constant.mT
    torch.testing.assert_close(cell(h), poutine.condition(eve, {"eve": z})(h))


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: Dense(0, 4), "in_features must be an integer >= 1"),
        (lambda: Dense(3, 4, activation="step"), "activation must be one of"),
        (lambda: DeterministicCell(3, 4, 0), "latent_dim must be an integer >= 1"),
        (lambda: DeterministicCell(3, 4, sigma="row"), "sigma must be one of"),
        (lambda: BayesianDense(3, 0), "out_features must be an integer >= 1"),
        (lambda: BayesianDense(3, 4, prior_scale=0.0), "prior_scale must be a finite number"),
        (lambda: BayesianDense(3, 4, position_dims=-1), "position_dims must be an integer >= 0"),
        (lambda: deep_ensemble(lambda: Dense(3, 4), 0), "size must be an integer >= 1"),
        (lambda: deep_ensemble(lambda: Dense(3, 4), 2, seed=-1), "seed must be an integer >= 0"),
    ],
)
def test_bad_arguments(build, match):
    with pytest.raises(ValueError, match=match):
        build()


# Bayesian weights


def test_prior_spread_does_not_depend_on_the_width():
    for width in (4, 400):
        layer = BayesianDense(width, 20_000, activation="identity", prior_scale=2.0)
        out = layer(torch.ones(width))
        variance = 2 * 2.0**2  # of weights and bias
        assert abs(out.var().item() / variance - 1) < SIGMAS * math.sqrt(2 / 20_000)


def test_weights_drawn_inside_a_data_plate_are_refused():
    layer, x = BayesianDense(3, 4), torch.randn(5, 3)
    with pyro.plate("data", 5), pytest.raises(ValueError, match="drawn inside a plate"):
        layer(x)
    model = Network(nn.Sequential(layer), GaussianHead(4))  # unknown to PyroModule
    with pytest.raises(ValueError, match="drawn inside a plate"):
        model(x)


class Largest(TorchDispatchMode):
    """Keeps the number of elements of the largest tensor that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.untyped_storage().size():
            self.numel = max(self.numel, out.untyped_storage().size() // out.element_size())
        return out


class Weights(PyroModule):
    """Random weights in a model of one's own, whose positions are no plate."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second = BayesianDense(width, width), BayesianDense(width, width)

    def forward(self, x):
        _ = [(layer.weight, layer.bias) for layer in (self.first, self.second)]
        with pyro.plate("data", len(x)):
            return self.second(self.first(x))


@pytest.mark.parametrize("positions", [(), (7,)])
def test_particles_have_weights_of_their_own_at_no_cost_in_memory(positions):
    rows, particles, width = 50, 6, 30
    model, x = Weights(width), torch.randn(rows, *positions, width)
    with poutine.trace() as trace, pyro.plate("num_particles_vectorized", particles, dim=-2):
        out = model(x)
    assert out.shape == (particles, rows, *positions, width)
    drawn = {k: v["value"][:, 0] for k, v in trace.trace.nodes.items() if "." in k}
    for s in range(particles):
        alone = poutine.condition(model, {k: v[s] for k, v in drawn.items()})(x)
        torch.testing.assert_close(out[s], alone)
    with Largest() as largest, pyro.plate("num_particles_vectorized", particles, dim=-2):
        model(x)
    assert largest.numel == max(out.numel(), particles * width * width)


@pytest.mark.parametrize("guided", [True, False])
def test_bayesian_network_learns(guided):
    x = torch.linspace(-2, 2, 40)[:, None]
    y = (2 * x.squeeze(-1)).sin()
    model = Network(MLP(1, [16], unit=BayesianDense, activation="tanh"), GaussianHead(16))
    weights = AutoNormal(
        poutine.block(model, hide_fn=is_eve_site), init_loc_fn=init_to_sample, init_scale=0.01
    )
    guide = EVEGuide(model, weights) if guided else weights
    elbo = Trace_ELBO(4, vectorize_particles=True)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), elbo)
    losses = [svi.step(x, y) for _ in range(300)]
    assert sum(losses[-20:]) / 20 < losses[0] - 20
    with poutine.trace() as trace:
        poutine.condition(model, weights.median())(x)
    assert (trace.trace.nodes["y"]["fn"].mean - y).square().mean() < 0.1 * y.var()


def test_vectorized_particles_estimate_what_a_loop_estimates():
    model = Network(MLP(3, [4], unit=BayesianDense), GaussianHead(4, scale_init=2.0))
    weights = AutoNormal(model, init_scale=0.5)
    guide, n = EVEGuide(model, weights), 2000
    x, y = torch.randn(5, 3), torch.randn(5)
    weights(x, y)
    losses = [Trace_ELBO(max_plate_nesting=1).loss(model, guide, x, y) for _ in range(n // 4)]
    elbo = Trace_ELBO(n, vectorize_particles=True, max_plate_nesting=1)
    std, mean = torch.std_mean(torch.tensor(losses))
    error = std * math.sqrt(1 / n + 4 / n)
    assert abs(elbo.loss(model, guide, x, y) - mean) < SIGMAS * error


# Ensembles


def test_ensemble_members_depend_on_seed_and_number_alone():
    state = torch.get_rng_state()
    small, large = (deep_ensemble(lambda: Dense(3, 4), size, seed=7) for size in (2, 4))
    assert torch.equal(torch.get_rng_state(), state)
    weights = [member.weight for member in large]
    assert [torch.equal(a.weight, b) for a, b in zip(small, weights, strict=False)] == [True, True]
    other = deep_ensemble(lambda: Dense(3, 4), 4, seed=8)
    everyone = torch.stack(weights + [member.weight for member in other])
    assert len(everyone.flatten(1).unique(dim=0)) == 8


def test_ensemble_of_networks_trains_member_by_member():
    x, y = torch.randn(16, 3), torch.randn(16)
    members = deep_ensemble(lambda: Network(MLP(3, [4], unit=Dense), GaussianHead(4)), 2)
    for member in members:
        loss = Trace_ELBO()(member, EVEGuide(member))
        optimizer = torch.optim.SGD(member.parameters(), lr=1e-3)
        before = loss(x, y)
        before.backward()
        optimizer.step()
        assert loss(x, y) < before
        pyro.clear_param_store()
    assert isinstance(members[0](x), torch.Tensor)
    assert isinstance(members[0].head(members[0].trunk(x)), dist.Normal)
