"""The layer: shapes, plates, names, numerics, state."""

import copy
import io
import math
import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro import poutine
from small_models import Regression, Sequence, data
from torch import nn
from torch.distributions import kl_divergence

from eve_pyro import EVEGuide, EVEModule
from eve_pyro.infer import PosteriorDraw, PosteriorMean
from eve_pyro.nn import (
    ActivationEmission,
    Emission,
    FreeBits,
    GatedEmission,
    GaussianEncoder,
    ResidualEmission,
    TargetBand,
    eve_modules,
    is_eve_site,
    name_sites,
    set_beta,
)

EMISSIONS = ["relu", "gelu", "silu", "tanh", "identity", "gated", "residual", GatedEmission]


class Squared(Emission):
    def forward(self, z, h):
        return self.pool(z) ** 2


def total(z, h):
    return z.sum(-1)


EMISSIONS += [Squared, total, ActivationEmission(3, 4, 2, readout="learned")]


def site_of(layer, *inputs):
    return poutine.trace(layer).get_trace(*inputs).nodes[layer.site]


@pytest.mark.parametrize("emission", EMISSIONS, ids=lambda e: getattr(e, "__name__", str(e)))
@pytest.mark.parametrize("sigma", ["input", "unit", "layer"])
@pytest.mark.parametrize("shape", [(), (5,), (2, 5), (2, 1, 5)])
def test_shapes_and_gradients(emission, sigma, shape):
    layer = EVEModule(3, 4, latent_dim=2, emission=copy.deepcopy(emission), sigma=sigma)
    h = torch.randn(*shape, 3)
    with PosteriorDraw():
        a = layer(h)
    assert a.shape == (*shape, 4)
    q = layer.posterior(h)
    assert q.batch_shape == (*shape, 4, 2)
    (a.square().sum() + kl_divergence(q, dist.Normal(0.0, 1.0)).sum()).backward()
    for name, p in layer.named_parameters():
        assert p.grad is not None, name
        assert torch.isfinite(p.grad).all(), name


@settings(max_examples=40, deadline=None)
@given(
    batch=st.lists(st.integers(1, 4), max_size=3),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_any_shape_and_dtype(batch, sizes, dtype):
    layer = EVEModule(*sizes, dtype=dtype, name="layer")
    h = torch.randn(*batch, sizes[0], dtype=dtype)
    prior_reading, posterior_reading = layer(h), EVEGuide(layer)(h)["layer"]
    assert prior_reading.shape == (*batch, sizes[1])
    assert posterior_reading.shape == (*batch, sizes[1], sizes[2])
    assert prior_reading.dtype == posterior_reading.dtype == dtype


def test_model_reading_is_the_prior_and_never_encodes():
    class Loud(GaussianEncoder):
        def forward(self, h):
            raise AssertionError("the model reading ran the encoder")

    layer = EVEModule(3, 200, 4, encoder=Loud(3, 200, 4))
    z = site_of(layer, torch.randn(100, 3))["value"]
    # 80,000 standard normals: the mean and second moment within 5 standard errors.
    n = z.numel()
    assert abs(z.mean()) < 5 / math.sqrt(n)
    assert abs(z.square().mean() - 1) < 5 * math.sqrt(2 / n)


def test_posterior_draws_have_the_encoders_moments():
    layer = EVEModule(3, 4, 2, name="z")
    h = torch.randn(1, 3)
    with torch.no_grad():
        z = EVEGuide(layer)(h.expand(40_000, 3))["z"]
        q = layer.posterior(h)
    error = (z.mean(0) - q.mean[0]) / (q.stddev[0] / math.sqrt(len(z)))
    assert error.abs().max() < 5  # 8 numbers: false alarm 5e-6
    ratio = (z.var(0) / q.variance[0] - 1) * math.sqrt(len(z) / 2)
    assert ratio.abs().max() < 5


def test_latents_keep_units_contiguous():
    layer = EVEModule(3, 8, 4, name="z")
    for z in (EVEGuide(layer)(torch.randn(5, 3))["z"], site_of(layer, torch.randn(5, 3))["value"]):
        assert z.mT.is_contiguous()


def test_event_dims_follow_the_plates():
    x = torch.randn(6, 7, 3)
    for plates, batch_shape in ((0, ()), (1, (6,)), (2, (6, 7))):
        trace = poutine.trace(Sequence(plates)).get_trace(x)
        names = [n for n, s in trace.nodes.items() if is_eve_site(s)]
        assert len(names) == 2
        for name in names:
            assert trace.nodes[name]["fn"].batch_shape == batch_shape
            assert trace.nodes[name]["value"].shape[:2] == (6, 7)
        assert trace.nodes["y"]["fn"].batch_shape == batch_shape


@pytest.mark.parametrize("plates", [0, 1, 2])
@pytest.mark.parametrize("particles", [3, 6, 7])
def test_particles_differ_in_every_layer_whatever_their_number(plates, particles):
    # 6 and 7 are the sizes of the data: sizes alone could not tell particles from rows.
    model = Sequence(plates)
    guide = EVEGuide(model)
    x = torch.randn(6, 7, 3)
    guide(x)  # a run outside the plate of particles, as every ELBO begins with
    with pyro.plate("num_particles_vectorized", particles, dim=-plates - 1):
        draws = guide(x)
    for name in ("net.0", "net.1"):
        z = draws[name]
        assert z.shape[:-2] == (particles, 6, 7)
        assert (z.std(0) > 0).all()
    # The first layer's posterior depends on x alone: particles share it.
    fn = guide.trace.nodes["net.0"]["fn"]
    assert torch.equal(fn.mean[0], fn.mean[1])


def test_ambiguous_input_is_refused_and_position_dims_settles_it():
    x = torch.randn(5, 5, 3)
    with pyro.plate("num_particles_vectorized", 5, dim=-2), pyro.plate("data", 5, dim=-1):
        with pytest.raises(ValueError, match=r"more than one way.*position_dims="):
            EVEModule(3, 4)(x)
        assert EVEModule(3, 4, position_dims=1)(x).shape == (5, 5, 5, 4)
        assert EVEModule(3, 4, position_dims=0)(x).shape == (5, 5, 4)
        with pytest.raises(ValueError, match="does not fit the active plates"):
            EVEModule(3, 4)(torch.randn(4, 3, 3))


@pytest.mark.parametrize(
    "wrap", [nn.Sequential, lambda *m: nn.Sequential(nn.ModuleList(m)[0], *m[1:])]
)
def test_sites_are_named_by_module_path(wrap):
    class Model(pyro.nn.PyroModule):
        def __init__(self):
            super().__init__()
            self.first = EVEModule(3, 4)
            self.rest = nn.Sequential(EVEModule(4, 4), nn.ReLU(), EVEModule(4, 2))

        def forward(self, x):
            return self.rest(self.first(x))

    model = Model()
    guide = EVEGuide(model)
    assert list(guide(torch.randn(5, 3))) == ["first", "rest.0", "rest.2"]
    trace = poutine.trace(model).get_trace(torch.randn(5, 3))
    assert [n for n, s in trace.nodes.items() if is_eve_site(s)] == ["first", "rest.0", "rest.2"]


def test_unnamed_layers_never_share_a_site():
    net = nn.Sequential(EVEModule(3, 4), EVEModule(4, 2))
    trace = poutine.trace(net).get_trace(torch.randn(5, 3))
    assert sum(is_eve_site(s) for s in trace.nodes.values()) == 2


def test_shared_names_and_repeated_calls_are_refused():
    net = nn.Sequential(EVEModule(3, 4, name="z"), EVEModule(4, 2, name="z"))
    with pytest.raises(ValueError, match="share the site name 'z'"):
        name_sites(net)
    layer = EVEModule(3, 3)
    with pytest.raises(ValueError, match="occurs twice"):
        EVEGuide(nn.Sequential(layer, layer))(torch.randn(5, 3))


def test_a_fixed_name_stays():
    net = nn.Sequential(EVEModule(3, 4, name="mine"), EVEModule(4, 2))
    EVEGuide(net)
    assert [layer.site for _, layer in eve_modules(net)] == ["mine", "1"]


def test_copies_and_state(tmp_path):
    layer = EVEModule(3, 4, 2, emission="gated", beta=0.25, sigma="unit")
    h = torch.randn(5, 3)
    with PosteriorMean():
        expected = layer(h)
        buffer = io.BytesIO()
        torch.save(layer.state_dict(), buffer)
        buffer.seek(0)
        fresh = EVEModule(3, 4, 2, emission="gated", sigma="unit")
        fresh.load_state_dict(torch.load(buffer, weights_only=True))
        for other in (fresh, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert torch.equal(other(h), expected)
            assert other.beta == 0.25


def test_reset_parameters_reaches_every_part():
    layer = EVEModule(3, 4, 2, emission="gated", sigma_init=0.2)
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(7.0)
    layer.reset_parameters()
    assert all((p != 7).any() for p in layer.parameters())
    torch.testing.assert_close(
        layer.posterior(torch.zeros(1, 3)).stddev, torch.full((1, 4, 2), 0.2), rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("sigma", ["input", "unit", "layer"])
def test_sigma_modes_depend_on_what_they_say(sigma):
    layer = EVEModule(3, 4, 2, sigma=sigma)
    with torch.no_grad():
        if sigma == "input":
            layer.encoder.log_scale.weight.normal_()
        else:
            layer.encoder.log_scale.normal_()
    s = layer.posterior(torch.randn(5, 3)).stddev
    assert (s.std(0) > 1e-3).all() == (sigma == "input")
    assert (s[0].std() > 1e-3) == (sigma != "layer")


def test_log_sigma_stays_in_its_range_and_can_leave_the_edge():
    layer = EVEModule(1, 1, log_sigma_bounds=(-2.0, 1.0), sigma="layer")
    for raw, edge in ((-50.0, -2.0), (50.0, 1.0)):
        with torch.no_grad():
            layer.encoder.log_scale.fill_(raw)
        layer.zero_grad()
        log_sigma = layer.posterior(torch.zeros(1, 1)).stddev.log()
        assert log_sigma.item() == pytest.approx(edge, abs=1e-6)
        log_sigma.sum().backward()
        assert layer.encoder.log_scale.grad.item() == pytest.approx(1.0)


def test_a_learned_prior_and_an_encoder_of_ones_own():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.log_scale = nn.Parameter(torch.zeros(4, 2))

        def forward(self, h):
            return dist.Normal(torch.zeros_like(self.log_scale), self.log_scale.exp())

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 16))

        def forward(self, h):
            loc, log_scale = self.net(h).unflatten(-1, (2, 4, 2)).unbind(-3)
            return dist.Normal(loc, log_scale.exp())

    class Model(pyro.nn.PyroModule):
        def __init__(self):
            super().__init__()
            self.layer = EVEModule(3, 4, 2, prior=Scaled(), encoder=Wide(), beta=1.0)

        def forward(self, x):
            with pyro.plate("data", len(x)):
                pyro.sample("y", dist.Normal(self.layer(x).sum(-1), 1.0), obs=torch.zeros(len(x)))

    model = Model()
    elbo = pyro.infer.TraceMeanField_ELBO()(model, EVEGuide(model))
    elbo(torch.randn(5, 3)).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_a_prior_given_as_distribution_or_function():
    h = torch.randn(5, 3)
    for prior in (dist.Normal(1.0, 0.5), lambda h: dist.Normal(h.new_ones(4, 2), 0.5)):
        fn = site_of(EVEModule(3, 4, 2, prior=prior), h)["fn"]
        assert fn.mean.shape == (5, 4, 2)
        assert (fn.mean == 1).all()
        assert (fn.variance == 0.25).all()


def test_autocast_keeps_the_latent_in_single_precision():
    layer = EVEModule(8, 16, name="z")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        draws = EVEGuide(nn.Sequential(layer, nn.Linear(16, 8), EVEModule(8, 4)))(torch.randn(5, 8))
    assert draws["z"].dtype == torch.float32
    assert all(torch.isfinite(z).all() for z in draws.values())


def test_free_bits_and_band_enter_the_loss():
    def loss(**kw):
        pyro.set_rng_seed(0)
        model = Regression(units=(4,), beta=0.5, **kw)
        model.net[0].encoder.loc.weight.data.mul_(3)
        model.net[0].encoder.loc.bias.data.fill_(0.5)
        x, y = data()
        pyro.set_rng_seed(1)
        return model, x, pyro.infer.TraceMeanField_ELBO().loss(model, EVEGuide(model), x, y)

    model, x, plain = loss()
    q = model.net[0].posterior(x)
    kl = kl_divergence(q, dist.Normal(0.0, 1.0)).sum(-1)
    _, _, free = loss(penalties=[FreeBits(2.0)])
    assert free - plain == pytest.approx(0.5 * (2.0 - kl).clamp(min=0).sum().item(), rel=1e-4)
    assert free > plain
    _, _, band = loss(penalties=[TargetBand(-0.2, 0.2, weight=3.0)])
    outside = (q.mean.abs() - 0.2).clamp(min=0).square().sum().item()
    assert band - plain == pytest.approx(3 * outside, rel=1e-4)
    _, _, energy = loss(penalties=[TargetBand(0.0, 0.1, on="energy")])
    excess = (q.mean.square().mean(-1) - 0.1).clamp(min=0).square().sum().item()
    assert energy - plain == pytest.approx(excess, rel=1e-4)


def test_set_beta_reaches_every_layer_in_place():
    model = Regression()
    before = [layer.beta for _, layer in eve_modules(model)]
    set_beta(model, 0.125)
    assert [b.item() for b in before] == [0.125, 0.125]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"in_features": 0}, "in_features must be an integer >= 1, got 0"),
        ({"out_features": 2.5}, "out_features must be an integer >= 1, got 2.5"),
        ({"latent_dim": 0}, "latent_dim must be an integer >= 1, got 0"),
        ({"beta": -1.0}, "beta must be a finite number in \\[0, inf\\), got -1.0"),
        ({"beta": math.nan}, "beta must be a finite number"),
        ({"sigma": "row"}, "sigma must be one of 'input', 'unit', 'layer', got 'row'"),
        ({"sigma_init": 50.0}, "sigma_init must be a finite number in"),
        ({"log_sigma_bounds": (1, -1)}, "log_sigma_bounds must increase"),
        ({"emission": "softmax"}, "emission must be one of 'relu'"),
        ({"position_dims": -1}, "position_dims must be an integer >= 0"),
    ],
)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        EVEModule(**{"in_features": 3, "out_features": 4, **kwargs})


def test_more_bad_arguments():
    with pytest.raises(TypeError, match="emission must be a name"):
        EVEModule(3, 4, emission=7)
    with pytest.raises(ValueError, match="lower must be below upper"):
        TargetBand(1.0, 0.0)
    with pytest.raises(ValueError, match="nats must be"):
        FreeBits(0.0)
    with pytest.raises(ValueError, match=r"must have shape \(\*, 3\), got \(5, 2\)"):
        EVEModule(3, 4)(torch.randn(5, 2))


def test_residual_passes_the_input_on():
    layer = EVEModule(3, 5, emission=ResidualEmission)
    assert isinstance(layer.emission.skip, nn.Linear)
    assert repr(layer).startswith("EVEModule(\n  3, 5, latent_dim=1")
