"""Uses that would give wrong numbers without a word, were they not refused."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from pyro.nn import PyroModule
from small_models import Regression, data
from torch import nn

from eve_pyro import EVEGuide, EVEModule
from eve_pyro.infer import (
    MCNLL_ELBO,
    LinearGaussianELBO,
    MomentMatchedELBO,
    PosteriorMean,
    StaleParameterError,
    StreamingPredictive,
    Trainer,
)
from eve_pyro.nn import MLP, DeterministicCell, GaussianHead, Network, name_sites

VECTORIZED = [
    MCNLL_ELBO(4),
    MomentMatchedELBO(4),
    Trace_ELBO(4, vectorize_particles=True),
    TraceMeanField_ELBO(4, vectorize_particles=True),
]


class Outside(PyroModule):
    """The network is called ahead of the plate of its data."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(EVEModule(3, 4), nn.Linear(4, 1))

    def forward(self, x, y=None):
        loc = self.net(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(loc, 0.5), obs=y)


@pytest.mark.parametrize("elbo", VECTORIZED, ids=lambda e: type(e).__name__)
def test_particles_that_would_multiply_the_data(elbo):
    model = Outside()
    elbo = type(elbo)(num_particles=4, vectorize_particles=True)
    with pytest.raises(ValueError, match="inside the plate of its data"):
        elbo.loss(model, EVEGuide(model), *data())
    assert Trace_ELBO().loss(model, EVEGuide(model), *data()) > 0  # one particle is unambiguous


@pytest.mark.parametrize("elbo", VECTORIZED, ids=lambda e: type(e).__name__)
def test_a_call_without_plates_does_not_mislead_later_ones(elbo):
    x, y = torch.randn(4, 3), torch.randn(4)  # as many rows as particles
    network = Network(MLP(3, [5, 5]), GaussianHead(5))
    guide = EVEGuide(network)
    losses = []
    for _ in range(2):
        pyro.set_rng_seed(0)
        objective = type(elbo)(num_particles=4, vectorize_particles=True)
        losses.append(objective.loss(network, guide, x, y))
        with PosteriorMean():
            network.trunk(x)
    assert losses[0] == losses[1]


def test_a_model_that_is_not_the_guides():
    model, other = Regression(), Regression()
    guide = EVEGuide(model)
    x, y = data()
    for wrong in (other, poutine.condition(model, data={"y": y}), poutine.scale(model, scale=0.1)):
        with pytest.raises(ValueError, match="guide of this very model"):
            MCNLL_ELBO(2).loss(wrong, guide, x, y)
        with pytest.raises(ValueError, match="guide of this very model"):
            StreamingPredictive(wrong, guide)
    with pytest.raises(ValueError, match="guide of this very model"):
        Trainer(other, guide)
    scaled = poutine.scale(model, scale=0.1)
    pyro.set_rng_seed(0)
    whole = TraceMeanField_ELBO().loss(model, guide, x, y)
    pyro.set_rng_seed(0)
    tenth = TraceMeanField_ELBO().loss(scaled, EVEGuide(scaled), x, y)
    assert tenth == pytest.approx(whole / 10, rel=1e-5)


@pytest.mark.parametrize(
    "elbo", [MCNLL_ELBO(1), MCNLL_ELBO(3), MomentMatchedELBO(3), LinearGaussianELBO()]
)
def test_targets_that_would_broadcast(elbo):
    model = Regression(emission="identity", units=(4,))
    x, y = data()
    with pytest.raises(ValueError, match="shape"):
        elbo.loss(model, EVEGuide(model), x, y[:, None])
    assert elbo.loss(model, EVEGuide(model), x, y) > 0


@pytest.mark.parametrize("vectorize", [True, False])
def test_data_without_a_plate(vectorize):
    layer = EVEModule(3, 1, emission="identity")

    def flat(x, y):
        pyro.sample("y", dist.Normal(layer(x).squeeze(-1), 0.5), obs=y)

    def sequential(x, y):
        for i in pyro.plate("data", len(x)):
            pyro.sample(f"y_{i}", dist.Normal(x[i, 0], 0.5), obs=y[i])

    for model in (flat, sequential):
        elbo = MCNLL_ELBO(4, vectorize_particles=vectorize)
        with pytest.raises(ValueError, match="plate"):
            elbo.loss(model, EVEGuide(model), *data())


def test_guides_of_guides():
    model = Regression()
    for build in (
        lambda: EVEGuide(EVEGuide(model)),
        lambda: EVEGuide(model, guide=EVEGuide(model)),
    ):
        with pytest.raises(TypeError, match="must not be an effect-handler guide"):
            build()


@pytest.mark.parametrize("seed", range(10))
def test_the_closed_form_sees_a_kink_that_the_batch_stays_clear_of(seed):
    pyro.set_rng_seed(seed)
    net = nn.Sequential(EVEModule(3, 2, sigma_init=0.05), nn.Linear(2, 1))
    name_sites(net)

    def model(x, y=None):
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(net(x).squeeze(-1), 0.1), obs=y)

    with pytest.raises(ValueError, match="not linear"):
        LinearGaussianELBO(site="0").loss(model, EVEGuide(model), torch.randn(2, 3), torch.randn(2))


def test_svi_on_a_function_whose_network_pyro_does_not_know():
    net = EVEModule(3, 1, emission="identity")

    def model(x, y=None):
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(net(x).squeeze(-1), 0.5), obs=y)

    def registered(x, y=None):
        pyro.module("net", net)
        model(x, y)

    def step(model):
        svi = SVI(model, EVEGuide(model), pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
        return svi.step(*data())

    with pytest.raises(StaleParameterError, match=r"pyro\.module"):
        step(model)
    before = net.encoder.loc.weight.detach().clone()
    step(registered)
    assert not torch.equal(net.encoder.loc.weight, before)


def test_svi_on_a_head_that_pyro_does_not_know():
    class Model(Regression):
        def __init__(self):
            super().__init__(units=(4,))
            self.heads = PyroModule[nn.ModuleList]([nn.Linear(4, 1)])
            self.body = self.net[0]
            del self.net

        def forward(self, x, y=None):
            with pyro.plate("data", len(x)):
                loc = self.heads[0](self.body(x)).squeeze(-1)
                return pyro.sample("y", dist.Normal(loc, 0.5), obs=y)

    model = Model()
    with pytest.warns(UserWarning, match=r"heads\.0\.weight"):
        SVI(model, EVEGuide(model), pyro.optim.Adam({"lr": 0.1}), Trace_ELBO()).step(*data())


class Empty(nn.Sequential):
    """A module of length 0, and so false."""

    def forward(self, h):
        return dist.Normal(h.new_full((*h.shape[:-1], 4, 1), 7.0), 1.0)


def test_an_encoder_that_is_false_is_still_the_encoder():
    for layer in (EVEModule(3, 4, encoder=Empty()), DeterministicCell(3, 4, encoder=Empty())):
        assert isinstance(layer.encoder, Empty)


@pytest.mark.parametrize(
    "emission", [lambda z, h: z, lambda z, h: z.mean(), lambda z, h: z[..., :2, 0]]
)
def test_emissions_of_another_shape(emission):
    with pytest.raises(ValueError, match="emission of"):
        EVEModule(3, 4, emission=emission)(torch.randn(5, 3))


class Gives(nn.Module):
    def __init__(self, distribution):
        super().__init__()
        self.distribution = distribution

    def forward(self, h):
        return self.distribution


@pytest.mark.parametrize("part", ["prior", "encoder"])
@pytest.mark.parametrize(
    ("distribution", "error"),
    [
        (dist.Normal(torch.zeros(3), 1.0), ValueError),
        (dist.Normal(torch.zeros(4, 1), 1.0).to_event(1), ValueError),
        (torch.distributions.Normal(torch.zeros(4, 1), 1.0), TypeError),
        (torch.zeros(4, 1), TypeError),
    ],
    ids=["shape", "event dims", "torch", "tensor"],
)
def test_parts_that_give_something_else(part, distribution, error):
    layer = EVEModule(3, 4, **{part: Gives(distribution)})
    with pytest.raises(error, match=f"{part} of"):
        EVEGuide(layer)(torch.randn(5, 3))


def test_arguments_of_another_kind():
    for kwargs, message in (
        ({"prior": "n"}, "prior must be"),
        ({"encoder": lambda h: h}, "encoder must be"),
        ({"penalties": [3]}, "penalties must be"),
        ({"name": 3}, "name must be a string"),
    ):
        with pytest.raises(TypeError, match=message):
            EVEModule(3, 4, **kwargs)
    with pytest.raises(TypeError, match="encoder must be"):
        DeterministicCell(3, 4, encoder=lambda h: h)
    with pytest.raises(ValueError, match="log_sigma_bounds must be two numbers"):
        EVEModule(3, 4, log_sigma_bounds=(1,))
    with pytest.raises(TypeError, match="elbo must be an objective"):
        Trainer(Regression(), elbo=MCNLL_ELBO)
    with pytest.raises(TypeError, match="config must be a TrainingConfig"):
        Trainer(Regression(), config={"epochs": 3})
    with pytest.raises(ValueError, match="num_data must be at least the 6 rows"):
        Network(MLP(3, [4]), GaussianHead(4))(*data(), num_data=3)
    assert EVEModule(3, 4, beta=torch.tensor(0.25)).beta == 0.25


def test_one_weight_tensor_around_two_observations():
    layer = EVEModule(3, 2, name="z")
    x, y = data()
    weights = torch.rand(6)

    def model(x, y, weights):
        with pyro.plate("data", len(x)), poutine.scale(scale=weights):
            a = layer(x)
            pyro.sample("y1", dist.Normal(a[..., 0], 1.0), obs=y)
            pyro.sample("y2", dist.Normal(a[..., 1], 1.0), obs=y)

    losses = []
    for scale in (weights, torch.ones(6)):
        pyro.set_rng_seed(0)
        losses.append(MCNLL_ELBO(3).loss(model, EVEGuide(model), x, y, scale))
    assert losses[0] < losses[1]
