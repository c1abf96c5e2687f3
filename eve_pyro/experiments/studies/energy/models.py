"""The models of the study: one shape of network, and the units that may fill it."""

from dataclasses import replace

from eve_pyro.experiments.models import ModelConfig

UNITS = 128
DEPTH = 128


# beta times the number of layers. A layer's share of the output's variance is 1 / L, so that the
# likelihood pulls on its sigma with 1 / L of the force; with a beta that does not fall likewise,
# the KL of deep networks would silence their likelihood.
BETA = 1e-3


def deep(config: ModelConfig, depth: int, units: int = UNITS) -> ModelConfig:
    """A model with ``depth`` residual layers of ``units`` units.

    Example:
        >>> deep(MODELS["eve"], 2, 16)
        ModelConfig(unit='eve', hidden=(16, 16), ... 'beta': 0.0005}, ...)
    """
    options = config.unit_options
    if config.unit == "eve":
        options = {**options, "beta": BETA / depth}
    return replace(config, hidden=(units,) * depth, unit_options=options)


# Fixed on development seeds. A larger sigma at the start of 128 layers would drown the input.
_LATENT = {"emission": "gelu", "sigma_init": 0.1}
MODELS: dict[str, ModelConfig] = {
    "mlp": ModelConfig(residual=True, unit_options={"activation": "gelu"}),
    # EVE without noise, with its number of parameters.
    "cell": ModelConfig(unit="cell", residual=True, unit_options=_LATENT),
    "mc-dropout": ModelConfig(
        unit="dropout", residual=True, unit_options={"activation": "gelu", "p": 0.05}
    ),
    "eve": ModelConfig(
        unit="eve",
        residual=True,
        objective="moment",
        particles=2,
        unit_options=_LATENT,
    ),
}
