"""WikiText-2: articles of Wikipedia."""

import os
import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from eve_pyro.data.table import DataError, DataNotFoundError
from eve_pyro.data.text.corpus import PARTS, Corpus
from eve_pyro.data.text.files import read_lines
from eve_pyro.data.text.sources import WIKITEXT2, find_folder, from_hub

_TITLE = re.compile(r" ?= [^=].* = ?\n?")


def load_wikitext2(
    data_home: str | os.PathLike[str] | None = None, *, split_valid: bool = False
) -> Corpus:
    """WikiText-2, an article a document: 600 articles to train on, 60 and 60 to choose and test.

    Arguments:
        data_home: folder that holds ``wikitext-2/{train,valid,test}.txt`` (the published names
            ``wiki.{train,valid,test}.tokens`` do as well); default: the environment variable
            ``EVE_PYRO_DATA``. Without the folder the text is streamed from the Hugging Face hub,
            if the package ``datasets`` is installed.
        split_valid: where the training text is missing, make do with the other two: the first
            80 percent of the articles of ``valid.txt`` (rounded down) are to train on, the
            others to choose on. Results then do not compare with published ones, and the
            description says so. Where the training text is there, this changes nothing.

    Raises:
        DataNotFoundError: an ``OSError``, if a part is missing; the message says what to do.
        DataError: if a file is not UTF-8 text.

    References:
        S. Merity, C. Xiong, J. Bradbury and R. Socher, Pointer sentinel mixture models,
        ICLR 2017. CC BY-SA 3.0.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as home:
    ...     folder = Path(home, "wikitext-2")
    ...     folder.mkdir()
    ...     for part in ("train", "valid", "test"):
    ...         _ = Path(folder, f"{part}.txt").write_text(" \\n = Whale = \\n \\n A mammal . \\n")
    ...     list(load_wikitext2(home).train)
    [' \\n = Whale = \\n \\n A mammal . \\n']
    """
    folder = find_folder(WIKITEXT2, data_home)
    if folder is None:
        return from_hub(WIKITEXT2, _articles_of_rows, data_home)
    files = {part: path for part in PARTS if (path := _find(folder, part))}
    missing = [part for part in PARTS if part not in files]
    if missing == ["train"] and split_valid:
        return _without_train(files["valid"], files["test"])
    if missing:
        hint = "; or pass split_valid=True to train on a part of the validation text"
        raise DataNotFoundError(
            f"{folder} must hold {WIKITEXT2.files}, got no {missing[0]}.txt"
            + (hint if missing == ["train"] else "")
        )
    readers = {part: partial(_articles_of_file, path) for part, path in files.items()}
    return WIKITEXT2.corpus(readers, "The parts are the published ones.")


def split_articles(lines: Iterable[str]) -> Iterator[str]:
    """Join lines into articles; every line, blank ones too, is in exactly one of them.

    An article begins at its title, `` = Title = `` between blank lines. The blank lines stand
    there to tell titles from the few sentences that look like one.

    >>> text = " \\n = Whale = \\n \\n A mammal . \\n = 2 = \\n \\n = Sea = \\n \\n Water . \\n"
    >>> list(split_articles(text.splitlines(keepends=True)))
    [' \\n = Whale = \\n \\n A mammal . \\n = 2 = \\n \\n', ' = Sea = \\n \\n Water . \\n']
    """
    article: list[str] = []
    titles = 0
    after_blank = True  # the start of the file counts as a blank line
    title_held = False  # the last line of `article` is a title if a blank line follows
    for line in lines:
        blank = not line.strip()
        if title_held and blank:
            if titles:
                yield "".join(article[:-1])
                article = article[-1:]
            titles += 1
        title_held = after_blank and _TITLE.fullmatch(line) is not None
        after_blank = blank
        article.append(line)
    if article:
        yield "".join(article)


def _without_train(valid: Path, test: Path) -> Corpus:
    count = sum(1 for _ in _articles_of_file(valid))
    if count < 2:
        raise DataError(f"{valid} must hold at least 2 articles to be split, got {count}")
    cut = count * 4 // 5
    readers = {
        "train": partial(_articles_of_file, valid, 0, cut),
        "valid": partial(_articles_of_file, valid, cut),
        "test": partial(_articles_of_file, test),
    }
    note = (
        f"Not the published parts: the training text was missing, so the first {cut} of the "
        f"{count} articles of the validation text (80 percent) are to train on and the other "
        f"{count - cut} to choose on."
    )
    return WIKITEXT2.corpus(readers, note)


def _find(folder: Path, part: str) -> Path | None:
    names = (f"{part}.txt", f"wiki.{part}.tokens")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _articles_of_file(path: Path, start: int = 0, stop: int | None = None) -> Iterator[str]:
    return islice(split_articles(read_lines(path)), start, stop)


def _articles_of_rows(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    # A row of the hub is a line; blank ones have lost their line end.
    return split_articles(row["text"].removesuffix("\n") + "\n" for row in rows)
