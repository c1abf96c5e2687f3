"""The command line, as a user would call it."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from eve_pyro.cli import main
from eve_pyro.data import load_concrete


@pytest.fixture
def csv(tmp_path):
    table = load_concrete()
    frame = pd.DataFrame(table.X[:120], columns=table.feature_names)
    frame[table.target_name] = table.y[:120]
    path = tmp_path / "mine.csv"
    frame.to_csv(path, index=False)
    return path


def fails(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([str(a) for a in arguments])
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_fit_and_predict_a_users_table(csv, tmp_path, capsys):
    model, out = tmp_path / "model.pt", tmp_path / "predictions.csv"
    main(["fit", "--data", str(csv), "--epochs", "2", "--out", str(model)])
    assert "test RMSE" in capsys.readouterr().out
    frame = pd.read_csv(csv)
    frame["name"] = "joe"  # a column that the model does not know may hold anything
    frame.to_csv(csv, index=False)
    main(["predict", str(model), "--data", str(csv), "--out", str(out), "--level", "0.8"])
    predictions = pd.read_csv(out)
    assert len(predictions) == 120
    assert (predictions.lower < predictions["mean"]).all()
    assert (predictions["mean"] < predictions.upper).all()
    total = predictions.aleatoric_sd**2 + predictions.epistemic_sd**2
    assert np.allclose(predictions.sd**2, total, rtol=1e-4)


def test_help_is_quick_and_needs_no_torch():
    code = "import sys; sys.argv = ['eve-pyro', '--help']\nfrom eve_pyro.cli import main\n"
    code += "try: main()\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.iloc[:0], "must have at least 2 rows"),
        (lambda f: f.iloc[:1], "must have at least 2 rows"),
        (lambda f: f.assign(compressive_strength=3.0), "must vary"),
        (lambda f: f.assign(age=["old"] * len(f)), "'age'"),
        (lambda f: f.assign(age=[np.nan, *f.age[1:]]), "'age'"),
        (lambda f: f.assign(age=[np.inf, *f.age[1:]]), "'age'"),
    ],
    ids=["empty", "one row", "constant target", "text", "missing", "infinite"],
)
def test_tables_that_cannot_be_used(csv, tmp_path, capsys, change, message):
    change(pd.read_csv(csv)).to_csv(csv, index=False)
    out = tmp_path / "model.pt"
    error = fails(["fit", "--data", csv, "--out", out], capsys)
    assert error.startswith("eve-pyro: error: ")
    assert len(error.splitlines()) == 1
    assert message in error
    assert not out.exists()


def test_other_bad_input(csv, tmp_path, capsys):
    out = tmp_path / "model.pt"
    for arguments, message in (
        (["fit", "--data", tmp_path / "none.csv", "--out", out], "none.csv"),
        (["fit", "--data", csv, "--target", "weight", "--out", out], "weight"),
        (["fit", "--data", csv, "--validation", "0.001", "--out", out], "validation"),
        (["fit", "--data", csv, "--validation", "0.9", "--out", out], "leave rows"),
        (["fit", "--data", csv, "--epochs", "0", "--out", out], "epochs must be"),
        (["fit", "--data", csv, "--out", tmp_path / "no" / "folder.pt"], "cannot be written"),
        (["demo", "--seeds", "0", "--out", tmp_path / "demo"], "seeds must be"),
        (["demo", "--out", csv], "out must be a folder"),
        (["predict", csv, "--data", csv, "--out", tmp_path / "p.csv"], "mine.csv"),
    ):
        error = fails(arguments, capsys)
        assert len(error.splitlines()) == 1, error
        assert message in error, error
    assert not out.exists()
    assert not (tmp_path / "p.csv").exists()


def test_unknown_options_and_names_are_refused(capsys):
    for arguments in (["demo", "--wrong", "1"], ["demo", "--data", "iris"], ["dance"]):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 2
        printed = capsys.readouterr()
        assert printed.out + printed.err


def test_a_truncated_model_and_one_of_another_kind(csv, tmp_path, capsys):
    model = tmp_path / "model.pt"
    main(["fit", "--data", str(csv), "--epochs", "1", "--model", "mlp", "--out", str(model)])
    whole = model.read_bytes()
    for content in (whole[: len(whole) // 2], b""):
        model.write_bytes(content)
        error = fails(["predict", model, "--data", csv, "--out", tmp_path / "p.csv"], capsys)
        assert "model.pt" in error
    model.write_bytes(whole)
    whole_table = pd.read_csv(csv)
    whole_table.iloc[:0].to_csv(csv, index=False)
    error = fails(["predict", model, "--data", csv, "--out", tmp_path / "p.csv"], capsys)
    assert "mine.csv must have at least 1 row" in error
    whole_table.drop(columns="age").to_csv(csv, index=False)
    error = fails(["predict", model, "--data", csv, "--out", tmp_path / "p.csv"], capsys)
    assert "'age'" in error
