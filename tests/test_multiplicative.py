"""Multiplicative noise: its law, its gradients, and its place in the library."""

import pyro
import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from torch import nn

from eve_pyro import EVEGuide
from eve_pyro.infer import PosteriorMean
from eve_pyro.nn import MLP, GaussianHead, Network, NoiseEncoder, multiplicative_unit


@pytest.mark.parametrize("law", ["log-normal", "gaussian"])
@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_the_factor_has_mean_one_and_the_right_spread(law, alpha):
    layer = multiplicative_unit(3, 4, alpha=alpha, law=law, activation="identity")
    nn.init.zeros_(layer.emission.dense.weight)
    nn.init.ones_(layer.emission.dense.bias)  # the activation is the factor
    n = 40_000
    q = layer.posterior(torch.zeros(n, 3))
    a = layer.emission(q.rsample(), torch.zeros(n, 3))
    variance = torch.tensor(alpha**2).expm1() if law == "log-normal" else torch.tensor(alpha**2)
    assert a.mean().item() == pytest.approx(1.0, abs=5 * (variance / (4 * n)).sqrt().item())
    assert a.var().item() == pytest.approx(variance.item(), rel=0.05)


def test_fixed_noise_costs_nothing_and_has_no_parameter():
    net = Network(MLP(3, [5, 5], unit=multiplicative_unit, alpha=0.3), GaussianHead(5))
    names = {name for name, _ in net.named_parameters()}
    assert all("encoder" not in name for name in names)
    guide, x = EVEGuide(net), torch.randn(6, 3)
    guide(x, x[:, 0])
    model_trace, guide_trace = guide.get_traces()
    site = guide_trace.nodes["trunk.layer0"]
    assert site["scale"].item() == 0.0
    assert model_trace.nodes["trunk.layer0"]["scale"].item() == 0.0
    # At the posterior mean the noise is nearly 1: exp(-alpha^2 / 2).
    with PosteriorMean():
        guide(x)
    h = net.trunk.layer0.emission.dense(x).relu() * torch.tensor(-(0.3**2) / 2).exp()
    h = net.trunk.layer1.emission.dense(h).relu() * torch.tensor(-(0.3**2) / 2).exp()
    found = guide.trace.nodes["y"]["fn"].loc
    torch.testing.assert_close(found, net.head.loc(h).squeeze(-1))


def test_learned_noise_stays_above_its_floor_and_is_priced():
    layer = multiplicative_unit(3, 5, alpha=0.4, learn=True, floor=0.25)
    net = Network(nn.Sequential(layer), GaussianHead(5))
    assert layer.beta.item() == pytest.approx(1e-3)
    x = torch.randn(64, 3)
    y = x.sum(-1)
    loss = TraceMeanField_ELBO()(net, EVEGuide(net))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(200):  # noise that the data would rather silence
        optimizer.zero_grad()
        loss(x, y).backward()
        optimizer.step()
    q = layer.posterior(x)
    assert (q.stddev >= 0.25).all()
    assert q.stddev.mean() < 0.4
    assert layer.encoder.raw.grad.abs().min() > 0
    layer.reset_parameters()
    torch.testing.assert_close(layer.posterior(x).stddev, torch.full((64, 5, 1), 0.4))


def test_noise_differs_between_data_and_units_and_follows_the_seed():
    layer = multiplicative_unit(3, 4)
    x = torch.ones(5, 3)

    def draw():
        pyro.set_rng_seed(0)
        guide = EVEGuide(layer)
        with pyro.plate("data", 5):
            guide(x)
        return guide.trace.nodes[layer.site]["value"]

    z = draw()
    assert z.unique().numel() == 20
    assert torch.equal(z, draw())


def test_latent_dims_dtype_and_copies():
    layer = multiplicative_unit(3, 4, latent_dim=2, dtype=torch.float64, learn=True)
    h = torch.randn(2, 5, 3, dtype=torch.float64)
    assert layer(h).shape == (2, 5, 4)
    assert layer(h).dtype == torch.float64
    other = multiplicative_unit(3, 4, latent_dim=2, dtype=torch.float64, learn=True, alpha=0.9)
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other.posterior(h).stddev, layer.posterior(h).stddev)
    assert "law='log-normal'" in repr(layer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.0}, r"alpha must be .* got 0.0"),
        ({"alpha": 0.2, "floor": 0.3}, r"floor must be below alpha=0.2, got 0.3"),
        ({"law": "cauchy"}, r"law must be one of 'log-normal', 'gaussian', got 'cauchy'"),
        ({"activation": "swish"}, r"activation must be one of .* got 'swish'"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        multiplicative_unit(3, 4, **options)
    with pytest.raises(ValueError, match="out_features must be an integer"):
        NoiseEncoder(0)
