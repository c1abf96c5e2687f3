"""Programs of losses: an objective's value and its gradients as one graph."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor

from eve_pyro.infer.compiled.assumptions import Assumptions, Call
from eve_pyro.infer.compiled.programs import COMPILED, TRACED, Program, Programs, bind, tracing
from eve_pyro.infer.compiled.rehearsal import Rehearsal
from eve_pyro.infer.compiled.surrogate import tensor_loss
from eve_pyro.infer.compiled.tracing import TraceError, compile_graph, leaves, record


class LossPrograms(Programs):
    """The loss and gradients of one objective, model and guide.

    Arguments:
        elbo, model, guide: as for ``elbo(model, guide)``.
        backend, size: as for :class:`Programs`.
        observe: makes the context that a run needs; it yields a dict that collects the
            parameters of Pyro's store.
    """

    subject: ClassVar[str] = "the loss"

    def __init__(
        self,
        elbo: Any,
        model: Any,
        guide: Any,
        backend: str,
        size: int,
        observe: Callable[[], AbstractContextManager[dict[str, Tensor]]] | None = None,
    ) -> None:
        super().__init__(model, guide, backend, size)
        self.elbo = elbo
        self._observe = observe or (lambda: nullcontext({}))

    def _trace(self, call: Call) -> Program:
        rehearsal = Rehearsal(self.model, self.guide, call)
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
        with tracing(rehearsal), self._observe():
            recording = record(self._loss(call), given, targets)
        bind(assumptions, recording.captured, parameters)
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
        _check(expected, dict(zip(order, recording.outputs, strict=True)), TRACED, low)
        _check(expected, dict(zip(order, outputs, strict=True)), COMPILED, low)
        if not all(map(torch.allclose, buffers, rehearsal.buffers)):
            raise TraceError("the trace does not change a buffer of the model as its run does")
        return program

    def _loss(self, call: Call) -> Callable[..., Tensor]:
        def loss(*tensors: Tensor) -> Tensor:
            args, kwargs = call.arguments(tensors)
            return tensor_loss(self.elbo, self.model, self.guide, args, kwargs)

        return loss


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
