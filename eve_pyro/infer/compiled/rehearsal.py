"""Rehearsals: runs of a model and its guide that leave no trace behind."""

import pickle
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from eve_pyro.infer.compiled.assumptions import Call
from eve_pyro.infer.compiled.reach import Reach, Space
from eve_pyro.infer.compiled.tracing import TraceError


class Rehearsal:
    """Context of runs that leave no trace in random state and tensors; it may be entered again.

    What the runs change in place holds again what it held. The first run must be an eager one: it
    shows which tensors those are, and which modules run.
    """

    def __init__(self, model: Any, guide: Any, call: Call) -> None:
        self._reach = Reach()
        self._reach.add("the model", model)
        self._reach.add("the guide", guide)
        for module in call.modules:
            self._reach.add(f"an argument of type {type(module).__name__}", module)
        # A first look at devices; draws on a device take some tensor that lives there.
        parameters = [p for module in self._reach.modules for p in module.parameters()]
        devices = {t.device for t in (*call.tensors, *parameters)}
        self._devices = [d for d in devices if d.type == "cuda"]
        self._changes = _Changes()
        self._ran: dict[nn.Module, None] = {}
        self._first = True

    def spaces(self) -> list[Space]:
        """All named values that the runs may have read."""
        for module in self._ran:
            self._reach.add(f"a {type(module).__name__}", module)
        return [*self._reach.spaces()]

    def __enter__(self) -> None:
        self._stack = ExitStack()
        self._stack.enter_context(torch.random.fork_rng(self._devices))
        self._changes.begin()
        for module in self._reach.modules:
            self._see(module, ())
        if self._first:
            hook = register_module_forward_pre_hook(self._see)
            self._stack.callback(hook.remove)
            self._stack.enter_context(self._changes)

    def __exit__(self, *error: Any) -> None:
        self._first = False
        self._stack.close()
        #: What the run left in the tensors that it may have changed.
        self.left = self._changes.undo()

    def _see(self, module: nn.Module, _: Any) -> None:
        self._ran[module] = None
        for buffer in module.buffers():  # which not all operations declare to change
            self._changes.keep(buffer)


class _Changes(TorchDispatchMode):
    """Keeps what tensors held before operations change them in place.

    Goes by storages, which views share. Those that the run makes itself do not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: list[Tensor] = []
        self._kept: dict[int, tuple[Tensor, int | None]] = {}
        self._made: set[int] = set()

    def begin(self) -> None:
        """Start a run: keep the contents of all tensors known to change."""
        self._kept, self._made = {}, set()
        for tensor in self._known:
            self.keep(tensor)

    def keep(self, tensor: Tensor) -> None:
        """Keep the contents of a tensor that may change."""
        if tensor.layout is not torch.strided or tensor.untyped_storage().device.type == "meta":
            return
        key = _key(tensor)
        if key not in self._kept and key not in self._made:
            version = None if tensor.is_inference() else tensor._version
            self._kept[key] = _contents(tensor).clone(), version
            if not any(known is tensor for known in self._known):
                self._known.append(tensor)

    def undo(self) -> list[Tensor]:
        """Give all tensors back what they held; returns what they came to hold."""
        left, versions = [], {}
        for tensor in self._known:
            before, version = self._kept[_key(tensor)]
            contents = _contents(tensor)
            left.append(contents.clone())
            contents.copy_(before)
            if version is not None:
                versions[tensor] = version
        # The caller's graph may have saved the tensors for its backward pass. They hold again
        # what they held, so autograd is not to take them for changed.
        if versions:
            torch._C._autograd._unsafe_set_version_counter(
                tuple(versions), tuple(versions.values())
            )
        return left

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            given = [*zip(func._schema.arguments, args, strict=False)]
            given += [(a, kwargs[a.name]) for a in func._schema.arguments if a.name in kwargs]
            for argument, value in given:
                if argument.alias_info is not None and argument.alias_info.is_write:
                    for tensor in _tensors(value):
                        self.keep(tensor)
        result = func(*args, **kwargs)
        # A number that is made a tensor shows up here for the first time as an argument.
        fresh = func is torch.ops.aten.lift_fresh.default
        old = set() if fresh else {_key(t) for t in _tensors((args, kwargs))}
        self._made |= {_key(t) for t in _tensors(result)} - old
        return result


def _tensors(tree: Any) -> list[Tensor]:
    leaves = pytree.tree_leaves(tree)
    return [x for x in leaves if isinstance(x, Tensor) and x.layout is torch.strided]


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _contents(tensor: Tensor) -> Tensor:
    """All that a tensor's storage holds, with a version counter of its own."""
    return tensor.detach().new_empty(0).set_(tensor.untyped_storage())


@contextmanager
def no_python_noise() -> Iterator[None]:
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
