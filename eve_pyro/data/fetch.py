"""Finding a named table: in the package, the data home or the cache, or else by download."""

import hashlib
import os
import textwrap
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from eve_pyro.data.csvfile import read_csv
from eve_pyro.data.sources import Source
from eve_pyro.data.table import DataError, DataNotFoundError

DATA_HOME = "EVE_PYRO_DATA"
"""Environment variable that names the data home, used where no ``data_home`` is given."""


def fetch(source: Source, data_home: str | os.PathLike[str] | None = None) -> NDArray[np.float64]:
    """The values of a named table, shape (rows, columns), checked against its digest.

    A bundled table comes with the package. Any other is looked for in the data home (the
    argument, else the environment variable ``EVE_PYRO_DATA``), directly or in its folder
    ``uci``, then in the cache. If the source has a URL it is downloaded into the cache last.

    Raises:
        DataNotFoundError: if the table is in none of these; the message says where to get it.
        DataError: if ``data_home`` is not a folder, or a file holds other numbers.

    >>> from eve_pyro.data.sources import SOURCES
    >>> fetch(SOURCES["concrete"]).shape
    (1030, 9)
    """
    if source.bundled:
        return read_verified(source, Path(__file__).with_name("tables") / source.file)
    home = chosen_data_home(data_home)
    folders = [home, home / "uci"] if home else []
    if source.url:
        folders.append(cache_folder())
    for folder in folders:
        if (folder / source.file).is_file():
            return read_verified(source, folder / source.file)

    failure = ""
    if source.url:
        try:
            return _download(source)
        except (OSError, DataError) as error:  # requests raises OSErrors
            reason = textwrap.shorten(f"{type(error).__name__}: {error}", 160, placeholder="...")
            failure = f" and could not be downloaded from {source.url} ({reason})"
    places = ", ".join(map(str, folders)) or f"any data home ({DATA_HOME} is not set)"
    put = f"in {cache_folder()}, or " if source.url else ""
    raise DataNotFoundError(
        f"{source.file} is not in {places}{failure}; get it from {source.origin} and put it {put}"
        f"in a folder given by data_home or the environment variable {DATA_HOME}"
    )


def read_verified(source: Source, path: Path, where: str = "") -> NDArray[np.float64]:
    """Read a source's file; refuse numbers that are not the published ones.

    Arguments:
        source: the table that the file must hold.
        path: the file.
        where: what a message calls the file; default: its path.

    Raises:
        DataError: if the file cannot be read or its digest is not the source's.

    >>> from eve_pyro.data.sources import SOURCES
    >>> read_verified(SOURCES["boston"], Path(__file__).with_name("tables") / "boston.csv").shape
    (506, 14)
    """
    _, values = read_csv(path, source.columns)
    found = digest(values)
    if found != source.digest:
        raise DataError(
            f"{where or path} must hold the published table {source.name!r} "
            f"(SHA-256 {source.digest[:12]}), got other numbers ({found[:12]}); "
            f"replace it by the file from {source.origin}"
        )
    return values


def digest(values: NDArray[np.float64]) -> str:
    """SHA-256 of the values as little-endian float64, row by row.

    >>> digest(np.zeros((1, 1)))[:12]
    'af5570f5a181'
    """
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<f8").tobytes()).hexdigest()


def cache_folder() -> Path:
    """The user's cache folder for downloads, as the operating system has it.

    >>> cache_folder().name
    'eve_pyro'
    """
    import pooch

    return Path(pooch.os_cache("eve_pyro"))


def chosen_data_home(data_home: str | os.PathLike[str] | None) -> Path | None:
    """The folder that the user names, by argument or else by environment; None for none.

    Raises:
        DataError: if there is no such folder.

    Example:
        >>> chosen_data_home(".") == Path()
        True
    """
    name = "data_home" if data_home is not None else DATA_HOME
    given = data_home if data_home is not None else os.environ.get(DATA_HOME)
    if not given:
        return None
    home = Path(given).expanduser()
    if not home.is_dir():
        raise DataError(f"{name} must be an existing folder, got {str(home)!r}")
    return home


def _download(source: Source) -> NDArray[np.float64]:
    import pooch

    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    # Verified before it gets its name, and renamed within one folder: the cache never holds half
    # a file or a wrong one, whatever interrupts this or runs beside it.
    with TemporaryDirectory(dir=cache) as folder:
        part = Path(folder, source.file)
        pooch.HTTPDownloader(timeout=30)(source.url, str(part), None)
        values = read_verified(source, part, where="the download")
        part.replace(cache / source.file)
    return values
