"""Which runs the study needs: those that decide about the claims first."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from eve_pyro.experiments.models import ModelConfig
from eve_pyro.experiments.protocol import Protocol
from eve_pyro.experiments.store import Task
from eve_pyro.experiments.studies.energy.cost import measure_cost
from eve_pyro.experiments.studies.energy.models import DEPTH, MODELS, UNITS, deep
from eve_pyro.experiments.studies.energy.run import run_deep
from eve_pyro.infer import TrainingConfig, best_backend

NAME = "energy"
RANDOM = "random split"
DESIGN = "split by design"
COST = "cost"
# Development used seeds below; these were looked at by nobody who chose anything.
FIRST_SEED = 100
SEEDS = 5
# The sweep asks for a trend; its deepest point is the main comparison.
SWEEP = (2, 8, 32)
SWEEP_SEEDS = 3
COMPILED_DEPTH = 8
SMOKE_DEPTH = 3


def sweep_setting(depth: int) -> str:
    """Name of the sweep's setting with networks of one depth.

    Example:
        >>> sweep_setting(8)
        'random split, 8 layers'
    """
    return f"{RANDOM}, {depth} layers"


# Two thirds of 768 rows are 512, eight whole batches: one shape of batch, hence one program.
PROTOCOL = Protocol(
    TrainingConfig(epochs=400, batch_size=64, learning_rate=2e-3, clip_norm=1.0, progress=False),
    num_samples=64,
    validation_samples=8,
    fractions=(2 / 3, 1 / 6, 1 / 6),
    grouped=False,
)
# The recorded graph halves the time of a step, and Inductor saves 0.4 of the rest. It compiles 128
# layers in a minute or two, once: later runs load the program from its cache on disk.
BACKEND = best_backend()
# Epochs between two looks, each of which costs an EVE network as much as fifteen steps.
EVERY = 20
_FULL: dict[str, Any] = {"protocol": PROTOCOL, "every": EVERY, "backend": BACKEND}
_SMOKE: dict[str, Any] = {
    "protocol": replace(
        PROTOCOL,
        training=replace(PROTOCOL.training, epochs=2, batch_size=256),
        num_samples=8,
        validation_samples=2,
    ),
    "every": 1,
    "backend": BACKEND,
}


def tasks(smoke: bool) -> list[Task]:
    """The runs of the study.

    Arguments:
        smoke: one or two seeds of tiny networks for two epochs instead.
    """
    common = _SMOKE if smoke else _FULL
    depth, units, seeds = (SMOKE_DEPTH, 8, 2) if smoke else (DEPTH, UNITS, SEEDS)
    # Two predictions for each of 128 layers: few rows, or this takes as long as training.
    spread = (8, 4) if smoke else (16, 16)

    def runs(setting: str, models: Sequence[str], depth: int, seeds: int, grouped: bool) -> Any:
        return [
            _run(setting, model, deep(MODELS[model], depth, units), seed, common, spread, grouped)
            for seed in range(FIRST_SEED, FIRST_SEED + seeds)
            for model in models
        ]

    found = runs(RANDOM, ("mlp", "eve"), depth, seeds, False)
    found += runs(DESIGN, ("mlp", "eve"), depth, 1 if smoke else seeds, True)
    found += runs(RANDOM, ("cell",), depth, 1 if smoke else seeds, False)
    for shallow in (2,) if smoke else SWEEP:
        few = 1 if smoke else SWEEP_SEEDS
        found += runs(sweep_setting(shallow), ("mlp", "eve"), shallow, few, False)
    found += runs(RANDOM, ("mc-dropout",), depth, 1 if smoke else seeds, False)
    return [*found, _cost(smoke, depth, units)]


def _run(
    setting: str,
    model: str,
    config: ModelConfig,
    seed: int,
    common: dict[str, Any],
    spread: tuple[int, int],
    grouped: bool,
) -> Task:
    arguments = {**common, "config": config}
    arguments["protocol"] = replace(arguments["protocol"], grouped=grouped)
    if model == "eve":
        arguments["spread"] = spread
    return Task(NAME, setting, model, seed, run_deep, arguments)


def _cost(smoke: bool, depth: int, units: int) -> Task:
    shallow = 2 if smoke else COMPILED_DEPTH
    one_draw = replace(MODELS["eve"], objective="elbo", particles=1)
    models = {
        "mlp": MODELS["mlp"],
        "cell": MODELS["cell"],
        "eve": one_draw,
        "eve, as trained": MODELS["eve"],
    }
    contests = tuple(
        (f"{layers} layers, {kind}", {n: deep(c, layers, units) for n, c in models.items()}, how)
        for layers, kind, how in (
            (depth, "eager", None),
            (shallow, "eager", None),
            (shallow, "compiled", "eager" if smoke else "inductor"),
        )
    )
    turn, rounds = (0.0, 2) if smoke else (1.0, 10)
    arguments = {"contests": contests, "batch": 64, "turn": turn, "rounds": rounds}
    return Task(NAME, COST, "all", FIRST_SEED, measure_cost, arguments, alone=True)
