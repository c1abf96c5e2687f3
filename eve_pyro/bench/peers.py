"""Contestants of other packages, on the same network, data and optimizer, in their own idiom."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn
from torch.nn import functional as F

from eve_pyro.bench.harness import Step, Unavailable
from eve_pyro.bench.sizes import Work
from eve_pyro.bench.steps import ACTIVATION, make_data, plain, svi_step, training_step
from eve_pyro.nn import MLP, BayesianDense, Dense, GaussianHead, Network


def _peer(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise Unavailable("not installed: pip install eve-pyro[bench]") from None


class _WithKL(nn.Module):
    """A chain of layers that return (output, KL): its output, and the sum of their KLs."""

    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        total = h.new_zeros(())
        for layer in self.layers:
            h, kl = layer(h)
            h, total = F.gelu(h), total + kl
        return h, total


def _sizes(work: Work) -> list[tuple[int, int]]:
    return [(work.in_features if i == 0 else work.units, work.units) for i in range(work.layers)]


def _weight_noise(
    work: Work, trunk: nn.Module, forward: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> Step:
    head = GaussianHead(work.units)
    x, y = make_data(work)

    def loss() -> Tensor:
        h, kl = forward(x)
        return kl.sum() - head(h).log_prob(y).sum()

    return training_step(loss, [*trunk.parameters(), *head.parameters()])


def bayesian_torch(work: Work) -> Step:
    """Random weights by bayesian-torch's ``LinearReparameterization``, with its own KL."""
    layer = _peer("bayesian_torch.layers").LinearReparameterization
    torch.manual_seed(0)
    trunk = _WithKL(nn.ModuleList(layer(i, o) for i, o in _sizes(work)))
    return _weight_noise(work, trunk, trunk)


def torchbnn(work: Work) -> Step:
    """Random weights by torchbnn's ``BayesLinear`` and ``BKLLoss``."""
    peer = _peer("torchbnn")
    torch.manual_seed(0)
    layers = [(peer.BayesLinear(0.0, 0.1, i, o), nn.GELU()) for i, o in _sizes(work)]
    trunk = nn.Sequential(*(part for pair in layers for part in pair))
    kl = peer.BKLLoss(reduction="sum")
    return _weight_noise(work, trunk, lambda x: (trunk(x), kl(trunk)))


def auto_normal(work: Work) -> Step:
    """Random weights in Pyro, with ``AutoNormal`` and ``SVI``.

    Example:
        >>> auto_normal(Work(layers=2, units=4))()
    """
    torch.manual_seed(0)
    trunk = MLP(
        work.in_features, [work.units] * work.layers, unit=BayesianDense, activation=ACTIVATION
    )
    network = Network(trunk, GaussianHead(work.units))
    return svi_step(network, AutoNormal(network), work)


def mc_dropout(work: Work) -> Step:
    """A plain network with dropout.

    Example:
        >>> mc_dropout(Work(layers=2, units=4))()
    """
    return plain(
        work, lambda i, o: nn.Sequential(Dense(i, o, activation=ACTIVATION), nn.Dropout(0.1))
    )
