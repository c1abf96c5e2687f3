"""One contract for every layer, part, control and network; then heads and networks alone."""

import copy
import io
import math
import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import nn

from eve_pyro import EVEGuide
from eve_pyro.infer import MCNLL_ELBO
from eve_pyro.nn import (
    MLP,
    ActivationEmission,
    BayesianDense,
    CategoricalHead,
    Dense,
    DeterministicCell,
    DropoutUnit,
    EVEModule,
    FreeBits,
    GatedEmission,
    GaussianEncoder,
    GaussianHead,
    MCDropout,
    MixtureDensityHead,
    Network,
    PreNormResidual,
    ResidualEmission,
    StandardNormal,
    TargetBand,
)

IN, OUT = 3, 4


def _eve(**options):
    return lambda **kw: EVEModule(IN, OUT, **options, **kw)


def _emission(cls, **options):
    return lambda **kw: EVEModule(
        IN, OUT, 2, emission=cls(IN, OUT, 2, readout="learned", **options, **kw), **kw
    )


def _layer(cls, **options):
    return lambda **kw: cls(IN, OUT, **options, **kw)


def _mlp(**options):
    return lambda **kw: MLP(IN, [OUT, OUT], **options, **kw)


def _sequential(**kw):
    return nn.Sequential(EVEModule(IN, 5, **kw), Dense(5, OUT, **kw))


# Modules from (*, IN) to (*, OUT).
LAYERS = {
    "eve": _eve(),
    "eve-2": _eve(latent_dim=2),
    "eve-unit-sigma": _eve(sigma="unit"),
    "eve-layer-sigma": _eve(sigma="layer"),
    "eve-penalties": _eve(penalties=[FreeBits(0.1), TargetBand(-1, 1)]),
    "eve-tanh": _eve(emission="tanh"),
    "eve-gelu": _eve(emission="gelu"),
    "eve-silu": _eve(emission="silu"),
    "eve-identity": _eve(emission="identity"),
    "eve-gated": _eve(emission="gated"),
    "eve-residual": _eve(emission="residual"),
    "activation-emission": _emission(ActivationEmission, activation="silu"),
    "gated-emission": _emission(GatedEmission),
    "residual-emission": _emission(ResidualEmission),
    "dense": _layer(Dense),
    "dense-tanh": _layer(Dense, activation="tanh"),
    "cell": _layer(DeterministicCell),
    "cell-2-gated": _layer(DeterministicCell, latent_dim=2, emission="gated"),
    "dropout-unit": _layer(DropoutUnit, p=0.3),
    "bayesian": _layer(BayesianDense),
    "mlp": _mlp(),
    "mlp-residual": _mlp(residual=True, latent_dim=2),
    "mlp-dense": _mlp(unit=Dense, activation="gelu"),
    "mlp-dense-residual": _mlp(unit=Dense, residual=True),
    "mlp-cell": _mlp(unit=DeterministicCell),
    "mlp-dropout": _mlp(unit=DropoutUnit, p=0.3),
    "mlp-dropout-residual": _mlp(unit=DropoutUnit, residual=True, p=0.3),
    "mlp-bayesian": _mlp(unit=BayesianDense, activation="tanh"),
    "mlp-bayesian-residual": _mlp(unit=BayesianDense, residual=True),
    "mlp-linear": _mlp(unit=nn.Linear),
    "sequential": _sequential,
}
# Modules from (*, IN) to a distribution of batch shape (*) or, the encoder, (*, OUT, 2).
DISTRIBUTIONS = {
    "encoder": _layer(GaussianEncoder, latent_dim=2),
    "gaussian": lambda **kw: GaussianHead(IN, **kw),
    "heteroscedastic": lambda **kw: GaussianHead(IN, heteroscedastic=True, **kw),
    "mixture": lambda **kw: MixtureDensityHead(IN, 2, **kw),
    "categorical": lambda **kw: CategoricalHead(IN, OUT, **kw),
}
# Modules whose features or arguments differ from all others.
OTHERS = {
    "dropout": lambda **kw: MCDropout(0.3),
    "block": lambda **kw: PreNormResidual(IN, Dense(IN, IN, **kw), 0.5, **kw),
    "network": lambda **kw: Network(MLP(IN, [OUT], **kw), GaussianHead(OUT, **kw)),
}
MODULES = LAYERS | DISTRIBUTIONS | OTHERS
# The units that MLP takes, for what is only of interest in a network.
UNITS = [EVEModule, Dense, DeterministicCell, DropoutUnit, BayesianDense]


def as_tensor(out):
    """The output, or of a distribution output its density at fixed points."""
    if isinstance(out, torch.Tensor):
        return out
    return out.log_prob(torch.zeros(out.batch_shape, dtype=torch.get_default_dtype()))


def run(module, x):
    pyro.set_rng_seed(1)
    return as_tensor(module(x))


def network(name, **kw):
    """A supervised model around any module, and a guide for it."""
    if name == "network":
        model = MODULES[name](**kw)
    elif name in DISTRIBUTIONS and name != "encoder":
        model = Network(nn.Identity(), MODULES[name](**kw))
    else:
        module = MODULES[name](**kw)
        model = Network(module, GaussianHead(OUT if name in LAYERS else IN, **kw))
    return model, EVEGuide(model, AutoNormal if "bayesian" in name else None)


def data(name="", positions=(), batch=16, **kw):
    x = torch.randn(batch, *positions, IN, **kw)
    if name == "categorical":
        return x, torch.randint(OUT, x.shape[:-1])
    return x, torch.randn(x.shape[:-1], **kw)


networks = pytest.mark.parametrize("name", [name for name in MODULES if name != "encoder"])
modules = pytest.mark.parametrize("name", MODULES)


@modules
@pytest.mark.parametrize("batch", [(), (5,), (5, 7), (2, 5, 7)])
def test_shape(name, batch):
    if name == "network":
        batch = batch[:2] or (5,)
    out = MODULES[name]()(torch.randn(*batch, IN))
    if name in LAYERS:
        assert out.shape == (*batch, OUT)
    elif name == "network":
        assert out.shape == batch
    elif name in OTHERS:
        assert out.shape == (*batch, IN)
    else:
        assert out.batch_shape == ((*batch, OUT, 2) if name == "encoder" else batch)
        assert out.event_shape == ()


@networks
@pytest.mark.parametrize("positions", [(), (3,)])
def test_gradient_reaches_every_parameter(name, positions):
    model, guide = network(name)
    x, y = data(name, positions)
    loss = Trace_ELBO()(model, guide)
    loss(x, y).backward()
    parameters = dict(loss.named_parameters())
    assert parameters
    for key, p in parameters.items():
        assert p.grad is not None, key
        assert p.grad.isfinite().all(), key
        assert p.grad.abs().sum() > 0, key


@networks
def test_svi_moves_every_parameter(name):
    model, guide = network(name)
    x, y = data(name)
    svi = SVI(model, guide, pyro.optim.SGD({"lr": 1e-3}), Trace_ELBO())
    svi.step(x, y, num_data=32)
    before = {key: p.clone() for key, p in guide.named_parameters()}
    before |= {key: p.clone() for key, p in model.named_parameters()}
    for _ in range(3):
        svi.step(x, y, num_data=32)
    after = dict(guide.named_parameters()) | dict(model.named_parameters())
    assert [key for key, p in after.items() if torch.equal(p, before[key])] == []


@networks
@pytest.mark.parametrize("loss", [Trace_ELBO, TraceMeanField_ELBO, MCNLL_ELBO])
@pytest.mark.parametrize("positions", [(), (3,)])
def test_vectorized_particles(name, loss, positions):
    model, guide = network(name)
    elbo = loss(3, vectorize_particles=True)(model, guide)
    value = elbo(*data(name, positions))
    assert value.shape == ()
    assert value.isfinite()


@networks
@pytest.mark.parametrize("positions", [(), (3,)])
def test_every_particle_is_a_run_of_its_own(name, positions):
    """Particles differ from the first layer on, and each gives what its latents give alone."""
    model, guide = network(name)
    x, _ = data(name, positions)
    particles, depth = 3, 1 + len(positions)
    if guide.guide is not None:
        guide(*data(name, positions))  # an AutoGuide must first see which sites are observed
    with pyro.plate("num_particles_vectorized", particles, dim=-depth - 1):
        guide(x)
    nodes = dict(guide.trace.nodes)
    target = nodes.pop("y")["fn"]
    latents = {
        key: node["value"]
        for key, node in nodes.items()
        if node["type"] == "sample" and key not in ("data", "positions") and "penalty" not in key
    }
    for value in latents.values():
        assert len(value) == particles
        assert len(value.flatten(1).unique(dim=0)) == particles
    if not latents:
        return
    y = target.sample()
    for s in range(particles):
        one = {key: value[s] for key, value in latents.items()}
        if "bayesian" in name:  # weights have a singleton dim for every data plate
            one = {key: value.flatten(0, depth - 1).squeeze(0) for key, value in one.items()}
        with poutine.trace() as trace:
            poutine.condition(model, one)(x)
        alone = trace.trace.nodes["y"]["fn"]
        torch.testing.assert_close(target.log_prob(y)[s], alone.log_prob(y[s]))


@modules
def test_float64(name):
    module = MODULES[name](dtype=torch.float64)
    for tensor in (*module.parameters(), *module.buffers()):
        assert tensor.dtype == torch.float64
    x, y = data(name, dtype=torch.float64)
    out = module(x)
    if isinstance(out, torch.Tensor):
        assert out.dtype == torch.float64
    else:
        assert out.mean.dtype == torch.float64 or name == "categorical"
    if name != "encoder":
        assert Trace_ELBO()(*network(name, dtype=torch.float64))(x, y).dtype == torch.float64


@modules
def test_device(name):
    module = MODULES[name](device="meta")
    for tensor in (*module.parameters(), *module.buffers()):
        assert tensor.is_meta


@modules
def test_repr(name):
    module = MODULES[name]()
    assert repr(module).startswith(f"{type(module).__name__}(")
    for part in module.modules():
        ours = type(part).__module__.startswith("eve_pyro")
        if ours and not list(part.children()) and not isinstance(part, StandardNormal):
            assert part.extra_repr()


@modules
def test_state_dict_round_trip(name):
    module, other = MODULES[name](), MODULES[name]()
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    x = torch.randn(5, IN)
    assert torch.equal(run(module, x), run(other, x))


@modules
def test_copies(name):
    module, x = MODULES[name](), torch.randn(5, IN)
    before = run(module, x)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(run(twin, x), before)
        for p, q in zip(module.parameters(), twin.parameters(), strict=True):
            assert p is not q


@networks
def test_copies_after_training(name):
    model, guide = network(name)
    x, y = data(name)
    SVI(model, guide, pyro.optim.SGD({"lr": 1e-3}), Trace_ELBO()).step(x, y)
    pyro.clear_param_store()
    expected = run(model, x)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        pyro.clear_param_store()
        assert torch.equal(run(twin, x), expected)


@modules
def test_reset_parameters(name):
    module = MODULES[name]()
    for p in module.parameters():
        nn.init.constant_(p, 7.0)
    if name == "sequential":
        for part in module:
            part.reset_parameters()
    elif name != "dropout":
        module.reset_parameters()
    for key, p in module.named_parameters():
        assert not (p == 7.0).any(), key


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("positions", [(), (3,)])
@pytest.mark.parametrize("parallel", [False, True])
def test_predictive(unit, positions, parallel):
    model = Network(MLP(IN, [OUT, OUT], unit=unit), GaussianHead(OUT))
    guide = EVEGuide(model, AutoNormal if unit is BayesianDense else None)
    x, y = data(positions=positions)
    guide(x, y)
    draws = Predictive(model, guide=guide, num_samples=6, parallel=parallel)(x, num_data=100)
    assert draws["y"].shape == (6, *y.shape)
    assert len(draws["y"].flatten(1).unique(dim=0)) == 6


# Heads


def test_homoscedastic_scale_is_one_parameter():
    head = GaussianHead(IN, scale_init=0.5)
    assert head.log_scale.shape == ()
    y = head(torch.randn(4, 5, IN))
    torch.testing.assert_close(y.scale, torch.full((4, 5), 0.5))
    model = Network(nn.Identity(), head)
    assert "head.log_scale" in dict(model.named_parameters())


@pytest.mark.parametrize(
    "head", [GaussianHead(IN, heteroscedastic=True), MixtureDensityHead(IN, 2)]
)
def test_scale_is_bounded_and_can_come_back(head):
    h = torch.full((1, IN), 1e4, requires_grad=True)
    nn.init.constant_(head.log_scale.weight, 1.0)
    y = head(h)
    scale = y.scale if isinstance(y, dist.Normal) else y.component_distribution.scale
    torch.testing.assert_close(scale, torch.full_like(scale, math.exp(7)))
    scale.log().sum().backward()
    assert head.log_scale.bias.grad.tolist() == [1.0] * len(head.log_scale.bias)


def test_mixture_density():
    head, h, y = MixtureDensityHead(IN, 3), torch.randn(5, IN), torch.randn(5)
    weights = head.logits(h).softmax(-1)
    normals = dist.Normal(head.loc(h), head.log_scale(h).exp())
    expected = (weights * normals.log_prob(y[:, None]).exp()).sum(-1).log()
    torch.testing.assert_close(head(h).log_prob(y), expected)


def test_heads_start_at_the_given_scale():
    h = 0.1 * torch.randn(500, IN)
    scale = GaussianHead(IN, heteroscedastic=True, scale_init=0.2)(h).scale
    torch.testing.assert_close(scale, torch.full_like(scale, 0.2), rtol=0.2, atol=0)
    scale = MixtureDensityHead(IN, scale_init=3.0)(h).component_distribution.scale
    torch.testing.assert_close(scale, torch.full_like(scale, 3.0), rtol=0.2, atol=0)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: GaussianHead(0), "in_features must be an integer >= 1"),
        (lambda: GaussianHead(IN, scale_init=0.0), "scale_init must be a finite number"),
        (lambda: GaussianHead(IN, scale_init=2e3), "scale_init must be a finite number"),
        (lambda: MixtureDensityHead(IN, 0), "components must be an integer >= 1"),
        (lambda: CategoricalHead(IN, 0), "num_classes must be an integer >= 1"),
        (lambda: MLP(IN, []), "at least one layer"),
        (lambda: MLP(0, [3]), "in_features must be an integer >= 1"),
        (lambda: MLP(IN, [3, 0]), "hidden_features must be an integer >= 1"),
        (lambda: MLP(IN, [3, 4], residual=True), "needs one width"),
        (lambda: MLP(IN, [3], emission="rellu"), "emission must be one of"),
    ],
)
def test_bad_arguments(build, match):
    with pytest.raises(ValueError, match=match):
        build()


# Networks


@pytest.mark.parametrize(
    ("x", "y", "num_data", "match"),
    [
        ((IN,), None, None, "x must have shape"),
        ((2, 2, 2, IN), None, None, "x must have shape"),
        ((5, IN), (5, 1), None, r"y must have shape \(5,\).*got \(5, 1\)"),
        ((5, IN), (4,), None, r"y must have shape \(5,\)"),
        ((5, 2, IN), (5,), None, r"y must have shape \(5, 2\)"),
        ((5, IN), (5,), 0, "num_data must be an integer >= 1"),
    ],
)
def test_bad_data(x, y, num_data, match):
    model = Network(MLP(IN, [OUT]), GaussianHead(OUT))
    with pytest.raises(ValueError, match=match):
        model(torch.randn(x), y if y is None else torch.randn(y), num_data)


def test_vector_valued_target():
    class Vector(nn.Module):
        def forward(self, h):
            return dist.Normal(h, 1.0).to_event(1)

    model = Network(nn.Identity(), Vector())
    assert model(torch.randn(5, IN), torch.randn(5, IN)).shape == (5, IN)
    with pytest.raises(ValueError, match=r"y must have shape \(5, 3\)"):
        model(torch.randn(5, IN), torch.randn(5))


@pytest.mark.parametrize("positions", [(), (3,)])
def test_num_data_scales_the_data_alone(positions):
    model = Network(MLP(IN, [OUT]), GaussianHead(OUT))
    x, y = data(positions=positions)
    trace = poutine.trace(model).get_trace(x, y, num_data=80)
    assert trace.nodes["y"]["scale"] == 80 / 16
    frames = {f.name: f.dim for f in trace.nodes["y"]["cond_indep_stack"]}
    assert frames == ({"data": -2, "positions": -1} if positions else {"data": -1})


def test_random_weights_are_shared_by_all_data():
    model = Network(MLP(IN, [OUT], unit=BayesianDense), GaussianHead(OUT))
    trace = poutine.trace(model).get_trace(*data(), num_data=80)
    weight = trace.nodes["trunk.layer0.weight"]
    assert weight["value"].shape == (OUT, IN)
    assert weight["scale"] == 1.0


def test_sites_are_named_by_path():
    for unit, sites in [
        (EVEModule, {"trunk.layer0.unit", "trunk.layer1.unit"}),
        (DropoutUnit, {"trunk.layer0.unit.dropout", "trunk.layer1.unit.dropout"}),
    ]:
        model = Network(MLP(IN, [OUT, OUT], unit=unit, residual=True), GaussianHead(OUT))
        assert set(EVEGuide(model)(*data())) == sites | {"y"}


def test_two_hidden_layers_learn():
    x, _ = data(batch=64)
    y = x[:, 0] - x[:, 1]
    model = Network(MLP(IN, [16, 16]), GaussianHead(16))
    svi = SVI(model, EVEGuide(model), pyro.optim.Adam({"lr": 1e-2}), Trace_ELBO())
    losses = [svi.step(x, y) for _ in range(150)]
    assert sum(losses[-20:]) / 20 < losses[0] / 2


@pytest.mark.parametrize("unit", [EVEModule, Dense])
def test_128_layers_of_128(unit):
    model = Network(MLP(8, [128] * 128, unit=unit, residual=True), GaussianHead(128))
    x, y = torch.randn(4, 8), torch.randn(4)
    h = model.trunk(x)
    assert 0.1 < h.std() < 10
    Trace_ELBO()(model, EVEGuide(model))(x, y).backward()
    first, last = (
        torch.cat([p.grad.flatten() for p in getattr(model.trunk, f"layer{i}").parameters()])
        for i in (0, 127)
    )
    assert 0.01 < first.norm() / last.norm() < 100
