"""The study of very deep networks: its runs, its rules, and a page from whatever is finished."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from eve_pyro.data import DataNotFoundError, Table, load_energy
from eve_pyro.experiments.engine import Record, run_tasks, scores_frame, tables_frame
from eve_pyro.experiments.output import OutputFolder
from eve_pyro.experiments.page import Page
from eve_pyro.experiments.studies.energy import STUDY, claims
from eve_pyro.experiments.studies.energy.models import MODELS, deep
from eve_pyro.experiments.studies.energy.run import LEVELS, run_table, train
from eve_pyro.experiments.studies.energy.tasks import (
    DESIGN,
    PROTOCOL,
    RANDOM,
    SEEDS,
    SWEEP,
    sweep_setting,
)
from eve_pyro.metrics import pinball

TINY = replace(
    PROTOCOL,
    training=replace(PROTOCOL.training, epochs=5, batch_size=32),
    num_samples=4,
    validation_samples=2,
)


def buildings() -> Table:
    """A small table of the same kind: designs in four orientations each."""
    rng = np.random.default_rng(0)
    designs = np.repeat(rng.normal(size=(24, 7)), 4, axis=0)
    X = np.column_stack([designs, np.tile(np.arange(4), 24)])
    y = designs @ rng.normal(size=7) + 0.1 * rng.normal(size=96)
    names = tuple(f"x{i}" for i in range(8))
    return Table("buildings", X, y, names, "load", groups=np.repeat(np.arange(24), 4))


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eve_pyro.experiments.studies.energy.run.load_energy", buildings)
        folder = tmp_path_factory.mktemp("runs")
        return run_tasks(STUDY.tasks(True), folder, jobs=1, progress=False)


def written(records, folder) -> str:
    page = Page("energy", STUDY.title)
    STUDY.write(page, records)
    page.write(OutputFolder(folder))
    return (folder / "energy.md").read_text()


def test_the_smoke_run_covers_the_page(records, tmp_path):
    assert len(records) == len(STUDY.tasks(True))
    assert not [r.outcome.failure for r in records if r.outcome.failure]
    text = written(records, tmp_path)
    for heading in (
        "Verdicts",
        "Random split",
        "Split by design",
        "The 3 layers",
        "shallow",
        "costs",
    ):
        assert heading in text
    assert "- x |" not in text
    assert "nan" not in text.lower()
    for name in ("course.png", "depth.png", "sweep.png", "layers.csv", "course.csv"):
        assert (tmp_path / "energy" / name).stat().st_size > 0
    layers = tables_frame(records, "layers")
    assert (layers.number.groupby([layers.setting, layers.seed]).max() <= 3).all()
    assert np.isfinite(layers[["kl", "sigma", "alone", "removed", "total"]]).to_numpy().all()


@pytest.mark.parametrize("part", ["one", "mlp", "eve", "cost", "sweep", "failed"])
def test_a_page_of_some_runs(records, part, tmp_path):
    chosen = {
        "one": records[:1],
        "mlp": [r for r in records if r.task.model == "mlp"],
        "eve": [r for r in records if r.task.model == "eve"],
        "cost": records[-1:],
        "sweep": [r for r in records if r.task.setting == sweep_setting(2)],
        "failed": [
            Record(r.task, replace(r.outcome, scores={}, tables={}, failure="the loss is nan"))
            for r in records[:2]
        ],
    }[part]
    assert "not tested" in written(chosen, tmp_path)


def test_the_whole_study_is_planned():
    tasks = STUDY.tasks(False)
    by_setting = pd.Series([t.setting for t in tasks]).value_counts()
    assert by_setting[RANDOM] == 4 * SEEDS
    assert by_setting[DESIGN] == 2 * SEEDS
    assert [t.alone for t in tasks] == [False] * (len(tasks) - 1) + [True]
    assert {sweep_setting(depth) for depth in SWEEP} < set(by_setting.index)
    # What decides about the claims comes first.
    assert {t.setting for t in tasks[: 2 * SEEDS]} == {RANDOM}
    assert all(t.seed >= 100 for t in tasks)
    assert {t.arguments["protocol"].grouped for t in tasks if t.setting == DESIGN} == {True}


def test_smoke_run_on_the_real_table(tmp_path):
    try:
        load_energy()
    except DataNotFoundError:
        pytest.skip("the energy table is not here")
    task = STUDY.tasks(True)[1]
    (record,) = run_tasks([task], tmp_path, jobs=1, progress=False)
    assert math.isfinite(record.outcome.scores["calibrated_mc_nll"])


def test_one_run_and_its_scores():
    config = deep(MODELS["eve"], 2, 4)
    outcome = run_table(buildings(), 0, config, TINY, 2, (4, 3), "eager")
    # Looked at in epochs 2 and 4, and at the end.
    assert outcome.tables["course"].epoch.tolist() == [2, 4, 5]
    result, _ = train(buildings(), 0, config, TINY, 2, "eager")
    test = result.data.test
    expected = pinball(result.predict(test.x, calibrated=False), test.y, LEVELS).mean()
    assert outcome.scores["raw_pinball"] == pytest.approx(expected.item())
    assert outcome.scores["best_epoch"] in (2, 4, 5)
    assert outcome.scores["final_rise"] >= 0
    again = run_table(buildings(), 0, config, TINY, 2, (4, 3), "eager")
    assert again.tables["layers"].equals(outcome.tables["layers"])


def test_compiled_and_eager_runs_agree():
    config = deep(MODELS["eve"], 2, 4)
    eager, compiled = (
        run_table(buildings(), 0, config, TINY, 2, (4, 3), backend) for backend in (None, "eager")
    )
    name = "calibrated_mc_nll"
    assert compiled.scores[name] == pytest.approx(eager.scores[name], abs=1e-3)


# Rules


def scores(differences) -> pd.DataFrame:
    """Runs of two models, EVE's scores differing by so much from -1.5, or 1.5 in units."""
    names = dict.fromkeys(claims.READ, 1.5) | {"calibrated_mc_nll": -1.5, "raw_mc_nll": -1.5}
    rows = []
    for seed, difference in enumerate(differences):
        # Seeds differ as well, by the same for both.
        own = {k: v + 0.01 * seed for k, v in names.items()}
        rows.append({"setting": RANDOM, "model": "mlp", "seed": seed, "final_gap": 1.0, **own})
        rows.append(
            {"setting": RANDOM, "model": "eve", "seed": seed}
            | {k: v + difference for k, v in own.items()}
        )
    return pd.DataFrame(rows).assign(final_rise=0.2)


EMPTY = pd.DataFrame()
COST = pd.DataFrame(
    {"contest": "9 layers, eager", "network": ["mlp", "eve"], "seconds": [1.0, 7.0]}
)


def judged(frame=EMPTY, layers=EMPTY, cost=EMPTY) -> dict[str, str]:
    if frame.empty:
        frame = pd.DataFrame({"setting": [], "model": [], "seed": []})
    return {v.claim: v.status for v in claims.verdicts(frame, layers, cost, 9)}


def test_nothing_is_judged_without_runs():
    assert set(judged().values()) == {"not tested"}
    assert set(judged(scores([-0.4])).values()) <= {"not tested", "reproduced"}
    assert judged(scores([-0.4]))["MSE, random split"] == "not tested"


@pytest.mark.parametrize(
    ("differences", "status"),
    [
        ([-0.40, -0.41, -0.42], "reproduced"),
        ([-0.05, -0.06, -0.07], "partly"),
        ([-0.40, -0.41, 0.02], "not reproduced"),
        ([0.40, 0.41, 0.42], "not reproduced"),
    ],
)
def test_nll_and_crps(differences, status):
    found = judged(scores(differences))
    assert found["NLL, random split, EVE against the deterministic network"] == status
    assert found["CRPS, the same"] == status
    assert found["pinball loss, the same"] == status


def test_wins():
    assert judged(scores([-0.1, -0.2]))["better on every seed, random split"] == "reproduced"
    assert judged(scores([-0.1, 0.2]))["better on every seed, random split"] == "not reproduced"
    mixed = scores([-0.1, -0.2])
    mixed.loc[mixed.model == "eve", claims.CRPS] = 9.0
    assert judged(mixed)["better on every seed, random split"] == "partly"


@pytest.mark.parametrize(
    ("differences", "status"),
    [
        ([0.02, 0.03, 0.04], "reproduced"),
        ([-2.0, 0.1, 1.0], "partly"),
        ([-0.50, 0.02, 0.49], "partly"),
        ([-0.40, -0.41, -0.42], "partly"),
        ([0.40, 0.41, 0.42], "not reproduced"),
    ],
)
def test_about_equal(differences, status):
    assert judged(scores(differences))["MSE, random split"] == status


def test_a_negative_baseline_does_not_turn_percent_round():
    summary = claims.pair(scores([-0.3, -0.3, -0.3]), RANDOM)
    row = summary.loc[("eve", "calibrated_mc_nll")]
    assert row["relative"] > 0
    assert claims.signed(row)["relative"] == -row["relative"]


@pytest.mark.parametrize(
    ("kl", "alive", "aim"),
    [
        ([0.5, 0.2], "reproduced", "reproduced"),
        ([0.5, 0.05], "reproduced", "partly"),
        ([0.005, 0.05], "partly", "not reproduced"),
        ([0.005, 0.001], "not reproduced", "not reproduced"),
    ],
)
def test_layers(kl, alive, aim):
    found = judged(layers=pd.DataFrame({"setting": RANDOM, "seed": 0, "kl": kl}))
    assert found["uncertainty stays alive through all 9 layers"] == alive
    assert found["KL per unit in every one of 9 layers"] == aim


@pytest.mark.parametrize(
    ("seconds", "status"),
    [(7.0, "reproduced"), (2.0, "partly"), (10.0, "not reproduced"), (0.9, "not reproduced")],
)
def test_cost(seconds, status):
    cost = COST.assign(seconds=[1.0, seconds])
    assert judged(cost=cost)["time of a training step"] == status


@pytest.mark.parametrize(
    ("rise", "status"),
    [([0.2, 0.3], "reproduced"), ([0.2, 0.0], "partly"), ([0.0, 0.0], "not reproduced")],
)
def test_over_fitting(rise, status):
    frame = scores([-0.1, -0.1])
    frame["final_rise"] = np.repeat(rise, 2)
    assert judged(frame)["the deterministic network is trained until it over-fits"] == status


def test_frames_of_records_are_what_the_rules_read(records):
    found = claims.verdicts(
        scores_frame(records), tables_frame(records, "layers"), tables_frame(records, "cost"), 3
    )
    assert "not tested" not in {v.status for v in found if "split" not in v.claim}
