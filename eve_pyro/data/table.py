"""The table that every study reads, checked once, where it is made."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class DataError(ValueError):
    """Data that cannot be used; the message says in one line what is wrong and where.

    >>> issubclass(DataError, ValueError)
    True
    """


class DataNotFoundError(DataError, FileNotFoundError):
    """A table that is neither on this machine nor could be fetched; the message says what to do.

    >>> issubclass(DataNotFoundError, OSError)
    True
    """


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """A regression table: one row per case, numeric features and one numeric target.

    Arguments:
        name: what the table is called in reports.
        X: features, shape (rows, columns), at least (2, 1), finite; stored as float64.
        y: target, shape (rows,), finite and not constant; stored as float64.
        feature_names: one distinct name per column of ``X``.
        target_name: name of the target, distinct from the features' names.
        target_unit: unit of ``y``; empty if it has none or it is not known.
        groups: shape (rows,), equal for rows that belong together and that a split may have to
            keep together; ``None`` if the rows stand alone.
        description: what the numbers are, where they come from and what to beware of.
        licence: terms under which the data may be used.

    Raises:
        DataError: if an array does not meet the above. Rows are counted from 1.

    >>> table = Table("lever", [[1.0], [2.0], [4.0]], [10.0, 20.0, 40.0], ["arm"], "force", "N")
    >>> table
    Table('lever', 3 rows, 1 feature, target 'force' in N)
    >>> table.X.shape, table.y.shape
    ((3, 1), (3,))
    >>> Table("lever", [[1.0], [float("nan")]], [10.0, 20.0], ["arm"], "force")
    Traceback (most recent call last):
    ...
    eve_pyro.data.table.DataError: column 'arm' of lever must be finite, got nan in row 2
    """

    name: str
    X: NDArray[np.float64]
    y: NDArray[np.float64]
    feature_names: tuple[str, ...]
    target_name: str
    target_unit: str = ""
    groups: NDArray[np.generic] | None = None
    description: str = ""
    licence: str = ""

    def __post_init__(self) -> None:
        X, y = _numbers("X", self.X, 2), _numbers("y", self.y, 1)
        names = tuple(self.feature_names)
        rows, columns = X.shape
        if len(names) != columns:
            raise DataError(f"feature_names must name {columns} columns, got {len(names)} names")
        if len(y) != rows:
            raise DataError(f"y must have one value per row of X ({rows}), got {len(y)}")
        check_distinct(self.name, (*names, self.target_name))
        if columns < 1:
            raise DataError(f"{self.name} must have at least 1 feature besides the target, got 0")
        if rows < 2:
            raise DataError(f"{self.name} must have at least 2 rows, got {rows}")
        for name, column in zip((*names, self.target_name), (*X.T, y), strict=True):
            bad = np.flatnonzero(~np.isfinite(column))
            if bad.size:
                raise DataError(
                    f"column {name!r} of {self.name} must be finite, "
                    f"got {column[bad[0]]} in row {bad[0] + 1}"
                )
        if y.min() == y.max():
            raise DataError(f"target {self.target_name!r} must vary, got {y[0]:g} in every row")
        for field, value in (("X", X), ("y", y), ("feature_names", names)):
            object.__setattr__(self, field, value)
        if self.groups is not None:
            object.__setattr__(self, "groups", check_groups(self.groups, rows))

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        features = f"{self.X.shape[1]} feature{'s' if self.X.shape[1] > 1 else ''}"
        unit = f" in {self.target_unit}" if self.target_unit else ""
        return (
            f"Table({self.name!r}, {len(self)} rows, {features}, target {self.target_name!r}{unit})"
        )


def check_distinct(where: str, names: Sequence[str]) -> None:
    """Raise a ``DataError`` if a column name occurs twice.

    >>> check_distinct("lever.csv", ["arm", "arm", "force"])
    Traceback (most recent call last):
    ...
    eve_pyro.data.table.DataError: column names of lever.csv must differ, got 'arm' 2 times
    """
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise DataError(f"column names of {where} must differ, got {name!r} {times} times")


def check_groups(groups: object, rows: int) -> NDArray[np.generic]:
    """Return ``groups`` as an array of shape (rows,), or raise a ``DataError``.

    >>> check_groups([0, 0, 1], 3)
    array([0, 0, 1])
    """
    labels = np.asarray(groups)
    if labels.shape != (rows,):
        raise DataError(f"groups must have one label per row, shape ({rows},), got {labels.shape}")
    return labels


def _numbers(name: str, values: object, dimensions: int) -> NDArray[np.float64]:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} must be an array of numbers: {error}") from None
    if array.ndim != dimensions:
        raise DataError(f"{name} must have {dimensions} dimension(s), got shape {array.shape}")
    return array
