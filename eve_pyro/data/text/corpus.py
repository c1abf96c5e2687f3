"""The text that a language model is trained, chosen and tested on, read as it is needed."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from eve_pyro._checks import check_choice
from eve_pyro.data.table import DataError

PARTS = ("train", "valid", "test")


class Documents:
    """One part of a corpus: documents (strings) that are read anew in every pass.

    Nothing is kept between documents, so a pass needs the memory of one of them, however many
    there are.

    Arguments:
        name: what messages and the repr call this part.
        read: makes an iterator over the documents; called once per pass.

    >>> part = Documents("haiku/train", lambda: iter(["old pond", "a frog leaps in"]))
    >>> part
    Documents('haiku/train')
    >>> list(part) == list(part)
    True
    """

    def __init__(self, name: str, read: Callable[[], Iterator[str]]) -> None:
        self.name = name
        self._read = read

    def __iter__(self) -> Iterator[str]:
        return self._read()

    def __repr__(self) -> str:
        return f"Documents({self.name!r})"


@dataclass(frozen=True, eq=False, repr=False)
class Corpus:
    """Text in three parts, each an iterable of documents.

    Arguments:
        name: what the corpus is called in reports.
        train: documents to fit on; they alone may shape the tokenizer.
        valid: documents to choose on (early stopping, settings).
        test: documents to report on, once.
        description: what the text is, how it became documents and parts, what to beware of.
        source: who wrote it and where it comes from.
        licence: terms under which it may be used.

    Raises:
        DataError: if a part is not an iterable that can be read more than once.

    >>> corpus = Corpus("haiku", ["old pond"], ["a frog leaps in"], ["sound of the water"])
    >>> corpus
    Corpus('haiku')
    >>> list(corpus.part("valid"))
    ['a frog leaps in']
    """

    name: str
    train: Iterable[str]
    valid: Iterable[str]
    test: Iterable[str]
    description: str = ""
    source: str = ""
    licence: str = ""

    def __post_init__(self) -> None:
        for part in PARTS:
            check_documents(part, getattr(self, part))

    def part(self, name: str) -> Iterable[str]:
        """The documents of ``"train"``, ``"valid"`` or ``"test"``."""
        documents: Iterable[str] = getattr(self, check_choice("name", name, PARTS))
        return documents

    def __repr__(self) -> str:
        return f"Corpus({self.name!r})"


def content_digest(documents: Iterable[str]) -> str:
    """SHA-256 of a part's documents, of their text and of where each of them ends.

    Arguments:
        documents: a part of a ``Corpus``, or another iterable of strings.

    Raises:
        DataError: if a document is not a string, or none that UTF-8 can hold.

    >>> content_digest(["a", "bc"])[:12] == content_digest(["ab", "c"])[:12]
    False
    """
    hasher = hashlib.sha256()
    for _ in hashed(documents, hasher):
        pass
    return hasher.hexdigest()


def hashed(documents: Iterable[str], hasher: Any) -> Iterator[str]:
    """Pass documents on and feed each of them to ``hasher``, as ``content_digest`` does.

    >>> hasher = hashlib.sha256()
    >>> list(hashed(["a", "bc"], hasher))
    ['a', 'bc']
    >>> hasher.hexdigest() == content_digest(["a", "bc"])
    True
    """
    for number, text in enumerate(documents, 1):
        content = to_utf8(text, f"document {number}")
        # The length in front tells ["ab", "c"] from ["a", "bc"].
        hasher.update(len(content).to_bytes(8, "little"))
        hasher.update(content)
        yield text


def to_utf8(text: Any, where: str) -> bytes:
    """The UTF-8 bytes of a text, or a ``DataError`` that begins with ``where``.

    >>> to_utf8("pond", "document 1")
    b'pond'
    >>> to_utf8(7, "document 1")
    Traceback (most recent call last):
    ...
    eve_pyro.data.table.DataError: document 1 must be a string, got int
    """
    if not isinstance(text, str):
        raise DataError(f"{where} must be a string, got {type(text).__name__}")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where} must be text that UTF-8 can hold, got the lone surrogate "
            f"{text[error.start]!a} at character {error.start}"
        ) from None


def check_documents(name: str, documents: Any) -> None:
    """Raise a ``DataError`` unless ``documents`` is an iterable that can be read repeatedly.

    >>> check_documents("documents", (line for line in ["old pond"]))
    Traceback (most recent call last):
    ...
    eve_pyro.data.table.DataError: documents must be an iterable of strings that can be read more
    than once (a part of a Corpus, a list), got generator
    """
    known = isinstance(documents, Iterable) and not isinstance(documents, str | bytes)
    if not known or isinstance(documents, Iterator):
        raise DataError(
            f"{name} must be an iterable of strings that can be read more than once "
            f"(a part of a Corpus, a list), got {type(documents).__name__}"
        )
