"""Small models that the tests share."""

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from torch import nn

from eve_pyro import EVEModule


class Regression(PyroModule):
    """Stacked EVE layers and a linear Gaussian readout."""

    def __init__(self, in_features=3, units=(4, 5), latent_dim=2, scale=0.5, num_data=None, **kw):
        super().__init__()
        sizes = (in_features, *units)
        layers = [EVEModule(i, o, latent_dim, **kw) for i, o in zip(sizes, units, strict=False)]
        self.net = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))
        self.scale, self.num_data = scale, num_data

    def forward(self, x, y=None):
        rows = torch.arange(len(x))  # given, so that no noise is spent on choosing them
        with pyro.plate("data", self.num_data or len(x), subsample=rows, dim=-1):
            return pyro.sample("y", dist.Normal(self.net(x).squeeze(-1), self.scale), obs=y)


class Sequence(PyroModule):
    """One target per position, under ``plates`` = 0, 1 or 2 plates."""

    def __init__(self, plates, **kw):
        super().__init__()
        self.net = nn.Sequential(EVEModule(3, 4, **kw), EVEModule(4, 5, **kw), nn.Linear(5, 1))
        self.plates = plates

    def forward(self, x, y=None):
        if self.plates == 2:
            with pyro.plate("data", x.shape[0], dim=-2), pyro.plate("position", x.shape[1], dim=-1):
                return self.likelihood(x, 0, y)
        if self.plates == 1:
            with pyro.plate("data", x.shape[0], dim=-1):
                return self.likelihood(x, 1, y)
        return self.likelihood(x, 2, y)

    def likelihood(self, x, event_dim, y):
        loc = self.net(x).squeeze(-1)
        return pyro.sample("y", dist.Normal(loc, 0.5).to_event(event_dim), obs=y)


def data(rows=6, features=3, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, features, generator=generator, dtype=dtype)
    return x, torch.randn(rows, generator=generator, dtype=dtype)


def no_guide(*args):
    pass


def likelihood(loc, y, scale=1.0):
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(loc, scale), obs=y)
