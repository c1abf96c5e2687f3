"""The streaming predictor."""

import copy
import resource
import subprocess
import sys

import pyro
import pyro.distributions as dist
import pytest
import torch
from small_models import Regression, Sequence, data
from torch import nn

from eve_pyro import EVEModule
from eve_pyro.infer import (
    CategoricalMixture,
    GaussianMixture,
    StreamingPredictive,
    TraceError,
)
from eve_pyro.nn import AntitheticDraws


@pytest.mark.parametrize("chunk_size", [1, 3, 7, 20, 10_000])
@pytest.mark.parametrize("vectorize", [True, False])
def test_moments_do_not_depend_on_chunks(chunk_size, vectorize):
    model = Regression(units=(4,), latent_dim=1, emission="identity")
    x, _ = data()
    predictive = StreamingPredictive(
        model, num_samples=400, chunk_size=chunk_size, vectorize=vectorize
    )
    if chunk_size == 1:
        predictive.num_samples = 50
    y = predictive(x, seed=1)
    assert y.loc.shape == (predictive.num_samples, 6)
    layer, head = model.net
    q, w = layer.posterior(x), head.weight[0]
    mean = head(q.mean.squeeze(-1)).squeeze(-1)
    sd = (w.square() * q.variance.squeeze(-1)).sum(-1).sqrt()
    # 6 means and 6 deviations per case, each within 5 standard errors.
    s = predictive.num_samples
    assert ((y.mean - mean) / (sd / s**0.5)).abs().max() < 5
    assert ((y.epistemic.sqrt() / sd - 1) * (2 * s) ** 0.5).abs().max() < 5
    torch.testing.assert_close(y.aleatoric, torch.full((6,), 0.25))


def test_one_seed_one_prediction_and_the_callers_generator_is_left_alone():
    model = Regression()
    x, _ = data()
    predictive = StreamingPredictive(model, num_samples=5)
    state = torch.get_rng_state()
    first, second = predictive(x, seed=3), predictive(x, seed=3)
    assert torch.equal(first.loc, second.loc)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(predictive(x, seed=4).loc, first.loc)


@pytest.mark.parametrize("plates", [1, 2])
def test_sequences(plates):
    model = Sequence(plates)
    y = StreamingPredictive(model, num_samples=9, chunk_size=4)(torch.randn(6, 7, 3))
    assert y.loc.shape == (9, 6, 7)
    assert (y.epistemic > 0).all()


def test_categories_and_mixtures():
    net = EVEModule(3, 4, emission="identity")

    def labels(x, y=None):
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Categorical(logits=net(x)), obs=y)

    def several_modes(x, y=None):
        with pyro.plate("data", len(x)):
            h = net(x)
            components = dist.Normal(h[..., :2], h[..., 2:].exp())
            weights = dist.Categorical(logits=h[..., :2])
            return pyro.sample("y", dist.MixtureSameFamily(weights, components), obs=y)

    x, _ = data()
    y = StreamingPredictive(labels, num_samples=8)(x)
    assert isinstance(y, CategoricalMixture)
    assert y.probs.shape == (6, 4)
    y = StreamingPredictive(several_modes, num_samples=8)(x)
    assert isinstance(y, GaussianMixture)
    assert (y.loc.shape, y.num_draws) == ((16, 6), 8)
    assert (y.epistemic > 0).all()


def test_a_model_without_latents_runs_once():
    head = nn.Linear(3, 1)

    def model(x, y=None):
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(head(x).squeeze(-1), 1.0), obs=y)

    assert StreamingPredictive(model, num_samples=64)(data()[0]).loc.shape == (1, 6)


def test_modes_and_gradients():
    model = Regression()
    model.net.append(nn.Dropout(0.5))
    model.train()
    y = StreamingPredictive(model, num_samples=3)(data()[0])
    assert model.training
    assert model.net[-1].training
    assert not y.loc.requires_grad


def test_models_of_one_class_do_not_disturb_each_other():
    x, _ = data()
    models = [Regression(), Regression()]
    first = StreamingPredictive(models[0], num_samples=3)(x, seed=0)
    StreamingPredictive(models[1], num_samples=3)(x, seed=0)
    again = StreamingPredictive(models[0], num_samples=3)(x, seed=0)
    assert torch.equal(first.loc, again.loc)
    assert not list(pyro.get_param_store())


def test_bad_input():
    x, _ = data()
    model = Regression()
    with pytest.raises(ValueError, match="num_samples must be an integer >= 1, got 0"):
        StreamingPredictive(model, num_samples=0)
    with pytest.raises(ValueError, match="chunk_size must be an integer >= 1, got 0"):
        StreamingPredictive(model, chunk_size=0)
    with pytest.raises(ValueError, match="common number of rows"):
        StreamingPredictive(model)(x[:0])
    with pytest.raises(ValueError, match="common number of rows"):
        StreamingPredictive(model)(3)
    with pytest.raises(ValueError, match="site must be one of"):
        StreamingPredictive(model, site="target")(x)

    def poisson(x, y=None):
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Poisson(x[..., 0].exp()), obs=y)

    with pytest.raises(TypeError, match="must be Normal, Categorical or a mixture"):
        StreamingPredictive(poisson)(x)


def assert_equal(a, b):
    assert torch.equal(a.loc, b.loc)
    assert torch.equal(a.scale, b.scale)


@pytest.mark.parametrize("vectorize", [True, False])
@pytest.mark.parametrize("chunk_size", [4, 25, 10_000])
def test_the_traced_draw_predicts_what_the_eager_one_does(chunk_size, vectorize):
    model, (x, _) = Regression(), data(11)
    options = {"num_samples": 7, "chunk_size": chunk_size, "vectorize": vectorize}
    eager = StreamingPredictive(model, **options)
    traced = StreamingPredictive(model, compile="eager", **options)
    for seed in (0, 1):
        assert_equal(traced(x, seed=seed), eager(x, seed=seed))
    # Rows 11 = 4 + 4 + 3 draw by draw; 25 // 11 = 2 draws of 7 at once; all at once.
    many = {4: 2, 25: 2, 10_000: 1}[chunk_size]
    traces = many if vectorize or chunk_size == 4 else 1
    assert traced.traces == traces
    with torch.no_grad():
        model.net[0].encoder.loc.weight.mul_(2)  # weights are read, not frozen
    assert_equal(traced(x, seed=0), eager(x, seed=0))
    torch.manual_seed(5)
    first = eager(x)
    torch.manual_seed(5)
    assert_equal(traced(x), first)
    assert traced.traces == traces
    assert (eager.traces, copy.deepcopy(traced).traces) == (0, 0)


def test_compiled_code_predicts_the_same_to_rounding():
    model, (x, _) = Regression(), data()
    expected = StreamingPredictive(model, num_samples=5)(x, seed=1)
    compiled = StreamingPredictive(model, num_samples=5, compile=True)
    for _ in range(2):
        found = compiled(x, seed=1)
        torch.testing.assert_close(found.loc, expected.loc)
        torch.testing.assert_close(found.scale, expected.scale)
    assert compiled.traces == 1


def test_a_new_scale_is_traced_anew_and_handlers_are_heeded():
    model, (x, _) = Regression(), data()
    eager = StreamingPredictive(model, num_samples=4)
    traced = StreamingPredictive(model, num_samples=4, compile="eager")
    model.net.append(nn.Dropout(0.5))
    for scale in (0.5, 2.0):
        model.scale = scale
        assert_equal(traced(x, seed=0), eager(x, seed=0))
    assert traced.traces == 2
    with AntitheticDraws():
        assert_equal(traced(x, seed=0), eager(x, seed=0))
    assert traced.traces == 2
    assert model.training


def test_latents_of_functions_and_parameters_of_the_store_are_traced():
    def model(x, y=None):
        shift = pyro.param("shift", torch.tensor(2.0))
        slope = pyro.sample("slope", dist.Gamma(2.0, 1.0))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(shift + slope * x[..., 0], 0.1), obs=y)

    x, _ = data()
    pyro.param("shift", torch.tensor(2.0))
    eager = StreamingPredictive(model, num_samples=4)
    traced = StreamingPredictive(model, num_samples=4, compile="eager")
    for shift in (1.0, 3.0):
        pyro.get_param_store()["shift"] = torch.tensor(shift)
        assert_equal(traced(x, seed=0), eager(x, seed=0))


def test_what_cannot_be_traced_is_refused():
    class Branching(Regression):
        def forward(self, x, y=None):
            return super().forward(x.abs() if x.mean() > 0 else x, y)

    class Counting(Regression):
        calls = 0

        def forward(self, x, y=None):
            Counting.calls += 1
            return super().forward(x + Counting.calls, y)

    x, _ = data()
    advice = "StreamingPredictive without compile= predicts with any model"
    with pytest.raises(TraceError, match=f"reads a tensor's value into Python.*{advice}"):
        StreamingPredictive(Branching(), compile="eager")(x)
    with pytest.raises(TraceError, match=f"attribute .calls. of Counting changed.*{advice}"):
        StreamingPredictive(Counting(), compile="eager")(x)
    with pytest.raises(ValueError, match="compile must be one of 'inductor', 'eager', got 'jit'"):
        StreamingPredictive(Regression(), compile="jit")


MEMORY = """
import resource, torch, pyro, pyro.distributions as dist
from torch import nn
from eve_pyro import EVEModule
from eve_pyro.infer import StreamingPredictive
torch.set_num_threads(1)
net = nn.Sequential(EVEModule(8, 512), EVEModule(512, 512), nn.Linear(512, 1))
def model(x, y=None):
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(net(x).squeeze(-1), 0.1), obs=y)
x = torch.randn(1000, 8)
StreamingPredictive(model, num_samples=2)(x[:10])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
StreamingPredictive(model, num_samples=100)(x)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
def test_memory_of_100_draws_for_1000_rows_through_two_layers_of_512():
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 200
