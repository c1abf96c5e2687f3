"""Every test and doctest starts from one seed, an empty parameter store and full validation."""

from collections.abc import Iterator
from typing import Any

import matplotlib
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn

matplotlib.use("Agg")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fresh_pyro() -> Iterator[None]:
    """Seed the noise, empty the parameter store and check everything, before and after a test."""
    pyro.clear_param_store()
    pyro.enable_validation(True)
    pyro.set_rng_seed(0)
    yield
    pyro.clear_param_store()


@pytest.fixture(autouse=True)
def names(doctest_namespace: dict[str, Any]) -> None:
    """What every example may use without importing it."""
    doctest_namespace.update(torch=torch, nn=nn, pyro=pyro, dist=dist)
