"""The objectives against closed forms."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from small_models import Regression, Sequence, data
from torch.distributions import kl_divergence

from eve_pyro import EVEGuide, EVEModule
from eve_pyro.infer import MCNLL_ELBO, LinearGaussianELBO, MomentMatchedELBO
from eve_pyro.nn import set_beta

OBJECTIVES = [
    Trace_ELBO(),
    TraceMeanField_ELBO(),
    MCNLL_ELBO(4),
    MCNLL_ELBO(4, vectorize_particles=False),
    MomentMatchedELBO(4),
    MomentMatchedELBO(4, vectorize_particles=False),
]


def fresh(elbo):
    """An objective of the same kind that has seen no model."""
    kwargs = {"vectorize_particles": elbo.vectorize_particles}
    return type(elbo)(num_particles=elbo.num_particles, **kwargs)


def draws_and_kl(model, x):
    """The latents of one pass, and the sum of beta * KL at each layer's own input."""
    latents = EVEGuide(model)(x)
    h, kl = x, 0.0
    for layer in list(model.net)[:-1]:
        q = layer.posterior(h)
        kl = kl + layer.beta * kl_divergence(q, dist.Normal(0.0, 1.0)).sum()
        h = layer.emission(latents[layer.site], h)
    return model.net[-1](h).squeeze(-1), kl


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_stacked_elbo_is_nll_plus_beta_kl(beta):
    model = Regression(beta=beta)
    x, y = data()
    pyro.set_rng_seed(3)
    loc, kl = draws_and_kl(model, x)
    nll = -dist.Normal(loc, 0.5).log_prob(y).sum()
    pyro.set_rng_seed(3)
    loss = TraceMeanField_ELBO().loss(model, EVEGuide(model), x, y)
    assert loss == pytest.approx((nll + kl).item(), rel=1e-5)
    if beta == 0:
        for elbo in (Trace_ELBO(), TraceMeanField_ELBO(), MCNLL_ELBO(1)):
            pyro.set_rng_seed(3)
            assert elbo.loss(model, EVEGuide(model), x, y) == pytest.approx(nll.item(), rel=1e-6)


@pytest.mark.parametrize("plates", [0, 1, 2])
def test_stock_elbos_agree_in_expectation(plates):
    # Two unbiased estimates of one number: their difference is within 5 standard errors of 0,
    # a false alarm of 6e-7 per case.
    model = Sequence(plates, beta=1.0)
    guide = EVEGuide(model)
    x, y = torch.randn(3, 2, 3), torch.randn(3, 2)
    with torch.no_grad():
        one, two = (
            torch.tensor([elbo.loss(model, guide, x, y) for _ in range(400)])
            for elbo in (Trace_ELBO(), TraceMeanField_ELBO())
        )
    error = math.sqrt((one.var() + two.var()) / 400)
    assert abs(one.mean() - two.mean()) < 5 * error
    assert one.std() > two.std()  # the analytic KL takes noise away


@pytest.mark.parametrize("elbo", OBJECTIVES, ids=lambda e: type(e).__name__)
def test_gradients_match_finite_differences(elbo):
    elbo = fresh(elbo)
    model = Regression(units=(3, 2), emission="tanh", beta=0.4, dtype=torch.float64).double()
    guide = EVEGuide(model)
    x, y = data(dtype=torch.float64)

    def loss():
        pyro.set_rng_seed(5)
        return elbo.differentiable_loss(model, guide, x, y)

    loss()  # guesses the plate nesting
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(loss(), list(parameters.values()))
    step = 1e-6
    for (name, p), gradient in zip(parameters.items(), gradients, strict=True):
        assert gradient.abs().sum() > 0, name
        flat = p.data.view(-1)
        for i in range(0, flat.numel(), max(1, flat.numel() // 3)):
            old = flat[i].item()
            ends = []
            for moved in (old + step, old - step):
                flat[i] = moved
                ends.append(loss().item())
            flat[i] = old
            slope = (ends[0] - ends[1]) / (2 * step)
            assert gradient.reshape(-1)[i].item() == pytest.approx(slope, rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize("vectorize", [True, False])
def test_mcnll_is_a_hand_computed_log_mean_exp(vectorize):
    model = Regression(beta=0.2)
    guide = EVEGuide(model)
    x, y = data()
    elbo = MCNLL_ELBO(5, vectorize_particles=vectorize, max_plate_nesting=1)
    pyro.set_rng_seed(11)
    loss = elbo.loss(model, guide, x, y)
    pyro.set_rng_seed(11)
    if vectorize:
        with pyro.plate("num_particles_vectorized", 5, dim=-2):
            guide(x, y)
        traces = [guide.get_traces()]
    else:
        traces = []
        for _ in range(5):
            guide(x, y)
            traces.append(guide.get_traces())
    log_p = torch.cat(
        [dist.Normal(m.nodes["y"]["fn"].loc, 0.5).log_prob(y).view(-1, 6) for m, _ in traces]
    )
    assert log_p.shape == (5, 6)
    nll = -(log_p.exp().mean(0)).log().sum()
    kl = sum(
        0.2 * kl_divergence(g.nodes[s]["fn"], m.nodes[s]["fn"]).sum() / 5
        for m, g in traces
        for s in ("net.0", "net.1")
    )
    assert loss == pytest.approx((nll + kl).item(), rel=1e-5)


@pytest.mark.parametrize("vectorize", [True, False])
def test_elbo_weight_blends_the_averages_inside_and_outside_the_logarithm(vectorize):
    model = Regression(beta=0.2)
    x, y = data()

    options = {"vectorize_particles": vectorize, "max_plate_nesting": 1}

    def evaluate(elbo):
        pyro.set_rng_seed(11)
        return elbo.loss(model, EVEGuide(model), x, y)

    def loss(weight):
        return evaluate(MCNLL_ELBO(5, elbo_weight=weight, **options))

    plain = evaluate(TraceMeanField_ELBO(5, **options))
    assert loss(1.0) == pytest.approx(plain, rel=1e-5)
    assert loss(0.25) == pytest.approx(0.75 * loss(0.0) + 0.25 * loss(1.0), rel=1e-5)
    assert loss(0.0) < loss(1.0)
    with pytest.raises(ValueError, match=r"elbo_weight must be .* got 1.5"):
        MCNLL_ELBO(elbo_weight=1.5)


def linear_model(beta=0.0, scale=0.3):
    return Regression(units=(4,), latent_dim=2, emission="identity", beta=beta, scale=scale)


def exact_nll(model, x, y):
    layer, head = model.net
    q = layer.posterior(x)
    w = head.weight[0]
    variance = (w.square() * q.variance.sum(-1) / 4).sum(-1) + model.scale**2
    loc = head(q.mean.mean(-1)).squeeze(-1)
    return -dist.Normal(loc, variance.sqrt()).log_prob(y).sum()


def test_mcnll_reaches_the_exact_marginal_of_a_linear_gaussian_model():
    model = linear_model()
    x, y = data()
    with torch.no_grad():
        exact = exact_nll(model, x, y).item()
        gaps = []
        for s in (1, 10, 100, 20_000):
            losses = [MCNLL_ELBO(s).loss(model, EVEGuide(model), x, y) for _ in range(3)]
            gaps.append(abs(sum(losses) / 3 - exact))
    assert gaps[-1] < 0.02
    assert gaps[0] > 3 * gaps[-1]


def test_closed_form_is_the_exact_marginal_and_its_gradient():
    model = linear_model(beta=0.1).double()
    x, y = data(dtype=torch.float64)
    guide = EVEGuide(model)
    loss = LinearGaussianELBO().differentiable_loss(model, guide, x, y)
    q = model.net[0].posterior(x)
    exact = exact_nll(model, x, y) + 0.1 * kl_divergence(q, dist.Normal(0.0, 1.0)).sum()
    torch.testing.assert_close(loss, exact, rtol=1e-6, atol=1e-6)
    parameters = list(model.parameters())
    for a, b in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(exact, parameters), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
    assert LinearGaussianELBO().loss(model, guide, x, y) == pytest.approx(exact.item(), rel=1e-6)


def test_closed_form_of_the_last_of_two_layers_has_less_noise_than_sampling_it():
    model = Regression(units=(4, 3), emission="identity", scale=0.3)
    x, y = data()
    guide = EVEGuide(model)
    with torch.no_grad():
        closed, sampled = (
            torch.tensor([elbo.loss(model, guide, x, y) for _ in range(60)])
            for elbo in (LinearGaussianELBO(50), MCNLL_ELBO(50))
        )
    assert closed.std() < sampled.std()
    assert abs(closed.mean() - sampled.mean()) < 0.3


def test_closed_form_refuses_what_it_does_not_fit():
    x, y = data()
    model = Regression(units=(4,), emission="relu", latent_dim=1)
    with pytest.raises(ValueError, match="not linear in the latents of 'net"):
        LinearGaussianELBO().loss(model, EVEGuide(model), x, y)
    with pytest.raises(ValueError, match="site must be one of"):
        LinearGaussianELBO(site="none").loss(model, EVEGuide(model), x, y)
    layer = EVEModule(3, 2, emission="identity", name="z")

    def head_on_latents(x, y=None):
        with pyro.plate("data", len(x)):
            loc, log_scale = layer(x).unbind(-1)
            return pyro.sample("y", dist.Normal(loc, log_scale.exp()), obs=y)

    with pytest.raises(ValueError, match="scale of 'y' depends on the latents"):
        LinearGaussianELBO(site="z").loss(head_on_latents, EVEGuide(head_on_latents), x, y)


def test_moment_matched_uses_mean_and_unbiased_variance_of_the_draws():
    model = Regression(beta=0.0)
    guide = EVEGuide(model)
    x, y = data()
    elbo = MomentMatchedELBO(5, max_plate_nesting=1)
    pyro.set_rng_seed(2)
    loss = elbo.loss(model, guide, x, y)
    pyro.set_rng_seed(2)
    with pyro.plate("num_particles_vectorized", 5, dim=-2):
        guide(x, y)
    loc = guide.get_traces()[0].nodes["y"]["fn"].loc
    expected = dist.Normal(loc.mean(0), (loc.var(0) + 0.25).sqrt()).log_prob(y).sum()
    assert loss == pytest.approx(-expected.item(), rel=1e-5)
    with pytest.raises(ValueError, match="num_particles must be an integer >= 2, got 1"):
        MomentMatchedELBO(1)


@pytest.mark.parametrize("elbo", OBJECTIVES, ids=lambda e: type(e).__name__)
def test_a_subsampled_plate_scales_by_n_over_b(elbo):
    # With one row per batch every estimate is of the full sum: N/B times the batch's own loss.
    x, y = data()
    model = Regression(beta=0.3)
    losses = []
    for num_data in (None, 60):
        model.num_data = num_data
        pyro.set_rng_seed(7)
        losses.append(fresh(elbo).loss(model, EVEGuide(model), x, y))
    assert losses[1] == pytest.approx(10 * losses[0], rel=1e-5)


def test_mcnll_averages_over_subsamples_to_the_full_loss():
    model = linear_model(beta=0.5)
    model.num_data = 6
    x, y = data()
    guide = EVEGuide(model)
    elbo = LinearGaussianELBO()  # no noise but the subsample's
    full = elbo.loss(model, guide, x, y)
    parts = [elbo.loss(model, guide, x[i : i + 2], y[i : i + 2]) for i in (0, 2, 4)]
    assert sum(parts) / 3 == pytest.approx(full, rel=1e-5)


def test_mcnll_multiplies_the_observations_of_a_datum_before_averaging():
    layer = EVEModule(3, 4, beta=0.0, name="z")
    x = torch.randn(5, 3)
    y1, y2 = torch.randn(5), torch.randn(2, 5)

    def model(x):
        with pyro.plate("data", 5, dim=-1):
            a = layer(x)
            pyro.sample("y1", dist.Normal(a[..., 0], 1.0), obs=y1)
            with pyro.plate("repeat", 2, dim=-2):
                loc = a[..., 1] + torch.tensor([[0.0], [1.0]])
                pyro.sample("y2", dist.Normal(loc, 1.0), obs=y2)

    guide = EVEGuide(model)
    elbo = MCNLL_ELBO(3, max_plate_nesting=2)
    pyro.set_rng_seed(4)
    loss = elbo.loss(model, guide, x)
    pyro.set_rng_seed(4)
    with pyro.plate("num_particles_vectorized", 3, dim=-3):
        guide(x)
    nodes = guide.trace.nodes
    log_1 = dist.Normal(nodes["y1"]["fn"].loc, 1.0).log_prob(y1).reshape(3, 5)
    log_2 = dist.Normal(nodes["y2"]["fn"].loc, 1.0).log_prob(y2).reshape(3, 2, 5)
    expected = ((log_1 + log_2.sum(1)).logsumexp(0) - math.log(3)).sum()
    assert loss == pytest.approx(-expected.item(), rel=1e-5)


def test_mcnll_refuses_two_scales_in_one_datum_and_a_model_without_data():
    layer = EVEModule(3, 2, name="z")
    x, y = data()

    def model(x, y=None):
        with pyro.plate("data", len(x)):
            a = layer(x)
            pyro.sample("y1", dist.Normal(a[..., 0], 1.0), obs=y)
            with poutine.scale(scale=2.0):
                pyro.sample("y2", dist.Normal(a[..., 1], 1.0), obs=y)

    with pytest.raises(ValueError, match="need one scale"):
        MCNLL_ELBO(2).loss(model, EVEGuide(model), x, y)
    with pytest.raises(ValueError, match="no observed site"):
        MCNLL_ELBO(2).loss(model, EVEGuide(model), x)


@pytest.mark.parametrize("elbo", OBJECTIVES, ids=lambda e: type(e).__name__)
def test_a_scale_around_model_and_guide_scales_the_loss(elbo):
    x, y = data()
    model = Regression(beta=0.3)
    guide = EVEGuide(model)
    losses = []
    for scale in (1.0, 0.25):
        pyro.set_rng_seed(7)
        with poutine.scale(scale=scale):
            losses.append(fresh(elbo).loss(model, guide, x, y))
    assert losses[1] == pytest.approx(losses[0] / 4, rel=1e-5)


@pytest.mark.parametrize("elbo", OBJECTIVES, ids=lambda e: type(e).__name__)
def test_svi_trains_every_parameter(elbo):
    x, y = data(60)
    model = Regression(beta=1e-3)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    elbo = fresh(elbo)
    svi = SVI(model, EVEGuide(model), pyro.optim.Adam({"lr": 0.01}), elbo)
    losses = [svi.step(x, y) for _ in range(60)]
    assert sum(losses[-10:]) < sum(losses[:10])
    for name, p in model.named_parameters():
        assert (p - before[name]).abs().max() > 0, name


def test_beta_can_move_to_zero_and_back_without_a_new_guide():
    model = Regression()
    guide = EVEGuide(model)
    x, y = data()
    losses = []
    for beta in (0.5, 0.0, 0.5):
        set_beta(model, beta)
        pyro.set_rng_seed(0)
        losses.append(TraceMeanField_ELBO().loss(model, guide, x, y))
    assert losses[0] == losses[2] > losses[1]


@pytest.mark.parametrize("elbo", [MCNLL_ELBO(3), MomentMatchedELBO(3), LinearGaussianELBO()])
def test_deterministic_sites_are_no_data(elbo):
    layer = EVEModule(3, 1, emission="identity", name="z")

    def model(x, y=None, note=False):
        if note:
            pyro.deterministic("size", x.abs().mean())
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(layer(x).squeeze(-1), 1.0), obs=y)

    x, y = data()
    losses = []
    for note in (False, True):
        pyro.set_rng_seed(0)
        objective = fresh(elbo)
        objective.site = "z"
        losses.append(objective.loss(model, EVEGuide(model), x, y, note))
    assert losses[0] == losses[1]
