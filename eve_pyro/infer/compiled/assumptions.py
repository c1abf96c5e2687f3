"""What a traced program takes for granted, and how to see that it no longer holds.

A trace freezes whatever was a Python value while it ran. So each program keeps the call it was
made for and the values that its code could read, and serves only where both still hold.
"""

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from eve_pyro.infer.compiled.reach import CONTAINERS, MODULE_SPACES, MOST, Space
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
    ModuleType,
)
_FIXED = (*_PLAIN, Distribution)
_DEPTH = 3  # how far the contents of containers are compared
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
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
        self.others = [x for x in self._leaves if not isinstance(x, Tensor)]
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
    return _exact(leaf)


def _exact(value: Any) -> tuple:
    """A value that can't be changed, as something equal only to what is the same to a program.

    Python's own == takes 1, 1.0 and True for the same, 0.0 and -0.0 too, and leaves out fields of
    dataclasses that are not to be compared; no NaN equals any.
    """
    kind = type(value)
    if _is(value, float):
        return kind, value.hex()
    if _is(value, complex):
        return kind, value.real.hex(), value.imag.hex()
    if _is(value, np.generic):
        return kind, value.dtype, value.tobytes()
    if _is(value, tuple):
        return kind, tuple(map(_exact, value))
    if _is(value, frozenset):
        return kind, frozenset((type(v), v) for v in value)
    if _is(value, Tensor):
        return kind, id(value)
    if _is_frozen(value):
        return kind, tuple((name, _exact(v)) for name, v in _fields(value))
    return kind, value


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
    if _is(value, tuple | frozenset):
        return all(map(_is_plain, value))
    if _is_frozen(value):
        return all(_is_plain(v) for _, v in _fields(value))
    return _is(value, _PLAIN)


def _is(value: Any, kinds: Any) -> bool:
    """``isinstance`` that does not run the code of proxies."""
    return issubclass(type(value), kinds)


def _is_dataclass(value: Any) -> bool:
    return any("__dataclass_fields__" in vars(kind) for kind in type(value).__mro__)


def _is_frozen(value: Any) -> bool:
    return _is_dataclass(value) and type(value).__dataclass_params__.frozen


def _layout(tensor: Tensor) -> tuple:
    if tensor.layout is not torch.strided:
        raise TraceError(f"the program reads a tensor of layout {tensor.layout}")
    return tensor.dtype, tensor.device, tensor.requires_grad, tensor.shape, tensor.stride()


def _parts(value: Any, depth: int) -> tuple[Any, list[Any]] | None:
    """The shape and the elements of a container; None for what is compared as a whole."""
    if depth == 0:
        return None
    if _is(value, CONTAINERS):
        if len(value) > MOST:
            return None
        if _is(value, dict):
            return [_exact(key) for key in value], [*value.values()]
        if _is(value, set | frozenset):
            return {(type(v), v) for v in value}, []
        return len(value), [*value]
    if _is(value, _GENERATORS):
        return repr(_state(value)), []
    if _is(value, bytearray):
        return bytes(value), []
    if _is(value, np.ndarray):
        if value.size > MOST or value.dtype.hasobject:
            return None
        return (value.shape, value.dtype, value.tobytes()), []
    if _is(value, Distribution):
        names = [name for name in (*value.arg_constraints, "base_dist") if name in vars(value)]
        return names, [vars(value)[name] for name in names]
    if _is_dataclass(value) and not _is(value, type | nn.Module):
        fields = dict(_fields(value))
        return [*fields], [*fields.values()]
    return None


def _state(generator: Any) -> Any:
    if _is(generator, random.Random):
        return generator.getstate()
    if _is(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state()


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(value):
        if hasattr(value, field.name):
            yield field.name, getattr(value, field.name)


class _Seen:
    """A value as it was seen: containers by contents, numbers by value, the rest by identity."""

    def __init__(self, value: Any, depth: int = _DEPTH) -> None:
        self.kind, self.value, self.depth = type(value), value, depth
        self.size = len(value) if _is(value, CONTAINERS) else 0
        self.whole = _ANY if self.size else value  # no need to look further if it is the same
        self.elements: list[_Seen] | None = None
        self.layout: tuple | None = None
        if (parts := _parts(value, depth)) is not None:
            self.value, elements = parts
            self.elements = [_Seen(v, depth - 1) for v in elements]
            self.whole = _ANY
        self.empty = _is(value, CONTAINERS) and not self.size

    def holds(self, now: Any) -> bool:
        """Whether a value is still what was seen."""
        if type(now) is not self.kind:
            return False
        if self.elements is None:
            if self.value is _ANY:
                unread = self.layout is None
                return unread or (now.layout is torch.strided and self.layout == _layout(now))
            same = now is self.value and (not self.size or len(now) == self.size)
            return same or (_is(now, _NUMBERS) and _exact(now) == _exact(self.value))
        parts = _parts(now, self.depth)
        if parts is None or parts[0] != self.value:
            return False
        return all(e.holds(v) for e, v in zip(self.elements, parts[1], strict=True))

    def relax(self, now: Any, captured: dict[int, Tensor]) -> None:
        """Let go of objects that each run makes anew, and of the values of tensors not read.

        Of a tensor that the program does not read the model may still have read the shape.
        """
        if self.elements is not None:
            parts = _parts(now, self.depth) if type(now) is self.kind else None
            others = parts[1] if parts is not None and parts[0] == self.value else []
            for i, element in enumerate(self.elements):
                element.relax(others[i] if others else _ANY, captured)
        elif _is(self.value, Tensor):
            if id(self.value) not in captured:
                if now is self.value and now.layout is torch.strided and not is_lazy(now):
                    self.layout = _layout(now)
                self.value = self.whole = _ANY
        elif not _is(self.value, _FIXED) and now is not self.value:
            self.value, self.whole, self.size = _ANY, _ANY, 0


class Assumptions:
    """The named values that a trace may have read: attributes, globals, closures.

    Of modules and of the objective, no attribute may come or go. Numbers, strings, functions,
    hooks and submodules must stay what they are, training flags among them; lists, tuples, dicts,
    sets, deques, dataclasses, distributions and small arrays must keep their contents, to a depth
    of 3 (larger ones than 256 elements must stay the same object of the same length). Tensors that
    the program reads (:meth:`bind`) must stay the same objects of the same layout, while their
    values may change; others must keep their layout. Other objects must stay the same ones, unless
    each run makes new ones.

    Arguments:
        spaces: of named values.

    Example:
        >>> from eve_pyro.infer.compiled.reach import spaces_of
        >>> net = nn.Sequential(nn.Dropout(0.1))
        >>> assumptions = Assumptions(spaces_of("net.0", net[0]))
        >>> assumptions.broken() is None
        True
        >>> net[0].p = 0.2
        >>> assumptions.broken()
        "attribute 'p' of net.0 changed"
    """

    def __init__(self, spaces: Iterable[Space]) -> None:
        self._kinds: list[tuple[Any, type, str]] = []
        self._keys: list[tuple[Space, list[str]]] = []
        self._fixed: list[tuple[Mapping, str, _Seen, Space]] = []
        self._layouts: list[tuple[Tensor, tuple]] = []
        self._foreign: list[tuple[Callable[[], Any], Tensor, str]] = []
        for space in spaces:
            values = space.values
            if space.owner is not None:
                self._kinds.append((space.owner, type(space.owner), space.label))
            if space.names is None:
                self._keys.append((space, [*values]))
            for name in values if space.names is None else space.names:
                if name not in MODULE_SPACES:
                    seen = _Seen(values.get(name, _MISSING))
                    self._fixed.append((values, name, seen, space))

    def bind(self, captured: Iterable[Tensor]) -> list[Tensor]:
        """Name the tensors that the program reads; returns those that no owner holds."""
        ids = {id(t): t for t in captured}
        for values, name, seen, _ in self._fixed:
            seen.relax(values.get(name, _MISSING), ids)
        self._layouts = [(t, _layout(t)) for t in ids.values()]
        held = {id(seen.value) for _, _, seen, _ in self._fixed}
        return [t for t in ids.values() if id(t) not in held]

    def expect(self, read: Callable[[], Any], tensor: Tensor, label: str) -> None:
        """Assume that ``read()`` returns this very tensor."""
        self._foreign.append((read, tensor, label))

    def broken(self) -> str | None:
        """The first assumption that does not hold, in words; None if all do."""
        for owner, kind, label in self._kinds:
            if type(owner) is not kind:
                return f"the class of {label} changed"
        for space, names in self._keys:
            if [*space.values] != names:
                name = min(space.values.keys() ^ set(names), default="order")
                return f"{space.noun} {name!r} of {space.label} came or went"
        for values, name, seen, space in self._fixed:
            now = values.get(name, _MISSING)
            if now is seen.whole or (seen.empty and type(now) is seen.kind and not now):
                continue  # nearly all, and this runs in every call
            if not seen.holds(now):
                return f"{space.noun} {name!r} of {space.label} changed"
        for tensor, layout in self._layouts:
            if _layout(tensor) != layout:
                return f"dtype, device or shape of a tensor of {tuple(layout[3])} changed"
        for read, tensor, label in self._foreign:
            if read() is not tensor:
                return f"{label} changed"
        return None
