"""What a traced program takes for granted, and how to see that it no longer holds.

A trace freezes whatever was a Python value while it ran. So each program keeps the call it was
made for and the attributes that its modules had, and serves only where both still hold.
"""

import dataclasses
from collections.abc import Callable, Iterable
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils import _pytree as pytree

from eve_pyro.infer.compiled.tracing import TraceError

_NUMBERS = (bool, int, float, complex, str, bytes, np.generic)
_PLAIN = (
    *_NUMBERS,
    type(None),
    type,
    Enum,
    slice,
    range,
    torch.dtype,
    torch.device,
    torch.layout,
    FunctionType,
    BuiltinFunctionType,
    nn.Module,
)
_FIXED = (*_PLAIN, Distribution)
_SPACES = ("_parameters", "_buffers", "_modules")
_DEPTH, _MOST = 3, 256  # how far the contents of containers are compared
_MISSING, _ANY = object(), object()


class Call:
    """The arguments of a call: its tensors, and a key of everything else that a trace freezes.

    The key holds shapes, strides, dtypes and devices of the tensors, all other arguments, and
    torch's switches: gradients, autocast, the default dtype.

    Raises:
        TraceError: for an argument that may change unseen, such as an array or an object of
            settings, and for a sparse tensor.

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
        for leaf in self._leaves:
            if not isinstance(leaf, Tensor) and not _is_plain(leaf):
                raise TraceError(
                    f"{_name(leaf, args, kwargs)}, an argument of type {type(leaf).__name__}, "
                    "could change unseen by a trace; pass tensors, numbers and strings"
                )
        self.key = (self._spec, [_describe(x) for x in self._leaves], switches)

    def arguments(self, tensors: Iterable[Tensor]) -> tuple[tuple, dict[str, Any]]:
        """The call's args and kwargs with other tensors in place of its own."""
        left = iter(tensors)
        leaves = [next(left) if isinstance(x, Tensor) else x for x in self._leaves]
        return pytree.tree_unflatten(leaves, self._spec)


def _describe(leaf: Any) -> tuple:
    if isinstance(leaf, Tensor):
        return (type(leaf), *_layout(leaf))
    return type(leaf), leaf


def _name(leaf: Any, args: tuple, kwargs: dict[str, Any]) -> str:
    """Where a leaf stands among the arguments, in words."""
    named = [(f"argument {i}", a) for i, a in enumerate(args)]
    named += [(f"argument {key!r}", a) for key, a in kwargs.items()]
    for name, argument in named:
        for path, found in pytree.tree_flatten_with_path(argument)[0]:
            if found is leaf:
                return name + pytree.keystr(path)
    return "an argument"


def _is_plain(value: Any) -> bool:
    """Whether a value cannot change unseen: no part of it can be changed in place."""
    if isinstance(value, tuple | frozenset):
        return all(map(_is_plain, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        frozen = type(value).__dataclass_params__.frozen  # type: ignore[attr-defined]
        return frozen and all(_is_plain(v) for v in vars(value).values())
    return isinstance(value, _PLAIN)


def _layout(tensor: Tensor) -> tuple:
    if tensor.layout is not torch.strided:
        raise TraceError(f"the program reads a tensor of layout {tensor.layout}")
    return tensor.dtype, tensor.device, tensor.requires_grad, tensor.shape, tensor.stride()


def _parts(value: Any, depth: int) -> tuple[Any, list[Any]] | None:
    """The shape and the elements of a container; None for what is compared as a whole."""
    if depth == 0:
        return None
    if isinstance(value, list | tuple | dict):
        if len(value) > _MOST:
            return None
        if isinstance(value, dict):
            return [*value], [*value.values()]
        return len(value), [*value]
    if isinstance(value, set | frozenset):
        return set(value), []
    if dataclasses.is_dataclass(value) and not isinstance(value, type | nn.Module | Distribution):
        names = [f.name for f in dataclasses.fields(value) if hasattr(value, f.name)]
        return names, [getattr(value, name) for name in names]
    return None


class _Seen:
    """A value as it was seen: containers by contents, numbers by value, the rest by identity."""

    def __init__(self, value: Any, depth: int = _DEPTH) -> None:
        self.kind, self.value, self.depth = type(value), value, depth
        self.size = len(value) if isinstance(value, list | tuple | dict) else 0
        self.whole = _ANY if self.size else value  # no need to look further if it is the same
        self.elements: list[_Seen] | None = None
        if (parts := _parts(value, depth)) is not None:
            self.value, elements = parts
            self.elements = [_Seen(v, depth - 1) for v in elements]
            self.whole = _ANY
        self.empty = isinstance(value, list | tuple | dict) and not self.size

    def holds(self, now: Any) -> bool:
        """Whether a value is still what was seen."""
        if type(now) is not self.kind:
            return False
        if self.elements is None:
            if self.value is _ANY:
                return True
            same = now is self.value and (not self.size or len(now) == self.size)
            return same or (isinstance(now, _NUMBERS) and bool(now == self.value))
        parts = _parts(now, self.depth)
        if parts is None or parts[0] != self.value:
            return False
        return all(e.holds(v) for e, v in zip(self.elements, parts[1], strict=True))

    def relax(self, now: Any, captured: dict[int, Tensor]) -> None:
        """Let go of tensors that no program reads and of objects that each run makes anew."""
        if self.elements is not None:
            parts = _parts(now, self.depth) if type(now) is self.kind else None
            others = parts[1] if parts is not None and parts[0] == self.value else []
            for i, element in enumerate(self.elements):
                element.relax(others[i] if others else _ANY, captured)
        elif isinstance(self.value, Tensor):
            if id(self.value) not in captured:
                self.value = self.whole = _ANY
        elif not isinstance(self.value, _FIXED) and now is not self.value:
            self.value, self.whole, self.size = _ANY, _ANY, 0


class Assumptions:
    """The attributes of modules (and of an objective) that a trace may have read.

    No attribute may come or go. Numbers, strings, functions, distributions, hooks and submodules
    must stay what they are, training flags among them; lists, tuples, dicts and dataclasses must
    keep their contents. Of tensors, those count that the program reads (:meth:`bind`): they must
    stay the same objects of the same layout, while their values may change. Other objects must
    stay the same ones, unless each run makes new ones; what is inside them is not seen.

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
        self._kinds: list[tuple[Any, type, str]] = []
        self._keys: list[tuple[dict, list[str], str]] = []
        self._fixed: list[tuple[dict, str, _Seen, str]] = []
        self._tensors: list[tuple[dict, str, Tensor, str]] = []
        self._layouts: list[tuple[Tensor, tuple]] = []
        self._foreign: list[tuple[Callable[[], Any], Tensor, str]] = []
        for label, owner in owners:
            self._kinds.append((owner, type(owner), label))
            spaces = [vars(owner)]
            if isinstance(owner, nn.Module):
                spaces += [getattr(owner, space) for space in _SPACES]
            for space in spaces:
                self._keys.append((space, [*space], label))
                for key, value in space.items():
                    if isinstance(value, Tensor):
                        self._tensors.append((space, key, value, label))
                    elif space is not vars(owner) or key not in _SPACES:
                        self._fixed.append((space, key, _Seen(value), label))

    def bind(self, captured: Iterable[Tensor]) -> list[Tensor]:
        """Name the tensors that the program reads; returns those that no owner holds."""
        ids = {id(t): t for t in captured}
        for space, key, seen, _ in self._fixed:
            seen.relax(space.get(key, _MISSING), ids)
        held = [entry for entry in self._tensors if id(entry[2]) in ids]
        self._fixed += [(space, key, _Seen(t), label) for space, key, t, label in held]
        self._tensors = []
        self._layouts = [(t, _layout(t)) for t in ids.values()]
        known = {id(entry[2]) for entry in held}
        return [t for t in ids.values() if id(t) not in known]

    def expect(self, read: Callable[[], Any], tensor: Tensor, label: str) -> None:
        """Assume that ``read()`` returns this very tensor."""
        self._foreign.append((read, tensor, label))

    def broken(self) -> str | None:
        """The first assumption that does not hold, in words; None if all do."""
        for owner, kind, label in self._kinds:
            if type(owner) is not kind:
                return f"the class of {label} changed"
        for space, keys, label in self._keys:
            if [*space] != keys:
                key = min(space.keys() ^ set(keys), default="order")
                return f"attribute {key!r} of {label} came or went"
        for space, key, seen, label in self._fixed:
            now = space[key]
            if now is seen.whole or (seen.empty and not now and type(now) is seen.kind):
                continue  # nearly all, and this runs in every call
            if not seen.holds(now):
                return f"attribute {key!r} of {label} changed"
        for tensor, layout in self._layouts:
            if _layout(tensor) != layout:
                return f"dtype, device or shape of a tensor of {tuple(layout[3])} changed"
        for read, tensor, label in self._foreign:
            if read() is not tensor:
                return f"{label} changed"
        return None
