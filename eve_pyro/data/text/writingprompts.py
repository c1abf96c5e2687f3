"""WritingPrompts: prompts and the stories written to them."""

import os
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from eve_pyro.data.table import DataError, DataNotFoundError
from eve_pyro.data.text.corpus import PARTS, Corpus
from eve_pyro.data.text.files import count_lines, read_lines
from eve_pyro.data.text.sources import WRITINGPROMPTS, find_folder, from_hub

_NEWLINE = re.compile(" ?<newline> ?")


def load_writingprompts(data_home: str | os.PathLike[str] | None = None) -> Corpus:
    """WritingPrompts, a document a prompt with its story: 300,000 of them.

    Arguments:
        data_home: folder that holds ``writingprompts/{train,valid,test}.wp_{source,target}``,
            prompts and stories one a line; default: the environment variable ``EVE_PYRO_DATA``.
            Without the folder the text is streamed from the Hugging Face hub, if the package
            ``datasets`` is installed.

    Raises:
        DataNotFoundError: an ``OSError``, if a file is missing; the message says what to do.
        DataError: if a part has not one story per prompt, or a file is not UTF-8 text.

    References:
        A. Fan, M. Lewis and Y. Dauphin, Hierarchical neural story generation, ACL 2018.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as home:
    ...     folder = Path(home, "writingprompts")
    ...     folder.mkdir()
    ...     for part in ("train", "valid", "test"):
    ...         _ = Path(folder, f"{part}.wp_source").write_text("[ WP ] A whale .\\n")
    ...         _ = Path(folder, f"{part}.wp_target").write_text("It swam . <newline> Away .\\n")
    ...     list(load_writingprompts(home).train)
    ['[ WP ] A whale .\\n\\nIt swam .\\nAway .']
    """
    folder = find_folder(WRITINGPROMPTS, data_home)
    if folder is None:
        return from_hub(WRITINGPROMPTS, _stories_of_rows, data_home)
    readers = {}
    for part in PARTS:
        source, target = (folder / f"{part}.wp_{side}" for side in ("source", "target"))
        for path in (source, target):
            if not path.is_file():
                raise DataNotFoundError(
                    f"{folder} must hold {WRITINGPROMPTS.files}, got no {path.name}"
                )
        # Counted now: in the middle of training it would be too late.
        prompts, stories = count_lines(source), count_lines(target)
        if prompts != stories:
            raise DataError(
                f"{source} and {target} must have the same number of lines, "
                f"got {prompts} prompts and {stories} stories"
            )
        readers[part] = partial(_stories_of_files, source, target)
    return WRITINGPROMPTS.corpus(readers, "The parts are those of the files.")


def join_story(prompt: str, story: str) -> str:
    """The document of a prompt and its story.

    >>> join_story("[ WP ] A whale .\\n", "It swam . <newline> <newline> Away .\\n")
    '[ WP ] A whale .\\n\\nIt swam .\\n\\nAway .'
    """
    return prompt.strip() + "\n\n" + _NEWLINE.sub("\n", story).strip()


def _stories_of_files(source: Path, target: Path) -> Iterator[str]:
    for prompt, story in zip(read_lines(source), read_lines(target), strict=True):
        yield join_story(prompt, story)


def _stories_of_rows(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    return (join_story(row["prompt"], row["story"]) for row in rows)
