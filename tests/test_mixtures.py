"""Predictive mixtures against closed forms, numerical inversion and each other."""

import math

import pyro
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, MixtureSameFamily, Normal

from eve_pyro.infer.mixtures import CategoricalMixture, GaussianMixture, concatenate

DTYPES = [torch.float32, torch.float64]
SHAPES = [(), (5,), (4, 3), (2, 1, 3)]
LOG2 = math.log(2)


def gaussians(num_components=6, shape=(5,), dtype=torch.float64, seed=0, weighted=False, **kwargs):
    rng = torch.Generator().manual_seed(seed)
    size = (num_components, *shape)
    loc = 3 * torch.randn(size, generator=rng, dtype=dtype)
    scale = torch.rand(size, generator=rng, dtype=dtype) + 0.1
    log_weights = torch.randn(size, generator=rng, dtype=dtype) if weighted else None
    return GaussianMixture(loc, scale, log_weights, **kwargs)


def categoricals(num_draws=6, shape=(5,), classes=3, dtype=torch.float64, seed=0):
    rng = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn((num_draws, *shape, classes), generator=rng, dtype=dtype)
    return CategoricalMixture(logits)


any_mixture = st.builds(
    gaussians,
    num_components=st.integers(1, 9),
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 10**6),
    weighted=st.booleans(),
)
few = settings(max_examples=40, deadline=None, derandomize=True)


# Gaussian mixtures


def test_one_component_is_a_gaussian():
    mixture, normal = gaussians(1), Normal(gaussians(1).loc[0], gaussians(1).scale[0])
    y = torch.linspace(-3, 3, 5, dtype=torch.float64)
    q = torch.tensor([0.01, 0.5, 0.9], dtype=torch.float64)
    assert torch.allclose(mixture.mean, normal.mean, atol=0, rtol=0)
    assert torch.allclose(mixture.stddev, normal.stddev)
    assert torch.equal(mixture.epistemic, torch.zeros(5, dtype=torch.float64))
    assert torch.allclose(mixture.log_prob(y), normal.log_prob(y))
    assert torch.allclose(mixture.cdf(y), normal.cdf(y))
    assert torch.allclose(mixture.quantile(q), normal.icdf(q[:, None]), rtol=1e-14)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_torch(shape, weighted):
    mixture = gaussians(shape=shape, weighted=weighted)
    logits = mixture.log_weights.expand(mixture.loc.shape).movedim(0, -1)
    components = Normal(mixture.loc.movedim(0, -1), mixture.scale.movedim(0, -1))
    reference = MixtureSameFamily(Categorical(logits=logits), components)
    y = torch.randn(7, *shape, dtype=torch.float64)
    assert mixture.batch_shape == shape
    for name in ("mean", "variance", "stddev"):
        assert torch.allclose(getattr(mixture, name), getattr(reference, name))
    assert torch.allclose(mixture.log_prob(y), reference.log_prob(y))
    assert torch.allclose(mixture.cdf(y), reference.cdf(y))
    assert mixture.cdf(torch.tensor(0.0)).shape == shape


@few
@given(any_mixture, st.lists(st.floats(0.001, 0.999), min_size=1, max_size=4))
def test_quantile_inverts_cdf(mixture, q):
    levels = torch.tensor(q, dtype=mixture.loc.dtype)
    found = mixture.quantile(levels)
    assert found.shape == (len(q), *mixture.batch_shape)
    assert found.dtype == mixture.loc.dtype
    # The density is at most 0.4 / 0.1, so 20 eps of y move the cdf by less than 100 eps.
    eps = torch.finfo(found.dtype).eps
    wanted = levels.reshape(-1, *[1] * len(mixture.batch_shape)).expand_as(found)
    assert torch.allclose(mixture.cdf(found), wanted, atol=100 * eps, rtol=0)
    assert torch.equal(mixture.quantile(levels[0]), found[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_quantile_of_far_apart_components(dtype):
    # Each component holds a third, so the quantile 1/6 is the median of the first, and so on.
    loc = torch.tensor([-1e6, 0.0, 1e6], dtype=dtype)
    scale = torch.tensor([1.0, 1e-3, 50.0], dtype=dtype)
    found = GaussianMixture(loc, scale).quantile([1 / 6, 1 / 2, 5 / 6])
    # A cdf good to a few eps places each within a few eps of its own scale, or of its size.
    eps = torch.finfo(dtype).eps
    assert ((found - loc).abs() <= 20 * eps * torch.maximum(scale, loc.abs())).all()


def test_quantile_in_the_far_tail():
    mixture = GaussianMixture(torch.zeros(2, 1), torch.tensor([[1.0], [0.5]]))
    # The narrower component adds nothing there: its half of the level is the wider's 2e-7.
    assert mixture.quantile(1e-7).item() == pytest.approx(-5.0689577, rel=1e-6)


def test_interval_is_central():
    mixture = gaussians()
    lower, upper = mixture.interval(0.8)
    assert torch.allclose(mixture.cdf(lower), torch.full_like(lower, 0.1))
    assert torch.allclose(mixture.cdf(upper), torch.full_like(upper, 0.9))


def test_spread_splits_between_draws_not_components():
    # Two draws of two components each; the numbers are worked out by hand.
    loc = torch.tensor([[0.0], [2.0], [10.0], [14.0]])
    scale = torch.tensor([[1.0], [1.0], [2.0], [2.0]])
    y = GaussianMixture(loc, scale, num_draws=2)
    assert y.aleatoric.item() == pytest.approx((1 + 1 + 4 + 4) / 2)
    assert y.epistemic.item() == pytest.approx(5.5**2)
    every = GaussianMixture(loc, scale)
    assert every.aleatoric.item() == pytest.approx(2.5)
    assert every.variance.item() == pytest.approx(y.variance.item())


def test_unequal_draws_split():
    y = gaussians(6, weighted=True, num_draws=3)
    total = MixtureSameFamily(
        Categorical(logits=y.log_weights.movedim(0, -1)),
        Normal(y.loc.movedim(0, -1), y.scale.movedim(0, -1)),
    ).variance
    assert torch.allclose(y.aleatoric + y.epistemic, total)
    assert (y.epistemic < gaussians(6, weighted=True).epistemic).all()


def test_float32_variance_far_from_the_origin():
    y = gaussians(256, dtype=torch.float32).affine(shift=1e4, scale=1e-2)
    exact = y.to(torch.float64)
    # A mean rounded to 6e-4, the resolution at 1e4, would put variances of 1e-3 out by 3e-4.
    assert torch.allclose(y.variance.double(), exact.variance, rtol=1e-5)
    same = GaussianMixture(torch.full((3, 1), 1e4), torch.full((3, 1), 1e-3))
    assert same.mean.item() == 1e4
    assert same.epistemic.item() == 0


def test_matched_moments_are_what_many_draws_tend_to():
    torch.manual_seed(0)
    loc = 0.3 * torch.randn(4000)
    many, few = (GaussianMixture(part, torch.full_like(part, 0.02)) for part in (loc, loc[:16]))
    y = 0.3 * torch.randn(500)
    normal = many.moment_matched()
    torch.testing.assert_close(normal.mean, many.mean)
    torch.testing.assert_close(normal.variance, many.variance)
    # Draws are normal here: so is what their mixture tends to.
    nll, matched = -many.log_prob(y).mean(), -normal.log_prob(y).mean()
    assert nll.item() == pytest.approx(matched.item(), abs=0.05)
    assert -few.log_prob(y).mean() > matched + 1
    of_few = -few.moment_matched().log_prob(y).mean()
    assert of_few.item() == pytest.approx(matched.item(), abs=0.2)


def test_rescale_keeps_mean_and_scales_spread():
    y = gaussians(6, weighted=True, num_draws=3)
    wide = y.rescale(3.0)
    assert torch.allclose(wide.mean, y.mean)
    for name in ("variance", "aleatoric", "epistemic"):
        assert torch.allclose(getattr(wide, name), 9 * getattr(y, name))


def test_affine_transforms_quantiles_and_density():
    y = gaussians(shape=(4, 3), weighted=True)
    shift, scale = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 2.0, 10.0])
    z = y.affine(shift, scale)
    assert torch.allclose(z.quantile(0.3), shift + scale * y.quantile(0.3))
    value = torch.randn(4, 3, dtype=torch.float64)
    assert torch.allclose(z.log_prob(shift + scale * value), y.log_prob(value) - scale.log())


@pytest.mark.parametrize("shape", SHAPES)
def test_samples_follow_the_cdf(shape):
    y = gaussians(shape=shape, weighted=True)
    n = 4000
    draws = y.sample((n,))
    assert draws.shape == (n, *shape)
    uniform = y.cdf(draws).sort(0).values
    ranks = (torch.arange(n, dtype=torch.float64) + 0.5).reshape(n, *[1] * len(shape)) / n
    # Kolmogorov's bound: 2.5 / sqrt(n) is passed with probability 2 exp(-2 * 2.5**2) = 7e-6.
    assert (uniform - ranks).abs().max() < 2.5 / math.sqrt(n)


def test_samples_of_two_data_are_independent():
    y = GaussianMixture(torch.tensor([-9.0, 9.0]).expand(2, 2).T, torch.ones(2, 2))
    signs = y.sample((4000,)).sign()
    assert signs.prod(-1).mean().abs() < 4.5 / math.sqrt(4000)  # 7e-6 by chance


def test_sampling_is_seeded():
    y = gaussians()
    torch.manual_seed(3)
    first = y.sample((2, 3))
    torch.manual_seed(3)
    assert torch.equal(first, y.sample((2, 3)))
    assert first.shape == (2, 3, 5)


def test_is_a_pyro_distribution():
    y = gaussians(shape=(1,), weighted=True)
    data = torch.randn(5, dtype=torch.float64)

    def model():
        with pyro.plate("data", 5):
            return pyro.sample("y", y.expand([5]), obs=data)

    trace = pyro.poutine.trace(model).get_trace()
    assert torch.allclose(trace.log_prob_sum(), y.log_prob(data).sum())
    assert y.expand([2, 5]).num_draws == y.num_draws
    assert torch.allclose(y.expand([2, 5]).variance, y.variance.expand(2, 5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loc": torch.zeros(())}, "loc must be a non-empty"),
        ({"loc": torch.zeros(0, 3)}, "loc must be a non-empty"),
        ({"loc": torch.zeros(2, 3).long()}, "loc must be a non-empty floating"),
        ({"loc": [[0.0]]}, "loc must be a tensor"),
        ({"loc": torch.full((2, 3), torch.nan)}, "loc must be finite"),
        ({"scale": torch.ones(2, 1)}, r"scale must have the shape \(2, 3\) of loc, got \(2, 1\)"),
        ({"scale": torch.zeros(2, 3)}, "scale must be positive, got a minimum of 0"),
        ({"scale": torch.full((2, 3), torch.inf)}, "scale must be finite"),
        ({"log_weights": torch.zeros(3)}, "log_weights must have shape"),
        ({"log_weights": torch.zeros(2, 2)}, "log_weights must have shape"),
        ({"log_weights": torch.tensor([0.0, -torch.inf])}, "log_weights must be finite"),
        ({"num_draws": 0}, "num_draws must be an integer >= 1"),
        ({"num_draws": 3}, "num_draws must divide S = 2, got 3"),
    ],
)
def test_gaussian_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        GaussianMixture(**{"loc": torch.zeros(2, 3), "scale": torch.ones(2, 3)} | arguments)


def test_square_weights_belong_to_components():
    y = GaussianMixture(
        torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.ones(2, 2), torch.tensor([9, 0.0])
    )
    assert (y.mean < 0.01).all()


@pytest.mark.parametrize("mixture", [gaussians(), categoricals()])
def test_method_arguments(mixture):
    for q in (0.0, 1.0, -0.1, torch.nan, [0.5, 1.5], [[0.5]], []):
        with pytest.raises(ValueError, match="q must be one level"):
            mixture.quantile(q)
    for tau in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="tau must be a finite number"):
            mixture.rescale(tau)


def test_affine_and_interval_arguments():
    y = gaussians()
    with pytest.raises(ValueError, match="scale must be positive"):
        y.affine(0.0, -1.0)
    with pytest.raises(ValueError, match=r"shift must broadcast to \(5,\)"):
        y.affine(torch.zeros(2, 5), 1.0)
    with pytest.raises(ValueError, match="level must be"):
        y.interval(1.0)


# Categorical mixtures


@pytest.mark.parametrize("shape", SHAPES)
def test_categorical_averages_probabilities(shape):
    y = categoricals(shape=shape)
    probs = y.draw_logits.softmax(-1).mean(0)
    label = probs.argmin(-1)
    assert y.batch_shape == shape
    assert torch.allclose(y.probs, probs)
    assert torch.equal(y.mean, y.probs)
    assert torch.allclose(y.stddev, (probs * (1 - probs)).sqrt())
    assert torch.equal(y.mode, probs.argmax(-1))
    picked = probs.gather(-1, label.unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(y.log_prob(label), picked.log())
    assert y.sample((3, 2)).shape == (3, 2, *shape)


def test_log_prob_of_improbable_labels_in_float32():
    y = CategoricalMixture(torch.tensor([[[0.0, 200.0]], [[0.0, 300.0]]]))
    assert y.log_prob(torch.tensor([0])).item() == pytest.approx(-200 - LOG2)


def test_information_of_agreeing_and_of_disagreeing_draws():
    agree = CategoricalMixture(torch.zeros(4, 1, 2))
    assert agree.aleatoric.item() == pytest.approx(LOG2)
    assert agree.epistemic.item() == pytest.approx(0, abs=1e-6)
    disagree = CategoricalMixture(torch.tensor([[[99.0, 0]], [[0, 99.0]]]))
    assert disagree.aleatoric.item() == pytest.approx(0, abs=1e-6)
    assert disagree.epistemic.item() == pytest.approx(LOG2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_entropy_splits(dtype):
    y = categoricals(dtype=dtype)
    divergence = (y.draw_logits.log_softmax(-1) - y.probs.log()) * y.draw_logits.softmax(-1)
    assert torch.allclose(y.epistemic, divergence.sum(-1).mean(0), atol=1e-6)
    assert torch.allclose(y.aleatoric + y.epistemic, y.entropy())
    assert (y.epistemic > 0).all()


def test_ordered_labels():
    y = CategoricalMixture(torch.tensor([[0.2, 0.3, 0.5], [0.4, 0.1, 0.5]]).log())
    wanted = torch.tensor([0.0, 0.3, 0.5, 1.0, 1.0])
    assert torch.allclose(y.cdf(torch.tensor([-1, 0, 1, 2, 7])), wanted)
    assert y.cdf(1).item() == pytest.approx(0.5)
    assert y.quantile([0.1, 0.31, 0.49, 0.51, 0.999]).tolist() == [0, 1, 1, 2, 2]
    assert y.quantile(0.31).item() == 1
    quarters = CategoricalMixture(torch.zeros(1, 4))
    assert quarters.quantile([0.25, 0.5]).tolist() == [0, 1]
    many = categoricals(classes=1000, dtype=torch.float32)
    assert (many.cdf(999) == 1).all()


@few
@given(st.sampled_from(SHAPES), st.floats(0.01, 0.99), st.integers(0, 10**6))
def test_label_quantile_is_the_least_that_reaches_q(shape, q, seed):
    y = categoricals(shape=shape, seed=seed)
    label = y.quantile(q)
    assert label.shape == shape
    assert (y.cdf(label) >= q).all()
    assert (y.cdf(label - 1) < q).all()


def test_temperature_divides_logits_of_every_draw():
    y = categoricals()
    assert torch.allclose(y.rescale(2.0).probs, (y.draw_logits / 2).softmax(-1).mean(0))


def test_categorical_weights_and_expand():
    y = CategoricalMixture(categoricals(2).draw_logits, torch.tensor([0.75, 0.25]).log())
    first, second = y.draw_logits.softmax(-1)
    assert torch.allclose(y.probs, 0.75 * first + 0.25 * second)
    assert torch.allclose(y.expand([4, 5]).probs, y.probs.expand(4, 5, 3))
    assert torch.allclose(y.expand([4, 5]).aleatoric, y.aleatoric.expand(4, 5))


def test_categorical_arguments():
    for logits in (torch.zeros(3), torch.zeros(0, 2, 3), torch.zeros(2, 3).long()):
        with pytest.raises(ValueError, match="logits must be a non-empty floating"):
            CategoricalMixture(logits)
    with pytest.raises(ValueError, match="logits must be finite"):
        CategoricalMixture(torch.full((2, 3), torch.nan))
    with pytest.raises(ValueError, match="log_weights must have shape"):
        CategoricalMixture(torch.zeros(2, 4, 3), torch.zeros(3))


# Concatenation


@pytest.mark.parametrize("weighted", [False, True])
def test_members_weigh_the_same(weighted):
    a, b = gaussians(2, seed=1), gaussians(6, seed=2, weighted=weighted)
    both = concatenate([a, b])
    y = torch.randn(5, dtype=torch.float64)
    assert both.num_draws == 8
    assert torch.allclose(both.mean, (a.mean + b.mean) / 2)
    assert torch.allclose(both.log_prob(y).exp(), (a.log_prob(y).exp() + b.log_prob(y).exp()) / 2)


def test_chunks_of_draws_join_to_the_whole():
    whole = gaussians(10, weighted=False, num_draws=5)
    parts = [
        GaussianMixture(loc, scale, num_draws=len(loc) // 2)
        for loc, scale in zip(whole.loc.split(4), whole.scale.split(4), strict=True)
    ]
    joined = concatenate(parts, weights=[p.num_draws for p in parts])
    assert joined.num_draws == 5
    for name in ("mean", "aleatoric", "epistemic"):
        assert torch.allclose(getattr(joined, name), getattr(whole, name))


def test_categorical_members_weigh_the_same():
    a, b = categoricals(1, seed=1), categoricals(4, seed=2)
    both = concatenate([a, b])
    assert torch.allclose(both.probs, (a.probs + b.probs) / 2)
    assert torch.allclose(both.aleatoric, (a.aleatoric + b.aleatoric) / 2)


@pytest.mark.parametrize(
    ("members", "weights", "message"),
    [
        ([], None, "at least one predictive"),
        ([gaussians(), categoricals()], None, "must have one type, shape and dtype"),
        ([gaussians(), gaussians(shape=(4,))], None, "must have one type, shape and dtype"),
        ([gaussians(), gaussians(dtype=torch.float32)], None, "must have one type, shape"),
        ([gaussians(), gaussians(num_draws=3)], None, "2 components per draw"),
        ([gaussians(), torch.zeros(5)], None, "GaussianMixture or CategoricalMixture, got Tensor"),
        ([gaussians()], [1.0, 1.0], "weights must hold 1 numbers, got 2"),
        ([gaussians()], [0.0], "weights must be a finite number"),
    ],
)
def test_concatenate_arguments(members, weights, message):
    with pytest.raises(ValueError, match=message):
        concatenate(members, weights)
