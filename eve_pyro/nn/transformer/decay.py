"""Which parameters weight decay should act on."""

from typing import Any

from torch import nn

from eve_pyro._checks import check_real
from eve_pyro.nn.emission import Emission
from eve_pyro.nn.prior import LearnedNormal


def weight_decay_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Parameter groups for a torch optimizer: matrices decay, the rest does not.

    Embeddings (and a readout tied to them), normalisations, biases, learned priors and the
    readouts of latent dims do not decay: there decay would draw rare tokens, scales and averages
    to zero without making any map simpler. Parameters that are frozen are left out.

    Arguments:
        model: any module.
        decay: weight decay of the matrices, >= 0.

    Raises:
        ValueError: if decay is negative or not finite.

    Example:
        >>> net = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4), nn.LayerNorm(4))
        >>> optimizer = torch.optim.AdamW(weight_decay_groups(net, 0.1), lr=3e-3)
        >>> [(g["weight_decay"], len(g["params"])) for g in optimizer.param_groups]
        [(0.1, 1), (0.0, 4)]
    """
    check_real("decay", decay, 0.0)
    kept = {
        id(p)
        for module in model.modules()
        if isinstance(module, nn.Embedding | Emission | LearnedNormal)
        for p in module.parameters(recurse=False)
    }
    parameters = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in parameters if p.dim() >= 2 and id(p) not in kept]
    others = [p for p in parameters if p.dim() < 2 or id(p) in kept]
    return [
        {"params": decayed, "weight_decay": float(decay)},
        {"params": others, "weight_decay": 0.0},
    ]
