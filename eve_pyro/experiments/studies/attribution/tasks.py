"""The runs of the study."""

from dataclasses import replace
from typing import Any

from eve_pyro.experiments.store import Task
from eve_pyro.experiments.studies.attribution.cost import measure_cost
from eve_pyro.experiments.studies.attribution.models import MODELS, NeuronConfig
from eve_pyro.experiments.studies.attribution.noise import NOISES
from eve_pyro.experiments.studies.attribution.run import Recipe, run_model

STUDY_NAME = "attribution"
# What the page shows a curve of, and what the ablations change.
CURVE_SETTING = "gaussian-2000"
ABLATED = "eve-mc-32"

SEEDS = tuple(range(100, 110))
ABLATION_SEEDS = SEEDS[:5]

# With 300 rows batches are smaller, so that there are 600 steps; with 2,000 there are 1,600.
RECIPES = {2000: Recipe(), 300: Recipe(batch_size=100)}
SMOKE_RECIPE = Recipe(
    epochs=2, batch_size=50, validation_rows=40, test_rows=40, num_samples=8, validation_samples=4
)

# Gaussian noise and 2,000 rows get all models; others those that claims or targets speak of.
FEWER = ("det-cell", "stoch-hetero", "stoch-hetero-z", "mixture", "eve-mc-32", "eve-head")
FEWEST = ("det-cell", "stoch-hetero", "mixture", "eve-head")

_BASE = MODELS[ABLATED]
ABLATIONS: dict[str, NeuronConfig] = {
    "sigma per unit": replace(_BASE, sigma="unit"),
    "mean only": NeuronConfig("scalar"),
    "beta 0 (no KL)": replace(_BASE, beta=0.0),
    **{f"beta {b:g}": replace(_BASE, beta=b) for b in (1e-4, 1e-2, 1e-1, 1.0)},
    **{f"units {u}": replace(_BASE, units=u) for u in (1, 2, 4, 16)},
    "units 1, latent dims 8": replace(_BASE, units=1, latent_dim=8),
    **{f"emission {e}": replace(_BASE, emission=e) for e in ("tanh", "relu", "gated")},
    **{f"sigma_init {s:g}": replace(_BASE, sigma_init=s) for s in (0.1, 1.0)},
}


def setting_name(noise: str, rows: int) -> str:
    """Name of a law of noise and a number of training rows.

    Example:
        >>> setting_name("gaussian", 2000)
        'gaussian-2000'
    """
    return f"{noise}-{rows}"


def tasks(smoke: bool) -> list[Task]:
    """All runs, seed by seed, so that an interrupted study has whole seeds; the cost comes last.

    Example:
        >>> len(tasks(smoke=True)) < len(tasks(smoke=False))
        True
    """
    seeds = SEEDS[:2] if smoke else SEEDS
    found: list[Task] = []
    for seed in seeds:
        for noise in NOISES:
            for rows in RECIPES:
                for name in _names(noise, rows, smoke):
                    setting = setting_name(noise, rows)
                    found.append(_run(setting, noise, rows, name, MODELS[name], seed, smoke))
        if seed in ABLATION_SEEDS[: 1 if smoke else None]:
            chosen = list(ABLATIONS.items())[:: 6 if smoke else 1]
            found += [
                _run("ablation", "gaussian", 2000, name, config, seed, smoke)
                for name, config in chosen
            ]
    cost: dict[str, Any] = {"turn": 0.2, "rounds": 9}
    if smoke:
        cost = {"turn": 0.001, "rounds": 2, "backend": "eager"}
    found.append(Task(STUDY_NAME, "cost", "all", seeds[0], measure_cost, cost, alone=True))
    return found


def _names(noise: str, rows: int, smoke: bool) -> tuple[str, ...]:
    """The models of a setting; in a smoke run all of them once, and a few elsewhere."""
    if (noise, rows) == ("gaussian", 2000):
        return tuple(MODELS)
    if smoke:
        return (
            ("det-cell", "stoch-hetero", "eve-head") if rows == 2000 else ("det-cell", "eve-head")
        )
    return FEWER if rows == 2000 or noise == "gaussian" else FEWEST


def _run(
    setting: str, noise: str, rows: int, name: str, config: NeuronConfig, seed: int, smoke: bool
) -> Task:
    arguments: dict[str, Any] = {
        "noise": noise,
        "rows": 100 if smoke else rows,
        "config": config,
        "recipe": SMOKE_RECIPE if smoke else RECIPES[rows],
        "calibrate": setting != "ablation",
        "curve": setting == CURVE_SETTING,
    }
    return Task(STUDY_NAME, setting, name, seed, run_model, arguments)
