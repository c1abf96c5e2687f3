"""The guide with Pyro's own machinery around it."""

import copy

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal
from pyro.nn import PyroModule, PyroSample
from small_models import Regression, data
from torch import nn

from eve_pyro import EVEGuide, EVEModule
from eve_pyro.infer import (
    MCNLL_ELBO,
    PosteriorDraw,
    PosteriorMean,
    StaleParameterError,
    local_parameters,
)


class Mixed(PyroModule):
    """EVE layers next to a global latent slope and a positive latent scale."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(EVEModule(3, 4), nn.Linear(4, 1))
        self.slope = PyroSample(dist.Normal(0.0, 1.0))

    def forward(self, x, y=None):
        slope = self.slope
        scale = pyro.sample("scale", dist.LogNormal(-1.0, 0.3))
        with pyro.plate("data", len(x), dim=-1):
            loc = self.net(x).squeeze(-1) + slope * x[..., 0]
            return pyro.sample("y", dist.Normal(loc, scale), obs=y)


def test_one_run_gives_both_traces():
    calls = []

    class Counting(Regression):
        def forward(self, x, y=None):
            calls.append(1)
            return super().forward(x, y)

    model = Counting()
    Trace_ELBO().loss(model, EVEGuide(model), *data())
    assert len(calls) == 1


def test_traces_hold_posteriors_and_priors():
    model = Regression()
    guide = EVEGuide(model)
    x, y = data()
    guide(x, y)
    model_trace, guide_trace = guide.get_traces()
    assert list(guide_trace.nodes) == ["net.0", "net.1"]
    q, p = guide_trace.nodes["net.0"]["fn"], model_trace.nodes["net.0"]["fn"]
    assert torch.equal(q.mean, model.net[0].posterior(x).mean)
    assert (p.mean == 0).all()
    assert (p.variance == 1).all()
    assert model_trace.nodes["y"]["is_observed"]


def test_an_unobserved_target_is_left_to_the_model():
    model = Regression()
    guide = EVEGuide(model)
    draws = guide(data()[0])
    assert set(draws) == {"net.0", "net.1", "y"}
    assert list(guide.parameters()) == []
    elbo = TraceMeanField_ELBO()
    assert torch.isfinite(torch.tensor(elbo.loss(model, guide, data()[0])))


@pytest.mark.parametrize("parallel", [False, True])
def test_predictive(parallel):
    model = Regression()
    draws = Predictive(model, guide=EVEGuide(model), num_samples=7, parallel=parallel)(data()[0])
    assert draws["y"].shape == (7, 6)
    assert draws["net.0"].shape == (7, 6, 4, 2)
    assert (draws["net.0"].std(0) > 0).all()


def test_vectorized_particles_agree_with_a_loop_in_expectation():
    model = Regression(beta=1.0)
    guide = EVEGuide(model)
    x, y = data()
    with torch.no_grad():
        one, many = (
            torch.tensor([elbo.loss(model, guide, x, y) for _ in range(300)])
            for elbo in (
                TraceMeanField_ELBO(num_particles=4),
                TraceMeanField_ELBO(num_particles=4, vectorize_particles=True),
            )
        )
    error = ((one.var() + many.var()) / 300).sqrt()
    assert abs(one.mean() - many.mean()) < 5 * error
    assert 0.75 < one.std() / many.std() < 1.35  # particles are independent in both


def test_posterior_mean_is_one_deterministic_pass():
    model = Regression()
    x, _ = data()
    with PosteriorMean():
        first, second = model.net(x), model.net(x)
    assert torch.equal(first, second)
    with PosteriorDraw():
        assert not torch.equal(model.net(x), model.net(x))


def test_handlers_around_the_guide():
    model = Regression()
    guide = EVEGuide(model)
    x, y = data()
    z = torch.zeros(6, 4, 2)
    fixed = poutine.condition(guide, data={"net.0": z})
    assert torch.equal(fixed(x, y)["net.0"], z)
    pyro.set_rng_seed(1)
    full = TraceMeanField_ELBO().loss(model, guide, x, y)
    pyro.set_rng_seed(1)
    half = TraceMeanField_ELBO().loss(model, poutine.scale(guide, scale=0.5), x, y)
    assert half == pytest.approx(full / 2, rel=1e-5)
    blocked = poutine.block(model, hide_fn=lambda site: site["name"] == "net.0")
    trace = poutine.trace(blocked).get_trace(x, y)
    assert "net.0" not in trace.nodes


@pytest.mark.parametrize(
    ("auto", "vectorize"),
    [
        (AutoNormal, False),
        (AutoNormal, True),
        (AutoDelta, False),
        (AutoDelta, True),
        (AutoMultivariateNormal, False),  # Pyro's joint guides do not vectorize over particles
    ],
)
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO, MCNLL_ELBO])
def test_a_guide_for_the_other_latents(auto, elbo, vectorize):
    model = Mixed()
    guide = EVEGuide(model, guide=auto)
    x, y = data(40)
    svi = SVI(
        model,
        guide,
        pyro.optim.Adam({"lr": 0.02}),
        elbo(num_particles=2, vectorize_particles=vectorize),
    )
    losses = [svi.step(x, y) for _ in range(50)]
    assert sum(losses[-10:]) < sum(losses[:10])
    names = set(pyro.get_param_store())
    assert any(auto.__name__ in name for name in names)
    assert not any("net" in name for name in names if auto.__name__ in name)
    guide(x, y)
    _, guide_trace = guide.get_traces()
    assert {"slope", "scale", "net.0"} <= set(guide_trace.nodes)


def test_the_elbo_of_a_mixed_model_equals_a_hand_computed_one():
    model = Mixed()
    guide = EVEGuide(model, guide=AutoNormal)
    x, y = data()
    loss = Trace_ELBO()
    guide(x, y)
    pyro.set_rng_seed(0)
    value = loss.loss(model, guide, x, y)
    pyro.set_rng_seed(0)
    guide(x, y)
    model_trace, guide_trace = guide.get_traces()
    # AutoNormal: q(scale) is the LogNormal of its unconstrained Normal.
    other = guide.guide
    q_slope = dist.Normal(other.locs.slope, other.scales.slope)
    q_scale = dist.LogNormal(other.locs.scale, other.scales.scale)
    nodes = model_trace.nodes
    slope, scale, z = (nodes[n]["value"] for n in ("slope", "scale", "net.0"))
    beta = 1e-3
    log_q_z = guide_trace.nodes["net.0"]["fn"].log_prob(z).sum()
    log_p_z = dist.Normal(0.0, 1.0).log_prob(z).sum()
    elbo = (
        nodes["y"]["fn"].log_prob(y).sum()
        + dist.Normal(0.0, 1.0).log_prob(slope)
        + dist.LogNormal(-1.0, 0.3).log_prob(scale)
        - q_slope.log_prob(slope)
        - q_scale.log_prob(scale)
        + beta * (log_p_z - log_q_z)
    )
    assert value == pytest.approx(-elbo.item(), rel=1e-5)


def test_a_guide_written_as_a_function():
    model = Mixed()

    def other(x, y=None):
        loc = pyro.param("loc", torch.zeros(()))
        pyro.sample("slope", dist.Normal(loc, 0.1))
        pyro.sample("scale", dist.LogNormal(pyro.param("s", torch.tensor(-1.0)), 0.1))

    guide = EVEGuide(model, guide=other)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), TraceMeanField_ELBO())
    for _ in range(5):
        svi.step(*data())
    assert pyro.param("loc") != 0
    with local_parameters():  # parameters of functions stay visible
        assert abs(guide(*data())["slope"] - pyro.param("loc")).item() < 0.6


def test_a_subsampled_plate_is_shared_with_the_other_guide():
    x, y = data(20)

    class Model(PyroModule):
        def __init__(self):
            super().__init__()
            self.layer = EVEModule(3, 1, emission="identity")

        def forward(self):
            slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
            with pyro.plate("data", 20, subsample_size=4) as rows:
                loc = self.layer(x[rows]).squeeze(-1) + slope
                pyro.sample("y", dist.Normal(loc, 1.0), obs=y[rows])

    model = Model()

    def other():
        pyro.sample("slope", dist.Normal(0.0, 0.1))
        with pyro.plate("data", 20, subsample_size=4) as rows:
            other.rows = rows

    guide = EVEGuide(model, guide=other)
    guide()
    assert torch.equal(guide.trace.nodes["y"]["value"], y[other.rows])
    assert guide.trace.nodes["y"]["scale"] == 5


def test_svi_refuses_a_second_model_until_the_store_is_cleared():
    x, y = data()

    def step(model):
        svi = SVI(model, EVEGuide(model), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
        return svi.step(x, y)

    step(Regression())
    second = Regression()
    with pytest.raises(StaleParameterError, match=r"pyro.clear_param_store\(\)"):
        step(second)
    pyro.clear_param_store()
    before = second.net[0].encoder.loc.weight.detach().clone()
    step(second)
    assert not torch.equal(second.net[0].encoder.loc.weight, before)


def test_svi_refuses_layers_that_pyro_never_registers():
    class Hidden(Regression):
        def __init__(self):
            super().__init__()
            self.net = PyroModule[nn.Sequential](*self.net)  # reads its children past Pyro

    model = Hidden()
    with pytest.raises(StaleParameterError, match=r"'encoder.loc.weight' of the EVE layer 'net.0'"):
        SVI(model, EVEGuide(model), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO()).step(*data())


def test_models_of_one_class_train_side_by_side_as_elbo_modules():
    x, y = data()
    models = [Regression(), Regression()]
    for model in models:
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        elbo = TraceMeanField_ELBO()(model, EVEGuide(model))
        optimizer = torch.optim.Adam(elbo.parameters(), 0.01)
        for _ in range(3):
            optimizer.zero_grad()
            elbo(x, y).backward()
            optimizer.step()
        assert all((p != before[n]).any() for n, p in model.named_parameters())
    assert not torch.equal(models[0].net[0].encoder.loc.weight, models[1].net[0].encoder.loc.weight)


def test_copies_of_an_elbo_module_train_apart():
    model = Regression()
    elbo = TraceMeanField_ELBO()(model, EVEGuide(model))
    elbo(*data())
    twin = copy.deepcopy(elbo)
    twin(*data()).backward()
    assert all(p.grad is None for p in elbo.parameters())
    assert all(p.grad is not None for p in twin.parameters())


def test_elbo_module_holds_the_other_guides_parameters():
    model = Mixed()
    elbo = Trace_ELBO()(model, EVEGuide(model, guide=AutoNormal))
    elbo(*data())
    assert any("guide.guide.locs" in name for name, _ in elbo.named_parameters())


def test_bad_arguments():
    with pytest.raises(TypeError, match="model must be callable, got 3"):
        EVEGuide(3)
    with pytest.raises(TypeError, match="guide must be callable or an AutoGuide class"):
        EVEGuide(Regression(), guide=3)
