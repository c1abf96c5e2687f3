"""Standardisation by the training rows, and the way back to units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eve_pyro.data.splits import Split
from eve_pyro.data.table import DataError, Table

if TYPE_CHECKING:  # torch takes a second to import, and only tensors need it
    import torch


@dataclass(frozen=True, eq=False)
class Scaler:
    """A shift and a scale per column: ``z = (value - shift) / scale``.

    Arguments:
        shift: shape (columns,) for features, () for a target; in the values' unit.
        scale: the same shape, > 0; in the values' unit.

    A standard deviation goes back to units by ``scale`` alone, a log density by
    ``- log(scale)``.

    >>> scaler = Scaler.fit([[1.0, 5.0], [3.0, 5.0]])
    >>> scaler.shift, scaler.scale
    (array([2., 5.]), array([1., 1.]))
    >>> scaler.transform([[4.0, 6.0]])
    array([[2., 1.]])
    """

    shift: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def fit(cls, values: ArrayLike) -> Scaler:
        """The scaler of mean and standard deviation (divisor n) over the first axis.

        A column that is constant in ``values`` says nothing about its scale, so it gets scale 1:
        it becomes 0, and other rows keep their distance in the original unit.

        Arguments:
            values: training rows, shape (rows, columns) or (rows,), finite, at least one row.

        Raises:
            DataError: if there is no row or a value is not finite.

        >>> float(Scaler.fit([2.0, 4.0, 6.0]).shift)
        4.0
        """
        array = np.asarray(values, dtype=np.float64)
        if array.ndim == 0 or len(array) == 0 or not np.isfinite(array).all():
            raise DataError(
                f"values must be finite with at least 1 row, got an array of shape {array.shape}"
            )
        spread = array.std(axis=0)
        # std == 0 alone is not enough: rounding gives a column of 0.1 a spread of about 1e-17.
        constant = (array.min(axis=0) == array.max(axis=0)) | (spread == 0.0)
        shift = np.where(constant, array[0], array.mean(axis=0))
        return cls(shift, np.where(constant, 1.0, spread))

    def transform(self, values: ArrayLike) -> NDArray[np.float64]:
        """From units to standardised values, shape (..., columns) or any shape for a target.

        >>> Scaler.fit([2.0, 4.0, 6.0]).transform([4.0])
        array([0.])
        """
        return (self._fitting(values) - self.shift) / self.scale

    def inverse(self, values: ArrayLike) -> NDArray[np.float64]:
        """From standardised values back to units, shape as in ``transform``.

        >>> Scaler.fit([2.0, 4.0, 6.0]).inverse([[0.0], [0.0]])
        array([[4.], [4.]])
        """
        return self._fitting(values) * self.scale + self.shift

    def _fitting(self, values: ArrayLike) -> NDArray[np.float64]:
        array = np.asarray(values, dtype=np.float64)
        # Broadcasting would silently stretch one column to many.
        if array.shape[array.ndim - self.shift.ndim :] != self.shift.shape:
            raise DataError(
                f"values must end with {self.shift.shape[0]} columns, got shape {array.shape}"
            )
        return array


class Part(NamedTuple):
    """Tensors of one part of a split: ``x`` of shape (n, features) and ``y`` of shape (n,).

    >>> x, y = Part(torch.zeros(2, 3), torch.ones(2))
    >>> x.shape
    torch.Size([2, 3])
    """

    x: torch.Tensor
    y: torch.Tensor


@dataclass(frozen=True, eq=False)
class Standardized:
    """A table's parts as standardised tensors, with the scalers that made them.

    Arguments:
        train, validation, test: a ``Part`` (x, y) each.
        features: the scaler of ``x``.
        target: the scaler of ``y``; ``target.inverse`` brings predictions back to units.

    >>> table = Table("line", np.arange(20.0)[:, None], np.arange(20.0), ["x"], "y")
    >>> from eve_pyro.data.splits import split
    >>> data = standardize(table, split(table, seed=0))
    >>> x, y = data.validation
    >>> np.round(data.target.inverse(y), 4)
    array([ 5., 16., 19.])
    """

    train: Part
    validation: Part
    test: Part
    features: Scaler
    target: Scaler


def standardize(table: Table, split: Split, *, dtype: torch.dtype | None = None) -> Standardized:
    """Standardise a split table by the statistics of its training rows, as tensors.

    Arguments:
        table: the table.
        split: its parts; the validation and test rows have no part in the statistics.
        dtype: of the tensors; default ``torch.float32``. The arithmetic is in float64.

    Raises:
        DataError: if the split has rows that the table lacks.

    >>> from eve_pyro.data.splits import split
    >>> table = Table("line", np.arange(20.0)[:, None], np.arange(20.0), ["x"], "y")
    >>> data = standardize(table, split(table, seed=0))
    >>> data.train.x.shape, data.train.x.dtype
    (torch.Size([14, 1]), torch.float32)
    >>> bool(data.train.y.mean().abs() < 1e-6)
    True
    """
    import torch

    last = max(int(rows.max()) for rows in (split.train, split.validation, split.test))
    if last >= len(table):
        raise DataError(f"split must fit the {len(table)} rows of {table.name}, got row {last}")
    features, target = Scaler.fit(table.X[split.train]), Scaler.fit(table.y[split.train])

    def part(rows: NDArray[np.intp]) -> Part:
        x = torch.as_tensor(features.transform(table.X[rows]), dtype=dtype or torch.float32)
        y = torch.as_tensor(target.transform(table.y[rows]), dtype=dtype or torch.float32)
        return Part(x, y)

    return Standardized(
        part(split.train), part(split.validation), part(split.test), features, target
    )
