"""The benchmark: its bookkeeping on synthetic times, and one run of everything at toy sizes."""

import io
import itertools
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from eve_pyro.bench import (
    MODES,
    Comparison,
    Goal,
    Measurement,
    Unavailable,
    Work,
    judge,
    measure,
    peers,
    run,
    run_and_report,
)
from eve_pyro.bench.comparisons import comparisons
from eve_pyro.bench.growth import growth_comparison, growths
from eve_pyro.bench.harness import Timer
from eve_pyro.bench.meters import peak_memory
from eve_pyro.bench.report import WIDTH, Results, render, to_json
from eve_pyro.bench.steps import cell, eve, eve_network, plain_trunk


class Clock:
    """Time that passes only when a step says so; remembers who ran."""

    def __init__(self):
        self.now, self.calls = 0.0, []

    def __call__(self):
        return self.now

    def contestant(self, name, seconds, first=0.0):
        def build():
            durations = itertools.chain([first], itertools.repeat(seconds))

            def step():
                self.calls.append(name)
                self.now += next(durations)

            return step

        return build


def race(clock, contestants, goals=(), rounds=3, turn=2.0):
    return Comparison("race", contestants, goals, Timer(turn, clock), rounds)


def test_contestants_take_turns_and_the_first_step_is_timed_apart():
    clock = Clock()
    contestants = {
        "a": clock.contestant("a", 1.0, first=100.0),
        "b": clock.contestant("b", 2.0, first=50.0),
    }
    turns = []
    comparison = race(clock, contestants)
    a, b = measure(comparison, clock=clock, on_turn=lambda: turns.append(1))
    assert (a.start_up, b.start_up) == (100.0, 50.0)
    assert a.samples == [1.0] * 3
    assert b.samples == [2.0] * 3
    # One step each; then per round one off the clock and two seconds' worth on it.
    assert "".join(clock.calls) == "ab" + "aaabb" * 3
    assert len(turns) == comparison.turns == 2 * (1 + 3)


def test_contestants_are_built_in_their_turn_and_a_failure_leaves_the_others():
    clock = Clock()

    def missing():
        raise Unavailable("not installed")

    def broken():
        raise RuntimeError("no\ncompiler")

    contestants = {"missing": missing, "broken": broken, "a": clock.contestant("a", 1.0)}
    goals = (Goal("a", "missing", 1.0), Goal("a", at_most=1.0, quantity="start-up"))
    comparison = race(clock, contestants, goals)
    assert not clock.calls
    measurements = measure(comparison, clock=clock)
    reasons = [m.unavailable for m in measurements]
    assert reasons == ["not installed", "RuntimeError: no compiler", None]
    ratio, start_up = judge(comparison, measurements)
    assert ratio.met is None
    assert ratio.unavailable == "missing: not installed"
    assert start_up.met is True


def test_ratios_and_differences_are_taken_within_rounds():
    goals = (
        Goal("a", "b", 0.5),
        Goal("a", "b"),
        Goal("a", "b", -1.0, "difference"),
        Goal("a", at_most=6.0, quantity="start-up"),
    )
    # A machine that slows down tenfold: the ratio of each round does not notice.
    a = Measurement("race", "a", "s", start_up=7.0, samples=[1.0, 10.0, 12.0])
    b = Measurement("race", "b", "s", samples=[2.0, 20.0, 20.0])
    ratio, shown, difference, start_up = judge(race(Clock(), {}, goals), [a, b])
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((0.5, 0.5, 0.55))
    assert (ratio.met, ratio.unit) == (True, "")
    assert shown.met is None
    assert (difference.value, difference.met, difference.unit) == (-8.0, True, "s")
    assert (start_up.value, start_up.met) == (7.0, False)


@pytest.mark.parametrize("mode", ["full", "quick"])
def test_slopes_of_synthetic_times(mode):
    sizes = MODES[mode]

    def seconds(work):
        return 1e-6 * work.batch * work.units**2 * work.layers * work.latent_dim * work.particles

    measurements = [
        Measurement("", name, "s", samples=[seconds(build.args[0])])
        for name, build in growth_comparison(sizes).contestants.items()
    ]
    found = growths(sizes, measurements)
    assert [g.axis for g in found] == [s.axis for s in sizes.sweeps]
    assert [g.slope for g in found] == pytest.approx([s.expected for s in sizes.sweeps])
    # A point that could not be measured is left out, an axis of one point is too.
    assert len(growths(sizes, measurements[:2])) == 1


def test_goals_and_sweeps_name_contestants_that_exist():
    for sizes in MODES.values():
        names = [c.name for c in comparisons(sizes)]
        assert len(set(names)) == len(names)
        for comparison in comparisons(sizes):
            for goal in comparison.goals:
                assert goal.contestant in comparison.contestants
                assert goal.reference in {*comparison.contestants, ""}
        assert all(getattr(sizes.work, s.axis) in s.values for s in sizes.sweeps)


@pytest.mark.parametrize("residual", [False, True])
def test_contestants_have_one_architecture(residual):
    work = Work(layers=3, units=4, latent_dim=2, residual=residual)

    def count(module):
        return sum(p.numel() for p in module.parameters())

    constants = work.layers * work.units * work.latent_dim
    assert count(plain_trunk(work, cell(work))) - count(eve_network(work).trunk) == constants


def test_what_is_missing_is_unavailable(monkeypatch):
    def fail(name):
        raise ImportError(name)

    monkeypatch.setattr(peers, "import_module", fail)
    for peer in (peers.bayesian_torch, peers.torchbnn):
        with pytest.raises(Unavailable, match=r"pip install eve-pyro\[bench\]"):
            peer(Work())
    with pytest.raises(Unavailable, match="no_such_option"):
        eve(Work(), no_such_option=1)


def test_peak_memory_counts_what_is_held_at_once():
    def one_after_the_other():
        for _ in range(3):
            torch.zeros(1000)

    assert peak_memory(one_after_the_other) == 4000
    assert peak_memory(lambda: [torch.zeros(1000) for _ in range(3)]) == 12000


def test_the_whole_command_at_toy_sizes(tmp_path, capsys):
    threads = torch.get_num_threads()
    results = run_and_report("smoke", tmp_path, threads=1)
    assert torch.get_num_threads() == threads
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= WIDTH
    assert "targets met" in printed
    failed = {m.contestant: m.unavailable for m in results.measurements if m.unavailable}
    assert all("not installed" in why or "EVEModule has no" in why for why in failed.values())
    assert len(results.growths) == len(MODES["smoke"].sweeps)

    found = json.loads((tmp_path / "bench.json").read_text())
    assert found["format"] == 1
    assert (found["mode"], found["threads"], found["interrupted"]) == ("smoke", 1, False)
    assert {"python", "machine", "torch", "pyro-ppl"} <= found["environment"].keys()
    goals = [g for c in comparisons(MODES["smoke"]) for g in c.goals]
    assert len(found["goals"]) == len(goals)
    for goal in found["goals"]:
        assert isinstance(goal["value"], float) or goal["unavailable"]
        assert goal["met"] in (True, False, None)
        assert len(goal["quartiles"]) == 2
    for m in found["measurements"]:
        assert m["unavailable"] or (m["samples"] and m["start_up"] >= 0)
    assert (tmp_path / "bench.png").read_bytes()[1:4] == b"PNG"


def interrupted(clock):
    def stop():
        raise KeyboardInterrupt

    done = race(clock, {"a": clock.contestant("a", 1.0)})
    return [done, Comparison("late", {"b": stop}, (), Timer(1.0, clock), 1)]


def test_an_interrupt_keeps_what_has_finished(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "comparisons", lambda sizes: interrupted(Clock()))
    with pytest.raises(KeyboardInterrupt):
        run_and_report("smoke", tmp_path, threads=1, progress=False)
    assert "interrupted: 1 of 2 comparisons finished" in capsys.readouterr().out
    found = json.loads((tmp_path / "bench.json").read_text())
    assert found["interrupted"]
    assert [m["contestant"] for m in found["measurements"]] == ["a"]


def test_an_interrupt_before_the_first_result_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "comparisons", lambda sizes: interrupted(Clock())[1:])
    with pytest.raises(KeyboardInterrupt):
        run_and_report("smoke", tmp_path, threads=1, progress=False)
    assert not list(Path(tmp_path).iterdir())


def test_threads_are_checked_first(tmp_path):
    with pytest.raises(ValueError, match="threads"):
        run_and_report("smoke", tmp_path / "out", threads=-1)
    assert not (tmp_path / "out").exists()


def test_a_report_without_numbers():
    m = Measurement("race", "a", "s", unavailable="no C++ compiler")
    comparison = race(Clock(), {}, (Goal("a", "a", 1.0),))
    results = Results("full", MODES["full"], 2, {"torch": "2"}, 1, ["race"], [m])
    results.verdicts = judge(comparison, [m])
    console = Console(width=WIDTH, record=True, file=io.StringIO())
    console.print(render(results))
    assert "a (race): no C++ compiler" in console.export_text()
    assert json.loads(to_json(results))["goals"][0]["value"] is None
