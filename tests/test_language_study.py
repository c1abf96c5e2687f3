"""The studies of text: training that can be stopped, what is said of it, and by which rules."""

import re
from dataclasses import replace
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
import torch
from text_data import SHARED, needs

from eve_pyro.cli import main
from eve_pyro.data import DataError, DataNotFoundError
from eve_pyro.data.text import TokenWindows, train_tokenizer
from eve_pyro.experiments.engine import Record, run_tasks
from eve_pyro.experiments.page import STATUSES, Page
from eve_pyro.experiments.reproduce import reproduce, studies
from eve_pyro.experiments.store import Outcome
from eve_pyro.experiments.studies.language.corpora import Text, TextConfig, load_text
from eve_pyro.experiments.studies.language.models import BlockConfig, Shape
from eve_pyro.experiments.studies.language.plan import Plan
from eve_pyro.experiments.studies.language.ranks import Ranks
from eve_pyro.experiments.studies.language.run import Scoring, run_language
from eve_pyro.experiments.studies.language.tasks import (
    COHERENT,
    CORPORA,
    COST,
    DEEP,
    MANY,
    MODELS,
    SMOKE,
    large_tasks,
    tasks,
)
from eve_pyro.experiments.studies.language.text.claims import verdicts
from eve_pyro.experiments.studies.language.text.page import write
from eve_pyro.experiments.studies.language.text.predictors import (
    CHOSEN_DROPOUT,
    CHOSEN_EVE,
    CHOSEN_MC,
    SCORES,
    predictors,
)
from eve_pyro.experiments.studies.language.training import Training
from eve_pyro.infer.checkpoint import CheckpointError, load_model_state, save_model

SHAPE = Shape(d_model=8, num_layers=2, num_heads=2, context=8)
PLAN = Plan(epochs=2, batch_size=4, learning_rate=1e-2, num_samples=2, checkpoint_every=3)
ALONE = Ranks(0, 1, torch.device("cpu"))
FULL = BlockConfig("eve", dropout=0.1, objective="mc", particles=2, warm_up=0.5, free_nats=0.1)


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory):
    """Tokenizers and checkpoints of these tests lie in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    sentence = "the whale swims in the sea and the sea is wide . "
    tokenizer = train_tokenizer([sentence], 270, cache=tmp_path_factory.mktemp("tokenizer"))
    rng = np.random.default_rng(0)
    parts = [TokenWindows(rng.integers(270, size=n), SHAPE.context) for n in (200, 60, 60, 60)]
    return Text(*parts, tokenizer, "noise")


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """All runs of a smoke study, on the text that comes with the package."""
    folder = tmp_path_factory.mktemp("runs")
    return run_tasks(tasks("mobydick", True), folder, jobs=1, progress=False)


def training(text, block=FULL, plan=PLAN, path=None, seed=3):
    torch.manual_seed(seed)
    model = block.model(SHAPE, text.tokenizer.vocab_size)
    return Training(model, block, text, plan, seed, ALONE, path)


def without_seconds(course):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in course]


class Killed(BaseException):
    pass


BALANCED = BlockConfig("eve", beta=0.1, balanced=True, learned_prior=True)


@pytest.mark.parametrize(
    ("stop", "backend", "block"),
    [(4, None, FULL), (6, None, FULL), (11, None, FULL), (11, "eager", FULL), (11, None, BALANCED)],
)
def test_a_killed_training_goes_on_to_the_same_numbers(text, tmp_path, stop, backend, block):
    plan = replace(PLAN, backend=backend)
    whole = training(text, block, plan=plan)
    whole.run()
    assert whole.steps == 12
    betas = whole.beta.full
    assert sum(betas) == pytest.approx(sum(block.per_layer("beta", SHAPE.num_layers)))
    assert (betas[0] == betas[1]) != block.balanced
    path = tmp_path / "state.pt"
    first = training(text, block, plan=plan, path=path)
    step = first._step

    def killed(*batch):
        if first.step == stop:
            raise Killed
        step(*batch)

    first._step = killed
    with pytest.raises(Killed):
        first.run()
    torch.manual_seed(stop)  # noise is that of the step, not what the process had left
    second = training(text, block, plan=plan, path=path)
    second.run()
    assert second.beta.full == betas
    for name, tensor in whole.tensors.items():
        assert torch.equal(tensor, second.tensors[name]), name
        assert torch.equal(whole.best["state"][name], second.best["state"][name]), name
    assert without_seconds(whole.course) == without_seconds(second.course)
    assert whole.best["epoch"] == second.best["epoch"]


def test_a_checkpoint_of_another_run_is_refused(text, tmp_path):
    path = tmp_path / "state.pt"
    training(text, path=path).run()
    with pytest.raises(CheckpointError, match="is of another run: learning_rate"):
        training(text, plan=replace(PLAN, learning_rate=1.0), path=path).run()
    other = train_tokenizer(["another text"], 270, cache=tmp_path)
    with pytest.raises(CheckpointError, match="is of another run: tokenizer"):
        training(replace(text, tokenizer=other), path=path).run()


def test_training_leaves_the_random_state_and_the_betas_of_evaluation_alone(text):
    one = training(text)
    state = torch.get_rng_state()
    one.run()
    assert torch.equal(state, torch.get_rng_state())
    assert one.course[-1]["train_ce"] < one.course[0]["train_ce"] + 0.1
    assert {"objective", "train_ce", "valid_ce", "valid_mean_ce"} <= set(one.course[0])


def test_a_recorded_graph_gives_the_same_training(text):
    plain, recorded = training(text), training(text, plan=replace(PLAN, backend="eager"))
    plain.run()
    recorded.run()
    for a, b in zip(plain.course, recorded.course, strict=True):
        assert a["valid_ce"] == pytest.approx(b["valid_ce"], rel=1e-4)


def test_divergence_stops_with_the_name_of_what_is_not_finite(text):
    bad = training(text, plan=replace(PLAN, learning_rate=1e30))
    with pytest.raises(FloatingPointError, match=r"(site|parameter|gradient|loss).*in step \d+ of"):
        bad.run()
    poisoned = training(text, BlockConfig("eve"))
    with torch.no_grad():
        poisoned.model.network.blocks[1].feed_forward.units.encoder.loc.weight[:, 0] = 3e38
    with pytest.raises(FloatingPointError, match=r"site 'network.blocks.1.feed_forward.units'"):
        poisoned.run()


@pytest.mark.parametrize("name", [*MODELS, *COHERENT])
def test_every_model_trains_all_its_parameters(text, name):
    model = training(text, {**MODELS, **COHERENT}[name])
    before = {k: p.detach().clone() for k, p in model.parameters.items()}
    model._rehearse()
    for inputs, targets in model.text.train.batches(4, seed=0):
        model._step(inputs, targets)
    assert not [k for k, p in model.parameters.items() if torch.equal(p, before[k])]


def test_matched_models_have_as_many_parameters():
    def count(name):
        model = MODELS[name].model(Shape(), 400)
        return sum(p.numel() for p in model.parameters())

    for name in ("wide", "glu"):
        assert count(name) == pytest.approx(count("eve-gate"), rel=0.02), name
    assert count("narrow") < count("plain") < count("eve-gelu") < count("eve-gate")


def test_options_reach_the_layers():
    block = BlockConfig("eve", beta=(0.1, 0.2), sigma_floor=(0.5, 0.8), free_nats=0.3)
    layers = [b.feed_forward.units for b in block.model(SHAPE, 300).network.blocks]
    assert [round(float(u.beta), 3) for u in layers] == [0.1, 0.2]
    h = torch.randn(5, 8)
    assert layers[0].posterior(h).stddev.min() >= 0.5 - 1e-6
    assert layers[1].posterior(h).stddev.min() >= 0.8 - 1e-6
    assert all(len(u.penalties) == 1 for u in layers)
    assert all(u.shared_noise_dim is None for u in layers)
    shared = COHERENT["eve-shared"].model(SHAPE, 300).network.blocks
    assert all(b.feed_forward.units.shared_noise_dim == -2 for b in shared)
    with pytest.raises(ValueError, match="sigma_floor must be one number, or one for each of 2"):
        BlockConfig("eve", sigma_floor=(0.5, 0.5, 0.5)).model(SHAPE, 300)
    assert BlockConfig(warm_up=0.5).beta_schedule(10)(0) == 0.0


def test_bad_use_is_one_clear_error(text, tmp_path, monkeypatch, capsys):
    with pytest.raises(ValueError, match="d_model must be num_heads times an even number"):
        Shape(d_model=10, num_heads=4)
    with pytest.raises(DataError, match="must have at least context"):
        load_text(replace(_small(), train_tokens=4), 8)
    with pytest.raises(DataError, match="must fill a batch of 1000 windows"):
        training(text, plan=replace(PLAN, batch_size=1000))
    model = BlockConfig("eve").model(SHAPE, 300)
    with pytest.raises(ValueError, match="at most the 8 positions of the context"):
        model.network(torch.zeros(1, 9, dtype=torch.long))
    save_model(tmp_path / "model.pt", model)
    with pytest.raises(CheckpointError, match=r"another architecture.*\(300, 8\).*\(301, 8\)"):
        load_model_state(tmp_path / "model.pt", BlockConfig("eve").model(SHAPE, 301))
    with pytest.raises(ValueError, match="multiple of the 3 processes, got 4"):
        Ranks(0, 3, torch.device("cpu")).share(torch.zeros(4))
    with pytest.raises(ValueError, match="size must be 'compact' for the study 'boston'"):
        reproduce("boston", tmp_path, size="gpu")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="size must be 'gpu' under torchrun, got 'compact'"):
        reproduce("mobydick", tmp_path)
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.delenv("EVE_PYRO_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", "pg19", "--smoke", "--out", str(tmp_path), "--jobs", "1"])
    assert stopped.value.code == 2
    assert re.search(r"pg19 .*EVE_PYRO_DATA", capsys.readouterr().err)


def _small(corpus="moby_dick"):
    return TextConfig(corpus, SMOKE.vocab_size, 512, SMOKE.valid, SMOKE.test)


@pytest.mark.parametrize(
    "corpus",
    [
        pytest.param("wikitext2", marks=needs("wikitext-2/test.txt")),
        pytest.param("writingprompts", marks=needs("writingprompts/test.wp_target")),
        pytest.param("pg19", marks=needs("pg19")),
    ],
)
def test_a_run_on_every_text(corpus, monkeypatch):
    monkeypatch.setenv("EVE_PYRO_DATA", str(SHARED))
    scoring = Scoring(num_samples=2, layer_windows=4)
    outcome = run_language(1, _small(corpus), SMOKE.shape, MODELS["eve-gate"], SMOKE.plan, scoring)
    assert outcome.scores["last_draws_scaled_ce"] < np.log(SMOKE.vocab_size)
    page = Page(corpus, "A text")
    task = replace(tasks(corpus, True)[4], seed=1)
    write(corpus, page, [Record(task, outcome)])


def test_smoke_run_writes_a_whole_page(records, tmp_path):
    page = Page("mobydick", "Moby-Dick")
    write("mobydick", page, records)
    text = "\n\n".join(page._blocks)
    assert "## Verdicts" in text
    assert not re.search(r"\bnan\b", text)
    assert "1.5 passes per token" in text
    assert "135 chapters" in text  # what the text is
    for words in ("Over-fitting", "wrong?", "layers of EVE", "goes wrong", "What it costs"):
        assert words in text
    for record in records:
        found = record.outcome.scores
        if record.task.setting != COST:
            assert found["last_gap"] == found["last_valid"] - found["last_train"]
    # A network without noise has one way to predict, and no MI.
    plain = records[0].outcome.scores
    assert plain["last_draws_raw_mutual_information"] == pytest.approx(0, abs=1e-6)
    assert not any("_mean_raw" in name for name in plain)


def test_the_command_finds_finished_runs(records, tmp_path, monkeypatch):
    found = {record.task.label: record for record in records}

    def kept(task_list, folder, jobs):
        return [found[task.label] for task in task_list]

    monkeypatch.setattr(import_module("eve_pyro.experiments.reproduce"), "run_tasks", kept)
    main(["reproduce", "mobydick", "--smoke", "--out", str(tmp_path)])
    text = (tmp_path / "smoke" / "mobydick.md").read_text()
    assert "its numbers mean nothing" in text
    for linked in re.findall(r"\]\(([^)]+)\)", text):
        assert (tmp_path / "smoke" / linked).stat().st_size > 0


def test_a_text_that_is_missing_does_not_keep_all_others_from_being_run(
    records, tmp_path, monkeypatch, capsys
):
    found = {record.task.label: record for record in records}

    def some(task_list, folder, jobs):
        if task_list[0].study == "pg19":
            raise DataNotFoundError("pg19 is not here")
        return [found[task.label] for task in task_list]

    module = import_module("eve_pyro.experiments.reproduce")
    two = {name: studies()[name] for name in ("pg19", "mobydick")}
    monkeypatch.setattr(module, "studies", lambda: two)
    monkeypatch.setattr(module, "run_tasks", some)
    reproduce("all", tmp_path, smoke=True)
    assert "not run, for want of data: pg19" in capsys.readouterr().out
    with pytest.raises(DataNotFoundError, match="pg19 is not here"):
        reproduce("pg19", tmp_path, smoke=True)
    assert [path.name for path in (tmp_path / "smoke").glob("*.md")] == ["mobydick.md"]


def test_a_page_can_be_made_of_any_part_of_the_runs(records):
    no_eve = [r for r in records if not r.task.model.startswith("eve")]
    failed = [*records[:4], Record(records[4].task, Outcome(failure="site 'z' is not finite"))]
    for part in (records[:1], records[3:5], records[-1:], no_eve, records[4:6], failed):
        write("wikitext2", Page("part", "Part"), part)


@pytest.mark.parametrize("study", CORPORA)
def test_full_tasks_are_distinct_and_pair_their_seeds(study):
    for found in (tasks(study, False), large_tasks(study)):
        assert len({task.label for task in found}) == len(found)
        assert min(task.seed for task in found) >= 100  # not the seeds of development
        assert [task.setting for task in found if task.alone] == [COST]
    assert study in studies()


def outcome(ce, *, flips=0.2, information=0.1, mean=0.05, gap=1.0, valid=None):
    """Scores of a run with one cross-entropy everywhere; at the means it is worse by ``mean``."""
    row = {"epochs": 2.0, "best_epoch": 1.0, "vocab_size": 10.0}
    for epoch in ("last", "best"):
        row |= {f"{epoch}_{n}": ce if valid is None else valid for n in ("valid", "valid_mean")}
        row |= {f"{epoch}_train": ce - gap, f"{epoch}_gap": gap}
        for mode, more in (("draws", 0.0), ("mean", mean), ("one", mean)):
            for kind in ("raw", "scaled"):
                stem = f"{epoch}_{mode}_{kind}"
                row |= {f"{stem}_{s}": 0.5 for s in SCORES}
                row |= {f"{stem}_ce": ce + more, f"{stem}_perplexity": np.exp(ce + more)}
                row |= {f"{stem}_accuracy": 1 / (ce + more)}
                row |= {f"{stem}_mutual_information": information, f"{stem}_flip_rate": flips}
    return row


def rows(differences, *, rivals=("plain",), **options):
    """Predictors of EVE and rivals in the main setting; EVE's CE differs by the given amounts."""
    found = []
    for seed, difference in enumerate(differences):
        for model in (*rivals, "eve-gate"):
            own = model == "eve-gate"
            ce = 5 + 0.1 * seed + (difference if own else 0.0)
            scores = outcome(ce, **(options if own else {}))
            found.append({"setting": MANY, "model": model, "seed": seed, **scores})
    return predictors(pd.DataFrame(found))


def status(rows, words, layers=None, cost=None, study="wikitext2", shift=None):
    parts = (pd.DataFrame() if part is None else part for part in (layers, shift, cost))
    found = verdicts(study, rows, *parts)
    return next(
        v.status
        for v in found
        if words in v.claim
        and (MANY in v.claim or any(part is not None for part in (layers, cost, shift)))
    )


BETTER, MIXED, WORSE = [-0.2, -0.21, -0.19], [-0.2, 0.2, -0.1], [0.2, 0.21, 0.19]


@pytest.mark.parametrize(
    "words", ["cross-entropy", "perplexity", "accuracy", "best epoch", "scaled"]
)
def test_claims_of_scores_are_decided_by_wins_and_intervals(words):
    assert status(rows(BETTER), words) == "reproduced"
    assert status(rows(MIXED), words) == "not reproduced"
    assert status(rows(WORSE), words) == "not reproduced"
    assert status(rows([-0.2]), words) == "not tested"
    assert status(predictors(pd.DataFrame()), words) == "not tested"


def test_claims_of_the_gap_and_of_uncertainty():
    assert status(rows(BETTER, gap=0.1), "gap") == "reproduced"
    assert status(rows(BETTER, gap=2.0), "gap") == "not reproduced"
    of_uncertainty = "mutual information and flips"
    assert status(rows(BETTER, information=0.16, flips=0.3), of_uncertainty) == "reproduced"
    assert status(rows(BETTER, information=0.01, flips=0.3), of_uncertainty) == "partly"
    assert status(rows(BETTER, information=0.01, flips=0.1), of_uncertainty) == "not reproduced"
    aims = []
    for options in ({}, {"mean": -0.1}, {"information": 0.01, "flips": 0.1}):
        # Another model with more of everything decides nothing: who decides is fixed.
        runs = [{"model": "eve-mc", **outcome(5.0, **options)}, {"model": "eve-x", **outcome(4.0)}]
        frame = predictors(pd.DataFrame([{"setting": MANY, "seed": 0, **run} for run in runs]))
        found = verdicts("pg19", frame, *[pd.DataFrame()] * 3)
        aims += [v.status for v in found if "CE not worse" in v.published]
    assert aims == ["reproduced", "partly", "not reproduced"]


def test_aims_of_what_uncertainty_is_good_for():
    found = [
        {"setting": MANY, "model": "eve-mc", "seed": seed, **outcome(5.0)} for seed in range(4)
    ]
    words = "told by max probability and MI together"
    for gains, expected in (
        ((0.01, 0.01, 0.01, 0.01), "reproduced"),
        ((0.01, 0.01, 0.01, -0.01), "partly"),
        ((0.01, 0.01, -0.01, -0.01), "not reproduced"),
    ):
        for row, gained in zip(found, gains, strict=True):
            row["last_draws_raw_auroc_combined"] = 0.5 + gained
        assert status(predictors(pd.DataFrame(found)), words) == expected
    assert status(rows(BETTER), words) == "not tested"

    def shift(*gains, outside=0.6, model="eve-mc", seeds=None):
        return pd.DataFrame(
            {"model": model, "seed": seed, "rate": rate, "detect_max_probability": outside}
            | {"detect_entropy": 0.5, "detect_mutual_information": 0.6 + gained}
            for seed, gained in zip(seeds or range(len(gains)), gains, strict=True)
            for rate in (0.0, 0.1, 0.4)
        )

    words = "windows with replaced tokens"
    assert status(rows(BETTER), words, shift=shift(0.1, 0.1)) == "reproduced"
    assert status(rows(BETTER), words, shift=shift(0.1, 0.1, 0.1, -0.1)) == "partly"
    assert status(rows(BETTER), words, shift=shift(0.1, -0.1)) == "not reproduced"
    assert status(rows(BETTER), words, shift=pd.DataFrame()) == "not tested"
    # An output that grows surer tells the shift as well, with its sign turned.
    turned = shift(0.1, 0.1, outside=0.2)
    assert status(rows(BETTER), words, shift=turned) == "not reproduced"
    words = "MI better than by MC-dropout's"
    assert status(rows(BETTER), words, shift=shift(0.1)) == "not tested"
    own = shift(0.1, 0.1)
    for gained, expected in ((0.05, "reproduced"), (0.15, "not reproduced")):
        rival = shift(gained, gained, model="dropout-0.1")
        assert status(rows(BETTER), words, shift=pd.concat([own, rival])) == expected
    unpaired = pd.concat([own, shift(0.0, 0.0, model="dropout-0.1", seeds=[7, 8])])
    assert status(rows(BETTER), words, shift=unpaired) == "not tested"


def test_dropout_and_eve_are_chosen_on_validation_text():
    table = []
    for model, ce, valid in (
        ("dropout-0.1", 5.0, 5.2),
        ("dropout-0.3", 5.1, 5.1),
        ("eve-gate", 4.9, 5.0),
        ("eve-mc", 4.8, 5.3),
    ):
        for seed in (0, 1):
            row = {"setting": MANY, "model": model, "seed": seed, **outcome(ce, valid=valid)}
            table.append(row)
    found = predictors(pd.DataFrame(table))
    for name, run in (
        (CHOSEN_DROPOUT, "dropout-0.3"),
        (CHOSEN_MC, "dropout-0.3"),
        (CHOSEN_EVE, "eve-gate"),
    ):
        own = found[found.model == name]
        assert set(own.run) == {run}
        assert len(own) == 2 * 2 * 2  # seeds, epochs, kinds
    assert set(found[found.model == CHOSEN_DROPOUT]["mode"]) == {"mean"}
    rivals = ("plain", "wide", "glu", "narrow", "dropout-0.1")
    all_of = verdicts("pg19", rows(BETTER, rivals=rivals), *[pd.DataFrame()] * 3)
    against = [v for v in all_of if "EVE against" in v.claim and MANY in v.claim]
    assert {v.status for v in against} == {"reproduced"}


def layer_table(*shares, setting=DEEP, models=("eve-gate",)):
    lines = [
        {"setting": setting, "model": m, "seed": s, "epoch": "last", "number": i + 1}
        | {"mutual_information": share}
        for m in models
        for s, of_seed in enumerate(shares)
        for i, share in enumerate(of_seed)
    ]
    return pd.DataFrame(lines)


def test_claims_of_depth_and_of_cost():
    words, none = "every block of four", rows([])
    own = {"models": ("eve-balanced",)}
    even, odd = [3, 2, 2, 3], [9, 3, 2, 1.8]
    assert status(none, words, layer_table(even, even, **own)) == "reproduced"
    assert status(none, words, layer_table(even, even, even, odd, **own)) == "partly"
    assert status(none, words, layer_table(even, odd, **own)) == "not reproduced"
    assert status(none, words, layer_table(even)) == "not tested"  # of another model
    nothing = [1e-3 * value for value in even]
    assert status(none, words, layer_table(nothing, nothing, **own)) == "partly"
    words, two = (
        "mostly from the first layer",
        {"setting": MANY, "models": ("eve-gate", "eve-gelu")},
    )
    assert status(none, words, layer_table([2, 1], **two)) == "reproduced"
    assert status(none, words, layer_table([1, 2], **two)) == "not reproduced"
    split = pd.concat(
        [layer_table([2, 1], setting=MANY), layer_table([1, 2], setting=MANY, models=("eve-gelu",))]
    )
    assert status(none, words, split) == "partly"
    for eve, four, expected in (
        (1.2, 4.0, "reproduced"),
        (1.4, 4.5, "partly"),
        (2, 9, "not reproduced"),
    ):
        cost = pd.DataFrame(
            {
                "kind": ["compiled", "compiled", "prediction", "prediction"],
                "contestant": ["plain", "eve-gate", "eve-gate, S = 1", "eve-gate, S = 4"],
                "seconds": [1.0, eve, 1.0, four],
            }
        )
        assert status(none, "training step", cost=cost) == expected
        assert status(none, "prediction with 4 draws", cost=cost) == expected


def test_all_statuses_are_those_of_a_page():
    found = verdicts("pg19", rows(BETTER), *[pd.DataFrame()] * 3)
    assert {v.status for v in found} <= set(STATUSES)
    assert {v.status for v in found} >= {"reproduced", "not tested"}
