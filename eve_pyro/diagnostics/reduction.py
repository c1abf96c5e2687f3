"""Statistics of units: averages over inputs, taken batch by batch."""

from typing import TYPE_CHECKING, Any

import numpy as np

from eve_pyro.diagnostics.posterior import FIELDS

if TYPE_CHECKING:
    import xarray as xr

_DIMS = ("layer", "position", "unit", "latent")


def unit_statistics(stats: "xr.Dataset") -> "xr.Dataset":
    r"""Average posterior statistics over inputs, positions and latent dims.

    What ``posterior_statistics(..., keep="units")`` gives without keeping the inputs. Variables,
    with dims (``layer``, ``unit``) and NaN beyond a layer's width: the averages of all those of
    :func:`posterior_statistics`, and

    - ``sigma_min``, ``sigma_max``: over inputs, positions and latent dims.
    - ``activity``: variance of the posterior mean over inputs (and positions), the largest of
      the latent dims,

      .. math:: A = \max_j \mathrm{Var}_x(\mu_j(x))

      (Burda, Grosse and Salakhutdinov, "Importance Weighted Autoencoders", 2016). NaN for a
      single input. At ``at="draw"`` the parents' noise counts as variation as well.

    Sums are taken in double precision.

    Arguments:
        stats: of :func:`posterior_statistics`; those of units are returned as they are.

    Raises:
        ValueError: if stats is neither.

    Example:
        >>> from eve_pyro import EVEModule
        >>> from eve_pyro.diagnostics import posterior_statistics
        >>> net = EVEModule(3, 4)
        >>> units = unit_statistics(posterior_statistics(net, None, torch.randn(10, 3)))
        >>> dict(units.sizes), units["kl"].dims
        ({'layer': 1, 'unit': 4}, ('layer', 'unit'))
    """
    if "activity" in stats:
        return stats
    missing = [name for name in FIELDS if name not in stats]
    if missing:
        raise ValueError(f"stats must be a result of posterior_statistics, got none of {missing}")
    running = RunningReduction()
    arrays = {}
    for name in FIELDS:
        value = stats[name] if "position" in stats.dims else stats[name].expand_dims("position")
        arrays[name] = value.transpose("obs_id", *(d for d in _DIMS if d in value.dims)).values
    running.update(arrays)
    coords = {n: c for n, c in stats.coords.items() if set(c.dims) <= {"layer", "unit"}}
    return running.result(coords, stats.attrs)


class RunningReduction:
    """Means, variances and extremes over rows, merged batch by batch.

    Merging variances: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
    computing sample variances", 1979.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.mean: dict[str, np.ndarray] = {}
        # Of the posterior mean, and of sigma.
        self.variance = self.low = self.high = np.empty(0)

    def update(self, arrays: dict[str, np.ndarray]) -> None:
        """Add a batch of arrays (rows, layer, position, unit[, latent])."""
        # A padded entry is NaN in every row, so plain reductions over rows keep it NaN.
        mean = {name: array.mean(0, dtype=np.float64) for name, array in arrays.items()}
        variance = arrays["mean"].var(0, dtype=np.float64)
        low, high = arrays["sigma"].min(0), arrays["sigma"].max(0)
        rows = len(arrays["mean"])
        if self.rows:
            weight = rows / (self.rows + rows)
            change = {name: mean[name] - self.mean[name] for name in mean}
            variance = (1 - weight) * (self.variance + weight * change["mean"] ** 2) + (
                weight * variance
            )
            mean = {name: self.mean[name] + weight * change[name] for name in mean}
            low, high = np.minimum(low, self.low), np.maximum(high, self.high)
        self.rows += rows
        self.mean, self.variance, self.low, self.high = mean, variance, low, high

    def result(self, coords: dict[Any, Any], attrs: dict[Any, Any]) -> "xr.Dataset":
        import xarray as xr

        def array(values: np.ndarray) -> xr.DataArray:
            return xr.DataArray(values, dims=_DIMS[: values.ndim])

        mean = {name: array(values) for name, values in self.mean.items()}
        inner = ("position", "latent")
        units = xr.Dataset(mean).mean(inner)
        for name, field in FIELDS.items():
            units[name].attrs = {"long_name": field.long_name, "units": field.units}
        within, between = array(self.variance).mean("position"), mean["mean"].var("position")
        positions = mean["mean"].notnull().any(("unit", "latent")).sum("position")
        return (
            units.assign(
                sigma_min=array(self.low).min(inner),
                sigma_max=array(self.high).max(inner),
                activity=(within + between).max("latent").where(self.rows * positions > 1),
            )
            .assign_coords(coords)
            .assign_attrs(attrs)
        )
