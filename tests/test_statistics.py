"""Posterior statistics against loops over units, however they are streamed."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.infer.autoguide import AutoNormal
from small_models import Regression, Sequence, data
from torch import nn

from eve_pyro import EVEGuide, EVEModule
from eve_pyro.diagnostics import (
    internal_signals,
    layer_table,
    posterior_statistics,
    unit_statistics,
    unit_table,
)
from eve_pyro.nn import MLP, GaussianHead, LatentNormal, Network, StandardNormal

BAND = (-0.3, 0.4)


def gaussian_kl(mu, sigma, mu0, sigma0):
    ratio = (sigma**2 + (mu - mu0) ** 2) / sigma0**2
    return 0.5 * (ratio - 1.0) - math.log(sigma / sigma0)


def check_against_loops(stats, guide, position):
    """Compare with numbers computed one by one from the trace of the same pass."""
    for layer in stats.layer.values:
        node = guide.trace.nodes[str(layer)]
        q, p = node["fn"].base_dist, node["infer"]["prior"].base_dist
        at = stats.sel(layer=layer)
        lower, upper = float(at.log_sigma_lower), float(at.log_sigma_upper)
        for index in np.ndindex(*q.batch_shape[:-1]):
            mu, sigma = q.loc[index].tolist(), q.scale[index].tolist()
            mu0, sigma0 = p.loc[index].tolist(), p.scale[index].tolist()
            energy = sum(m * m for m in mu) / len(mu)
            logs = [math.log(s) for s in sigma]
            expected = {
                "kl": sum(map(gaussian_kl, mu, sigma, mu0, sigma0)),
                "mean": mu,
                "sigma": sigma,
                "variance": [s * s for s in sigma],
                "energy": energy,
                "band_occupancy": sum(BAND[0] <= m <= BAND[1] for m in mu) / len(mu),
                "energy_band_occupancy": float(BAND[0] <= energy <= BAND[1]),
                "saturation": sum(s < lower + 1e-3 or s > upper - 1e-3 for s in logs) / len(mu),
            }
            where = {"obs_id": index[0], "unit": index[-1]}
            if position:
                where["position"] = index[1]
            for name, value in expected.items():
                found = np.atleast_1d(at[name].isel(where).values)[: len(mu)]
                np.testing.assert_allclose(found, np.atleast_1d(value), rtol=2e-5, atol=1e-6)


def traced(model, *args, seed=0):
    guide = EVEGuide(model)
    model.eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        guide(*args)
    return guide


class WidePrior(nn.Module):
    def forward(self, h):
        shift = 0.1 * h.mean(-1)[..., None, None]
        return LatentNormal(shift, torch.full_like(shift, 2.0))


def test_statistics_equal_loops():
    model, x = Regression(prior=WidePrior(), log_sigma_bounds=(-1.25, 2.0)), data(7)[0]
    stats = posterior_statistics(model, None, x, band=BAND, seed=3)
    assert stats.kl.dims == ("obs_id", "layer", "unit")
    assert stats["mean"].dims == ("obs_id", "layer", "unit", "latent")
    assert 0 < float(stats.saturation.mean()) < 1
    check_against_loops(stats, traced(model, x, seed=3), position=False)


@pytest.mark.parametrize("plates", [0, 1, 2])
def test_sequences_equal_loops(plates):
    model, x = Sequence(plates, latent_dim=2), torch.randn(5, 3, 3)
    stats = posterior_statistics(model, None, x, band=BAND, seed=0)
    assert dict(stats["mean"].sizes) == {
        "obs_id": 5,
        "layer": 2,
        "position": 3,
        "unit": 5,
        "latent": 2,
    }
    check_against_loops(stats, traced(model, x), position=True)


def test_layers_of_different_shape_are_padded_with_nan():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = EVEModule(3, 6, latent_dim=1)
            self.pooled = EVEModule(6, 2, latent_dim=3, position_dims=0)

        def forward(self, x):
            return self.pooled(self.tokens(x).mean(1))

    model, x = Pooled(), torch.randn(5, 4, 3)
    stats = posterior_statistics(model, None, x)
    sizes = [stats[n].values.tolist() for n in ("positions", "units", "latents")]
    assert sizes == [[4, 1], [6, 2], [1, 3]]
    for name, (positions, units, latents) in zip(
        ("tokens", "pooled"), zip(*sizes, strict=True), strict=True
    ):
        present = stats["sigma"].sel(layer=name).notnull()
        own = (present.position < positions) & (present.unit < units) & (present.latent < latents)
        assert present.equals(own.broadcast_like(present).transpose(*present.dims))
    table = layer_table(stats)
    q = model.tokens.posterior(x)
    kl = torch.distributions.kl_divergence(q, dist.Normal(0.0, 1.0))
    assert table.kl["tokens"] == pytest.approx(kl.mean().item(), rel=1e-5)
    assert table.kl_total["tokens"] == pytest.approx(kl.sum((-1, -2)).mean().item(), rel=1e-5)
    variance = q.mean.flatten(0, 1).var(0, correction=0).amax(-1)
    np.testing.assert_allclose(
        unit_table(stats).loc["tokens"].activity, variance.detach(), rtol=1e-4
    )


def test_float64_is_kept():
    model, (x, _) = Regression(dtype=torch.float64).double(), data(4, dtype=torch.float64)
    stats = posterior_statistics(model, None, x)
    assert {str(stats[name].dtype) for name in stats} == {"float64"}
    assert posterior_statistics(model.float(), None, x.float()).kl.dtype == np.float32


@settings(max_examples=25, deadline=None, database=None)
@given(rows=st.integers(1, 23), batch_size=st.integers(1, 30))
def test_streaming_changes_nothing(rows, batch_size):
    # Without noise: draws depend on the order in which batches and layers consume random numbers.
    model, x = Regression(), data(rows)[0]
    guide = EVEGuide(model)
    kept = posterior_statistics(model, guide, x, at="mean")
    streamed = posterior_statistics(model, guide, x, at="mean", batch_size=batch_size)
    units = posterior_statistics(model, guide, x, at="mean", batch_size=batch_size, keep="units")
    for name in kept:
        np.testing.assert_allclose(streamed[name], kept[name], rtol=1e-5, atol=1e-6)
    reference = unit_statistics(kept)
    assert set(units) == set(reference)
    assert units.attrs == reference.attrs
    for name in units:
        np.testing.assert_allclose(units[name], reference[name], rtol=1e-5, atol=1e-6)


def test_draws_reach_deeper_layers_only():
    model, x = Regression(sigma_init=1.0), data(8)[0]
    a, b = (posterior_statistics(model, None, x, seed=s) for s in (0, 1))
    again = posterior_statistics(model, None, x, seed=0)
    assert a.identical(again)
    first, second = a.layer.values
    assert np.array_equal(a["mean"].sel(layer=first), b["mean"].sel(layer=first), equal_nan=True)
    assert not np.array_equal(
        a["mean"].sel(layer=second), b["mean"].sel(layer=second), equal_nan=True
    )


def test_state_is_left_alone():
    model, x = Regression(), data()[0]
    model.train()
    before = torch.get_rng_state()
    posterior_statistics(model, None, x, seed=5)
    assert torch.equal(before, torch.get_rng_state())
    assert model.training
    assert torch.is_grad_enabled()
    assert not list(pyro.get_param_store())


def test_kl_without_closed_form_is_estimated():
    class Student(nn.Module):
        def forward(self, h):
            return dist.StudentT(5.0, h.new_zeros(1, 1), 1.0)

    torch.manual_seed(0)
    net = EVEModule(3, 4, prior=Student())
    x = torch.randn(4000, 3)
    kl = float(posterior_statistics(net, None, x, seed=0).kl.mean())
    q, p = net.posterior(x), dist.StudentT(5.0, 0.0, 1.0)
    z = q.sample((20,))
    expected = (q.log_prob(z) - p.log_prob(z)).mean().item()
    assert kl == pytest.approx(expected, rel=0.03)


def test_bounds_unknown_to_the_encoder():
    class Encoder(nn.Linear):
        def forward(self, h):
            loc = super().forward(h).unsqueeze(-1)
            return LatentNormal(loc, torch.ones_like(loc))

    stats = posterior_statistics(EVEModule(3, 4, encoder=Encoder(3, 4)), None, torch.randn(5, 3))
    assert stats.saturation.isnull().all()
    assert not layer_table(stats).saturated.any()
    assert not unit_table(stats).saturated.any()


def test_large_results_are_refused_with_their_size():
    model, x = Regression(), data(100)[0]
    numbers = 100 * 2 * 5 * (5 + 3 * 2)  # rows, layers, units, variables
    with pytest.raises(ValueError, match=f"max_bytes must be at least {4 * numbers} .* got 1000"):
        posterior_statistics(model, None, x, max_bytes=1000)
    stats = posterior_statistics(model, None, x, max_bytes=4 * numbers)
    assert sum(stats[name].nbytes for name in stats) == 4 * numbers
    posterior_statistics(model, None, x, max_bytes=1000, keep="units")


def test_errors_name_the_argument():
    model, x = Regression(), data()[0]
    with pytest.raises(ValueError, match="model must have an EVEModule"):
        posterior_statistics(nn.Linear(3, 1), None, x)
    with pytest.raises(ValueError, match="model must be the module"):
        posterior_statistics(lambda x: x, None, x)
    with pytest.raises(ValueError, match=r"band must be .* got \(1, -1\)"):
        posterior_statistics(model, None, x, band=(1, -1))
    with pytest.raises(ValueError, match="batch_size must be an integer >= 1, got 0"):
        posterior_statistics(model, None, x, batch_size=0)
    with pytest.raises(ValueError, match="rows"):
        posterior_statistics(model, None, x[:0])
    with pytest.raises(ValueError, match="rows"):
        posterior_statistics(model, None)
    with pytest.raises(ValueError, match="at must be one of"):
        posterior_statistics(model, None, x, at="mode")
    with pytest.raises(ValueError, match="keep must be one of"):
        posterior_statistics(model, None, x, keep="layers")
    for guide in (AutoNormal, AutoNormal(model), EVEGuide(model, AutoNormal)):
        with pytest.raises(ValueError, match="guide must be fitted, got an AutoNormal"):
            posterior_statistics(model, guide, x)
    with pytest.raises(ValueError, match="stats must be a result of posterior_statistics"):
        layer_table(posterior_statistics(model, None, x)[["kl"]])

    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = EVEModule(3, 2)

        def forward(self, x):
            return x

    class Transposed(Idle):
        def forward(self, x):
            return self.layer(x.transpose(0, 1))

    with pytest.raises(ValueError, match="a pass without any"):
        posterior_statistics(Idle(), None, x)
    with pytest.raises(ValueError, match="must be the 6 rows of the batch"):
        posterior_statistics(Transposed(), None, torch.randn(6, 4, 3))


def test_a_fitted_guide_for_other_latents_is_used():
    class Scaled(Regression):
        def forward(self, x, y=None):
            scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
            return super().forward(x * scale, y)

    model, (x, y) = Scaled(), data()
    guide = EVEGuide(model, AutoNormal)
    guide(x, y)
    guide.guide.locs.scale.data.fill_(20.0)
    guide.guide.scales.scale = 1e-4
    stats = posterior_statistics(model, guide, x, at="mean")
    q = model.net[0].posterior(x * math.exp(20.0))
    np.testing.assert_allclose(
        stats["mean"].sel(layer="net.0").values[:, :4], q.mean.detach(), rtol=2e-3
    )


def test_function_model_with_a_named_network():
    net = nn.Sequential(EVEModule(3, 4), nn.Linear(4, 1))

    def model(x, y=None):
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(net(x).squeeze(-1), 1.0), obs=y)

    stats = posterior_statistics(net, EVEGuide(model), data()[0])
    assert stats.sizes["obs_id"] == 6
    assert isinstance(net[0].prior, StandardNormal)


def test_a_guide_of_another_model_is_refused():
    one, two = (Network(MLP(3, [4, 5]), GaussianHead(5)) for _ in range(2))
    guide = EVEGuide(one)
    EVEGuide(two)
    with pytest.raises(ValueError, match="guide must be one of this very model"):
        posterior_statistics(two, guide, torch.randn(6, 3))


@pytest.mark.parametrize("where", ["weight", "input"])
def test_numbers_that_are_not_finite_are_no_absence(where):
    network, x = Network(MLP(3, [4, 5]), GaussianHead(5)), torch.randn(6, 3)
    if where == "weight":
        network.trunk.layer1.encoder.loc.weight.data[0] = torch.nan
    else:
        x[2] = torch.nan
    with pytest.raises(ValueError, match=r"posterior of site 'trunk\.layer[01]' is not finite"):
        posterior_statistics(network, None, x)


def test_signals_by_position_need_positions_in_every_layer():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = EVEModule(4, 3), EVEModule(3, 2)

        def forward(self, x):
            return self.b(self.a(x).mean(-2))

    stats = posterior_statistics(Pooled(), None, torch.randn(5, 6, 4))
    assert internal_signals(stats, (5,))["kl"].shape == (5,)
    with pytest.raises(ValueError, match="same number of positions"):
        internal_signals(stats)
