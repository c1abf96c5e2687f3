"""The study of one neuron: the noise is what it says, the page follows from the records."""

import math

import pandas as pd
import pytest
import torch

from eve_pyro.experiments.engine import Record, run_tasks
from eve_pyro.experiments.output import OutputFolder
from eve_pyro.experiments.page import Page
from eve_pyro.experiments.store import Outcome
from eve_pyro.experiments.studies.attribution import STUDY
from eve_pyro.experiments.studies.attribution.models import (
    MODELS,
    NeuronConfig,
    internal_spread,
)
from eve_pyro.experiments.studies.attribution.noise import NOISES, make_data, oracle, true_scale
from eve_pyro.experiments.studies.attribution.tasks import ABLATIONS, tasks
from eve_pyro.experiments.studies.attribution.text.claims import (
    at_most,
    better,
    costs,
    joined,
    up_to,
    verdicts,
    within,
)
from eve_pyro.experiments.studies.attribution.text.page import DESCRIPTIONS
from eve_pyro.infer import EVEGuide, GaussianMixture, StreamingPredictive
from eve_pyro.metrics import evaluate

# Noise


@pytest.fixture(params=list(NOISES))
def noise(request):
    return request.param


def density(noise):
    """A fine grid of e with the law's density; the ends hold less than 1e-9."""
    e = torch.linspace(-8, 20, 280_001, dtype=torch.float64)
    return e, NOISES[noise].log_prob(e).exp()


def test_density_has_mass_1_mean_0_and_variance_1(noise):
    e, p = density(noise)
    for power, expected in ((0, 1.0), (1, 0.0), (2, 1.0)):
        assert torch.trapezoid(e**power * p, e).item() == pytest.approx(expected, abs=1e-5)


def test_samples_follow_the_density(noise):
    # Kolmogorov's distance of 20,000 draws exceeds 0.0157 once in 10,000 seeds.
    draws = NOISES[noise].sample(20_000, torch.Generator().manual_seed(0)).double().sort().values
    e, p = density(noise)
    below = torch.cumulative_trapezoid(p, e)[torch.searchsorted(e, draws) - 1]
    assert (below - torch.arange(20_000) / 20_000).abs().max() < 0.0157


def test_crps_is_the_integral_of_its_definition(noise):
    e, p = density(noise)
    below = torch.cat([torch.zeros(1, dtype=p.dtype), torch.cumulative_trapezoid(p, e)])
    for at in (-2.0, -0.3, 0.0, 1.7):
        expected = torch.trapezoid((below - (e >= at).double()) ** 2, e).item()
        found = NOISES[noise].crps(torch.tensor(at, dtype=torch.float64)).item()
        assert found == pytest.approx(expected, abs=1e-4)


def test_oracle_crps_against_monte_carlo(noise):
    part = make_data(noise, 1, 1, 400, seed=0).test
    x = NOISES[noise].sample(4000, torch.Generator().manual_seed(1))
    other = NOISES[noise].sample(4000, torch.Generator().manual_seed(2))
    per_row = (x - part.e[:, None]).abs().mean(1) - (x - other).abs().mean() / 2
    expected = (true_scale(part.x[:, 0]) * per_row).mean().item()
    # The standard error is below 0.005, of which this is four.
    assert oracle(noise, part)["crps"] == pytest.approx(expected, abs=0.02)


def test_oracle_agrees_with_the_scores_of_a_gaussian():
    part = make_data("gaussian", 1, 1, 500, seed=3).test
    s = true_scale(part.x[:, 0])
    scores = evaluate(GaussianMixture((part.y - s * part.e)[None], s[None]), part.y)
    for name, value in oracle("gaussian", part).items():
        assert value == pytest.approx(scores[name], rel=1e-4, abs=1e-5)


def test_parts_do_not_depend_on_each_others_size(noise):
    few, many = make_data(noise, 10, 5, 20, seed=4), make_data(noise, 50, 5, 20, seed=4)
    assert torch.equal(few.test.y, many.test.y)
    assert not torch.equal(few.test.y[:5], few.validation.y)
    assert not torch.equal(few.test.y, make_data(noise, 10, 5, 20, seed=5).test.y)


def test_unknown_noise_is_named():
    with pytest.raises(ValueError, match="noise must be one of 'gaussian'"):
        make_data("cauchy", 1, 1, 1, seed=0)


# Models


@pytest.mark.parametrize("name", [*MODELS, *ABLATIONS])
def test_every_model_has_a_loss_and_gradients(name):
    config = {**MODELS, **ABLATIONS}[name]
    network = config.network()
    loss = config.elbo()(network, EVEGuide(network))
    x, y, _ = make_data("gaussian", 8, 1, 1, seed=0).train
    loss(x, y, num_data=100).backward()
    assert all(p.grad is not None for p in network.parameters())


def test_capacities_are_matched():
    def count(name):
        return sum(p.numel() for p in MODELS[name].network().parameters())

    # The deterministic cell has one constant per unit more; the head one log scale per unit.
    assert count("det-cell") - count("eve-mc-32") == 8
    assert count("stoch-hetero-z") - count("eve-head") == 8
    plain = [name for name in MODELS if name.startswith("eve-") and name != "eve-head"]
    assert len({count(name) for name in plain}) == 1


def test_spread_is_the_sd_of_the_mean_that_draws_give():
    network = NeuronConfig("eve", units=2, latent_dim=3, sigma_init=0.5).network()
    x = torch.linspace(-3, 3, 5)[:, None]
    draws = StreamingPredictive(network, num_samples=20_000)(x, seed=0).loc.std(0)
    # The relative standard error of an sd of 20,000 draws is 0.005.
    assert torch.allclose(internal_spread(network, x)["spread"], draws, rtol=0.02)


def test_spread_is_left_out_where_it_means_nothing():
    x = torch.zeros(3, 1)
    assert "spread" not in internal_spread(NeuronConfig("eve", emission="tanh").network(), x)
    assert internal_spread(MODELS["det-scalar"].network(), x) == {}


# Tasks, runs and the page


def test_tasks_are_distinct_and_described():
    for smoke in (False, True):
        found = tasks(smoke)
        assert len({task.label for task in found}) == len(found)
        assert [task.alone for task in found] == [False] * (len(found) - 1) + [True]
        assert all(task.identity for task in found)
    assert set(DESCRIPTIONS) == set(MODELS)
    assert {task.seed for task in tasks(False)} == set(range(100, 110))


def written(tmp_path, records):
    page = Page(STUDY.name, STUDY.title)
    STUDY.write(page, records)
    page.write(OutputFolder(tmp_path))
    return (tmp_path / "attribution.md").read_text()


def test_smoke_run_writes_a_whole_page(tmp_path):
    records = run_tasks(STUDY.tasks(True), tmp_path / "runs", jobs=1, progress=False)
    assert not [r.outcome.failure for r in records if r.outcome.failure]
    text = written(tmp_path, records)
    for heading in ("Verdicts", "What sigma learns", "How many draws", "Ablations", "Cost"):
        assert f"## {heading}" in text
    assert {p.name for p in (tmp_path / "attribution").iterdir()} == {"curves.png", "draws.png"}
    assert "nan" not in text
    # Whatever is missing, the page stands, and does not judge what it has not seen.
    for some in ([], records[:1], records[5:9], records[-1:], records[::3]):
        text = written(tmp_path, some)
        assert "**not tested**" in text
        assert "nan" not in text
    failed = [Record(r.task, Outcome(failure="diverged")) for r in records]
    assert "**reproduced**" not in written(tmp_path, failed)


# Verdicts


def frame(setting="gaussian-2000", seeds=4, **models):
    """Scores of every model and seed: a number, or one per seed."""
    rows = []
    for model, scores in models.items():
        for seed in range(seeds):
            row = {"setting": setting, "model": model.replace("_", "-"), "seed": seed}
            for name, value in scores.items():
                row[name] = value[seed] if isinstance(value, list) else value + 1e-4 * seed
            rows.append(row)
    return pd.DataFrame(rows)


def all_scores(value, **more):
    names = ("mse", "nll", "mc_nll", "crps", "oracle_mse", "oracle_nll", "oracle_mc_nll")
    row = {name: 0.0 if name.startswith("oracle") else value for name in names}
    return {**row, **more}


def status_of(found, start):
    (chosen,) = [v for v in found if v.claim.startswith(start)]
    return chosen.status


@pytest.mark.parametrize(
    ("row", "status"),
    [
        ({"difference": -1.0, "low": -2.0, "high": -0.5, "wins": 3, "pairs": 3}, "reproduced"),
        ({"difference": -1.0, "low": -2.0, "high": -0.5, "wins": 2, "pairs": 3}, "partly"),
        ({"difference": -1.0, "low": -2.0, "high": 0.5, "wins": 3, "pairs": 3}, "not reproduced"),
        ({"difference": 1.0, "low": 0.5, "high": 2.0, "wins": 0, "pairs": 3}, "not reproduced"),
        ({"difference": -1.0, "low": math.nan, "high": math.nan, "wins": 1, "pairs": 1}, None),
    ],
)
def test_better(row, status):
    assert better(pd.Series(row))[0] == (status or "not tested")


@pytest.mark.parametrize(
    ("difference", "low", "status"),
    [
        (0.003, 0.001, "reproduced"),
        (-0.3, -0.5, "reproduced"),
        (0.02, 0.001, "partly"),
        (0.02, 0.01, "not reproduced"),
    ],
)
def test_within(difference, low, status):
    row = {"difference": difference, "relative": difference, "low": low, "pairs": 3}
    assert within(pd.Series(row), 0.0041)[0] == status
    assert within(pd.Series({**row, "pairs": 1}), 0.0041)[0] == "not tested"


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ([0.5, 0.6], "reproduced"),
        ([0.5, 0.6, 9.0], "partly"),
        ([0.5, 2.0, 9.0], "not reproduced"),
        ([0.5, math.nan], "not tested"),
    ],
)
def test_at_most(values, status):
    assert at_most(pd.Series(values), 1.0)[0] == status


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ([0.5, 0.985], "reproduced"),
        ([0.5, 0.94], "partly"),
        ([0.5, 0.9], "not reproduced"),
        ([0.99], "not tested"),
    ],
)
def test_up_to(values, status):
    assert up_to(pd.Series(values), 0.98)[0] == status


def test_joined():
    good, bad = ("reproduced", "lower"), ("not reproduced", "higher")
    assert joined({"a": good, "b": good}) == good
    assert joined({"a": bad, "b": bad}) == bad
    assert joined({"a": good, "b": bad}) == ("partly", "a: lower; b: higher")


@pytest.mark.parametrize(
    ("eve", "compiled", "status"),
    [
        (3.0, math.nan, "reproduced"),
        (9.0, 3.0, "partly"),
        (9.0, 9.0, "not reproduced"),
        (9.0, math.nan, "not reproduced"),
    ],
)
def test_costs(eve, compiled, status):
    rows = [("step", "eve, S = 1", eve), ("compiled", "eve, S = 1", compiled)]
    rows += [(kind, f"det-{m}", 1.0) for kind in ("step", "compiled") for m in ("scalar", "cell")]
    found = costs(pd.DataFrame(rows, columns=["kind", "contestant", "seconds"]))
    assert found[0].status == status
    assert [v.status for v in costs(pd.DataFrame())] == ["not tested"] * 2


def test_verdicts_follow_the_scores():
    scores = frame(
        det_cell=all_scores(1.0),
        stoch_hetero=all_scores(0.2, nll=[0.2] * 4, mc_nll=[0.0] * 4),
        eve_mc_32=all_scores(0.5, mse=[1.0, 1.0, 1.0, 1.02], r_sigma=0.99, r_kl=-0.5),
        eve_head=all_scores(0.005, mse=1.001),
    )
    found = verdicts(scores, pd.DataFrame())
    assert status_of(found, "NLL, MC-NLL and CRPS of EVE, S = 32 against DET") == "reproduced"
    assert status_of(found, "NLL, MC-NLL and CRPS of EVE, S = 32 against STO") == "not reproduced"
    head = "NLL, MC-NLL and CRPS of EVE with a variance head against STOCH"
    assert status_of(found, head) == "partly"
    assert status_of(found, "MSE of EVE, S = 32") == "partly"
    assert status_of(found, "MSE of EVE with") == "reproduced"
    assert status_of(found, "absolute r of local KL") == "not reproduced"
    sigma = [v.status for v in found if v.claim.startswith("absolute r of sigma, mean")]
    assert sigma == ["reproduced"] * 3
    assert status_of(found, "NLL above the oracle's, EVE with a") == "reproduced"
    assert status_of(found, "NLL above the oracle's, EVE without") == "not reproduced"
    assert status_of(found, "MC-NLL and CRPS of EVE with a variance head against STO") == (
        "not tested"
    )
