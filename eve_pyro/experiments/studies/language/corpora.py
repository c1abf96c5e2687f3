"""The text of a study: a corpus as windows of tokens, as much of it as a setting reads."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from eve_pyro._checks import check_int
from eve_pyro.data import DataError
from eve_pyro.data.text import (
    Tokenizer,
    TokenWindows,
    encode_corpus,
    load_corpus,
    train_tokenizer,
)

# Without the training text of WikiText-2 its validation text is split; the page says so.
_OPTIONS: dict[str, dict[str, Any]] = {"wikitext2": {"split_valid": True}}


@dataclass(frozen=True)
class TextConfig:
    """Which text, and how much of it.

    Arguments:
        corpus: one of :func:`~eve_pyro.data.text.available_corpora`.
        vocab_size: of the tokenizer, which is trained on the whole training text.
        train_tokens: most tokens of the training part, from its beginning; None for all.
        valid_tokens, test_tokens: about how many tokens of these parts are targets, in windows
            spread over all of the part; None for all.

    Raises:
        ValueError: for numbers below 1.

    Example:
        >>> TextConfig("moby_dick", test_tokens=0)
        Traceback (most recent call last):
        ...
        ValueError: test_tokens must be an integer >= 1, got 0
    """

    corpus: str
    vocab_size: int = 4096
    train_tokens: int | None = None
    valid_tokens: int | None = None
    test_tokens: int | None = None

    def __post_init__(self) -> None:
        check_int("vocab_size", self.vocab_size)
        for name in ("train_tokens", "valid_tokens", "test_tokens"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name))


@dataclass(frozen=True)
class Text:
    """A corpus as windows.

    Attributes:
        train, valid, test: the parts.
        look: windows of the training text, as many as of the validation text, spread over all of
            it: what the training loss is compared on.
        tokenizer: that of all of them.
        description: what the corpus is.
    """

    train: TokenWindows
    valid: TokenWindows
    test: TokenWindows
    look: TokenWindows
    tokenizer: Tokenizer
    description: str


def load_text(config: TextConfig, context: int) -> Text:
    """Load, encode and cut a corpus; what takes long comes from the cache after the first time.

    Raises:
        DataNotFoundError: an ``OSError``, if the text is not there; the message says what to do.
        DataError: if a part has fewer than context + 1 tokens, or the text cannot be used.
        ImportError: without the package ``tokenizers``.
    """
    corpus = load_corpus(config.corpus, **_OPTIONS.get(config.corpus, {}))
    tokenizer = train_tokenizer(corpus.train, config.vocab_size)
    tokens = {p: encode_corpus(corpus.part(p), tokenizer) for p in ("train", "valid", "test")}
    ids = tokens["train"].ids[: config.train_tokens]
    train = _windows(ids, context, f"{corpus.name}/train")
    valid = spread(tokens["valid"].ids, config.valid_tokens, context, f"{corpus.name}/valid")
    test = spread(tokens["test"].ids, config.test_tokens, context, f"{corpus.name}/test")
    # A stride of whole windows, so that the look has windows that training has.
    look = TokenWindows(ids, context, context * max(1, len(train) // len(valid)))
    return Text(train, valid, test, look, tokenizer, corpus.description)


def load_other(corpus: str, tokenizer: Tokenizer, count: int | None, context: int) -> TokenWindows:
    """Windows of another corpus's test text, in the tokens of a model that has not seen it.

    Arguments:
        corpus: one of :func:`~eve_pyro.data.text.available_corpora`.
        tokenizer: the model's.
        count: about how many tokens are targets; None for all.
        context: tokens of a window.

    Raises:
        DataNotFoundError: an ``OSError``, if the text is not there.
        DataError: if it is too short, or cannot be used.
    """
    test = load_corpus(corpus, **_OPTIONS.get(corpus, {})).part("test")
    return spread(encode_corpus(test, tokenizer).ids, count, context, f"{corpus}/test")


def spread(ids: np.ndarray, count: int | None, context: int, name: str) -> TokenWindows:
    """Windows over all of a text, with about ``count`` targets.

    Raises:
        DataError: if there is no whole window.

    Example:
        >>> len(spread(np.arange(1000), 50, 10, "numbers"))
        5
        >>> spread(np.arange(3), None, 8, "haiku/test")
        Traceback (most recent call last):
        ...
        eve_pyro.data.table.DataError: haiku/test must have at least context + 1 = 9 tokens, got 3
    """
    windows = _windows(ids, context, name)
    wanted = len(windows) if count is None else max(1, count // context)
    if wanted >= len(windows):
        return windows
    return TokenWindows(ids, context, (len(ids) - context - 1) // max(1, wanted - 1))


def _windows(ids: np.ndarray, context: int, name: str) -> TokenWindows:
    if len(ids) <= context:
        least = f"context + 1 = {context + 1}"
        raise DataError(f"{name} must have at least {least} tokens, got {len(ids)}")
    return TokenWindows(ids, context)
