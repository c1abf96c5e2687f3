"""Transformers: feed-forward blocks of distributional neurons, and a language model around them."""

from eve_pyro.nn.transformer.attention import CausalSelfAttention, KVCache, LayerCache
from eve_pyro.nn.transformer.config import TransformerConfig
from eve_pyro.nn.transformer.decay import weight_decay_groups
from eve_pyro.nn.transformer.feed_forward import EVEFeedForward, FeedForward, GLUEmission
from eve_pyro.nn.transformer.language_model import LanguageModel
from eve_pyro.nn.transformer.network import TransformerBlock, TransformerLM
from eve_pyro.nn.transformer.replace import replace_feed_forward

__all__ = [
    "CausalSelfAttention",
    "EVEFeedForward",
    "FeedForward",
    "GLUEmission",
    "KVCache",
    "LanguageModel",
    "LayerCache",
    "TransformerBlock",
    "TransformerConfig",
    "TransformerLM",
    "replace_feed_forward",
    "weight_decay_groups",
]
