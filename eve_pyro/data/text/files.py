"""Text files, read line by line; files of the cache, written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from eve_pyro.data import fetch
from eve_pyro.data.table import DataError

_BLOCK = 1 << 20


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, each with its ``\\n`` (the last one may lack it).

    Windows line ends become ``\\n``. Other characters that Python counts as line ends, such as
    form feeds, stay where they are.

    Raises:
        DataError: if the file cannot be read or is not UTF-8; the message has the byte's offset.

    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "haiku.txt")
    ...     _ = path.write_bytes(b"old pond\\r\\na frog leaps in")
    ...     list(read_lines(path))
    ['old pond\\n', 'a frog leaps in']
    """
    offset = 0
    try:
        with path.open("rb") as file:
            for line in file:
                yield _decode(path, line, offset)
                offset += len(line)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def count_lines(path: Path) -> int:
    """How many lines ``read_lines`` would give, without decoding them.

    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "haiku.txt")
    ...     _ = path.write_text("old pond\\na frog leaps in")
    ...     count_lines(path)
    2
    """
    count, last = 0, b"\n"
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                count += block.count(b"\n")
                last = block[-1:]
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    return count + (last != b"\n")


def text_cache(cache: str | os.PathLike[str] | None) -> Path:
    """The folder for tokenizers and token files: ``cache``, or the user's cache folder.

    >>> text_cache("haiku").name
    'haiku'
    """
    return fetch.cache_folder() / "text" if cache is None else Path(cache).expanduser()


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A path to write to; when the block ends without an error the file becomes ``path``.

    The file is written beside its place and renamed, so that no reader sees half of it, whatever
    interrupts the writer or runs beside it.

    Raises:
        DataError: if the folder of ``path`` cannot be made or written to.

    >>> with TemporaryDirectory() as folder:
    ...     with writing(Path(folder, "haiku.txt")) as part:
    ...         _ = part.write_text("old pond")
    ...     [path.name for path in Path(folder).iterdir()]
    ['haiku.txt']
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = TemporaryDirectory(dir=path.parent, prefix=".writing-")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error}") from None
    with folder:
        part = Path(folder.name, path.name)
        yield part
        part.replace(path)


def _decode(path: Path, line: bytes, offset: int) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} must be UTF-8 text, got byte {line[error.start]:#04x} at byte offset "
            f"{offset + error.start}"
        ) from None
    if offset == 0:
        text = text.removeprefix("\ufeff")  # the byte-order mark that some editors write
    return text[:-2] + "\n" if text.endswith("\r\n") else text
