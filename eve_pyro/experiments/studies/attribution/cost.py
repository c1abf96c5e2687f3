"""What a neuron costs: training steps and predictions of the study's models, taking turns."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
import pyro
import torch

from eve_pyro.bench import Comparison, measure
from eve_pyro.bench.harness import Step, Timer
from eve_pyro.experiments.store import Outcome
from eve_pyro.experiments.studies.attribution.models import MODELS, NeuronConfig
from eve_pyro.experiments.studies.attribution.noise import make_data
from eve_pyro.experiments.studies.attribution.run import CHUNK
from eve_pyro.infer import CompiledELBO, EVEGuide, StreamingPredictive
from eve_pyro.nn import Network

BATCH = 250
ROWS = 2000  # of a prediction

EAGER: dict[str, NeuronConfig] = {
    **{name: MODELS[name] for name in ("det-scalar", "det-cell", "stoch-hetero")},
    "eve, S = 1": MODELS["eve-elbo"],
    "eve, S = 4": MODELS["eve-mc-4"],
    "eve, S = 10": MODELS["eve-mc-10"],
    "eve, S = 32": MODELS["eve-mc-32"],
    "eve, closed form": MODELS["eve-closed"],
}
# Inductor takes its time for each.
COMPILED = ("det-scalar", "det-cell", "eve, S = 1", "eve, S = 10", "eve, closed form")


def measure_cost(seed: int, turn: float, rounds: int, backend: str = "inductor") -> Outcome:
    """Time the models in one process, round by round, each for ``turn`` seconds.

    A training step is zero_grad, loss, backward and Adam on one batch of 250 rows; ``compiled``
    is the same by :class:`~eve_pyro.infer.CompiledELBO`. A prediction is of 2,000 rows by
    :class:`~eve_pyro.infer.StreamingPredictive`: one pass of a deterministic model, S draws of
    an EVE neuron (256 for the closed form, which has no S of its own).

    Returns:
        The table ``cost``: for each kind (``"step"``, ``"compiled"``, ``"prediction"``) and
        contestant the median ``seconds`` over rounds, the quartiles ``low`` and ``high``,
        ``start_up`` (seconds until the first step is done) and why it is ``missing``, if it is.
    """
    kinds: dict[str, dict[str, Callable[[], Step]]] = {
        "step": {name: partial(_training, seed, c, None) for name, c in EAGER.items()},
        "compiled": {name: partial(_training, seed, EAGER[name], backend) for name in COMPILED},
        "prediction": {name: partial(_prediction, seed, c) for name, c in EAGER.items()},
    }
    rows = []
    for kind, contestants in kinds.items():
        comparison = Comparison(kind, contestants, (), Timer(turn), rounds)
        for m in measure(comparison):
            low, high = m.quartiles
            found = {"seconds": m.median, "low": low, "high": high, "start_up": m.start_up}
            missing = m.unavailable or ""
            rows.append({"kind": kind, "contestant": m.contestant, **found, "missing": missing})
    return Outcome({}, {"cost": pd.DataFrame(rows)})


def _network(seed: int, config: NeuronConfig) -> Network:
    with torch.random.fork_rng([]):
        pyro.set_rng_seed(seed)
        return config.network()


def _training(seed: int, config: NeuronConfig, backend: str | None) -> Step:
    train = make_data("gaussian", BATCH, 1, 1, seed).train
    network = _network(seed, config)
    elbo: Any = config.elbo()
    objective = elbo if backend is None else CompiledELBO(elbo, backend=backend)
    loss = objective(network, EVEGuide(network))
    adam = torch.optim.Adam(loss.parameters(), 5e-3)

    def step() -> None:
        adam.zero_grad()
        loss(train.x, train.y).backward()
        adam.step()

    return _unchecked(step)


def _prediction(seed: int, config: NeuronConfig) -> Step:
    x = make_data("gaussian", 1, 1, ROWS, seed).test.x
    draws = 256 if config.objective == "closed form" else config.particles
    predictive = StreamingPredictive(_network(seed, config), num_samples=draws, chunk_size=CHUNK)
    return lambda: predictive(x)


def _unchecked(step: Step) -> Step:
    """The step without Pyro's checks of arguments and traces, as the trainer takes it."""

    def run() -> None:
        with pyro.validation_enabled(False):
            step()

    return run
