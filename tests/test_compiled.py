"""Compiled inference against the eager objectives."""

import copy
import logging
import random

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal
from pyro.nn import PyroModule
from small_models import Regression, data
from torch import nn

from eve_pyro import EVEGuide, EVEModule
from eve_pyro.infer import (
    MCNLL_ELBO,
    BetaSchedule,
    CompiledELBO,
    CompiledSVI,
    LinearGaussianELBO,
    MomentMatchedELBO,
    StaleParameterError,
    TraceError,
    Trainer,
    TrainingConfig,
    linear_warmup,
)
from eve_pyro.nn import set_beta

OBJECTIVES = [Trace_ELBO, TraceMeanField_ELBO, MCNLL_ELBO, MomentMatchedELBO]


class Net(PyroModule):
    """Two EVE layers on rows or sequences, with no plate, one, or one that subsamples."""

    def __init__(self, plate="plate", **kw):
        super().__init__()
        layers = (EVEModule(3, 4, 2, beta=0.3, **kw), EVEModule(4, 5, beta=0.3, **kw))
        self.net = nn.Sequential(*layers, nn.Linear(5, 1))
        self.to(layers[0].beta.dtype)
        self.plate = plate

    def forward(self, x, y):
        if self.plate == "none":
            return self.likelihood(x, y, y.dim())
        size = 4 if self.plate == "subsample" else None
        with pyro.plate("data", len(x), subsample_size=size) as rows:
            return self.likelihood(x[rows], y[rows], y.dim() - 1)

    def likelihood(self, x, y, event_dim):
        loc = self.net(x).squeeze(-1)
        return pyro.sample("y", dist.Normal(loc, 0.5).to_event(event_dim), obs=y)


class VAE(PyroModule):
    """A plain Pyro model and guide: no layer of ours."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 4), nn.Linear(2, 6)

    def model(self, x):
        pyro.module("decoder", self.decoder)
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(torch.zeros(len(x), 2), 1.0).to_event(1))
            pyro.sample("x", dist.Bernoulli(logits=self.decoder(z)).to_event(1), obs=x)

    def guide(self, x):
        pyro.module("encoder", self.encoder)
        with pyro.plate("data", len(x)):
            loc, log_scale = self.encoder(x).chunk(2, -1)
            pyro.sample("z", dist.Normal(loc, log_scale.exp()).to_event(1))


class BayesianRegression(PyroModule):
    def forward(self, x, y):
        weight = pyro.sample("weight", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        scale = pyro.sample("scale", dist.Gamma(2.0, 2.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ weight, scale), obs=y)


def loss_and_gradients(module, *args, seed=0):
    module.zero_grad()
    pyro.set_rng_seed(seed)
    loss = module(*args)
    loss.backward()
    return [loss.detach(), *(p.grad for p in module.parameters())]


def assert_same(eager, compiled, *args, rtol=1e-5, calls=1):
    """Loss and gradients of further calls agree, seed by seed."""
    for seed in range(calls + 1):  # the first call is eager anyway
        expected = loss_and_gradients(eager, *args, seed=seed)
        found = loss_and_gradients(compiled, *args, seed=seed)
        size = float(expected[0].abs()) + 1
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=rtol, atol=rtol * size)
    assert compiled.traces >= 1


def sample_data(positions, dtype=torch.float32, rows=6):
    shape = (rows, 2) if positions else (rows,)
    return torch.randn(*shape, 3, dtype=dtype), torch.randn(shape, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("positions", [False, True], ids=["rows", "sequences"])
@pytest.mark.parametrize("plate", ["none", "plate", "subsample", "particles"])
@pytest.mark.parametrize("elbo", OBJECTIVES)
def test_traced_loss_and_gradients_are_the_eager_ones(elbo, plate, positions, dtype):
    averages = elbo in (MCNLL_ELBO, MomentMatchedELBO)
    particles = 2 if averages or plate == "particles" else 1
    kwargs = {"num_particles": particles, "vectorize_particles": plate == "particles"}
    model = Net("plate" if plate == "particles" else plate, dtype=dtype)
    guide = EVEGuide(model)
    x, y = sample_data(positions, dtype)
    compiled = CompiledELBO(elbo(**kwargs), backend="eager")(model, guide)
    rtol = 1e-10 if dtype is torch.float64 else 1e-5
    assert_same(elbo(**kwargs)(model, guide), compiled, x, y, rtol=rtol)
    assert compiled.traces == 1


@pytest.mark.parametrize("plate", ["plate", "subsample"])
@pytest.mark.parametrize("particles", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_closed_form_differentiates_inside_the_trace(plate, particles, dtype):
    model = Net(plate, emission="identity", dtype=dtype)
    guide = EVEGuide(model)
    elbos = [LinearGaussianELBO(particles) for _ in range(2)]
    compiled = CompiledELBO(elbos[1], backend="eager")(model, guide)
    assert_same(elbos[0](model, guide), compiled, *sample_data(False, dtype), rtol=1e-4)
    with torch.no_grad():
        found = [compiled(*sample_data(False, dtype)) for _ in range(2)]
    assert not any(loss.requires_grad for loss in found)


def test_inductor_keeps_the_order_of_all_kinds_of_draws():
    class Noisy(PyroModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.4), EVEModule(8, 4, beta=0.1))
            self.head = nn.Linear(4, 1)

        def forward(self, x, y):
            pyro.sample("unused", dist.Normal(torch.zeros(3), 1.0).to_event(1))
            with pyro.plate("data", 6, subsample_size=4) as rows:
                loc = self.head(self.net(x[rows])).squeeze(-1)
                scale = pyro.sample("scale", dist.Gamma(2.0, 1.0))
                pyro.sample("y", dist.Normal(loc, 0.1 + scale), obs=y[rows])

    model = Noisy()
    guide = EVEGuide(model)
    compiled = CompiledELBO(Trace_ELBO())(model, guide)
    assert_same(Trace_ELBO()(model, guide), compiled, *sample_data(False), rtol=1e-4)


def test_the_second_compilation_of_a_program_comes_from_the_cache():
    # On disk, keyed by the graph: what holds for a second trace holds for a second process.
    from torch._dynamo.utils import counters

    found = []
    for _ in range(2):
        pyro.set_rng_seed(0)
        model = Net("plate")
        compiled = CompiledELBO(TraceMeanField_ELBO())(model, EVEGuide(model))
        data = sample_data(False)
        counters.clear()
        compiled(*data)  # eager
        compiled(*data)
        found.append(sum(v for k, v in counters["inductor"].items() if k.endswith("cache_hit")))
        assert "fxgraph_cache_bypass" not in counters["inductor"]
    assert found[1] > 0


def test_inductor_computes_the_eager_loss_and_gradients():
    model = Net("subsample")
    guide = EVEGuide(model)
    compiled = CompiledELBO(MCNLL_ELBO(3))(model, guide)
    assert_same(MCNLL_ELBO(3)(model, guide), compiled, *sample_data(True), rtol=1e-4)


def test_fifty_steps_end_where_eager_steps_end():
    x, y = data(20)
    ends = []
    for compiled in (False, True):
        pyro.set_rng_seed(0)
        model = Regression(beta=0.1)
        elbo = TraceMeanField_ELBO()
        if compiled:
            elbo = CompiledELBO(elbo, backend="eager")
        loss = elbo(model, EVEGuide(model))
        optimizer = torch.optim.Adam(loss.parameters(), 0.01)
        decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
        schedule = BetaSchedule(model, linear_warmup(20))
        for _ in range(50):
            optimizer.zero_grad()
            loss(x, y).backward()
            optimizer.step()
            decay.step()
            schedule.step()
        ends.append([p.detach() for p in loss.parameters()])
        pyro.clear_param_store()
    assert loss.traces == 1
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
def test_a_plain_vae_trains_as_with_svi(elbo):
    x = (torch.rand(10, 6) > 0.5).float()
    losses, ends = [], []
    for kind in (SVI, CompiledSVI):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        vae = VAE()
        kwargs = {} if kind is SVI else {"backend": "eager"}
        svi = kind(vae.model, vae.guide, pyro.optim.Adam({"lr": 0.02}), elbo(), **kwargs)
        losses.append([svi.step(x) for _ in range(20)] + [svi.evaluate_loss(x) for _ in range(3)])
        ends.append({k: v.detach() for k, v in pyro.get_param_store().items()})
    assert svi.traces == 2
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert ends[0].keys() == ends[1].keys()
    for name, value in ends[0].items():
        torch.testing.assert_close(value, ends[1][name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("auto", [AutoNormal, AutoDelta, AutoMultivariateNormal])
def test_autoguides_train_as_with_svi(auto):
    x, y = data(30)
    ends = []
    for kind in (SVI, CompiledSVI):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        model = BayesianRegression()
        kwargs = {} if kind is SVI else {"backend": "eager"}
        svi = kind(model, auto(model), pyro.optim.Adam({"lr": 0.02}), Trace_ELBO(), **kwargs)
        for _ in range(20):
            svi.step(x, y)
        ends.append({k: v.detach() for k, v in pyro.get_param_store().items()})
    assert ends[0].keys() == ends[1].keys()
    for name, value in ends[0].items():
        torch.testing.assert_close(value, ends[1][name], rtol=1e-4, atol=1e-4)


def test_svi_takes_both_schedulers_and_eve_guides_for_mixed_models():
    x, y = data(20)

    class Mixed(Regression):
        def forward(self, x, y=None):
            slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
            return super().forward(x, y - slope * x[:, 0])

    ends = []
    for kind in (SVI, CompiledSVI):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        model = Mixed()
        optim = pyro.optim.ExponentialLR(
            {"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.02}, "gamma": 0.9}
        )
        kwargs = {} if kind is SVI else {"backend": "eager"}
        svi = kind(model, EVEGuide(model, AutoNormal), optim, TraceMeanField_ELBO(), **kwargs)
        for _ in range(10):
            svi.step(x, y)
            optim.step()
        ends.append({k: v.detach() for k, v in pyro.get_param_store().items()})
    assert len(ends[0]) > 10
    for name, value in ends[0].items():
        torch.testing.assert_close(value, ends[1][name], rtol=1e-4, atol=1e-4)


def test_fifty_steps_of_svi_on_inductor():
    x, y = data(20)
    losses, weights = [], []
    for kind in (SVI, CompiledSVI):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        model = Regression(beta=0.1)
        svi = kind(model, EVEGuide(model), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
        losses.append([svi.step(x, y) for _ in range(50)])
        weights.append(model.net[-1].weight.detach())
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-3)


def test_svi_refuses_stale_parameters_and_traces_anew_after_the_store_is_cleared():
    x, y = data()
    optim = pyro.optim.Adam({"lr": 0.01})

    def svi_of(model):
        return CompiledSVI(model, EVEGuide(model), optim, Trace_ELBO(), backend="eager")

    first, second = svi_of(Regression()), svi_of(Regression())
    first.step(x, y)
    with pytest.raises(StaleParameterError):
        second.step(x, y)
    pyro.clear_param_store()
    first.step(x, y)
    first.step(x, y)
    assert first.traces == 2
    assert set(pyro.get_param_store()) != set()


def test_score_functions_of_discrete_latents():
    class Discrete(PyroModule):
        def forward(self, y):
            with pyro.plate("data", len(y)):
                k = pyro.sample("k", dist.Bernoulli(torch.full((len(y),), 0.4)))
                pyro.sample("y", dist.Normal(k, 1.0), obs=y)

    class Guide(PyroModule):
        def __init__(self):
            super().__init__()
            self.logits = nn.Parameter(torch.zeros(6))

        def forward(self, y):
            with pyro.plate("data", len(y)):
                pyro.sample("k", dist.Bernoulli(logits=self.logits))

    model, guide = Discrete(), Guide()
    compiled = CompiledELBO(Trace_ELBO(4), backend="eager")(model, guide)
    assert_same(Trace_ELBO(4)(model, guide), compiled, torch.randn(6))


def compiled_regression(elbo=None, **kw):
    model = Regression(beta=0.5, **kw)
    elbo = CompiledELBO(elbo or TraceMeanField_ELBO(), backend="eager", cache_size=3)
    loss = elbo(model, EVEGuide(model))
    loss(*data())
    return model, loss


def eager_loss(model, *args, particles=1):
    pyro.set_rng_seed(3)
    return TraceMeanField_ELBO(particles).loss(model, EVEGuide(model), *args)


def same_as_eager(model, loss, *args):
    pyro.set_rng_seed(3)
    expected = eager_loss(model, *args, particles=loss.elbo.num_particles)
    pyro.set_rng_seed(3)
    return loss(*args).item() == pytest.approx(expected, rel=1e-5)


def test_beta_moves_without_a_new_trace():
    model, loss = compiled_regression()
    seen = set()
    for beta in (0.0, 1.0, 0.25):
        set_beta(model, beta)
        assert same_as_eager(model, loss, *data())
        seen.add(eager_loss(model, *data()))
    assert len(seen) == 3
    assert loss.traces == 1


def test_what_a_trace_froze_is_noticed_when_it_changes():
    model, loss = compiled_regression()
    layer = model.net[0]
    changes = [
        lambda: setattr(model, "scale", 0.7),
        lambda: setattr(layer.encoder.loc, "weight", nn.Parameter(torch.ones(8, 3))),
        lambda: model.net.insert(2, nn.Tanh()),
        lambda: layer.emission.__setattr__("activation", "gelu"),
        lambda: setattr(model, "num_data", 60),
        lambda: setattr(loss.elbo, "num_particles", 2),
        lambda: layer.register_buffer("beta", torch.tensor(2.0)),
    ]
    for i, change in enumerate(changes, 2):
        change()
        assert same_as_eager(model, loss, *data())
        assert loss.traces == i
        assert same_as_eager(model, loss, *data())
        assert loss.traces == i
    model.double()
    x, y = data(dtype=torch.float64)
    assert same_as_eager(model, loss, x, y)
    assert loss(x, y).dtype == torch.float64


def test_modules_in_closures_are_watched_too():
    net = nn.Sequential(nn.Dropout(0.5), EVEModule(3, 4), nn.Linear(4, 1))

    def model(x, y):
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(net(x).squeeze(-1), 0.1), obs=y)

    loss = CompiledELBO(TraceMeanField_ELBO(), backend="eager")(model, EVEGuide(model))
    replace = lambda: net[1].register_buffer("beta", torch.tensor(2.0))  # noqa: E731
    for traces, change in enumerate([net.train, net.eval, replace], 1):
        change()
        loss(*data())
        assert same_as_eager(model, loss, *data())
        assert loss.traces == traces


@pytest.mark.filterwarnings("ignore:.*not registered in the param store")
def test_a_frozen_layer_gets_no_gradient():
    model, loss = compiled_regression()
    model.net[0].requires_grad_(False)
    for _ in range(2):
        loss(*data()).backward()
    assert all(p.grad is None for p in model.net[0].parameters())
    assert all(p.grad is not None for p in model.net[1].parameters())


def test_training_mode_is_part_of_the_kind_of_a_call():
    class Dropping(Regression):
        def __init__(self):
            super().__init__(beta=0.1)
            self.net.insert(0, nn.Dropout(0.5))
            self.net.insert(1, nn.BatchNorm1d(3))

    model = Dropping()
    loss = CompiledELBO(TraceMeanField_ELBO(), backend="eager")(model, EVEGuide(model))
    twin = copy.deepcopy(model)
    eager = TraceMeanField_ELBO()(twin, EVEGuide(twin))
    for _ in range(2):
        for training in (True, False):
            for module in (loss, eager):
                module.train(training)
                pyro.set_rng_seed(4)
                module(*data())
            # Running statistics move once per call, traced or not.
            assert all(map(torch.equal, model.buffers(), twin.buffers()))
    assert loss.traces == 2


def test_each_batch_size_and_argument_is_traced_once_and_the_cache_is_bounded(caplog):
    model, loss = compiled_regression()
    caplog.set_level(logging.INFO, "eve_pyro")
    for rows in (6, 5, 6, 4, 6, 5):
        assert same_as_eager(model, loss, *data(rows))
    assert loss.traces == 3
    assert [r.levelname for r in caplog.records] == ["INFO", "INFO"]
    with torch.no_grad():
        assert not loss(*data()).requires_grad
    assert loss.traces == 4
    assert "cache_size=3" in caplog.text
    loss(*data(4))  # gone
    loss(data()[0], y=data()[1])
    assert loss.traces == 6


def test_module_parameters_copies_and_state():
    model, loss = compiled_regression()
    eager = TraceMeanField_ELBO()(model, EVEGuide(model))
    assert [id(p) for p in loss.parameters()] == [id(p) for p in eager.parameters()]
    assert loss.state_dict().keys() == eager.state_dict().keys()
    twin = copy.deepcopy(loss)
    assert twin.traces == 0
    for _ in range(2):
        twin(*data()).backward()
    assert all(p.grad is None for p in loss.parameters())
    assert all(p.grad is not None for p in twin.parameters())
    state = {k: v.clone() for k, v in twin.state_dict().items()}
    loss.load_state_dict(state)
    assert same_as_eager(model, loss, *data())
    assert loss.traces == 1


def test_gradients_accumulate_scale_and_reach_arguments():
    model, loss = compiled_regression()
    x, y = data()
    x.requires_grad_()
    gradients = []
    for module in (TraceMeanField_ELBO()(model, EVEGuide(model)), loss, loss):
        model.zero_grad()
        pyro.set_rng_seed(0)
        (module(2 * x, y) / 4).backward()
        (module(2 * x, y) / 4).backward()
        gradients.append([x.grad, *(p.grad for p in model.parameters())])
        x.grad = None
    for later in gradients[1:]:
        for a, b in zip(gradients[0], later, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    value = loss(*data())
    (gradient,) = torch.autograd.grad(value, [model.net[-1].weight], create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradient.sum().backward()


def test_one_tensor_given_twice_is_two_arguments():
    class Auto(PyroModule):
        def __init__(self):
            super().__init__()
            self.net = EVEModule(3, 3)

        def forward(self, x, y):
            with pyro.plate("data", len(x)):
                pyro.sample("y", dist.Normal(self.net(x), 1.0).to_event(1), obs=y)

    model = Auto()
    loss = CompiledELBO(TraceMeanField_ELBO(), backend="eager")(model, EVEGuide(model))
    x, y = torch.randn(2, 6, 3)
    loss(x, x)
    assert same_as_eager(model, loss, x, y)
    assert loss.traces == 1


def test_no_grad_blocks_and_custom_gradients_in_the_model():
    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return -g

    class Odd(PyroModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3, 1)

        def forward(self, x, y):
            loc = Reverse.apply(self.net(x)).squeeze(-1)
            with torch.no_grad():
                scale = 1 + loc.abs()
            with pyro.plate("data", len(x)):
                pyro.sample("y", dist.Normal(loc, scale), obs=y)

    model, guide = Odd(), lambda x, y: None
    compiled = CompiledELBO(Trace_ELBO(), backend="eager")(model, guide)
    found = []
    for module in (Trace_ELBO()(model, guide), compiled, compiled):
        model.zero_grad()
        module(*data()).backward()
        found.append(model.net.weight.grad)
    assert torch.equal(found[0], found[2])


def test_autocast_is_part_of_the_kind_of_a_call():
    model, loss = compiled_regression()
    eager = TraceMeanField_ELBO()(model, EVEGuide(model))
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert_same(eager, loss, *data(), rtol=1e-2)
        with torch.no_grad():  # a step: casts of the weights must not have been frozen
            for p in model.parameters():
                p.mul_(0.5)
    assert loss.traces == 2


def test_handlers_around_a_call_see_the_sites():
    model, loss = compiled_regression()
    pyro.set_rng_seed(3)
    with poutine.scale(scale=0.25):
        scaled = loss(*data())
    assert scaled.item() == pytest.approx(eager_loss(model, *data()) / 4, rel=1e-5)
    with poutine.trace() as trace:
        loss(*data())
    assert "net.0" in trace.trace.nodes


def test_it_serves_the_trainer():
    x, y = data(50)
    ends = []
    for compiled in (False, True):
        pyro.set_rng_seed(0)
        model = Regression(beta=0.1)
        elbo = TraceMeanField_ELBO()
        if compiled:
            elbo = CompiledELBO(elbo, backend="eager")
        config = TrainingConfig(epochs=3, batch_size=16, progress=False)
        trainer = Trainer(model, elbo=elbo, config=config)
        trainer.fit(x, y)
        ends.append(list(model.parameters()))
    assert trainer.loss.traces == 2
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def count_up(self, loc):
    self.calls = getattr(self, "calls", 0) + 1
    return loc


def draw_python(self, loc):
    return loc + random.random()


def draw_numpy(self, loc):
    return loc + float(np.random.default_rng().normal())


def draw_numpy_globally(self, loc):
    return loc + np.random.rand()  # noqa: NPY002


def branch(self, loc):
    return loc * 2 if loc.mean() > 0 else loc


def read_beta(self, loc):
    return loc * self.net[0].beta.item()


def mask(self, loc):
    return loc + loc[loc > -100].sum()


def reassign(self, loc):
    self.running = self.running + 1
    return loc + self.running


OUTSIDE_CALLS: list[int] = []


def count_outside(self, loc):
    OUTSIDE_CALLS.append(1)
    return loc + len(OUTSIDE_CALLS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (count_up, "attribute 'calls' of the model changed"),
        (draw_python, "random numbers of Python or NumPy"),
        (draw_numpy, "for the same seed"),
        (draw_numpy_globally, "random numbers of Python or NumPy"),
        (branch, "reads a tensor's value into Python"),
        (read_beta, "reads a tensor's value into Python"),
        (mask, "shape depends on values"),
        (reassign, "attribute 'running' of the model changed"),
        (count_outside, "name .OUTSIDE_CALLS. of count_outside changed"),
    ],
)
def test_what_cannot_be_traced_is_refused(change, message):
    class Refused(Regression):
        def __init__(self):
            super().__init__()
            self.register_buffer("running", torch.zeros(()))

        def forward(self, x, y=None):
            with pyro.plate("data", len(x)):
                loc = change(self, self.net(x).squeeze(-1))
                return pyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    model = Refused()
    loss = CompiledELBO(Trace_ELBO(), backend="eager")(model, EVEGuide(model))
    with pytest.raises(TraceError, match=message):
        loss(*data())
    with pytest.raises(TraceError, match=r"elbo\(model, guide\), or SVI"):
        loss(*data())


def test_gradients_that_leave_the_program_are_refused():
    outside = torch.ones(3, requires_grad=True) + 1

    def model(x, y):
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ outside, 1.0), obs=y)

    loss = CompiledELBO(Trace_ELBO(), backend="eager")(model, lambda x, y: None)
    with pytest.raises(TraceError, match="computed outside the model"):
        loss(*data())


def test_enumeration_is_refused():
    class Mixture(PyroModule):
        def __init__(self):
            super().__init__()
            self.loc = nn.Parameter(torch.zeros(()))

        def forward(self, y):
            with pyro.plate("data", len(y)):
                k = pyro.sample("k", dist.Bernoulli(0.4), infer={"enumerate": "parallel"})
                pyro.sample("y", dist.Normal(k + self.loc, 1.0), obs=y)

    elbo = TraceEnum_ELBO(max_plate_nesting=1)
    loss = CompiledELBO(elbo, backend="eager")(Mixture(), lambda y: None)
    with pytest.raises(TraceError):
        loss(torch.randn(5))


def test_bad_arguments():
    model, loss = compiled_regression()
    with pytest.raises(TraceError, match="argument of type ndarray"):
        loss(data()[0].numpy(), data()[1])
    with pytest.raises(TypeError, match="elbo must be a Pyro ELBO"):
        CompiledELBO(3)
    with pytest.raises(ValueError, match="backend must be one of 'inductor', 'eager'"):
        CompiledELBO(Trace_ELBO(), backend="jit")
    with pytest.raises(ValueError, match="cache_size must be an integer >= 1"):
        CompiledELBO(Trace_ELBO(), cache_size=0)
    with pytest.raises(ValueError, match="PyroOptim"):
        CompiledSVI(model, loss.guide, torch.optim.Adam(model.parameters()), Trace_ELBO())
    with pytest.raises(ValueError, match=r"input of 'net\.0' must have shape"):
        loss(torch.randn(6, 4), data()[1])  # the model's own errors stay what they are


def test_a_loss_that_is_not_finite_is_noticed():
    model, loss = compiled_regression()
    loss._options.check_every = 2
    with torch.no_grad():
        model.net[-1].bias.fill_(float("nan"))
    loss(*data())
    with pytest.raises(FloatingPointError, match="after 2 compiled calls"):
        loss(*data())
    pyro.clear_param_store()
    model = Regression()
    optim = pyro.optim.Adam({"lr": 0.1})
    svi = CompiledSVI(model, EVEGuide(model), optim, Trace_ELBO(), backend="eager")
    svi.step(*data())
    before = model.net[0].encoder.loc.weight.detach().clone()
    with pytest.raises(FloatingPointError, match="the loss is nan"):
        svi.step(data()[0], data()[1] * float("nan"))
    assert torch.equal(model.net[0].encoder.loc.weight, before)


def test_without_a_compiler_the_error_offers_the_eager_backend(monkeypatch):
    from torch._inductor import compile_fx, exc

    def fail(*args, **kwargs):
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(compile_fx, "compile_fx", fail)
    model = Regression()
    loss = CompiledELBO(Trace_ELBO())(model, EVEGuide(model))
    with pytest.raises(TraceError, match='backend="eager" needs no compiler'):
        loss(*data())
