"""Tracing leaves nothing behind: tensors, hooks, parameters; and what it refuses is named."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroSample
from small_models import data, likelihood, no_guide
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from eve_pyro.infer import CompiledELBO, CompiledSVI, TraceError

torch.set_num_threads(1)


def compiled(model):
    return CompiledELBO(Trace_ELBO(), backend="eager")(model, no_guide)


def ends_alike(make, calls=4):
    """Losses and tensors after some calls, eager and compiled; ``make`` gives both."""
    ends = []
    for elbo in (Trace_ELBO(), CompiledELBO(Trace_ELBO(), backend="eager")):
        torch.manual_seed(0)
        model, state = make()
        loss = elbo(model, no_guide)
        losses = [loss(*data(seed=seed)).detach() for seed in range(calls)]
        ends.append([*losses, *(t.detach() for t in state)])
    torch.testing.assert_close(ends[1], ends[0])


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


def test_a_backward_pass_that_autograd_refuses_is_refused():
    scale = torch.ones(())
    weight = nn.Parameter(torch.ones(3))

    def model(x, y):
        likelihood((x * weight * scale).sum(-1), y)
        scale.add_(1)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        Trace_ELBO()(model, no_guide)(*data()).backward()
    with pytest.raises(TraceError, match="modified by an inplace operation"):
        compiled(model)(*data()).backward()


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


def test_batch_norm_of_tensors_that_no_module_holds():
    def make():
        mean, variance, layer = torch.zeros(3), torch.ones(3), nn.Linear(3, 1)

        def model(x, y):
            x = F.batch_norm(x, mean, variance, training=True)
            likelihood(layer(x).squeeze(-1), y)

        return model, [mean, variance]

    ends_alike(make)


def test_two_tensors_on_one_array():
    def make():
        array = np.ones(3, dtype=np.float32)
        one, two = torch.from_numpy(array), torch.from_numpy(array)

        def model(x, y):
            one.add_(1.0)
            two.mul_(2.0)
            likelihood(x.sum(-1), y)

        return model, [one, two]

    ends_alike(make)


def test_arrays_that_the_model_wraps():
    array = np.zeros(1, dtype=np.float32)

    def model(x, y):
        likelihood(x.sum(-1) + torch.from_numpy(array).add_(1.0), y)

    with pytest.raises(TraceError, match="a tensor in place as the model does"):
        compiled(model)(*data())
    assert array[0] == 1  # by the first, eager run


def test_read_only_memory(tmp_path):
    np.save(tmp_path / "shift.npy", np.ones(3, dtype=np.float32))
    array = np.load(tmp_path / "shift.npy", mmap_mode="r")
    net = nn.Module()
    with pytest.warns(UserWarning, match="not writable"):
        net.register_buffer("shift", torch.from_numpy(array))

    def model(x, y):
        likelihood((x + net.shift).sum(-1), y)

    loss = compiled(model)
    torch.testing.assert_close(loss(*data()), loss(*data()))


@pytest.mark.parametrize(
    "change",
    [lambda t: t.t_(), lambda t: t.set_(torch.ones(2, 2))],
    ids=["t_", "set_"],
)
def test_exchanged_shapes_and_memory_are_refused_and_undone(change):
    state, other = torch.arange(6.0).view(2, 3), torch.zeros(2)

    def model(x, y):
        other.add_(1)
        change(state)
        likelihood(x.sum(-1) + state.sum(), y)

    with pytest.raises(TraceError, match="shape or the memory of a tensor"):
        compiled(model)(*data())
    expected = torch.arange(6.0).view(2, 3)
    change(expected)
    torch.testing.assert_close(state, expected)
    assert other.tolist() == [1, 1]


def test_the_tape_survives_changes_through_data():
    weight, average = nn.Parameter(torch.ones(6)), torch.zeros(6)

    def model(x, y):
        loc = weight * average
        average.data.mul_(0.9).add_(y, alpha=0.1)
        likelihood(loc, y)

    x, y = data()
    loss = compiled(model)
    for _ in range(3):
        loss(x[:6], y[:6]).backward()
    assert loss.traces == 1


def test_a_parameter_of_two_names_takes_one_step():
    def run(svi, **options):
        pyro.clear_param_store()
        first, second = nn.Module(), nn.Module()
        first.weight = second.weight = nn.Parameter(torch.zeros(3))

        def model(x, y):
            pyro.module("first", first)
            pyro.module("second", second)
            likelihood(x @ first.weight, y)

        steps = svi(model, no_guide, pyro.optim.SGD({"lr": 0.01}), Trace_ELBO(), **options)
        for _ in range(3):
            steps.step(*data())
        return first.weight.detach()

    torch.testing.assert_close(run(CompiledSVI, backend="eager"), run(SVI))


class BayesianLinear(PyroModule):
    """Random weights, whose priors were expanded while Pyro's validation was on."""

    def __init__(self):
        super().__init__()
        self.linear = PyroModule[nn.Linear](3, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 3]).to_event(2))
        self.linear.bias = PyroSample(dist.Normal(0.0, 10.0).expand([1]).to_event(1))

    def forward(self, x, y=None):
        scale = pyro.sample("scale", dist.Uniform(0.0, 10.0))
        likelihood(self.linear(x).squeeze(-1), y, scale)


def test_bayesian_regression_of_pyros_tutorials():
    def run(svi, **options):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        model = BayesianLinear()
        guide = AutoNormal(model)
        step = svi(model, guide, pyro.optim.Adam({"lr": 0.03}), Trace_ELBO(), **options).step
        losses = []
        for seed in range(5):
            pyro.set_rng_seed(seed)
            losses.append(step(*data()))
        return losses

    with pyro.validation_enabled():
        assert run(CompiledSVI, backend="eager") == pytest.approx(run(SVI), rel=1e-4)


def test_an_error_in_a_rehearsal_is_a_trace_error_and_restores_everything():
    net, runs = nn.BatchNorm1d(3), []

    def model(x, y):
        runs.append(1)
        x = net(x)
        if len(runs) == 2:
            raise KeyError("gone")
        likelihood(x.sum(-1), y)

    torch.manual_seed(0)
    with pytest.raises(TraceError, match=r"tracing failed \(KeyError: 'gone'\)"):
        compiled(model)(*data())
    assert net.num_batches_tracked == 1
    state = torch.get_rng_state()
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), state)


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
