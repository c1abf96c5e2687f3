"""ArviZ on groups of numpy arrays: one set of assertions for both of its lines, without torch."""

import subprocess
import sys

import arviz as az
import matplotlib
import numpy as np
import pytest
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

from eve_pyro.diagnostics.arviz_compat import (
    from_groups,
    get_group,
    group_names,
    load_netcdf,
    save_netcdf,
)

matplotlib.use("Agg")
pytestmark = third_party_warnings

CHAINS, DRAWS, ROWS = 2, 1000, 30
PRIOR_SCALE = 2.0
DIMS = {
    "y": ["obs_id"],
    "x": ["obs_id"],
    "trunk.layer0": ["obs_id", "unit", "latent"],
    "kl": ["layer"],
    "sigma": ["layer"],
}


def normal_log_pdf(value, loc, scale):
    return -0.5 * np.log(2 * np.pi) - np.log(scale) - 0.5 * ((value - loc) / scale) ** 2


def targets():
    return 1.0 + np.random.default_rng(1).normal(size=ROWS)


def posterior(y):
    """Mean and variance of theta ~ N(0, s^2) after y_n ~ N(theta, 1)."""
    variance = 1 / (1 / PRIOR_SCALE**2 + len(y))
    return variance * y.sum(), variance


def groups(shift=0.0):
    """What to_arviz gives for one weight theta with its exact posterior, moved by ``shift``."""
    rng = np.random.default_rng(0)
    y = targets()
    loc, variance = posterior(y)
    theta = loc + shift + np.sqrt(variance) * rng.normal(size=(CHAINS, DRAWS))
    location = np.broadcast_to(theta[..., None], (CHAINS, DRAWS, ROWS))
    z = rng.normal(size=(CHAINS, DRAWS, ROWS, 3, 2))
    return {
        "posterior": {"theta": theta, "trunk.layer0": z},
        "prior": {"theta": PRIOR_SCALE * rng.normal(size=theta.shape)},
        "posterior_predictive": {"y": location + rng.normal(size=location.shape)},
        "predictions": {"y": theta[..., None] + rng.normal(size=(CHAINS, DRAWS, 4))},
        "log_likelihood": {"y": normal_log_pdf(y, location, 1.0)},
        "sample_stats": {
            "kl": np.abs(rng.normal(size=(CHAINS, DRAWS, 4))),
            "sigma": rng.uniform(size=(CHAINS, DRAWS, 4)),
        },
        "observed_data": {"y": y},
        "constant_data": {"x": rng.normal(size=(ROWS, 5))},
        "predictions_constant_data": {"x": rng.normal(size=(4, 5))},
    }


def convert(**options):
    pred_dims = {"y": ["pred_id"], "x": ["pred_id"]}
    coords = {"layer": [f"trunk.layer{i}" for i in range(4)], "chain": [11, 12]}
    return from_groups(
        groups(**options), coords, DIMS, pred_dims=pred_dims, attrs={"inference": "exact"}
    )


@pytest.fixture(scope="module")
def idata():
    return convert()


def test_torch_is_not_needed():
    code = "import sys, eve_pyro.diagnostics.arviz_compat; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_groups_dims_and_coords(idata):
    assert set(group_names(idata)) == set(groups())
    assert get_group(idata, "posterior")["trunk.layer0"].dims == (
        *("chain", "draw", "obs_id"),
        *("unit", "latent"),
    )
    assert get_group(idata, "predictions")["y"].dims == ("chain", "draw", "pred_id")
    assert get_group(idata, "constant_data")["x"].dims == ("obs_id", "x_dim_1")
    assert get_group(idata, "predictions_constant_data")["x"].dims == ("pred_id", "x_dim_1")
    stats = get_group(idata, "sample_stats")
    assert stats["layer"].values.tolist() == [f"trunk.layer{i}" for i in range(4)]
    assert stats["chain"].values.tolist() == [11, 12]
    assert stats["draw"].values.tolist() == list(range(DRAWS))
    for name, variables in groups().items():
        for variable, values in variables.items():
            np.testing.assert_array_equal(get_group(idata, name)[variable].values, values)
    assert idata.attrs["inference"] == "exact"
    assert get_group(idata, "posterior").attrs["arviz_version"] == az.__version__


def test_extraction_is_the_same_call_in_both_lines(idata):
    z = az.extract(idata, var_names=["trunk.layer0"], keep_dataset=True)["trunk.layer0"]
    assert dict(z.sizes) == {"obs_id": ROWS, "unit": 3, "latent": 2, "sample": CHAINS * DRAWS}


def test_netcdf_round_trip(idata, tmp_path):
    path = save_netcdf(idata, tmp_path / "draws.nc")
    loaded = load_netcdf(path)
    path.unlink()  # all is in memory
    assert type(loaded) is type(idata)
    assert set(group_names(loaded)) == set(group_names(idata))
    for name in group_names(idata):
        assert get_group(loaded, name).identical(get_group(idata, name))
    assert dict(loaded.attrs) == dict(idata.attrs)


def test_missing_netcdf_packages_are_named(idata, tmp_path, monkeypatch):
    monkeypatch.setattr("eve_pyro.diagnostics.arviz_compat.find_spec", lambda name: None)
    for call in (lambda: save_netcdf(idata, tmp_path / "x.nc"), lambda: load_netcdf("x.nc")):
        with pytest.raises(ImportError, match=r"h5netcdf and h5py: pip install"):
            call()


@pytest.mark.parametrize(
    ("given", "dims", "message"),
    [
        ({"posteriors": {"z": np.zeros((1, 9))}}, {}, "groups must be among"),
        ({"posterior": {"net/0": np.zeros((1, 9))}}, {}, "slash"),
        ({"posterior": {"z": np.zeros(9)}}, {}, r"shape \(chain, draw"),
        ({"prior": {"z": np.zeros((1, 9)), "w": np.zeros((1, 8))}}, {}, "in common"),
        ({"posterior": {"z": np.zeros((1, 9))}}, {"z": ["unit"]}, "must name 0 at most"),
    ],
)
def test_errors(given, dims, message):
    with pytest.raises(ValueError, match=message):
        from_groups(given, dims=dims)


def test_a_missing_group_is_named(idata):
    with pytest.raises(KeyError, match="no group 'warmup'; there are posterior"):
        get_group(idata, "warmup")


def test_summary(idata):
    table = az.summary(idata, var_names=["theta"], round_to="none").astype(float)
    theta = groups()["posterior"]["theta"]
    assert table.loc["theta", "mean"] == pytest.approx(theta.mean())
    assert table.loc["theta", "sd"] == pytest.approx(theta.std(ddof=1), rel=1e-3)
    # Independent draws: as many effective ones as there are, up to the estimator's noise.
    assert table.loc["theta", "ess_bulk"] == pytest.approx(theta.size, rel=0.15)
    assert table.loc["theta", "r_hat"] == pytest.approx(1.0, abs=0.01)


def test_loo_of_an_exact_posterior_is_the_closed_form(idata):
    elpd, terms, k = loo(idata)
    y = targets()
    exact = np.empty(ROWS)
    for i in range(ROWS):
        loc, variance = posterior(np.delete(y, i))
        exact[i] = normal_log_pdf(y[i], loc, np.sqrt(1 + variance))
    assert elpd == pytest.approx(terms.sum())
    np.testing.assert_allclose(terms, exact, atol=0.02)
    assert elpd == pytest.approx(exact.sum(), abs=0.1)
    assert k.max() < 0.7


def test_loo_is_the_importance_sampling_identity(idata):
    log_likelihood = groups()["log_likelihood"]["y"].reshape(-1, ROWS)
    direct = -np.log(np.exp(-log_likelihood).mean(0))
    np.testing.assert_allclose(loo(idata)[1], direct, atol=0.01)


def test_loo_pit(idata):
    y, exact = targets(), np.empty(ROWS)
    for i in range(ROWS):
        loc, variance = posterior(np.delete(y, i))
        grid = loc + np.sqrt(1 + variance) * np.random.default_rng(2).normal(size=100_000)
        exact[i] = (grid <= y[i]).mean()
    # A probability from 2000 draws has a standard error of at most 0.011.
    np.testing.assert_allclose(loo_pit(idata), exact, atol=0.05)


@pytest.mark.parametrize("prob", [0.5, 0.9])
def test_hdi(idata, prob):
    theta = np.sort(groups()["posterior"]["theta"].ravel())
    lower, upper = hdi(idata, "theta", prob)
    # The shortest of all intervals between draws that hold the share.
    inside = int(np.floor(prob * len(theta)))
    widths = theta[inside:] - theta[:-inside]
    assert upper - lower == pytest.approx(widths.min(), rel=0.01)
    assert ((theta >= lower) & (theta <= upper)).mean() == pytest.approx(prob, abs=0.002)
    # Of a symmetric posterior with one mode it is the central interval, up to noise.
    central = np.quantile(theta, [(1 - prob) / 2, (1 + prob) / 2])
    np.testing.assert_allclose([lower, upper], central, atol=0.2 * theta.std())


def test_compare_ranks_the_better_model_first(idata):
    control = convert(shift=0.5)
    ranked, elpd = compare({"control": control, "eve": idata})
    assert ranked == ["eve", "control"]
    assert elpd["eve"] == pytest.approx(loo(idata)[0], rel=1e-4)
    assert elpd["control"] == pytest.approx(loo(control)[0], rel=1e-4)


def test_plots_draw(idata):
    for draw in (
        lambda: plot_predictive(idata),
        lambda: plot_layers(idata, "kl"),
        lambda: plot_trace(idata, "theta"),
    ):
        draw()
        check_drawn()
