"""to_arviz: what lands in ArviZ's groups."""

import arviz as az
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoNormal
from small_models import Regression, Sequence, data

from eve_pyro import EVEGuide, EVEModule
from eve_pyro.diagnostics import (
    get_group,
    group_names,
    to_arviz,
)
from eve_pyro.nn import (
    MLP,
    BayesianDense,
    CategoricalHead,
    Dense,
    DropoutUnit,
    GaussianHead,
    Network,
    is_eve_site,
)


def values(idata, group, name):
    return get_group(idata, group)[name].values


@pytest.fixture(scope="module")
def regression():
    torch.manual_seed(3)
    model = Regression()
    x, y = data(rows=20)
    return model, x, y, to_arviz(model, EVEGuide(model), x, observed=y, num_samples=400, seed=0)


# What the groups hold


def test_groups_and_dims(regression):
    *_, idata = regression
    assert set(group_names(idata)) == {
        *("posterior", "posterior_predictive", "prior", "prior_predictive", "log_likelihood"),
        *("sample_stats", "observed_data", "constant_data"),
    }
    for group in ("posterior", "prior"):
        z = get_group(idata, group)["net.1"]
        assert z.dims == ("chain", "draw", "obs_id", "net.1.unit", "latent")
        assert z.shape == (1, 400, 20, 5, 2)
    for group in ("posterior_predictive", "prior_predictive", "log_likelihood"):
        assert get_group(idata, group)["y"].dims == ("chain", "draw", "obs_id")
    stats = get_group(idata, "sample_stats")
    assert stats["kl"].dims == ("chain", "draw", "layer")
    assert stats["layer"].values.tolist() == ["net.0", "net.1"]
    assert stats["net.0.sigma"].dims == ("chain", "draw", "net.0.unit")


def test_layers_of_one_width_share_their_dims():
    network = Network(MLP(3, [4, 4]), GaussianHead(4))
    posterior = get_group(to_arviz(network, None, data()[0], num_samples=2), "posterior")
    assert {z.dims[2:] for z in posterior.data_vars.values()} == {("obs_id", "unit", "latent")}


def test_data_and_attributes(regression):
    _, x, y, idata = regression
    np.testing.assert_array_equal(values(idata, "observed_data", "y"), y)
    np.testing.assert_array_equal(values(idata, "constant_data", "x"), x)
    attrs = get_group(idata, "posterior").attrs
    assert attrs["inference"] == "i.i.d. draws of a variational posterior"
    assert attrs["torch_version"] == torch.__version__
    assert attrs["pyro_version"] == pyro.__version__
    assert attrs["arviz_version"] == az.__version__
    assert attrs["seed"] == idata.attrs["seed"] == 0


def test_the_log_likelihood_belongs_to_the_draw(regression):
    model, x, y, idata = regression
    for s in (0, 7):
        sites = ("net.0", "net.1")
        z = {n: torch.tensor(values(idata, "posterior", n)[0, s]) for n in sites}
        with torch.no_grad():
            trace = poutine.trace(poutine.condition(model, z)).get_trace(x, y)
        expected = trace.nodes["y"]["fn"].log_prob(y)
        got = values(idata, "log_likelihood", "y")[0, s]
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_plate_scales_leave_the_log_likelihood_alone():
    torch.manual_seed(0)
    model = Regression(num_data=600)
    x, y = data()
    scaled = to_arviz(model, None, x, observed=y, num_samples=3, seed=0)
    model.num_data = None
    plain = to_arviz(model, None, x, observed=y, num_samples=3, seed=0)
    a, b = (values(i, "log_likelihood", "y") for i in (scaled, plain))
    np.testing.assert_array_equal(a, b)


def test_statistics_of_the_first_layer_are_closed_forms(regression):
    model, x, _, idata = regression
    with torch.no_grad():
        q = model.net[0].posterior(x)
        kl = torch.distributions.kl_divergence(q, dist.Normal(0.0, 1.0)).sum(-1).mean(0)
    stats = get_group(idata, "sample_stats")
    expected = {
        "kl": (kl, kl.sum()),
        "sigma": (q.stddev.mean((0, -1)), q.stddev.mean()),
        "mean_energy": (q.mean.square().mean((0, -1)), q.mean.square().mean()),
    }
    for name, (units, layer) in expected.items():
        for s in (0, -1):  # nothing is drawn ahead of this layer
            got = stats[f"net.0.{name}"].values[0, s]
            np.testing.assert_allclose(got, units.detach(), rtol=1e-5)
            first = stats[name].sel(layer="net.0").values[0, s]
            assert first == pytest.approx(layer.item(), rel=1e-5)
    assert stats["kl"].sel(layer="net.1").values.std() > 0  # its parents are


def test_posterior_and_prior_draws_have_their_moments(regression):
    model, x, _, idata = regression
    q = model.net[0].posterior(x)
    z, prior = (values(idata, group, "net.0")[0] for group in ("posterior", "prior"))
    sigma = q.stddev.detach().numpy()
    # 160 entries, each within 5 standard errors: a false alarm has probability 1e-4.
    error = (z.mean(0) - q.mean.detach().numpy()) / (sigma / 20)
    assert np.abs(error).max() < 5
    assert np.abs(prior.mean(0) * 20).max() < 5
    assert prior.std() == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("plates", [0, 1, 2])
def test_positions_are_a_dim(plates):
    model = Sequence(plates)
    x, y = torch.randn(6, 7, 3), torch.randn(6, 7)
    idata = to_arviz(model, None, x, observed=y, num_samples=2)
    z = get_group(idata, "posterior")["net.0"]
    assert z.dims == ("chain", "draw", "obs_id", "position", "net.0.unit", "latent")
    # What a plate covers is a datum; without plates it is a row.
    terms = get_group(idata, "log_likelihood")["y"]
    assert terms.dims[2:] == (("obs_id", "position") if plates == 2 else ("obs_id",))


def test_labels_of_classes_and_masks():
    network = Network(MLP(3, [4, 4], unit=DropoutUnit), CategoricalHead(4, 3))
    x, labels = data()[0], torch.tensor([0, 1, 2, 0, 1, 2])
    idata = to_arviz(network, None, x, observed=labels, num_samples=3)
    masks = get_group(idata, "posterior")["trunk.layer0.dropout"]
    assert masks.dims == ("chain", "draw", "obs_id", "unit")
    assert "sample_stats" not in group_names(idata)
    assert values(idata, "posterior_predictive", "y").dtype == np.int64
    assert (values(idata, "log_likelihood", "y") < 0).all()


def test_weights_keep_their_own_dims_and_local_latents_have_rows():
    def model(x, y=None):
        weight = pyro.sample("weight", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
            return pyro.sample("y", dist.Normal(x @ weight + shift, 1.0), obs=y)

    x, _ = data()
    posterior = get_group(to_arviz(model, None, x, new_data=x[:2], num_samples=2), "posterior")
    assert posterior["weight"].dims[2:] == ("weight_dim_0",)
    assert posterior["shift"].dims[2:] == ("obs_id",)
    assert posterior["shift"].shape == (1, 2, 6)


# Several models, new rows, what is kept


def test_each_of_several_models_is_a_chain():
    torch.manual_seed(0)
    models = [Regression(), Regression()]
    x, _ = data()
    guides = [EVEGuide(m) for m in models]
    idata = to_arviz(models, guides, x, num_samples=3, seed=0, coords={"chain": [41, 42]})
    posterior = get_group(idata, "posterior")
    assert posterior["chain"].values.tolist() == [41, 42]
    for seed, model in zip((41, 42), models, strict=True):
        q = model.net[0].posterior(x)
        got = get_group(idata, "sample_stats")["sigma"].sel(layer="net.0", chain=seed).values
        np.testing.assert_allclose(got, q.stddev.mean().item(), rtol=1e-5)


def test_predictions_share_the_weights_of_their_draw():
    def model(x, y=None):
        theta = pyro.sample("theta", dist.Normal(0.0, 2.0))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(theta, 1e-3), obs=y)

    x, new = torch.zeros(4, 1), torch.zeros(3, 1)
    idata = to_arviz(model, None, x, new_data=new, num_samples=20)
    theta = values(idata, "posterior", "theta")
    predictions = get_group(idata, "predictions")["y"]
    assert predictions.dims == ("chain", "draw", "pred_id")
    assert predictions.shape == (1, 20, 3)
    np.testing.assert_allclose(predictions.values, theta[..., None] + np.zeros(3), atol=6e-3)
    assert values(idata, "predictions_constant_data", "x").shape == (3, 1)
    assert values(idata, "posterior_predictive", "y").shape == (1, 20, 4)


def test_what_is_not_wanted_is_left_out():
    idata = to_arviz(Regression(), None, data()[0], num_samples=2, prior=False, latents=["net.1"])
    assert list(get_group(idata, "posterior").data_vars) == ["net.1"]
    assert not {"prior", "prior_predictive", "observed_data"} & set(group_names(idata))


def test_one_seed_gives_the_same_draws_and_leaves_the_generator_alone():
    model = Regression()
    x, _ = data()
    state = torch.get_rng_state()
    a, b = (to_arviz(model, None, x, num_samples=3, seed=5) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    for group in group_names(a):
        assert get_group(a, group).equals(get_group(b, group))


def test_the_model_is_left_as_it_was():
    model = Regression()
    assert to_arviz(model, None, data()[0], num_samples=2) is not None
    assert model.training
    assert not list(pyro.get_param_store())
    assert all(p.grad is None for p in model.parameters())


def test_low_precision_and_double():
    for dtype, expected in ((torch.float64, "float64"), (torch.bfloat16, "float32")):
        layer = EVEModule(3, 4, dtype=dtype)

        def model(x, layer=layer):
            with pyro.plate("data", len(x)):
                return pyro.sample("y", dist.Normal(layer(x).float().sum(-1), 1.0))

        x = torch.randn(5, 3, dtype=dtype)
        idata = to_arviz(model, None, x, num_samples=2)
        assert values(idata, "constant_data", "x").dtype == expected


# Errors


def test_errors():
    x, y = data()
    fit = Regression()
    plain = Network(MLP(3, [4], unit=Dense), GaussianHead(4))
    bayesian = Network(MLP(3, [4], unit=BayesianDense), GaussianHead(4))
    unfitted = AutoNormal(poutine.block(bayesian, hide_fn=is_eve_site))
    other = [Regression(), Regression(units=(4, 6))]
    layer = EVEModule(3, 4)

    def total(x):
        return pyro.sample("total", dist.Normal(layer(x).sum(), 1.0))

    cases = [
        ("an EVE layer or another latent", lambda: to_arviz(plain, None, x)),
        ("guide must be fitted", lambda: to_arviz(bayesian, unfitted, x)),
        ("guide must be built for", lambda: to_arviz(fit, EVEGuide(Regression()), x)),
        ("guide must be one for each", lambda: to_arviz(other, [None], x)),
        ("same sites and shapes", lambda: to_arviz(other, None, x, num_samples=2)),
        ("observed must have the shape", lambda: to_arviz(fit, None, x, observed=y[:, None])),
        ("common number of rows", lambda: to_arviz(fit, None)),
        ("new_data must hold", lambda: to_arviz(fit, None, x, new_data=(x, x))),
        ("site must be one of", lambda: to_arviz(fit, None, x, site="z")),
        ("latents must be among", lambda: to_arviz(fit, None, x, latents=["z"])),
        ("num_samples must be", lambda: to_arviz(fit, None, x, num_samples=0)),
        ("the first dim of site 'total'", lambda: to_arviz(total, None, x)),
    ]
    for message, call in cases:
        with pytest.raises(ValueError, match=message):
            call()


def test_a_result_too_large_says_how_large():
    model = Regression(in_features=3)
    x = torch.randn(50, 3)
    latents = 100 * 50 * (4 * 2 + 5 * 2) * 4
    target = 100 * 50 * 4
    statistics = 100 * (3 * 2 + 3 * 9) * 4
    total = 2 * latents + 2 * target + statistics
    with pytest.raises(ValueError, match=rf"max_bytes must be at least {total} \(posterior"):
        to_arviz(model, None, x, num_samples=100, max_bytes=total - 1)
    assert to_arviz(model, None, x, num_samples=100, max_bytes=total) is not None


def test_slips_that_would_convert_something_else():
    network = Network(MLP(3, [4, 5]), GaussianHead(5))
    x, y = torch.randn(6, 3), torch.randn(6)
    with pytest.raises(ValueError, match="pass them as observed="):
        to_arviz(network, None, x, y, num_samples=3)
    with pytest.raises(ValueError, match="must sample its target"):
        to_arviz(network.trunk, None, x, num_samples=3)
    with pytest.raises(ValueError, match="coords must name dims"):
        to_arviz(network, None, x, observed=y, num_samples=3, coords={"obsid": range(6)})
