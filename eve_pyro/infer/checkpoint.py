"""Files of tensors and plain Python: written whole or not at all, read without running code."""

import io
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eve_pyro.infer.state import State, copy_state, named_state

FilePath = str | os.PathLike[str]


class CheckpointError(RuntimeError):
    """A file that cannot be written, cannot be read, or belongs to something else.

    The message is one line: the file, and what is wrong with it.

    Example:
        >>> load_model_state("none.pt", nn.Linear(3, 1))
        Traceback (most recent call last):
        ...
        eve_pyro.infer.checkpoint.CheckpointError: none.pt cannot be read (No such file...)
    """


def save_model(
    path: FilePath,
    model: nn.Module,
    guide: Any = None,
    metadata: dict[str, Any] | None = None,
) -> None:
    """Write the parameters and buffers of a model and its guide to a file.

    The file appears whole or not at all, also if the process is killed on the way.

    Arguments:
        path: the file; an existing one is replaced. Its folder must exist.
        model: a module.
        guide: its guide, which may have parameters of its own. Default none.
        metadata: what to keep along with the weights (units, scaling, versions): tensors and
            plain Python. Default empty.

    Raises:
        CheckpointError: if the file cannot be written.
        TypeError: if the metadata holds something else.

    Example:
        >>> import tempfile
        >>> net, other = nn.Linear(3, 1), nn.Linear(3, 1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_model(f"{folder}/net.pt", net, metadata={"unit": "MPa"})
        ...     load_model_state(f"{folder}/net.pt", other)
        {'unit': 'MPa'}
        >>> torch.equal(net.weight, other.weight)
        True
    """
    metadata = metadata or {}
    try:
        buffer = io.BytesIO()
        torch.save(metadata, buffer)
        torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    except Exception as error:
        raise TypeError("metadata must consist of tensors and plain Python") from error
    write(path, "model", {"state": named_state(model, guide), "metadata": metadata})


def load_model_state(path: FilePath, model: nn.Module, guide: Any = None) -> dict[str, Any]:
    """Copy what :func:`save_model` wrote into a model and guide of the same architecture.

    Parameters stay the objects they are, so an optimizer or a compiled program sees the new
    values. An ``AutoGuide`` makes its parameters when it is first called: call it once before.

    Arguments:
        path: a file of :func:`save_model`.
        model, guide: as they were saved.

    Returns:
        The metadata.

    Raises:
        CheckpointError: if the file cannot be read, is damaged, or holds other names, shapes or
            dtypes. Model and guide are then as they were.
    """
    saved = read(path, "model")
    live = named_state(model, guide)
    check_same_state(path, saved["state"], live)
    copy_state(saved["state"], live)
    return saved["metadata"]


def check_same_state(path: FilePath, saved: State, live: State) -> None:
    """Raise a ``CheckpointError`` if names, shapes or dtypes differ."""
    for name in live:
        if name not in saved:
            raise CheckpointError(f"{path} is of another architecture: it lacks {name!r}")
    for name, tensor in saved.items():
        if name not in live:
            hint = " (call the guide once first?)" if name.startswith("guide.") else ""
            raise CheckpointError(
                f"{path} is of another architecture: {name!r} in it is unknown here{hint}"
            )
        there, here = ((tuple(t.shape), str(t.dtype)) for t in (tensor, live[name]))
        if there != here:
            raise CheckpointError(
                f"{path} is of another architecture: {name!r} is {there} there, {here} here"
            )


def check_same_settings(path: FilePath, there: dict[str, Any], here: dict[str, Any]) -> None:
    """Raise a ``CheckpointError`` at the first setting that differs."""
    for name in {**there, **here}:
        if there.get(name) != here.get(name):
            raise CheckpointError(
                f"{path} is of another run: {name} is {there.get(name)!r} there, "
                f"{here.get(name)!r} here"
            )


def fingerprint(tensor: Tensor) -> str:
    """Shape and checksum of a tensor's content.

    Example:
        >>> fingerprint(torch.zeros(2, 3))
        '(2, 3) a3c1ca20'
    """
    content = tensor.detach().cpu().contiguous().view(torch.uint8).numpy()
    return f"{tuple(tensor.shape)} {zlib.crc32(content.data):08x}"


def check_writable(path: FilePath) -> None:
    """Raise a ``CheckpointError`` if a file could not be written, before work is spent."""
    if Path(path).is_dir():
        raise CheckpointError(f"{path} cannot be written: it is a folder")
    try:
        temporary = _temporary(path)
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written ({error.strerror})") from error


def write(path: FilePath, kind: str, content: dict[str, Any]) -> None:
    """Write a file atomically: a reader finds the old one or the new one, both whole."""
    check_writable(path)
    temporary = _temporary(path)
    try:
        with temporary.open("wb") as file:
            torch.save({"eve_pyro": kind, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written ({error.strerror})") from error
    finally:
        temporary.unlink(missing_ok=True)


def read(path: FilePath, kind: str) -> dict[str, Any]:
    """Read a file of :func:`write`, tensors on the CPU."""
    try:
        # torch.load overlooks most flipped bits; the checksums of its zip format find them.
        with zipfile.ZipFile(path) as file:
            damaged = file.testzip()
        content = {} if damaged else torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})") from error
    except Exception as error:  # whatever a parser makes of damaged bytes
        raise CheckpointError(f"{path} is damaged or no {kind} file") from error
    if damaged:
        raise CheckpointError(f"{path} is damaged: {damaged!r} in it has a wrong checksum")
    if not isinstance(content, dict) or content.get("eve_pyro") != kind:
        raise CheckpointError(f"{path} is no {kind} file of eve_pyro")
    return content


def _temporary(path: FilePath) -> Path:
    # In the same folder, for only there is replacing one file by another atomic.
    return Path(path).with_name(f".{Path(path).name}.{os.getpid()}.tmp")
