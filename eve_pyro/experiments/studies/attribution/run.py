"""One run: draw the data, train, choose the epoch on validation, score on test."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyro
import torch
from torch import Tensor, nn

from eve_pyro._checks import check_int
from eve_pyro.diagnostics import noise_correlation
from eve_pyro.experiments.store import Outcome
from eve_pyro.experiments.studies.attribution.models import NeuronConfig, internal_spread
from eve_pyro.experiments.studies.attribution.noise import (
    LIMIT,
    Data,
    make_data,
    oracle,
    true_scale,
)
from eve_pyro.infer import (
    EVEGuide,
    GaussianMixture,
    StreamingPredictive,
    Trainer,
    TrainingConfig,
)
from eve_pyro.metrics import evaluate, fit_temperature, mc_nll, nll
from eve_pyro.nn import Network

CHUNK = 2**15  # rows times draws in one pass: a network this small is all overhead below
CURVE_POINTS = 60
GRID_POINTS = 400


@dataclass(frozen=True)
class Recipe:
    """What all models of a setting have in common.

    Arguments:
        epochs, batch_size, learning_rate: of Adam with a cosine schedule to 0.
        validation_rows, test_rows: sizes of the parts.
        num_samples: S of predictions, the same for every stochastic model.
        validation_samples: draws for the score that picks the best epoch.

    Raises:
        ValueError: for a number below 1.

    Example:
        >>> Recipe(num_samples=0)
        Traceback (most recent call last):
        ...
        ValueError: num_samples must be an integer >= 1, got 0
    """

    epochs: int = 200
    batch_size: int = 250
    learning_rate: float = 1e-2
    validation_rows: int = 500
    test_rows: int = 2000
    num_samples: int = 256
    validation_samples: int = 64

    def __post_init__(self) -> None:
        for name in ("validation_rows", "test_rows", "num_samples", "validation_samples"):
            check_int(name, getattr(self, name))


def run_model(
    seed: int,
    noise: str,
    rows: int,
    config: NeuronConfig,
    recipe: Recipe,
    calibrate: bool = True,
    curve: bool = False,
) -> Outcome:
    """Train one model on one data set and score it.

    Scores: those of :func:`~eve_pyro.metrics.evaluate` on test rows, the same behind
    ``calibrated_`` (spread times a ``temperature`` fitted on validation rows) and, for the four
    that it has, behind ``oracle_``; ``sigma_y`` (the learned output scale, NaN where it depends
    on the input), ``parameters``, ``best_epoch``; and ``r_sigma``, ``r_spread``, ``r_kl``
    (:func:`internal_spread`) and ``r_predictive_sd``: correlations with s(x) over a grid of
    inputs, NaN for what does not vary.

    Arguments:
        seed: of data, initial weights, order of rows and noise.
        noise: see :func:`make_data`.
        rows: of training.
        config: the model.
        recipe: of training and evaluation.
        calibrate: whether to score the calibrated predictive too. Default True.
        curve: whether to keep the table ``curve`` over x for a figure. Default False.

    Raises:
        FloatingPointError: if training diverges.
    """
    data = make_data(noise, rows, recipe.validation_rows, recipe.test_rows, seed)
    # Draws punish a model whose output scale is small because its neuron carries the noise: the
    # moments of 256 draws are good, their density is not yet. Where the noise is Gaussian the
    # moments say all; where it is not, only the density tells the models apart.
    judge = nll if noise == "gaussian" else mc_nll
    network, guide, best_epoch = _train(seed, data, config, recipe, judge)

    def predict(x: Tensor) -> GaussianMixture:
        predictive = StreamingPredictive(network, guide, recipe.num_samples, chunk_size=CHUNK)
        return predictive(x, seed=seed)

    on_test = predict(data.test.x)
    scores: dict[str, float] = evaluate(on_test, data.test.y)
    if calibrate:
        temperature = fit_temperature(predict(data.validation.x), data.validation.y)
        scores["temperature"] = temperature
        calibrated = evaluate(on_test.rescale(temperature), data.test.y)
        scores |= {f"calibrated_{k}": v for k, v in calibrated.items()}
    scores |= {f"oracle_{k}": v for k, v in oracle(noise, data.test).items()}
    log_scale: Any = network.head.log_scale
    one = isinstance(log_scale, nn.Parameter)
    scores["sigma_y"] = log_scale.detach().exp().item() if one else float("nan")
    scores["parameters"] = sum(p.numel() for p in network.parameters())
    scores["best_epoch"] = best_epoch
    scores |= _correlations(network, predict)
    tables = {"curve": _curve(network, predict)} if curve else {}
    return Outcome(scores, tables)


def _train(
    seed: int, data: Data, config: NeuronConfig, recipe: Recipe, judge: Callable[..., Tensor]
) -> tuple[Network, EVEGuide, float]:
    """The trained network, its guide, and the epoch of its parameters."""
    with torch.random.fork_rng([]):
        pyro.set_rng_seed(seed)
        network = config.network()
    guide = EVEGuide(network)

    def score(model: nn.Module, guide: Any) -> float:
        draws = StreamingPredictive(model, guide, recipe.validation_samples, chunk_size=CHUNK)
        return judge(draws(data.validation.x, seed=0), data.validation.y).item()

    training = TrainingConfig(
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        lr_multipliers=config.lr_multipliers,
        clip_norm=None,
        seed=seed,
        progress=False,
    )
    history = Trainer(network, guide, config.elbo(), training).fit(
        data.train.x,
        data.train.y,
        validation=score,
        model_kwargs={"num_data": len(data.train.x)},
    )
    best = history.best_epoch
    return network, guide, float("nan") if best is None else float(best)


@torch.no_grad()
def _correlations(network: Network, predict: Any) -> dict[str, float]:
    x = torch.linspace(-LIMIT, LIMIT, GRID_POINTS)[:, None]
    signals = {**internal_spread(network, x), "predictive_sd": predict(x).stddev}
    table = noise_correlation(signals, true_scale(x[:, 0]), permutations=1)
    names = ("sigma", "spread", "kl", "predictive_sd")
    return {f"r_{name}": float(table.r.get(name, float("nan"))) for name in names}


@torch.no_grad()
def _curve(network: Network, predict: Any) -> pd.DataFrame:
    x = torch.linspace(-LIMIT, LIMIT, CURVE_POINTS)
    signals = {
        "x": x,
        "true_scale": true_scale(x),
        "predictive_sd": predict(x[:, None]).stddev,
        **internal_spread(network, x[:, None]),
    }
    return pd.DataFrame({name: signal.numpy() for name, signal in signals.items()})
