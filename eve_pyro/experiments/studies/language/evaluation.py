"""A language model on held-out text: numbers of every token, and what they sum up to."""

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from eve_pyro._checks import check_int, check_real
from eve_pyro.diagnostics import aurc, auroc, layer_table, posterior_statistics
from eve_pyro.diagnostics.posterior import _base, _kl
from eve_pyro.diagnostics.spread import _MeanOf
from eve_pyro.infer import EVEGuide, PosteriorMean
from eve_pyro.infer.predictive import _inference
from eve_pyro.infer.rng import seeded
from eve_pyro.metrics import CategoricalScores, calibration_error, cvar
from eve_pyro.metrics.streaming import blocks
from eve_pyro.nn import LanguageModel, eve_modules

if TYPE_CHECKING:
    import pandas as pd

# In steps over which the loss is near enough a parabola: its least point is right to half a
# percent, which costs some 1e-5 nats per token.
TEMPERATURES = tuple(math.exp(step / 10) for step in range(-7, 13))
# What tells of a token that the network is unsure of it, from its output and from inside.
UNCERTAINTY = ("max_probability", "entropy", "mutual_information", "kl")


class Windows(Protocol):
    """What is evaluated: :class:`~eve_pyro.data.text.TokenWindows`, or what gives such batches."""

    def __len__(self) -> int: ...

    def batches(
        self, batch_size: int, *, seed: int, shuffle: bool = True
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """All windows as inputs and targets, (batch, context)."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """What :func:`evaluate` found.

    Arguments:
        tokens: a row per target token, in the order of the text: ``window``, ``position`` and
            ``target``; the numbers of :class:`~eve_pyro.metrics.CategoricalScores`; and ``kl``,
            the KL of all layers' units, in nats, averaged over draws (0 without such layers).
        scores: of all tokens, see :func:`token_scores`.
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
    run = _Run(model, windows, num_samples, batch_size, seed, temperature, mean)
    check_int("layer_windows", layer_windows, 0)
    tokens = run.tokens()
    layers = None
    if layer_windows and any(eve_modules(model)):
        layers = _layers(run, tokens, math.ceil(layer_windows / run.batch_size))
    return Evaluation(tokens, token_scores(tokens), layers)


def token_scores(tokens: "pd.DataFrame") -> dict[str, float]:
    """Sum up the rows of ``Evaluation.tokens``, all or some of them, as one row of a table.

    - ``ce``: mean ``loss``, the cross-entropy of the averaged distribution (the MC-NLL);
      ``perplexity``: its exponential; ``expected_ce``: mean over draws of a draw's.
    - ``accuracy``, ``brier``, ``ece``: of the averaged distribution; ``cvar``: the mean of the
      worst twentieth of losses.
    - ``entropy``, ``expected_entropy``, ``mutual_information``, ``flip_rate``, ``kl``: means.
    - ``auroc_...``: how well wrong tokens are told from right ones by 1 - ``max_probability``,
      ``entropy``, ``mutual_information``, ``kl``, and ``combined``, the mean of the ranks of the
      first and of mutual information, which has no weight to choose. 0.5 for a signal that is
      the same everywhere.
    - ``aurc``: mean share of wrong tokens among those kept, the most probable ones first.

    Arguments:
        tokens: at least one row.

    Raises:
        ValueError: if there is none.
    """
    from scipy.stats import rankdata  # here, because it takes a while to import

    if not len(tokens):
        raise ValueError("tokens must have at least one row, got none")
    means = tokens.mean()
    losses, confidence, correct = (
        torch.tensor(tokens[name].to_numpy(np.float64))  # a copy, as in `signal`
        for name in ("loss", "max_probability", "correct")
    )
    scores = {
        "ce": means["loss"],
        "perplexity": math.exp(means["loss"]),
        "expected_ce": means["expected_loss"],
        "accuracy": means["correct"],
        "ece": calibration_error(confidence, correct).item(),
        "brier": means["brier"],
        "cvar": cvar(losses, 0.95).item(),
        **{name: means[name] for name in (*UNCERTAINTY[1:], "expected_entropy", "flip_rate")},
    }
    signals = {name: signal(tokens, name) for name in UNCERTAINTY}
    ranks = [rankdata(signals[name]) for name in ("max_probability", "mutual_information")]
    signals["combined"] = ranks[0] + ranks[1]
    wrong = tokens["correct"].to_numpy() == 0
    for name, values in signals.items():
        scores[f"auroc_{name}"] = auroc(values, wrong)
    scores["aurc"] = aurc(signals["max_probability"], wrong)
    return {name: float(value) for name, value in scores.items()}


def signal(tokens: "pd.DataFrame", name: str) -> np.ndarray:
    """A column of ``UNCERTAINTY``, turned so that larger is less certain."""
    # A copy: torch warns of arrays that it may not write to, such as a frame's columns.
    values = tokens[name].to_numpy(np.float64, copy=True)
    return 1 - values if name == "max_probability" else values


def best_temperature(
    model: LanguageModel,
    windows: Windows,
    *,
    num_samples: int | None,
    batch_size: int = 8,
    seed: int = 0,
    mean: bool = False,
    temperatures: Sequence[float] = TEMPERATURES,
) -> float:
    """The temperature for which :func:`evaluate` finds the least cross-entropy.

    What :func:`~eve_pyro.metrics.fit_temperature` gives for a mixture that fits in memory, here
    from one pass over the text: the cross-entropy at every given temperature, and the least
    point of the parabola through the best of them and its neighbours. Fit it on validation text.

    Arguments:
        model, windows, num_samples, batch_size, seed, mean: see :func:`evaluate`.
        temperatures: at least three, in equal steps of their logarithm. Default: from 0.5 to 3.3
            in steps of 0.1; each costs about as much as a readout.

    Raises:
        ValueError: for other temperatures, or if the best is the first or the last of them.
    """
    run = _Run(model, windows, num_samples, batch_size, seed, 1.0, mean)
    logs = np.log([check_real("temperatures", t, 0.0, exclusive=True) for t in temperatures])
    steps = np.diff(logs)
    if len(logs) < 3 or steps.min() <= 0 or not np.allclose(steps, steps[0]):
        raise ValueError(
            "temperatures must be at least three, rising in equal steps of their logarithm, got "
            f"{list(temperatures)}"
        )
    losses = run.losses(temperatures)
    best = int(losses.argmin())
    if best in (0, len(logs) - 1):
        raise ValueError(
            "temperatures must have the best one between others, got the least loss at the end "
            f"{temperatures[best]:g}"
        )
    left, middle, right = losses[best - 1 : best + 2]
    vertex = 0.5 * (left - right) / (left - 2 * middle + right)
    return float(np.exp(logs[best] + vertex * steps[0]))


def _layers(run: "_Run", tokens: "pd.DataFrame", num_batches: int) -> "pd.DataFrame":
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


class _Draw(NamedTuple):
    logits: Tensor
    kl: Tensor
    latents: list[str]  # sites that were drawn


class _Run:
    """A model, its text and how to pass over them: the checked arguments of :func:`evaluate`."""

    def __init__(
        self,
        model: LanguageModel,
        windows: Windows,
        num_samples: int | None,
        batch_size: int,
        seed: int,
        temperature: float,
        mean: bool,
    ) -> None:
        if not isinstance(model, LanguageModel):
            raise TypeError(f"model must be a LanguageModel, got a {type(model).__name__}")
        if not len(windows):
            raise ValueError("windows must be at least one, got none")
        self.model, self.windows = model, windows
        self.mean = mean or num_samples is None
        self.num_samples = 1 if num_samples is None else check_int("num_samples", num_samples)
        self.batch_size = check_int("batch_size", batch_size)
        self.seed = check_int("seed", seed, 0)
        self.temperature = check_real("temperature", temperature, 0.0, exclusive=True)
        self.guide = EVEGuide(model)
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))

    def tokens(self) -> "pd.DataFrame":
        """The numbers of every token."""
        import pandas as pd

        batches: list[dict[str, np.ndarray]] = []
        with self._passes():
            for inputs, targets in self.batches():
                scores, kl = CategoricalScores(targets), torch.zeros((), device=self.device)
                for draw in self._draws(inputs, targets):
                    scores.add(draw.logits, self.temperature)
                    kl = kl + draw.kl
                numbers = {**scores.result(), "kl": kl / scores.num_draws}
                # Doubles, for sums over many tokens.
                batches.append({k: v.double().cpu().numpy() for k, v in numbers.items()})
                batches[-1]["target"] = targets.cpu().numpy()
        columns = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
        places: np.ndarray = np.indices(columns["target"].shape)
        rows = {"window": places[0], "position": places[1], "target": columns.pop("target")}
        return pd.DataFrame({name: v.reshape(-1) for name, v in {**rows, **columns}.items()})

    def information(self, num_batches: int, at_mean: Collection[str]) -> float:
        """Mean mutual information per token where some sites stand at their means."""
        total, count = 0.0, 0
        with self._passes(), _MeanOf(at_mean):
            for inputs, targets in self.batches(num_batches):
                scores = CategoricalScores(targets)
                for draw in self._draws(inputs, targets):
                    scores.add(draw.logits, self.temperature)
                information = scores.result()["mutual_information"]
                total, count = total + information.double().sum().item(), count + targets.numel()
        return total / count

    def losses(self, temperatures: Sequence[float]) -> np.ndarray:
        """Cross-entropy of the averaged distribution at every temperature."""
        totals, count = np.zeros(len(temperatures)), 0
        with self._passes():
            for inputs, targets in self.batches():
                draws = [
                    _label_log_probs(draw.logits, targets, temperatures)
                    for draw in self._draws(inputs, targets)
                ]
                log_probs = torch.stack(draws).double().logsumexp(0) - math.log(len(draws))
                totals -= log_probs.sum(-1).cpu().numpy()
                count += targets.numel()
        return totals / count

    def latents(self, inputs: Tensor, targets: Tensor) -> list[str]:
        """Names of the sites that a pass draws."""
        with self._passes():
            return self._draw(inputs, targets).latents

    def batches(self, num_batches: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The first batches of the text (default: all), on the model's device."""
        batches = self.windows.batches(self.batch_size, seed=0, shuffle=False)
        for inputs, targets in islice(batches, num_batches):
            yield inputs.to(self.device), targets.to(self.device)

    @contextmanager
    def _passes(self) -> Iterator[None]:
        """Eval mode, no gradients, and noise that begins anew."""
        with ExitStack() as stack:
            stack.enter_context(_inference(self.model, self.guide))
            stack.enter_context(seeded(self.seed))
            if self.mean:
                stack.enter_context(PosteriorMean())
            yield

    def _draws(self, inputs: Tensor, targets: Tensor) -> Iterator[_Draw]:
        draw = self._draw(inputs, targets)
        yield draw
        if not self.mean and draw.latents:
            for _ in range(1, self.num_samples):
                yield self._draw(inputs, targets)

    def _draw(self, inputs: Tensor, targets: Tensor) -> _Draw:
        # With their targets, for else the model would draw those, at more cost than its noise.
        self.guide(inputs, targets)
        nodes: dict[str, Any] = self.guide.trace.nodes
        self.guide.trace = Trace()  # lets go of the latents
        kl, latents = torch.zeros(inputs.shape, device=self.device), []
        for name, node in nodes.items():
            if node["type"] != "sample" or node["is_observed"] or site_is_subsample(node):
                continue
            latents.append(name)
            if isinstance(node["infer"].get("layer"), nn.Module):
                of_units = _kl(_base(node["fn"]), _base(node["infer"]["prior"]))
                kl = kl + of_units.sum((-2, -1))
        return _Draw(nodes["y"]["fn"].logits, kl, latents)


def _label_log_probs(logits: Tensor, y: Tensor, temperatures: Sequence[float]) -> Tensor:
    """Log probability of every label at every temperature, (temperatures, data)."""
    flat, labels = logits.reshape(-1, logits.shape[-1]), y.reshape(-1, 1)
    columns = []
    for rows in blocks(flat):
        of_label = flat[rows].gather(-1, labels[rows]).squeeze(-1)
        columns.append(
            torch.stack([of_label / t - (flat[rows] / t).logsumexp(-1) for t in temperatures])
        )
    return torch.cat(columns, -1)
