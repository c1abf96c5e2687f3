"""Every test and doctest starts from one seed, an empty parameter store and full validation."""

import matplotlib
import pyro
import pytest
import torch

matplotlib.use("Agg")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fresh_pyro():
    pyro.clear_param_store()
    pyro.enable_validation(True)
    pyro.set_rng_seed(0)
    yield
    pyro.clear_param_store()
