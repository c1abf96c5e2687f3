"""What a trace took from globals, closures and objects, and what its rehearsals leave behind."""

import math
from argparse import Namespace
from collections import deque
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro.infer import SVI, Trace_ELBO
from pyro.nn import PyroModule
from small_models import data
from torch import nn
from torch.utils.checkpoint import checkpoint

from eve_pyro.infer import CompiledELBO, CompiledSVI, TraceError
from eve_pyro.infer.compiled.assumptions import Assumptions, Call, _exact
from eve_pyro.infer.compiled.reach import Reach, spaces_of

torch.set_num_threads(1)

SCALE = 1.0
OPTIONS = Namespace(shift=0.0, unread=0.0)
NET = nn.Linear(3, 1)


def no_guide(*args):
    pass


def likelihood(loc, y, scale=1.0):
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(loc, scale), obs=y)


def scaled(x):
    return SCALE * x


def global_model(x, y):
    likelihood(scaled(x).sum(-1) + OPTIONS.shift + NET.weight.sum(), y)


class Experiment:
    """Holds a model that is a method, and what the training loop keeps."""

    factor = 1.0

    def __init__(self):
        self.shift, self.losses, self.inner = 0.0, [], Namespace(power=1.0)
        self.offset = torch.zeros(())

    def location(self, x):
        return self.factor * x.sum(-1) ** self.inner.power + self.shift + self.offset

    def model(self, x, y):
        likelihood(self.location(x), y)


def closure_model():
    """A model of cells and defaults, and the changes of them."""
    shift, weights, net = 0.0, [1.0], nn.Linear(3, 1)
    table, window = np.ones(3), deque([1.0, 2.0])
    noise = dist.Normal(0.0, 1.0)

    def model(x, y, width=[1.0]):  # noqa: B006
        loc = (x * torch.tensor(table)).sum(-1) * weights[0] + shift + window[-1]
        likelihood(loc + net.bias + noise.scale, y, width[0])

    def rebind():
        nonlocal shift
        shift = 1.0

    return model, {
        "rebound": rebind,
        "element": lambda: weights.__setitem__(0, 2.0),
        "weight": lambda: setattr(net, "bias", nn.Parameter(torch.ones(1))),
        "array": lambda: table.__setitem__(1, 3.0),
        "deque": lambda: window.append(7.0),
        "distribution": lambda: setattr(noise, "scale", torch.tensor(2.0)),
        "default": lambda: model.__defaults__[0].__setitem__(0, 2.0),
    }


def follows(model, change, traces=2):
    """Whether compiled calls give the eager loss before and after a change."""
    eager = Trace_ELBO()(model, no_guide)
    loss = CompiledELBO(Trace_ELBO(), backend="eager")(model, no_guide)
    values = []
    for action in (lambda: None, change):
        action()
        values.append(eager(*data()).item())
        for _ in range(2):
            assert loss(*data()).item() == pytest.approx(values[-1], rel=1e-5)
    assert values[0] != pytest.approx(values[1], rel=1e-5) or traces == 1
    assert loss.traces == traces


@pytest.mark.parametrize(
    ("name", "value"),
    [("SCALE", 2.0), ("OPTIONS", Namespace(shift=1.0)), ("scaled", lambda x: 3 * x)],
)
def test_rebound_globals_are_noticed(name, value, monkeypatch):
    follows(global_model, lambda: monkeypatch.setitem(globals(), name, value))


def test_attributes_of_globals_are_noticed_where_the_code_reads_them(monkeypatch):
    follows(global_model, lambda: monkeypatch.setattr(OPTIONS, "shift", 1.0))
    weight = nn.Parameter(torch.ones(1, 3))
    follows(global_model, lambda: monkeypatch.setattr(NET, "weight", weight))
    follows(global_model, lambda: monkeypatch.setattr(OPTIONS, "unread", 1.0), traces=1)


@pytest.mark.parametrize("name", closure_model()[1])
def test_closures_and_defaults_are_watched(name):
    model, changes = closure_model()
    follows(model, changes[name])
    model, changes = closure_model()
    follows(partial(model), changes[name])


OF_OBJECTS = {
    "attribute": lambda e: setattr(e, "shift", 1.0),
    "attribute of attribute": lambda e: setattr(e.inner, "power", 2.0),
    "overridden": lambda e: setattr(e, "factor", 3.0),
    "tensor": lambda e: setattr(e, "offset", torch.ones(())),
}


@pytest.mark.parametrize("change", OF_OBJECTS.values(), ids=OF_OBJECTS)
def test_the_object_of_a_method_is_watched(change):
    experiment = Experiment()
    follows(experiment.model, lambda: change(experiment))


def test_classes_are_watched(monkeypatch):
    experiment = Experiment()
    follows(experiment.model, lambda: monkeypatch.setattr(Experiment, "factor", 2.0))
    larger = lambda self, x: 5 * x.sum(-1)  # noqa: E731
    follows(experiment.model, lambda: monkeypatch.setattr(Experiment, "location", larger))


def test_what_the_training_loop_keeps_beside_the_model_costs_no_trace():
    experiment = Experiment()
    loss = CompiledELBO(Trace_ELBO(), backend="eager")(experiment.model, no_guide)
    for _ in range(5):
        experiment.losses.append(loss(*data()).item())
        experiment.epoch = len(experiment.losses)
    assert loss.traces == 1


def test_a_module_among_the_arguments_is_watched():
    def model(net, x, y):
        likelihood((x @ net.weight.T).squeeze(-1) * net.factor, y)

    net = nn.Linear(3, 1)
    net.factor = 1.0
    loss = CompiledELBO(Trace_ELBO(), backend="eager")(model, no_guide)
    eager = Trace_ELBO()(model, no_guide)
    for change in (
        lambda: None,
        lambda: setattr(net, "factor", 2.0),
        lambda: setattr(net, "weight", nn.Parameter(torch.ones(1, 3))),
    ):
        change()
        for _ in range(2):
            torch.testing.assert_close(loss(net, *data()), eager(net, *data()))
    assert loss.traces == 3


def test_reach_follows_own_code_and_stops_at_libraries():
    reach = Reach()
    reach.add("the model", global_model)
    reach.add("the guide", nn.functional.gelu)
    found = {space.label: set(space.values) for space in reach.spaces()}
    assert {"SCALE"} <= found["scaled"]
    assert {"scaled", "OPTIONS", "NET", "likelihood"} <= found["global_model"]
    assert [*reach.modules] == [NET]
    watched = {name for space in reach.spaces() for name in space.names or ()}
    assert "shift" in watched
    assert "unread" not in watched
    assert "is_scripting" not in watched


def test_recursive_structures_end():
    def model(x, y):
        if x is None:
            model(x, y)
        likelihood(x.sum(-1) * knot[0], y)

    knot = [1.0]
    knot.append(knot)
    follows(model, lambda: knot.__setitem__(0, 2.0))


# What rehearsals leave behind.


def test_tensors_of_any_owner_hold_what_eager_steps_leave():
    def make():
        net, calls, seen = nn.Linear(3, 1), torch.zeros(()), {"mean": torch.zeros(3)}

        def model(x, y):
            calls.add_(1)
            with torch.no_grad():
                seen["mean"][:2].lerp_(x.mean(0)[:2], 0.1)
                net.weight.clamp_(-0.1, 0.1)
            likelihood(net(x - seen["mean"]).squeeze(-1), y)

        return model, [calls, seen["mean"], net.weight]

    ends = []
    for elbo in (Trace_ELBO(), CompiledELBO(Trace_ELBO(), backend="eager")):
        torch.manual_seed(0)
        model, state = make()
        loss = elbo(model, no_guide)
        losses = [loss(*data(seed=seed)).item() for seed in range(4)]
        ends.append((losses, state))
    assert ends[0][0] == pytest.approx(ends[1][0], rel=1e-5)
    for eager, compiled in zip(ends[0][1], ends[1][1], strict=True):
        torch.testing.assert_close(compiled, eager)


def test_arguments_that_the_model_changes_in_place():
    def model(x, y):
        x.mul_(0.5)
        likelihood(x.sum(-1), y)

    ends = []
    for elbo in (Trace_ELBO(), CompiledELBO(Trace_ELBO(), backend="eager")):
        x, y = data()
        loss = elbo(model, no_guide)
        ends.append([*(loss(x, y).item() for _ in range(4)), x.sum().item()])
    assert ends[0] == pytest.approx(ends[1], rel=1e-5)


def test_the_tape_of_the_first_call_survives_in_place_changes():
    scale = torch.ones(())
    weight = nn.Parameter(torch.ones(3))

    def model(x, y):
        likelihood((x * weight * scale).sum(-1), y)
        scale.add_(1)

    loss = CompiledELBO(Trace_ELBO(), backend="eager")(model, no_guide)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        Trace_ELBO()(model, no_guide)(*data()).backward()  # eager autograd refuses it too
    with pytest.raises((RuntimeError, TraceError)):
        loss(*data()).backward()


class Weighted(PyroModule):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x, y):
        likelihood((x * self.weight).sum(-1), y)


def steps_of_svi(model, svi, **options):
    step = svi(model, no_guide, pyro.optim.SGD({"lr": 0.01}), Trace_ELBO(), **options).step
    for _ in range(3):
        step(*data())


def steps_by_hand(model, elbo):
    optimizer, loss = torch.optim.SGD(model.parameters(), 0.01), elbo(model, no_guide)
    for _ in range(3):
        optimizer.zero_grad()
        loss(*data()).backward()
        optimizer.step()


STEPS = {
    "SVI": lambda m: steps_of_svi(m, SVI),
    "CompiledSVI": lambda m: steps_of_svi(m, CompiledSVI, backend="eager"),
    "Trace_ELBO": lambda m: steps_by_hand(m, Trace_ELBO()),
    "CompiledELBO": lambda m: steps_by_hand(m, CompiledELBO(Trace_ELBO(), backend="eager")),
}


def test_hooks_of_gradients_run_once_a_step():
    ends = []
    for train in STEPS.values():
        pyro.clear_param_store()
        model, fired, accumulated = Weighted(), [], []
        handle = model.weight.register_hook(lambda g, fired=fired: fired.append(1) or 2 * g)
        model.weight.register_post_accumulate_grad_hook(lambda t, a=accumulated: a.append(1))
        train(model)
        assert (len(fired), len(accumulated)) == (3, 3)
        handle.remove()
        train(model)
        assert (len(fired), len(accumulated)) == (3, 6)
        ends.append(model.weight.detach())
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0])


# What was refused by mistake, or by a wrong name.


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind):
    torch.manual_seed(0)
    layer, head = kind(3, 4, 2), nn.Linear(4, 1)
    model = PyroModule[nn.ModuleList]([layer, head])

    def run(x, y):
        likelihood(head(layer(x[:, None])[0])[:, 0, 0], y)

    eager, loss = Trace_ELBO()(run, no_guide), None
    loss = CompiledELBO(Trace_ELBO(), backend="eager")(run, no_guide)
    for _ in range(3):
        found = []
        for objective in (eager, loss):
            model.zero_grad()
            objective(*data()).backward()
            found.append([p.grad.clone() for p in model.parameters()])
        torch.testing.assert_close(*found)
    assert loss.traces == 1


def test_leaves_made_by_the_model_are_named():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def model(x, y):
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        likelihood(net(x).squeeze(-1) + slope.sum(-1), y)

    loss = CompiledELBO(Trace_ELBO(), backend="eager")(model, no_guide)
    with pytest.raises(TraceError, match="makes it anew with requires_grad"):
        loss(*data())


def test_checkpoints_that_replay_noise_are_named():
    net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    def model(x, y):
        likelihood(checkpoint(net, x, use_reentrant=False).squeeze(-1), y)

    loss = CompiledELBO(Trace_ELBO(), backend="eager")(model, no_guide)
    with pytest.raises(TraceError, match=r"torch\.utils\.checkpoint"):
        loss(*data())
    net.eval()
    loss(*data())
    assert loss.traces == 1


# Equality.


@dataclass(frozen=True)
class Setting:
    width: int
    note: float = field(default=0.0, compare=False)


ATOMS = st.one_of(
    st.integers(-2, 2),
    st.booleans(),
    st.floats(width=16),
    st.sampled_from([0.0, -0.0, 1.0, complex(0.0, -0.0), np.float32(1), np.float64(1), None, "a"]),
)
VALUES = st.recursive(ATOMS, lambda x: st.tuples(x) | st.tuples(x, x) | st.builds(Setting, x, x))


@given(VALUES, VALUES)
def test_exact_equality_tells_apart_what_a_program_can_tell_apart(a, b):
    assert _exact(a) == _exact(a)
    if _exact(a) == _exact(b):
        assert (repr(a), type(a)) == (repr(b), type(b))
    else:
        assert (repr(a), type(a)) != (repr(b), type(b))


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ((1,), (True,), False),
        (0.0, -0.0, False),
        (math.nan, math.nan, True),
        (Setting(1, 0.0), Setting(1, 1.0), False),
        (frozenset([1]), frozenset([True]), False),
        (frozenset([1, 2]), frozenset([2, 1]), True),
    ],
)
def test_kinds_of_calls(a, b, same):
    assert (Call((a,), {}).key == Call((b,), {}).key) is same
    module = nn.Module()
    module.setting = a
    assumptions = Assumptions(spaces_of("it", module))
    module.setting = b
    assert (assumptions.broken() is None) is same
