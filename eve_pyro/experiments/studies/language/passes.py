"""Passes of a language model over a text: a draw of its noise for a batch of windows."""

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from eve_pyro._checks import check_int, check_real
from eve_pyro.diagnostics.posterior import _base, _kl
from eve_pyro.diagnostics.spread import _MeanOf
from eve_pyro.infer import EVEGuide, PosteriorMean
from eve_pyro.infer.predictive import _inference
from eve_pyro.infer.rng import seeded
from eve_pyro.metrics import CategoricalScores
from eve_pyro.metrics.streaming import blocks
from eve_pyro.nn import LanguageModel

if TYPE_CHECKING:
    import pandas as pd


class Windows(Protocol):
    """What is evaluated: :class:`~eve_pyro.data.text.TokenWindows`, or what gives such batches."""

    def __len__(self) -> int: ...

    def batches(
        self, batch_size: int, *, seed: int, shuffle: bool = True
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """All windows as inputs and targets, (batch, context)."""
        ...


class Draw(NamedTuple):
    """One draw of the network's noise, for one batch: the KL is per token, of all layers."""

    logits: Tensor
    kl: Tensor
    latents: list[str]  # sites that were drawn


class Passes:
    """A model, its text and how to pass over them.

    Arguments: of :func:`~eve_pyro.experiments.studies.language.evaluation.evaluate`, checked here.
    """

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

    def _draws(self, inputs: Tensor, targets: Tensor) -> Iterator[Draw]:
        draw = self._draw(inputs, targets)
        yield draw
        if not self.mean and draw.latents:
            for _ in range(1, self.num_samples):
                yield self._draw(inputs, targets)

    def _draw(self, inputs: Tensor, targets: Tensor) -> Draw:
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
        return Draw(nodes["y"]["fn"].logits, kl, latents)


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
