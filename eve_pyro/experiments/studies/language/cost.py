"""What EVE costs: training steps and predictions, the models taking turns in one process."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pandas as pd
import pyro
import torch

from eve_pyro.bench import Comparison, measure
from eve_pyro.bench.harness import Step, Timer
from eve_pyro.experiments.store import Outcome
from eve_pyro.experiments.studies.language.memory import keep_freed_memory
from eve_pyro.experiments.studies.language.models import BlockConfig, Shape
from eve_pyro.experiments.studies.language.ranks import ranks
from eve_pyro.infer import (
    CompiledELBO,
    EVEGuide,
    PosteriorDraw,
    PosteriorMean,
    best_backend,
)
from eve_pyro.nn import LanguageModel, weight_decay_groups


def measure_cost(
    seed: int,
    shape: Shape,
    vocab_size: int,
    models: dict[str, BlockConfig],
    compiled: tuple[str, ...],
    batch: int,
    num_samples: int,
    turn: float,
    rounds: int,
    backend: Literal["inductor", "eager"] = "inductor",
) -> Outcome:
    """Time training steps and predictions on one batch of random tokens.

    A step is zero_grad, loss, backward, clipping and AdamW; ``compiled`` is the same by
    :class:`~eve_pyro.infer.CompiledELBO`. A prediction is the probabilities of every next
    token: of a deterministic model one pass; of a model that draws, ``at the mean`` one pass at
    the posterior means, and S draws, averaged.

    Arguments:
        seed: of weights and tokens.
        shape, vocab_size, models: what to time.
        compiled: names of the models whose steps are timed compiled as well.
        batch: windows.
        num_samples: S.
        turn: least seconds of a turn.
        rounds: turns of each model.
        backend: of the compiled steps.

    Returns:
        The table ``cost``: for each kind (``"step"``, ``"compiled"``, ``"prediction"``) and
        contestant the median ``seconds`` over rounds, the quartiles ``low`` and ``high``,
        ``start_up`` (seconds until the first step is done) and why it is ``missing``, if it is.
    """
    keep_freed_memory()
    with ranks() as here:
        table = None
        if here.first:
            with torch.random.fork_rng([]):
                pyro.set_rng_seed(seed)
                tokens = torch.randint(vocab_size, (batch, shape.context + 1))
            tokens = tokens.to(here.device)

            def build(name: str) -> LanguageModel:
                with torch.random.fork_rng([]):
                    pyro.set_rng_seed(seed)
                    model = models[name].model(shape, vocab_size)
                return model.to(here.device)

            predictions: dict[str, Callable[[], Step]] = {}
            for name, block in models.items():
                if not block.draws:
                    predictions[name] = partial(_prediction, build, name, tokens, None)
                    continue
                predictions[f"{name}, at the mean"] = partial(
                    _prediction, build, name, tokens, None
                )
                for count in (1, num_samples):
                    predictions[f"{name}, S = {count}"] = partial(
                        _prediction, build, name, tokens, count
                    )
            steps = partial(_training, build, models, tokens)
            how = best_backend(backend)
            kinds: dict[str, dict[str, Callable[[], Step]]] = {
                "step": {name: partial(steps, name, None) for name in models},
                "compiled": {name: partial(steps, name, how) for name in compiled},
                "prediction": predictions,
            }
            table = _table(kinds, Timer(turn), rounds)
        return Outcome({}, {"cost": here.tell(table)})


def _table(
    kinds: dict[str, dict[str, Callable[[], Step]]], timer: Timer, rounds: int
) -> pd.DataFrame:
    rows = []
    for kind, contestants in kinds.items():
        for m in measure(Comparison(kind, contestants, (), timer, rounds)):
            low, high = m.quartiles
            found = {"seconds": m.median, "low": low, "high": high, "start_up": m.start_up}
            missing = m.unavailable or ""
            rows.append({"kind": kind, "contestant": m.contestant, **found, "missing": missing})
    return pd.DataFrame(rows)


def _training(
    build: Callable[[str], LanguageModel],
    models: dict[str, BlockConfig],
    tokens: torch.Tensor,
    name: str,
    backend: Literal["inductor", "eager"] | None,
) -> Step:
    model, elbo = build(name), models[name].elbo()
    objective: Any = elbo if backend is None else CompiledELBO(elbo, backend=backend)
    loss = objective(model, EVEGuide(model))
    adam = torch.optim.AdamW(weight_decay_groups(model, 0.1), lr=1e-6, fused=True)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step() -> float:
        with pyro.validation_enabled(False):  # as in training
            adam.zero_grad()
            (loss(inputs, targets) / targets.numel()).backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            return norm.item()  # waits for the device, as training does

    # A compiled loss is eager, and records, in its first call.
    step()
    return step


def _prediction(
    build: Callable[[str], LanguageModel], name: str, tokens: torch.Tensor, draws: int | None
) -> Step:
    network = build(name).network.eval()
    inputs = tokens[:, :-1].contiguous()

    @torch.no_grad()
    def predict() -> float:
        with PosteriorMean() if draws is None else PosteriorDraw():
            total = network(inputs).softmax(-1)
            for _ in range(1, draws or 1):
                total += network(inputs).softmax(-1)
        return total[0, 0, 0].item()

    def step() -> float:
        with pyro.validation_enabled(False):
            return predict()

    return step
