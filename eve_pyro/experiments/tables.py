"""The commands ``fit`` and ``predict``: one model and a user's own table."""

from pathlib import Path

import pandas as pd
from rich.console import Console

from eve_pyro._checks import check_choice, check_int, check_real
from eve_pyro.data import DataError, load_table
from eve_pyro.data.csvfile import read_csv
from eve_pyro.experiments.models import MODELS
from eve_pyro.experiments.output import OutputFolder
from eve_pyro.experiments.protocol import Protocol, fit, score
from eve_pyro.experiments.tabular import TabularModel
from eve_pyro.infer import TrainingConfig
from eve_pyro.infer.checkpoint import check_writable


def fit_and_report(
    data: str,
    target: str | None,
    model: str,
    out: Path,
    seed: int,
    epochs: int,
    validation: float,
    test: float,
) -> TabularModel:
    """Fit a model to a table, print its test scores and write it to a file.

    Arguments:
        data: name of a table, or path of a CSV file.
        target: column to predict; the last by default.
        model: name out of ``MODELS``.
        out: file for the model.
        seed: of the split, the initial weights and the noise.
        epochs: passes over the training rows.
        validation, test: shares of rows, each above 0, together below 1.

    Raises:
        DataError: for a table that cannot be used, or a part of the split without rows.
        CheckpointError: if the file cannot be written, before training starts.
        ValueError: for other arguments out of range.
    """
    check_choice("model", model, MODELS)
    check_int("seed", seed, 0)
    check_real("validation", validation, 0.0, 1.0, exclusive=True)
    check_real("test", test, 0.0, 1.0, exclusive=True)
    if validation + test >= 1:
        raise ValueError(
            f"validation and test must leave rows to train on, got {validation} + {test}"
        )
    check_writable(out)
    table = load_table(data, target)
    fractions = (1 - validation - test, validation, test)
    protocol = Protocol(TrainingConfig(epochs=epochs), fractions=fractions)
    result = fit(table, MODELS[model], seed, protocol)
    scores = score(result, table, protocol, seed=seed)
    console = Console()
    unit = f" {table.target_unit}" if table.target_unit else ""
    console.print(f"{table!r}", highlight=False)
    console.print(
        f"{model}: test RMSE {scores['calibrated_rmse_unit']:.4g}{unit}, "
        f"MAE {scores['calibrated_mae_unit']:.4g}{unit}, "
        f"CRPS {scores['calibrated_crps_unit']:.4g}{unit}, "
        f"NLL {scores['calibrated_mc_nll_unit']:.4g} nats, "
        f"{100 * protocol.level:.0f} % interval covers {100 * scores['calibrated_coverage']:.1f} %",
        highlight=False,
    )
    fitted = TabularModel.from_fit(result, table)
    fitted.save(out)
    console.print(f"model written to {out}", highlight=False)
    return fitted


def predict_and_write(model: Path, data: Path, out: Path, level: float, seed: int) -> pd.DataFrame:
    """Predict for a CSV file's rows and write mean, spread and interval, one row each.

    Raises:
        CheckpointError: if the model cannot be read.
        DataError: if the file lacks a feature column or holds something else than numbers.
        OSError: if the predictions cannot be written.
        ValueError: for a level outside (0, 1).
    """
    check_real("level", level, 0.0, 1.0, exclusive=True)
    check_int("seed", seed, 0)
    folder = OutputFolder(out.parent)
    fitted = TabularModel.load(model)
    names, values = read_csv(data, only=fitted.feature_names)
    missing = [name for name in fitted.feature_names if name not in names]
    if missing:
        raise DataError(f"{data} lacks the feature columns {missing}")
    if not len(values):
        raise DataError(f"{data} must have at least 1 row under its header, got 0")
    X = values[:, [names.index(name) for name in fitted.feature_names]]
    predictive = fitted.predict(X, seed=seed)
    lower, upper = predictive.interval(level)
    frame = pd.DataFrame(
        {
            "mean": predictive.mean,
            "sd": predictive.stddev,
            "aleatoric_sd": predictive.aleatoric.sqrt(),
            "epistemic_sd": predictive.epistemic.sqrt(),
            "lower": lower,
            "upper": upper,
        }
    )
    folder.write_frame(out.name, frame)
    Console().print(f"{len(frame)} predictions written to {out}", highlight=False)
    return frame
