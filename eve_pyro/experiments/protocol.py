"""One protocol for every model of a table: train, choose on validation, calibrate, score."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Literal

import pyro
import torch
from torch import Tensor, nn

from eve_pyro._checks import check_choice, check_int, check_real
from eve_pyro.data import Standardized, Table, split, standardize
from eve_pyro.experiments.models import ModelConfig
from eve_pyro.infer import (
    CompiledELBO,
    EVEGuide,
    GaussianMixture,
    History,
    StreamingPredictive,
    Trainer,
    TrainingConfig,
    concatenate,
)
from eve_pyro.metrics import evaluate, fit_temperature
from eve_pyro.nn import Network


@dataclass(frozen=True)
class Protocol:
    """What all models of a study have in common.

    Arguments:
        training: see :class:`~eve_pyro.infer.TrainingConfig`; its seed is replaced by the run's.
        num_samples: posterior draws of a prediction. Default 64.
        validation_samples: draws for the score that picks the best epoch. Default 16.
        level: of the interval whose coverage and width are reported. Default 0.9.
        fractions: shares of rows for training, validation and test. Default (.70, .15, .15).
        grouped: keep rows of one group (near-copies, such as one design of the energy table) in
            one part, where the table has groups. Default True: a split by rows would let the
            test repeat what was trained on.
        backend: of a :class:`~eve_pyro.infer.CompiledELBO` around the objective; None (default)
            to train eagerly. The numbers are the same up to rounding.

    Raises:
        ValueError: for numbers of draws below 1, a level outside (0, 1), or an unknown backend.

    Example:
        >>> Protocol(level=1.5)
        Traceback (most recent call last):
        ...
        ValueError: level must be a finite number in (0, 1), got 1.5
    """

    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(epochs=300, progress=False)
    )
    num_samples: int = 64
    validation_samples: int = 16
    level: float = 0.9
    fractions: tuple[float, float, float] = (0.70, 0.15, 0.15)
    grouped: bool = True
    backend: Literal["inductor", "eager"] | None = None

    def __post_init__(self) -> None:
        check_int("num_samples", self.num_samples)
        check_int("validation_samples", self.validation_samples)
        check_real("level", self.level, 0.0, 1.0, exclusive=True)
        check_choice("backend", self.backend, ("inductor", "eager", None))


@dataclass
class Fit:
    """A trained model with its data, in standardised units, and its calibration.

    Attributes:
        networks, guides: the members of an ensemble; one each otherwise.
        data: the split it was trained on, and its scalers.
        temperature: factor on the predictive spread, fitted by NLL on validation rows.
        histories: of the members' training.
        seconds: wall clock of training.
    """

    networks: list[Network]
    guides: list[EVEGuide]
    data: Standardized
    temperature: float
    histories: list[History]
    seconds: float
    num_samples: int
    config: ModelConfig

    def predict(self, x: Tensor, *, seed: int = 0, calibrated: bool = True) -> GaussianMixture:
        """The predictive distribution, in standardised units, of standardised rows."""
        raw = predict(self.networks, self.guides, x, self.num_samples, seed)
        return raw.rescale(self.temperature) if calibrated else raw

    @property
    def parameters(self) -> int:
        """Number of trained parameters, those of guides included."""
        modules: list[nn.Module] = [*self.networks, *self.guides]
        return sum(p.numel() for m in modules for p in m.parameters())


def fit(table: Table, config: ModelConfig, seed: int, protocol: Protocol) -> Fit:
    """Train a model on one split of a table.

    The seed decides the split, the order of rows, initial weights and noise, the same for every
    model. The best epoch is that of the lowest validation NLL (of the mixture over draws).

    Raises:
        DataError: if a part of the split would be empty.
        FloatingPointError: if training diverges.
    """
    groups = table.groups if protocol.grouped else None
    parts = split(table, seed=seed, fractions=protocol.fractions, groups=groups)
    data = standardize(table, parts)
    networks: list[Network] = []
    guides: list[EVEGuide] = []
    histories: list[History] = []
    start = perf_counter()
    for member in range(config.members):
        member_seed = seed + 10_000 * member
        with torch.random.fork_rng([]):
            pyro.set_rng_seed(member_seed)
            network = config.network(data.train.x.shape[1])
        guide = config.guide(network)
        training = replace(
            protocol.training,
            seed=member_seed,
            lr_multipliers={**config.lr_multipliers, **protocol.training.lr_multipliers},
        )
        elbo = config.elbo()
        if protocol.backend is not None:
            elbo = CompiledELBO(elbo, backend=protocol.backend)
        trainer = Trainer(network, guide, elbo, training)
        histories.append(
            trainer.fit(
                *data.train,
                validation=_ValidationNLL(data.validation, protocol.validation_samples),
                model_kwargs={"num_data": len(data.train.x)},
            )
        )
        networks.append(network)
        guides.append(guide)
    seconds = perf_counter() - start
    raw = predict(networks, guides, data.validation.x, protocol.num_samples, seed)
    temperature = fit_temperature(raw, data.validation.y)
    samples = protocol.num_samples
    return Fit(networks, guides, data, temperature, histories, seconds, samples, config)


class _ValidationNLL:
    def __init__(self, part: Any, num_samples: int) -> None:
        self.part, self.num_samples = part, num_samples

    def __call__(self, model: nn.Module, guide: Any) -> float:
        predictive = StreamingPredictive(model, guide, self.num_samples)
        return -predictive(self.part.x, seed=0).log_prob(self.part.y).mean().item()


def predict(
    networks: Sequence[nn.Module],
    guides: Sequence[EVEGuide],
    x: Tensor,
    num_samples: int,
    seed: int,
) -> GaussianMixture:
    """The predictive distribution of one network, or of an ensemble's members alike."""
    members = [
        StreamingPredictive(network, guide, num_samples)(x, seed=seed)
        for network, guide in zip(networks, guides, strict=True)
    ]
    return concatenate(members)


def score(result: Fit, table: Table, protocol: Protocol, *, seed: int = 0) -> dict[str, Any]:
    """Test scores of a fit, raw and calibrated, in standardised and in the target's own units.

    Returns a flat dict: ``raw_`` and ``calibrated_`` before the keys of
    :func:`~eve_pyro.metrics.evaluate` for the standardised target, the same with ``_unit``
    behind for the target in its own unit, and ``temperature``, ``sigma_y`` (the learned output
    scale, standardised; NaN where it depends on the input), ``parameters``, ``best_epoch`` and
    ``seconds``. Scores ending in nll are in nats per datum.
    """
    test, target = result.data.test, result.data.target
    shift, scale = float(target.shift), float(target.scale)
    y_unit = shift + scale * test.y
    row: dict[str, Any] = {}
    for name, calibrated in (("raw", False), ("calibrated", True)):
        predictive = result.predict(test.x, seed=seed, calibrated=calibrated)
        for key, value in evaluate(predictive, test.y, level=protocol.level).items():
            row[f"{name}_{key}"] = value
        in_units = predictive.affine(shift, scale)
        for key, value in evaluate(in_units, y_unit, level=protocol.level).items():
            row[f"{name}_{key}_unit"] = value
    log_scales = [getattr(n.head, "log_scale", None) for n in result.networks]
    learned = [s.exp().item() for s in log_scales if isinstance(s, nn.Parameter)]
    row["temperature"] = result.temperature
    row["sigma_y"] = sum(learned) / len(learned) if learned else float("nan")
    row["parameters"] = result.parameters
    best = [h.best_epoch for h in result.histories if h.best_epoch is not None]
    row["best_epoch"] = sum(best) / len(best) if best else float("nan")
    row["seconds"] = result.seconds
    return row
