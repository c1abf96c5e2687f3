"""The models of the studies, by name: configurations, and what is built from them."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from pyro import poutine
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_sample
from torch import nn

from eve_pyro._checks import check_choice, check_int
from eve_pyro.infer import MCNLL_ELBO, EVEGuide, MomentMatchedELBO
from eve_pyro.nn import (
    MLP,
    BayesianDense,
    Dense,
    DeterministicCell,
    DropoutUnit,
    EVEModule,
    GaussianHead,
    MixtureDensityHead,
    Network,
    is_eve_site,
    multiplicative_unit,
)

UNITS: dict[str, Any] = {
    "dense": Dense,
    "cell": DeterministicCell,
    "dropout": DropoutUnit,
    "bayesian": BayesianDense,
    "eve": EVEModule,
    "multiplicative": multiplicative_unit,
}
HEADS: dict[str, Any] = {
    "gaussian": GaussianHead,
    "heteroscedastic": partial(GaussianHead, heteroscedastic=True),
    "mixture": MixtureDensityHead,
}
OBJECTIVES: dict[str, Any] = {
    "elbo": TraceMeanField_ELBO,
    "mc-nll": MCNLL_ELBO,
    "moment": MomentMatchedELBO,
    "half": partial(MCNLL_ELBO, elbo_weight=0.5),
}


@dataclass(frozen=True)
class ModelConfig:
    """A model of a table: plain values that a report can print and a file can hold.

    Arguments:
        unit: kind of hidden unit: ``"dense"``, ``"cell"``, ``"dropout"``, ``"bayesian"``,
            ``"eve"`` or ``"multiplicative"``.
        hidden: units per layer. Default (64, 64).
        head: ``"gaussian"`` (one scale for all inputs, the default), ``"heteroscedastic"`` or
            ``"mixture"``.
        objective: ``"elbo"`` (default), ``"mc-nll"``, ``"moment"`` or ``"half"``, which is half
            MC-NLL and half ELBO.
        particles: posterior draws per training step. Default 1.
        residual: whether layers are pre-norm residual blocks. Default False.
        unit_options: passed on to every unit.
        members: networks in a deep ensemble, trained one by one. Default 1.

    Raises:
        ValueError: for an unknown name or a number below 1.

    Example:
        >>> ModelConfig(unit="row")
        Traceback (most recent call last):
        ...
        ValueError: unit must be one of 'dense', 'cell', ... got 'row'
    """

    unit: Literal["dense", "cell", "dropout", "bayesian", "eve", "multiplicative"] = "dense"
    hidden: tuple[int, ...] = (64, 64)
    head: Literal["gaussian", "heteroscedastic", "mixture"] = "gaussian"
    objective: Literal["elbo", "mc-nll", "moment", "half"] = "elbo"
    particles: int = 1
    residual: bool = False
    unit_options: dict[str, Any] = field(default_factory=dict)
    members: int = 1

    def __post_init__(self) -> None:
        check_choice("unit", self.unit, UNITS)
        check_choice("head", self.head, HEADS)
        check_choice("objective", self.objective, OBJECTIVES)
        check_int("particles", self.particles)
        check_int("members", self.members)

    def network(self, in_features: int) -> Network:
        """A freshly initialised network for rows of ``in_features`` columns."""
        trunk = MLP(
            in_features,
            self.hidden,
            unit=UNITS[self.unit],
            residual=self.residual,
            **self.unit_options,
        )
        return Network(trunk, HEADS[self.head](self.hidden[-1]))

    def guide(self, network: nn.Module) -> EVEGuide:
        """The network's guide; random weights get a mean-field Normal."""
        if self.unit != "bayesian":
            return EVEGuide(network)
        # Means of weights must not start at one value: units would never part.
        latents = poutine.block(network, hide_fn=is_eve_site)
        auto = AutoNormal(latents, init_loc_fn=init_to_sample, init_scale=0.01)
        return EVEGuide(network, guide=auto)

    def elbo(self) -> Any:
        """A new objective, to be used for one network."""
        vectorize = self.particles > 1
        return OBJECTIVES[self.objective](
            num_particles=self.particles, vectorize_particles=vectorize, max_plate_nesting=1
        )

    @property
    def lr_multipliers(self) -> dict[str, float]:
        """Learning rates of their own: a global output scale must not be the last to converge."""
        return {"head.log_scale": 10.0} if self.head == "gaussian" else {}


# beta as a weight on the KL averaged over 64 units is 0.1. Fixed on Concrete, seeds 0 to 3, out
# of 30 settings of beta, sigma_init, bounds and modes of sigma, emission, objective and particles.
EVE = ModelConfig(
    unit="eve",
    objective="moment",
    particles=4,
    unit_options={"beta": 0.1 / 64, "sigma_init": 0.3},
)
# The noise of information dropout: as many parameters as the plain MLP. Chosen on Concrete and
# Boston, seeds 0 to 9.
MULTIPLICATIVE = ModelConfig(
    unit="multiplicative", objective="half", particles=2, unit_options={"alpha": 0.5}
)
DROPOUT = ModelConfig(unit="dropout", unit_options={"p": 0.1})
MODELS: dict[str, ModelConfig] = {
    "mlp": ModelConfig(),
    "wide-mlp": ModelConfig(hidden=(94, 94)),
    "hetero-mlp": ModelConfig(head="heteroscedastic"),
    "mixture-mlp": ModelConfig(head="mixture"),
    "mc-dropout": DROPOUT,
    "bayes-mlp": ModelConfig(unit="bayesian"),
    "ensemble": ModelConfig(members=5),
    "dropout-ensemble": replace(DROPOUT, members=5),
    "eve": EVE,
    "eve-multiplicative": MULTIPLICATIVE,
    "eve-ensemble": replace(MULTIPLICATIVE, members=5),
}
