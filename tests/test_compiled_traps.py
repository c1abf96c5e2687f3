"""Compiled inference where Python or autograd could make a trace silently wrong."""

import copy

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.nn import PyroModule
from small_models import data
from torch import nn

from eve_pyro import EVEGuide, EVEModule
from eve_pyro.infer import CompiledELBO, StreamingPredictive, TraceError, export_predictor

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
