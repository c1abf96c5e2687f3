"""Which mechanisms are tried on validation text, and which are then judged on test text."""

from dataclasses import replace
from typing import Any

from eve_pyro.experiments.store import Task
from eve_pyro.experiments.studies.language.corpora import TextConfig
from eve_pyro.experiments.studies.language.models import BlockConfig
from eve_pyro.experiments.studies.language.run import run_language
from eve_pyro.experiments.studies.language.tasks import COMPACT, DEEP, SMOKE

NAME = "uncertainty"
TRIED, JUDGED = "tried", "judged"
CORPUS = "wikitext2"
# Of other authors, another period, or both.
OTHER_TEXTS = ("writingprompts", "pg19", "moby_dick")
# No run of the studies of text has the judged seeds.
TRIED_SEEDS, JUDGED_SEEDS = (0, 1), (200, 201, 202)

PLAIN, BASE, DROPOUT = "plain", "base", ("dropout-0.1", "dropout-0.3")
# As many parameters as the plain Transformer's: four matrices of half the width.
_BASE = BlockConfig("eve", width=2.0, form="glu", beta=1e-4)
_PRICES, _FLOORS = (2e-3, 1e-4, 1e-4, 1e-4), (1.0, 0.4, 0.4, 0.4)


def _mc(block: BlockConfig) -> BlockConfig:
    return replace(block, objective="mc", particles=4)


MECHANISMS: dict[str, BlockConfig] = {
    PLAIN: BlockConfig(),
    DROPOUT[0]: BlockConfig(dropout=0.1),
    DROPOUT[1]: BlockConfig(dropout=0.3),
    BASE: _BASE,
    "published": BlockConfig("eve"),
    "beta 0": replace(_BASE, beta=0.0),
    "beta 1e-3": replace(_BASE, beta=1e-3),
    "beta 1e-2": replace(_BASE, beta=1e-2),
    "a dearer first layer": replace(_BASE, beta=_PRICES),
    "KL balancing": replace(_BASE, beta=1e-3, balanced=True),
    "free bits": replace(_BASE, beta=1e-2, free_nats=0.1),
    "warm-up of beta": replace(_BASE, beta=1e-2, warm_up=0.5),
    "learned prior": replace(_BASE, beta=1e-3, learned_prior=True),
    "sigma from 1": replace(_BASE, sigma_init=1.0),
    "sigma >= 0.4": replace(_BASE, sigma_floor=0.4),
    "sigma >= 1": replace(_BASE, sigma_floor=1.0),
    "prices and floors by layer": replace(_BASE, beta=_PRICES, sigma_floor=_FLOORS),
    "shared noise": replace(_BASE, shared_noise=True),
    "shared noise, sigma >= 1": replace(_BASE, shared_noise=True, sigma_floor=1.0),
    "MC-NLL": _mc(_BASE),
    "MC-NLL, sigma >= 1": _mc(replace(_BASE, sigma_floor=1.0)),
    "MC-NLL, prices and floors by layer": _mc(replace(_BASE, beta=_PRICES, sigma_floor=_FLOORS)),
    "MC-NLL, shared noise, sigma >= 1": _mc(replace(_BASE, shared_noise=True, sigma_floor=1.0)),
}
# Chosen on validation text by the rule in claims.by_rule; beside them what they are compared with.
CHOSEN = ("MC-NLL, sigma >= 1", "shared noise, sigma >= 1")
CONTROLS = (PLAIN, *DROPOUT, BASE)


def tasks(smoke: bool) -> list[Task]:
    """All runs.

    Arguments:
        smoke: a few tiny models, on the text that comes with the package.

    Example:
        >>> sorted({task.seed for task in tasks(False)})
        [0, 1, 200, 201, 202]
    """
    size = SMOKE if smoke else COMPACT
    train_tokens, epochs = size.settings[DEEP]
    others = ("moby_dick",) if smoke else OTHER_TEXTS
    common: dict[str, Any] = {
        "text": TextConfig(
            "moby_dick" if smoke else CORPUS, size.vocab_size, train_tokens, size.valid, size.test
        ),
        "shape": replace(size.shape, num_layers=4),
        "plan": replace(size.plan, epochs=epochs),
    }
    # What noise is for is over-fitting: the last epoch decides, and alone is scored.
    scoring = replace(size.scoring, best=False)
    judged = {name: MECHANISMS[name] for name in (*CONTROLS, *CHOSEN)}
    found = [
        Task(NAME, setting, model, seed, run_language, {**common, "block": block, "scoring": how})
        for setting, models, seeds, how in (
            (TRIED, MECHANISMS, TRIED_SEEDS, replace(scoring, part="valid")),
            (JUDGED, judged, JUDGED_SEEDS, replace(scoring, texts=others)),
        )
        for seed in (seeds[:1] if smoke else seeds)
        for model, block in models.items()
    ]
    if not smoke:
        return found
    some = (PLAIN, BASE, "KL balancing", "learned prior", *CHOSEN)
    return [task for task in found if task.model in some]
