"""Corpora by name."""

import os
from collections.abc import Callable
from typing import Any

from eve_pyro._checks import check_choice
from eve_pyro.data.text.corpus import Corpus
from eve_pyro.data.text.gutenberg import load_pg19
from eve_pyro.data.text.moby_dick import load_moby_dick
from eve_pyro.data.text.wikitext import load_wikitext2
from eve_pyro.data.text.writingprompts import load_writingprompts

_LOADERS: dict[str, Callable[..., Corpus]] = {
    "wikitext2": load_wikitext2,
    "writingprompts": load_writingprompts,
    "pg19": load_pg19,
}


def available_corpora() -> tuple[str, ...]:
    """Names that ``load_corpus`` knows.

    >>> available_corpora()
    ('moby_dick', 'wikitext2', 'writingprompts', 'pg19')
    """
    return ("moby_dick", *_LOADERS)


def load_corpus(
    name: str, data_home: str | os.PathLike[str] | None = None, **options: Any
) -> Corpus:
    """Load a named corpus.

    Arguments:
        name: one of ``available_corpora()``. ``"moby_dick"`` comes with the package.
        data_home: folder of the corpora that are not part of the package; default: the
            environment variable ``EVE_PYRO_DATA``.
        options: what the corpus's own loader takes besides, such as ``split_valid`` of
            ``load_wikitext2``.

    Raises:
        ValueError: if there is no corpus of that name.
        DataNotFoundError: an ``OSError``, if its text is not there; the message says what to do.
        DataError: if its text cannot be used.

    >>> load_corpus("moby_dick")
    Corpus('moby_dick')
    >>> load_corpus("moby_duck")
    Traceback (most recent call last):
    ...
    ValueError: name must be one of 'moby_dick', 'wikitext2', 'writingprompts', 'pg19', got
    'moby_duck'
    """
    check_choice("name", name, available_corpora())
    if name == "moby_dick":
        return load_moby_dick(**options)
    return _LOADERS[name](data_home, **options)
