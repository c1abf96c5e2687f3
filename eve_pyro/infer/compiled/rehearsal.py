"""Rehearsals: runs of a model and its guide that leave no trace behind."""

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from eve_pyro.infer.compiled.assumptions import Call
from eve_pyro.infer.compiled.tracing import TraceError


class Rehearsal:
    """Context of runs that leave no trace in random state and buffers, and may be entered again.

    It also notes which modules ran, also those that no root module holds.
    """

    def __init__(self, model: Any, guide: Any, call: Call) -> None:
        self._roots = {
            name if i == 0 else f"{type(root).__name__} {i} of {name}": root
            for name, given in {"the model": model, "the guide": guide}.items()
            for i, root in enumerate(_roots(given))
        }
        self._ran: dict[nn.Module, None] = {}
        # A first look at devices; draws on a device take some tensor that lives there.
        tensors = [*call.tensors, *(p for r in self._roots.values() for p in r.parameters())]
        self._devices = list({t.device for t in tensors if t.device.type == "cuda"})

    def modules(self) -> list[tuple[str, nn.Module]]:
        """All modules that ran or belong to the model or guide, each with a name."""
        found: dict[int, tuple[str, nn.Module]] = {}
        ran = [(f"a {type(module).__name__}", module) for module in self._ran]
        for label, root in [*self._roots.items(), *ran]:
            for path, module in root.named_modules():
                found.setdefault(id(module), (f"{path!r} of {label}" if path else label, module))
        return list(found.values())

    def __enter__(self) -> None:
        self._noise = torch.random.fork_rng(self._devices)
        self._noise.__enter__()
        self._before: dict[Tensor, Tensor] = {}
        self._versions: dict[Tensor, int] = {}
        self._hook = register_module_forward_pre_hook(self._see)
        for root in self._roots.values():
            self._see(root, ())

    def __exit__(self, *error: Any) -> None:
        self._hook.remove()
        self.buffers = [buffer.detach().clone() for buffer in self._before]
        with torch.no_grad():
            for buffer, value in self._before.items():
                buffer.copy_(value)
        # The caller's graph may have saved buffers for its backward pass. They hold again what
        # they held, so autograd is not to take them for changed.
        if self._versions:
            torch._C._autograd._unsafe_set_version_counter(
                tuple(self._versions), tuple(self._versions.values())
            )
        self._noise.__exit__(*error)

    def _see(self, module: nn.Module, _: Any) -> None:
        self._ran[module] = None
        for buffer in module.buffers():
            if buffer not in self._before:
                self._before[buffer] = buffer.detach().clone()
                if not buffer.is_inference():
                    self._versions[buffer] = buffer._version


def _roots(given: Any) -> list[nn.Module]:
    """The modules that a callable holds: itself, what it is a method of, what it is given."""
    if isinstance(given, nn.Module):
        return [given]
    if isinstance(given, MethodType):
        return _roots(given.__self__)
    if isinstance(given, partial):
        parts = (given.func, *given.args, *given.keywords.values())
        return [root for part in parts for root in _roots(part)]
    return []


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
