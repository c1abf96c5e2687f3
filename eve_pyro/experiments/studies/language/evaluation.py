"""A language model on held-out text: numbers of every token, and of every layer."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from eve_pyro._checks import check_int
from eve_pyro.diagnostics import layer_table, posterior_statistics
from eve_pyro.experiments.studies.language.passes import Passes, Windows
from eve_pyro.experiments.studies.language.token_scores import token_scores
from eve_pyro.nn import LanguageModel, eve_modules

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Evaluation:
    """What :func:`evaluate` found.

    Arguments:
        tokens: a row per target token, in the order of the text: ``window``, ``position`` and
            ``target``; the numbers of :class:`~eve_pyro.metrics.CategoricalScores`; and ``kl``,
            the KL of all layers' units, in nats, averaged over draws (0 without such layers).
        scores: of all tokens, see
            :func:`~eve_pyro.experiments.studies.language.token_scores.token_scores`.
        layers: a row per EVE layer, indexed by site name as ``layer``; None for a model without
            any, or where none were asked for. Columns:

            - ``units``; ``kl``, nats per unit and token; ``kl_total``, nats per token;
              ``sigma``; ``energy``.
            - ``active_fraction``: of units whose posterior mean follows the text, see
              :func:`~eve_pyro.diagnostics.unit_table`; with the network at its posterior
              means, so that the noise of other layers does not count.
            - ``mutual_information``: per token, where this layer alone draws and all other
              sites stand at their means. ``share``: that over the mutual information where all
              draw, on the same tokens with the same noise. Shares need not sum to 1: what one
              layer's noise does depends on the others'. NaN at posterior means.
    """

    tokens: "pd.DataFrame"
    scores: dict[str, float]
    layers: "pd.DataFrame | None" = None


def evaluate(
    model: LanguageModel,
    windows: Windows,
    *,
    num_samples: int | None,
    batch_size: int = 8,
    seed: int = 0,
    temperature: float = 1.0,
    mean: bool = False,
    layer_windows: int = 0,
) -> Evaluation:
    """Score a language model on windows of text, token by token.

    Each token's distribution is the average over posterior draws of the network. Draws run one
    after the other on one batch of windows, and a draw is reduced to its sums before the next:
    memory holds about four arrays of (batch_size * context, vocab_size) numbers, whatever the
    number of draws and of windows. Text is read in order; the same windows are the same tokens
    for every model.

    A model whose passes draw nothing takes one. Noise comes from one stream over batches and
    draws: one seed gives one result for one batch_size, and without noise results for different
    batch sizes differ by rounding alone. The caller's random state and the model's mode stay as
    they are.

    Arguments:
        model: a :class:`~eve_pyro.nn.LanguageModel`; runs on its own device.
        windows: the text.
        num_samples: S, posterior draws; None for ``mean``.
        batch_size: windows of a pass. Default 8.
        seed: of the draws. Default 0.
        temperature: the logits of every draw are divided by it, before draws are averaged, as
            :func:`~eve_pyro.metrics.fit_temperature` does: one rule for networks with and
            without noise. Default 1.
        mean: one pass at the posterior means in place of draws. Default False.
        layer_windows: of so many windows from the start, up to whole batches, get the table
            of layers, at the cost of S passes per EVE layer and two more. Default 0: none.

    Raises:
        TypeError: if the model is no LanguageModel.
        ValueError: for numbers out of range, or windows without one.

    Example:
        >>> from eve_pyro.data.text import TokenWindows
        >>> from eve_pyro.nn import TransformerConfig, TransformerLM
        >>> config = TransformerConfig(50, d_model=16, d_ff=32, context=8, feed_forward="eve")
        >>> model = LanguageModel(TransformerLM(config))
        >>> windows = TokenWindows(torch.randint(50, (100,)).numpy(), context=8)
        >>> result = evaluate(model, windows, num_samples=4, layer_windows=8)
        >>> len(result.tokens), result.scores["mutual_information"] > 0
        (96, True)
        >>> result.layers.index.tolist()
        ['network.blocks.0.feed_forward.units', 'network.blocks.1.feed_forward.units']
    """
    run = Passes(model, windows, num_samples, batch_size, seed, temperature, mean)
    check_int("layer_windows", layer_windows, 0)
    tokens = run.tokens()
    layers = None
    if layer_windows and any(eve_modules(model)):
        layers = _layers(run, tokens, math.ceil(layer_windows / run.batch_size))
    return Evaluation(tokens, token_scores(tokens), layers)


def _layers(run: Passes, tokens: "pd.DataFrame", num_batches: int) -> "pd.DataFrame":
    """The table of layers, of the first batches of the text."""
    inputs, targets = (torch.cat(part) for part in zip(*run.batches(num_batches), strict=True))

    def table(at: str) -> "pd.DataFrame":
        stats = posterior_statistics(
            run.model,
            run.guide,
            inputs,
            targets,
            at=at,
            keep="units",
            batch_size=run.batch_size,
            seed=run.seed,
        )
        return layer_table(stats)

    means = table("mean")
    columns = ["units", "kl", "kl_total", "sigma", "energy"]
    layers = (means if run.mean else table("draw"))[columns].copy()
    layers["active_fraction"] = means["active_fraction"]
    layers["mutual_information"] = layers["share"] = np.nan
    if not run.mean:
        sites = run.latents(inputs[:1], targets[:1])
        alone = [run.information(num_batches, set(sites) - {name}) for name in layers.index]
        layers["mutual_information"] = alone
        everything = tokens.loc[tokens["window"] < len(inputs), "mutual_information"].mean()
        if everything > 0:
            layers["share"] = layers["mutual_information"] / everything
    return layers
