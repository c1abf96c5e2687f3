"""Which runs the studies of text need: those that decide about the claims first."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from eve_pyro.experiments.store import Task
from eve_pyro.experiments.studies.language.corpora import TextConfig
from eve_pyro.experiments.studies.language.cost import measure_cost
from eve_pyro.experiments.studies.language.models import BlockConfig, Shape
from eve_pyro.experiments.studies.language.plan import Plan
from eve_pyro.experiments.studies.language.run import Scoring, run_language

# Names of the studies, and of the corpora they read.
CORPORA = {
    "mobydick": "moby_dick",
    "wikitext2": "wikitext2",
    "writingprompts": "writingprompts",
    "pg19": "pg19",
}
FEW, MANY, DEEP, LARGE, COST = (
    "few passes",
    "many passes",
    "four layers",
    "published scale",
    "cost",
)
# Development used seeds 0 and 1; these were looked at by nobody who chose anything.
FIRST_SEED = 100
SEEDS = 5
DEEP_SEEDS = 3

# The forms with a gate have four matrices of EVE's width, gelu(z) three, a dense block two.
CONTROLS: dict[str, BlockConfig] = {
    "plain": BlockConfig(),
    "wide": BlockConfig(width=8.0),
    "narrow": BlockConfig(width=2.0),
    "glu": BlockConfig("glu", width=16 / 3),
}
RATES = (0.1, 0.2, 0.3)
DROPOUT = {f"dropout-{p:g}": BlockConfig(dropout=p) for p in RATES}
# The claims' own, trained with one draw.
EVE: dict[str, BlockConfig] = {
    "eve-gate": BlockConfig("eve"),
    "eve-gelu": BlockConfig("eve", form="gelu", beta=1e-4),
}
# Beyond the paper: a floor keeps training from silencing the noise, MC-NLL rewards it.
_FLOOR = BlockConfig("eve", width=2.0, form="glu", beta=1e-4, sigma_floor=1.0)
BEYOND: dict[str, BlockConfig] = {
    "eve-floor": _FLOOR,
    "eve-mc": replace(_FLOOR, objective="mc", particles=4),
}
# One reading of the whole window per draw; at published scale alone.
COHERENT: dict[str, BlockConfig] = {"eve-shared": replace(BEYOND["eve-mc"], shared_noise=True)}
COMBINED = "eve-dropout"
MODELS = {**CONTROLS, **DROPOUT, **EVE, **BEYOND, COMBINED: replace(_FLOOR, dropout=0.1)}
BALANCED = "eve-balanced"
DEEP_MODELS: dict[str, BlockConfig] = {
    "plain": CONTROLS["plain"],
    "eve-gate": EVE["eve-gate"],
    "eve-floor": _FLOOR,
    # The first layer, which otherwise gives most, pays more for what it says above its noise.
    BALANCED: replace(_FLOOR, beta=(2e-3, 1e-4, 1e-4, 1e-4), sigma_floor=(1.0, 0.4, 0.4, 0.4)),
}


@dataclass(frozen=True)
class Size:
    """How large a study is.

    Arguments:
        shape: of all models; the setting of four layers has four.
        vocab_size: of the tokenizer.
        valid, test: tokens of these parts.
        settings: training tokens (None for all) and epochs by setting.
        plan: how to train; epochs are the settings'.
        scoring: how to score.
        seeds, deep_seeds: numbers of paired runs.
    """

    shape: Shape
    vocab_size: int
    valid: int
    test: int
    settings: dict[str, tuple[int | None, int]]
    plan: Plan
    scoring: Scoring
    seeds: int = SEEDS
    deep_seeds: int = DEEP_SEEDS


COMPACT = Size(
    shape=Shape(d_model=64, num_layers=2, num_heads=4, context=64),
    vocab_size=4096,
    valid=4096,
    test=8192,
    # About 384 steps of 1,024 tokens in each. Compiled, they take three quarters of the time.
    settings={FEW: (98_304, 4), MANY: (24_576, 16), DEEP: (24_576, 16)},
    plan=Plan(epochs=1, backend="inductor"),
    scoring=Scoring(),
)
SMOKE = Size(
    shape=Shape(d_model=16, num_layers=2, num_heads=2, context=16),
    vocab_size=400,
    valid=256,
    test=256,
    settings={FEW: (1024, 1), MANY: (512, 2), DEEP: (512, 1)},
    plan=Plan(epochs=1, batch_size=8, learning_rate=1e-2, num_samples=2),
    scoring=Scoring(num_samples=2, layer_windows=8),
    seeds=2,
    deep_seeds=1,
)
GPU = Size(
    shape=Shape(d_model=512, num_layers=8, num_heads=8, context=256),
    vocab_size=16_384,
    valid=131_072,
    test=262_144,
    settings={LARGE: (None, 4)},
    plan=Plan(
        epochs=1,
        batch_size=64,
        learning_rate=6e-4,
        backend="inductor",
        checkpoint_every=1000,
        progress=True,
    ),
    scoring=Scoring(batch_size=32),
)
_SHIFT_RATES = (0.05, 0.1, 0.2, 0.4)


def tasks(study: str, smoke: bool) -> list[Task]:
    """The runs of one corpus's study.

    Arguments:
        study: one of ``CORPORA``.
        smoke: two seeds of tiny models instead.

    Example:
        >>> len(tasks("mobydick", True)) < len(tasks("mobydick", False))
        True
    """
    if smoke:
        some = ("plain", "wide", "dropout-0.1", "dropout-0.3", "eve-gate", "eve-mc")
        main, rest = {name: MODELS[name] for name in some}, ("plain", "eve-gate")
        few = {name: MODELS[name] for name in rest}
    else:
        main = MODELS
        few = {k: v for k, v in MODELS.items() if k not in ("narrow", COMBINED)}
    size = SMOKE if smoke else COMPACT
    deep = replace(size.shape, num_layers=4)
    found = _runs(study, MANY, main, size, size.seeds, size.shape)
    found += _runs(study, FEW, few, size, 1 if smoke else size.seeds, size.shape)
    found += _runs(study, DEEP, DEEP_MODELS, size, size.deep_seeds, deep)
    return [*found, _cost(study, size, smoke)]


def large_tasks(study: str) -> list[Task]:
    """The runs at published scale, for GPUs."""
    chosen = ("plain", "wide", "dropout-0.1", *EVE, *BEYOND)
    models = {name: MODELS[name] for name in chosen} | COHERENT
    found = _runs(study, LARGE, models, GPU, GPU.seeds, GPU.shape)
    return [*found, _cost(study, GPU, False)]


def _runs(
    study: str,
    setting: str,
    models: dict[str, BlockConfig],
    size: Size,
    seeds: int,
    shape: Shape,
) -> list[Task]:
    train_tokens, epochs = size.settings[setting]
    common: dict[str, Any] = {
        "text": TextConfig(CORPORA[study], size.vocab_size, train_tokens, size.valid, size.test),
        "shape": shape,
        "plan": replace(size.plan, epochs=epochs),
    }
    scoring = size.scoring
    if setting in (MANY, LARGE):
        scoring = replace(scoring, rates=_SHIFT_RATES[-1:] if size is SMOKE else _SHIFT_RATES)
    return [
        Task(
            study,
            setting,
            model,
            seed,
            run_language,
            {**common, "block": block, "scoring": _for(model, scoring)},
        )
        for seed in range(FIRST_SEED, FIRST_SEED + seeds)
        for model, block in models.items()
    ]


# What the shift figure shows.
SHIFTED: Sequence[str] = ("plain", "dropout-0.1", "dropout-0.3", "eve-gate", "eve-mc")


def _for(model: str, scoring: Scoring) -> Scoring:
    return scoring if model in SHIFTED else replace(scoring, rates=())


def _cost(study: str, size: Size, smoke: bool) -> Task:
    arguments: dict[str, Any] = {
        "shape": size.shape,
        "vocab_size": size.vocab_size,
        "models": {name: MODELS[name] for name in ("plain", "wide", "dropout-0.1", "eve-gate")},
        "compiled": ("plain", "wide", "eve-gate"),
        "batch": size.plan.batch_size,
        "num_samples": 4,
        "turn": 0.5,
        "rounds": 7,
    }
    if smoke:
        arguments |= {"turn": 0.0, "rounds": 2, "backend": "eager"}
    return Task(study, COST, "all", FIRST_SEED, measure_cost, arguments, alone=True)
