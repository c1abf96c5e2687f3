"""PG-19: books of Project Gutenberg, without what Project Gutenberg puts around them."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from eve_pyro.data.table import DataError
from eve_pyro.data.text.corpus import PARTS, Corpus
from eve_pyro.data.text.files import read_lines
from eve_pyro.data.text.sources import PG19, find_folder, from_hub

_START = re.compile(r"\s*\*\*\* ?START OF (THE|THIS) PROJECT GUTENBERG", re.IGNORECASE)
# Until about 2001 the header ended with a licence, and it with this line.
_OLD_START = re.compile(r"\s*\*END[ *]+THE SMALL PRINT", re.IGNORECASE)
_OLD_HEADER_LINES = 1000
_END = re.compile(
    r"\s*(\*\*\* ?END OF (THE|THIS) PROJECT GUTENBERG|End of (The |This )?Project Gutenberg)",
    re.IGNORECASE,
)
_MARKER_LINES = 3  # a long title breaks the marker over lines


def load_pg19(data_home: str | os.PathLike[str] | None = None) -> Corpus:
    """Books published before 1919, a book a document.

    Each file ``pg19/*.txt`` of the data home is a book; its name without ``.txt`` names it. The
    first of these that is there splits the books:

    1. the published folders ``pg19/{train,validation,test}/*.txt``;
    2. lists ``pg19/{train,valid,test}.list``, a book's name a line. A listed book whose file is
       not there is passed over, and so is a book in no list;
    3. else books are ordered by the SHA-256 of their names; a tenth of them (rounded to whole
       books, at least one) is to test on, the next tenth to choose on, the rest to train on. The
       same set of books is split alike everywhere.

    Arguments:
        data_home: folder that holds ``pg19``; default: the environment variable
            ``EVE_PYRO_DATA``. Without the folder the text is streamed from the Hugging Face hub,
            if the package ``datasets`` is installed.

    Raises:
        DataNotFoundError: an ``OSError``, if there is no such folder; the message says what to do.
        DataError: if a part would have no book, a book is in two lists or has no text, or a file
            is not UTF-8 text.

    References:
        J. W. Rae, A. Potapenko, S. M. Jayakumar and T. P. Lillicrap, Compressive transformers
        for long-range sequence modelling, ICLR 2020.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as home:
    ...     folder = Path(home, "pg19")
    ...     folder.mkdir()
    ...     for name in ("1342", "1400", "2701"):
    ...         _ = Path(folder, f"{name}.txt").write_text(f"Book {name}.\\n")
    ...     corpus = load_pg19(home)
    ...     [list(part) for part in (corpus.train, corpus.valid, corpus.test)]
    [['Book 2701.\\n'], ['Book 1400.\\n'], ['Book 1342.\\n']]
    """
    folder = find_folder(PG19, data_home)
    if folder is None:
        return from_hub(PG19, _books_of_rows, data_home)
    parts, note = _split(folder)
    for part, books in parts.items():
        if not books:
            raise DataError(
                f"{folder} must hold at least 1 book for each of {', '.join(PARTS)}, "
                f"got none for {part}"
            )
    return PG19.corpus({part: partial(_books, tuple(books)) for part, books in parts.items()}, note)


def strip_gutenberg(lines: Sequence[str]) -> list[str]:
    """The lines of a book between the markers that Project Gutenberg puts around it.

    The text begins after ``*** START OF THE (or THIS) PROJECT GUTENBERG EBOOK ... ***``, with or
    without blanks and over several lines, or in older books after the line ``*END*THE SMALL
    PRINT! ...*END*``. It ends before ``*** END OF ...`` or ``End of (the) Project Gutenberg
    ...``, whichever comes first. Where a marker is missing, nothing is cut on its side. Blank
    lines at both ends go.

    >>> strip_gutenberg(["Title: Whale\\n", "***START OF THIS PROJECT GUTENBERG EBOOK WHALE***\\n",
    ...     "\\n", "It swam.\\n", "\\n", "End of Project Gutenberg's Whale\\n", "Licence\\n"])
    ['It swam.\\n']
    """
    start = 0
    for index, line in enumerate(lines):
        if _START.match(line):
            start = _after_marker(lines, index)
            break
        if index < _OLD_HEADER_LINES and _OLD_START.match(line):
            start = index + 1  # a newer marker may still follow
    ends = (index for index in range(start, len(lines)) if _END.match(lines[index]))
    stop = next(ends, len(lines))
    while start < stop and not lines[start].strip():
        start += 1
    while start < stop and not lines[stop - 1].strip():
        stop -= 1
    return list(lines[start:stop])


def _after_marker(lines: Sequence[str], start: int) -> int:
    for index in range(start, min(start + _MARKER_LINES, len(lines))):
        if lines[index].rstrip().endswith("***"):
            return index + 1
    return start + 1


def _split(folder: Path) -> tuple[dict[str, list[Path]], str]:
    """The files of each part, and how they were chosen."""
    published = {part: folder / ("validation" if part == "valid" else part) for part in PARTS}
    if all(path.is_dir() for path in published.values()):
        parts = {part: sorted(path.glob("*.txt")) for part, path in published.items()}
        return parts, "The parts are the published folders."
    files = {path.stem: path for path in sorted(folder.glob("*.txt"))}
    lists = {part: folder / f"{part}.list" for part in PARTS}
    if all(path.is_file() for path in lists.values()):
        return _split_by_lists(lists, files), "The parts are those of the lists beside the books."
    if len(files) < 3:
        raise DataError(
            f"{folder} must hold at least 3 books (*.txt), one for each of {', '.join(PARTS)}, "
            f"got {len(files)}"
        )
    order = sorted(files, key=lambda name: hashlib.sha256(name.encode()).digest())
    tenth = max(1, round(len(order) / 10))
    names = {
        "train": order[2 * tenth :],
        "valid": order[tenth : 2 * tenth],
        "test": order[:tenth],
    }
    note = (
        f"Not the published parts: {len(order)} books, ordered by the SHA-256 of their names; "
        f"{tenth} to test on, the next {tenth} to choose on, the rest to train on."
    )
    return {part: [files[name] for name in sorted(names[part])] for part in PARTS}, note


def _split_by_lists(lists: dict[str, Path], files: dict[str, Path]) -> dict[str, list[Path]]:
    seen: dict[str, str] = {}
    parts: dict[str, list[Path]] = {part: [] for part in PARTS}
    for part, path in lists.items():
        for name in filter(None, map(str.strip, read_lines(path))):
            if name in seen:
                raise DataError(
                    f"{path} must name books of no other list and each of them once, "
                    f"got {name!r}, which {seen[name]} has"
                )
            seen[name] = path.name
            if name in files:
                parts[part].append(files[name])
    return parts


def _books(paths: tuple[Path, ...]) -> Iterator[str]:
    for path in paths:
        yield _text(list(read_lines(path)), str(path))


def _books_of_rows(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        name = str(row.get("short_book_title", "a book"))
        yield _text(row["text"].splitlines(keepends=True), name)


def _text(lines: Sequence[str], name: str) -> str:
    text = "".join(strip_gutenberg(lines))
    if not text:
        raise DataError(f"{name} must hold text between Project Gutenberg's markers, got none")
    return text
