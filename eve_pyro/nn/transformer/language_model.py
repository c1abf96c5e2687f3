"""LanguageModel: the Pyro model of tokens, given those before them."""

from contextlib import nullcontext

import pyro
import torch
from pyro import poutine
from pyro.distributions import Categorical
from pyro.nn import PyroModule
from torch import Tensor, nn

from eve_pyro._checks import check_int
from eve_pyro.nn._reset import reset_children


class LanguageModel(PyroModule):
    """The Pyro model of a text: every position has a token as its target.

    .. math:: y_{nt} \\sim Categorical(network(x_{n, \\le t}))

    Windows of text are a plate, ``"data"`` (dim -2), their positions another, ``"positions"``
    (dim -1); the targets' site is ``"y"``. It goes wherever a Pyro model goes: ``SVI`` and every
    ELBO with ``EVEGuide(model)``, particles vectorized or not, ``CompiledELBO``, ``Trainer``,
    ``StreamingPredictive``.

    **A datum is a token.** Both plates hold data, so that losses are sums over tokens: divide by
    the number of windows and positions for nats per token. Likewise
    :class:`~eve_pyro.infer.MCNLL_ELBO` takes the logarithm of the mean over draws per token:

    .. math:: -\\sum_{nt} \\log \\frac{1}{S} \\sum_s p(y_{nt} | z^s_{n, \\le t})

    which is the score of a predictor that averages its draws for each next token, as
    :func:`~eve_pyro.infer.generate` does; a text's tokens are not multiplied within a draw. The
    N/B of a batch counts windows. ``Trainer`` divides by windows alone: what it reports is per
    window. ``StreamingPredictive`` keeps the logits of all draws, S * windows * positions *
    vocab_size numbers: call it with few windows at a time.

    Arguments:
        network: module from tokens (*, positions) to logits (*, positions, vocab_size), such as
            a :class:`~eve_pyro.nn.TransformerLM`. It must be causal: a position's logits may
            depend on no later token.

    Shapes:
        tokens, targets and mask (batch, positions). With a leading dim of particles under their
        plate.

    Raises:
        TypeError: if the network is no module.
        ValueError: when called, for tokens of another number of dims, targets or a mask of
            another shape, or a num_data below the rows of tokens.

    Example:
        >>> from pyro.infer import TraceMeanField_ELBO
        >>> from eve_pyro import EVEGuide
        >>> from eve_pyro.nn import TransformerConfig, TransformerLM
        >>> config = TransformerConfig(100, d_model=16, d_ff=32, feed_forward="eve")
        >>> model = LanguageModel(TransformerLM(config))
        >>> loss = TraceMeanField_ELBO()(model, EVEGuide(model))
        >>> text = torch.randint(100, (3, 9))
        >>> loss(text[:, :-1], text[:, 1:]).backward()
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            raise TypeError(f"network must be a module from tokens to logits, got {network!r}")
        self.network = network

    def reset_parameters(self) -> None:
        """Draw the network's parameters anew."""
        reset_children(self)

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        mask: Tensor | None = None,
        num_data: int | None = None,
    ) -> Tensor:
        """Draw, or with targets observe, the token after every position.

        Arguments:
            tokens: windows of text.
            targets: the token after every position, the windows shifted by one; drawn if None
                (default).
            mask: booleans, False where a position is padding: it then adds neither to the
                likelihood nor to the KL. Put padding at the end of windows, where no other
                position sees it. Its tokens and targets must be in the vocabulary all the
                same. Default None: all count.
            num_data: N of all windows, of which tokens are a batch of B: sums over data are
                scaled by N / B. Default: B.

        Returns the targets.
        """
        if tokens.dim() != 2:
            raise ValueError(f"tokens must have shape (batch, positions), got {_shape(tokens)}")
        batch, length = tokens.shape
        for name, tensor in (("targets", targets), ("mask", mask)):
            if tensor is not None and tensor.shape != tokens.shape:
                raise ValueError(
                    f"{name} must have the shape {_shape(tokens)} of tokens, got {_shape(tensor)}"
                )
        if mask is not None and mask.dtype != torch.bool:
            raise ValueError(f"mask must be of booleans, got {mask.dtype}")
        if num_data is None:
            num_data = batch
        elif check_int("num_data", num_data) < batch:
            raise ValueError(
                f"num_data must be at least the {batch} rows of tokens, got {num_data}"
            )
        # The rows are chosen already: given indices save Pyro from drawing its own.
        rows = torch.arange(batch, device=tokens.device)
        data = pyro.plate("data", num_data, subsample=rows, dim=-2)
        # Attention joins the positions; the plate only says over what sums are taken.
        positions = pyro.plate("positions", length, dim=-1)
        counted = nullcontext() if mask is None else poutine.mask(mask=mask)
        with data, positions, counted:
            logits = self.network(tokens)
            return pyro.sample("y", Categorical(logits=_in_full(logits)), obs=targets)


def _in_full(logits: Tensor) -> Tensor:
    """Logits in single precision at least: under autocast they are too coarse for a likelihood."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
