"""Scores of categorical mixtures that are too large to keep: their draws come one by one."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from eve_pyro._checks import check_real

# Numbers that are worked on at once: intermediate arrays of so many stay in a CPU's cache, and
# their memory is used again. Without, its pages cost ten times what is computed on them.
_BLOCK = 2**18
_BLOCK_ELSEWHERE = 2**26


class CategoricalScores:
    r"""Reduces draws of a label's distribution to a few numbers per datum, as they come.

    A mixture of S draws over a vocabulary of C labels has S C numbers per datum. This keeps C,
    the sum of the draws' probabilities, and three per draw; what
    :class:`~eve_pyro.infer.CategoricalMixture` and the metrics would give is then read off.
    All draws count alike.

    Arguments:
        y: labels, (\*shape), integers.

    Raises:
        ValueError: when a draw of another shape is added, or a result is asked for without any.

    Example:
        >>> scores = CategoricalScores(torch.tensor([0, 1, 1]))
        >>> for _ in range(4):
        ...     scores.add(torch.zeros(3, 2))
        >>> scores.result()["entropy"]
        tensor([0.6931, 0.6931, 0.6931])
    """

    def __init__(self, y: Tensor) -> None:
        self.y = y
        self._labels = y.reshape(-1, 1)
        self._total: Tensor | None = None  # sum of the draws' probabilities
        self._draws: list[dict[str, Tensor]] = []

    @property
    def num_draws(self) -> int:
        """Draws added so far."""
        return len(self._draws)

    def add(self, logits: Tensor, temperature: float = 1.0) -> None:
        r"""Add a draw.

        Arguments:
            logits: (\*shape, C), finite; they need not be normalised.
            temperature: the logits are divided by it. Default 1.
        """
        check_real("temperature", temperature, 0.0, exclusive=True)
        if logits.dim() == 0 or logits.shape[:-1] != self.y.shape:
            raise ValueError(
                f"logits must have shape (*{tuple(self.y.shape)}, C), got {tuple(logits.shape)}"
            )
        flat = logits.reshape(-1, logits.shape[-1])
        if self._total is None:
            self._total = torch.zeros_like(flat)
        columns = []
        for rows in blocks(flat):
            log_probs = (flat[rows] / temperature).log_softmax(-1)
            probs = log_probs.exp()
            self._total[rows] += probs
            label = log_probs.gather(-1, self._labels[rows]).squeeze(-1)
            # The mode of the probabilities, as that of their sum will be: so one draw alone
            # cannot differ from itself.
            columns.append((label, _entropy(probs, log_probs), probs.argmax(-1)))
        names = ("log_prob", "entropy", "mode")
        draw = (torch.cat(column) for column in zip(*columns, strict=True))
        self._draws.append(dict(zip(names, draw, strict=True)))

    def result(self) -> dict[str, Tensor]:
        r"""The numbers of every datum, (\*shape) each.

        - ``loss``: minus the log of the label's averaged probability, the term of ``mc_nll``;
          ``expected_loss``: the mean over draws of a draw's, the likelihood term of an ELBO.
        - ``correct``: 1 where the averaged distribution's most probable label is y, else 0;
          ``max_probability``: its probability; ``brier``: see :func:`~eve_pyro.metrics.brier`.
        - ``entropy``, ``expected_entropy``, ``mutual_information``, ``flip_rate``: see
          :func:`~eve_pyro.metrics.predictive_entropy` and those beside it.
        """
        if self._total is None:
            raise ValueError("result must come after a draw was added, got none")
        count = self.num_draws
        log_prob, of_draw, modes = (
            torch.stack([draw[name] for draw in self._draws])
            for name in ("log_prob", "entropy", "mode")
        )
        columns = []
        for rows in blocks(self._total):
            probs = self._total[rows] / count
            log_probs = probs.clamp(min=torch.finfo(probs.dtype).tiny).log()
            of_label = probs.gather(-1, self._labels[rows]).squeeze(-1)
            brier = torch.linalg.vecdot(probs, probs) - 2 * of_label + 1
            columns.append((*probs.max(-1), brier, _entropy(probs, log_probs)))
        confidence, mode, brier, entropy = map(torch.cat, zip(*columns, strict=True))
        expected = of_draw.mean(0)
        if count == 1:
            entropy = expected  # the same up to rounding, which is no mutual information
        numbers = {
            # From the logarithms: a probability may underflow.
            "loss": math.log(count) - log_prob.logsumexp(0),
            "expected_loss": -log_prob.mean(0),
            "correct": (mode == self._labels.squeeze(-1)).to(confidence),
            "max_probability": confidence,
            "brier": brier,
            "entropy": entropy,
            "expected_entropy": expected,
            "mutual_information": (entropy - expected).clamp(min=0),
            "flip_rate": (modes != mode).to(confidence).mean(0),
        }
        return {name: value.reshape(self.y.shape) for name, value in numbers.items()}


def blocks(flat: Tensor) -> Iterator[slice]:
    """Slices of the rows of a matrix, each of few enough numbers to be worked on at once.

    >>> list(blocks(torch.zeros(3, 2**17)))
    [slice(0, 2, None), slice(2, 4, None)]
    """
    size = _BLOCK if flat.device.type == "cpu" else _BLOCK_ELSEWHERE
    step = max(1, size // flat.shape[-1])
    return (slice(start, start + step) for start in range(0, len(flat), step))


def _entropy(probs: Tensor, log_probs: Tensor) -> Tensor:
    return -torch.linalg.vecdot(probs, log_probs)
