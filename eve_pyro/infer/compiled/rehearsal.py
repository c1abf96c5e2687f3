"""Rehearsals: runs of a model and its guide that leave no trace behind."""

import pickle
import random
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from eve_pyro.infer.compiled.assumptions import Call
from eve_pyro.infer.compiled.reach import Reach, Space
from eve_pyro.infer.compiled.tracing import TraceError


class Rehearsal:
    """Context of runs that leave no trace in random state and tensors; it may be entered again.

    What the runs change in place holds again what it held. The first run must be an eager one: it
    shows which tensors those are, and which modules run.

    Arguments:
        call: the call to rehearse.
        roots: what runs, by the names that messages are to call it by.
    """

    def __init__(self, call: Call, roots: dict[str, Any]) -> None:
        self._reach = Reach()
        for value in call.others:
            self._reach.add(f"an argument of type {type(value).__name__}", value)
        for label, root in roots.items():
            self._reach.add(label, root)
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
        # From no state that a model may have seeded itself, which a trace would not do again.
        torch.rand(3)
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
        self.dtypes = self._changes.dtypes

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Keep what autograd takes for the versions of tensors until the run ends."""
        for tensor in tensors:
            self._changes.keep_version(tensor)

    def _see(self, module: nn.Module, _: Any) -> None:
        self._ran[module] = None
        for buffer in module.buffers():  # which not all operations declare to change
            self._changes.keep(buffer)


@dataclass
class _Kept:
    """What a tensor was before a run."""

    tensor: Tensor
    storage: torch.UntypedStorage
    contents: Tensor
    geometry: tuple


class _Changes(TorchDispatchMode):
    """Keeps what tensors held before operations change them in place.

    Goes by storages, which views share. Those that the run makes itself do not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: list[Tensor] = []
        self._kept: dict[int, _Kept] = {}
        self._versions: dict[Tensor, int] = {}
        self._made: set[int] = set()

    def begin(self) -> None:
        """Start a run: keep the contents of all tensors known to change."""
        self._kept, self._versions, self._made = {}, {}, set()
        for tensor in self._known:
            self.keep(tensor)

    def keep(self, tensor: Tensor) -> None:
        """Keep the contents of a tensor that may change."""
        if tensor.layout is not torch.strided or is_lazy(tensor):
            return
        storage = tensor.untyped_storage()
        if storage.device.type == "meta" or storage._cdata in self._made:
            return
        self.keep_version(tensor)
        if storage._cdata not in self._kept:
            contents = _bytes(storage).clone()
            self._kept[storage._cdata] = _Kept(tensor, storage, contents, _geometry(tensor))
            if not any(known is tensor for known in self._known):
                self._known.append(tensor)

    def keep_version(self, tensor: Tensor) -> None:
        """Keep the number by which autograd tells whether a tensor changed."""
        if tensor not in self._versions and not tensor.is_inference():
            self._versions[tensor] = tensor._version

    @property
    def dtypes(self) -> list[torch.dtype]:
        """Those of the kept tensors."""
        return [kept.tensor.dtype for kept in self._kept.values()]

    def undo(self) -> list[Tensor]:
        """Give all tensors back what they held; returns what they came to hold.

        Raises:
            TraceError: if a tensor's shape or memory was exchanged, which no trace would do.
        """
        left = [_bytes(kept.storage).clone() for kept in self._kept.values()]
        exchanged = None
        # The last first: two storages may lie on the same memory.
        for kept in reversed(self._kept.values()):
            contents = _bytes(kept.storage)
            if not torch.equal(contents, kept.contents):  # it may be read-only otherwise
                contents.copy_(kept.contents)
            tensor = kept.tensor
            if tensor.untyped_storage()._cdata != kept.storage._cdata or (
                _geometry(tensor) != kept.geometry
            ):
                exchanged = tensor
                with torch.no_grad():
                    tensor.set_(kept.storage, *kept.geometry)
        # The caller's graph may have saved the tensors for its backward pass. They hold again
        # what they held, so autograd is not to take them for changed.
        if self._versions:
            torch._C._autograd._unsafe_set_version_counter(
                tuple(self._versions), tuple(self._versions.values())
            )
        if exchanged is not None:
            raise TraceError(
                f"the model changes the shape or the memory of a tensor of {tuple(exchanged.shape)}"
                " in place, which a trace would not do again"
            )
        return left

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        arguments = func._schema.arguments
        given = [*zip(arguments, args, strict=False)]
        given += [(a, kwargs[a.name]) for a in arguments if a.name in kwargs]
        for argument, value in given:
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written or argument.name in _WRITTEN_UNDECLARED:
                for tensor in _tensors(value):
                    self.keep(tensor)
        result = func(*args, **kwargs)
        # A number that is made a tensor shows up here for the first time as an argument; so does
        # an array, whose memory is not torch's own.
        fresh = func is torch.ops.aten.lift_fresh.default
        old = {_key(t) for t in _tensors((args, kwargs)) if not (fresh and _owns_memory(t))}
        self._made |= {_key(t) for t in _tensors(result)} - old
        return result


# By batch norms.
_WRITTEN_UNDECLARED = {"running_mean", "running_var"}


def _tensors(tree: Any) -> list[Tensor]:
    leaves = pytree.tree_leaves(tree)
    return [x for x in leaves if isinstance(x, Tensor) and x.layout is torch.strided]


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _owns_memory(tensor: Tensor) -> bool:
    return tensor.untyped_storage().resizable()


def _bytes(storage: torch.UntypedStorage) -> Tensor:
    """All that a storage holds, with a version counter of its own."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _geometry(tensor: Tensor) -> tuple:
    return tensor.storage_offset(), tensor.size(), tensor.stride()


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
