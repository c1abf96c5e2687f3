"""One neuron under heteroscedastic noise: what its sigma learns depends on the objective."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from pyro.nn import PyroModule
from torch import nn

from eve_pyro import EVEGuide, EVEModule
from eve_pyro.infer import MCNLL_ELBO, LinearGaussianELBO


def true_scale(x):
    return 0.05 + 0.2 * (1 + torch.sin(1.5 * x + 0.4))


class Neuron(PyroModule):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.neuron = EVEModule(32, 1, emission="identity", beta=1e-3)
        self.head = nn.Linear(1, 1)
        self.log_scale = nn.Parameter(torch.tensor(-1.0))

    def forward(self, x, y=None):
        with pyro.plate("data", len(x), dim=-1):
            loc = self.head(self.neuron(self.trunk(x))).squeeze(-1)
            return pyro.sample("y", dist.Normal(loc, self.log_scale.exp()), obs=y)


@pytest.mark.parametrize(
    ("elbo", "lower", "upper"),
    [
        (MCNLL_ELBO(16), 0.9, 1.0),
        (LinearGaussianELBO(), 0.9, 1.0),
        # The optimum of the plain ELBO is one sigma for all inputs: what is left is noise.
        (TraceMeanField_ELBO(), -0.5, 0.5),
    ],
    ids=["mc-nll", "closed form", "plain elbo"],
)
def test_sigma_against_the_true_scale(elbo, lower, upper):
    pyro.set_rng_seed(0)
    x = torch.rand(2000, 1) * 6 - 3
    y = torch.sin(2 * x) + 0.3 * x + true_scale(x) * torch.randn_like(x)
    y = y.squeeze(-1)
    model = Neuron()
    objective = elbo(model, EVEGuide(model))
    epochs, batch = 200, 250
    steps = epochs * len(x) // batch
    optimizer = torch.optim.Adam(objective.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps))
    )
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            objective(x[rows], y[rows]).backward()
            optimizer.step()
            schedule.step()
    grid = torch.linspace(-3, 3, 400)
    with torch.no_grad():
        sigma = model.neuron.posterior(model.trunk(grid[:, None])).stddev.reshape(-1)
    r = torch.corrcoef(torch.stack([sigma, true_scale(grid)]))[0, 1].item()
    print(r)
    assert lower <= r <= upper
