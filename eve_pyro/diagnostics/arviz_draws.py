"""Draws of posteriors on a probe batch: from torch to numpy arrays in ArviZ's groups."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pyro import poutine
from pyro.poutine.trace_struct import Trace
from torch import Tensor

from eve_pyro.diagnostics.arviz_pass import Dims, Pass, sites
from eve_pyro.infer.guide import EVEGuide
from eve_pyro.infer.predictive import _inference, _num_rows

Groups = dict[str, dict[str, np.ndarray]]


@dataclass(frozen=True)
class Probe:
    """Rows on which posteriors are drawn, and what is kept of the draws.

    Arguments:
        data: the model's arguments without its target.
        observed: the targets of these rows, or None (default).
        new_data: arguments for rows to predict, or None (default).
        site: name of the target site; the model's last if None (default).
        latents: names of the latents to keep; all if None (default).
        prior: whether the prior is drawn as well (default).

    Raises:
        ValueError: when used, for arguments without one common number of rows, and new_data of
            another number of arguments.

    Example:
        >>> probe = Probe((torch.randn(5, 3),), new_data=(torch.randn(2, 3),))
        >>> probe.rows, probe.all_data[0].shape
        (5, torch.Size([7, 3]))
    """

    data: tuple[Any, ...]
    observed: Tensor | None = None
    new_data: tuple[Any, ...] | None = None
    site: str | None = None
    latents: Collection[str] | None = None
    prior: bool = True

    @property
    def rows(self) -> int:
        return _num_rows(self.data)

    @property
    def all_data(self) -> tuple[Any, ...]:
        """Rows to predict behind those of the probe: one pass draws one set of weights for both."""
        _num_rows(self.data)  # checks them
        if self.new_data is None:
            return self.data
        if len(self.new_data) != len(self.data):
            raise ValueError(
                f"new_data must hold as many arguments as data, {len(self.data)}, got "
                f"{len(self.new_data)}"
            )
        return tuple(
            torch.cat((old, new)) if isinstance(old, Tensor) and old.dim() else old
            for old, new in zip(self.data, self.new_data, strict=True)
        )


def draw_groups(
    models: Sequence[Any],
    guides: Sequence[EVEGuide],
    probe: Probe,
    num_samples: int,
    max_bytes: int,
) -> tuple[Groups, Dims, list[str]]:
    """Draw from the posteriors of models of one architecture, a chain for each.

    Returns the arrays by group and variable, of shape (chain, draw, *); names of their dims
    after these two; and the sites of the EVE layers in the order in which they run.

    Raises:
        ValueError: for a model without latents, names that are missing, targets of another
            shape, models that differ in their sites, and draws that need more than
            ``max_bytes``.

    Example:
        >>> from eve_pyro import EVEGuide
        >>> from eve_pyro.nn import MLP, GaussianHead, Network
        >>> network = Network(MLP(3, [4]), GaussianHead(4))
        >>> probe = Probe((torch.randn(5, 3),))
        >>> groups, dims, _ = draw_groups([network], [EVEGuide(network)], probe, 10, 10**6)
        >>> groups["posterior"]["trunk.layer0"].shape, dims["trunk.layer0"]
        ((1, 10, 5, 4, 1), ['obs_id', 'unit', 'latent'])
    """
    shape = (len(models), num_samples)
    args = probe.all_data
    groups: Groups = {}
    dims: Dims = {}
    layers: list[str] = []
    for chain, (model, guide) in enumerate(zip(models, guides, strict=True)):
        with _inference(model, guide):
            for i in range(num_samples):
                run, new = _draw(model, guide, probe, args)
                if not groups:
                    groups, dims, layers = _allocate(new, shape, max_bytes), run.dims(), run.layers
                if i == 0:
                    _check_alike(groups, new, chain)
                for group, arrays in new.items():
                    for name, array in arrays.items():
                        groups[group][name][chain, i] = array
    return groups, dims, layers


def to_numpy(tensor: Tensor) -> np.ndarray:
    """The tensor on the host, low precision widened: numpy has no bfloat16.

    Example:
        >>> to_numpy(torch.ones(2, dtype=torch.bfloat16)).dtype
        dtype('float32')
    """
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        tensor = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
    return tensor.numpy()


def _draw(model: Any, guide: EVEGuide, probe: Probe, args: tuple[Any, ...]) -> tuple[Pass, Groups]:
    """One draw of everything, without the dims (chain, draw)."""
    guide(*args)
    run = Pass(guide.trace, probe.rows, _num_rows(args), probe.site)
    guide.trace = Trace()  # lets go of the activations
    kept = list(run.latents) if probe.latents is None else list(probe.latents)
    missing = [name for name in kept if name not in run.latents]
    if missing:
        raise ValueError(f"latents must be among {list(run.latents)}, got {missing}")
    predicted, new = run.predicted()
    groups: dict[str, dict[str, Tensor]] = {
        "posterior": run.posterior(kept),
        "sample_stats": run.statistics(),
        "posterior_predictive": {run.target: predicted},
    }
    if probe.new_data is not None:
        groups["predictions"] = {run.target: new}
    if probe.observed is not None:
        groups["log_likelihood"] = {run.target: run.log_likelihood(probe.observed)}
    if probe.prior:
        nodes = sites(poutine.trace(model).get_trace(*probe.data))
        groups["prior"] = {name: nodes[name]["value"] for name in kept}
        groups["prior_predictive"] = {run.target: nodes[run.target]["value"]}
    arrays = {g: {n: to_numpy(t) for n, t in tensors.items()} for g, tensors in groups.items()}
    return run, arrays


def _allocate(draw: Groups, sample_shape: tuple[int, int], max_bytes: int) -> Groups:
    count = sample_shape[0] * sample_shape[1]
    sizes = {g: count * sum(a.nbytes for a in arrays.values()) for g, arrays in draw.items()}
    total = sum(sizes.values())
    if total > max_bytes:
        largest = sorted(sizes, key=lambda group: -sizes[group])[:3]
        shares = ", ".join(f"{group} {sizes[group] / 2**20:.3g} MiB" for group in largest)
        raise ValueError(
            f"max_bytes must be at least {total} ({shares}, ...) for "
            f"{count} draws on these data, got {max_bytes}; give fewer rows or draws, "
            "prior=False, or the names of the latents to keep"
        )
    return {
        group: {name: np.empty((*sample_shape, *a.shape), a.dtype) for name, a in arrays.items()}
        for group, arrays in draw.items()
    }


def _check_alike(groups: Groups, draw: Groups, chain: int) -> None:
    expected = {(g, n): a.shape[2:] for g, arrays in groups.items() for n, a in arrays.items()}
    got = {(g, n): a.shape for g, arrays in draw.items() for n, a in arrays.items()}
    if expected != got:
        differing = sorted(k for k in expected.keys() | got if expected.get(k) != got.get(k))
        raise ValueError(
            "models of several chains must have the same sites and shapes, but model "
            f"{chain} differs from the first in {differing[0]}"
        )
