"""What ArviZ makes of the draws that to_arviz gives it."""

import arviz as az
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from arviz_lines import (
    check_drawn,
    compare,
    hdi,
    loo,
    loo_pit,
    plot_layers,
    plot_predictive,
    plot_trace,
    third_party_warnings,
)
from scipy.stats import norm
from small_models import Regression, data

from eve_pyro import EVEGuide
from eve_pyro.diagnostics import get_group, group_names, load_netcdf, save_netcdf, to_arviz
from eve_pyro.nn import MLP, DropoutUnit, GaussianHead, Network

pytestmark = third_party_warnings


def values(idata, group, name):
    return get_group(idata, group)[name].values


@pytest.fixture(scope="module")
def regression():
    torch.manual_seed(3)
    model = Regression()
    x, y = data(rows=20)
    return model, x, y, to_arviz(model, EVEGuide(model), x, observed=y, num_samples=400, seed=0)


def location(x, y=None):
    """theta ~ N(0, 4), y_n ~ N(theta, 1): the posterior is known."""
    theta = pyro.sample("theta", dist.Normal(0.0, 2.0))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(theta, 1.0), obs=y)


def exact_posterior(y):
    variance = 1 / (1 / 4 + len(y))
    return variance * y.sum(), variance


def exact_guide(y):
    def guide(x):
        loc, variance = exact_posterior(y)
        pyro.sample("theta", dist.Normal(loc, variance**0.5))

    return guide


def test_summary_and_hdi_of_a_latent(regression):
    model, x, _, idata = regression
    q = model.net[0].posterior(x)
    table = az.summary(idata, var_names=["net.0"], kind="stats", round_to="none").astype(float)
    mean = q.mean.detach().flatten().numpy()
    np.testing.assert_allclose(table["mean"], mean, atol=5 * q.stddev.max().item() / 20)
    # Normal latents: the interval is central.
    interval = hdi(idata, "net.0", 0.8).reshape(-1, 2)
    expected = norm.interval(0.8, mean, q.stddev.detach().flatten().numpy())
    np.testing.assert_allclose(interval, np.stack(expected, -1), atol=0.6 * q.stddev.max().item())
    np.testing.assert_allclose(interval.mean(0), np.mean(expected, 1), atol=0.02)


def test_loo_is_the_importance_sampling_identity(regression):
    *_, idata = regression
    elpd, terms, k = loo(idata)
    log_likelihood = values(idata, "log_likelihood", "y")[0].astype(np.float64)
    direct = -np.log(np.exp(-log_likelihood).mean(0))
    easy = k < 0.5
    assert easy.sum() > 10
    np.testing.assert_allclose(terms[easy], direct[easy], atol=0.05)
    assert elpd == pytest.approx(terms.sum())
    # The latents of a row have not seen its target: leaving it out can only lower its score.
    assert (terms <= np.log(np.exp(log_likelihood).mean(0)) + 1e-6).all()


def test_loo_of_an_exact_posterior_is_the_closed_form():
    y = 1.0 + torch.randn(20, generator=torch.Generator().manual_seed(0))
    idata = to_arviz(
        location, exact_guide(y), torch.zeros(20, 1), observed=y, num_samples=2000, seed=0
    )
    exact = []
    for i in range(20):
        loc, variance = exact_posterior(torch.cat((y[:i], y[i + 1 :])))
        exact.append(norm.logpdf(y[i], loc, (1 + variance) ** 0.5))
    elpd, terms, _ = loo(idata)
    np.testing.assert_allclose(terms, exact, atol=0.05)
    assert elpd == pytest.approx(sum(exact), abs=0.1)
    pit = loo_pit(idata)
    expected = norm.cdf(y, values(idata, "posterior", "theta").mean(), 1.0)
    np.testing.assert_allclose(pit, expected, atol=0.08)


def test_compare_with_a_control(regression):
    *_, x, y, idata = regression
    control = Network(MLP(3, [4, 5], unit=DropoutUnit, p=0.2), GaussianHead(5, scale_init=0.5))
    drawn = to_arviz(control, None, x, observed=y, num_samples=400, seed=0)
    ranked, elpd = compare({"eve": idata, "dropout": drawn})
    scores = {"eve": loo(idata)[0], "dropout": loo(drawn)[0]}
    assert ranked == sorted(scores, key=scores.get, reverse=True)
    for name, score in scores.items():
        assert elpd[name] == pytest.approx(score, rel=1e-4)


def test_plots_and_files(regression, tmp_path):
    *_, idata = regression
    loaded = load_netcdf(save_netcdf(idata, tmp_path / "draws.nc"))
    for group in group_names(idata):
        assert get_group(loaded, group).identical(get_group(idata, group))
    for draw in (
        lambda: plot_predictive(loaded),
        lambda: plot_layers(loaded, "kl"),
        lambda: plot_trace(loaded, "net.0", obs_id=[0], latent=[0]),
    ):
        draw()
        check_drawn()
