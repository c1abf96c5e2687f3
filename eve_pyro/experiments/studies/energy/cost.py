"""What a training step costs: the deterministic networks and EVE, taking turns in one process."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
import pyro
import torch

from eve_pyro.bench import Comparison, measure
from eve_pyro.bench.harness import Step, Timer
from eve_pyro.experiments.models import ModelConfig
from eve_pyro.experiments.store import Outcome
from eve_pyro.infer import CompiledELBO, EVEGuide

FEATURES = 8


def measure_cost(
    seed: int,
    contests: Sequence[tuple[str, dict[str, ModelConfig], str | None]],
    batch: int,
    turn: float,
    rounds: int,
) -> Outcome:
    """Time training steps: zero_grad, loss, backward, clipping and Adam on one batch of noise.

    Arguments:
        seed: of weights and data.
        contests: for each, its name, the models that take turns, and the backend of
            :class:`~eve_pyro.infer.CompiledELBO` (None for eager).
        batch: rows.
        turn: least seconds of a turn.
        rounds: turns of each model.

    Returns:
        The table ``cost``: for each contest and network the median ``seconds`` of a step over
        rounds, the quartiles ``low`` and ``high``, ``start_up`` (seconds until the first step is
        done) and why it is ``missing``, if it is.
    """
    rows = []
    for name, models, backend in contests:
        builds = {model: partial(_step, seed, c, batch, backend) for model, c in models.items()}
        for m in measure(Comparison(name, builds, (), Timer(turn), rounds)):
            low, high = m.quartiles
            rows.append(
                {
                    "contest": name,
                    "network": m.contestant,
                    "seconds": m.median,
                    "low": low,
                    "high": high,
                    "start_up": m.start_up,
                    "missing": m.unavailable or "",
                }
            )
    return Outcome({}, {"cost": pd.DataFrame(rows)})


def _step(seed: int, config: ModelConfig, batch: int, backend: str | None) -> Step:
    with torch.random.fork_rng([]):
        pyro.set_rng_seed(seed)
        network = config.network(FEATURES)
        x, y = torch.randn(batch, FEATURES), torch.randn(batch)
    elbo: Any = config.elbo()
    objective = elbo if backend is None else CompiledELBO(elbo, backend=backend)
    loss = objective(network, EVEGuide(network))
    parameters = list(network.parameters())
    adam = torch.optim.Adam(parameters, 1e-6, fused=True)

    def step() -> None:
        with pyro.validation_enabled(False):  # as the trainer does
            adam.zero_grad()
            loss(x, y).backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            adam.step()

    # A compiled loss is eager, and records, in its first call.
    step()
    return step
