"""Programs: the compiled loss and gradients of one model and guide, one for each kind of call."""

import logging
import pickle
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import pyro
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from eve_pyro.infer.compiled.assumptions import Assumptions, Call
from eve_pyro.infer.compiled.surrogate import tensor_loss
from eve_pyro.infer.compiled.tracing import TraceError, compile_graph, leaves, record

logger = logging.getLogger("eve_pyro")

# What a trace may differ by from eager execution, which runs the same kernels, and what compiled
# code may, which sums in another order.
_TRACED = {torch.float64: 1e-10, torch.float32: 1e-5}
_COMPILED = {torch.float64: 1e-6, torch.float32: 1e-2}


class Program:
    """Loss and gradients as one function of tensors, while its assumptions hold.

    Arguments:
        key: of the calls that it serves.
        assumptions: what it takes for granted.
        run: the compiled graph, ``(*captured, *args) -> [loss, *gradients]``.
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
        self._run, self._captured, self._targets = run, captured, targets

    def targets(self, call: Call) -> list[Tensor]:
        """The tensors that the gradients of a call are by."""
        return [call.tensors[t] if isinstance(t, int) else t for t in self._targets]

    def __call__(self, call: Call) -> list[Tensor]:
        """The loss, then its gradients."""
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            for device in call.autocast:  # the casts are in the graph already
                stack.enter_context(torch.autocast(device, enabled=False))
            return self._run(*self._captured, *call.tensors)


class Programs:
    """The programs of one objective, model and guide: found by call, traced where missing.

    Arguments:
        elbo, model, guide: as for ``elbo(model, guide)``.
        backend: ``"inductor"`` or ``"eager"``.
        size: most programs kept; the least recently used goes first.
        observe: makes the context that a run needs; it yields a dict that collects the
            parameters of Pyro's store.
    """

    def __init__(
        self,
        elbo: Any,
        model: Any,
        guide: Any,
        backend: str,
        size: int,
        observe: Callable[[], AbstractContextManager[dict[str, Tensor]]] | None = None,
    ) -> None:
        self.elbo, self.model, self.guide = elbo, model, guide
        self.backend, self.size = backend, size
        self.traces = 0
        self._observe = observe or (lambda: nullcontext({}))
        self._kept: list[Program] = []

    def find(self, call: Call) -> Program | None:
        """The program for a call, or None if there is none yet."""
        for i, program in enumerate(self._kept):
            if program.key == call.key and program.assumptions.broken() is None:
                if i:
                    self._kept.insert(0, self._kept.pop(i))
                return program
        return None

    def add(self, call: Call) -> Program:
        """Trace and compile the program for a call whose eager evaluation has just succeeded.

        The first evaluation creates parameters, guesses plates and the like; from the second on,
        a program that can be traced does the same in every run.

        Raises:
            TraceError: if it does not, or if the graph does not reproduce the eager loss and
                gradients.
        """
        started = time.perf_counter()
        reason = self._reason(call)
        program = self._trace(call)
        self.traces += 1
        logger.info(
            "traced and compiled the loss (%s) in %.1f s: %s",
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

    def _reason(self, call: Call) -> str:
        for program in self._kept:
            if program.key == call.key:
                return program.assumptions.broken() or "nothing"
        shapes = [tuple(t.shape) for t in call.tensors]
        return f"a new kind of call, with tensors of shapes {shapes}"

    def _trace(self, call: Call) -> Program:
        rehearsal = _Rehearsal(self.model, self.guide, call)
        given = [t.detach().requires_grad_(t.requires_grad) for t in call.tensors]
        args, kwargs = call.arguments(given)
        with rehearsal, self._observe() as parameters:
            loss = self.elbo.differentiable_loss(self.model, self.guide, *args, **kwargs)
            loss = torch.as_tensor(loss)
            targets = leaves(loss) if loss.requires_grad else []
            gradients = torch.autograd.grad(loss, targets) if targets else ()
        expected, buffers = [loss.detach(), *gradients], rehearsal.buffers
        owners = [(f"the {type(self.elbo).__name__}", self.elbo), *rehearsal.modules()]
        assumptions = Assumptions(owners)
        try:
            with rehearsal, self._observe(), pyro.validation_enabled(False), _no_python_noise():
                torch.clear_autocast_cache()  # casts of weights made before would be constants
                recording = record(self._loss(call), given, targets)
                torch.clear_autocast_cache()
        except TraceError:
            raise
        except Exception as error:
            raise TraceError(f"tracing failed ({type(error).__name__}: {error})") from error
        self._bind(assumptions, recording.captured, parameters)
        numbers = {id(t): i for i, t in enumerate(given)}
        reached = [numbers.get(id(t), t) for t in recording.targets]
        inputs = [*recording.captured, *given]
        run = compile_graph(recording.graph, inputs, self.backend)
        program = Program(call.key, assumptions, run, recording.captured, reached, parameters)
        with rehearsal:
            outputs = program(call)
        places = {id(t): i for i, t in enumerate(targets, 1)}
        order = [0, *(places[id(t)] for t in recording.targets)]
        low = bool(call.autocast)
        _check(expected, dict(zip(order, recording.outputs, strict=True)), _TRACED, low)
        _check(expected, dict(zip(order, outputs, strict=True)), _COMPILED, low)
        if not all(map(torch.allclose, buffers, rehearsal.buffers)):
            raise TraceError("the trace does not change a buffer of the model as its run does")
        return program

    def _loss(self, call: Call) -> Callable[..., Tensor]:
        def loss(*tensors: Tensor) -> Tensor:
            args, kwargs = call.arguments(tensors)
            return tensor_loss(self.elbo, self.model, self.guide, args, kwargs)

        return loss

    def _bind(
        self, assumptions: Assumptions, captured: list[Tensor], parameters: dict[str, Tensor]
    ) -> None:
        store = pyro.get_param_store()
        for tensor in assumptions.bind(captured):
            name = store.param_name(tensor)
            if name is not None:
                parameters = {**parameters, name: tensor}
        for name, tensor in parameters.items():
            read = lambda name=name: store._params.get(name)  # noqa: E731
            assumptions.expect(read, tensor, f"parameter {name!r} of Pyro's store")
        if cause := assumptions.broken():
            raise TraceError(
                f"{cause} while the model or the guide ran; a trace would not change it again. "
                "Keep such state in buffers that are changed in place"
            )


class _Rehearsal:
    """Context of runs that leave no trace in random state and buffers, and may be entered again.

    It also notes which modules ran, also those that no root module holds.
    """

    def __init__(self, model: Any, guide: Any, call: Call) -> None:
        self._roots = {"the model": model, "the guide": guide}
        self._ran: dict[nn.Module, None] = {}
        # A first look at devices; draws on a device take some tensor that lives there.
        roots = [r for r in self._roots.values() if isinstance(r, nn.Module)]
        tensors = [*call.tensors, *(p for r in roots for p in r.parameters())]
        self._devices = list({t.device for t in tensors if t.device.type == "cuda"})

    def modules(self) -> list[tuple[str, nn.Module]]:
        """All modules that ran or belong to the model or guide, each with a name."""
        found: dict[int, tuple[str, nn.Module]] = {}
        ran = [(f"a {type(module).__name__}", module) for module in self._ran]
        for label, root in [*self._roots.items(), *ran]:
            for path, module in root.named_modules() if isinstance(root, nn.Module) else ():
                found.setdefault(id(module), (f"{path!r} of {label}" if path else label, module))
        return list(found.values())

    def __enter__(self) -> None:
        self._noise = torch.random.fork_rng(self._devices)
        self._noise.__enter__()
        self._before: dict[Tensor, Tensor] = {}
        self._hook = register_module_forward_pre_hook(self._see)
        for root in self._roots.values():
            if isinstance(root, nn.Module):
                self._see(root, ())

    def __exit__(self, *error: Any) -> None:
        self._hook.remove()
        self.buffers = [buffer.detach().clone() for buffer in self._before]
        with torch.no_grad():
            for buffer, value in self._before.items():
                buffer.copy_(value)
        self._noise.__exit__(*error)

    def _see(self, module: nn.Module, _: Any) -> None:
        self._ran[module] = None
        for buffer in module.buffers():
            if buffer not in self._before:
                self._before[buffer] = buffer.detach().clone()


@contextmanager
def _no_python_noise() -> Iterator[None]:
    """Refuses draws from the generators of Python and NumPy, which a trace would freeze."""
    before = _python_noise()
    yield
    if before != _python_noise():
        raise TraceError(
            "the model or the guide draws from the random numbers of Python or NumPy, which a "
            "trace would freeze; draw from torch, or pass the draws as arguments"
        )


def _python_noise() -> bytes:
    return pickle.dumps((random.getstate(), np.random.get_state()))  # noqa: NPY002


def _check(
    expected: list[Tensor],
    found: dict[int, Tensor],
    tolerances: dict[torch.dtype, float],
    low_precision: bool,
) -> None:
    """Compare the loss (place 0) and the gradients; one that was not found counts as zero."""
    loss, *gradients = expected
    if not torch.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss.item()}: nothing to compare a trace with")
    tolerance = 0.1 if low_precision else max(tolerances.get(t.dtype, 0.1) for t in expected)
    if not abs(found[0] - loss) <= tolerance * (1 + abs(loss)):
        raise TraceError(
            f"the traced loss is {found[0].item():g} where the objective gives {loss.item():g} "
            "for the same seed: some Python value differs between runs (a counter, the time)"
        )
    total = float(torch.stack([g.double().norm() for g in gradients] or [loss.double()]).norm())
    for place, gradient in enumerate(gradients, 1):
        error = gradient - found.get(place, torch.zeros_like(gradient))
        bound = tolerance * (float(gradient.norm()) + 1e-2 * total)
        if not float(error.norm()) <= bound:
            raise TraceError(
                f"the traced gradient by a tensor of shape {tuple(gradient.shape)} is not that of "
                "the objective for the same seed"
            )
