"""Files of the trainer: resuming, saved models, and files that do not fit."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from small_training import Regressor, config, data, numbers, same
from torch import nn

from eve_pyro.infer import (
    MCNLL_ELBO,
    CheckpointError,
    EVEGuide,
    Trainer,
    constant,
    linear_warmup,
    load_model_state,
    save_model,
)

HERE = Path(__file__).parent


def make_trainer(kind="eve", init=0, units=8, elbo=None, schedule=None, **changes):
    """A trainer of a model whose weights ``init`` seeds; ``kind`` is the guide's."""
    model = Regressor(units, init, slope=kind == "auto")
    guide = EVEGuide(model, guide=AutoNormal if kind == "auto" else None)
    options = {"epochs": 6, "lr_multipliers": {"log_scale": 5.0}, "patience": 5, **changes}
    schedule = schedule or linear_warmup(12)
    return Trainer(model, guide, elbo, config(**options), beta_schedule=schedule)


class Killer:
    """A score that ends a run in its n-th epoch."""

    def __init__(self, epoch, kill):
        self.epoch, self.kill, self.calls = epoch, kill, 0

    def __call__(self, model, guide):
        self.calls += 1
        if self.calls == self.epoch:
            self.kill()
        x, y = data(seed=1)
        return TraceMeanField_ELBO().loss(model, guide, x, y)


def never():
    raise AssertionError


def interrupt():
    raise KeyboardInterrupt


def crash():
    raise OSError("the machine went away")


def sigkill():
    os.kill(os.getpid(), signal.SIGKILL)


def tensors(trained):
    modules = nn.ModuleList([trained.model, trained.guide])
    return {k: v.clone() for k, v in modules.state_dict().items()}


def assert_resumes(kind, path):
    """A run resumed from ``path`` ends bit for bit where an uninterrupted one does."""
    whole, resumed = make_trainer(kind), make_trainer(kind, init=9)
    expected = whole.fit(*data(), validation=Killer(99, never))
    found = resumed.fit(*data(), validation=Killer(99, never), checkpoint=path, resume=True)
    assert numbers(found) == numbers(expected)
    assert len(found.rows) == 6
    assert found.best_score == expected.best_score
    before, after = tensors(whole), tensors(resumed)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) for k in before)


# Resuming


@pytest.mark.parametrize("kind", ["eve", "auto"])
@pytest.mark.parametrize(("kill", "error"), [(interrupt, None), (crash, OSError)])
def test_resume_after_an_interruption(tmp_path, kind, kill, error):
    path, stopped = tmp_path / "run.pt", make_trainer(kind)
    run = {"validation": Killer(4, kill), "checkpoint": path, "checkpoint_every": 1}
    if error:
        with pytest.raises(error):
            stopped.fit(*data(), **run)
    else:
        assert stopped.fit(*data(), **run).interrupted
    assert os.listdir(tmp_path) == ["run.pt"]
    assert_resumes(kind, path)


def test_resume_after_a_kill(tmp_path):
    path = tmp_path / "run.pt"
    script = (
        "import torch; from test_checkpoint import *; torch.set_num_threads(1);"
        "make_trainer('auto').fit(*data(), validation=Killer(4, sigkill),"
        f"checkpoint={str(path)!r}, checkpoint_every=2)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=HERE, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert torch.load(path, weights_only=True)["epoch"] == 2
    assert_resumes("auto", path)


def test_a_finished_run_resumes_to_itself(tmp_path):
    path, first, second = tmp_path / "run.pt", make_trainer(), make_trainer(init=9)
    expected = first.fit(*data(), validation=data(seed=1), checkpoint=path, resume=True)
    found = second.fit(*data(), validation=data(seed=1), checkpoint=path, resume=True)
    assert found.rows == expected.rows  # to the seconds: nothing was done again
    assert same(first.model, second.model)


def test_a_stopped_run_stays_stopped(tmp_path):
    path = tmp_path / "run.pt"
    for _ in range(2):
        score = iter([1.0, 2.0, 2.0]).__next__
        stopped = make_trainer(patience=2)
        history = stopped.fit(
            *data(), validation=lambda m, g, s=score: s(), checkpoint=path, resume=True
        )
        assert history.stopped_early
        assert (history.best_epoch, len(history.rows)) == (1, 3)


def test_a_constant_rate_may_go_on_for_longer(tmp_path):
    path, options = tmp_path / "run.pt", {"lr_schedule": "constant", "patience": None}
    make_trainer(epochs=2, **options).fit(*data(), checkpoint=path)
    whole, longer = make_trainer(epochs=5, **options), make_trainer(epochs=5, **options)
    whole.fit(*data())
    longer.fit(*data(), checkpoint=path, resume=True)
    assert same(whole.model, longer.model)


def test_running_statistics_resume_too(tmp_path):
    def make():
        trained = make_trainer(patience=None)
        trained.model.head = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
        torch.manual_seed(0)
        trained.model.head[2].reset_parameters()
        return trained

    path, whole, stopped, resumed = tmp_path / "run.pt", make(), make(), make()
    whole.fit(*data(), validation=Killer(99, never))
    stopped.fit(*data(), validation=Killer(3, interrupt), checkpoint=path)
    resumed.fit(*data(), validation=Killer(99, never), checkpoint=path, resume=True)
    before, after = tensors(whole), tensors(resumed)
    assert all(torch.equal(before[k], after[k]) for k in before)


# Files that do not fit


@pytest.fixture
def path(tmp_path):
    make_trainer(epochs=1, patience=None).fit(*data(), checkpoint=tmp_path / "run.pt")
    return tmp_path / "run.pt"


def resume(path, trained, *tensors_, **options):
    """Try to resume, and check that a failure is one line and changes nothing."""
    before, content = tensors(trained), path.read_bytes()
    with pytest.raises(CheckpointError) as caught:
        trained.fit(*(tensors_ or data()), checkpoint=path, resume=True, **options)
    after = tensors(trained)
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert path.read_bytes() == content
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"learning_rate": 0.5}, "learning_rate is 0.01 there, 0.5 here"),
        ({"epochs": 2}, "epochs is 1 there, 2 here"),
        ({"lr_multipliers": {}}, "lr_multipliers is {'log_scale': 5.0} there, {} here"),
        ({"seed": 3}, "seed is 0 there, 3 here"),
        ({"elbo": MCNLL_ELBO(4)}, "elbo is 'TraceMeanField_ELBO' there, 'MCNLL_ELBO' here"),
        ({"schedule": constant()}, "beta_schedule is"),
    ],
)
def test_another_configuration(path, changes, difference):
    trained = make_trainer(**{"epochs": 1, "patience": None, **changes})
    assert difference in resume(path, trained)


def test_another_beta(path):
    trained = make_trainer(epochs=1, patience=None)
    trained.model.hidden.set_beta(0.5)
    assert "beta is [0.1" in resume(path, trained)


def test_other_data(path):
    same_options = {"epochs": 1, "patience": None}
    assert "data is" in resume(path, make_trainer(**same_options), *data(seed=5))
    message = resume(path, make_trainer(**same_options), validation=data(seed=1))
    assert "validation is" in message
    message = resume(path, make_trainer(**same_options), model_kwargs={"num_data": 80})
    assert "model_kwargs is {} there, {'num_data': 80} here" in message


def test_another_architecture(path):
    wider = make_trainer(units=9, epochs=1, patience=None)
    assert "another architecture: 'hidden.encoder.loc.weight' is" in resume(path, wider)
    guided = make_trainer("auto", epochs=1, patience=None)
    assert "it lacks 'guide.guide.locs.slope_unconstrained'" in resume(path, guided)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "text", "another file"])
def test_damaged_files(path, damage):
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
    elif damage == "empty":
        content = b""
    elif damage == "text":
        content = b"not a checkpoint\n"
    path.write_bytes(content)
    if damage == "another file":
        save_model(path, nn.Linear(3, 1))
    message = resume(path, make_trainer(epochs=1, patience=None))
    expected = "is no checkpoint file" if damage == "another file" else "damaged"
    assert expected in message


def test_a_folder_that_cannot_be_written_is_found_first(tmp_path):
    calls = []
    trained = make_trainer()
    (tmp_path / "file").touch()
    for path in (tmp_path / "none" / "run.pt", tmp_path / "file" / "run.pt", tmp_path):
        with pytest.raises(CheckpointError, match="cannot be written"):
            trained.fit(*data(), validation=lambda m, g: calls.append(0), checkpoint=path)
    assert not calls


# Saved models


def test_save_and_load_a_model(tmp_path):
    path, trained = tmp_path / "model.pt", make_trainer("auto", epochs=2, patience=None)
    trained.fit(*data())
    notes = {"unit": "MPa", "scale": torch.tensor([1.0, 2.0]), "columns": ["a", "b"]}
    save_model(path, trained.model, trained.guide, notes)
    other = make_trainer("auto", init=9)
    with pytest.raises(CheckpointError, match=r"slope_unconstrained' in it is unknown here \(call"):
        load_model_state(path, other.model, other.guide)
    other.guide(*data())
    found = load_model_state(path, other.model, other.guide)
    assert found["unit"] == "MPa"
    assert torch.equal(found["scale"], notes["scale"])
    before, after = tensors(trained), tensors(other)
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_metadata_is_plain(tmp_path):
    with pytest.raises(TypeError, match="metadata must consist of tensors and plain Python"):
        save_model(tmp_path / "model.pt", nn.Linear(3, 1), metadata={"path": tmp_path})
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path, net = tmp_path / "model.pt", nn.Linear(3, 1)
    save_model(path, net)
    content = path.read_bytes()

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CheckpointError, match=r"cannot be written \(No space left on device\)"):
        save_model(path, nn.Linear(3, 1))
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["model.pt"]


def test_loading_keeps_the_objects(tmp_path):
    net = nn.Linear(3, 1)
    save_model(tmp_path / "model.pt", net)
    weight = net.weight
    with torch.no_grad():
        weight.zero_()
    load_model_state(tmp_path / "model.pt", net)
    assert net.weight is weight
    assert weight.abs().sum() > 0
