"""What a callable can read: modules, functions and objects, found by the names in its code."""

import dis
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

from torch import Tensor, nn

MODULE_SPACES = ("_parameters", "_buffers", "_modules")
MOST = 256  # containers with more elements are not looked into
_LIBRARIES = {"torch", "pyro", "eve_pyro", "numpy", *sys.stdlib_module_names}
_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"}
_OF_FUNCTIONS = ("__code__", "__defaults__", "__kwdefaults__")


@dataclass(frozen=True)
class Space:
    """Named values that code may read.

    Arguments:
        label: whose they are, for messages.
        values: by name.
        names: which of them to watch; None (default) for all, and then none may come or go.
        noun: what such a name is called. Default "attribute".
        owner: an object whose class is to stay what it is. Default none.
    """

    label: str
    values: Mapping[str, Any]
    names: tuple[str, ...] | None = None
    noun: str = "attribute"
    owner: Any = None


def spaces_of(label: str, owner: Any) -> list[Space]:
    """All attributes of an object; of a module also its parameters, buffers and submodules.

    Example:
        >>> [len(space.values) for space in spaces_of("net", nn.Linear(3, 2))][1:]
        [2, 0, 0]
    """
    spaces = [vars(owner)]
    if isinstance(owner, nn.Module):
        spaces += [getattr(owner, space) for space in MODULE_SPACES]
    return [Space(label, values, owner=owner) for values in spaces]


class Reach:
    """Collects what can be reached from the callables and modules given to :meth:`add`.

    Of a function, that is what it holds in its closure and defaults, and what its code names
    among the globals; of a method, also its object; of an object, the attributes and methods that
    this code names; of a module, all its attributes and submodules. The code of libraries is taken
    to be fixed, so that their globals and classes do not count.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 2))
        >>> def model(x):
        ...     return net(x)
        >>> reach = Reach()
        >>> reach.add("the model", lambda x, net=net: net(x))
        >>> [label for label in reach.modules.values()]
        ["'__defaults__' of <lambda>", "'0' of '__defaults__' of <lambda>"]
    """

    def __init__(self) -> None:
        self.modules: dict[nn.Module, str] = {}
        self._functions: dict[FunctionType, _Names] = {}
        self._objects: dict[int, tuple[str, Any]] = {}
        self._containers: dict[int, Any] = {}
        self._attributes = {"forward", "__call__"}

    def add(self, label: str, value: Any) -> None:
        """Look at one more value, which messages are to call by the label."""
        self._visit(label, value)
        found = None
        while found != (found := (len(self._attributes), len(self._objects))):
            # The names of attributes become known by and by.
            for label, owner in [*self._objects.values()]:
                for name in self._named(owner):
                    self._visit(f"{name!r} of {label}", vars(owner).get(name))

    def spaces(self) -> Iterator[Space]:
        """The named values that were reached."""
        for module, label in self.modules.items():
            yield from spaces_of(label, module)
        for function, values in self._functions.items():
            yield Space(function.__name__, values, (*values,), "name")
        for label, owner in self._objects.values():
            yield Space(label, vars(owner), self._named(owner))

    def _named(self, owner: Any) -> tuple[str, ...]:
        kind = object if isinstance(owner, type) else type(owner)
        # What an object has from its class it may come to have itself.
        return tuple(
            name for name in self._attributes if name in vars(owner) or hasattr(kind, name)
        )

    def _visit(self, label: str, value: Any) -> None:
        if isinstance(value, nn.Module):
            self._visit_module(label, value)
        elif isinstance(value, FunctionType):
            self._visit_function(value)
        elif isinstance(value, MethodType):
            self._visit(value.__name__, value.__func__)
            self._visit(label, value.__self__)
        elif isinstance(value, partial):
            for part in (value.func, value.args, value.keywords):
                self._visit(label, part)
        elif isinstance(value, staticmethod | classmethod):
            self._visit(label, value.__func__)
        elif isinstance(value, property):
            self._visit(label, value.fget)
        elif isinstance(value, list | tuple | dict):
            if len(value) <= MOST and id(value) not in self._containers:
                self._containers[id(value)] = value
                for part in value.values() if isinstance(value, dict) else value:
                    if not isinstance(part, bool | int | float | str | Tensor):
                        self._visit(label, part)
        elif isinstance(value, type):
            if _is_own(value.__module__):
                self._objects.setdefault(id(value), (value.__name__, value))
        elif hasattr(value, "__dict__") and (
            isinstance(value, Namespace | SimpleNamespace) or _is_own(type(value).__module__)
        ):
            self._objects.setdefault(id(value), (label, value))
            self._visit_classes(value)

    def _visit_module(self, label: str, root: nn.Module) -> None:
        for path, module in root.named_modules():
            if module in self.modules:
                continue
            self.modules[module] = f"{path!r} of {label}" if path else label
            self._visit_classes(module)
            for name, value in vars(module).items():
                if name not in MODULE_SPACES:
                    self._visit(f"{name!r} of {self.modules[module]}", value)

    def _visit_classes(self, value: Any) -> None:
        for kind in type(value).__mro__:
            self._visit(kind.__name__, kind)

    def _visit_function(self, function: FunctionType) -> None:
        if function in self._functions:
            return
        names: set[str] = set()
        if _is_own(function.__globals__.get("__name__")):
            names, attributes = _names(function.__code__)
            self._attributes |= attributes
        self._functions[function] = values = _Names(function, names)
        for name in values:
            self._visit(f"{name!r} of {function.__name__}", values[name])


class _Names(Mapping[str, Any]):
    """What a function holds or names, as it is at the moment."""

    def __init__(self, function: FunctionType, names: set[str]) -> None:
        self._function = function
        closure = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._cells = {name: cell for name, cell in closure if _filled(cell)}
        found = [n for n in sorted(names) if n in function.__globals__ and n not in self._cells]
        self._all = [*_OF_FUNCTIONS, *self._cells, *found]

    def __getitem__(self, name: str) -> Any:
        if name in _OF_FUNCTIONS:
            return getattr(self._function, name)
        if (cell := self._cells.get(name)) is not None:
            if _filled(cell):
                return cell.cell_contents
            raise KeyError(name)
        return self._function.__globals__[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _names(code: CodeType) -> tuple[set[str], set[str]]:
    """The globals and the attributes that code reads, that of the functions in it included."""
    names: set[str] = set()
    attributes: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _GLOBALS:
            names.add(instruction.argval)
        elif instruction.opname in _ATTRIBUTES:
            attributes.add(instruction.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            for found, more in zip((names, attributes), _names(inner), strict=True):
                found |= more
    return names, attributes


@cache
def _is_own(module: str | None) -> bool:
    """Whether a module is part of the user's code rather than of a library."""
    root = (module or "").partition(".")[0]
    if not root or root in _LIBRARIES:
        return False
    path = getattr(sys.modules.get(root), "__file__", None) or ""
    return "site-packages" not in path and "dist-packages" not in path
