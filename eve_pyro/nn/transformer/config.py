"""The sizes and choices of a Transformer, as plain values."""

from dataclasses import dataclass
from typing import Literal

from eve_pyro._checks import check_choice, check_int, check_real
from eve_pyro.nn.transformer.attention import check_heads
from eve_pyro.nn.transformer.feed_forward import EVE_FORMS


@dataclass(frozen=True)
class TransformerConfig:
    """What a :class:`~eve_pyro.nn.TransformerLM` is built from.

    Plain values, so that a command line and a checkpoint can hold them.

    Arguments:
        vocab_size: number of tokens there are.
        d_model: width of the stream. Default 128.
        num_layers: number of blocks. Default 2.
        num_heads: attention heads; d_model is their multiple, by an even number. Default 4.
        d_ff: units of a feed-forward block. Default 512.
        context: most positions of a text. Default 64.
        dropout: probability of a dropped element, of the embeddings and of what attention and
            feed-forward blocks add to the stream. Default 0.
        mc_dropout: whether dropout masks are sites of the model
            (:class:`~eve_pyro.nn.MCDropout`), active in prediction too. Default False:
            ordinary dropout, off in ``eval()``.
        feed_forward: ``"dense"`` (default, gelu units), ``"glu"`` (gelu-gated units) or
            ``"eve"`` (distributional units).
        eve_form, latent_dim, beta, sigma_init, sigma_rank, shared_noise: form, latent_dim and so
            on of :class:`~eve_pyro.nn.EVEFeedForward`. Of no effect on the other blocks.
        tie_embeddings: whether the readout's weights are those of the embedding (Press and Wolf
            2017, "Using the Output Embedding to Improve Language Models"). Default True.
        init_std: spread of embeddings and linear maps at initialisation. Default 0.02.

    Raises:
        ValueError: for a value out of range.

    Example:
        >>> TransformerConfig(1000, d_model=128, num_heads=3)
        Traceback (most recent call last):
        ...
        ValueError: d_model must be num_heads times an even number, got d_model=128, num_heads=3
    """

    vocab_size: int
    d_model: int = 128
    num_layers: int = 2
    num_heads: int = 4
    d_ff: int = 512
    context: int = 64
    dropout: float = 0.0
    mc_dropout: bool = False
    feed_forward: Literal["dense", "glu", "eve"] = "dense"
    eve_form: Literal["gelu", "gate", "glu", "swiglu", "residual"] = "gate"
    latent_dim: int = 1
    beta: float = 1e-3
    sigma_init: float = 0.3
    sigma_rank: int | None = None
    shared_noise: bool = False
    tie_embeddings: bool = True
    init_std: float = 0.02

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "num_layers", "num_heads", "d_ff", "context"):
            check_int(name, getattr(self, name))
        check_heads(self.d_model, self.num_heads)
        check_real("dropout", self.dropout, 0.0, 1.0)
        check_choice("feed_forward", self.feed_forward, ("dense", "glu", "eve"))
        check_choice("eve_form", self.eve_form, EVE_FORMS)
        check_int("latent_dim", self.latent_dim)
        check_real("beta", self.beta, 0.0)
        check_real("sigma_init", self.sigma_init, 0.0, exclusive=True)
        if self.sigma_rank is not None:
            check_int("sigma_rank", self.sigma_rank)
        check_real("init_std", self.init_std, 0.0, exclusive=True)
