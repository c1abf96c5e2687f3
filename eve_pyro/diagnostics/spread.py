"""Which layers the uncertainty of a prediction comes from."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import numpy as np
from pyro.poutine.messenger import Messenger
from torch import nn

from eve_pyro._checks import check_int
from eve_pyro.diagnostics.posterior import eve_layers, fitted_guide
from eve_pyro.infer.mixtures import GaussianMixture, Mixture
from eve_pyro.infer.predictive import StreamingPredictive

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


class _MeanOf(Messenger):
    """Sets some sites to the mean of what they were drawn from.

    After the draw, not in its place: so the other layers' noise is the same whichever layers are
    switched off, and differences between runs are those layers' doing alone.
    """

    def __init__(self, sites: Collection[str]) -> None:
        super().__init__()
        self.sites = sites

    def _pyro_post_sample(self, msg: Any) -> None:
        if msg["name"] in self.sites:
            msg["value"] = msg["fn"].mean


def layer_spread(
    model: nn.Module, guide: Any, *data: Any, num_samples: int = 64, seed: int = 0
) -> "pd.DataFrame":
    r"""Attribute the predictive variance between posterior draws to the EVE layers.

    Layers are switched between drawing from their posterior and standing at its mean, one at a
    time, and the variance between draws of the target's mean is averaged over rows. Per layer l:

    .. math:: A_l = \mathrm{Var}(\mathrm{E}[y|z] \,|\, z_k = \mu_k \; \forall k \ne l), \qquad
              R_l = V - \mathrm{Var}(\mathrm{E}[y|z] \,|\, z_l = \mu_l)

    with V the variance when all layers draw. Where the output is linear in the latents, both are
    the layer's share of V and sum to it; otherwise they are the two ends of the order in which
    layers can be switched on, and R may be negative. All runs use the same noise.

    Takes two predictions per layer, of ``num_samples`` draws each: with very many layers, give
    few rows.

    Arguments:
        model: the module with the EVE layers and a Normal target, or a mixture of Normals.
        guide: its ``EVEGuide``, None for a new one, or a guide for the model's other latents,
            which draw in all runs.
        data: the model's arguments without the target; tensors are split by rows.
        num_samples: posterior draws, at least 2. Default 64.
        seed: of the draws. Default 0.

    Returns:
        A frame with one row per layer, in order of registration, indexed by site name as
        ``layer``: ``alone`` (A), ``removed`` (R) and ``total`` (V, the same in each row), in the
        squared unit of the target.

    Raises:
        ValueError: for a model without EVE layers, fewer than 2 draws, or a target of another
            kind.

    Example:
        >>> import torch
        >>> from eve_pyro.nn import MLP, GaussianHead, Network
        >>> network = Network(MLP(3, [4, 6]), GaussianHead(6))
        >>> layer_spread(network, None, torch.randn(5, 3)).columns.tolist()
        ['alone', 'removed', 'total']
    """
    import pandas as pd

    layers, predict = _switched(model, guide, data, num_samples, seed)

    def variance(at_mean: Collection[str]) -> float:
        mixture = predict(at_mean)
        if not isinstance(mixture, GaussianMixture):
            raise ValueError(
                "model must have a real-valued target, got one of classes: use layer_epistemic"
            )
        unbiased = num_samples / (num_samples - 1)
        return mixture.epistemic.mean().item() * unbiased

    total = variance(())
    rows = {}
    for layer in layers:
        others = [name for name in layers if name != layer]
        rows[layer] = {
            "alone": variance(others),
            "removed": total - variance([layer]),
            "total": total,
        }
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.index.name = "layer"
    return frame


def layer_epistemic(
    model: nn.Module, guide: Any, *data: Any, num_samples: int = 64, seed: int = 0
) -> "xr.Dataset":
    r"""Find the epistemic uncertainty that each layer's draws alone give every datum.

    .. math:: A_l(x) = U(x \,|\, z_k = \mu_k \; \forall k \ne l), \qquad T(x) = U(x)

    U is the ``epistemic`` part of a prediction: the variance between draws of a real target's
    mean, in its squared units, or the mutual information between a label and the draw, in nats.
    A / T is a layer's share of it. Shares sum to 1 where the output is linear in the latents;
    otherwise what one layer's noise does depends on the others'. All runs use the same noise.

    Both estimates have a bias of order 1 / num_samples: the variance is that of the draws
    themselves, and the mutual information is too small. Take many draws of few data. One
    prediction per layer, and one more.

    Arguments:
        model, guide, data, seed: see :func:`layer_spread`; the target may also be of labels, as
            a language model's next token.
        num_samples: posterior draws, at least 2. Default 64.

    Returns:
        ``alone`` (layer, obs_id) and ``total`` (obs_id), with a further dim ``position`` for
        targets that have one.

    Raises:
        ValueError: for a model without EVE layers, or fewer than 2 draws.

    Example:
        >>> import torch
        >>> from eve_pyro.nn import LanguageModel, TransformerConfig, TransformerLM
        >>> config = TransformerConfig(50, d_model=16, d_ff=32, feed_forward="eve")
        >>> model = LanguageModel(TransformerLM(config))
        >>> found = layer_epistemic(model, None, torch.randint(50, (3, 8)), num_samples=4)
        >>> dict(found.alone.sizes)
        {'layer': 2, 'obs_id': 3, 'position': 8}
    """
    import xarray as xr

    layers, predict = _switched(model, guide, data, num_samples, seed)

    def epistemic(at_mean: Collection[str]) -> np.ndarray:
        return predict(at_mean).epistemic.detach().cpu().numpy()

    total = epistemic(())
    alone = np.stack([epistemic([other for other in layers if other != name]) for name in layers])
    dims = ("obs_id", "position")[: total.ndim]
    variables = {"alone": (("layer", *dims), alone), "total": (dims, total)}
    return xr.Dataset(variables, {"layer": layers})


def _switched(
    model: nn.Module, guide: Any, data: Any, num_samples: int, seed: int
) -> tuple[list[str], Callable[[Collection[str]], Mixture]]:
    """The EVE layers, and predictions with some of them at their means."""
    check_int("num_samples", num_samples, 2)
    predictive = StreamingPredictive(model, fitted_guide(model, guide), num_samples)

    def predict(at_mean: Collection[str]) -> Mixture:
        with _MeanOf(at_mean):
            return predictive(*data, seed=seed)

    return list(eve_layers(model)), predict
