"""CompiledELBO: any ELBO as a module that traces it once and then runs compiled code."""

import logging
import math
from typing import Any

from pyro.infer.elbo import ELBOModule
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor

from eve_pyro._checks import check_choice, check_int
from eve_pyro.infer.compiled.assumptions import Call
from eve_pyro.infer.compiled.losses import LossPrograms, differentiable
from eve_pyro.infer.compiled.tracing import BACKENDS

logger = logging.getLogger("eve_pyro")


class CompiledELBO:
    """An ELBO that runs as compiled code: same seed, same loss and gradients, less time.

    ``CompiledELBO(elbo)(model, guide)`` is called like Pyro's ``elbo(model, guide)``. The first
    call of each kind is the eager one; Pyro's Python is then run once more to record loss and
    gradients as one graph of tensor operations, which Inductor compiles and which serves all
    later calls. Pyro, handlers and autograd cost nothing from then on.

    A call's kind is everything that a recording freezes: the shapes, layouts and devices of its
    tensors, its other arguments, whether gradients are on, and the values that the code could
    read: all attributes of the modules that ran, that the model or guide hold or that are
    arguments (numbers and strings, contents of lists, dicts, dataclasses and small arrays, training
    flags, hooks, submodules, which parameters they hold); the globals, closures and defaults of the
    model, the guide, the objective and the functions that they name; and what these name of objects
    and classes. Values of tensors are never frozen: parameters, buffers (``beta``) and data change
    freely. Each batch size is a kind of its own, so drop or pad a last, smaller batch where there
    are many sizes.

    So that no number is silently wrong, each new trace is compared with one more eager run of the
    same seed, loss and gradients, which leaves no trace behind. What this cannot see when it
    changes later: values found by other ways than by name (``getattr``, files, variables of
    imported Python modules and what their functions read there), names that did not exist before,
    containers of more than 256 elements whose length stays the same or that are nested more than 3
    deep, and what objects and code of libraries hold. What a forward pass leaves behind in
    attributes for others to read is not updated by compiled calls. A value that changes in every
    step costs a trace in every step, of which a warning tells.

    Pyro's validation is off in compiled calls; the loss is checked to be finite now and then.
    Calls under a Pyro handler (``poutine.trace``, ``poutine.scale``) are eager, since handlers
    need the sites. Gradients can be taken once, not differentiated again.

    Arguments:
        elbo: ``Trace_ELBO``, ``TraceMeanField_ELBO``, an objective of this package, or another
            with a ``differentiable_loss`` that reads no values.
        backend: ``"inductor"`` (default), or ``"eager"``, which runs the graph's operations one by
            one: no compile time, no C++ compiler, and most of the time of Pyro saved.
        cache_size: most programs kept for one model and guide. Default 8.
        check_every: calls between two checks that the loss is finite. Default 100; 0 for none.

    Raises:
        TypeError: if the elbo has no ``differentiable_loss``.
        ValueError: for an unknown backend, a cache_size below 1 or a negative check_every.

    Example:
        >>> from eve_pyro import EVEGuide, EVEModule
        >>> net = nn.Sequential(EVEModule(3, 4), nn.Linear(4, 1))
        >>> def model(x, y):
        ...     with pyro.plate("data", len(x)):
        ...         pyro.sample("y", dist.Normal(net(x).squeeze(-1), 0.1), obs=y)
        >>> elbo = CompiledELBO(pyro.infer.TraceMeanField_ELBO(), backend="eager")
        >>> loss = elbo(model, EVEGuide(model))
        >>> x, y = torch.randn(5, 3), torch.zeros(5)
        >>> for _ in range(3):
        ...     loss(x, y).backward()
        >>> net[0].encoder.loc.weight.grad.shape, loss.traces
        (torch.Size([4, 3]), 1)
    """

    def __init__(
        self,
        elbo: Any,
        *,
        backend: str = "inductor",
        cache_size: int = 8,
        check_every: int = 100,
    ) -> None:
        if not callable(getattr(elbo, "differentiable_loss", None)):
            raise TypeError(f"elbo must be a Pyro ELBO with a differentiable_loss, got {elbo!r}")
        self.elbo = elbo
        self.backend = check_choice("backend", backend, BACKENDS)
        self.cache_size = check_int("cache_size", cache_size)
        self.check_every = check_int("check_every", check_every, 0)

    def __call__(self, model: Any, guide: Any) -> "CompiledELBOModule":
        """The loss of a model and its guide, as a module called with their arguments."""
        return CompiledELBOModule(model, guide, self)


class CompiledELBOModule(ELBOModule):
    """The loss of a model and guide as a module; made by :class:`CompiledELBO`.

    Parameters, buffers and ``state_dict`` are those of Pyro's ``elbo(model, guide)``, the user's
    own tensors. Copies and pickles are made without compiled code and trace anew.

    Example:
        >>> from pyro.infer import Trace_ELBO
        >>> from pyro.infer.autoguide import AutoNormal
        >>> class Location(pyro.nn.PyroModule):
        ...     def forward(self, y):
        ...         loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        ...         with pyro.plate("data", len(y)):
        ...             pyro.sample("y", dist.Normal(loc, 1.0), obs=y)
        >>> model = Location()
        >>> loss = CompiledELBO(Trace_ELBO(), backend="eager")(model, AutoNormal(model))
        >>> y = torch.randn(5)
        >>> loss(y).shape, loss(y).shape
        (torch.Size([]), torch.Size([]))
        >>> list(loss.state_dict())
        ['guide.locs.loc_unconstrained', 'guide.scales.loc_unconstrained']
    """

    def __init__(self, model: Any, guide: Any, options: CompiledELBO) -> None:
        super().__init__(model, guide, options.elbo)
        self._options = options
        self._start()

    def _start(self) -> None:
        options = self._options
        self._programs = LossPrograms(
            self.elbo, self.model, self.guide, options.backend, options.cache_size
        )
        self._calls = 0
        self._told = False

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_programs"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._start()

    @property
    def traces(self) -> int:
        """Number of traces made so far."""
        return self._programs.traces

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The loss, a 0-dim tensor to differentiate.

        Raises:
            TraceError: if the model and guide cannot be traced, or a trace does not reproduce
                their eager loss.
            FloatingPointError: if a loss that was checked is not finite.
        """
        if _PYRO_STACK:
            if not self._told:
                logger.info("a Pyro handler is active: this call is not compiled")
                self._told = True
            return super().forward(*args, **kwargs)
        call = Call(args, kwargs)
        program = self._programs.find(call)
        if program is None:
            # Eager, and first: it creates what is created on a first call, and draws for it.
            loss = super().forward(*args, **kwargs)
            self._programs.add(Call(args, kwargs))
            return loss
        loss = differentiable(program, call)
        self._calls += 1
        every = self._options.check_every
        if every and self._calls % every == 0 and not math.isfinite(loss.item()):
            raise FloatingPointError(
                f"the loss is {loss.item()} after {self._calls} compiled calls; call "
                "elbo(model, guide) eagerly to see which site is to blame"
            )
        return loss
