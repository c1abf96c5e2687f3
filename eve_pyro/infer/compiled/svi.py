"""CompiledSVI: Pyro's SVI on compiled code."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pyro import poutine
from pyro.infer import SVI
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor

from eve_pyro.infer.compiled.assumptions import Call
from eve_pyro.infer.compiled.elbo import CompiledELBO
from eve_pyro.infer.compiled.losses import LossPrograms, differentiable


class CompiledSVI(SVI):
    """Drop-in for Pyro's ``SVI`` whose steps run compiled code.

    Parameters are those of Pyro's store, by Pyro's names, as in ``SVI``: one seed gives one
    trajectory, to rounding. The first step of each kind of call is Pyro's own; see
    :class:`CompiledELBO` for what a kind is and what cannot be traced. After
    ``pyro.clear_param_store()``, the next step traces anew.

    Differences: a step whose loss is not finite raises before it moves the parameters, and
    gradients are None after a step rather than zero. So a parameter that some kinds of call do
    not reach is skipped in their steps, where the zero gradients of ``SVI`` let Adam's momentum
    go on moving it.

    Arguments:
        model, guide: callables with Pyro statements.
        optim: a ``pyro.optim`` optimizer.
        loss: an objective as for :class:`CompiledELBO`.
        backend, cache_size: as for :class:`CompiledELBO`.

    Raises:
        TypeError: if the loss has no ``differentiable_loss``.
        ValueError: for an unknown backend, a cache_size below 1, or an optimizer that is not
            Pyro's.

    Example:
        >>> from pyro.infer import Trace_ELBO
        >>> def model(y):
        ...     loc = pyro.sample("loc", dist.Normal(0.0, 10.0))
        ...     with pyro.plate("data", len(y)):
        ...         pyro.sample("y", dist.Normal(loc, 1.0), obs=y)
        >>> def guide(y):
        ...     loc = pyro.param("q_loc", torch.tensor(0.0))
        ...     pyro.sample("loc", dist.Normal(loc, 0.1))
        >>> optim = pyro.optim.Adam({"lr": 0.1})
        >>> svi = CompiledSVI(model, guide, optim, Trace_ELBO(), backend="eager")
        >>> y = torch.full((20,), 3.0)
        >>> losses = [svi.step(y) for _ in range(100)]
        >>> abs(pyro.param("q_loc").item() - 3) < 0.2
        True
    """

    def __init__(
        self,
        model: Any,
        guide: Any,
        optim: Any,
        loss: Any,
        *,
        backend: str = "inductor",
        cache_size: int = 8,
    ) -> None:
        options = CompiledELBO(loss, backend=backend, cache_size=cache_size)
        super().__init__(model, guide, optim, loss)
        self._programs = LossPrograms(
            loss, model, guide, options.backend, options.cache_size, _store_parameters
        )

    @property
    def traces(self) -> int:
        """Number of traces made so far."""
        return self._programs.traces

    def step(self, *args: Any, **kwargs: Any) -> float:
        """Take one step of the optimizer and return the loss.

        Raises:
            TraceError: see :class:`CompiledELBO`; after the step, which was Pyro's own.
            FloatingPointError: if the loss is not finite.
            StaleParameterError: see :class:`~eve_pyro.infer.EVEGuide`.
        """
        if _PYRO_STACK:
            return super().step(*args, **kwargs)
        call = Call(args, kwargs)
        program = self._programs.find(call)
        if program is None:
            value = super().step(*args, **kwargs)
            self._programs.add(Call(args, kwargs))
            return value
        loss = differentiable(program, call)
        value = _finite(loss)
        if loss.requires_grad:
            loss.backward()
        parameters = list(dict.fromkeys(program.parameters.values()))  # some have two names
        self.optim(parameters)
        for parameter in parameters:
            parameter.grad = None
        return value

    def evaluate_loss(self, *args: Any, **kwargs: Any) -> float:
        """The loss without a step; raises as :meth:`step` does."""
        if _PYRO_STACK:
            return super().evaluate_loss(*args, **kwargs)
        with torch.no_grad():
            call = Call(args, kwargs)
            program = self._programs.find(call)
            if program is None:
                value = super().evaluate_loss(*args, **kwargs)
                self._programs.add(Call(args, kwargs))
                return value
            return _finite(program(call)[0])


@contextmanager
def _store_parameters() -> Iterator[dict[str, Tensor]]:
    """Collects the parameters that param statements hand out, as ``SVI.step`` does."""
    found: dict[str, Tensor] = {}
    with poutine.trace(param_only=True) as capture:
        yield found
    for name, site in capture.trace.nodes.items():
        found[name] = site["value"].unconstrained()


def _finite(loss: Tensor) -> float:
    value = loss.item()
    if not math.isfinite(value):
        raise FloatingPointError(
            f"the loss is {value}; evaluate it with Pyro's SVI to see which site is to blame"
        )
    return value
