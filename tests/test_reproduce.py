"""The command ``reproduce``: smoke runs of the studies, and the rules of their verdicts."""

import re

import pandas as pd
import pytest

from eve_pyro.cli import main
from eve_pyro.data import DataNotFoundError, load_table
from eve_pyro.experiments.engine import Record
from eve_pyro.experiments.page import Page, Verdict
from eve_pyro.experiments.reproduce import reproduce, studies
from eve_pyro.experiments.store import Outcome
from eve_pyro.experiments.studies.tables.claims import (
    boston_verdicts,
    concrete_verdicts,
    gain,
    prize,
)


def needs(study):
    table = {"energy": "energy", "uci": "yacht"}.get(study, "concrete")
    try:
        load_table(table)
    except DataNotFoundError:
        pytest.skip(f"the table {table} is neither in the data home nor to be downloaded")


@pytest.mark.parametrize("study", ["attribution", "boston", "concrete", "energy", "uci"])
def test_smoke_run_writes_a_whole_page(study, tmp_path, capsys):
    needs(study)
    main(["reproduce", study, "--smoke", "--out", str(tmp_path), "--jobs", "1"])
    text = (tmp_path / "smoke" / f"{study}.md").read_text()
    assert "its numbers mean nothing" in text
    assert "## Verdicts" in text
    assert not re.search(r"\bnan\b", text)
    for linked in re.findall(r"\]\(([^)]+)\)", text):
        assert (tmp_path / "smoke" / linked).stat().st_size > 0
    scores = pd.read_csv(tmp_path / "smoke" / study / "scores.csv")
    tasks = studies()[study].tasks(True)
    assert len(scores) == len(tasks)
    # The same command again finds everything, and says the same.
    runs = sorted((tmp_path / "smoke" / study / "runs").iterdir())
    written = [f.stat().st_mtime_ns for f in runs]
    main(["reproduce", study, "--smoke", "--out", str(tmp_path), "--jobs", "1"])
    assert [f.stat().st_mtime_ns for f in runs] == written
    assert (tmp_path / "smoke" / f"{study}.md").read_text() == text


@pytest.mark.parametrize("study", ["attribution", "boston", "concrete", "energy", "uci"])
def test_full_tasks_are_distinct_and_pair_their_seeds(study):
    tasks = studies()[study].tasks(False)
    assert len({task.label for task in tasks}) == len(tasks)
    assert min(task.seed for task in tasks) >= 100  # not the seeds of development


@pytest.mark.parametrize("study", ["boston", "concrete", "uci"])
def test_a_page_can_be_made_of_any_part_of_the_runs(study):
    scores = ("mc_nll", "crps", "mse", "mae", "coverage")
    found = studies()[study]

    def outcome(task):
        row = {
            f"{kind}_{s}": 0.5 + 0.01 * task.seed for s in scores for kind in ("calibrated", "raw")
        }
        row |= {"raw_rmse_unit": 5.0, "raw_mc_nll_unit": 3.0, "calibrated_mc_nll_unit": 3.0}
        names = ("temperature", "sigma_y", "best_epoch", "parameters", "seconds", "candidate")
        return Outcome(row | dict.fromkeys(names, 1.0))

    tasks = found.tasks(False)
    for part in (tasks[:1], tasks[:7], tasks[-9:], [t for t in tasks if t.model != "eve"]):
        page = Page(study, found.title)
        found.write(page, [Record(task, outcome(task)) for task in part])


def frame(differences, *, rival="mlp", base=0.5):
    """Scores of EVE and a rival: EVE's are different by the given amounts."""
    rows = []
    for seed, difference in enumerate(differences):
        for model, shift in ((rival, 0.0), ("eve", difference)):
            value = base + 0.01 * seed + shift
            names = ("mc_nll", "crps", "mse", "mae")
            rows.append({"model": model, "seed": seed} | {f"calibrated_{n}": value for n in names})
    return pd.DataFrame(rows)


def test_claims_are_decided_by_size_interval_and_wins():
    much, little = [-0.2 - 0.001 * i for i in range(10)], [-0.004 - 1e-5 * i for i in range(10)]
    assert {v.status for v in concrete_verdicts(frame(much))} == {"reproduced"}
    nll, crps, mse = concrete_verdicts(frame(little))
    assert (nll.status, crps.status, mse.status) == ("partly", "partly", "reproduced")
    assert "smaller than claimed" in nll.why
    one_lost = [-0.3] * 9 + [0.01]
    assert concrete_verdicts(frame(one_lost))[0].status == "partly"
    assert "better on 9 of 10 seeds, not on 10" in concrete_verdicts(frame(one_lost))[0].why
    mixed, worse = [0.1, -0.1] * 5, [0.1 + 0.001 * i for i in range(10)]
    assert {v.status for v in boston_verdicts(frame(mixed))} == {"not reproduced"}
    assert {v.why for v in boston_verdicts(frame(worse))} == {"worse"}
    assert concrete_verdicts(frame([-0.1]))[0].status == "not tested"
    # Claims are of ten seeds; more do not change them.
    assert concrete_verdicts(frame(much + [5.0] * 3)) == concrete_verdicts(frame(much))


def test_the_prize_is_judged_on_all_seeds_against_each_rival():
    better = [-0.1 - 0.001 * i for i in range(20)]
    verdicts = prize(frame(better, rival="ensemble"))
    assert [v.status for v in verdicts] == ["reproduced"] * 2
    assert all("5 plain MLPs" in v.claim and "20/20" in v.measured for v in verdicts)
    assert prize(frame(better)) == []


def test_gain_says_why_a_claim_fails():
    row = pd.Series(
        {"difference": -0.1, "relative": -0.2, "low": -0.3, "high": 0.1, "wins": 8, "pairs": 10}
    )
    assert gain(row, -0.1, 0.7) == ("not reproduced", "the interval holds 0, as large as claimed")
    clear = row.replace({0.1: -0.05})
    assert gain(clear, -0.1, 0.7)[0] == "reproduced"
    assert gain(clear, -0.3, 0.7) == ("partly", "clear of 0, smaller than claimed")
    few = gain(clear, -0.1, 0.7, seeds=20)
    assert few == ("partly", "clear of 0, as large as claimed; 10 of 20 pairs of runs are there")


def test_a_relative_size_of_an_nll_is_never_more_than_partly_reproduced():
    scores = frame([-0.2 - 0.001 * i for i in range(10)])
    scores["calibrated_mc_nll_unit"] = scores["calibrated_mc_nll"] + 3.0
    nll = concrete_verdicts(scores)[0]
    assert nll.status == "partly"
    assert "in the target's unit" in nll.measured
    # A correction for shared rows that changes what the interval says is told.
    wide = concrete_verdicts(
        frame([-0.04, -0.3, -0.05, -0.06, -0.25, -0.05, -0.04, -0.2, -0.1, -0.1])
    )
    assert "corrected for rows that splits share" in wide[1].why


def test_bad_use_is_one_clear_error(tmp_path, capsys):
    with pytest.raises(ValueError, match=r"study must be one of 'attribution'.* got 'iris'"):
        reproduce("iris", tmp_path)
    with pytest.raises(ValueError, match="status must be one of"):
        Verdict("a", "b", "c", "yes", "")
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", "boston", "--smoke", "--out", "/dev/null/none"])
    assert stopped.value.code == 2
    assert "out must be a folder" in capsys.readouterr().err
