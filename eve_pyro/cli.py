"""The command ``eve-pyro``: demo, fit, predict, reproduce, bench.

Each subcommand is a function; ``tyro`` makes its options from the signature. Heavy imports
happen inside, so that ``--help`` is quick.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro

ModelName = Literal[
    "mlp",
    "wide-mlp",
    "hetero-mlp",
    "mixture-mlp",
    "mc-dropout",
    "bayes-mlp",
    "ensemble",
    "dropout-ensemble",
    "eve",
    "eve-multiplicative",
    "eve-ensemble",
]


def demo(
    data: Literal["concrete", "boston", "energy"] = "concrete",
    seeds: int = 8,
    epochs: int = 300,
    out: Path = Path("eve-demo"),
    jobs: int = 0,
) -> None:
    """Train EVE next to a plain MLP, a heteroscedastic MLP and MC-dropout, and compare them.

    Prints a table of test scores and one of layer statistics; writes tables, figures, the
    trained EVE model and the configuration to the output folder.

    Args:
        data: the table; energy is downloaded, or read from the folder in EVE_PYRO_DATA.
        seeds: number of paired runs: split, order of rows, initial weights and noise.
        epochs: passes over the training rows.
        out: output folder.
        jobs: processes at once, one thread each; 0 for one per core.
    """
    from eve_pyro.experiments.demo import DemoConfig
    from eve_pyro.experiments.demo_report import run_and_report

    run_and_report(DemoConfig(data, seeds, epochs, jobs=jobs), out)


def fit(
    data: str,
    target: str | None = None,
    model: ModelName = "eve",
    out: Path = Path("eve-fit.pt"),
    seed: int = 0,
    epochs: int = 300,
    validation: float = 0.15,
    test: float = 0.15,
) -> None:
    """Fit a model to a table, print its test scores, and keep it in a file.

    Args:
        data: a CSV file with a header and numbers only, or the name of a table
            (concrete, boston, energy, ...).
        target: column to predict; the last one by default.
        model: what to fit.
        out: file for the model.
        seed: of the split, the initial weights and the noise.
        epochs: passes over the training rows.
        validation: share of rows that choose the epoch and calibrate.
        test: share of rows kept for the scores.
    """
    from eve_pyro.experiments.tables import fit_and_report

    fit_and_report(data, target, model, out, seed, epochs, validation, test)


def predict(
    model: Annotated[Path, tyro.conf.Positional],
    data: Path,
    out: Path = Path("predictions.csv"),
    level: float = 0.9,
    seed: int = 0,
) -> None:
    """Predict for the rows of a CSV file with a model that ``fit`` or ``demo`` wrote.

    Writes one row per row of the input: mean, sd, its aleatoric and epistemic parts, and the
    ends of the central interval, in the target's unit.

    Args:
        model: the model's file.
        data: a CSV file with the model's feature columns; others are ignored.
        out: file for the predictions.
        level: probability of the interval.
        seed: of the posterior draws.
    """
    from eve_pyro.experiments.tables import predict_and_write

    predict_and_write(model, data, out, level, seed)


def reproduce(
    study: Annotated[
        Literal[
            "attribution",
            "boston",
            "concrete",
            "energy",
            "uci",
            "mobydick",
            "wikitext2",
            "writingprompts",
            "pg19",
            "uncertainty",
            "all",
        ],
        tyro.conf.Positional,
    ],
    smoke: bool = False,
    out: Path = Path("eve-results"),
    jobs: int = 0,
    size: Literal["compact", "gpu"] = "compact",
) -> None:
    """Re-run the evidence: a study with its controls, and a page with the published numbers.

    Writes ``<study>.md`` and a folder with its figures, the scores of every run and, in
    ``runs``, one file per finished run. Those are not repeated: after Ctrl-C, or a kill, the same
    command goes on. On two cores attribution, boston and concrete take an hour and a half
    together, energy up to three, each text and uncertainty less than one. Moby-Dick comes with
    the package; the other texts are read from the folder in EVE_PYRO_DATA, or from the Hugging
    Face hub.

    Args:
        study: which; or all of them.
        smoke: about a minute each, in the folder ``smoke``, to see that everything works.
        out: output folder.
        jobs: processes at once, one thread each; 0 for one per core.
        size: gpu for a text at published scale, on one GPU or under torchrun on several; it has
            the folder ``gpu``.
    """
    from eve_pyro.experiments.reproduce import reproduce as run

    run(study, out, smoke=smoke, jobs=jobs, size=size)


def bench(quick: bool = False, out: Path = Path("eve-bench"), threads: int = 0) -> None:
    """Measure what EVE costs beside deterministic networks and other packages, on this machine.

    Prints ratios with their targets; writes ``bench.json`` and ``bench.png`` to the output
    folder. Takes up to 20 minutes on two cores that do nothing else. Ctrl-C reports what has
    finished.

    Args:
        quick: less than two minutes: fewer repetitions and points, no very deep network.
        out: output folder.
        threads: of torch; 0 for all cores.
    """
    from eve_pyro.bench import run_and_report

    run_and_report("quick" if quick else "full", out, threads)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; errors of use are one line and exit status 2.

    Example:
        >>> main(["demo", "--seeds", "0", "--out", "/dev/null/none"])
        Traceback (most recent call last):
        ...
        SystemExit: 2
    """
    try:
        tyro.extras.subcommand_cli_from_dict(
            {
                "demo": demo,
                "fit": fit,
                "predict": predict,
                "reproduce": reproduce,
                "bench": bench,
            },
            prog="eve-pyro",
            description="Distributional neurons for Pyro.",
            args=arguments,
        )
    except KeyboardInterrupt:
        print("eve-pyro: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except (ValueError, OSError, RuntimeError, FloatingPointError) as error:
        print(f"eve-pyro: error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
