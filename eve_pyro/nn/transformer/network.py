"""TransformerLM: a decoder-only Transformer, from tokens to logits of the next one."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eve_pyro.nn._reset import reset_children
from eve_pyro.nn.transformer.attention import CausalSelfAttention, KVCache, LayerCache
from eve_pyro.nn.transformer.config import TransformerConfig
from eve_pyro.nn.transformer.feed_forward import EVEFeedForward, FeedForward, make_dropout


class TransformerBlock(nn.Module):
    """Attention, then a feed-forward block, each on the normalised stream and added to it.

    .. math:: h' = h + attention(norm(h)), \\qquad h'' = h' + feed\\_forward(norm(h'))

    Arguments:
        attention: module from (*, positions, d_model) to the same, called as
            ``attention(h, cache)``.
        feed_forward: module from (*, positions, d_model) to the same.
        d_model: width of the stream.
        dropout, mc_dropout: of what attention adds; the feed-forward block has its own.
        device, dtype: of the normalisations' parameters.

    Example:
        >>> attention = CausalSelfAttention(8, 2, context=16)
        >>> block = TransformerBlock(attention, EVEFeedForward(8, 32), 8)
        >>> block(torch.randn(3, 5, 8)).shape
        torch.Size([3, 5, 8])
    """

    def __init__(
        self,
        attention: nn.Module,
        feed_forward: nn.Module,
        d_model: int,
        *,
        dropout: float = 0.0,
        mc_dropout: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(d_model, device=device, dtype=dtype)
        self.attention = attention
        self.dropout = make_dropout(dropout, mc_dropout)
        self.feed_forward_norm = nn.LayerNorm(d_model, device=device, dtype=dtype)
        self.feed_forward = feed_forward

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        reset_children(self)

    def forward(self, h: Tensor, cache: LayerCache | None = None) -> Tensor:
        h = h + self.dropout(self.attention(self.attention_norm(h), cache))
        return h + self.feed_forward(self.feed_forward_norm(h))


class TransformerLM(nn.Module):
    """Decoder-only Transformer: logits of the next token at every position.

    Pre-norm (Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture"), rotary
    positions, initialised as GPT-2: weights N(0, init_std^2), biases 0, and weights of the
    projections onto the stream smaller by sqrt(2 num_layers), one for each of them (Radford et
    al. 2019, "Language Models are Unsupervised Multitask Learners"). Encoders of log sigma keep
    their own initialisation.

    A plain module; :class:`~eve_pyro.nn.LanguageModel` is the Pyro model around it.

    Arguments:
        config: a :class:`~eve_pyro.nn.TransformerConfig`.
        feed_forward: function of a layer's number (from 0) that builds its feed-forward block,
            in place of ``config.feed_forward``, such as one of distributional units in the last
            layer alone. Its last projection, if called ``out``, is initialised as one onto the
            stream.
        device, dtype: of the parameters.

    Shapes:
        tokens (*, positions) -> logits (*, positions, vocab_size), with a leading dim of
        particles under their plate.

    Raises:
        TypeError: if config is something else; when called, for tokens that are no integers.
        ValueError: when called, for tokens without a dim of positions or with more of them than
            the context.

    Example:
        >>> network = TransformerLM(TransformerConfig(100, d_model=16, d_ff=32))
        >>> network(torch.randint(100, (3, 5))).shape
        torch.Size([3, 5, 100])
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        feed_forward: Callable[[int], nn.Module] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(config, TransformerConfig):
            raise TypeError(f"config must be a TransformerConfig, got {config!r}")
        self.config = config
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        dropout: dict[str, Any] = {"dropout": config.dropout, "mc_dropout": config.mc_dropout}
        width = config.d_model
        self.embedding = nn.Embedding(config.vocab_size, width, **place)
        self.dropout = make_dropout(config.dropout, config.mc_dropout)
        self.blocks = nn.ModuleList()
        for layer in range(config.num_layers):
            attention = CausalSelfAttention(
                width, config.num_heads, context=config.context, **place
            )
            if feed_forward is None:
                units = _make_feed_forward(config, **dropout, **place)
            else:
                units = feed_forward(layer)
            self.blocks.append(TransformerBlock(attention, units, width, **dropout, **place))
        self.norm = nn.LayerNorm(width, **place)
        self.head = None
        if not config.tie_embeddings:
            self.head = nn.Linear(width, config.vocab_size, bias=False, **place)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        reset_children(self)
        std = self.config.init_std
        nn.init.normal_(self.embedding.weight, std=std)
        for path, module in self.blocks.named_modules():
            *_, name = path.split(".")
            if isinstance(module, nn.Linear) and "log_scale" not in path:
                scale = 1 / math.sqrt(2 * self.config.num_layers) if name == "out" else 1.0
                nn.init.normal_(module.weight, std=std * scale)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if self.head is not None:
            nn.init.normal_(self.head.weight, std=std)

    def make_cache(self, capacity: int | None = None) -> KVCache:
        """An empty cache of keys and values, for ``capacity`` positions (default: the context)."""
        capacity = self.config.context if capacity is None else capacity
        return KVCache(self.config.num_layers, capacity)

    def features(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """The normalised stream ahead of the readout: (*, positions) -> (*, positions, d_model).

        Arguments:
            tokens: integers from 0 to vocab_size - 1; with a cache, the new ones alone.
            cache: what the tokens before left behind; the new ones are added to it.
        """
        past = cache.length if cache else 0
        self._check(tokens, past)
        h = self.dropout(self.embedding(tokens))
        for layer, block in enumerate(self.blocks):
            h = block(h, cache.layers[layer] if cache else None)
        return self.norm(h)

    def readout(self, h: Tensor) -> Tensor:
        """The logits: (*, d_model) -> (*, vocab_size)."""
        return F.linear(h, self.embedding.weight) if self.head is None else self.head(h)

    def forward(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        return self.readout(self.features(tokens, cache))

    def _check(self, tokens: Tensor, past: int) -> None:
        if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
            raise TypeError(f"tokens must be integers, got {tokens.dtype}")
        if tokens.dim() == 0 or not tokens.shape[-1]:
            raise ValueError(f"tokens must have shape (*, positions), got {tuple(tokens.shape)}")
        if past + tokens.shape[-1] > self.config.context:
            raise ValueError(
                f"tokens must have at most the {self.config.context} positions of the context "
                f"that the network was built for, got {past + tokens.shape[-1]}"
            )


def _make_feed_forward(config: TransformerConfig, **options: Any) -> nn.Module:
    """The feed-forward block that a configuration asks for."""
    sizes = (config.d_model, config.d_ff)
    if config.feed_forward == "eve":
        return EVEFeedForward(
            *sizes,
            form=config.eve_form,
            latent_dim=config.latent_dim,
            beta=config.beta,
            sigma_init=config.sigma_init,
            sigma_rank=config.sigma_rank,
            shared_noise=config.shared_noise,
            **options,
        )
    form = "glu" if config.feed_forward == "glu" else "gelu"
    return FeedForward(*sizes, form=form, **options)
