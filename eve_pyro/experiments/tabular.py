"""A trained model of a table, in the table's own units, that can be kept in a file."""

import os
from dataclasses import asdict
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from eve_pyro import __version__
from eve_pyro.data import Scaler, Table
from eve_pyro.experiments.models import ModelConfig
from eve_pyro.experiments.protocol import Fit, predict
from eve_pyro.infer import CheckpointError, EVEGuide, GaussianMixture, local_parameters
from eve_pyro.infer.checkpoint import load_model_state, read, save_model
from eve_pyro.nn import Network


class TabularModel:
    """Predicts a table's target from rows of its features, both in their own units.

    Arguments:
        networks, guides: the members of an ensemble; one each otherwise.
        config: what they were built from.
        features, target: the scalers, fitted on training rows.
        temperature: factor on the predictive spread.
        feature_names: of the columns, in order.
        target_name, target_unit: of the target.
        num_samples: posterior draws of a prediction.

    Example:
        >>> from eve_pyro.data import load_concrete
        >>> from eve_pyro.experiments import MODELS, Protocol, fit
        >>> from eve_pyro.infer import TrainingConfig
        >>> table = load_concrete()
        >>> quick = Protocol(TrainingConfig(epochs=1, progress=False), num_samples=4)
        >>> model = TabularModel.from_fit(fit(table, MODELS["mlp"], 0, quick), table)
        >>> model.predict(table.X[:5]).mean.shape
        torch.Size([5])
    """

    def __init__(
        self,
        networks: list[Network],
        guides: list[EVEGuide],
        config: ModelConfig,
        *,
        features: Scaler,
        target: Scaler,
        temperature: float = 1.0,
        feature_names: tuple[str, ...] = (),
        target_name: str = "y",
        target_unit: str = "",
        num_samples: int = 64,
    ) -> None:
        self.networks, self.guides, self.config = networks, guides, config
        self.features, self.target = features, target
        self.temperature = temperature
        self.feature_names = tuple(feature_names)
        self.target_name, self.target_unit = target_name, target_unit
        self.num_samples = num_samples

    @classmethod
    def from_fit(cls, fit: Fit, table: Table) -> Self:
        """The model of a :func:`~eve_pyro.experiments.fit` of a table."""
        return cls(
            fit.networks,
            fit.guides,
            fit.config,
            features=fit.data.features,
            target=fit.data.target,
            temperature=fit.temperature,
            feature_names=table.feature_names,
            target_name=table.target_name,
            target_unit=table.target_unit,
            num_samples=fit.num_samples,
        )

    def predict(self, X: np.ndarray, *, seed: int = 0) -> GaussianMixture:
        """The calibrated predictive distribution, in the target's unit.

        Arguments:
            X: (rows, features), in the features' own units.
            seed: of the posterior draws.

        Raises:
            ValueError: for another number of columns, no rows, or values that are not finite.
        """
        X = np.asarray(X, dtype=float)
        width = len(self.features.shift)
        if X.ndim != 2 or X.shape[1] != width or not len(X):
            raise ValueError(f"X must have shape (rows >= 1, {width}), got {X.shape}")
        bad = np.argwhere(~np.isfinite(X))
        if len(bad):
            row, column = bad[0]
            raise ValueError(
                f"X must be finite, got {X[row, column]} in row {row}, column {column}"
            )
        x = torch.as_tensor(self.features.transform(X), dtype=torch.float32)
        standardised = predict(self.networks, self.guides, x, self.num_samples, seed)
        return standardised.rescale(self.temperature).affine(
            float(self.target.shift), float(self.target.scale)
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file, whole or not at all.

        Raises:
            CheckpointError: if the file cannot be written.
        """
        config = asdict(self.config)
        metadata = {
            "format": 1,
            "eve_pyro": __version__,
            "config": {**config, "hidden": list(config["hidden"])},
            "features": _scaler_state(self.features),
            "target": _scaler_state(self.target),
            "temperature": self.temperature,
            "feature_names": list(self.feature_names),
            "target_name": self.target_name,
            "target_unit": self.target_unit,
            "num_samples": self.num_samples,
        }
        save_model(path, nn.ModuleList(self.networks), nn.ModuleList(self.guides), metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that :meth:`save` wrote; no code in the file is run.

        Raises:
            CheckpointError: if the file cannot be read, is damaged, or is something else.
        """
        about: dict[str, Any] = read(path, "model")["metadata"]
        if about.get("format") != 1:
            raise CheckpointError(f"{path} is no model of a table: its format is not 1")
        config = ModelConfig(**{**about["config"], "hidden": tuple(about["config"]["hidden"])})
        features = _scaler(about["features"])
        width = len(features.shift)
        networks = [config.network(width) for _ in range(config.members)]
        guides = [config.guide(network) for network in networks]
        # Guides for random weights make their parameters when they first run, for the sites
        # that are latent then: the target must be given.
        with local_parameters(), torch.random.fork_rng([]):
            for guide in guides:
                guide(torch.zeros(1, width), torch.zeros(1))
        load_model_state(path, nn.ModuleList(networks), nn.ModuleList(guides))
        kept = ("temperature", "feature_names", "target_name", "target_unit", "num_samples")
        return cls(
            networks,
            guides,
            config,
            features=features,
            target=_scaler(about["target"]),
            **{name: about[name] for name in kept},
        )


def _scaler_state(scaler: Scaler) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(getattr(scaler, name)) for name in ("shift", "scale")}


def _scaler(state: dict[str, torch.Tensor]) -> Scaler:
    return Scaler(shift=state["shift"].numpy(), scale=state["scale"].numpy())
