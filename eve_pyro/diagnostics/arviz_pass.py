"""One run of a guide on a probe batch, and what ArviZ's groups take from it."""

from collections import defaultdict
from typing import Any

import torch
from pyro.distributions import Unit
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Independent

from eve_pyro.diagnostics.posterior import _base, _kl
from eve_pyro.nn.dropout import DropoutMask
from eve_pyro.nn.module import is_eve_site

Node = dict[str, Any]
Dims = dict[str, list[str | None]]

# "mean_energy" is the posterior-mean energy; ArviZ takes "energy" for a Hamiltonian's.
STATISTICS = ("kl", "sigma", "mean_energy")


class Pass:
    """Sites of one run whose first rows are those of the probe batch.

    Arguments:
        trace: of the run; EVE sites carry their posterior and prior, as an ``EVEGuide``'s do.
        rows: number of rows of the probe batch.
        all_rows: number of all rows of the run.
        site: name of the target site, the last that is not observed if None.

    Raises:
        ValueError: for a target that is missing or does not have the rows first, and a model
            without latents.

    Example:
        >>> from eve_pyro import EVEGuide, EVEModule
        >>> net = nn.Sequential(EVEModule(3, 4, name="hidden"), nn.Linear(4, 1))
        >>> def model(x):
        ...     return pyro.sample("y", dist.Normal(net(x).squeeze(-1), 1.0).to_event(1))
        >>> guide = EVEGuide(model)
        >>> _ = guide(torch.randn(5, 3))
        >>> run = Pass(guide.trace, 5, 5)
        >>> run.layers, run.dims()["hidden"], run.target
        (['hidden'], ['obs_id', 'unit', 'latent'], 'y')
    """

    def __init__(self, trace: Trace, rows: int, all_rows: int, site: str | None = None) -> None:
        latents = {name: node for name, node in sites(trace).items() if not node["is_observed"]}
        if site is None:
            _check_targets_left_out(trace, latents)
        target = site or next(reversed(latents), "")
        if target not in latents:
            raise ValueError(
                f"site must be one of {list(latents)}, which are not observed when the model is "
                f"called without targets, got {target!r}"
            )
        self.rows, self.all_rows = rows, all_rows
        self.target = target
        self.target_node = latents.pop(target)
        if self.target_node["value"].shape[:1] != (all_rows,):
            raise ValueError(
                f"the first dim of site {target!r} must be the {all_rows} rows of the data, got "
                f"shape {tuple(self.target_node['value'].shape)}"
            )
        if not latents:
            raise ValueError(
                "model must have an EVE layer or another latent variable, got one without: there "
                "is nothing to draw from; score it with eve_pyro.metrics"
            )
        self.latents = latents
        self.layers = [name for name, node in latents.items() if _is_layer(node)]
        depth = len(self.target_node["fn"].batch_shape)
        plates = self.target_node["cond_indep_stack"]
        self._data_plate = next((f.name for f in plates if f.dim == -depth), None)

    def dims(self) -> Dims:
        """Names of dims by variable; a dim that varies in size has its site's name ahead."""
        nodes = {**self.latents, self.target: self.target_node}
        plain = {name: self._plain_dims(node) for name, node in nodes.items()}
        sizes: dict[str | None, set[int]] = defaultdict(set)
        for name, names in plain.items():
            for dim, size in zip(names, nodes[name]["value"].shape, strict=False):
                sizes[dim].add(size)
        dims: Dims = {
            name: [f"{name}.{dim}" if dim and len(sizes[dim]) > 1 else dim for dim in names]
            for name, names in plain.items()
        }
        for field in STATISTICS:
            dims.update({f"{layer}.{field}": [dims[layer][-2]] for layer in self.layers})
            dims[field] = ["layer"]
        return dims

    def posterior(self, names: list[str]) -> dict[str, Tensor]:
        """The latents of these names, on the rows of the probe batch."""
        return {n: self._probed(self.latents[n], self.latents[n]["value"]) for n in names}

    def predicted(self) -> tuple[Tensor, Tensor]:
        """Draws of the target for the rows of the probe batch, and for those behind them."""
        value = self.target_node["value"]
        return value[: self.rows], value[self.rows :]

    def log_likelihood(self, observed: Tensor) -> Tensor:
        """Log probability of each datum, not scaled by any plate.

        Raises:
            ValueError: for targets of another shape than the draws.
        """
        fn, drawn = self.target_node["fn"], self.target_node["value"]
        expected = (self.rows, *drawn.shape[1:])
        if observed.shape != expected:
            raise ValueError(
                f"observed must have the shape {expected} of site {self.target!r}, got "
                f"{tuple(observed.shape)}"
            )
        if isinstance(fn, Independent) and not fn.batch_shape:
            # A model without plates declares its rows as an event; they are data all the same.
            fn = fn.base_dist.to_event(fn.reinterpreted_batch_ndims - 1)
        value = torch.cat((observed.to(drawn), drawn[self.rows :]))
        return fn.log_prob(value)[: self.rows]

    def statistics(self) -> dict[str, Tensor]:
        """Averages over the rows: per unit as ``{site}.{name}``, and ``name`` per layer."""
        units: dict[str, Tensor] = {}
        layers: dict[str, list[Tensor]] = defaultdict(list)
        for name in self.layers:
            node = self.latents[name]
            q, p = _base(node["fn"]), _base(node["infer"]["prior"])
            values = (_kl(q, p).sum(-1), q.stddev.mean(-1), q.mean.square().mean(-1))
            for field, value in zip(STATISTICS, values, strict=True):
                value = self._probed(node, value).reshape(-1, value.shape[-1]).mean(0)
                units[f"{name}.{field}"] = value
                layers[field].append(value.sum() if field == "kl" else value.mean())
        return {**{field: torch.stack(values) for field, values in layers.items()}, **units}

    def _row_axis(self, node: Node) -> int | None:
        """The dim of a latent that runs over rows; None for a latent that all rows share."""
        if is_eve_site(node):
            return 0 if node["value"].shape[0] == self.all_rows else None
        depth = len(node["fn"].batch_shape)
        own = (f.dim for f in node["cond_indep_stack"] if f.name == self._data_plate)
        return next((depth + dim for dim in own), None)

    def _probed(self, node: Node, value: Tensor) -> Tensor:
        axis = self._row_axis(node)
        return value if axis is None else value.narrow(axis, 0, self.rows)

    def _plain_dims(self, node: Node) -> list[str | None]:
        axis = self._row_axis(node)
        if node is self.target_node:
            return ["obs_id", *_positions(len(node["fn"].batch_shape) - 1)]
        if not is_eve_site(node):
            return [] if axis is None else [None] * axis + ["obs_id"]
        inner = ["unit", "latent"] if _is_layer(node) else ["unit"]
        leading = node["value"].dim() - len(inner)
        if axis is None:
            return [*[None] * leading, *inner]
        return ["obs_id", *_positions(leading - 1), *inner]


def _check_targets_left_out(trace: Trace, latents: dict[str, Node]) -> None:
    """Raise an error if the last latent cannot be the target."""
    seen = [n for n, node in sites(trace).items() if node["is_observed"] and _is_data(node)]
    if seen:
        raise ValueError(
            f"site {seen[-1]!r} is observed: leave targets out of data and pass them as observed="
        )
    last = next(reversed(latents), None)
    if last is not None and is_eve_site(latents[last]):
        raise ValueError(f"model must sample its target, its last site is the layer {last!r}")


def _is_data(node: Node) -> bool:
    computed = (node["infer"] or {}).get("_deterministic")
    return not computed and not isinstance(node["fn"], Unit)


def sites(trace: Trace) -> dict[str, Node]:
    """The sample sites of a trace, without those by which plates choose their rows."""
    return {
        name: node
        for name, node in trace.nodes.items()
        if node["type"] == "sample" and not site_is_subsample(node)
    }


def _is_layer(node: Node) -> bool:
    """Whether the latent is an EVE layer's, not a mask whose posterior is its prior."""
    return is_eve_site(node) and not isinstance(_base(node["fn"]), DropoutMask)


def _positions(count: int) -> list[str]:
    return ["position"] if count == 1 else [f"position{i}" for i in range(count)]
