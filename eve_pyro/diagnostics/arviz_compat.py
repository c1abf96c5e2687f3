"""The one place where ArviZ's two lines meet: 0.2x with InferenceData, 1.x with DataTree.

Needs numpy and ArviZ, no torch: groups of arrays made elsewhere become one object here, and are
saved, loaded and read back alike in both lines.
"""

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    import xarray as xr

# An arviz.InferenceData in the 0.2x line, an xarray.DataTree in 1.x.
Converted: TypeAlias = Any
Names: TypeAlias = Mapping[str, Sequence[str | None]]

# Groups of ArviZ's schema by the dims that lead their arrays.
_DRAWS = (
    "posterior",
    "posterior_predictive",
    "predictions",
    "log_likelihood",
    "sample_stats",
    "prior",
    "prior_predictive",
    "sample_stats_prior",
)
_DATA = ("observed_data", "constant_data", "predictions_constant_data")


def from_groups(
    groups: Mapping[str, Mapping[str, ArrayLike]],
    coords: Mapping[str, ArrayLike] | None = None,
    dims: Names | None = None,
    *,
    pred_coords: Mapping[str, ArrayLike] | None = None,
    pred_dims: Names | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> Converted:
    """Make one ArviZ object of groups of arrays, equal in names and dims in both lines.

    Arguments:
        groups: arrays by variable by group of ArviZ's schema. Groups without variables are left
            out.
        coords: labels along dims, by dim. Default: 0, 1, 2, ...
        dims: names of a variable's dims after (chain, draw), by variable. Those not given, or
            None, are called ``{variable}_dim_{i}``.
        pred_coords, pred_dims: the same for ``predictions`` and ``predictions_constant_data``,
            whose rows are others. Default: ``coords`` and ``dims``.
        attrs: attributes, numbers or strings, of the whole and of each group. The version of
            ArviZ is added.

    Shapes:
        Arrays of draws: (chain, draw, *); the arrays of one group share both. Arrays of
        ``observed_data``, ``constant_data`` and ``predictions_constant_data``: (*).

    Returns an ``arviz.InferenceData`` (ArviZ 0.2x) or an ``xarray.DataTree`` (1.x).

    Raises:
        ValueError: for a group that is not in the schema, a name with a slash (netCDF takes it
            for a path), arrays without the (chain, draw) of their group, and more dims named
            than an array has.

    Example:
        >>> z = np.zeros((1, 100, 3))
        >>> idata = from_groups({"posterior": {"z": z}}, dims={"z": ["unit"]})
        >>> dict(get_group(idata, "posterior").sizes)
        {'chain': 1, 'draw': 100, 'unit': 3}
    """
    import arviz as az
    import xarray as xr

    # Datasets are built here, not by the two from_dict: 0.2x labels new rows as the observed
    # ones, and the lines number unnamed dims differently.
    known = (coords or {}, dims or {})
    new = (
        known[0] if pred_coords is None else pred_coords,
        known[1] if pred_dims is None else pred_dims,
    )
    datasets = {
        group: _dataset(group, variables, *(new if group.startswith("predictions") else known))
        for group, variables in groups.items()
        if variables
    }
    notes = {**(attrs or {}), "arviz_version": az.__version__}
    for dataset in datasets.values():
        dataset.attrs = dict(notes)
    if is_datatree_line():
        return xr.DataTree.from_dict({"/": xr.Dataset(attrs=notes), **datasets})
    members: dict[str, Any] = {"attrs": notes, **datasets}
    return az.InferenceData(**members)


def group_names(idata: Converted) -> list[str]:
    """Names of the groups of an ArviZ object.

    Example:
        >>> group_names(from_groups({"posterior": {"z": np.zeros((1, 100))}}))
        ['posterior']
    """
    return list(idata.children) if is_datatree_line() else list(idata.groups())


def get_group(idata: Converted, name: str) -> "xr.Dataset":
    """One group of an ArviZ object as an ``xarray.Dataset``.

    Arguments:
        idata: what :func:`from_groups` or ArviZ itself made.
        name: of the group.

    Raises:
        KeyError: if there is no such group.

    Example:
        >>> idata = from_groups({"observed_data": {"y": np.arange(3.0)}})
        >>> get_group(idata, "observed_data")["y"].values
        array([0., 1., 2.])
    """
    if name not in group_names(idata):
        raise KeyError(f"no group {name!r}; there are {', '.join(group_names(idata))}")
    return idata[name].to_dataset() if is_datatree_line() else idata[name]


def save_netcdf(idata: Converted, path: str | os.PathLike[str]) -> Path:
    """Write an ArviZ object to a netCDF file, over one that is there.

    Either line of ArviZ reads what the other has written.

    Arguments:
        idata: what :func:`from_groups` or ArviZ itself made.
        path: of the file; its folder must exist.

    Returns the path.

    Raises:
        ImportError: without h5netcdf and h5py.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> idata = from_groups({"posterior": {"z": np.zeros((1, 100))}})
        >>> with TemporaryDirectory() as folder:
        ...     file = save_netcdf(idata, f"{folder}/draws.nc")
        ...     group_names(load_netcdf(file))
        ['posterior']
    """
    _check_netcdf()
    idata.to_netcdf(str(path), engine="h5netcdf")
    return Path(path)


def load_netcdf(path: str | os.PathLike[str]) -> Converted:
    """Read a netCDF file into memory, as an object of the installed line of ArviZ.

    Arguments:
        path: of a file written by :func:`save_netcdf` or by ArviZ.

    Returns an ``arviz.InferenceData`` (ArviZ 0.2x) or an ``xarray.DataTree`` (1.x). The file is
    closed again.

    Raises:
        ImportError: without h5netcdf and h5py.
        FileNotFoundError: if there is no such file.

    Example: see :func:`save_netcdf`.
    """
    _check_netcdf()
    import arviz as az

    idata = az.from_netcdf(str(path), engine="h5netcdf")
    idata.load()
    idata.close()
    return idata


def is_datatree_line() -> bool:
    """Whether the installed ArviZ works with DataTree (1.x), not with InferenceData (0.2x).

    Example:
        >>> isinstance(is_datatree_line(), bool)
        True
    """
    import arviz as az

    return int(az.__version__.split(".")[0]) >= 1


def _dataset(
    group: str, variables: Mapping[str, ArrayLike], coords: Mapping[str, ArrayLike], dims: Names
) -> "xr.Dataset":
    import xarray as xr

    if group not in (*_DRAWS, *_DATA):
        known = ", ".join(map(repr, (*_DRAWS, *_DATA)))
        raise ValueError(f"groups must be among {known}, got {group!r}")
    leading = ["chain", "draw"] if group in _DRAWS else []
    arrays = {name: np.asarray(values) for name, values in variables.items()}
    heads = {array.shape[: len(leading)] for array in arrays.values()}
    if len(heads) > 1 or len(heads.pop()) < len(leading):
        shapes = {name: array.shape for name, array in arrays.items()}
        raise ValueError(
            f"arrays of group {group!r} must have shape (chain, draw, ...) with chain and draw in "
            f"common, got {shapes}"
        )
    named: dict[str, tuple[list[str], np.ndarray]] = {}
    sizes: dict[str, int] = {}
    for name, array in arrays.items():
        inner = _inner_dims(group, name, array.ndim - len(leading), dims)
        named[name] = ([*leading, *inner], array)
        sizes.update(zip(named[name][0], array.shape, strict=True))
    labels = {dim: coords.get(dim, np.arange(size)) for dim, size in sizes.items()}
    return xr.Dataset(named, labels)


def _inner_dims(group: str, name: str, count: int, dims: Names) -> list[str]:
    if "/" in name:
        raise ValueError(f"names must hold no slash, got {name!r} in group {group!r}")
    given = list(dims.get(name, ()))
    if group == "log_likelihood":
        given = given[:count]  # a datum may be a vector: its dims have been summed out
    if len(given) > count:
        raise ValueError(
            f"dims of {name!r} in group {group!r} must name {count} at most, got {given}"
        )
    given += [None] * (count - len(given))
    return [dim or f"{name}_dim_{i}" for i, dim in enumerate(given)]


def _check_netcdf() -> None:
    missing = [package for package in ("h5netcdf", "h5py") if find_spec(package) is None]
    if missing:
        raise ImportError(
            f"netCDF files need {' and '.join(missing)}: pip install 'h5netcdf[h5py]'"
        )
