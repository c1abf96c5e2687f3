"""The named corpora: what they are, where their files lie, and where else they are found."""

import os
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from eve_pyro.data.fetch import DATA_HOME, chosen_data_home
from eve_pyro.data.table import DataNotFoundError
from eve_pyro.data.text.corpus import PARTS, Corpus, Documents


@dataclass(frozen=True)
class TextSource:
    """A named corpus, before it is read.

    Arguments:
        name: what the user asks for.
        folder: its folder in the data home.
        files: what the folder must hold, in words.
        hub: its name on the Hugging Face hub, read with the package ``datasets``.
        config: the configuration to ask of the hub; empty if there is but one.
        description: what the text is and how it becomes documents.
        source: who wrote it and where it comes from.
        licence: terms of use.
    """

    name: str
    folder: str
    files: str
    hub: str
    config: str
    description: str
    source: str
    licence: str

    def corpus(self, parts: Mapping[str, Callable[[], Iterator[str]]], note: str) -> Corpus:
        """The corpus of these readers (train, valid, test); ``note`` ends its description."""
        return Corpus(
            self.name,
            **{part: Documents(f"{self.name}/{part}", parts[part]) for part in PARTS},
            description=f"{self.description} {note}",
            source=self.source,
            licence=self.licence,
        )


def find_folder(source: TextSource, data_home: str | os.PathLike[str] | None) -> Path | None:
    """The folder of a corpus in the data home, ``None`` if there is none.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as home:
    ...     Path(home, "wikitext-2").mkdir()
    ...     find_folder(WIKITEXT2, home).name
    'wikitext-2'
    """
    home = chosen_data_home(data_home)
    return home / source.folder if home and (home / source.folder).is_dir() else None


def from_hub(
    source: TextSource,
    documents: Callable[[Any], Iterator[str]],
    data_home: str | os.PathLike[str] | None,
) -> Corpus:
    """A corpus streamed from the Hugging Face hub, for lack of a folder.

    Arguments:
        source: the corpus.
        documents: makes documents of a stream of rows, which are dicts.
        data_home: where the folder was looked for.

    Raises:
        DataNotFoundError: if ``datasets`` is not installed, or the hub cannot be reached; the
            message says what to do, with the folder or with the hub.
    """
    home = chosen_data_home(data_home)
    place = str(home / source.folder) if home else f"any data home ({DATA_HOME} is not set)"
    where = f"{source.hub} on the Hugging Face hub"
    try:
        load = import_module("datasets").load_dataset
    except (ImportError, AttributeError):
        raise _not_found(source, place, f"{where} needs the package datasets") from None
    config = (source.config,) if source.config else ()
    try:
        rows = load(source.hub, *config, streaming=True)
        streams = {part: rows["validation" if part == "valid" else part] for part in PARTS}
    except Exception as error:  # whatever the hub's client raises when it is offline
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 160, placeholder="...")
        raise _not_found(source, place, f"{where} could not be read ({reason})") from None
    return source.corpus(
        {part: partial(documents, stream) for part, stream in streams.items()},
        f"Read from {where}.",
    )


def _not_found(source: TextSource, place: str, reason: str) -> DataNotFoundError:
    return DataNotFoundError(
        f"{source.name} is not in {place}, and {reason}; put {source.files} in the folder "
        f"{source.folder} of a data home (data_home or the environment variable {DATA_HOME}), or, "
        "online, pip install datasets"
    )


WIKITEXT2 = TextSource(
    name="wikitext2",
    folder="wikitext-2",
    files="train.txt, valid.txt and test.txt",
    hub="Salesforce/wikitext",
    config="wikitext-2-v1",
    description=(
        "WikiText-2: verified good and featured articles of Wikipedia, tokenised by their "
        "authors, with rare words as <unk> and hyphens, commas and points within words as @-@, "
        "@,@ and @.@. A document is an article, as it stands in the file."
    ),
    source=(
        "S. Merity, C. Xiong, J. Bradbury and R. Socher, Pointer sentinel mixture models, "
        "ICLR 2017 (arXiv:1609.07843)."
    ),
    licence="CC BY-SA 3.0",
)

WRITINGPROMPTS = TextSource(
    name="writingprompts",
    folder="writingprompts",
    files=(
        "train.wp_source, train.wp_target, valid.wp_source, valid.wp_target, test.wp_source and "
        "test.wp_target"
    ),
    hub="euclaise/writingprompts",
    config="",
    description=(
        "WritingPrompts: prompts from an online forum and the stories written to them. A document "
        "is a prompt, a blank line and its story, with <newline> made a line end."
    ),
    source=(
        "A. Fan, M. Lewis and Y. Dauphin, Hierarchical neural story generation, ACL 2018 "
        "(arXiv:1805.04833)."
    ),
    licence="none stated for the texts, which users of the forum wrote; published for research",
)

PG19 = TextSource(
    name="pg19",
    folder="pg19",
    files="books of Project Gutenberg as plain text, such as 1342.txt,",
    hub="emozilla/pg19",
    config="",
    description=(
        "PG-19: books of Project Gutenberg published before 1919. A document is a book, without "
        "the header and the footer that Project Gutenberg adds."
    ),
    source=(
        "J. W. Rae, A. Potapenko, S. M. Jayakumar and T. P. Lillicrap, Compressive transformers "
        "for long-range sequence modelling, ICLR 2020 (arXiv:1911.05507); Project Gutenberg."
    ),
    licence="public domain in the United States; the collection is under Apache 2.0",
)
