"""Tracing: the graph of values and gradients, recorded from one run, and its compilation.

The only file that knows which tracer and which compiler of torch are used.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from eve_pyro._checks import check_choice

Graph = Callable[..., list[Tensor]]
BACKENDS = ("inductor", "eager")


def best_backend(wanted: Literal["inductor", "eager"] = "inductor") -> Literal["inductor", "eager"]:
    """The wanted backend, or ``"eager"`` where Inductor has no C++ compiler.

    Arguments:
        wanted: ``"inductor"`` (default) or ``"eager"``.

    Raises:
        ValueError: for another one.

    Example:
        >>> best_backend() in ("inductor", "eager"), best_backend("eager")
        (True, 'eager')
    """
    check_choice("wanted", wanted, BACKENDS)
    compilers = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return wanted if any(name and shutil.which(name) for name in compilers) else "eager"


_READS = (Tensor.numpy, Tensor.__array__, Tensor.tolist, Tensor.__dlpack__)
_ADVICE = "Use the objective as it is instead: elbo(model, guide), or SVI"


class TraceError(RuntimeError):
    """A program cannot be traced, or its trace would not compute what the program does.

    Arguments:
        cause: what is in the way.
        advice: what works all the same. Default: the objective that is not compiled.

    Example:
        >>> raise TraceError("the model counts its calls")
        Traceback (most recent call last):
        ...
        eve_pyro.infer.compiled.tracing.TraceError: the model counts its calls. Use the objective
        as it is instead: elbo(model, guide), or SVI
    """

    def __init__(self, cause: str, advice: str = _ADVICE) -> None:
        super().__init__(f"{cause}. {advice}")
        self.cause = cause


@dataclass
class Recording:
    """A graph ``(*captured, *args) -> [*values, *gradients]``.

    Arguments:
        graph: the graph, callable.
        captured: tensors that the function read without being given them.
        targets: what the gradients are by.
        outputs: the values and gradients of the recorded run.
    """

    graph: fx.GraphModule
    captured: list[Tensor]
    targets: list[Tensor]
    outputs: list[Tensor]


def record(
    function: Callable[..., Tensor], args: Sequence[Tensor], targets: Sequence[Tensor]
) -> Recording:
    """Run a function of tensors once and record its value and gradients as one graph.

    Autograd runs while the graph is recorded, so that the graph holds the gradient just as eager
    execution finds it: through ``no_grad`` blocks, ``detach`` and custom backward functions. The
    run is a real one, on the given tensors.

    Arguments:
        function: from ``args`` to a 0-dim tensor.
        args: distinct tensor objects.
        targets: leaves to differentiate by; those that the value does not depend on are dropped.

    Raises:
        TraceError: if the function reads a tensor's values into Python, makes a tensor whose
            shape depends on values, or differentiates through tensors from outside.

    Example:
        >>> w = torch.ones(3, requires_grad=True)
        >>> recording = record(lambda x: (w * x).sum(), [torch.arange(3.0)], [w])
        >>> recording.captured[0] is w
        True
        >>> recording.graph(w, torch.arange(3.0))
        [tensor(3.), tensor([0., 1., 2.])]
    """
    found: list[Tensor] = []
    outputs: list[Tensor] = []

    def value_and_gradients(*args: Tensor) -> list[Tensor]:
        value = function(*args)
        gradients: Sequence[Tensor | None] = ()
        if targets and value.requires_grad:
            gradients = gradients_of(value, targets)
        reached = [(t, g) for t, g in zip(targets, gradients, strict=False) if g is not None]
        found[:] = [t for t, _ in reached]
        outputs[:] = [value.detach(), *(g for _, g in reached)]
        return outputs

    graph = _record(value_and_gradients, args)
    return Recording(graph, _lift_captured(graph), found, outputs)


def record_values(function: Callable[..., Sequence[Tensor]], args: Sequence[Tensor]) -> Recording:
    """Run a function of tensors once, without gradients, and record its values as one graph.

    Arguments:
        function: from ``args`` to tensors of any shapes.
        args: distinct tensor objects.

    Raises:
        TraceError: if the function reads a tensor's values into Python, or makes a tensor whose
            shape depends on values.

    Example:
        >>> w = torch.ones(3)
        >>> recording = record_values(lambda x: (w + x, 2 * x), [torch.arange(3.0)])
        >>> recording.graph(w, torch.arange(3.0))
        [tensor([1., 2., 3.]), tensor([0., 2., 4.])]
    """
    outputs: list[Tensor] = []

    def values(*args: Tensor) -> list[Tensor]:
        outputs[:] = function(*args)
        return outputs

    with torch.no_grad():
        graph = _record(values, args)
        return Recording(graph, _lift_captured(graph), [], outputs)


def _record(function: Callable[..., list[Tensor]], args: Sequence[Tensor]) -> fx.GraphModule:
    from torch._guards import TracingContext, tracing
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    def watched(*args: Tensor) -> list[Tensor]:
        with _Opaque(), _NoReads():
            return function(*args)

    # The tracer describes each result in a fake mode, and makes one per operation if there is none
    # in sight, which takes longer than all the rest.
    with tracing(TracingContext(FakeTensorMode())):
        return make_fx(watched)(*args)


def leaves(value: Tensor) -> list[Tensor]:
    """The leaf tensors that a value's gradient reaches.

    Example:
        >>> w = torch.ones(3, requires_grad=True)
        >>> leaves((2 * w).sum())[0] is w
        True
    """
    found, seen, stack = [], set(), [value.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        stack.extend(parent for parent, _ in node.next_functions)
    return found


def gradients_of(value: Tensor, targets: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """The gradients by leaf tensors, None where there is none, without running the leaves' hooks.

    Hooks run where the program's gradients go, into the user's tensors.

    Example:
        >>> w = torch.ones(3, requires_grad=True)
        >>> _ = w.register_hook(lambda gradient: 2 * gradient)
        >>> gradients_of(w.sum(), [w])
        (tensor([1., 1., 1.]),)
    """
    hooks = [t._backward_hooks for t in targets if t._backward_hooks]
    kept = [dict(h) for h in hooks]
    for h in hooks:
        h.clear()
    try:
        return torch.autograd.grad(value, targets, allow_unused=True)
    finally:
        for h, entries in zip(hooks, kept, strict=True):
            h.update(entries)


def compile_graph(graph: fx.GraphModule, inputs: Sequence[Tensor], backend: str) -> Graph:
    """The graph as a fast function of the same inputs.

    Arguments:
        graph: from :func:`record`.
        inputs: an example.
        backend: ``"inductor"``, or ``"eager"`` for the graph's operations one by one.

    Raises:
        TraceError: if Inductor cannot compile the graph, for want of a C++ compiler say.
    """
    if backend == "eager":
        return graph
    from torch._guards import TracingContext
    from torch._guards import tracing as traced_in
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # Noise must come from the same generator in the same order as in eager execution, or no two
    # runs would compare: random operations stay as they are and where they are.
    options = {"fallback_random": True, "reorder_for_peak_memory": False}
    options = {k: v for k, v in options.items() if hasattr(config, k)}
    # Without an environment of shapes Inductor does not look into its cache on disk.
    fake = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)
    try:
        with torch.no_grad(), traced_in(TracingContext(fake)):
            compiled: Any = compile_fx(
                graph, list(inputs), config_patches=options, decompositions=_decompositions()
            )
    except Exception as error:
        raise TraceError(
            f'Inductor cannot compile the program ({error}); backend="eager" needs no compiler'
        ) from error
    return compiled


class _Decompositions(dict):
    """Inductor's table, pickled by its name: Inductor's cache on disk is keyed by pickles."""

    def __reduce__(self) -> tuple:
        return _decompositions, ()


def _decompositions() -> _Decompositions:
    from torch._inductor.decomposition import select_decomp_table

    table = select_decomp_table()
    return _Decompositions({op: f for op, f in table.items() if not _is_random(op)})


class _Opaque(TorchDispatchMode):
    """Refuses operations that show tensor values to Python: a graph would freeze what it saw."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if torch.Tag.data_dependent_output in func.tags:
            raise TraceError(
                f"the program reads a tensor's value into Python ({func}), as .item(), float(t) "
                "or `if t:` do"
            )
        if torch.Tag.dynamic_output_shape in func.tags and _depends_on_values(func, args):
            raise TraceError(
                f"the program makes a tensor whose shape depends on values ({func}), as an index "
                "by a boolean mask does; torch.where or poutine.mask keep the shape"
            )
        return func(*args, **(kwargs or {}))


class _NoReads(TorchFunctionMode):
    """Refuses the reads of tensor values that are no operations, so that no graph shows them."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func in _READS:
            raise TraceError(
                f"the program reads a tensor's value into Python ({func.__name__}), as "
                "t.numpy(), np.asarray(t) or t.tolist() do"
            )
        return func(*args, **(kwargs or {}))


def _depends_on_values(func: Any, args: tuple) -> bool:
    if func is not torch.ops.aten.index.Tensor:
        return True
    return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])


def _is_random(op: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())


def _lift_captured(graph: fx.GraphModule) -> list[Tensor]:
    """Make the tensors that the graph holds its first inputs, and return them.

    Inputs are read anew in every call; what the graph holds may be folded into the code.
    """
    nodes = graph.graph.nodes
    first = next(iter(nodes))
    for node in reversed(list(nodes)):
        # What the graph does not use it need not compute; noise is drawn all the same, so that
        # later draws are those of eager execution.
        if node.op in ("call_function", "get_attr") and not node.users and not _has_effect(node):
            graph.graph.erase_node(node)
    captured: list[Tensor] = []
    for node, tensor in list(_held(graph)):
        if torch.is_grad_enabled() and tensor.requires_grad and not tensor.is_leaf:
            raise TraceError(
                f"the gradient passes through a tensor of shape {tuple(tensor.shape)} that was "
                "computed outside the model and the guide; compute it inside, or pass it"
            )
        with graph.graph.inserting_before(first):
            placeholder = graph.graph.placeholder(f"captured_{len(captured)}")
        node.replace_all_uses_with(placeholder)
        graph.graph.erase_node(node)
        captured.append(tensor)
    graph.graph.lint()
    graph.recompile()
    return captured


def _held(graph: fx.GraphModule) -> Iterator[tuple[fx.Node, Tensor]]:
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            tensor = getattr(graph, node.target)
            users = {user.target for user in node.users}
            if not isinstance(tensor, Tensor):
                raise TraceError(f"the program uses an object of type {type(tensor).__name__}")
            # A number that the program made a tensor of is a constant.
            if users != {torch.ops.aten.lift_fresh_copy.default}:
                yield node, tensor


def _has_effect(node: fx.Node) -> bool:
    op: Any = node.target
    return node.op == "call_function" and (
        not isinstance(op, torch._ops.OpOverload) or op._schema.is_mutable or _is_random(op)
    )
