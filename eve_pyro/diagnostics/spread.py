"""Which layers the spread of a prediction comes from."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from pyro.poutine.messenger import Messenger
from torch import nn

from eve_pyro._checks import check_int
from eve_pyro.diagnostics.posterior import eve_layers, fitted_guide
from eve_pyro.infer.mixtures import GaussianMixture
from eve_pyro.infer.predictive import StreamingPredictive

if TYPE_CHECKING:
    import pandas as pd


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

    check_int("num_samples", num_samples, 2)
    guide = fitted_guide(model, guide)
    layers = list(eve_layers(model))
    predictive = StreamingPredictive(model, guide, num_samples)

    def variance(at_mean: Collection[str]) -> float:
        with _MeanOf(at_mean):
            mixture = predictive(*data, seed=seed)
        if not isinstance(mixture, GaussianMixture):
            raise ValueError("model must have a real-valued target, got one of classes")
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
