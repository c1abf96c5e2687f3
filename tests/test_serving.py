"""Predictors as files."""

import subprocess
import sys

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule
from small_models import Regression, Sequence, data

from eve_pyro import EVEModule
from eve_pyro.infer import (
    CategoricalMixture,
    CheckpointError,
    GaussianMixture,
    StreamingPredictive,
    TraceError,
    export_predictor,
    load_predictor,
)
from eve_pyro.infer.serving import _largest_divisor

FRESH = """
import sys, torch
from eve_pyro.infer import load_predictor
file, rows, out = sys.argv[1:]
y = load_predictor(file)(torch.load(rows), seed=3)
assert "small_models" not in sys.modules
torch.save((y.loc, y.scale), out)
"""


NET = EVEModule(3, 4, emission="identity")


def labels(x, y=None):
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Categorical(logits=NET(x)), obs=y)


def several_modes(x, y=None):
    with pyro.plate("data", len(x)):
        h = NET(x)
        components = dist.Normal(h[..., :2], h[..., 2:].exp())
        weights = dist.Categorical(logits=h[..., :2])
        return pyro.sample("y", dist.MixtureSameFamily(weights, components), obs=y)


class RandomSlope(PyroModule):
    def forward(self, x, y=None):
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(slope * x[..., 0], 1.0), obs=y)


def test_a_fresh_process_without_the_models_code_predicts_the_same(tmp_path):
    model, (x, _) = Regression(), data(6)
    export_predictor(tmp_path / "model.pt", model, None, torch.zeros(6, 3), 8)
    torch.save(x, tmp_path / "x.pt")
    paths = [str(tmp_path / name) for name in ("model.pt", "x.pt", "y.pt")]
    subprocess.run([sys.executable, "-W", "error", "-c", FRESH, *paths], check=True)
    loc, scale = torch.load(tmp_path / "y.pt")
    predictor = load_predictor(tmp_path / "model.pt")
    y = predictor(x, seed=3)
    assert torch.equal(y.loc, loc)
    assert torch.equal(y.scale, scale)
    streaming = StreamingPredictive(model, None, 8, chunk_size=predictor.chunk_size)(x, seed=3)
    assert torch.equal(streaming.loc, loc)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["model.pt", "x.pt", "y.pt"]


@pytest.mark.parametrize("model", [labels, several_modes, Sequence(1), Sequence(2)])
def test_families_and_shapes(tmp_path, model):
    x = torch.randn(5, 7, 3) if isinstance(model, Sequence) else torch.randn(5, 3)
    export_predictor(tmp_path / "model.pt", model, None, x, 6, chunk_size=11)
    predictor = load_predictor(tmp_path / "model.pt")
    assert (predictor.num_samples, predictor.chunk_size) == (6, 10)
    found = predictor(x, seed=1)
    expected = StreamingPredictive(model, num_samples=6, chunk_size=10)(x, seed=1)
    assert type(found) is type(expected)
    assert found.num_draws == 6
    if isinstance(found, CategoricalMixture):
        assert torch.equal(found.probs, expected.probs)
    else:
        assert isinstance(found, GaussianMixture)
        assert torch.equal(found.loc, expected.loc)
        assert torch.equal(found.log_weights, expected.log_weights)


@pytest.mark.parametrize("rows", [1, 4, 7, 8, 11])
def test_any_number_of_rows_has_the_models_distribution(tmp_path, rows):
    model = Regression(units=(4,), latent_dim=1, emission="identity")
    export_predictor(tmp_path / "model.pt", model, None, torch.zeros(4, 3), 400)
    x, _ = data(rows)
    y = load_predictor(tmp_path / "model.pt")(x, seed=2)
    assert y.loc.shape == (400, rows)
    with torch.no_grad():
        layer, head = model.net
        q, w = layer.posterior(x), head.weight[0]
        mean = head(q.mean.squeeze(-1)).squeeze(-1)
        sd = (w.square() * q.variance.squeeze(-1)).sum(-1).sqrt()
    # At most 11 means and deviations per case, each within 5 standard errors.
    assert ((y.mean - mean) / (sd / 20)).abs().max() < 5
    assert ((y.epistemic.sqrt() / sd - 1) * 800**0.5).abs().max() < 5


def test_the_file_keeps_the_weights_of_then_and_random_state_is_left_alone(tmp_path):
    model, (x, _) = Regression(), data()
    state = torch.get_rng_state()
    export_predictor(tmp_path / "model.pt", model, None, x, 4)
    assert model.training
    predictor = load_predictor(tmp_path / "model.pt")
    before = predictor(x)
    with torch.no_grad():
        model.net[-1].weight.zero_()
    assert torch.equal(predictor(x, seed=0).loc, before.loc)
    assert not torch.equal(predictor(x, seed=1).loc, before.loc)
    assert not before.loc.requires_grad
    assert torch.equal(torch.get_rng_state(), state)
    assert not list(pyro.get_param_store())


def test_a_guide_for_other_latents_and_a_model_without_any(tmp_path):
    x, y = data()
    model = RandomSlope()
    guide = AutoNormal(model)
    guide(x, y)
    with torch.no_grad():
        guide.locs.slope_unconstrained.fill_(3.0)
    export_predictor(tmp_path / "model.pt", model, guide, x, 200)
    y = load_predictor(tmp_path / "model.pt")(x)
    # The guide's scale is 0.1: five standard errors of 200 draws.
    assert ((y.mean - 3 * x[:, 0]) / (0.1 * x[:, 0].abs() / 200**0.5)).abs().max() < 5

    def plain(x, y=None):
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(x.sum(-1), 1.0), obs=y)

    export_predictor(tmp_path / "model.pt", plain, None, x)
    y = load_predictor(tmp_path / "model.pt")(x)
    assert y.loc.shape == (1, 6)
    assert torch.equal(y.loc[0], x.sum(-1))


def test_bad_rows(tmp_path):
    export_predictor(tmp_path / "model.pt", Regression(), None, data()[0], 2)
    predictor = load_predictor(tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"x must have shape \(rows >= 1, 3\), got \(6, 4\)"):
        predictor(torch.zeros(6, 4))
    with pytest.raises(ValueError, match=r"got \(0, 3\)"):
        predictor(torch.zeros(0, 3))
    with pytest.raises(ValueError, match=r"got \(3,\)"):
        predictor(torch.zeros(3))
    with pytest.raises(ValueError, match=r"x must have the dtype torch\.float32 of the example"):
        predictor(torch.zeros(6, 3, dtype=torch.float64))
    with pytest.raises(TypeError, match="x must be a tensor of rows, got list"):
        predictor([1.0, 2.0, 3.0])


def test_bad_models_and_files(tmp_path):
    class Branching(Regression):
        def forward(self, x, y=None):
            return super().forward(x.abs() if x.mean() > 0 else x, y)

    path = tmp_path / "model.pt"
    x, _ = data()
    with pytest.raises(TraceError, match=r"into Python.*StreamingPredictive without compile="):
        export_predictor(path, Branching(), None, x)
    with pytest.raises(TypeError, match="example must be a tensor of rows, got list"):
        export_predictor(path, Regression(), None, [1.0])
    with pytest.raises(ValueError, match="num_samples must be an integer >= 1, got 0"):
        export_predictor(path, Regression(), None, x, 0)
    with pytest.raises(ValueError, match="site must be one of"):
        export_predictor(path, Regression(), None, x, site="target")
    with pytest.raises(CheckpointError, match="cannot be written"):
        export_predictor(tmp_path / "none" / "model.pt", Regression(), None, x)
    assert not list(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match=r"model\.pt cannot be read"):
        load_predictor(path)
    export_predictor(path, Regression(), None, x, 2)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:100], b""):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"model\.pt is damaged or no predictor file"):
            load_predictor(path)
    torch.save({"eve_pyro": "predictor", "program": torch.zeros(9, dtype=torch.uint8)}, path)
    with pytest.raises(CheckpointError, match=r"model\.pt cannot be loaded by torch") as error:
        load_predictor(path)
    assert "\n" not in str(error.value)


def test_divisors():
    found = [_largest_divisor(*a) for a in ((64, 20), (64, 64), (7, 6), (7, 100), (1, 5), (6, 0))]
    assert found == [16, 64, 1, 7, 1, 1]
