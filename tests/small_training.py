"""A small model and quick runs that the tests of the trainer share."""

import dataclasses

import pyro
import pyro.distributions as dist
import torch
from torch import nn

from eve_pyro.infer import Trainer, TrainingConfig
from eve_pyro.nn import EVEModule

QUICK = TrainingConfig(epochs=3, batch_size=16, learning_rate=1e-2, progress=False)


class Regressor(pyro.nn.PyroModule):
    def __init__(self, units=8, seed=0, slope=False):
        super().__init__()
        torch.manual_seed(seed)
        self.hidden = EVEModule(3, units, beta=0.1)
        self.head = nn.Linear(units, 1)
        self.log_scale = nn.Parameter(torch.zeros(()))
        if slope:
            self.slope = pyro.nn.PyroSample(dist.Normal(0.0, 1.0))

    def forward(self, x, y=None, num_data=None):
        scale = self.log_scale.exp()
        slope = self.slope if hasattr(self, "slope") else 0.0
        with pyro.plate("data", num_data or len(x), subsample=torch.arange(len(x))):
            loc = self.head(self.hidden(x)).squeeze(-1) + slope * x[..., 0]
            return pyro.sample("y", dist.Normal(loc, scale), obs=y)


def data(rows=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator)
    return x, x.sum(-1).tanh() + 0.1 * torch.randn(rows, generator=generator)


def config(**changes):
    return dataclasses.replace(QUICK, **changes)


def trainer(model=None, elbo=None, beta_schedule=None, **changes):
    model = model or Regressor()
    return Trainer(model, None, elbo, config(**changes), beta_schedule=beta_schedule)


def same(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def numbers(history):
    return [row[:-1] for row in history.rows]  # all but the seconds
