"""What a trace took from globals, closures and objects is noticed when it changes."""

import math
import random
import weakref
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
from pyro.infer import Trace_ELBO
from small_models import data, likelihood, no_guide
from torch import nn

from eve_pyro.infer import MCNLL_ELBO, CompiledELBO, TraceError
from eve_pyro.infer.compiled.assumptions import Assumptions, Call, _exact
from eve_pyro.infer.compiled.reach import Reach, spaces_of

torch.set_num_threads(1)

SCALE = 1.0
OPTIONS = Namespace(shift=0.0, unread=0.0)
NET = nn.Linear(3, 1)


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
    follows(global_model, lambda: monkeypatch.setitem(NET._parameters, "weight", weight))
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


# Methods that no code names, and values that are found on the way.

FACTOR = 1.0
ROWS = torch.randn(10, 3)


class Factored(dist.Normal):
    def log_prob(self, value):
        return FACTOR * super().log_prob(value)


class Lookup:
    def __init__(self):
        self._values = {"scale": 1.0}

    def __getitem__(self, name):
        return self._values[name]

    def __len__(self):
        return len(self._values)


class Slotted:
    __slots__ = ("scale",)

    def __init__(self):
        self.scale = 1.0


class FactoredELBO(MCNLL_ELBO):
    def differentiable_loss(self, *args, **kwargs):
        return FACTOR * super().differentiable_loss(*args, **kwargs)


LOOKUP, SLOTTED = Lookup(), Slotted()


def with_own_distribution(x, y):
    with pyro.plate("data", len(y)):
        pyro.sample("y", Factored(x.sum(-1), 1.0), obs=y)


def with_dunders(x, y):
    likelihood(x.sum(-1) * LOOKUP["scale"] * len(LOOKUP) * SLOTTED.scale, y)


def with_shape_of_another_tensor(x, y):
    with pyro.poutine.scale(scale=len(ROWS) / len(x)):
        likelihood(x.sum(-1), y)


def test_overrides_of_library_methods(monkeypatch):
    follows(with_own_distribution, lambda: monkeypatch.setitem(globals(), "FACTOR", 3.0))


def test_methods_that_python_calls(monkeypatch):
    follows(with_dunders, lambda: monkeypatch.setitem(LOOKUP._values, "scale", 2.0))
    follows(with_dunders, lambda: monkeypatch.setitem(LOOKUP._values, "more", 2.0))
    follows(with_dunders, lambda: monkeypatch.setattr(SLOTTED, "scale", 3.0))


def test_shapes_of_tensors_whose_values_are_not_read(monkeypatch):
    rows = torch.randn(50, 3)
    follows(with_shape_of_another_tensor, lambda: monkeypatch.setitem(globals(), "ROWS", rows))


def test_own_objectives(monkeypatch):
    loss = CompiledELBO(FactoredELBO(2, max_plate_nesting=1), backend="eager")(
        global_model, no_guide
    )
    before = [loss(*data()).item() for _ in range(2)]
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    after = [loss(*data()).item() for _ in range(2)]
    assert after == pytest.approx([3 * b for b in before])


def test_what_arguments_hold():
    shift, scale = 0.0, 1.0

    def moved(x):
        return x + shift

    def scaled(x):
        return x * scale

    def model(first, second, x, y):
        likelihood(second(first(x)).sum(-1), y)

    loss = CompiledELBO(Trace_ELBO(), backend="eager")(model, no_guide)
    eager = Trace_ELBO()(model, no_guide)
    for shift, scale in ((0.0, 1.0), (1.0, 1.0), (1.0, 2.0)):  # noqa: B007
        for _ in range(2):
            args = (moved, scaled, *data())
            torch.testing.assert_close(loss(*args), eager(*args))
    assert loss.traces == 3


@pytest.mark.parametrize("package", ["code", "profile"])
def test_functions_without_a_module_of_their_own(package):
    space = {"likelihood": likelihood, "SCALE": 1.0}
    if package != "code":
        space["__name__"] = f"{package}.models"  # of the user, not Python's module of that name
    exec("def model(x, y):\n    likelihood(SCALE * x.sum(-1), y)\n", space)
    follows(space["model"], lambda: space.update(SCALE=2.0))


@pytest.mark.parametrize("make", [random.Random, np.random.default_rng])
def test_generators_of_the_users_own_are_refused(make):
    generator = make(1)

    def model(x, y):
        likelihood(x.sum(-1) + (1.0 if generator.random() < 0.1 else 0.0), y)

    loss = CompiledELBO(Trace_ELBO(), backend="eager")(model, no_guide)
    with pytest.raises(TraceError, match="'generator' of model changed"):
        loss(*data())


def test_noise_that_a_model_seeds_itself_is_refused():
    def model(x, y):
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            eps = torch.randn(len(x))
        likelihood(x.sum(-1) + eps, y)

    torch.manual_seed(0)
    loss = CompiledELBO(Trace_ELBO(), backend="eager")(model, no_guide)
    with pytest.raises(TraceError, match="for the same seed"):
        loss(*data())


class Raising:
    def __getattr__(self, name):
        raise ZeroDivisionError(name)


class Meta(type):
    def __getattr__(cls, name):
        raise KeyError(name)


@dataclass(eq=False)
class Node:
    children: list


ODD = {
    "raising": Raising,
    "metaclass": lambda: Meta("Made", (), {})(),
    "set": lambda: {Node([])},
    "tensor keys": lambda: {torch.ones(2): 1},
    "dead proxy": lambda: weakref.proxy(Node([])),
}


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_objects_that_are_hard_to_look_at(make):
    odd = make()

    def model(x, y):
        keep = odd
        likelihood(x.sum(-1) * (1 if keep is odd else 2), y)

    loss = CompiledELBO(Trace_ELBO(), backend="eager")(model, no_guide)
    torch.testing.assert_close(loss(*data()), loss(*data()))
    assert loss.traces == 1


def test_an_empty_list_that_becomes_a_tensor():
    offset = []

    def model(x, y):
        likelihood(x.sum(-1) + (offset if len(offset) else 0.0), y)

    def change():
        nonlocal offset
        offset = torch.ones(len(data()[0]))

    follows(model, change)


def test_long_chains_take_neither_the_stack_nor_long():
    chain = None
    for _ in range(3000):
        link = Lookup()
        link.next, chain = chain, link

    def model(x, y):
        likelihood(x.sum(-1) + (chain.next is None), y)

    reach = Reach()
    reach.add("the model", model)
    assert sum(space.label.endswith("'chain' of model") for space in reach.spaces()) == 3000


def test_a_value_that_changes_in_every_step_is_warned_of(caplog):
    settings = {"scale": 1.0, "step": 0}

    def model(x, y):
        likelihood(x.sum(-1) * settings["scale"], y)

    loss = CompiledELBO(Trace_ELBO(), backend="eager")(model, no_guide)
    with caplog.at_level("WARNING"):
        for step in range(6):
            settings["step"] = step
            loss(*data())
    assert [r.message for r in caplog.records if "'settings' of model changed" in r.message]


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
