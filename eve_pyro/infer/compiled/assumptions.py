"""What a traced program takes for granted, and how to see that it no longer holds.

A trace freezes whatever was a Python value while it ran. So each program keeps the call it was
made for and the attributes that its modules had, and serves only where both still hold.
"""

from collections.abc import Callable, Hashable, Iterable
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils import _pytree as pytree

from eve_pyro.infer.compiled.tracing import TraceError

_NUMBERS = (bool, int, float, complex, str)
_FIXED = (
    *_NUMBERS,
    type(None),
    tuple,
    torch.dtype,
    torch.device,
    FunctionType,
    BuiltinFunctionType,
    Distribution,
    nn.Module,
)
_MISSING = object()


class Call:
    """The arguments of a call: its tensors, and a key of everything else that a trace freezes.

    The key holds shapes, strides, dtypes and devices of the tensors, all other arguments, and
    torch's switches: gradients, autocast, the default dtype.

    Raises:
        TraceError: for an argument that cannot be compared, such as an array, and for a sparse
            tensor.

    Example:
        >>> call = Call((torch.zeros(3, 2),), {"scale": 0.5})
        >>> [tuple(t.shape) for t in call.tensors]
        [(3, 2)]
        >>> call.key == Call((torch.ones(3, 2),), {"scale": 0.5}).key
        True
        >>> call.key == Call((torch.ones(4, 2),), {"scale": 0.5}).key
        False
    """

    def __init__(self, args: tuple, kwargs: dict[str, Any]) -> None:
        self._leaves, self._spec = pytree.tree_flatten((args, kwargs))
        self.tensors = [x for x in self._leaves if isinstance(x, Tensor)]
        autocast = [
            torch.get_autocast_dtype(d) if torch.is_autocast_enabled(d) else None
            for d in ("cpu", "cuda")
        ]
        self.autocast = [d for d, dtype in zip(("cpu", "cuda"), autocast, strict=True) if dtype]
        switches = (torch.is_grad_enabled(), *autocast, torch.get_default_dtype())
        self.key = (self._spec, [_describe(x) for x in self._leaves], switches)

    def arguments(self, tensors: Iterable[Tensor]) -> tuple[tuple, dict[str, Any]]:
        """The call's args and kwargs with other tensors in place of its own."""
        left = iter(tensors)
        leaves = [next(left) if isinstance(x, Tensor) else x for x in self._leaves]
        return pytree.tree_unflatten(leaves, self._spec)


def _describe(leaf: Any) -> tuple:
    if isinstance(leaf, Tensor):
        return (type(leaf), *_layout(leaf))
    if not isinstance(leaf, Hashable):
        raise TraceError(
            f"an argument of type {type(leaf).__name__} would be frozen in the trace; pass "
            "tensors, numbers and strings"
        )
    return type(leaf), leaf


def _layout(tensor: Tensor) -> tuple:
    if tensor.layout is not torch.strided:
        raise TraceError(f"the program reads a tensor of layout {tensor.layout}")
    return tensor.dtype, tensor.device, tensor.requires_grad, tensor.shape, tensor.stride()


def _equal(a: Any, b: Any) -> bool:
    """Whether two plain values are the same; objects of other kinds only equal themselves."""
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return isinstance(a, _NUMBERS) and a == b


class Assumptions:
    """The attributes of modules (and of an objective) that a trace may have read.

    Numbers, strings, functions, distributions and submodules must stay what they are, training
    flags among them. Of tensors, those count that the program reads (:meth:`bind`): they must
    stay the same objects of the same layout, while their values may change.

    Arguments:
        owners: objects with attributes, each with the name to call it in messages.

    Example:
        >>> net = nn.Sequential(nn.Dropout(0.1))
        >>> assumptions = Assumptions([("net", net), ("net.0", net[0])])
        >>> assumptions.broken() is None
        True
        >>> net[0].p = 0.2
        >>> assumptions.broken()
        "attribute 'p' of net.0 changed"
    """

    def __init__(self, owners: Iterable[tuple[str, Any]]) -> None:
        self._fixed: list[tuple[dict, str, Any, str]] = []
        self._tensors: list[tuple[dict, str, Any, str]] = []
        self._layouts: list[tuple[Tensor, tuple]] = []
        self._foreign: list[tuple[Callable[[], Any], Tensor, str]] = []
        for label, owner in owners:
            spaces = [vars(owner)]
            if isinstance(owner, nn.Module):
                spaces += [owner._parameters, owner._buffers, owner._modules]
            for space in spaces:
                for key, value in space.items():
                    if isinstance(value, Tensor):
                        self._tensors.append((space, key, value, label))
                    elif isinstance(value, _FIXED):
                        self._fixed.append((space, key, value, label))

    def bind(self, captured: Iterable[Tensor]) -> list[Tensor]:
        """Name the tensors that the program reads; returns those that no owner holds."""
        ids = {id(t): t for t in captured}
        held = [entry for entry in self._tensors if id(entry[2]) in ids]
        self._fixed += held
        self._tensors = []
        self._layouts = [(t, _layout(t)) for t in ids.values()]
        known = {id(entry[2]) for entry in held}
        return [t for t in ids.values() if id(t) not in known]

    def expect(self, read: Callable[[], Any], tensor: Tensor, label: str) -> None:
        """Assume that ``read()`` returns this very tensor."""
        self._foreign.append((read, tensor, label))

    def broken(self) -> str | None:
        """The first assumption that does not hold, in words; None if all do."""
        for space, key, value, label in self._fixed:
            now = space.get(key, _MISSING)
            if now is not value and not _equal(now, value):
                return f"attribute {key!r} of {label} changed"
        for tensor, layout in self._layouts:
            if _layout(tensor) != layout:
                return f"dtype, device or shape of a tensor of {tuple(layout[3])} changed"
        for read, tensor, label in self._foreign:
            if read() is not tensor:
                return f"{label} changed"
        return None
