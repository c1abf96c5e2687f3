"""The experiment engine: what is kept, what is repeated, what is never averaged."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from eve_pyro.experiments.engine import run_tasks, scores_frame, tables_frame
from eve_pyro.experiments.page import change
from eve_pyro.experiments.statistics import bootstrap_interval, summarise, t_interval
from eve_pyro.experiments.store import Outcome, Store, Task, code_version
from eve_pyro.infer import TrainingConfig


def measure(seed, slope, log=None):
    """A run that leaves a trace of having been computed."""
    if log is not None:
        with Path(log).open("a") as file:
            file.write(f"{seed}\n")
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"layer": ["a", "b"], "kl": rng.random(2)})
    return Outcome({"nll": slope * rng.random(), "count": 3}, {"layers": table})


def diverge(seed):
    raise FloatingPointError(f"site 'z' is not finite, seed {seed}")


def broken(seed):
    raise RuntimeError("a bug")


def tasks(log=None, models=("a", "b"), seeds=3, slope=2.0):
    arguments = {"slope": slope, "log": None if log is None else str(log)}
    return [
        Task("line", "plain", model, seed, measure, arguments)
        for seed in range(seeds)
        for model in models
    ]


def run(task_list, folder, jobs=1):
    return run_tasks(task_list, folder, jobs=jobs, progress=False)


def count(log):
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_finished_runs_are_kept_and_come_back_digit_by_digit(tmp_path):
    log = tmp_path / "log"
    first = run(tasks(log), tmp_path / "runs")
    assert count(log) == 6
    again = run(tasks(log), tmp_path / "runs", jobs=2)
    assert count(log) == 6
    pd.testing.assert_frame_equal(scores_frame(first), scores_frame(again), check_exact=True)
    pd.testing.assert_frame_equal(
        tables_frame(first, "layers"), tables_frame(again, "layers"), check_exact=True
    )
    fresh = measure(1, 2.0)
    assert again[2].outcome.scores == fresh.scores
    pd.testing.assert_frame_equal(
        again[2].outcome.tables["layers"], fresh.tables["layers"], check_exact=True
    )
    assert len(tables_frame(again, "layers")) == 12
    assert tables_frame(again, "none").empty


def test_processes_and_order_change_nothing(tmp_path):
    alone = scores_frame(run(tasks(), tmp_path / "one"))
    together = scores_frame(run(tasks()[::-1], tmp_path / "two", jobs=2))
    key = ["model", "seed"]
    pd.testing.assert_frame_equal(
        alone.sort_values(key, ignore_index=True), together.sort_values(key, ignore_index=True)
    )


@pytest.mark.parametrize("how", ["number", "identity", "truncated", "empty", "list", "code"])
def test_a_result_that_was_touched_is_computed_again(how, tmp_path, caplog):
    log, folder = tmp_path / "log", tmp_path / "runs"
    before = scores_frame(run(tasks(log), folder))
    file = sorted(folder.iterdir())[0]
    content = json.loads(file.read_text())
    if how == "number":
        content["outcome"]["scores"]["nll"] -= 1.0
    elif how == "identity":
        content["identity"]["seed"] = 77
    elif how == "code":
        store = Store(folder, code="another")
        store.save(tasks(log)[0], Outcome({"nll": -9.0}))
    text = {"truncated": file.read_text()[:100], "empty": "", "list": "[]"}
    if how != "code":
        file.write_text(text.get(how, json.dumps(content)))
    after = scores_frame(run(tasks(log), folder))
    assert count(log) == 7
    pd.testing.assert_frame_equal(before, after)
    assert "it is computed again" in caplog.text


def test_other_arguments_are_another_run(tmp_path):
    log = tmp_path / "log"
    run(tasks(log), tmp_path / "runs")
    run(tasks(log, slope=3.0), tmp_path / "runs")
    assert count(log) == 12


def test_a_kill_in_the_middle_gives_the_table_of_an_uninterrupted_run(tmp_path):
    script = tmp_path / "slow.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, time
            from eve_pyro.experiments.engine import run_tasks
            from eve_pyro.experiments.store import Outcome, Task

            def slow(seed):
                time.sleep(0.3)
                return Outcome({"nll": seed / 7})

            if __name__ == "__main__":
                tasks = [Task("line", "plain", "a", seed, slow) for seed in range(12)]
                records = run_tasks(tasks, sys.argv[1], jobs=2, progress=False)
                print([r.outcome.scores["nll"] for r in records])
            """
        )
    )
    folder = tmp_path / "runs"
    command = [sys.executable, str(script), str(folder)]
    process = subprocess.Popen(command, start_new_session=True)
    deadline = time.monotonic() + 120
    while len(list(folder.glob("*.json"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = {f.name: f.stat().st_mtime_ns for f in folder.glob("*.json")}
    assert 3 <= len(kept) < 12
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([seed / 7 for seed in range(12)])
    for name, time_written in kept.items():
        assert (folder / name).stat().st_mtime_ns == time_written  # not repeated


def test_divergence_is_reported_and_bugs_are_raised(tmp_path):
    wrong = Task("line", "plain", "c", 0, diverge)
    records = run([*tasks(seeds=1), wrong], tmp_path)
    frame = scores_frame(records)
    assert frame.failure.dropna().tolist() == ["site 'z' is not finite, seed 0"]
    assert np.isnan(frame[frame.model == "c"].nll).all()
    with pytest.raises(RuntimeError, match="a bug"):
        run([Task("line", "plain", "d", 0, broken)], tmp_path)


def test_runs_that_measure_time_come_last(tmp_path):
    log = tmp_path / "log"
    order = tasks(log, models=("a",))
    timed = Task("line", "plain", "timed", 9, measure, {"slope": 1.0, "log": str(log)}, alone=True)
    run([timed, *order], tmp_path / "runs")
    assert log.read_text().split() == ["0", "1", "2", "9"]


def test_errors_name_what_is_wrong(tmp_path):
    with pytest.raises(ValueError, match="got twice: plain, a, seed 0"):
        run([*tasks(), tasks()[0]], tmp_path)
    with pytest.raises(ValueError, match="jobs must be an integer >= 0, got -1"):
        run(tasks(), tmp_path, jobs=-1)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(OSError, match="out must be a folder"):
        run(tasks(), file)
    with pytest.raises(TypeError, match="arguments of a task must be numbers"):
        run([Task("line", "plain", "a", 0, measure, {"slope": object()})], tmp_path)


def test_configurations_are_part_of_a_run(tmp_path):
    def identity(epochs):
        config = TrainingConfig(epochs=epochs)
        return Task("line", "plain", "a", 0, measure, {"config": config}).identity

    assert identity(1) == identity(1)
    assert identity(1) != identity(2)
    assert len(code_version()) == 16


def test_intervals_cover_as_often_as_they_say():
    # 2,000 experiments of 8 normal differences: the share that holds the truth is 0.95.
    rng = np.random.default_rng(0)
    draws = rng.normal(0.3, 1.0, (2000, 8))
    inside = [low < 0.3 < high for low, high in map(t_interval, draws)]
    error = np.sqrt(0.95 * 0.05 / 2000)
    assert np.mean(inside) == pytest.approx(0.95, abs=4 * error)
    assert t_interval(draws[0]) == pytest.approx(
        stats.ttest_1samp(draws[0], 0).confidence_interval(0.95), rel=1e-9
    )
    low, high = t_interval(draws[0], overlap=0.2)
    plain_low, plain_high = t_interval(draws[0])
    ratio = np.sqrt((1 / 8 + 0.2) / (1 / 8))
    assert (high - low) / (plain_high - plain_low) == pytest.approx(ratio)


def test_bootstrap_is_seeded_and_close_to_the_normal_interval():
    rng = np.random.default_rng(0)
    differences = rng.normal(size=400)
    low, high = bootstrap_interval(differences, seed=3)
    assert (low, high) == bootstrap_interval(differences, seed=3)
    half = 1.96 * differences.std() / 20
    assert low == pytest.approx(differences.mean() - half, abs=0.1 * half)
    assert high == pytest.approx(differences.mean() + half, abs=0.1 * half)
    assert np.isnan(bootstrap_interval(differences[:1])).all()


def test_a_summary_pairs_by_seed_and_counts_what_is_missing():
    frame = pd.DataFrame(
        {
            "model": ["a"] * 4 + ["b"] * 3,
            "seed": [0, 1, 2, 3, 1, 2, 3],
            "nll": [9.0, 1.0, 2.0, 3.0, 0.5, 1.5, np.nan],
            "failure": [None] * 6 + ["diverged"],
        }
    )
    row = summarise(frame, "a").loc[("b", "nll")]
    assert (row.pairs, row.wins, row.seeds) == (2, 2, 2)
    assert row.difference == -0.5
    assert row.relative == pytest.approx(-0.5 / 3.75)
    assert change(row).endswith(" 2/2")
    with pytest.raises(ValueError, match=r"baseline must be one of \['a', 'b'\], got 'c'"):
        summarise(frame, "c")
