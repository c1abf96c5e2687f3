"""The protocol of the tables: what is equal for all models, and what a report says."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from eve_pyro.data import Table, load_concrete
from eve_pyro.experiments import (
    MODELS,
    DemoConfig,
    ModelConfig,
    Protocol,
    TabularModel,
    fit,
    run,
    score,
    summarise,
)
from eve_pyro.experiments.demo_report import run_and_report
from eve_pyro.infer import CheckpointError, TrainingConfig

QUICK = Protocol(TrainingConfig(epochs=3, progress=False), num_samples=5, validation_samples=3)


@pytest.fixture(scope="module")
def table():
    full = load_concrete()
    return replace(full, X=full.X[:200], y=full.y[:200])


@pytest.mark.parametrize("name", MODELS)
def test_every_model_runs_the_whole_protocol(name, table, tmp_path):
    config = MODELS[name]
    result = fit(table, config, 0, QUICK)
    scores = score(result, table, QUICK)
    assert all(np.isfinite(v) for k, v in scores.items() if k != "sigma_y"), scores
    assert scores["parameters"] > 0
    # One model in two units: errors scale, and a log density shifts, by the target's scale.
    scale = float(result.data.target.scale)
    assert scores["raw_rmse_unit"] == pytest.approx(scale * scores["raw_rmse"], rel=1e-4)
    assert scores["raw_mc_nll_unit"] == pytest.approx(
        scores["raw_mc_nll"] + np.log(scale), rel=1e-4
    )
    model = TabularModel.from_fit(result, table)
    model.save(tmp_path / "model.pt")
    again = TabularModel.load(tmp_path / "model.pt")
    before, after = (m.predict(table.X[:7], seed=1) for m in (model, again))
    assert torch.equal(before.loc, after.loc)
    assert torch.equal(before.scale, after.scale)
    assert again.feature_names == table.feature_names


def test_training_may_be_compiled(table):
    traced = replace(QUICK, backend="eager")
    eager = score(fit(table, MODELS["eve"], 0, QUICK), table, QUICK)
    compiled = score(fit(table, MODELS["eve"], 0, traced), table, traced)
    assert compiled["raw_mc_nll"] == pytest.approx(eager["raw_mc_nll"], rel=1e-4)
    with pytest.raises(ValueError, match=r"backend must be one of .* got 'xla'"):
        Protocol(backend="xla")


def test_one_seed_gives_one_result_and_another_split_another(table):
    def once(seed):
        return score(fit(table, MODELS["eve"], seed, QUICK), table, QUICK)

    first, again, other = once(0), once(0), once(1)
    del first["seconds"], again["seconds"]
    assert first == again
    assert first["raw_mse"] != other["raw_mse"]


def test_models_of_one_seed_share_split_and_scalers(table):
    fits = [fit(table, MODELS[name], 3, QUICK) for name in ("mlp", "eve")]
    one, two = (f.data for f in fits)
    assert torch.equal(one.test.x, two.test.x)
    assert torch.equal(one.train.y, two.train.y)


def test_calibration_uses_validation_rows_alone(table):
    result = fit(table, MODELS["mlp"], 0, QUICK)
    raw = result.predict(result.data.validation.x, calibrated=False)
    y = result.data.validation.y
    best = raw.rescale(result.temperature).log_prob(y).mean()
    for other in (0.9, 1.1):
        assert best > raw.rescale(result.temperature * other).log_prob(y).mean()


def test_the_output_scale_gets_a_learning_rate_of_its_own():
    assert ModelConfig().lr_multipliers == {"head.log_scale": 10.0}
    assert ModelConfig(head="heteroscedastic").lr_multipliers == {}


def test_summary_is_the_mean_sd_and_paired_comparison():
    rng = np.random.default_rng(0)
    rows = [
        {"model": m, "seed": s, "nll": rng.normal(), "crps": rng.normal()}
        for m in ("mlp", "eve")
        for s in range(6)
    ]
    frame = pd.DataFrame(rows)
    summary = summarise(frame, "mlp")
    wide = frame.pivot(index="seed", columns="model", values="nll")
    difference = wide["eve"] - wide["mlp"]
    row = summary.loc[("eve", "nll")]
    assert row["mean"] == pytest.approx(wide["eve"].mean())
    assert row["sd"] == pytest.approx(wide["eve"].std())
    assert row["difference"] == pytest.approx(difference.mean())
    assert row["difference_sd"] == pytest.approx(difference.std())
    assert row["wins"] == (difference < 0).sum()
    assert summary.loc[("mlp", "nll"), "wins"] == 0


def test_the_demo_writes_what_it_prints(tmp_path, capsys):
    config = DemoConfig(seeds=2, epochs=2, jobs=1, protocol=QUICK)
    summary = run_and_report(config, tmp_path, progress=False)
    printed = capsys.readouterr().out
    scores = pd.read_csv(tmp_path / "scores.csv")
    assert len(scores) == 2 * len(config.models)
    mean = scores[scores.model == "eve"]["raw_mc_nll_unit"].mean()
    assert summary.loc[("eve", "raw_mc_nll_unit"), "mean"] == pytest.approx(mean)
    assert f"{mean:.3f}" in printed
    assert "trunk.layer0" in printed
    layers = pd.read_csv(tmp_path / "layers.csv")
    assert set(layers.seed) == {100, 101}
    about = json.loads((tmp_path / "config.json").read_text())
    assert about["seeds"] == [100, 101]
    assert not about["interrupted"]
    assert about["protocol"]["training"]["epochs"] == 2
    for name in ("predictions", "calibration", "layers", "training"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    model = TabularModel.load(tmp_path / "eve.pt")
    assert model.predict(load_concrete().X[:3]).mean.shape == (3,)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("tmp")]


def test_runs_are_the_same_in_one_process_or_two():
    config = DemoConfig(seeds=1, epochs=1, jobs=1, models=("mlp", "eve"), protocol=QUICK)
    one, two = (run(replace(config, jobs=jobs), progress=False) for jobs in (1, 2))
    for a, b in zip(one, two, strict=True):
        assert (a.model, a.seed) == (b.model, b.seed)
        assert a.scores["raw_mc_nll"] == b.scores["raw_mc_nll"]


def test_bad_input(table, tmp_path):
    with pytest.raises(ValueError, match="unit must be one of"):
        ModelConfig(unit="row")
    with pytest.raises(ValueError, match="models must be one of"):
        DemoConfig(models=("gp",))
    model = TabularModel.from_fit(fit(table, MODELS["mlp"], 0, QUICK), table)
    for X, message in (
        (np.zeros((3, 7)), r"X must have shape \(rows >= 1, 8\), got \(3, 7\)"),
        (np.zeros((0, 8)), "X must have shape"),
        (np.full((3, 8), np.nan), "X must be finite, got nan in row 0, column 0"),
    ):
        with pytest.raises(ValueError, match=message):
            model.predict(X)
    (tmp_path / "broken.pt").write_bytes(b"nothing")
    with pytest.raises(CheckpointError):
        TabularModel.load(tmp_path / "broken.pt")
    tiny = Table("tiny", table.X[:3], table.y[:3], table.feature_names, "y")
    with pytest.raises(ValueError, match="rows"):
        fit(tiny, MODELS["mlp"], 0, QUICK)


def test_an_interrupted_demo_reports_the_seeds_that_all_models_finished(monkeypatch):
    def interrupted(self, tasks):
        for done, (function, args, kwargs) in enumerate(tasks):
            if done == 3:
                raise KeyboardInterrupt
            yield function(*args, **kwargs)

    monkeypatch.setattr("joblib.Parallel.__call__", interrupted)
    config = DemoConfig(seeds=3, epochs=1, models=("mlp", "eve"), protocol=QUICK)
    runs = run(config, progress=False)
    assert [(r.model, r.seed) for r in runs] == [("mlp", 100), ("eve", 100)]


def test_groups_stay_together_where_the_table_has_them(table):
    groups = np.arange(len(table)) // 4
    X = table.X.copy()
    X[:, 0] = groups  # so that a row tells its group
    grouped = replace(table, X=X, groups=groups)
    for together in (True, False):
        data = fit(grouped, MODELS["mlp"], 0, replace(QUICK, grouped=together)).data
        train, test = (
            set(data.features.inverse(part.x)[:, 0].round().tolist())
            for part in (data.train, data.test)
        )
        assert (not train & test) == together
