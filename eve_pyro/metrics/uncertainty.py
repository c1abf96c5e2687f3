"""How uncertain a prediction of labels is, and how bad the worst of a set of losses are."""

import torch
from torch import Tensor

from eve_pyro._checks import check_real
from eve_pyro.infer.mixtures import CategoricalMixture


def predictive_entropy(predictive: CategoricalMixture | Tensor) -> Tensor:
    r"""Return the entropy of the averaged distribution of every datum, (*shape), in nats.

    .. math:: H[\bar p], \qquad \bar p = \sum_s w_s \, p_s

    Args:
        predictive: of shape (*shape), or log probabilities (or logits) of S draws,
            (S, *shape, C), finite, which count alike.

    >>> predictive_entropy(torch.tensor([[[9.0, 0.0]], [[0.0, 9.0]]]))
    tensor([0.6931])
    """
    return _mixture(predictive).entropy()


def expected_entropy(predictive: CategoricalMixture | Tensor) -> Tensor:
    r"""Return the mean over draws of a draw's entropy, (*shape), in nats: the aleatoric part.

    .. math:: \sum_s w_s \, H[p_s]

    Args:
        predictive: see :func:`predictive_entropy`.

    >>> expected_entropy(torch.tensor([[[9.0, 0.0]], [[0.0, 9.0]]]))
    tensor([0.0012])
    """
    return _mixture(predictive).aleatoric


def mutual_information(predictive: CategoricalMixture | Tensor) -> Tensor:
    r"""Return the mutual information of label and draw, (*shape), in nats: the epistemic part.

    .. math:: H[\bar p] - \sum_s w_s \, H[p_s]

    from 0, where all draws agree, to the logarithm of the number of draws (BALD; Houlsby, Huszar,
    Ghahramani and Lengyel, "Bayesian active learning for classification and preference
    learning", 2011). From few draws it is biased low: S draws cannot show more than log S.

    Args:
        predictive: see :func:`predictive_entropy`.

    >>> mutual_information(torch.tensor([[[99.0, 0.0]], [[0.0, 99.0]]]))
    tensor([0.6931])
    """
    return _mixture(predictive).epistemic


def flip_rate(predictive: CategoricalMixture | Tensor) -> Tensor:
    """Return the share of draws whose most probable label is not the average's, (*shape).

    Args:
        predictive: see :func:`predictive_entropy`; a mixture's draws count by their weights.

    >>> flip_rate(torch.tensor([[[3.0, 0.0]], [[2.0, 0.0]], [[0.0, 1.0]]]))
    tensor([0.3333])
    """
    mixture = _mixture(predictive)
    flips = mixture.draw_logits.argmax(-1) != mixture.mode
    if mixture.num_draws == 1:
        # The average is the draw; but rounded once more, which can make near ties of it ties.
        flips = torch.zeros_like(flips)
    return (mixture.log_weights.exp() * flips).sum(0)


def cvar(losses: Tensor, level: float = 0.95) -> Tensor:
    r"""Return the conditional value at risk: the mean of the worst share 1 - level of losses.

    .. math:: \frac{1}{(1 - \ell) N} \Big( \sum_{i \le k} L_{(i)} +
              ((1 - \ell) N - k) \, L_{(k+1)} \Big), \qquad k = \lfloor (1 - \ell) N \rfloor

    where L_(i) is the i-th largest loss: one that is on the border of the share counts in part
    (Rockafellar and Uryasev, "Conditional value-at-risk for general loss distributions", 2002).

    Args:
        losses: any shape, flattened, such as the negative log likelihood of every datum.
        level: share of the losses that does not count, in [0, 1). 0 gives the mean.

    Raises:
        ValueError: for losses that are not finite floats, at least one, or another level.

    >>> cvar(torch.arange(1.0, 11.0), 0.8), cvar(torch.arange(1.0, 11.0), 0.75)
    (tensor(9.5000), tensor(9.2000))
    """
    level = check_real("level", level, 0.0, 1.0)
    if level == 1.0:
        raise ValueError(f"level must be a number in [0, 1), got {level}")
    if not isinstance(losses, Tensor) or not losses.is_floating_point() or not losses.numel():
        given = f"{losses.dtype} {tuple(losses.shape)}" if isinstance(losses, Tensor) else losses
        raise ValueError(f"losses must be a non-empty floating-point tensor, got {given}")
    if not losses.isfinite().all():
        raise ValueError("losses must be finite, got nan or inf among its values")
    worst = losses.flatten().sort(descending=True).values
    mass = (1 - level) * len(worst)
    # Each loss counts by the part of it that lies inside the share, from 1 down to 0.
    inside = mass - torch.arange(len(worst), device=worst.device, dtype=torch.float64)
    return (inside.clamp(0.0, 1.0).to(worst) * worst).sum() / mass


def _mixture(predictive: CategoricalMixture | Tensor) -> CategoricalMixture:
    if isinstance(predictive, Tensor):
        return CategoricalMixture(predictive)
    if not isinstance(predictive, CategoricalMixture):
        raise ValueError(
            "predictive must be a CategoricalMixture or a tensor (S, *shape, C), "
            f"got {type(predictive).__name__}"
        )
    return predictive
