"""Byte-level BPE: any Unicode text to token ids and back, without loss."""

import hashlib
import json
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from eve_pyro.data.table import DataError, DataNotFoundError
from eve_pyro.data.text.corpus import to_utf8
from eve_pyro.data.text.files import writing

END_OF_TEXT = "<|endoftext|>"
"""The special token that ends every document in a token stream."""

_FORMAT = "eve_pyro.tokenizer/1"


class Tokenizer:
    """Text to token ids and back; made by ``train_tokenizer`` or ``Tokenizer.load``.

    Text never becomes the special token ``<|endoftext|>``, not even text that reads so: the token
    ends documents and nothing else, and every text survives ``decode(encode(text))``.

    Arguments:
        specification: JSON of a tokenizer of the library ``tokenizers``, one with the special
            token ``<|endoftext|>``.

    Raises:
        ImportError: without the package ``tokenizers``.
        DataError: if the specification is not as above.

    >>> from tempfile import TemporaryDirectory
    >>> from eve_pyro.data.text import train_tokenizer
    >>> with TemporaryDirectory() as folder:
    ...     tokenizer = train_tokenizer(["a whale, a white whale"], 270, cache=folder)
    >>> tokenizer.decode(tokenizer.encode("a wide sea \N{WHALE}"))
    'a wide sea \N{WHALE}'
    >>> len(tokenizer.encode("a white whale"))
    3
    """

    def __init__(self, specification: str) -> None:
        library = tokenizers_library()
        try:
            self._core = library.Tokenizer.from_str(specification)
        except Exception as error:  # the library raises a plain Exception
            raise DataError(
                f"specification must be JSON of the library tokenizers: {error}"
            ) from None
        end = self._core.token_to_id(END_OF_TEXT)
        if end is None:
            raise DataError(f"specification must have the special token {END_OF_TEXT}, got none")
        # Otherwise text that reads like the special token would become it.
        self._core.encode_special_tokens = True
        self._specification = specification
        self.end_of_text: int = end
        """Id of the token that ends a document."""
        self.vocab_size: int = self._core.get_vocab_size()
        """Number of tokens, the special one included."""
        self.fingerprint: str = _fingerprint(json.loads(specification))
        """SHA-256 of all that decides which ids a text gets."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without an end-of-text token."""
        to_utf8(text, "text")
        ids: list[int] = self._core.encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, as ``encode`` gives them, computed by all processors."""
        for number, text in enumerate(texts, 1):
            to_utf8(text, f"text {number}")
        encoded = self._core.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encoded]

    def decode(self, ids: ArrayLike) -> str:
        """The text of ids (a list, an array or a tensor of one dimension).

        A character whose bytes are cut at an end comes out as the replacement character.

        Raises:
            DataError: if an id is not in [0, vocab_size).
        """
        array = np.asarray(ids)
        if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
            raise DataError(
                "ids must be integers in one dimension, "
                f"got shape {array.shape} of {array.dtype.name}"
            )
        wrong = array[(array < 0) | (array >= self.vocab_size)]
        if wrong.size:
            raise DataError(f"ids must be integers in [0, {self.vocab_size}), got {wrong[0]}")
        text: str = self._core.decode(array.tolist(), skip_special_tokens=False)
        return text

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tokenizer to a JSON file, whole or not at all.

        Raises:
            DataError: if the folder cannot be written to.
        """
        content = {
            "format": _FORMAT,
            "fingerprint": self.fingerprint,
            "tokenizer": json.loads(self._specification),
        }
        with writing(Path(path)) as part:
            part.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Read a file that ``save`` has written.

        Raises:
            DataNotFoundError: an ``OSError``, if there is no such file.
            DataError: if the file is damaged or something else.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataNotFoundError(
                f"path must be a saved tokenizer, got no file {os.fspath(path)!r}"
            ) from None
        except (OSError, ValueError) as error:
            raise DataError(f"{path} must be a saved tokenizer: {error}") from None
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise DataError(f"{path} must be a saved tokenizer of format {_FORMAT}, got another")
        specification = content.get("tokenizer")
        if _fingerprint(specification) != content.get("fingerprint"):
            raise DataError(f"{path} must hold the tokenizer that was saved, got a damaged one")
        return cls(json.dumps(specification, ensure_ascii=False))

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[str]]:
        return Tokenizer, (self._specification,)

    def __repr__(self) -> str:
        return f"Tokenizer(vocab_size={self.vocab_size}, fingerprint={self.fingerprint[:12]!r})"


def _fingerprint(specification: Any) -> str:
    """SHA-256 of all that decides the ids; a dict lacking any of it has one, too."""
    parts = specification if isinstance(specification, dict) else {}
    model = parts.get("model")
    if isinstance(model, dict) and isinstance(model.get("merges"), list):
        # Older versions of the library write the merge of "a" and "b" as "a b".
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        model = model | {"merges": pairs}
    names = ("normalizer", "pre_tokenizer", "added_tokens", "decoder")
    decisive = {name: parts.get(name) for name in names} | {"model": model}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def tokenizers_library() -> Any:
    """The package ``tokenizers``, or an ``ImportError`` that says how to get it.

    >>> tokenizers_library().__name__
    'tokenizers'
    """
    try:
        return import_module("tokenizers")
    except ImportError:
        raise ImportError(
            "a tokenizer needs the package tokenizers: pip install 'eve-pyro[text]'"
        ) from None
