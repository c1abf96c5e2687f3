"""Negative log likelihoods of held-out targets, in nats per datum."""

import torch.distributions as td
from torch import Tensor

from eve_pyro.infer.mixtures import CategoricalMixture, GaussianMixture, Mixture
from eve_pyro.metrics._targets import check_labels, check_real_target, check_target


def mc_nll(predictive: Mixture, y: Tensor) -> Tensor:
    r"""Return the negative log density of the mixture, the Monte Carlo estimate of the NLL.

    .. math:: -\frac{1}{N} \sum_n \log \sum_s w_s \, p_s(y_n)

    Strictly proper (the logarithmic score; Good, "Rational decisions", 1952).

    Args:
        predictive: of shape (*shape).
        y: targets, (*shape).

    >>> import torch
    >>> y = GaussianMixture(torch.tensor([[-9.0], [9.0]]), torch.ones(2, 1))
    >>> mc_nll(y, torch.tensor([9.0])) - mc_nll(GaussianMixture(y.loc[1:], y.scale[1:]), y.loc[1])
    tensor(0.6931)
    """
    check_target(predictive, y)
    return -predictive.log_prob(y).mean()


def nll(predictive: GaussianMixture, y: Tensor) -> Tensor:
    r"""Return the negative log density of one Gaussian with the predictive's moments.

    .. math:: -\frac{1}{N} \sum_n \log N(y_n; \mathrm{E}\, y_n, \mathrm{Var}\, y_n)

    Proper for mean and variance (the Dawid-Sebastiani score, up to constants), and blind to the
    mixture's further shape, which ``mc_nll`` sees.

    Args:
        predictive: of shape (*shape).
        y: targets, (*shape).

    >>> import torch
    >>> nll(GaussianMixture(torch.zeros(1, 3), torch.ones(1, 3)), torch.zeros(3))
    tensor(0.9189)
    """
    check_real_target(predictive, y)
    return -td.Normal(predictive.mean, predictive.stddev).log_prob(y).mean()


def cross_entropy(predictive: CategoricalMixture, y: Tensor) -> Tensor:
    """Return ``mc_nll`` of labels: minus the log of the mean probability of the label.

    Args:
        predictive: of shape (*shape).
        y: labels, (*shape), integers.

    >>> import torch
    >>> cross_entropy(CategoricalMixture(torch.zeros(5, 3, 2)), torch.tensor([0, 1, 1]))
    tensor(0.6931)
    """
    check_labels(predictive, y)
    return mc_nll(predictive, y)


def perplexity(predictive: CategoricalMixture, y: Tensor) -> Tensor:
    """Return the exponential of ``cross_entropy``: over how many labels the doubt is spread.

    Jelinek, Mercer, Bahl and Baker, "Perplexity, a measure of the difficulty of speech
    recognition tasks", 1977.

    Args:
        predictive: of shape (*shape).
        y: labels, (*shape), integers.

    >>> import torch
    >>> perplexity(CategoricalMixture(torch.zeros(5, 3, 7)), torch.tensor([0, 1, 1]))
    tensor(7.0000)
    """
    return cross_entropy(predictive, y).exp()
