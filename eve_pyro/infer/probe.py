"""What one evaluation of a loss shows: the messages that a model and its guide send to Pyro."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pyro
import torch
from pyro.distributions import Unit
from pyro.distributions.util import scale_and_mask
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from eve_pyro.infer._sites import data_plates, subsampling


class Recorder(Messenger):
    """Keeps every message of a sample or param statement that passes, in order.

    Example:
        >>> with Recorder() as recorder:
        ...     _ = pyro.sample("z", dist.Normal(0.0, 1.0))
        >>> [message["name"] for message in recorder.messages]
        ['z']
    """

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Any] = []

    def _pyro_post_sample(self, msg: Any) -> None:
        self.messages.append(msg)

    def _pyro_post_param(self, msg: Any) -> None:
        self.messages.append(msg)

    def foreign_parameters(self, own: Iterable[Tensor]) -> list[str]:
        """Names of the parameters seen that are not among ``own``."""
        known = {id(p) for p in own}
        seen = {m["name"]: m["value"] for m in self.messages if m["type"] == "param"}
        # A constrained parameter is a new tensor each time; what is trained lies beneath.
        raw = {name: getattr(v, "unconstrained", lambda v=v: v)() for name, v in seen.items()}
        return [name for name, tensor in raw.items() if id(tensor) not in known]

    def likelihood_scale(self) -> float:
        """N/B of the plates that the observed sites share; 1 where nothing is subsampled.

        Raises:
            ValueError: if no observed site passed.
        """
        observed = [
            m
            for m in self._samples()
            if m["is_observed"] and not (m["infer"] or {}).get("_deterministic")
        ]
        if not observed:
            raise ValueError(
                "the model has no observed site: pass the targets as the model expects"
            )
        # Factors price a penalty, but may also be all the likelihood that a model has.
        likelihood = [m for m in observed if not isinstance(m["fn"], Unit)] or observed
        return subsampling(data_plates(likelihood).values())

    def first_non_finite(self) -> str | None:
        """The first site with a value or log probability that is not finite, in words."""
        for message in self._samples():
            name, value = message["name"], message["value"]
            if not is_finite(value):
                return f"the value of site {name!r}"
            if not is_finite(scale_and_mask(message["fn"].log_prob(value), mask=message["mask"])):
                return f"the log probability of site {name!r}"
        return None

    def _samples(self) -> Iterator[Any]:
        return (m for m in self.messages if m["type"] == "sample" and not site_is_subsample(m))


def first_non_finite(
    evaluate: Callable[[], Tensor], parameters: Mapping[str, nn.Parameter]
) -> str | None:
    """What is not finite first in an evaluation: a parameter, a site, the loss, or a gradient.

    Returns None if all are finite, or if the evaluation fails for another reason. Values are
    read one by one: this is for the rare moment after a failure.

    Arguments:
        evaluate: runs the model and the guide and returns the loss.
        parameters: by name; those with gradients after the evaluation are looked at.

    Example:
        >>> first_non_finite(lambda: 0.0, {"w": nn.Parameter(torch.tensor([1.0, float("nan")]))})
        "parameter 'w'"
    """
    for name, parameter in parameters.items():
        if not is_finite(parameter):
            return f"parameter {name!r}"
    recorder, loss, healthy = Recorder(), None, False
    # Pyro's own checks would stop at the number we look for, and cannot always name it.
    with pyro.validation_enabled(False), warnings.catch_warnings(action="ignore"):
        with suppress(Exception), recorder:
            loss = evaluate()
            healthy = is_finite(loss)
        culprit = None if healthy else recorder.first_non_finite()
    if culprit is not None:
        return culprit
    if not is_finite(loss):
        return "the loss"
    for name, parameter in parameters.items():
        if not is_finite(parameter.grad):
            return f"the gradient of parameter {name!r}"
    return None


def is_finite(x: Any) -> bool:
    """Whether a tensor is finite throughout; anything else passes."""
    return not isinstance(x, Tensor) or bool(torch.isfinite(x).all())
