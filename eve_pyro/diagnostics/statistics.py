"""Statistics of every unit's posterior on every input, streamed over batches of rows."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from eve_pyro._checks import check_choice, check_int, check_real
from eve_pyro.diagnostics.posterior import (
    FIELDS,
    Band,
    LayerPosterior,
    eve_layers,
    fitted_guide,
    layer_statistics,
    log_sigma_bounds,
    run_guide,
)
from eve_pyro.diagnostics.reduction import RunningReduction
from eve_pyro.infer.predictive import _inference, _num_rows, _seeded, _slice

if TYPE_CHECKING:
    import xarray as xr

Values = dict[str, dict[str, Tensor]]
Arrays = dict[str, np.ndarray]


def posterior_statistics(
    model: nn.Module,
    guide: Any,
    *data: Any,
    batch_size: int = 1024,
    band: Band = (-1.0, 1.0),
    at: str = "draw",
    keep: str = "inputs",
    seed: int | None = None,
    max_bytes: int = 2**30,
    model_kwargs: Mapping[str, Any] | None = None,
) -> "xr.Dataset":
    r"""Describe the posterior q(z|h) of every unit of every EVE layer on every row of data.

    .. math:: KL(q(z|h) \,\|\, p(z)), \quad \mu, \quad \sigma, \quad \sigma^2, \quad
              \tfrac{1}{d_z} \textstyle\sum_j \mu_j^2, \quad
              \tfrac{1}{d_z} \sum_j 1[l \le \mu_j \le u]

    These are the local diagnostics of Y. Ruffenach, "The Neuron Is the Distribution". One guide
    pass per batch gives them for all layers, in eval mode and without gradients. Units need no
    loop, and memory beyond the result is that of one batch.

    Variables, with dims (``obs_id``, ``layer``, [``position``,] ``unit``[, ``latent``]):

    - ``kl``: KL to the layer's own prior, summed over latent dims, in nats. Without a closed
      form it is estimated by log q - log p at one draw.
    - ``mean``, ``sigma``, ``variance``: of the posterior, per latent dim.
    - ``energy``: the posterior-mean energy, (1/d_z) sum_j mu_j^2.
    - ``band_occupancy``: share of a unit's latent dims with mu in [l, u];
      ``energy_band_occupancy``: 1 where the energy is in [l, u], else 0.
    - ``saturation``: share of latent dims whose log sigma is at a clamp bound of the encoder;
      NaN for an encoder without ``log_sigma_bounds``.

    Layers of different widths share one array: entries beyond a layer's own ``units``,
    ``latents`` and ``positions`` are NaN, which xarray's reductions skip. These sizes, ``beta``
    and the bounds of log sigma are coordinates along ``layer``, whose labels are site names in
    the order in which the layers run. Dims between rows and features are flattened into
    ``position``, which is absent where no layer has any.

    Arguments:
        model: the module with the EVE layers.
        guide: its ``EVEGuide``, None for a new one, or a guide for the model's other latents.
        data: the model's arguments. Tensors are split by rows (their first dim), everything
            else is passed on. Targets may be left out if the model allows it.
        batch_size: rows per guide pass. Default 1024.
        band: (l, u), the target band. Default (-1, 1).
        at: what a layer's parents are. ``"draw"`` (default): one draw from their posteriors, so
            that a layer is seen as it works, conditional on noisy inputs. ``"mean"``: their
            posterior means, a deterministic pass for networks without other latents.
        keep: ``"inputs"`` (default) for the above; ``"units"`` for averages over inputs alone
            (see :func:`unit_statistics`), whose memory does not grow with the data.
        seed: of the draws; the global random number generator if None (default). Draws depend
            on ``batch_size`` too, except those of the first layer's parents: there are none.
        max_bytes: largest result that is made under ``keep="inputs"``. Default 1 GiB.
        model_kwargs: the model's keyword arguments. Default none.

    Raises:
        ValueError: for a model without EVE layers or whose layers did not run, a guide with an
            AutoGuide that has no parameters yet, a band with l > u, data without rows, a layer
            whose first dim is not the rows, sequence lengths that differ between batches,
            unknown choices, sizes below 1, and a result larger than ``max_bytes``.

    Example:
        >>> from eve_pyro import EVEGuide, EVEModule
        >>> net = nn.Sequential(EVEModule(3, 4, latent_dim=2), EVEModule(4, 6))
        >>> stats = posterior_statistics(net, EVEGuide(net), torch.randn(10, 3), seed=0)
        >>> dict(stats["mean"].sizes)
        {'obs_id': 10, 'layer': 2, 'unit': 6, 'latent': 2}
        >>> stats["units"].values.tolist()
        [4, 6]
        >>> int(stats["kl"].sel(layer="0").notnull().sum())  # 10 inputs, 4 units
        40
    """
    guide = fitted_guide(model, guide)
    layers = eve_layers(model)
    check_int("batch_size", batch_size)
    check_int("max_bytes", max_bytes)
    check_choice("at", at, ("draw", "mean"))
    check_choice("keep", keep, ("inputs", "units"))
    lower, upper = _check_band(band)
    rows = _num_rows(data)
    step = min(batch_size, rows)
    running = RunningReduction()
    layout: Layout | None = None
    arrays: Arrays = {}
    with _inference(model, guide), _seeded(seed, data):
        for start in range(0, rows, step):
            size = min(step, rows - start)
            batch = _slice(data, start, start + size)
            posteriors = run_guide(guide, layers, at, batch, dict(model_kwargs or {}))
            values = {n: layer_statistics(p, size, band) for n, p in posteriors.items()}
            if layout is None:
                layout = Layout(posteriors, values)
                if keep == "inputs":
                    layout.check_size(rows, max_bytes)
                arrays = layout.allocate(rows if keep == "inputs" else step)
            first = start if keep == "inputs" else 0
            layout.fill(arrays, values, slice(first, first + size))
            if keep == "units":
                running.update({name: array[:size] for name, array in arrays.items()})
    assert layout is not None
    attrs = {"at": at, "band_lower": lower, "band_upper": upper, "inputs": rows}
    if keep == "units":
        return running.result(layout.coords(), attrs)
    return layout.dataset(arrays, attrs)


def _check_band(band: Band) -> Band:
    lower, upper = (check_real("band", bound) for bound in band)
    if lower > upper:
        raise ValueError(f"band must be (l, u) with l <= u, got {band!r}")
    return lower, upper


class Layout:
    """Where the layers' statistics lie in arrays (rows, layer, position, unit[, latent]).

    Arguments:
        posteriors, values: what the first batch gave, by layer.
    """

    def __init__(self, posteriors: dict[str, LayerPosterior], values: Values) -> None:
        if not values:
            raise ValueError("model must run its EVE layers when called, got a pass without any")
        self.layers = [posterior.layer for posterior in posteriors.values()]
        self.has_positions = any(len(p.q.batch_shape) > 3 for p in posteriors.values())
        self.sizes = _sizes(values)
        self.largest = tuple(map(max, zip(*self.sizes.values(), strict=True)))
        kinds = [v["mean"].dtype for v in values.values()]
        self.dtype = np.float64 if torch.float64 in kinds else np.float32

    def shape(self, name: str, rows: int) -> tuple[int, ...]:
        inner = self.largest if FIELDS[name].per_latent else self.largest[:2]
        return (rows, len(self.sizes), *inner)

    def check_size(self, rows: int, max_bytes: int) -> None:
        """Raise an error if statistics of so many rows would be too large."""
        numbers = sum(math.prod(self.shape(name, rows)) for name in FIELDS)
        size = numbers * np.dtype(self.dtype).itemsize
        if size > max_bytes:
            raise ValueError(
                f"max_bytes must be at least {size} ({size / 2**30:.3g} GiB) to keep the "
                f"statistics of {rows} inputs, got {max_bytes}; keep='units' needs no more than "
                "one batch at a time"
            )

    def allocate(self, rows: int) -> Arrays:
        return {name: np.full(self.shape(name, rows), np.nan, self.dtype) for name in FIELDS}

    def fill(self, arrays: Arrays, values: Values, rows: slice) -> None:
        if _sizes(values) != self.sizes:
            raise ValueError(
                "data must give the same layers with the same (positions, units, latents) in "
                f"every batch, got {self.sizes} and {_sizes(values)}"
            )
        for i, statistics in enumerate(values.values()):
            for name, value in statistics.items():
                own = tuple(slice(size) for size in value.shape)
                arrays[name][rows, i][own] = value.cpu().numpy()

    def coords(self) -> dict[str, Any]:
        positions, units, latents = zip(*self.sizes.values(), strict=True)
        bounds = [log_sigma_bounds(layer) or (np.nan, np.nan) for layer in self.layers]
        coords: dict[str, Any] = {
            "layer": list(self.sizes),
            "unit": np.arange(self.largest[1]),
            "units": ("layer", list(units)),
            "latents": ("layer", list(latents)),
            "beta": ("layer", [float(layer.beta) for layer in self.layers]),
            "log_sigma_lower": ("layer", [lower for lower, _ in bounds]),
            "log_sigma_upper": ("layer", [upper for _, upper in bounds]),
        }
        if self.has_positions:
            coords["positions"] = ("layer", list(positions))
        return coords

    def dataset(self, arrays: Arrays, attrs: dict[str, Any]) -> "xr.Dataset":
        import xarray as xr

        variables = {}
        for name, array in arrays.items():
            field = FIELDS[name]
            dims = ["obs_id", "layer", "position", "unit", "latent"][: array.ndim]
            if not self.has_positions:
                dims.remove("position")
                array = array[:, :, 0]
            variables[name] = (dims, array, {"long_name": field.long_name, "units": field.units})
        coords = {**self.coords(), "obs_id": np.arange(attrs["inputs"])}
        for dim, size in zip(("position", "latent"), self.largest[::2], strict=True):
            if dim == "latent" or self.has_positions:
                coords[dim] = np.arange(size)
        return xr.Dataset(variables, coords, attrs)


def _sizes(values: Values) -> dict[str, tuple[int, ...]]:
    """(positions, units, latents) of every layer."""
    return {name: tuple(v["mean"].shape[1:]) for name, v in values.items()}
