"""Trainer: every way to fail says what is wrong."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from small_training import QUICK, Regressor, config, data, same, trainer
from torch import nn

from eve_pyro.infer import (
    EVEGuide,
    Trainer,
)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ((), "data must be one or more tensors"),
        ((torch.zeros(0, 3), torch.zeros(0)), r"at least 1, got \[0, 0\]"),
        ((torch.zeros(4, 3), torch.zeros(5)), r"got \[4, 5\]"),
        ((torch.tensor(1.0),), r"got \[0\]"),
        (
            (
                torch.zeros(4, 3).index_put(
                    (torch.tensor(2), torch.tensor(1)), torch.tensor(math.nan)
                ),
            ),
            r"data\[0\] must be finite, got nan in row 2, column 1",
        ),
        ((torch.zeros(2), torch.tensor([0.0, math.inf])), r"data\[1\] .* got inf in row 1 "),
    ],
)
def test_data_errors(tensors, message):
    with pytest.raises(ValueError, match=message):
        trainer().fit(*tensors)


def test_argument_errors():
    x, y = data()
    with pytest.raises(TypeError, match=r"data\[0\] must be a tensor, got ndarray"):
        trainer().fit(x.numpy(), y)
    with pytest.raises(ValueError, match="validation must hold 2 tensors like data, got 1"):
        trainer().fit(x, y, validation=(x,))
    with pytest.raises(ValueError, match="validation must be one or more tensors, got Tensor"):
        trainer().fit(x, y, validation=x)
    with pytest.raises(ValueError, match="patience needs validation"):
        trainer(patience=3).fit(x, y)
    with pytest.raises(ValueError, match="'scale' matches none of the parameters"):
        trainer(lr_multipliers={"scale": 2.0}).fit(x, y)
    with pytest.raises(ValueError, match="resume=True needs checkpoint="):
        trainer().fit(x, y, resume=True)
    with pytest.raises(ValueError, match="no observed site"):
        trainer().fit(x)
    with pytest.raises(TypeError, match="model must be a torch module"):
        Trainer(lambda x: None)
    with pytest.raises(TypeError, match="guide must be a guide of the model"):
        Trainer(Regressor(), AutoNormal)


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"learning_rate": 0.0},
        {"lr_schedule": "step"},
        {"lr_multipliers": {"*": -1.0}},
        {"weight_decay": -1.0},
        {"clip_norm": 0.0},
        {"patience": 0},
        {"seed": -1},
    ],
)
def test_config_errors(changes):
    (name,) = changes
    with pytest.raises(ValueError, match=name):
        config(**changes)


def test_a_parameter_of_no_module():
    def guide(x, y=None):
        pyro.sample("slope", dist.Normal(pyro.param("loc", torch.zeros(())), 1.0))

    model = Regressor(slope=True)
    with pytest.raises(ValueError, match="parameter 'loc' belongs to no module"):
        Trainer(model, EVEGuide(model, guide=guide), config=QUICK).fit(*data())
    assert "loc" not in pyro.get_param_store()
    pyro.param("loc", torch.zeros(()))  # somebody else's, not seen by this model
    trainer().fit(*data())


def test_a_model_without_parameters():
    class Empty(nn.Module):
        def forward(self, y):
            with pyro.plate("data", len(y)):
                pyro.sample("y", dist.Normal(0.0, 1.0), obs=y)

    with pytest.raises(ValueError, match="no parameters to train"):
        trainer(Empty()).fit(data()[1])


class Fragile(Regressor):
    """Fails in its seventh step, in one of three ways."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x, y=None):
        if self.training:
            self.steps += 1
        fails = self.training and self.steps == 7
        if fails and self.how == "value":
            x = x / 0.0
        scale = self.log_scale.exp() * (1e30 if fails and self.how == "density" else 1.0) ** 2
        if fails and self.how == "gradient":
            scale = scale + (self.log_scale * 0.0).sqrt()
        with pyro.plate("data", len(x)):
            loc = self.head(self.hidden(x)).squeeze(-1)
            return pyro.sample("y", dist.Normal(loc, scale), obs=y)


@pytest.mark.parametrize("validation", [True, False])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("value", "the value of site 'hidden' is not finite in epoch 3"),
        ("density", "the log probability of site 'y' is not finite in epoch 3"),
        ("gradient", "the gradient of parameter 'log_scale' is not finite in epoch 3"),
    ],
)
def test_failure_names_the_site(how, message, validation):
    pyro.enable_validation(validation)
    model, twin = Fragile(how), Fragile("never")
    with pytest.raises(FloatingPointError, match=message):
        trainer(model, lr_schedule="constant").fit(*data())
    trainer(twin, epochs=2, lr_schedule="constant").fit(*data())
    assert same(model, twin)  # as it was before the step that failed


def test_failure_at_the_start():
    model = Regressor()
    with torch.no_grad():
        model.head.weight[0, 0] = math.nan
    with pytest.raises(
        FloatingPointError, match=r"parameter 'head.weight' is not finite at the st"
    ):
        trainer(model).fit(*data())


def test_a_score_that_is_no_number():
    with pytest.raises(FloatingPointError, match="validation score of epoch 1 is nan"):
        trainer().fit(*data(), validation=lambda model, guide: math.nan)


def test_an_error_of_the_model_stays_what_it_is():
    class Broken(Regressor):
        def forward(self, x, y=None):
            if self.training:
                raise ZeroDivisionError("mine")
            return super().forward(x, y)

    with pytest.raises(ZeroDivisionError, match="mine"):
        trainer(Broken()).fit(*data())
