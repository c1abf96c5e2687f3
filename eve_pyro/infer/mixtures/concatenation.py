"""Pooling of several predictive distributions into one."""

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from eve_pyro._checks import check_real
from eve_pyro.infer.mixtures.categorical import CategoricalMixture
from eve_pyro.infer.mixtures.gaussian import GaussianMixture

Mixture = GaussianMixture | CategoricalMixture
M = TypeVar("M", GaussianMixture, CategoricalMixture)


def concatenate(predictives: Sequence[M], weights: Sequence[float] | None = None) -> M:
    r"""Return the mixture of several predictives: a deep ensemble, or chunks of draws.

    .. math:: p(y) = \sum_m v_m \, p_m(y)

    All draws of all members are draws of the result, so disagreement between members is
    epistemic, as between draws (Lakshminarayanan, Pritzel and Blundell, "Simple and scalable
    predictive uncertainty estimation using deep ensembles", 2017).

    Args:
        predictives: members of one type, shape, dtype and device; their numbers of draws may
            differ, their numbers of components per draw may not.
        weights: positive weights of the members, normalised to one. By default members weigh
            the same, whatever their numbers of draws; give those numbers for chunks of draws.

    Raises:
        ValueError: without members, for members that do not match, or for wrong weights.

    >>> one, two = (CategoricalMixture(torch.zeros(s, 4, 3)) for s in (1, 2))
    >>> concatenate([one, two]).log_weights.exp().squeeze()
    tensor([0.5000, 0.2500, 0.2500])
    """
    members = list(predictives)
    if not members:
        raise ValueError("predictives must hold at least one predictive, got none")
    for member in members:
        if _signature(member) != _signature(members[0]):
            given = f"{_signature(members[0])} and {_signature(member)}"
            raise ValueError(f"predictives must have one type, shape and dtype, got {given}")
    if weights is None:
        weights = [1.0] * len(members)
    if len(weights) != len(members):
        raise ValueError(f"weights must hold {len(members)} numbers, got {len(weights)}")
    logs = [math.log(check_real("weights", w, 0.0, exclusive=True)) for w in weights]

    log_weights = _cat([m.log_weights + log for m, log in zip(members, logs, strict=True)])
    first = members[0]
    if isinstance(first, GaussianMixture):
        return GaussianMixture(
            torch.cat([m.loc for m in members]),
            torch.cat([m.scale for m in members]),
            log_weights,
            num_draws=sum(m.num_draws for m in members),
        )
    return CategoricalMixture(torch.cat([m.draw_logits for m in members]), log_weights)


def _signature(member: Mixture) -> str:
    """Name all that members must have in common."""
    if isinstance(member, GaussianMixture):
        draws, per_draw = member.loc, len(member.loc) // member.num_draws
    elif isinstance(member, CategoricalMixture):
        draws, per_draw = member.draw_logits, 1
    else:
        raise ValueError(
            "predictives must hold GaussianMixture or CategoricalMixture, "
            f"got {type(member).__name__}"
        )
    kind = f"{type(member).__name__}(S, {', '.join(map(str, draws.shape[1:]))})"
    return f"{kind}, {per_draw} components per draw, {draws.dtype} on {draws.device}"


def _cat(log_weights: Sequence[Tensor]) -> Tensor:
    """Concatenate log weights of which some may have 1 where others vary with the data."""
    shape = torch.broadcast_shapes(*(w.shape[1:] for w in log_weights))
    return torch.cat([w.expand(-1, *shape) for w in log_weights])
