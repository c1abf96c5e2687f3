"""Tables of units and layers, with flags for those that do not take part."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eve_pyro._checks import check_real
from eve_pyro.diagnostics.reduction import unit_statistics

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


@dataclass(frozen=True)
class Thresholds:
    """Where flags are raised.

    Arguments:
        kl: nats per unit up to which a unit is taken to carry nothing. Default 0.01.
        activity: variance of the posterior mean over inputs above which a unit is active.
            Default 0.01, as in Burda, Grosse and Salakhutdinov, "Importance Weighted
            Autoencoders", 2016.
        collapsed: share of units without KL from which a layer is collapsed. Default 0.95.
        saturated: share of log sigmas at a clamp bound above which a unit or layer is saturated.
            Default 0.5.

    Raises:
        ValueError: for negative thresholds, or shares above 1.

    Example:
        >>> Thresholds(collapsed=1.5)
        Traceback (most recent call last):
        ...
        ValueError: collapsed must be a finite number in [0, 1], got 1.5
    """

    kl: float = 0.01
    activity: float = 0.01
    collapsed: float = 0.95
    saturated: float = 0.5

    def __post_init__(self) -> None:
        check_real("kl", self.kl, 0.0)
        check_real("activity", self.activity, 0.0)
        check_real("collapsed", self.collapsed, 0.0, 1.0)
        check_real("saturated", self.saturated, 0.0, 1.0)


def unit_table(stats: "xr.Dataset", thresholds: Thresholds | None = None) -> "pd.DataFrame":
    """Tabulate statistics per unit, with one row for each (layer, unit).

    Columns: the variables of :func:`unit_statistics`, and the flags

    - ``active``: activity above its threshold. In statistics at draws, units behind another
      layer also vary with its noise: take ``at="mean"`` to see what follows the input.
    - ``dead``: neither activity nor KL above its threshold. The posterior is the prior whatever
      the input. (With KL but no activity, sigma may still carry the input.)
    - ``saturated``: log sigma at a clamp bound for most inputs; False where bounds are unknown.

    Arguments:
        stats: of :func:`posterior_statistics`, of inputs or units.
        thresholds: of the flags. Default ``Thresholds()``.

    Raises:
        ValueError: if stats is no such result.

    Example:
        >>> from eve_pyro import EVEModule
        >>> from eve_pyro.diagnostics import posterior_statistics
        >>> net = EVEModule(3, 4, name="hidden")
        >>> net.encoder.loc.weight.data[0] = 0.0
        >>> net.encoder.loc.bias.data[0] = 0.0
        >>> net.encoder.log_scale.bias.data[0] = 0.0
        >>> net.encoder.log_scale.weight.data[0] = 0.0
        >>> unit_table(posterior_statistics(net, None, torch.randn(50, 3)))[["active", "dead"]]
                     active   dead
        layer  unit
        hidden 0      False   True
               1       True  False
               2       True  False
               3       True  False
    """
    units = _flagged(unit_statistics(stats), thresholds or Thresholds())
    # Coordinates of a layer belong to its own table.
    frame = units.reset_coords(drop=True).to_dataframe(dim_order=["layer", "unit"])
    return frame[frame["kl"].notna()]


def layer_table(stats: "xr.Dataset", thresholds: Thresholds | None = None) -> "pd.DataFrame":
    r"""Tabulate statistics per layer, in the order in which the layers run.

    Columns:

    - ``units``, ``latents``, ``beta``: sizes, and the weight of the KL.
    - ``kl``: nats per unit; ``kl_total``: nats per input, summed over units; ``kl_effective``:
      beta times that, what the layer adds to the loss of one input (and position).
    - ``mean``, ``sigma``, ``variance``, ``energy``, ``band_occupancy``,
      ``energy_band_occupancy``, ``saturation``, ``activity``: averages over units of
      :func:`unit_statistics`; ``sigma_min`` and ``sigma_max``: over all.
    - ``active_fraction``, ``dead_fraction``: shares of units, see :func:`unit_table`, also for
      what ``active`` means behind another layer.
    - ``collapsed``: nearly all units have no KL. The layer passes on noise of the prior.
    - ``saturated``: most log sigmas, over inputs and units, are at a clamp bound.

    Arguments:
        stats: of :func:`posterior_statistics`, of inputs or units.
        thresholds: of the flags. Default ``Thresholds()``.

    Raises:
        ValueError: if stats is no such result.

    Example:
        >>> from eve_pyro import EVEModule
        >>> from eve_pyro.diagnostics import posterior_statistics
        >>> net = nn.Sequential(EVEModule(3, 4), EVEModule(4, 6))
        >>> table = layer_table(posterior_statistics(net, None, torch.randn(50, 3)))
        >>> table[["units", "collapsed", "saturated"]]
               units  collapsed  saturated
        layer
        0          4      False      False
        1          6      False      False
    """
    thresholds = thresholds or Thresholds()
    units = _flagged(unit_statistics(stats), thresholds)
    exists, known = units["kl"].notnull(), units["activity"].notnull()
    empty = (units["kl"] <= thresholds.kl).where(exists).mean("unit")
    layers = units.drop_vars(["active", "dead", "saturated"]).mean("unit")
    total = units["kl"].sum("unit")
    layers = layers.assign(
        kl_total=total,
        kl_effective=total * units["beta"],
        sigma_min=units["sigma_min"].min("unit"),
        sigma_max=units["sigma_max"].max("unit"),
        active_fraction=units["active"].where(known).mean("unit"),
        dead_fraction=units["dead"].where(known).mean("unit"),
        collapsed=empty >= thresholds.collapsed,
        saturated=layers["saturation"] > thresholds.saturated,
    )
    return layers.reset_coords(["units", "latents", "beta"]).to_dataframe()[list(LAYER_COLUMNS)]


LAYER_COLUMNS = (
    "units",
    "latents",
    "beta",
    "kl",
    "kl_total",
    "kl_effective",
    "mean",
    "sigma",
    "sigma_min",
    "sigma_max",
    "variance",
    "energy",
    "band_occupancy",
    "energy_band_occupancy",
    "saturation",
    "activity",
    "active_fraction",
    "dead_fraction",
    "collapsed",
    "saturated",
)


def _flagged(units: "xr.Dataset", thresholds: Thresholds) -> "xr.Dataset":
    active = units["activity"] > thresholds.activity
    still = units["activity"] <= thresholds.activity  # not ~active: activity may be NaN
    return units.assign(
        active=active,
        dead=still & (units["kl"] <= thresholds.kl),
        saturated=units["saturation"] > thresholds.saturated,
    )
