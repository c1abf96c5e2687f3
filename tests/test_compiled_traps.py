"""Compiled inference where Python or autograd could make a trace silently wrong."""

import copy
from dataclasses import dataclass
from enum import Enum
from functools import partial

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.nn import PyroModule
from small_models import data
from torch import nn

from eve_pyro import EVEGuide, EVEModule
from eve_pyro.infer import (
    CompiledELBO,
    CompiledSVI,
    StreamingPredictive,
    TraceError,
    export_predictor,
)
from eve_pyro.infer.serving import Predictor

torch.set_num_threads(1)


def no_guide(*args):
    pass


class Plain(PyroModule):
    """A regression on some net."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, y=None):
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(self.net(x).squeeze(-1), 1.0), obs=y)


@pytest.mark.parametrize("training", [True, False])
def test_the_first_backward_pass_survives_buffers_that_autograd_saved(training):
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    ends = []
    for elbo in (Trace_ELBO(), CompiledELBO(Trace_ELBO(), backend="eager")):
        model = Plain(copy.deepcopy(net)).train(training)
        loss = elbo(model, no_guide)
        loss.train(training)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        for seed in range(4):
            optimizer.zero_grad()
            loss(*data(seed=seed)).backward()
            optimizer.step()
        ends.append(model.state_dict())
    assert loss.traces == 1
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value)


READS = [
    lambda t: float(t.detach().numpy().mean()),
    lambda t: float(np.asarray(t.detach()).mean()),
    lambda t: sum(t.detach().tolist()),
]


class Reading(PyroModule):
    """Scales its target by values that were read into Python."""

    def __init__(self, read):
        super().__init__()
        self.net = nn.Sequential(EVEModule(3, 4), nn.Linear(4, 1))
        self.read = read

    def forward(self, x, y=None):
        with pyro.plate("data", x.shape[0]):
            scale = 1 + abs(self.read(x[:, 0]))
            return pyro.sample("y", dist.Normal(self.net(x).squeeze(-1), scale), obs=y)


@pytest.mark.parametrize("read", READS, ids=["numpy", "asarray", "tolist"])
def test_reads_of_values_that_are_no_operations_are_refused(read, tmp_path):
    model, (x, y) = Reading(read), data()
    message = "reads a tensor's value into Python"
    with pytest.raises(TraceError, match=message):
        CompiledELBO(Trace_ELBO(), backend="eager")(model, EVEGuide(model))(x, y)
    with pytest.raises(TraceError, match=message):
        StreamingPredictive(model, num_samples=2, compile="eager")(x)
    with pytest.raises(TraceError, match=message):
        export_predictor(tmp_path / "model.pt", model, None, x, 2)


class Methods(nn.Module):
    """A model and a guide that are methods, so that their module itself is never called."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("shift", torch.zeros(()))
        self.decoder, self.scale = nn.Linear(2, 3), 1.0

    def model(self, x, factor=1.0):
        self.calls.add_(1)
        scale = factor * self.scale if self.training else 3.0
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(torch.zeros(len(x), 2), 1.0).to_event(1))
            loc = self.decoder(z) + self.shift
            pyro.sample("x", dist.Normal(loc, scale).to_event(1), obs=x)

    def guide(self, x, factor=1.0):
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(torch.zeros(len(x), 2), self.scale).to_event(1))


CHANGES = [
    lambda m: setattr(m, "scale", 2.0),
    lambda m: m.eval(),
    lambda m: m.register_buffer("shift", torch.ones(())),
    lambda m: m.shift.fill_(3.0),
]


@pytest.mark.parametrize("bound", [lambda f: f, lambda f: partial(f, factor=2.0)])
def test_the_module_of_a_method_is_watched(bound):
    x, module, values = data()[0], Methods(), {}
    for kind in ("eager", "elbo", "svi"):
        vae = copy.deepcopy(module)
        args = (bound(vae.model), bound(vae.guide))
        if kind == "elbo":
            run = CompiledELBO(Trace_ELBO(), backend="eager")(*args)
        elif kind == "svi":
            optim = pyro.optim.Adam({"lr": 0.1})
            run = CompiledSVI(*args, optim, Trace_ELBO(), backend="eager").step
        else:
            run = SVI(*args, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO()).step
        values[kind] = []
        for change in [lambda m: None, *CHANGES]:
            change(vae)
            for seed in range(2):
                pyro.set_rng_seed(seed)
                values[kind].append(torch.as_tensor(run(x)).item())
        assert vae.calls == 10
    assert values["elbo"] == pytest.approx(values["eager"], rel=1e-5)
    assert values["svi"] == pytest.approx(values["eager"], rel=1e-5)


@dataclass
class Settings:
    scale: float = 1.0


class Watched(PyroModule):
    """Reads attributes of all kinds."""

    factor = 1.0

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 3))
        self.width = np.float32(1)
        self.options = {"shift": 1.0}
        self.steps = [1.0, [2.0]]
        self.settings = Settings()

    def forward(self, x, y):
        extra = getattr(self, "extra", None)
        x = self.net(x) if extra is None else extra(self.net(x))
        loc = x.mean(-1) * self.factor * float(self.width)
        loc = loc * self.steps[0] * self.steps[1][0] + self.options["shift"]
        self.kept = [loc, loc.detach()]
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(loc, self.settings.scale), obs=y)


class Doubled(Watched):
    factor = 2.0


WATCHED = {
    "appended submodule": lambda m: m.net.append(nn.Tanh()),
    "new submodule": lambda m: m.add_module("extra", nn.Tanh()),
    "overridden default": lambda m: setattr(m, "factor", 3.0),
    "number of numpy": lambda m: setattr(m, "width", np.float32(2)),
    "forward hook": lambda m: m.net.register_forward_hook(lambda *a: 2 * a[-1]) and None,
    "forward pre-hook": lambda m: (
        m.net.register_forward_pre_hook(lambda m, a: (a[0] + 1,)) and None
    ),
    "replaced dict": lambda m: setattr(m, "options", {"shift": 2.0}),
    "dict entry": lambda m: m.options.update(shift=3.0),
    "list element": lambda m: m.steps.__setitem__(0, 2.0),
    "nested list element": lambda m: m.steps[1].__setitem__(0, 3.0),
    "dataclass field": lambda m: setattr(m.settings, "scale", 2.0),
    "class": lambda m: setattr(m, "__class__", Doubled),
}


@pytest.mark.parametrize("change", WATCHED.values(), ids=WATCHED)
def test_changes_of_a_module_are_noticed(change):
    model = Watched()
    eager = Trace_ELBO()(model, no_guide)
    loss = CompiledELBO(Trace_ELBO(), backend="eager")(model, no_guide)
    for _ in range(2):
        before = loss(*data()).item()
    assert loss.traces == 1
    change(model)
    expected = eager(*data()).item()
    assert expected != pytest.approx(before, rel=1e-4)
    for _ in range(2):
        assert loss(*data()).item() == pytest.approx(expected, rel=1e-5)
    assert loss.traces == 2


class Config:
    def __init__(self, scale):
        self.scale = scale


@dataclass(frozen=True)
class Frozen:
    scale: float


class Mode(Enum):
    WIDE = 2.0


def configured(x, settings, *, more=None):
    scale = settings[0].scale if isinstance(settings, list) else 1.0
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(torch.zeros(len(x)), scale), obs=x)


def test_arguments_that_can_change_unseen_are_refused_by_name():
    loss = CompiledELBO(Trace_ELBO(), backend="eager")(configured, no_guide_with_options)
    x = torch.randn(4)
    with pytest.raises(TraceError, match=r"argument 1\[0\], an argument of type Config"):
        loss(x, [Config(1.0)])
    with pytest.raises(TraceError, match="argument 'more', an argument of type Config"):
        loss(x, None, more=Config(1.0))
    assert loss(x, [Frozen(1.0)]).item() == loss(x, [Frozen(1.0)]).item()
    assert loss.traces == 1
    assert loss(x, [Frozen(2.0)]).item() != loss(x, [Frozen(1.0)]).item()
    for more in ({"a": (1, None, True, "b")}, torch.float32, Mode.WIDE, len, nn.Tanh(), x):
        assert torch.equal(loss(x, 1, more=more), loss(x, 1, more=more))


def no_guide_with_options(*args, **kwargs):
    pass


def test_a_predictor_without_a_seed_draws_from_the_global_generator():
    run = lambda x: (torch.randn(2, len(x)), torch.ones(2, len(x)))  # noqa: E731
    predictor = Predictor(run, (4, 3), torch.float32, torch.device("cpu"), 4, 2)
    x = torch.zeros(4, 3)
    pyro.set_rng_seed(0)
    first, second = predictor(x, seed=None).loc, predictor(x, seed=None).loc
    assert not torch.equal(first, second)
    pyro.set_rng_seed(0)
    assert torch.equal(predictor(x, seed=None).loc, first)
    assert torch.equal(predictor(x, seed=1).loc, predictor(x, seed=1).loc)
    assert torch.equal(predictor(x, seed=None).loc, second)
