"""What a callable can read: modules, functions and objects, found by the names in its code."""

import dis
import sys
import sysconfig
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial, partialmethod
from pathlib import Path
from types import CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

from torch import Tensor, nn

MODULE_SPACES = ("_parameters", "_buffers", "_modules")
MOST = 256  # containers with more elements are not looked into
CONTAINERS = (list, tuple, dict, deque, set, frozenset)
_MEMBERS = (FunctionType, staticmethod, classmethod, property, cached_property, partialmethod)
_LEAVES = (bool, int, float, complex, str, bytes, Tensor, type(None))
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
    """Collects what can be reached from the callables and objects given to :meth:`add`.

    Of a function, that is what it holds in its closure and defaults, and what its code names
    among the globals; of a method, also its object; of an object, the attributes and methods that
    this code names; of a class, also the methods that Python or its base may call unnamed; of a
    module, all its attributes and submodules. The code of libraries is taken to be fixed, so that
    their globals and classes do not count.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 2))
        >>> reach = Reach()
        >>> reach.add("the model", lambda x, net=net: net(x))
        >>> [label for label in reach.modules.values()]
        ["'__defaults__' of <lambda>", "'0' of '__defaults__' of <lambda>"]
    """

    def __init__(self) -> None:
        self.modules: dict[nn.Module, str] = {}
        self._functions: dict[FunctionType, _Names] = {}
        self._objects: dict[int, tuple[str, Any, Mapping[str, Any]]] = {}
        self._containers: dict[int, Any] = {}
        self._attributes: set[str] = set()
        self._todo: list[tuple[str, Any]] = []
        self._fresh: list[int] = []  # objects not looked at yet
        self._looked: dict[int, set[str]] = {}  # the names of an object that were

    def add(self, label: str, value: Any) -> None:
        """Look at one more value, which messages are to call by the label."""
        self._todo.append((label, value))
        known = -1
        while self._todo:
            while self._todo:
                self._visit(*self._todo.pop())
            # The names of attributes become known by and by: what was seen is looked at again.
            grown = known != (known := len(self._attributes))
            look, self._fresh = [*self._objects] if grown else self._fresh, []
            for key in look:
                self._look_at(*self._objects[key])

    def _look_at(self, label: str, owner: Any, values: Mapping[str, Any]) -> None:
        done = self._looked.setdefault(id(owner), set())
        for name in self._named(owner, values):
            if name in values and name not in done:
                done.add(name)
                self._todo.append((f"{name!r} of {label}", values[name]))

    def spaces(self) -> Iterator[Space]:
        """The named values that were reached."""
        for module, label in self.modules.items():
            yield from spaces_of(label, module)
        for function, names in self._functions.items():
            yield Space(function.__name__, names, (*names,), "name")
        for label, owner, values in self._objects.values():
            own = None if isinstance(owner, type) else owner
            yield Space(label, values, self._named(owner, values), owner=own)

    def _named(self, owner: Any, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Which of an object's attributes, or of a class's, the code may read."""
        if isinstance(owner, type):
            return tuple(
                name
                for name, value in values.items()
                if name in self._attributes
                or (isinstance(value, _MEMBERS) and _is_called_unnamed(owner, name))
            )
        inherited = {name for kind in type(owner).__mro__ for name in vars(kind)}
        # What an object has from its class it may come to have itself.
        return tuple(n for n in self._attributes if n in values or n in inherited)

    def _visit(self, label: str, value: Any) -> None:
        # By type, not by isinstance, which runs the code of proxies.
        kind = type(value)
        if issubclass(kind, _LEAVES):
            return
        if issubclass(kind, nn.Module):
            self._visit_module(label, value)
        elif issubclass(kind, FunctionType):
            self._visit_function(value)
        elif issubclass(kind, MethodType):
            self._todo += [(value.__name__, value.__func__), (label, value.__self__)]
        elif issubclass(kind, partial | partialmethod):
            self._todo += [(label, part) for part in (value.func, value.args, value.keywords)]
        elif issubclass(kind, staticmethod | classmethod):
            self._todo.append((label, value.__func__))
        elif issubclass(kind, property):
            self._todo.append((label, value.fget))
        elif issubclass(kind, cached_property):
            self._todo.append((label, value.func))
        elif issubclass(kind, CONTAINERS):
            if len(value) <= MOST and id(value) not in self._containers:
                self._containers[id(value)] = value
                parts = value.values() if issubclass(kind, dict) else value
                self._todo += [(label, part) for part in parts]
        elif issubclass(kind, type):
            if _is_own(value) and id(value) not in self._objects:
                self._add_object(value.__name__, value, vars(value))
                self._todo += [(base.__name__, base) for base in value.__mro__[1:]]
        elif id(value) not in self._objects and (
            issubclass(kind, SimpleNamespace) or any(map(_is_own, kind.__mro__)) or _is_bag(kind)
        ):
            self._add_object(label, value, _attributes(value))
            self._todo.append((kind.__name__, kind))

    def _add_object(self, label: str, owner: Any, values: Mapping[str, Any]) -> None:
        self._objects[id(owner)] = label, owner, values
        self._fresh.append(id(owner))

    def _visit_module(self, label: str, root: nn.Module) -> None:
        for path, module in root.named_modules():
            if module in self.modules:
                continue
            self.modules[module] = f"{path!r} of {label}" if path else label
            self._todo.append((type(module).__name__, type(module)))
            for name, value in vars(module).items():
                if name not in MODULE_SPACES:
                    self._todo.append((f"{name!r} of {self.modules[module]}", value))

    def _visit_function(self, function: FunctionType) -> None:
        if function in self._functions:
            return
        names: set[str] = set()
        if _is_own_file(function.__code__.co_filename):
            names, attributes = _names(function.__code__)
            self._attributes |= attributes
        self._functions[function] = values = _Names(function, names)
        self._todo += [(f"{name!r} of {function.__name__}", values[name]) for name in values]


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


class _Slots(Mapping[str, Any]):
    """What an object holds in slots."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._slots = {
            name: member
            for kind in type(owner).__mro__
            for name, member in vars(kind).items()
            if type(member).__name__ == "member_descriptor"
        }

    def __getitem__(self, name: str) -> Any:
        try:
            return self._slots[name].__get__(self._owner)
        except AttributeError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)


def _attributes(value: Any) -> Mapping[str, Any]:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return _Slots(value)


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


def _is_called_unnamed(kind: type, name: str) -> bool:
    """Whether Python or a library's base class may call a method that no own code names."""
    special = name.startswith("__") and name.endswith("__")
    return special or any(name in vars(base) for base in kind.__mro__[1:] if not _is_own(base))


def _is_bag(kind: type) -> bool:
    """Whether a class of a library is one for settings of one's own."""
    return (kind.__module__, kind.__name__) == ("argparse", "Namespace")


def _is_own(kind: type) -> bool:
    """Whether a class is the user's rather than a library's."""
    module = sys.modules.get(kind.__module__)
    if kind.__module__ == "__main__" or module is None:
        return True
    path = getattr(module, "__file__", None)
    if path is None:  # built into Python, or made at run time, as in a notebook
        return kind.__module__.partition(".")[0] not in sys.stdlib_module_names
    return _is_own_file(path)


@cache
def _is_own_file(path: str) -> bool:
    if path.startswith("<frozen"):
        return False
    parts = Path(path).parts
    if "site-packages" in parts or "dist-packages" in parts:
        return False
    return not any(path.startswith(f"{library}/") for library in _library_folders())


@cache
def _library_folders() -> list[str]:
    import pyro
    import torch

    import eve_pyro

    folders = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    packages = [package.__file__ for package in (torch, pyro, eve_pyro)]
    return [f for f in folders if f] + [str(Path(f).parent) for f in packages if f]
