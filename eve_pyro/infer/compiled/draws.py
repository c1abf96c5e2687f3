"""Programs of draws: the parameters of a target, from draws of the latents, as one graph."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

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
from eve_pyro.infer.compiled.rehearsal import Rehearsal
from eve_pyro.infer.compiled.tracing import TraceError, compile_graph, record_values

ADVICE = "StreamingPredictive without compile= predicts with any model"


class DrawPrograms(Programs):
    """A function that draws, as one program per kind of call; it is called like the function.

    Arguments:
        draw: calls the guide and returns tensors.
        model, guide, backend, size: as for :class:`Programs`.

    Raises:
        TraceError: when called, if the draw cannot be traced, or if its trace does not give the
            eager draw for the same seed.

    Example:
        >>> net = nn.Linear(3, 2)
        >>> draw = DrawPrograms(lambda x, scale: (scale * net(x),), net, None, "eager", 8)
        >>> x = torch.randn(5, 3)
        >>> with torch.no_grad():
        ...     torch.equal(draw(x, 2.0)[0], 2 * net(x)), draw.traces
        (True, 1)
    """

    subject: ClassVar[str] = "the draw"

    def __init__(
        self,
        draw: Callable[..., Sequence[Tensor]],
        model: Any,
        guide: Any,
        backend: str,
        size: int,
    ) -> None:
        super().__init__(model, guide, backend, size)
        self.draw = draw

    def __call__(self, *args: Any) -> tuple[Tensor, ...]:
        """The draw for some arguments, from the state that torch's generators are in."""
        call, program = self.program(*args)
        return tuple(program(call))

    def program(self, *args: Any) -> tuple[Call, Program]:
        """The call with some arguments, and the program for it."""
        try:
            call = Call(args, {})
            return call, self.find(call) or self.add(call)
        except TraceError as error:
            raise TraceError(error.cause, ADVICE) from error

    def _trace(self, call: Call) -> Program:
        rehearsal = Rehearsal(call, {"the model": self.model, "the guide": self.guide})
        with rehearsal:
            expected = self._values(call)(*call.tensors)
        assumptions = Assumptions(rehearsal.spaces())
        given = [t.detach() for t in call.tensors]
        with tracing(rehearsal):
            recording = record_values(self._values(call), given)
        bind(assumptions, recording.captured)
        run = compile_graph(recording.graph, [*recording.captured, *given], self.backend)
        program = Program(call.key, assumptions, run, recording.captured, [], {})
        outputs = rehearse(program, call, rehearsal)
        low = bool(call.autocast)
        _check(expected, recording.outputs, TRACED, low)
        _check(expected, outputs, COMPILED, low)
        return program

    def _values(self, call: Call) -> Callable[..., Sequence[Tensor]]:
        def values(*tensors: Tensor) -> Sequence[Tensor]:
            args, _ = call.arguments(tensors)
            return self.draw(*args)

        return values


def _check(
    expected: Sequence[Tensor],
    found: Sequence[Tensor],
    tolerances: dict[torch.dtype, float],
    low_precision: bool,
) -> None:
    for a, b in zip(expected, found, strict=True):
        rtol = 0.1 if low_precision else tolerances.get(a.dtype, 0.1)
        size = a[a.isfinite()].abs().mean().nan_to_num()  # 0 if none is
        if not torch.allclose(a, b, rtol=rtol, atol=rtol * float(size), equal_nan=True):
            raise TraceError(
                f"a traced draw, of shape {tuple(a.shape)}, is not that of the model for the same "
                "seed: some Python value differs between runs (a counter, the time)"
            )
