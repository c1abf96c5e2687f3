"""A log sigma of low rank: its parameters, its start, its state."""

import copy
import math

import pytest
import torch
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from pyro.optim import Adam
from small_models import Regression, data
from torch import nn

from eve_pyro import EVEGuide, EVEModule
from eve_pyro.nn import MLP, DeterministicCell, GaussianEncoder


def count(module):
    return sum(p.numel() for p in module.parameters())


def weight(encoder):
    """The matrix V of log sigma = V h + c."""
    h = torch.eye(encoder.in_features)
    return (encoder.log_scale(h) - encoder.log_scale(torch.zeros(1, encoder.in_features))).T


@pytest.mark.parametrize("unit", [EVEModule, DeterministicCell, GaussianEncoder])
@pytest.mark.parametrize("latent_dim", [1, 2])
def test_parameters_saved(unit, latent_dim):
    full, low = unit(10, 8, latent_dim), unit(10, 8, latent_dim, sigma_rank=3)
    rows = 8 * latent_dim
    assert count(full) - count(low) == 10 * rows - 3 * (10 + rows)


def test_log_sigma_has_the_rank_and_the_formula():
    encoder, h = GaussianEncoder(10, 8, 2, sigma_rank=3), torch.randn(5, 10)
    assert torch.linalg.matrix_rank(weight(encoder), rtol=1e-4) == 3
    a, b = (m.weight for m in encoder.log_scale)
    log_sigma = (h @ a.T @ b.T + encoder.log_scale[-1].bias).clamp(-7, 2)
    expected = log_sigma.exp().unflatten(-1, (2, 8)).mT
    torch.testing.assert_close(encoder(h).stddev, expected)


@pytest.mark.parametrize("rank", [3, 4, 100])
def test_a_rank_that_bounds_nothing_is_the_full_matrix(rank):
    full, free = GaussianEncoder(3, 4, sigma_rank=rank), GaussianEncoder(3, 4)
    assert free.state_dict().keys() == full.state_dict().keys()
    assert isinstance(full.log_scale, nn.Linear)
    assert isinstance(GaussianEncoder(4, 3, sigma_rank=rank).log_scale, nn.Linear)


def test_one_rank_fits_all_layers_of_a_network():
    trunk = MLP(3, [16, 16, 2], sigma_rank=4)
    encoders = [m for m in trunk.modules() if isinstance(m, GaussianEncoder)]
    assert [isinstance(e.log_scale, nn.Sequential) for e in encoders] == [False, True, False]


def test_sigma_starts_near_its_initial_value_and_depends_on_the_input():
    sigma = GaussianEncoder(128, 64, sigma_rank=8, sigma_init=0.2)(torch.randn(500, 128)).stddev
    assert (sigma.log() - math.log(0.2)).abs().max() < 0.5
    assert (sigma.std(0) > 1e-4).all()


def test_gradients_reach_both_factors_from_the_start():
    model = Regression(in_features=6, units=(6, 6), sigma_rank=2)
    TraceMeanField_ELBO()(model, EVEGuide(model))(*data(features=6)).backward()
    for layer in list(model.net)[:2]:
        for p in layer.encoder.log_scale.parameters():
            assert (p.grad != 0).all()


def test_it_trains():
    model = Regression(in_features=6, units=(6, 6), sigma_rank=2)
    x, y = data(rows=20, features=6)
    before = {k: p.detach().clone() for k, p in model.named_parameters()}
    svi = SVI(model, EVEGuide(model), Adam({"lr": 0.01}), Trace_ELBO())
    losses = [svi.step(x, y) for _ in range(100)]
    assert sum(losses[-20:]) < 0.8 * sum(losses[:20])
    assert not [k for k, p in model.named_parameters() if torch.equal(p, before[k])]


def test_state_copies_reset_and_dtype():
    layer, h = EVEModule(6, 5, 2, sigma_rank=2, dtype=torch.float64), torch.randn(3, 6).double()
    expected = layer.posterior(h).stddev
    assert expected.dtype == torch.float64
    twin = EVEModule(6, 5, 2, sigma_rank=2, dtype=torch.float64)
    twin.load_state_dict(layer.state_dict())
    for other in (twin, copy.deepcopy(layer)):
        assert torch.equal(other.posterior(h).stddev, expected)
    for p in layer.parameters():
        nn.init.constant_(p, 7.0)
    layer.reset_parameters()
    assert not any((p == 7.0).any() for p in layer.parameters())
    zero = torch.zeros_like(h)
    torch.testing.assert_close(layer.posterior(zero).stddev, twin.posterior(zero).stddev)
    assert "sigma_rank=2" in repr(layer)
    assert "sigma_rank" not in repr(EVEModule(6, 5))


@pytest.mark.parametrize("unit", [EVEModule, DeterministicCell, GaussianEncoder])
def test_bad_ranks(unit):
    for rank in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="sigma_rank must be an integer >= 1"):
            unit(6, 5, sigma_rank=rank)
    for sigma in ("unit", "layer"):
        with pytest.raises(ValueError, match=f"sigma_rank needs sigma=.*got sigma='{sigma}'"):
            unit(6, 5, sigma=sigma, sigma_rank=2)
