"""Programs of losses: an objective's value and its gradients as one graph."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from eve_pyro.infer.compiled.assumptions import Assumptions, Call
from eve_pyro.infer.compiled.programs import (
    COMPILED,
    TRACED,
    Program,
    Programs,
    bind,
    rehearse,
    tracing,
)
from eve_pyro.infer.compiled.reach import spaces_of
from eve_pyro.infer.compiled.rehearsal import Rehearsal
from eve_pyro.infer.compiled.surrogate import tensor_loss
from eve_pyro.infer.compiled.tracing import TraceError, compile_graph, gradients_of, leaves, record


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
        objective = f"the {type(self.elbo).__name__}"
        roots = {"the model": self.model, "the guide": self.guide, objective: self.elbo}
        rehearsal = Rehearsal(call, roots)
        given = [t.detach().requires_grad_(t.requires_grad) for t in call.tensors]
        args, kwargs = call.arguments(given)
        with rehearsal, self._observe() as parameters:
            loss = self.elbo.differentiable_loss(self.model, self.guide, *args, **kwargs)
            loss = torch.as_tensor(loss)
            targets = leaves(loss) if loss.requires_grad else []
            reached = gradients_of(loss, targets) if targets else ()
            gradients = [g for g in reached if g is not None]  # all: they are its leaves
        expected, left = [loss.detach(), *gradients], rehearsal.left
        assumptions = Assumptions([*spaces_of(objective, self.elbo), *rehearsal.spaces()])
        with tracing(rehearsal), self._observe():
            recording = record(self._loss(call), given, targets)
        bind(assumptions, recording.captured, parameters)
        numbers = {id(t): i for i, t in enumerate(given)}
        by = [numbers.get(id(t), t) for t in recording.targets]
        inputs = [*recording.captured, *given]
        run = compile_graph(recording.graph, inputs, self.backend)
        program = Program(call.key, assumptions, run, recording.captured, by, parameters)
        outputs = rehearse(program, call, rehearsal)
        places = {id(t): i for i, t in enumerate(targets, 1)}
        order = [0, *(places[id(t)] for t in recording.targets)]
        low = bool(call.autocast)
        _check(expected, dict(zip(order, recording.outputs, strict=True)), TRACED, low)
        _check(expected, dict(zip(order, outputs, strict=True)), COMPILED, low)
        if not all(map(_close, left, rehearsal.left, rehearsal.dtypes)):
            raise TraceError("the trace does not change a tensor in place as the model does")
        return program

    def _loss(self, call: Call) -> Callable[..., Tensor]:
        def loss(*tensors: Tensor) -> Tensor:
            args, kwargs = call.arguments(tensors)
            return tensor_loss(self.elbo, self.model, self.guide, args, kwargs)

        return loss


def _close(a: Tensor, b: Tensor, dtype: torch.dtype) -> bool:
    """Whether the bytes of two storages are numbers that compiled code may differ by."""
    if torch.equal(a, b):
        return True
    whole = len(a) // dtype.itemsize * dtype.itemsize
    a, b = (t[:whole].view(dtype).to(torch.complex128) for t in (a, b))
    error, size = (a - b).nan_to_num().norm(), a.nan_to_num().norm()
    return bool((a.isnan() == b.isnan()).all() and error <= COMPILED.get(dtype, 0.1) * size)


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
        if place not in found and gradient.any():
            raise TraceError(
                f"the gradient reaches a tensor of shape {tuple(gradient.shape)} in one run and "
                "not in the next: the model makes it anew with requires_grad, to differentiate by "
                "it perhaps, or reads some Python value that differs between runs"
            )
        error = gradient - found.get(place, torch.zeros_like(gradient))
        bound = tolerance * (float(gradient.norm()) + 1e-2 * total)
        if not float(error.norm()) <= bound:
            raise TraceError(
                f"the traced gradient by a tensor of shape {tuple(gradient.shape)} is not that of "
                "the objective for the same seed; something may replay noise in the backward "
                "pass, as torch.utils.checkpoint does with dropout"
            )


def differentiable(program: Program, call: Call) -> Tensor:
    """A call's loss, to be differentiated once."""
    return _Loss.apply(program, call, *program.targets(call))


class _Loss(torch.autograd.Function):
    """A program's loss, whose gradients came with it."""

    @staticmethod
    def forward(ctx: Any, program: Program, call: Call, *targets: Tensor) -> Tensor:
        loss, *gradients = program(call)
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> Any:
        return None, None, *torch._foreach_mul(ctx.saved_tensors, scale)
