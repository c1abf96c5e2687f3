"""Tables of units and layers, and their flags, each raised on purpose."""

import numpy as np
import pyro
import torch
from pyro.infer import SVI, TraceMeanField_ELBO
from small_models import Regression, data

from eve_pyro import EVEGuide
from eve_pyro.diagnostics import Thresholds, layer_table, posterior_statistics, unit_table

BAND = (-0.3, 0.4)


def test_layer_table_equals_reductions():
    model, x = Regression(units=(4, 6), beta=0.25), data(30)[0]
    stats = posterior_statistics(model, None, x, seed=0, band=BAND)
    table, units = layer_table(stats), unit_table(stats)
    assert list(table.index) == ["net.0", "net.1"]
    assert table.units.tolist() == [4, 6]
    assert len(units) == 10
    axes = [d for d in stats["mean"].dims if d != "layer"]
    for name in ("kl", "mean", "sigma", "variance", "energy", "band_occupancy", "saturation"):
        expected = stats[name].mean([a for a in axes if a in stats[name].dims])
        np.testing.assert_allclose(table[name], expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(
            table[name], units[name].groupby("layer").mean(), rtol=1e-6, atol=1e-9
        )
    np.testing.assert_allclose(table.sigma_min, stats.sigma.min(axes))
    np.testing.assert_allclose(table.sigma_max, stats.sigma.max(axes))
    total = stats.kl.sum("unit").mean("obs_id")
    np.testing.assert_allclose(table.kl_total, total, rtol=1e-5)
    np.testing.assert_allclose(table.kl_effective, 0.25 * total, rtol=1e-5)
    activity = stats["mean"].var("obs_id").max("latent")
    np.testing.assert_allclose(table.activity, activity.mean("unit"), rtol=1e-4)
    active = (activity > 0.01).sum("unit") / stats.units
    np.testing.assert_allclose(table.active_fraction, active)
    np.testing.assert_allclose(
        table.active_fraction, units.active.groupby("layer").mean().to_numpy()
    )


def flags(model, x):
    stats = posterior_statistics(model, None, x, seed=0)
    return layer_table(stats), unit_table(stats)


def test_a_healthy_model_has_no_flags():
    layers, units = flags(Regression(units=(16, 16)), data(100)[0])
    assert not layers[["collapsed", "saturated"]].any(axis=None)
    assert not units[["dead", "saturated"]].any(axis=None)
    assert (layers.active_fraction == 1).all()


def test_training_with_a_large_beta_collapses():
    model, (x, y) = Regression(units=(8,), beta=100.0), data(60)
    svi = SVI(model, EVEGuide(model), pyro.optim.Adam({"lr": 0.03}), TraceMeanField_ELBO())
    for _ in range(400):
        svi.step(x, y)
    layers, units = flags(model, x)
    assert layers.collapsed.all()
    assert units.dead.mean() >= 0.95
    assert not layers.saturated.any()


def test_dead_unit_and_saturated_sigma():
    model, x = Regression(units=(8, 8), latent_dim=1), data(100)[0]
    first, second = model.net[0].encoder, model.net[1].encoder
    with torch.no_grad():
        for part in (first.loc, first.log_scale):  # unit 3 becomes the prior
            part.weight[3] = 0.0
            part.bias[3] = 0.0
        second.log_scale.bias.fill_(-20.0)
    layers, units = flags(model, x)
    dead = units[units.dead]
    assert list(dead.index) == [("net.0", 3)]
    assert layers.dead_fraction.tolist() == [1 / 8, 0.0]
    assert layers.saturated.tolist() == [False, True]
    assert units.saturated.loc["net.1"].all()
    assert not units.saturated.loc["net.0"].any()
    assert not layers.collapsed.any()
    strict = Thresholds(kl=100.0, activity=100.0)
    stats = posterior_statistics(model, None, x)
    assert layer_table(stats, strict).collapsed.all()


def test_one_input_has_no_activity():
    table = layer_table(posterior_statistics(Regression(), None, data(1)[0]))
    assert table[["activity", "active_fraction", "dead_fraction"]].isna().all(axis=None)
    assert not table.collapsed.any()
