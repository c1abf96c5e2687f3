"""The monitor in a plain SVI loop: what it records, and what it leaves alone."""

import pyro
import pytest
import torch
from pandas.testing import assert_frame_equal
from pyro.infer import SVI, TraceMeanField_ELBO
from small_models import Regression, data
from torch import nn

from eve_pyro import EVEGuide
from eve_pyro.diagnostics import Monitor, layer_table, posterior_statistics


def fit(monitored, steps=21, every=10):
    pyro.clear_param_store()
    torch.manual_seed(0)
    model, (x, y) = Regression(units=(6, 4)), data(40)
    guide = EVEGuide(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), TraceMeanField_ELBO())
    monitor = Monitor(model, guide, x[:16], every=every)
    for step in range(steps):
        svi.step(x, y)
        if monitored:
            monitor(step)
    return model, monitor


def test_records_the_layer_table():
    model, monitor = fit(True)
    frame = monitor.frame
    assert frame.step.unique().tolist() == [0, 10, 20]
    assert frame.layer.tolist() == ["net.0", "net.1"] * 3
    last = frame[frame.step == 20].drop(columns="step").set_index("layer")
    expected = layer_table(posterior_statistics(model, None, data(40)[0][:16], seed=0))
    assert_frame_equal(last, expected)
    assert frame.kl.nunique() == len(frame)
    assert not frame.isna().any(axis=None)


def test_training_is_the_same_with_and_without():
    (a, _), (b, _) = fit(True, every=1), fit(False)
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(p, q)
    assert a.training


def test_empty_frame_and_errors():
    model, x = Regression(), data()[0]
    frame = Monitor(model, None, x).frame
    assert frame.empty
    assert list(frame.columns[:3]) == ["step", "layer", "units"]
    with pytest.raises(ValueError, match="every must be an integer >= 1, got 0"):
        Monitor(model, None, x, every=0)
    with pytest.raises(ValueError, match="model must have an EVEModule"):
        Monitor(nn.Linear(3, 1), None, x)
