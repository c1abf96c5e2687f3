"""Generation of text, with the uncertainty of every token."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Independent

from eve_pyro._checks import check_int, check_real
from eve_pyro.infer.guide import PosteriorDraw, PosteriorMean
from eve_pyro.infer.mixtures import CategoricalMixture
from eve_pyro.infer.predictive import _inference, _seeded
from eve_pyro.nn.latent import LatentNormal
from eve_pyro.nn.module import is_eve_site
from eve_pyro.nn.site import SiteModule
from eve_pyro.nn.transformer import TransformerLM


@dataclass(frozen=True)
class Generation:
    """New tokens, and what was known of each before it was drawn.

    All of shape (batch, new), in nats where they are entropies. They describe the model's
    own predictive distribution, before temperature and top_k. After a text's end, tokens repeat
    the one it stopped at, and the numbers are NaN.

    Arguments:
        tokens: the new tokens.
        lengths: number of new tokens per text, (batch,), the one it stopped at included.
        entropy: of the distribution averaged over draws.
        expected_entropy: mean over draws of a draw's entropy, the aleatoric part.
        mutual_information: their difference, between token and draw, the epistemic part.
        max_probability: highest probability of the averaged distribution.

    Example:
        >>> from eve_pyro.nn import TransformerConfig
        >>> network = TransformerLM(TransformerConfig(100, d_model=16, d_ff=32))
        >>> text = generate(network, torch.zeros(2, 1, dtype=torch.long), 3, seed=0)
        >>> text.tokens.shape, text.lengths
        (torch.Size([2, 3]), tensor([3, 3]))
    """

    tokens: Tensor
    lengths: Tensor
    entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor
    max_probability: Tensor


def generate(
    model: nn.Module,
    tokens: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    num_samples: int | None = 8,
    seed: int | None = None,
    stop_at: int | Collection[int] = (),
) -> Generation:
    """Continue texts, each next token drawn from the distribution averaged over posterior draws.

    .. math:: y_{t+1} \\sim \\frac{1}{S} \\sum_s p(y | z^s_{\\le t}), \\qquad
              z^s_t \\sim q(z | h^s_t)

    S streams run side by side. In each, every token, those of the prompt too, has noise of its own,
    drawn once (or that of its text, with ``shared_noise`` in the blocks): a stream's keys and
    values are cached, and a step costs one position. All streams read the same text, and all count
    alike, whatever probability they gave to the tokens before: as in training, the posterior plays
    the part of a conditional prior.

    The model runs in eval mode, without gradients. One without latents has one stream.

    Arguments:
        model: a :class:`~eve_pyro.nn.TransformerLM`, or a :class:`~eve_pyro.nn.LanguageModel`
            around one.
        tokens: the prompts, (batch, positions), of one length.
        max_new_tokens: most tokens to add; prompt and new tokens must fit the context.
        temperature: exponent 1 / temperature on the averaged probabilities; below 1 they
            sharpen, and 0 takes the most probable token. Default 1.
        top_k: draw from the k most probable tokens. Default None: from all.
        num_samples: S, posterior draws. None for a single stream at the posterior means, whose
            mutual information is 0. Default 8.
        seed: of noise and tokens; the global random number generator if None (default).
        stop_at: token, or tokens, that end a text. Default none.

    Raises:
        TypeError: if the model is none of those, or tokens are no integers.
        ValueError: for numbers out of range, tokens of another number of dims, or texts longer
            than the context.

    Example:
        >>> from eve_pyro.nn import LanguageModel, TransformerConfig
        >>> config = TransformerConfig(100, d_model=16, d_ff=32, feed_forward="eve")
        >>> model = LanguageModel(TransformerLM(config))
        >>> prompts = torch.randint(100, (2, 5))
        >>> text = generate(model, prompts, 4, num_samples=16, top_k=10, seed=0)
        >>> text.tokens.shape, bool((text.mutual_information > 0).all())
        (torch.Size([2, 4]), True)
    """
    network = getattr(model, "network", model)
    if not isinstance(network, TransformerLM):
        raise TypeError(f"model must be a TransformerLM or a LanguageModel of one, got {model!r}")
    stops = _check(network, tokens, max_new_tokens, temperature, top_k, num_samples, stop_at)
    handler = PosteriorMean() if num_samples is None else _TextDraw()
    stochastic = any(isinstance(module, SiteModule) for module in network.modules())
    streams = num_samples or 1 if stochastic else 1
    with _inference(model, None), _seeded(seed, (tokens,)), handler:
        return _run(network, tokens, max_new_tokens, temperature, top_k, streams, stops)


class _TextDraw(PosteriorDraw):
    """Draws in which noise that positions share is drawn once, for all steps of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.noise: dict[nn.Module, Tensor] = {}

    def _pyro_sample(self, msg: Any) -> None:
        super()._pyro_sample(msg)
        if not is_eve_site(msg) or msg["done"]:
            return
        fn = msg["fn"]
        while isinstance(fn, Independent):
            fn = fn.base_dist
        # Of latents (streams, batch, positions, units, latent), dim -3 is that of the steps.
        if isinstance(fn, LatentNormal) and fn.shared_dim == -3:
            layer = msg["infer"]["layer"]
            if layer not in self.noise:
                self.noise[layer] = fn.noise()
            msg["value"], msg["done"] = fn.at(self.noise[layer]), True


def _run(
    network: TransformerLM,
    tokens: Tensor,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    streams: int,
    stops: Tensor,
) -> Generation:
    batch, length = tokens.shape
    cache = network.make_cache(length + max_new_tokens)
    running = torch.ones(batch, dtype=torch.bool, device=tokens.device)
    lengths = torch.zeros(batch, dtype=torch.long, device=tokens.device)
    new = tokens
    rows: list[tuple[Tensor, ...]] = []
    for _ in range(max_new_tokens):
        # The streams' noise differs from the first layer on, their texts never.
        h = network.features(new.expand(streams, *new.shape), cache)
        y = CategoricalMixture(network.readout(h[..., -1, :]))
        drawn = _draw(y.logits, temperature, top_k)
        if rows:
            drawn = torch.where(running, drawn, rows[-1][0])
        numbers = (y.entropy(), y.aleatoric, y.epistemic, y.probs.amax(-1))
        rows.append((drawn, *(torch.where(running, t, torch.nan) for t in numbers)))
        lengths += running
        running = running & ~torch.isin(drawn, stops)
        new = drawn.unsqueeze(-1)
        if len(stops) and not running.any():
            break
    added, *columns = (torch.stack(column, -1) for column in zip(*rows, strict=True))
    return Generation(added, lengths, *columns)


def _draw(logits: Tensor, temperature: float, top_k: int | None) -> Tensor:
    """A token for every row of normalised logits."""
    if temperature == 0:
        return logits.argmax(-1)
    if top_k is not None and top_k < logits.shape[-1]:
        logits, choices = logits.topk(top_k, -1)
        drawn = torch.multinomial((logits / temperature).softmax(-1), 1)
        return choices.gather(-1, drawn).squeeze(-1)
    return torch.multinomial((logits / temperature).softmax(-1), 1).squeeze(-1)


def _check(
    network: TransformerLM,
    tokens: Tensor,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    num_samples: int | None,
    stop_at: Any,
) -> Tensor:
    """Check the arguments; return the tokens that end a text as a tensor."""
    if tokens.dim() != 2 or not tokens.numel():
        raise ValueError(
            "tokens must have shape (batch, positions), at least 1 of both, "
            f"got {tuple(tokens.shape)}"
        )
    check_int("max_new_tokens", max_new_tokens)
    context = network.config.context
    if tokens.shape[1] + max_new_tokens > context:
        raise ValueError(
            f"tokens and max_new_tokens must fit the context of {context} positions, got "
            f"{tokens.shape[1]} and {max_new_tokens}"
        )
    check_real("temperature", temperature, 0.0)
    for name, value in (("top_k", top_k), ("num_samples", num_samples)):
        if value is not None:
            check_int(name, value)
    stops = stop_at if isinstance(stop_at, Collection) else (stop_at,)
    for stop in stops:
        if check_int("stop_at", stop, 0) >= network.config.vocab_size:
            raise ValueError(
                f"stop_at must be below the {network.config.vocab_size} tokens of the "
                f"vocabulary, got {stop}"
            )
    return torch.tensor(list(stops), dtype=tokens.dtype, device=tokens.device)
