"""to_arviz: a model's posterior draws as one ArviZ object."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from importlib.metadata import version
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

import eve_pyro
from eve_pyro._checks import check_int
from eve_pyro.diagnostics.arviz_compat import Converted, from_groups
from eve_pyro.diagnostics.arviz_draws import Probe, draw_groups, to_numpy
from eve_pyro.diagnostics.posterior import fitted_guide
from eve_pyro.infer.guide import EVEGuide
from eve_pyro.infer.rng import seeded


def to_arviz(
    model: Callable | Sequence[Callable],
    guide: Any = None,
    *data: Any,
    observed: Tensor | None = None,
    new_data: Tensor | tuple[Any, ...] | None = None,
    site: str | None = None,
    num_samples: int = 500,
    prior: bool = True,
    latents: Collection[str] | None = None,
    seed: int | None = None,
    max_bytes: int = 2**30,
    coords: Mapping[str, ArrayLike] | None = None,
) -> Converted:
    r"""Draw from a model's posterior on a probe batch, for ArviZ.

    The groups, with dims (``chain``, ``draw``, ...) unless noted:

    - ``posterior``: latents by site name. Those of EVE layers have dims (``obs_id``,
      [``position``,] ``unit``, ``latent``), masks of MC-dropout (``obs_id``, ``unit``), weights
      their own dims.
    - ``prior`` and ``prior_predictive``: the same from the model reading, where every latent
      comes from its prior.
    - ``posterior_predictive``: the target, drawn for the probe batch.
    - ``log_likelihood``: log p(y_n | z) of each observed datum in each draw, in nats, not
      weighted by N / B or beta.
    - ``sample_stats``: the EVE layers' ``kl`` (nats per row, summed over units and latent dims),
      ``sigma`` and ``mean_energy`` (posterior standard deviation, and the posterior-mean energy
      (1/d_z) sum_j mu_j^2: averages), with dim ``layer``, averaged over the probe batch; and the
      same per unit as ``{site}.kl``, ``{site}.sigma`` and ``{site}.mean_energy``.
    - ``predictions``: the target, drawn for ``new_data``, its rows called ``pred_id``. Draw s
      shares its weights with draw s of the other groups.
    - ``observed_data``, ``constant_data``, ``predictions_constant_data``: the targets, and the
      tensors among the arguments, without (chain, draw).

    A dim has one name where its size is the same everywhere, and the site's name ahead
    (``trunk.layer0.unit``) where layers differ.

    Draws are independent: effective sample sizes and R-hat say nothing about how well the
    variational posterior fits. The page "ArviZ" of the documentation says what they do mean, and
    how to read ``az.loo`` for latents of a single row.

    Arguments:
        model: a Pyro model; or a list of independently trained models of one architecture, each
            a chain.
        guide: its ``EVEGuide``, None for a new one (default), or a fitted guide for the model's
            other latents; for several models a list of these, or None.
        data: the model's arguments without its target: the probe batch. The rows are the first
            dim of its tensors. Latents of the draws take rows times units times draws: some
            hundred rows at most.
        observed: targets of the probe batch, of the shape of the target site. Default: none.
        new_data: the model's arguments, or its one argument, for rows to predict. Default: none.
        site: name of the target site. Default: the last site that is not observed.
        num_samples: S, draws per model. Default 500.
        prior: whether to draw from the prior as well (default).
        latents: names of the latents to keep in ``posterior`` and ``prior``. Default: all.
        seed: of the draws; the global random number generator if None (default).
        max_bytes: largest result that is made. Default 1 GiB.
        coords: labels along dims, such as ``{"chain": seeds, "obs_id": ids}``. Default: numbers
            from 0, and site names along ``layer``.

    Returns an ``arviz.InferenceData`` (ArviZ 0.2x) or an ``xarray.DataTree`` (1.x). Its
    attributes name the versions of eve_pyro, torch, Pyro and ArviZ, and the kind of inference.

    Raises:
        ValueError: for a model without EVE layers or other latents, a guide that was not fitted
            (an AutoGuide that never ran) or belongs to another model, a target site that is
            missing or whose first dim is not the rows, targets of another shape, numbers of rows
            that differ between arguments, names that are missing, models that differ in their
            sites, sizes below 1, and a result larger than ``max_bytes``, whose size it states.

    Example:
        >>> from eve_pyro import EVEGuide
        >>> from eve_pyro.nn import MLP, GaussianHead, Network
        >>> network = Network(MLP(3, [4, 4]), GaussianHead(4))
        >>> x, y = torch.randn(5, 3), torch.randn(5)
        >>> idata = to_arviz(network, EVEGuide(network), x, observed=y, num_samples=20, seed=0)
        >>> dict(idata["posterior"]["trunk.layer1"].sizes)
        {'chain': 1, 'draw': 20, 'obs_id': 5, 'unit': 4, 'latent': 1}
        >>> idata["sample_stats"]["kl"].mean("draw").layer.values.tolist()
        ['trunk.layer0', 'trunk.layer1']
    """
    check_int("num_samples", num_samples)
    check_int("max_bytes", max_bytes)
    models, guides = _chains(model, guide)
    if new_data is not None and not isinstance(new_data, tuple):
        new_data = (new_data,)
    probe = Probe(data, observed, new_data, site, latents, prior)
    with nullcontext() if seed is None else seeded(seed):
        groups, dims, layers = draw_groups(models, guides, probe, num_samples, max_bytes)
    target = next(iter(groups["posterior_predictive"]))
    groups["constant_data"] = _tensors(models[0], data)
    if observed is not None:
        groups["observed_data"] = {target: to_numpy(observed)}
    if new_data is not None:
        groups["predictions_constant_data"] = _tensors(models[0], new_data)
    dims.update({name: ["obs_id"] for name in groups["constant_data"]})
    known = {dim for names in dims.values() for dim in names if dim}
    known |= {"chain", "draw", "layer", "obs_id", "pred_id"}
    if unknown := sorted(set(coords or {}) - known):
        raise ValueError(f"coords must name dims out of {sorted(known)}, got {unknown}")
    return from_groups(
        groups,
        {"layer": layers, **(coords or {})},
        dims,
        pred_dims={
            name: ["pred_id", *dims[name][1:]] for name in (target, *groups["constant_data"])
        },
        attrs=_attributes(seed),
    )


def _chains(model: Any, guide: Any) -> tuple[list[Any], list[EVEGuide]]:
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    given = list(guide) if isinstance(guide, (list, tuple)) else [guide]
    if guide is None:
        given = [None] * len(models)
    if not models or len(given) != len(models):
        raise ValueError(
            f"guide must be one for each model, got {len(given)} for {len(models)} models"
        )
    guides = [fitted_guide(m, g) for m, g in zip(models, given, strict=True)]
    for m, g in zip(models, guides, strict=True):
        if g.model is not m:
            raise ValueError(
                f"guide must be built for the model, got one of another {type(m).__name__}"
            )
    return models, guides


def _tensors(model: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """The tensors with rows among a model's arguments, by the arguments' names."""
    call = model.forward if isinstance(model, nn.Module) else model
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in inspect.signature(call).parameters.values() if p.kind in kinds]
    names += [f"data{i}" for i in range(len(names), len(args))]
    return {
        name: to_numpy(arg)
        for name, arg in zip(names, args, strict=False)
        if isinstance(arg, Tensor) and arg.dim()
    }


def _attributes(seed: int | None) -> dict[str, Any]:
    attributes = {
        "inference_library": "eve_pyro",
        "inference_library_version": eve_pyro.__version__,
        "inference": "i.i.d. draws of a variational posterior",
        "eve_pyro_version": eve_pyro.__version__,
        "torch_version": str(torch.__version__),
        "pyro_version": version("pyro-ppl"),
    }
    return attributes if seed is None else {**attributes, "seed": seed}
