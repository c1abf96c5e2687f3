"""Feed-forward blocks inside models from elsewhere: torch's own layers and Hugging Face's."""

import copy
import warnings

import pyro
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch import nn

from eve_pyro import EVEGuide
from eve_pyro.infer import MCNLL_ELBO, PosteriorMean, StreamingPredictive
from eve_pyro.nn import (
    EVEFeedForward,
    FeedForward,
    LanguageModel,
    eve_modules,
    replace_feed_forward,
)

VOCAB = 13


def eve(layer):
    return EVEFeedForward(layer.linear1.in_features, layer.linear1.out_features, beta=0.1)


def encoder(**options):
    options = {"batch_first": True, "dropout": 0.0, "activation": "gelu"} | options
    layer = nn.TransformerEncoderLayer(8, 2, 12, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class TorchLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 8)
        self.encoder = encoder()
        self.head = nn.Linear(8, VOCAB)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[-1])
        return self.head(self.encoder(self.embedding(tokens), mask=mask, is_causal=True))


def torch_lm():
    network = TorchLM()
    assert replace_feed_forward(network, eve) == 2
    return network


def gpt2():
    pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import GPT2Config, GPT2LMHeadModel
        from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            config = GPT2Config(
                vocab_size=VOCAB,
                n_positions=16,
                n_embd=8,
                n_layer=2,
                n_head=2,
                bos_token_id=0,
                eos_token_id=0,
            )
            self.gpt2 = GPT2LMHeadModel(config)

        def forward(self, tokens):
            return self.gpt2(tokens, use_cache=False).logits

    network = Logits()
    assert replace_feed_forward(network, lambda mlp: EVEFeedForward(8, 32), GPT2MLP) == 2
    assert not any(isinstance(module, GPT2MLP) for module in network.modules())
    return network


networks = pytest.mark.parametrize("make", [torch_lm, gpt2])


def text():
    tokens = torch.randint(VOCAB, (3, 6))
    return tokens[:, :-1], tokens[:, 1:]


@networks
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO, MCNLL_ELBO])
def test_trains_in_a_model_from_elsewhere(make, elbo):
    model = LanguageModel(make())
    guide = EVEGuide(model)
    assert len(dict(eve_modules(model))) == 2
    loss = elbo(2, vectorize_particles=False)(model, guide)(*text(), num_data=30)
    loss.backward()
    for key, p in model.named_parameters():
        assert p.grad is not None, key
        assert p.grad.isfinite().all(), key


@networks
def test_predicts_in_a_model_from_elsewhere(make):
    model = LanguageModel(make())
    tokens, _ = text()
    y = StreamingPredictive(model, num_samples=4, vectorize=False)(tokens, seed=0)
    assert y.draw_logits.shape == (4, 3, 5, VOCAB)
    assert (y.epistemic > 0).all()
    model.eval()
    with torch.no_grad(), PosteriorMean():
        before = model.network(tokens)
        after = model.network((tokens + torch.tensor([0, 0, 0, 0, 1])) % VOCAB)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4], after[:, 4])


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_block_with_the_old_weights_changes_nothing(norm_first, mode):
    """In eval too, where torch's fast path would read the weights past the block."""
    model = getattr(encoder(norm_first=norm_first), mode)()
    twin = copy.deepcopy(model)

    def same(layer):
        block = FeedForward(8, 12)
        block.up.load_state_dict(layer.linear1.state_dict())
        block.out.load_state_dict(layer.linear2.state_dict())
        return block

    assert replace_feed_forward(twin, same) == 2
    x = torch.randn(3, 5, 8)
    with torch.no_grad():
        torch.testing.assert_close(twin(x), model(x))
        torch.testing.assert_close(copy.deepcopy(twin)(x), model(x))


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_noise_reaches_the_output(mode):
    model = getattr(encoder(), mode)()
    replace_feed_forward(model, eve)
    x = torch.randn(3, 5, 8)
    with torch.no_grad():
        assert not torch.equal(model(x), model(x))


def test_nested_tensors_of_the_stack_are_off():
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    replace_feed_forward(model, eve)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad(), PosteriorMean():
        assert model(torch.randn(2, 5, 8), src_key_padding_mask=padding).shape == (2, 5, 8)


def test_decoder_layers_dtype_and_mode():
    model = nn.TransformerDecoderLayer(8, 2, 12, batch_first=True, dtype=torch.float64).eval()
    assert replace_feed_forward(model, eve) == 1
    assert not any(module.training for module in model.modules())
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    assert model(x, x).dtype == torch.float64


def test_one_plate_and_positions_as_event_dims():
    class Classifier(pyro.nn.PyroModule):
        def __init__(self):
            super().__init__()
            self.encoder = encoder()
            replace_feed_forward(self.encoder, eve)
            self.head = nn.Linear(8, 2)

        def forward(self, x, y=None):
            with pyro.plate("data", len(x)):
                logits = self.head(self.encoder(x).mean(1))
                return pyro.sample("y", pyro.distributions.Categorical(logits=logits), obs=y)

    model = Classifier()
    x, y = torch.randn(4, 5, 8), torch.tensor([0, 1, 0, 1])
    loss = TraceMeanField_ELBO()(model, EVEGuide(model))(x, y)
    loss.backward()
    assert loss.isfinite()


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (
            lambda: replace_feed_forward(nn.Linear(3, 3), eve),
            ValueError,
            "model must have a TransformerEncoderLayer or TransformerDecoderLayer to replace",
        ),
        (
            lambda: replace_feed_forward(encoder(), lambda layer: 3),
            TypeError,
            "factory must return a module, got 3",
        ),
        (
            lambda: replace_feed_forward(FeedForward(4, 6), lambda m: m, FeedForward),
            ValueError,
            "model must hold the block to replace",
        ),
    ],
)
def test_errors(act, error, message):
    with pytest.raises(error, match=message):
        act()
