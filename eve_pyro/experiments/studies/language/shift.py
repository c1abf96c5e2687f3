"""A language model on text that is not as its own: corrupted, of another corpus or period."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from eve_pyro._checks import check_int, check_real
from eve_pyro.data.text import corrupt_tokens
from eve_pyro.diagnostics import auroc
from eve_pyro.experiments.studies.language.evaluation import evaluate
from eve_pyro.experiments.studies.language.passes import Windows
from eve_pyro.experiments.studies.language.token_scores import UNCERTAINTY, signal
from eve_pyro.nn import LanguageModel

if TYPE_CHECKING:
    import pandas as pd

RATES = (0.05, 0.1, 0.2, 0.4)
COLUMNS = (
    "ce",
    "expected_ce",
    "accuracy",
    "ece",
    "kl",
    "mutual_information",
    "entropy",
    "expected_entropy",
    "flip_rate",
)


class CorruptedWindows:
    """Windows in whose inputs a share of tokens is replaced by others, drawn uniformly.

    Targets stay those of the text. A model is asked for the next word of the author, from
    a context with errors, at every position: so every rate is scored on the same targets, and
    losses differ by what the context lost alone. (The next token's own input may be replaced;
    that is no longer what the model is asked for.) Windows that overlap are corrupted each on its
    own.

    Arguments:
        windows: of clean text.
        rate: share of all inputs that is replaced, in [0, 1].
        vocab_size: number of ids that there are.
        seed: of places and tokens. With one seed, the places at a lower rate are among those at
            a higher one. Default 0.

    Raises:
        ValueError: as :func:`~eve_pyro.data.text.corrupt_tokens`, and for shuffled batches.

    Example:
        >>> from eve_pyro.data.text import TokenWindows
        >>> clean = TokenWindows(np.arange(21), context=4)
        >>> windows = CorruptedWindows(clean, 0.5, vocab_size=30)
        >>> int(windows.replaced.sum())
        10
    """

    def __init__(self, windows: Windows, rate: float, *, vocab_size: int, seed: int = 0) -> None:
        batches = windows.batches(1024, seed=0, shuffle=False)
        clean, self.targets = (torch.cat(part) for part in zip(*batches, strict=True))
        self.inputs, self.replaced = corrupt_tokens(clean, rate, vocab_size, seed)

    def __len__(self) -> int:
        return len(self.inputs)

    def batches(
        self, batch_size: int, *, seed: int, shuffle: bool = True
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """All windows in the order of the text: inputs and targets, (batch, context)."""
        check_int("batch_size", batch_size)
        if shuffle:
            raise ValueError("shuffle must be False for corrupted windows, got True")
        return zip(self.inputs.split(batch_size), self.targets.split(batch_size), strict=True)


def response_to_corruption(
    model: LanguageModel,
    windows: Windows,
    rates: Sequence[float] = RATES,
    *,
    vocab_size: int,
    corruption_seed: int = 0,
    **options: Any,
) -> "pd.DataFrame":
    """Tabulate scores and uncertainty against the share of context tokens that are replaced.

    Scored are the targets of the text, at all positions, see :class:`CorruptedWindows`: the same
    ones, and the same noise, at every rate.

    One row per rate, 0 first, with columns ``rate``; some of the scores of
    :func:`~eve_pyro.experiments.studies.language.token_scores.token_scores`; ``max_probability``;
    and ``detect_...``, how well a window with replaced tokens is told from a clean one by
    1 - ``max_probability``, ``entropy``, ``mutual_information`` and ``kl``, each averaged over
    the window: the area under the ROC curve, of all clean windows against those of the rate
    that lost at least one token. These look at inputs alone, as a user without targets would.
    Takes one evaluation per rate, and one of the clean text.

    Arguments:
        model: a :class:`~eve_pyro.nn.LanguageModel`.
        windows: of clean text.
        rates: shares in (0, 1].
        vocab_size: number of ids that there are.
        corruption_seed: of replaced places and tokens. Default 0.
        options: of :func:`~eve_pyro.experiments.studies.language.evaluation.evaluate`, such as
            ``num_samples``, ``seed`` and ``temperature``.

    Raises:
        ValueError: for rates or options out of range.

    Example:
        >>> from eve_pyro.data.text import TokenWindows
        >>> from eve_pyro.nn import TransformerConfig, TransformerLM
        >>> model = LanguageModel(TransformerLM(TransformerConfig(50, d_model=16, context=8)))
        >>> windows = TokenWindows(torch.randint(50, (100,)).numpy(), context=8)
        >>> table = response_to_corruption(model, windows, [0.5], vocab_size=50, num_samples=1)
        >>> table[["rate", "detect_mutual_information"]]
           rate  detect_mutual_information
        0   0.0                        0.5
        1   0.5                        0.5
    """
    import pandas as pd

    for rate in rates:
        if check_real("rates", rate, 0.0, 1.0) == 0.0:
            raise ValueError(f"rates must be in (0, 1], got {list(rates)}")
    clean = evaluate(model, windows, **options)
    rows = [{"rate": 0.0, **_row(clean.scores, clean.tokens, clean.tokens)}]
    for rate in rates:
        corrupted = CorruptedWindows(windows, rate, vocab_size=vocab_size, seed=corruption_seed)
        result = evaluate(model, corrupted, **options)
        touched = corrupted.replaced.any(-1).numpy()[result.tokens["window"]]
        row = _row(result.scores, result.tokens, clean.tokens, touched)
        rows.append({"rate": float(rate), **row})
    return pd.DataFrame(rows)


def response_to_texts(
    model: LanguageModel, texts: Mapping[str, Windows], **options: Any
) -> "pd.DataFrame":
    """Tabulate scores and uncertainty on several texts: another corpus, another period.

    One row per text, with columns ``text`` and those of :func:`response_to_corruption`; here
    ``detect_...`` tells windows of a text from those of the first one, the reference, whose own
    row has 0.5. The texts must be encoded by the model's tokenizer; losses per token compare
    between texts as far as their tokens are alike
    (:meth:`~eve_pyro.data.text.Tokens.bits_per_byte` where they are not).

    Arguments:
        model: a :class:`~eve_pyro.nn.LanguageModel`.
        texts: windows by name, the reference first.
        options: of :func:`~eve_pyro.experiments.studies.language.evaluation.evaluate`.

    Raises:
        ValueError: for no text, or options out of range.

    Example:
        >>> from eve_pyro.data.text import TokenWindows
        >>> from eve_pyro.nn import TransformerConfig, TransformerLM
        >>> model = LanguageModel(TransformerLM(TransformerConfig(50, d_model=16, context=8)))
        >>> ids = torch.randint(50, (2, 100)).numpy()
        >>> texts = {name: TokenWindows(row, context=8) for name, row in zip("ab", ids)}
        >>> response_to_texts(model, texts, num_samples=1)["text"].tolist()
        ['a', 'b']
    """
    import pandas as pd

    if not texts:
        raise ValueError("texts must have at least one, got none")
    rows: list[dict[str, Any]] = []
    reference = None
    for name, windows in texts.items():
        result = evaluate(model, windows, **options)
        reference = result.tokens if reference is None else reference
        rows.append({"text": name, **_row(result.scores, result.tokens, reference)})
    return pd.DataFrame(rows)


def _row(
    scores: dict[str, float],
    tokens: "pd.DataFrame",
    reference: "pd.DataFrame",
    shifted: np.ndarray | None = None,
) -> dict[str, float]:
    """Scores of all tokens; how windows (those of the shifted tokens) differ from the reference."""
    row = {name: scores[name] for name in COLUMNS}
    row["max_probability"] = float(tokens["max_probability"].mean())
    some = tokens if shifted is None else tokens[shifted]
    for name in UNCERTAINTY:
        parts = [_window_means(part, name) for part in (reference, some)]
        is_shifted = np.repeat([False, True], [len(part) for part in parts])
        row[f"detect_{name}"] = auroc(np.concatenate(parts), is_shifted)
    return row


def _window_means(tokens: "pd.DataFrame", name: str) -> np.ndarray:
    _, window = np.unique(tokens["window"], return_inverse=True)
    return np.bincount(window, signal(tokens, name)) / np.bincount(window)
