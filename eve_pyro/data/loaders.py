"""The public loaders: named tables, and CSV files of the user's own."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eve_pyro.data.csvfile import read_csv
from eve_pyro.data.fetch import fetch
from eve_pyro.data.sources import SOURCES, Source
from eve_pyro.data.table import DataError, DataNotFoundError, Table


def available_tables() -> tuple[str, ...]:
    """Names that ``load_table`` knows.

    >>> available_tables()
    ('concrete', 'boston', 'energy', 'yacht', 'airfoil', 'wine', 'bike', 'protein')
    """
    return tuple(SOURCES)


def load_concrete() -> Table:
    """Concrete compressive strength in MPa: 1,030 rows, 8 features, part of the package.

    References:
        I-C. Yeh, Modeling of strength of high-performance concrete using artificial neural
        networks, Cement and Concrete Research 28 (1998). CC BY 4.0.

    >>> load_concrete()
    Table('concrete', 1030 rows, 8 features, target 'compressive_strength' in MPa)
    """
    return load_table("concrete")


def load_boston() -> Table:
    """Boston housing, median value in k$: 506 rows, 13 features, part of the package.

    Mind the ethical concern: the column ``black`` is computed from the share of Black residents
    under the assumption that segregation raises prices. The table is here to compare with
    published results and for nothing else.

    References:
        D. Harrison and D. L. Rubinfeld, Hedonic prices and the demand for clean air, Journal of
        Environmental Economics and Management 5 (1978).

    >>> load_boston()
    Table('boston', 506 rows, 13 features, target 'medv' in k$)
    """
    return load_table("boston")


def load_energy(target: str = "Y1", data_home: str | os.PathLike[str] | None = None) -> Table:
    """Energy efficiency of buildings in kWh/m2: 768 rows, 8 features, downloaded once.

    The rows are 192 designs in 4 orientations each; ``groups`` holds the design, so that a split
    can keep the near-copies of a design together.

    Arguments:
        target: ``"Y1"``, the heating load, or ``"Y2"``, the cooling load. The other one is left
            out of the features.
        data_home: folder that holds ``energy_efficiency.csv`` or ``uci/energy_efficiency.csv``;
            default: the environment variable ``EVE_PYRO_DATA``. If the file is not there it is
            taken from the user's cache, and downloaded into it the first time.

    Raises:
        DataNotFoundError: an ``OSError``, if the file is not here and cannot be downloaded.
        DataError: if ``target`` is another name, or a file holds other numbers than published.

    References:
        A. Tsanas and A. Xifara, Accurate quantitative estimation of energy performance of
        residential buildings using statistical machine learning tools, Energy and Buildings 49
        (2012). CC BY 4.0.

    >>> load_energy(target="Y3")
    Traceback (most recent call last):
    ...
    eve_pyro.data.table.DataError: target of energy must be one of Y1, Y2, got 'Y3'
    """
    return load_table("energy", target, data_home)


def load_table(
    name_or_path: str | os.PathLike[str],
    target: str | None = None,
    data_home: str | os.PathLike[str] | None = None,
) -> Table:
    """Load a named table, or a CSV file of the user's own.

    Arguments:
        name_or_path: one of ``available_tables()``, or the path of a CSV file (``.csv`` or
            ``.csv.gz``, UTF-8, separated by commas) whose first row names the columns and whose
            cells are all finite numbers.
        target: the column to predict; default: the named table's own target, or the last column
            of a CSV file.
        data_home: folder of the tables that are not part of the package; default: the
            environment variable ``EVE_PYRO_DATA``.

    Raises:
        DataNotFoundError: an ``OSError``, if there is no such table or file.
        DataError: if ``target`` is no column that can be one, or the table cannot be used.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "lever.csv")
    ...     _ = path.write_text("arm,force,angle\\n1,10,0\\n2,20,0\\n")
    ...     table = load_table(path, target="force")
    >>> table, table.feature_names
    (Table('lever', 2 rows, 2 features, target 'force'), ('arm', 'angle'))
    """
    source = SOURCES.get(os.fspath(name_or_path))
    if source is not None:
        return _named(source, target, data_home)
    path = Path(name_or_path).expanduser()
    if not path.exists():
        raise DataNotFoundError(
            f"name_or_path must be a table ({', '.join(SOURCES)}) or an existing CSV file, "
            f"got {os.fspath(name_or_path)!r}"
        )
    columns, values = read_csv(path)
    chosen = _choose(path.name, target, columns, default=columns[-1])
    return _table(path.name.removesuffix(".gz").removesuffix(".csv"), columns, values, chosen)


def _named(source: Source, target: str | None, data_home: str | os.PathLike[str] | None) -> Table:
    chosen = _choose(source.name, target, source.targets, default=source.targets[0])
    values = fetch(source, data_home)
    kept = [i for i, c in enumerate(source.columns) if c == chosen or c not in source.targets]
    columns = tuple(source.columns[i] for i in kept)
    return _table(source.name, columns, values[:, kept], chosen, source)


def _choose(where: str, target: str | None, accepted: tuple[str, ...], default: str) -> str:
    chosen = default if target is None else target
    if chosen not in accepted:
        raise DataError(f"target of {where} must be one of {', '.join(accepted)}, got {chosen!r}")
    return chosen


def _table(
    name: str,
    columns: tuple[str, ...],
    values: NDArray[np.float64],
    target: str,
    source: Source | None = None,
) -> Table:
    index = columns.index(target)
    X = np.delete(values, index, axis=1)
    features = columns[:index] + columns[index + 1 :]
    groups = None
    if source and source.varies_in_group:
        same = np.delete(X, features.index(source.varies_in_group), axis=1)
        groups = np.unique(same, axis=0, return_inverse=True)[1].reshape(-1)
    return Table(
        name=name,
        X=X,
        y=values[:, index],
        feature_names=features,
        target_name=target,
        target_unit=source.target_unit if source else "",
        groups=groups,
        description=source.description if source else "",
        licence=source.licence if source else "",
    )
