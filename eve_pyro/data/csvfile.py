"""Comma-separated files of numbers, read so that an error names the row and the column."""

import csv
import gzip
import math
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from eve_pyro.data.table import DataError, DataNotFoundError, check_distinct


def read_csv(
    path: Path, columns: Sequence[str] | None = None, *, only: Collection[str] | None = None
) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Read a CSV file (``.gz`` too) of numbers: column names and values (rows, columns).

    Arguments:
        path: UTF-8 text, columns separated by commas. Blank lines are skipped.
        columns: the names to expect. The file may then lack its header. By default the first
            row names the columns.
        only: columns to read, of those that are there; the others may hold anything.

    Raises:
        DataNotFoundError: if there is no such file.
        DataError: if the file cannot be read, or a cell is not a finite number. The rows in
            messages are lines of the file, counted from 1 as editors and spreadsheets do.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "lever.csv")
    ...     _ = path.write_text("arm,force\\n1,10\\n2,20\\n")
    ...     read_csv(path)
    (('arm', 'force'), array([[ 1., 10.], [ 2., 20.]]))
    """
    rows = _read_rows(path)
    if not rows:
        raise DataError(f"{path.name} must hold a header and rows of numbers, got an empty file")
    first = tuple(cell.strip() for cell in rows[0][1])
    if columns is None:
        columns = _check_header(path.name, first)
        rows = rows[1:]
    elif first == tuple(columns):
        rows = rows[1:]
    for line, cells in rows:
        if len(cells) != len(columns):
            raise DataError(
                f"row {line} of {path.name} must have {len(columns)} cells, got {len(cells)}"
            )
    kept = [i for i, name in enumerate(columns) if only is None or name in only]
    columns = tuple(columns[i] for i in kept)
    rows = [(line, [cells[i] for i in kept]) for line, cells in rows]
    values = np.empty((len(rows), len(columns)))
    for index, (_, cells) in enumerate(rows):
        values[index] = [_number(cell) for cell in cells]
    for row, column in np.argwhere(~np.isfinite(values))[:1]:
        line, cells = rows[row]
        got = repr(cells[column]) if cells[column].strip() else "an empty cell"
        raise DataError(
            f"column {columns[column]!r} of {path.name} must hold finite numbers, "
            f"got {got} in row {line}"
        )
    return tuple(columns), values


def _read_rows(path: Path) -> list[tuple[int, list[str]]]:
    """The non-blank rows of a file, each with its line number."""
    if path.is_dir():
        raise DataError(f"{path} must be a CSV file, got a folder")
    try:
        with _open(path) as file:
            reader = csv.reader(file, strict=True)
            return [(reader.line_num, cells) for cells in reader if cells]
    except FileNotFoundError:
        raise DataNotFoundError(f"{path} must be a CSV file, got a path with no file") from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path.name} must be UTF-8 text, got byte {error.object[error.start]:#04x}; "
            "save it again as CSV in UTF-8"
        ) from None
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise DataError(f"{path.name} cannot be read as CSV: {error}") from None


def _open(path: Path) -> TextIO:
    # utf-8-sig drops the byte-order mark that spreadsheets write before the first name.
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _check_header(where: str, names: tuple[str, ...]) -> tuple[str, ...]:
    if all(math.isfinite(_number(name)) for name in names):
        raise DataError(f"the first row of {where} must name the columns, got only numbers")
    if len(names) < 2:
        raise DataError(
            f"the first row of {where} must name at least 1 feature and a target, separated by "
            f"commas, got {names[0]!r}"
        )
    if "" in names:
        raise DataError(
            f"the first row of {where} must name every column, "
            f"got an empty name for column {names.index('') + 1}"
        )
    check_distinct(where, names)
    return names


def _number(text: str) -> float:
    """The number in a cell, NaN if there is none: a NaN and a word are refused alike."""
    try:
        # Python reads 1_000 as a number; in a table an underscore marks a label.
        return math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan
