"""Splits into training, validation and test rows, by row or by group."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eve_pyro._checks import check_int, check_real
from eve_pyro.data.table import DataError, Table, check_groups


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers of the three parts of a table, each sorted, shape (rows of the part,).

    Arguments:
        train: rows to fit on; they alone may shape the scaling.
        validation: rows to choose on (early stopping, settings).
        test: rows to report on, once.

    >>> parts = Split(np.array([0, 2]), np.array([1]), np.array([3]))
    >>> parts.train
    array([0, 2])
    """

    train: NDArray[np.intp]
    validation: NDArray[np.intp]
    test: NDArray[np.intp]


def split(
    table: Table,
    *,
    seed: int,
    fractions: Sequence[float] = (0.70, 0.15, 0.15),
    groups: ArrayLike | None = None,
) -> Split:
    """Split a table's rows at random into training, validation and test.

    Arguments:
        table: the table; only its number of rows matters.
        seed: integer >= 0; the same seed gives the same split.
        fractions: shares of training, validation and test; each > 0, together 1. Default 70, 15
            and 15 percent, rounded to whole rows.
        groups: labels of shape (rows,); rows with one label stay in one part, and the shares
            count groups instead of rows. Pass ``table.groups`` to split by the table's own
            groups; default: every row on its own.

    Returns:
        A ``Split``: the three parts are disjoint, not empty, and together hold every row.

    Raises:
        ValueError: if ``seed`` or ``fractions`` is not as above.
        DataError: if ``groups`` does not fit the table, or a part would be empty.

    >>> table = Table("line", np.arange(20.0)[:, None], np.arange(20.0), ["x"], "y")
    >>> parts = split(table, seed=0)
    >>> len(parts.train), len(parts.validation), len(parts.test)
    (14, 3, 3)
    >>> pairs = split(table, seed=0, groups=np.arange(20) // 2)
    >>> pairs.test
    array([12, 13, 16, 17])
    """
    check_int("seed", seed, 0)
    shares = _check_fractions(fractions)
    if groups is None:
        member, what = np.arange(len(table)), "rows"
    else:
        member = np.unique(check_groups(groups, len(table)), return_inverse=True)[1].reshape(-1)
        what = "groups"
    count = int(member.max()) + 1
    bounds = np.rint(np.cumsum(shares)[:2] * count).astype(int)
    sizes = np.diff([0, *bounds, count])
    for part, share, size in zip(("train", "validation", "test"), shares, sizes, strict=True):
        if size == 0:
            raise DataError(
                f"fractions must give every part a share of the {count} {what} of {table.name}, "
                f"got none for {part} at {share:g}"
            )
    # part_of[g] is the part (0, 1, 2) of group g; a row goes where its group goes.
    part_of = np.random.default_rng(seed).permutation(np.repeat(np.arange(3), sizes))
    train, validation, test = (np.flatnonzero(part_of[member] == part) for part in range(3))
    return Split(train, validation, test)


def _check_fractions(fractions: Sequence[float]) -> list[float]:
    if len(fractions) != 3:
        raise ValueError(f"fractions must be 3 numbers (train, validation, test), got {fractions}")
    shares = [check_real("fractions", f, 0.0, 1.0, exclusive=True) for f in fractions]
    if abs(sum(shares) - 1.0) > 1e-6:
        raise ValueError(f"fractions must sum to 1, got {fractions} with sum {sum(shares):g}")
    return shares
