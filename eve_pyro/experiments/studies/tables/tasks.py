"""Which runs the studies of tables need."""

from collections.abc import Sequence
from dataclasses import replace

from eve_pyro.experiments.models import MODELS, ModelConfig
from eve_pyro.experiments.protocol import Protocol
from eve_pyro.experiments.store import Task
from eve_pyro.experiments.studies.tables.run import run_table
from eve_pyro.infer import TrainingConfig, best_backend

# Development used seeds 0 to 9; these were looked at by nobody who chose anything.
FIRST_SEED = 100
SPLIT = "70/15/15"
LITERATURE = "90/10"
CONVERGENCE = "70/15/15, three times the epochs"

DROPOUT_RATES = (0.05, 0.1, 0.2)
_DROPOUT = MODELS["mc-dropout"]
CANDIDATES: dict[str, tuple[ModelConfig, ...]] = {
    **{name: (config,) for name, config in MODELS.items()},
    # Its rate is chosen on the validation rows of every split.
    "mc-dropout": tuple(replace(_DROPOUT, unit_options={"p": p}) for p in DROPOUT_RATES),
}
BASELINE = "mlp"
# On 20 seeds; the others on 10.
CONTENDERS = ("mlp", "mc-dropout", "ensemble", "eve", "eve-multiplicative", "eve-ensemble")
OTHERS = ("dropout-ensemble", "wide-mlp", "hetero-mlp", "mixture-mlp", "bayes-mlp")
SINGLE = ("mlp", "mc-dropout", "eve", "eve-multiplicative")

PROTOCOL = Protocol(TrainingConfig(epochs=400, progress=False))
SMOKE_PROTOCOL = Protocol(
    TrainingConfig(epochs=2, progress=False), num_samples=8, validation_samples=4
)


def tasks(table: str, smoke: bool, *, convergence: bool = False) -> list[Task]:
    """The runs of one table's study.

    Arguments:
        table: name of the table.
        smoke: two seeds and two epochs instead.
        convergence: whether to train some models three times as long as well.
    """
    # Compiled, the study takes half the time, and the numbers are the same up to rounding.
    protocol = SMOKE_PROTOCOL if smoke else replace(PROTOCOL, backend=best_backend())
    many, few, five = (2, 1, 1) if smoke else (20, 10, 5)
    longer = replace(protocol.training, epochs=3 * protocol.training.epochs)
    # 10 % for the test; of the rest, one row in ten chooses the epoch and the temperature.
    literature = replace(protocol, fractions=(0.81, 0.09, 0.10))
    found = _runs(table, SPLIT, CONTENDERS, many, protocol)
    found += _runs(table, SPLIT, OTHERS, few, protocol)
    found += _runs(table, LITERATURE, SINGLE, many, literature)
    if convergence:
        found += _runs(table, CONVERGENCE, SINGLE, five, replace(protocol, training=longer))
    return found


# Tables on which nothing was chosen.
JUDGED = ("energy", "yacht", "airfoil", "wine")
LARGE = ("bike", "protein")
JUDGED_MODELS = (*CONTENDERS, "dropout-ensemble", "hetero-mlp", "mixture-mlp")
LARGE_ROWS = 12_000


def judged_tasks(smoke: bool) -> list[Task]:
    """The runs that judge, once, on tables that no configuration was chosen on.

    Arguments:
        smoke: one seed and two epochs of the smallest table instead.
    """
    if smoke:
        return _runs("uci", "yacht", JUDGED_MODELS, 2, SMOKE_PROTOCOL, table="yacht")
    protocol = replace(PROTOCOL, backend=best_backend())
    short = replace(protocol, training=replace(protocol.training, epochs=60))
    found = []
    for table in JUDGED:
        found += _runs("uci", table, JUDGED_MODELS, 10, protocol, table=table)
    for table in LARGE:
        found += _runs("uci", table, JUDGED_MODELS, 3, short, table=table, rows=LARGE_ROWS)
    return found


def _runs(
    study: str,
    setting: str,
    models: Sequence[str],
    seeds: int,
    protocol: Protocol,
    *,
    table: str | None = None,
    rows: int | None = None,
) -> list[Task]:
    extra = {} if rows is None else {"rows": rows}
    return [
        Task(
            study,
            setting,
            model,
            seed,
            run_table,
            {
                "table": table or study,
                "candidates": CANDIDATES[model],
                "protocol": protocol,
                **extra,
            },
        )
        for seed in range(FIRST_SEED, FIRST_SEED + seeds)
        for model in models
    ]
