"""The models of the study, by name: one trunk, a cell, a head and an objective."""

from dataclasses import dataclass
from typing import Any, Literal

from pyro.infer import TraceMeanField_ELBO
from torch import Tensor, nn

from eve_pyro._checks import check_choice, check_int
from eve_pyro.infer import MCNLL_ELBO, LinearGaussianELBO, MomentMatchedELBO
from eve_pyro.nn import (
    Dense,
    DeterministicCell,
    EVEModule,
    GaussianHead,
    MixtureDensityHead,
    Network,
)

WIDTH = 32  # of the trunk's two layers
SCALE_INIT = 0.4  # of every head, in units of y

CELLS = ("none", "scalar", "deterministic", "eve")
HEADS = ("gaussian", "heteroscedastic", "mixture")
OBJECTIVES = ("elbo", "mc-nll", "moment", "closed form")


@dataclass(frozen=True)
class NeuronConfig:
    """A model: the trunk x -> 32 tanh -> 32 tanh = h, a cell that reads h, a head that reads it.

    Arguments:
        cell: ``"none"`` (the head reads h), ``"scalar"`` (linear units), ``"deterministic"``
            (:class:`~eve_pyro.nn.DeterministicCell`) or ``"eve"``.
        head: ``"gaussian"`` (one scale for all inputs, the default), ``"heteroscedastic"`` or
            ``"mixture"``.
        objective: ``"elbo"`` (default), ``"mc-nll"``, ``"moment"`` or ``"closed form"``.
        particles: posterior draws per training step, S. Default 1.
        units: of the cell. Default 8.
        latent_dim: of each unit. Default 1.
        emission, beta, sigma, sigma_init: of the cell, see :class:`~eve_pyro.nn.EVEModule`.

    Raises:
        ValueError: for an unknown name or a number below 1.

    Example:
        >>> NeuronConfig(cell="row")
        Traceback (most recent call last):
        ...
        ValueError: cell must be one of 'none', 'scalar', 'deterministic', 'eve', got 'row'
    """

    cell: Literal["none", "scalar", "deterministic", "eve"]
    head: Literal["gaussian", "heteroscedastic", "mixture"] = "gaussian"
    objective: Literal["elbo", "mc-nll", "moment", "closed form"] = "elbo"
    particles: int = 1
    units: int = 8
    latent_dim: int = 1
    emission: str = "identity"
    beta: float = 1e-3
    sigma: str = "input"
    sigma_init: float = 0.3

    def __post_init__(self) -> None:
        check_choice("cell", self.cell, CELLS)
        check_choice("head", self.head, HEADS)
        check_choice("objective", self.objective, OBJECTIVES)
        check_int("particles", self.particles)
        check_int("units", self.units)
        check_int("latent_dim", self.latent_dim)

    def network(self) -> Network:
        """A freshly initialised network; the trunk's weights come first, alike for all models."""
        trunk = nn.Sequential(nn.Linear(1, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        if self.cell != "none":
            trunk.append(self._cell())
        features = WIDTH if self.cell == "none" else self.units
        if self.head == "mixture":
            return Network(trunk, MixtureDensityHead(features, scale_init=SCALE_INIT))
        varies = self.head == "heteroscedastic"
        head = GaussianHead(features, heteroscedastic=varies, scale_init=SCALE_INIT)
        return Network(trunk, head)

    def _cell(self) -> nn.Module:
        if self.cell == "scalar":
            return Dense(WIDTH, self.units, activation=self.emission)
        options: dict[str, Any] = {
            "emission": self.emission,
            "sigma": self.sigma,
            "sigma_init": self.sigma_init,
        }
        if self.cell == "deterministic":
            return DeterministicCell(WIDTH, self.units, self.latent_dim, **options)
        return EVEModule(WIDTH, self.units, self.latent_dim, beta=self.beta, **options)

    def elbo(self) -> Any:
        """A new objective, to be used for one network."""
        count = self.particles
        if self.objective == "elbo":
            return TraceMeanField_ELBO(count, vectorize_particles=count > 1, max_plate_nesting=1)
        kinds = {"mc-nll": MCNLL_ELBO, "moment": MomentMatchedELBO}
        kind = kinds.get(self.objective, LinearGaussianELBO)
        return kind(count, max_plate_nesting=1)

    @property
    def lr_multipliers(self) -> dict[str, float]:
        """Learning rates of their own: a global output scale must not be the last to converge."""
        return {"head.log_scale": 10.0} if self.head == "gaussian" else {}


def internal_spread(network: Network, x: Tensor) -> dict[str, Tensor]:
    """What can be read inside a cell that has a sigma, (rows,) each; empty for other models.

    ``sigma``: mean of sigma over units and latent dims; ``spread``: sqrt(sum w^2 sigma^2), the
    standard deviation that reaches the head's mean, in units of y, where the emission is the
    identity; ``kl``: KL(q || N(0, I)), summed over units and latent dims, in nats. A
    deterministic cell has the same three numbers, though nothing is drawn from its q.

    Example:
        >>> network = NeuronConfig("eve").network()
        >>> sorted(internal_spread(network, torch.zeros(5, 1)))
        ['kl', 'sigma', 'spread']
    """
    layers: Any = network.trunk
    head: Any = network.head
    cell = layers[-1]
    if not isinstance(cell, DeterministicCell | EVEModule):
        return {}
    q = cell.encoder(layers[:-1](x))
    variance = q.variance
    kl = 0.5 * (q.mean.square() + variance - 1 - variance.log())
    found = {"sigma": q.stddev.mean((-2, -1)), "kl": kl.sum((-2, -1))}
    if getattr(cell.emission, "activation", None) == "identity":
        weight = head.loc.weight[0]  # of each unit, which is the mean of its latent dims
        per_unit = variance.mean(-1) / cell.latent_dim
        found["spread"] = (per_unit * weight.square()).sum(-1).sqrt()
    return found


MODELS: dict[str, NeuronConfig] = {
    "det-scalar": NeuronConfig("scalar", units=1),
    "det-cell": NeuronConfig("deterministic"),
    "stoch-hetero": NeuronConfig("none", "heteroscedastic"),
    "stoch-hetero-z": NeuronConfig("deterministic", "heteroscedastic"),
    "mixture": NeuronConfig("none", "mixture"),
    "eve-elbo": NeuronConfig("eve"),
    "eve-mc-4": NeuronConfig("eve", objective="mc-nll", particles=4),
    "eve-mc-10": NeuronConfig("eve", objective="mc-nll", particles=10),
    "eve-mc-32": NeuronConfig("eve", objective="mc-nll", particles=32),
    "eve-moment": NeuronConfig("eve", objective="moment", particles=10),
    "eve-closed": NeuronConfig("eve", objective="closed form"),
    "eve-head": NeuronConfig("eve", "heteroscedastic", "mc-nll", 32),
}
