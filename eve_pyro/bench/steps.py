"""Contestants of this package: each function builds a network, and returns what one step does.

A step is a training step: zero_grad, loss with its noise, backward, and a fused Adam step, on the
same fixed data for all. The learning rate is so small that the work never changes.
"""

import inspect
import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import pyro
import torch
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor, nn

from eve_pyro.bench.harness import Step, Unavailable
from eve_pyro.bench.sizes import Backend, Work
from eve_pyro.infer import CompiledELBO, EVEGuide, StreamingPredictive
from eve_pyro.nn import MLP, DeterministicCell, EVEModule, GaussianHead, Network

ACTIVATION = "gelu"
ADAM: dict[str, Any] = {"lr": 1e-6, "fused": True}


def make_data(work: Work) -> tuple[Tensor, Tensor]:
    """Inputs and targets: noise, the same for every contestant.

    Example:
        >>> x, y = make_data(Work(batch=5, in_features=3))
        >>> x.shape, y.shape
        (torch.Size([5, 3]), torch.Size([5]))
    """
    noise = torch.Generator().manual_seed(0)
    shape = (work.batch, work.in_features)
    return torch.randn(shape, generator=noise), torch.randn(work.batch, generator=noise)


def training_step(loss: Callable[[], Tensor], parameters: Iterable[nn.Parameter]) -> Step:
    """One step of fused Adam on a loss.

    Example:
        >>> w = nn.Parameter(torch.ones(3))
        >>> training_step(lambda: w.sum(), [w])()
        >>> bool((w < 1).all())
        True
    """
    adam = torch.optim.Adam(parameters, **ADAM)

    def step() -> None:
        adam.zero_grad()
        loss().backward()
        adam.step()

    return step


class _Residual(nn.Module):
    """What :class:`~eve_pyro.nn.PreNormResidual` computes, without Pyro."""

    def __init__(self, features: int, unit: nn.Module, scale: float) -> None:
        super().__init__()
        self.norm, self.unit, self.scale = nn.LayerNorm(features), unit, scale

    def forward(self, h: Tensor) -> Tensor:
        return h + self.scale * self.unit(self.norm(h))


def plain_trunk(work: Work, unit: Callable[[int, int], nn.Module]) -> nn.Sequential:
    """The trunk of :func:`eve_network` with other units, in plain torch.

    Example:
        >>> plain_trunk(Work(layers=2, units=4, in_features=3), nn.Linear)
        Sequential(
          (0): Linear(in_features=3, out_features=4, bias=True)
          (1): Linear(in_features=4, out_features=4, bias=True)
        )
    """
    if work.residual:
        scale = 1 / math.sqrt(work.layers)
        units = [unit(work.units, work.units) for _ in range(work.layers)]
        blocks = [_Residual(work.units, u, scale) for u in units]
        return nn.Sequential(nn.Linear(work.in_features, work.units), *blocks)
    sizes = [work.in_features] + [work.units] * work.layers
    return nn.Sequential(*(unit(i, o) for i, o in pairwise(sizes)))


def cell(work: Work) -> Callable[[int, int], nn.Module]:
    """The unit of equal capacity without noise."""
    return lambda i, o: DeterministicCell(i, o, work.latent_dim, emission=ACTIVATION)


def plain(
    work: Work, unit: Callable[[int, int], nn.Module], backend: Backend | None = None
) -> Step:
    """A deterministic network in plain torch, eager or by ``torch.compile``.

    Arguments:
        work: the sizes.
        unit: makes a layer.
        backend: of the compiler; None for eager.

    Example:
        >>> plain(Work(layers=2, units=4), cell(Work()))()
    """
    torch.manual_seed(0)
    network = nn.Sequential(plain_trunk(work, unit), GaussianHead(work.units))
    x, y = make_data(work)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return -network(x).log_prob(y).sum()

    run: Any = loss
    if backend is not None:
        run = torch.compile(loss, fullgraph=True, dynamic=False, backend=backend)
    return training_step(lambda: run(x, y), network.parameters())


def eve_network(work: Work, **options: Any) -> Network:
    """The EVE network as a Pyro model; options are the layers'.

    Raises:
        Unavailable: for an option that this version's layer does not have.

    Example:
        >>> network = eve_network(Work(layers=2, units=4))
        >>> len(list(network.trunk.children()))
        2
    """
    unknown = set(options) - set(inspect.signature(EVEModule).parameters)
    if unknown:
        raise Unavailable(f"this version's EVEModule has no {', '.join(sorted(unknown))}")
    torch.manual_seed(0)
    trunk = MLP(
        work.in_features,
        [work.units] * work.layers,
        residual=work.residual,
        latent_dim=work.latent_dim,
        emission=ACTIVATION,
        **options,
    )
    return Network(trunk, GaussianHead(work.units))


def eve(work: Work, backend: Backend | None = None, elbo: Any = None, **options: Any) -> Step:
    """An EVE network under an ELBO, in one pass for model and guide, eager or compiled.

    Arguments:
        work: the sizes.
        backend: of :class:`~eve_pyro.infer.CompiledELBO`; None for eager.
        elbo: the objective. Default: ``TraceMeanField_ELBO``, as in the trainer.
        options: of the layers.

    Example:
        >>> eve(Work(layers=2, units=4), "eager")()
    """
    network = eve_network(work, **options)
    if elbo is None:
        vectorize = work.particles > 1
        elbo = TraceMeanField_ELBO(
            work.particles, vectorize_particles=vectorize, max_plate_nesting=1
        )
    objective = elbo if backend is None else CompiledELBO(elbo, backend=backend)
    loss = objective(network, EVEGuide(network))
    x, y = make_data(work)
    return training_step(lambda: loss(x, y), loss.parameters())


def svi(work: Work, *, checked: bool = False) -> Step:
    """An EVE network under Pyro's ``SVI`` with ``Trace_ELBO``.

    Arguments:
        work: the sizes.
        checked: whether Pyro checks arguments and traces in each step, as it does by default.

    Example:
        >>> svi(Work(layers=2, units=4))()
    """
    network = eve_network(work)
    return svi_step(network, EVEGuide(network), work, checked=checked)


def svi_step(model: Any, guide: Any, work: Work, *, checked: bool = False) -> Step:
    """A step of ``SVI`` with a parameter store of its own, as if it were alone in the process."""
    objective = SVI(model, guide, pyro.optim.Adam(ADAM), Trace_ELBO())
    x, y = make_data(work)
    store: Any = {"params": {}, "constraints": {}}

    def step() -> None:
        with (
            pyro.settings.context(module_local_params=False),
            pyro.get_param_store().scope(store),
            pyro.validation_enabled(checked),
        ):
            objective.step(x, y)

    return step


def single_passes(work: Work, draws: int) -> Step:
    """Posterior draws of the prediction, one pass of the model each.

    Example:
        >>> single_passes(Work(layers=2, units=4), 3)()
    """
    network = eve_network(work)
    guide, (x, _) = EVEGuide(network), make_data(work)

    def step() -> None:
        with torch.no_grad():
            for _ in range(draws):
                guide(x)

    return step


def streaming(work: Work, draws: int) -> Step:
    """The same draws by :class:`~eve_pyro.infer.StreamingPredictive`.

    Example:
        >>> streaming(Work(layers=2, units=4), 3)().num_draws
        3
    """
    predictive = StreamingPredictive(eve_network(work), num_samples=draws)
    x, _ = make_data(work)
    return lambda: predictive(x)
