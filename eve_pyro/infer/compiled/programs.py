"""Programs: traced runs of one model and guide, found by the kind of call, made where missing."""

import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import pyro
import torch
from torch import Tensor
from torch.distributions import Distribution

from eve_pyro.infer.compiled.assumptions import Assumptions, Call
from eve_pyro.infer.compiled.rehearsal import Rehearsal, no_python_noise
from eve_pyro.infer.compiled.tracing import TraceError

logger = logging.getLogger("eve_pyro")

_OFTEN = 3  # as many traces for one reason call for a warning

# What a trace may differ by from eager execution, which runs the same kernels, and what compiled
# code may, which sums in another order.
TRACED = {torch.float64: 1e-10, torch.float32: 1e-5}
COMPILED = {torch.float64: 1e-6, torch.float32: 1e-2}


class Program:
    """One traced run as a function of tensors, while its assumptions hold.

    Arguments:
        key: of the calls that it serves.
        assumptions: what it takes for granted.
        run: the compiled graph, ``(*captured, *args) -> [*values, *gradients]``.
        captured: tensors that the graph reads besides the arguments.
        targets: what the gradients are by: tensors, or for arguments their number.
        parameters: Pyro's param statements of the run, by name, unconstrained.
    """

    def __init__(
        self,
        key: Any,
        assumptions: Assumptions,
        run: Callable[..., list[Tensor]],
        captured: list[Tensor],
        targets: list[Tensor | int],
        parameters: dict[str, Tensor],
    ) -> None:
        self.key, self.assumptions, self.parameters = key, assumptions, parameters
        self.run, self.captured, self._targets = run, captured, targets

    def targets(self, call: Call) -> list[Tensor]:
        """The tensors that the gradients of a call are by."""
        return [call.tensors[t] if isinstance(t, int) else t for t in self._targets]

    def __call__(self, call: Call) -> list[Tensor]:
        """The values of a call, then the gradients."""
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            for device in call.autocast:  # the casts are in the graph already
                stack.enter_context(torch.autocast(device, enabled=False))
            return self.run(*self.captured, *call.tensors)


class Programs(ABC):
    """The programs of one model and guide: found by call, traced where missing.

    Arguments:
        model, guide: what the traced runs call.
        backend: ``"inductor"`` or ``"eager"``.
        size: most programs kept; the least recently used goes first.
    """

    subject: ClassVar[str]  # what is traced, for the log

    def __init__(self, model: Any, guide: Any, backend: str, size: int) -> None:
        self.model, self.guide = model, guide
        self.backend, self.size = backend, size
        self.traces = 0
        self._kept: list[Program] = []
        self._changes: Counter[str] = Counter()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kept": [], "traces": 0}  # copies and pickles trace anew

    @abstractmethod
    def _trace(self, call: Call) -> Program:
        """The program for a call; raises a ``TraceError`` if it differs from an eager run."""

    def find(self, call: Call) -> Program | None:
        """The program for a call, or None if there is none yet."""
        for i, program in enumerate(self._kept):
            with _failing("looking for changes"):
                fits = program.key == call.key and program.assumptions.broken() is None
            if fits:
                if i:
                    self._kept.insert(0, self._kept.pop(i))
                return program
        return None

    def add(self, call: Call) -> Program:
        """Trace and compile the program for a call whose eager evaluation has just succeeded.

        The first evaluation creates parameters, guesses plates and the like; from the second on,
        a program that can be traced does the same in every run.

        Raises:
            TraceError: if it does not, or if the graph does not reproduce the eager results.
        """
        started = time.perf_counter()
        change = self._change(call)
        shapes = [tuple(t.shape) for t in call.tensors]
        reason = change or f"a new kind of call, with tensors of shapes {shapes}"
        with _failing("tracing"):
            program = self._trace(call)
        self.traces += 1
        logger.info(
            "traced and compiled %s (%s) in %.1f s: %s",
            self.subject,
            self.backend,
            time.perf_counter() - started,
            reason,
        )
        self._kept.insert(0, program)
        if len(self._kept) > self.size:
            self._kept.pop()
            logger.warning(
                "more than cache_size=%d traced programs: the oldest goes, and would be traced "
                "anew; the last trace was for %s",
                self.size,
                reason,
            )
        return program

    def _change(self, call: Call) -> str | None:
        """What has changed since the last trace for calls of this kind; None for the first."""
        for program in self._kept:
            if program.key == call.key:
                change = program.assumptions.broken() or "nothing"
                self._changes[change] += 1
                if self._changes[change] == _OFTEN:
                    logger.warning(
                        "traced %d times because %s: if it changes in every step, keep it "
                        "in a tensor that is changed in place, or where the model does not see it",
                        _OFTEN,
                        change,
                    )
                return change
        return None


@contextmanager
def tracing(rehearsal: Rehearsal) -> Iterator[None]:
    """Context of the run that is recorded."""
    one_dnn, validate = torch._C._get_mkldnn_enabled(), Distribution._validate_sample
    with rehearsal, pyro.validation_enabled(False), no_python_noise():
        try:
            # Its recurrent layers hand their backward pass something that is no tensor.
            torch._C._set_mkldnn_enabled(False)
            # Expanded distributions check values though all others do not.
            Distribution._validate_sample = _no_check  # type: ignore
            torch.clear_autocast_cache()  # casts of weights made before would be constants
            yield
        finally:
            torch._C._set_mkldnn_enabled(one_dnn)
            Distribution._validate_sample = validate  # type: ignore
            torch.clear_autocast_cache()


def _no_check(distribution: Distribution, value: Tensor) -> None:
    pass


def rehearse(program: Program, call: Call, rehearsal: Rehearsal) -> list[Tensor]:
    """What a program returns for a call, without a trace of the run."""
    with rehearsal:
        rehearsal.hold(program.captured)
        return program(call)


@contextmanager
def _failing(what: str) -> Iterator[None]:
    """Whatever goes wrong is a ``TraceError``, but for losses that are not finite."""
    try:
        yield
    except (TraceError, FloatingPointError):
        raise
    except Exception as error:
        raise TraceError(f"{what} failed ({type(error).__name__}: {error})") from error


def bind(
    assumptions: Assumptions, captured: list[Tensor], parameters: dict[str, Tensor] | None = None
) -> None:
    """Complete a program's assumptions by the tensors that it reads.

    Arguments:
        assumptions: made before the run that was recorded.
        captured: the tensors.
        parameters: further ones that Pyro's store must still hold, by name. Default none.

    Raises:
        TraceError: if an assumption was broken while the run was recorded.
    """
    parameters = dict(parameters or {})
    store = pyro.get_param_store()
    for tensor in assumptions.bind(captured):
        name = store.param_name(tensor)
        if name is not None:
            parameters[name] = tensor
    for name, tensor in parameters.items():
        read = lambda name=name: store._params.get(name)  # noqa: E731
        assumptions.expect(read, tensor, f"parameter {name!r} of Pyro's store")
    if cause := assumptions.broken():
        raise TraceError(
            f"{cause} while the model or the guide ran; a trace would not change it again. "
            "Keep such state in buffers that are changed in place"
        )
