"""A run that goes on compiled where it began eagerly, and the other way round."""

import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from small_training import Regressor, config, data

from eve_pyro.infer import CompiledELBO, EVEGuide, Trainer


def make_trainer(compiled):
    model = Regressor(8, 0)
    elbo = TraceMeanField_ELBO()
    elbo = CompiledELBO(elbo, backend="eager") if compiled else elbo
    return Trainer(model, EVEGuide(model), elbo, config(epochs=4))


class InterruptAt:
    def __init__(self, epoch):
        self.epoch, self.calls = epoch, 0

    def __call__(self, model, guide):
        self.calls += 1
        if self.calls == self.epoch:
            raise KeyboardInterrupt
        return 0.0


@pytest.mark.parametrize("first", [False, True])
def test_the_numbers_are_those_of_one_eager_run(tmp_path, first):
    whole = make_trainer(compiled=False)
    whole.fit(*data(), validation=lambda model, guide: 0.0)
    path = tmp_path / "run.pt"
    began = make_trainer(compiled=first)
    assert began.fit(*data(), validation=InterruptAt(3), checkpoint=path).interrupted
    goes_on = make_trainer(compiled=not first)
    goes_on.fit(*data(), validation=lambda model, guide: 0.0, checkpoint=path, resume=True)
    for p, q in zip(whole.model.parameters(), goes_on.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
