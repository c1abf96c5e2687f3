"""Signals of uncertainty: one number per datum, from inside the network or from its output."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from eve_pyro.infer import CategoricalMixture, Mixture

if TYPE_CHECKING:
    import xarray as xr

Signals = dict[str, np.ndarray]


def internal_signals(
    stats: "xr.Dataset", shape: Sequence[int] | None = None, *, per_layer: bool = False
) -> Signals:
    """Reduce posterior statistics to one number per datum.

    - ``kl``: total KL, summed over units and layers, in nats.
    - ``sigma``: posterior standard deviation, averaged over a layer's units and latent dims and
      then over layers.

    Arguments:
        stats: of :func:`posterior_statistics` with its inputs.
        shape: of the data. (N,) averages over positions, (N, P) keeps them; default: what stats
            has.
        per_layer: give ``kl[site]`` and ``sigma[site]`` of every layer as well. Default False.

    Raises:
        ValueError: for statistics without inputs, or of another shape.

    Example:
        >>> from eve_pyro import EVEModule
        >>> from eve_pyro.diagnostics import posterior_statistics
        >>> net = nn.Sequential(EVEModule(3, 4), EVEModule(4, 6))
        >>> signals = internal_signals(
        ...     posterior_statistics(net, None, torch.randn(10, 3)), per_layer=True
        ... )
        >>> list(signals), signals["kl"].shape
        (['kl', 'sigma', 'kl[0]', 'sigma[0]', 'kl[1]', 'sigma[1]'], (10,))
    """
    if "kl" not in stats or "obs_id" not in stats.dims:
        raise ValueError("stats must be a result of posterior_statistics with its inputs")
    keeps_positions = "position" in stats.dims and (shape is None or len(shape) > 1)
    if keeps_positions and len(np.unique(stats["positions"])) > 1:
        found = dict(zip(stats["layer"].values, stats["positions"].values, strict=True))
        raise ValueError(
            "stats must have the same number of positions in all layers to give a signal for each "
            f"position, got {found}; select layers, or average over positions with shape=(N,)"
        )
    kl = stats["kl"].sum("unit")
    sigma = stats["sigma"].mean(("unit", "latent"))
    if "position" in stats.dims and shape is not None and len(shape) == 1:
        # Absent positions have KL 0 in the sum above; they must not count as positions.
        kl = kl.where(sigma.notnull()).mean("position")
        sigma = sigma.mean("position")
    dims = ("obs_id", "position") if "position" in kl.dims else ("obs_id",)
    sizes = tuple(kl.sizes[dim] for dim in dims)
    if shape is not None and tuple(shape) != sizes:
        raise ValueError(f"stats must describe data of shape {tuple(shape)}, got {sizes}")
    signals = {"kl": kl.sum("layer"), "sigma": sigma.mean("layer")}
    for layer in stats["layer"].values if per_layer else ():
        signals[f"kl[{layer}]"] = kl.sel(layer=layer)
        signals[f"sigma[{layer}]"] = sigma.sel(layer=layer)
    return {name: signal.transpose(*dims).values for name, signal in signals.items()}


def output_signals(predictive: Mixture) -> Signals:
    """Reduce a predictive distribution to one number per datum.

    - ``predictive_sd`` (real targets), in units of the target; or ``entropy`` (labels), in nats,
      and ``error_prob``, 1 minus the largest probability.
    - ``epistemic``: variance of the mean over draws (squared units), or mutual information of
      label and draw (nats).
    - ``epistemic_share``: that over the predictive variance or entropy; 0 where these are 0.

    Arguments:
        predictive: of shape (*shape).

    Example:
        >>> from eve_pyro.infer import GaussianMixture
        >>> y = GaussianMixture(torch.tensor([[-1.0], [1.0]]), torch.ones(2, 1))
        >>> {name: round(value.item(), 3) for name, value in output_signals(y).items()}
        {'predictive_sd': 1.414, 'epistemic': 1.0, 'epistemic_share': 0.5}
    """
    signals = {}
    if isinstance(predictive, CategoricalMixture):
        total = signals["entropy"] = predictive.entropy()
        signals["error_prob"] = 1 - predictive.probs.max(-1).values
    else:
        total = predictive.variance
        signals["predictive_sd"] = total.sqrt()
    signals["epistemic"] = predictive.epistemic
    share = predictive.epistemic / total
    signals["epistemic_share"] = torch.where(total > 0, share, torch.zeros_like(share))
    return {name: signal.detach().cpu().numpy() for name, signal in signals.items()}


def as_signal(name: str, values: object, shape: Sequence[int]) -> np.ndarray:
    """Values as a flat array of doubles, checked to hold one finite number per datum.

    Example:
        >>> as_signal("sigma", [1, 2, 3], (2,))
        Traceback (most recent call last):
        ...
        ValueError: sigma must have shape (2,), one number per datum, got (3,)
    """
    tensor = torch.as_tensor(values)
    array = tensor.detach().cpu().double().numpy()
    if array.shape != tuple(shape):
        raise ValueError(
            f"{name} must have shape {tuple(shape)}, one number per datum, got {array.shape}"
        )
    if not array.size or not np.isfinite(array).all():
        raise ValueError(f"{name} must hold finite numbers, at least one, got {array}")
    return array.ravel()
