"""Where the spread of a prediction comes from, against networks whose answer is known."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from eve_pyro import EVEGuide
from eve_pyro.diagnostics import layer_epistemic, layer_spread
from eve_pyro.infer import StreamingPredictive
from eve_pyro.nn import (
    MLP,
    CategoricalHead,
    GaussianHead,
    LanguageModel,
    Network,
    PreNormResidual,
    TransformerConfig,
    TransformerLM,
)


def linear_network():
    """Two layers whose latents reach the output linearly; sigma does not depend on the input."""
    torch.manual_seed(0)
    network = Network(MLP(3, [4, 6], emission="identity", sigma="unit"), GaussianHead(6))
    with torch.no_grad():
        network.trunk.layer0.encoder.log_scale.copy_(torch.randn(4))
        network.trunk.layer1.encoder.log_scale.copy_(torch.randn(6) - 1)
    return network


def test_shares_of_linear_layers_are_exact():
    network = linear_network()
    first, second = (layer.encoder for layer in (network.trunk.layer0, network.trunk.layer1))
    w = network.head.loc.weight[0]
    expected = [
        ((w @ second.loc.weight) * first.log_scale.exp()).square().sum().item(),
        (w * second.log_scale.exp()).square().sum().item(),
    ]
    # 500 rows of 100 draws: a relative standard error of sqrt(2 / 99 / 500) = 0.6 %.
    spread = layer_spread(network, EVEGuide(network), torch.randn(500, 3), num_samples=100)
    assert list(spread.index) == ["trunk.layer0", "trunk.layer1"]
    assert spread.alone.tolist() == pytest.approx(expected, rel=0.03)
    assert spread.removed.tolist() == pytest.approx(expected, rel=0.05)
    assert spread.total.tolist() == pytest.approx([sum(expected)] * 2, rel=0.03)


def test_other_layers_keep_their_noise():
    # A layer that reaches nothing removes nothing: not a little, as other noise would.
    network = linear_network()
    nn.init.zeros_(network.trunk.layer1.encoder.loc.weight)
    spread = layer_spread(network, None, torch.randn(5, 3), num_samples=4)
    assert spread.loc["trunk.layer0", "alone"] == pytest.approx(0.0, abs=1e-12)
    assert spread.loc["trunk.layer0", "removed"] == pytest.approx(0.0, abs=1e-6)
    assert spread.loc["trunk.layer1", "alone"] == pytest.approx(spread.total.iloc[0], rel=1e-5)


def test_model_and_random_state_stay_as_they_were():
    network = linear_network().train()
    x = torch.randn(5, 3)
    before = torch.random.get_rng_state()
    one = layer_spread(network, None, x, num_samples=4, seed=3)
    two = layer_spread(network, None, x, num_samples=4, seed=3)
    assert one.equals(two)
    assert torch.equal(before, torch.random.get_rng_state())
    assert network.training


def test_residual_blocks_and_their_sites():
    network = Network(MLP(3, [4, 4], residual=True), GaussianHead(4))
    assert isinstance(network.trunk.layer0, PreNormResidual)
    spread = layer_spread(network, None, torch.randn(5, 3), num_samples=8)
    assert list(spread.index) == ["trunk.layer0.unit", "trunk.layer1.unit"]
    assert spread[["alone", "total"]].min(axis=None) > 0


def test_what_it_cannot_attribute():
    x = torch.randn(5, 3)
    with pytest.raises(ValueError, match="num_samples must be an integer >= 2"):
        layer_spread(linear_network(), None, x, num_samples=1)
    with pytest.raises(ValueError, match="without one"):
        layer_spread(nn.Linear(3, 1), None, x)
    with pytest.raises(ValueError, match="real-valued target"):
        layer_spread(Network(MLP(3, [4]), CategoricalHead(4, 2)), None, x, num_samples=2)


def test_every_datum_of_a_real_target():
    network, x = linear_network(), torch.randn(20, 3)
    found = layer_epistemic(network, None, x, num_samples=50, seed=1)
    spread = layer_spread(network, None, x, num_samples=50, seed=1)
    assert found.layer.values.tolist() == list(spread.index)
    assert found.alone.dims == ("layer", "obs_id")
    # The table's variances are unbiased, and of all rows.
    unbiased = 50 / 49
    assert (unbiased * found.alone.mean("obs_id")).values == pytest.approx(spread.alone.to_numpy())
    assert float(unbiased * found.total.mean()) == pytest.approx(spread.total.iloc[0])


def language_model(num_layers=2):
    torch.manual_seed(0)
    config = TransformerConfig(
        11, d_model=8, num_layers=num_layers, num_heads=2, d_ff=12, context=10, init_std=0.5
    )
    config = replace(config, feed_forward="eve", sigma_init=1.0)
    return LanguageModel(TransformerLM(config))


def test_every_token_of_a_text():
    model, tokens = language_model(), torch.randint(11, (3, 6))
    found = layer_epistemic(model, EVEGuide(model), tokens, num_samples=16, seed=2)
    assert dict(found.alone.sizes) == {"layer": 2, "obs_id": 3, "position": 6}
    whole = StreamingPredictive(model, num_samples=16)(tokens, seed=2).epistemic
    assert found.total.values == pytest.approx(whole.numpy())
    assert (found.alone > 0).all()


def test_a_layer_that_reaches_nothing_adds_nothing():
    model, tokens = language_model(), torch.randint(11, (3, 6))
    nn.init.zeros_(model.network.blocks[0].feed_forward.out.weight)
    found = layer_epistemic(model, None, tokens, num_samples=8)
    assert found.alone.values[0] == pytest.approx(0.0, abs=1e-6)
    assert found.alone.values[1] == pytest.approx(found.total.values, rel=1e-4, abs=1e-6)
    alone = layer_epistemic(language_model(1), None, tokens, num_samples=8)
    assert alone.alone.values[0] == pytest.approx(alone.total.values)


def test_labels_need_two_draws_and_a_layer():
    labels = Network(MLP(3, [4]), CategoricalHead(4, 2))
    assert layer_epistemic(labels, None, torch.randn(5, 3), num_samples=2).total.shape == (5,)
    with pytest.raises(ValueError, match="num_samples must be an integer >= 2"):
        layer_epistemic(labels, None, torch.randn(5, 3), num_samples=1)
    with pytest.raises(ValueError, match="without one"):
        layer_epistemic(nn.Linear(3, 1), None, torch.randn(5, 3))
