"""What a study keeps of a run: one file per run, whole or not there, never silently changed."""

import ast
import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from eve_pyro.experiments.output import OutputFolder, environment


@dataclass(frozen=True)
class Outcome:
    """What one run measured.

    Attributes:
        scores: numbers by name.
        tables: data frames by name, such as statistics by layer.
        failure: why the run has no scores (training diverged); None for a run that ended well.
        made: when, in how many seconds and with which versions; filled in by the store.
    """

    scores: dict[str, float] = field(default_factory=dict)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    failure: str | None = None
    made: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """One run of a study, to be computed anywhere: a function and the plain values it gets.

    Arguments:
        study, setting, model: where the run belongs: the study, the data and protocol within
            it, and the model's name.
        seed: decides the data, their order, the initial weights and the noise; runs of one
            setting and seed are paired.
        function: called as ``function(seed=seed, **arguments)``, returns an :class:`Outcome`.
            Defined at the top of a module, so that other processes find it.
        arguments: numbers, strings, tuples, dicts and frozen dataclasses of them.
        alone: whether nothing else may run meanwhile: it measures time. Default False.

    Example:
        >>> def run(seed, scale):
        ...     return Outcome({"nll": scale * seed})
        >>> task = Task("study", "line", "mlp", 3, run, {"scale": 2.0})
        >>> task.compute().scores
        {'nll': 6.0}
    """

    study: str
    setting: str
    model: str
    seed: int
    function: Callable[..., Outcome]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False

    def compute(self) -> Outcome:
        """Run it. Training that diverges is an outcome too; other errors are errors."""
        try:
            return self.function(seed=self.seed, **self.arguments)
        except FloatingPointError as error:
            return Outcome(failure=str(error))

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that says which run this is, as plain values."""
        return {
            "study": self.study,
            "setting": self.setting,
            "model": self.model,
            "seed": self.seed,
            "function": f"{self.function.__module__}.{self.function.__qualname__}",
            "arguments": _plain(dict(self.arguments)),
        }

    @property
    def label(self) -> str:
        """For progress displays and error messages."""
        return f"{self.setting}, {self.model}, seed {self.seed}"


class _NotUsable(Exception):
    """Why a file is there but is not used."""


class Store:
    """A folder with one JSON file per finished run.

    A file holds the run's identity, the version of the code that computed it, the outcome, and
    a digest of all. It is written under a temporary name and moved into place. A file
    that cannot be read, whose digest does not fit its content, or that other code has written
    is not used: its run is computed again.

    Arguments:
        path: the folder; made if it does not exist.
        code: version of the code. Default: :func:`code_version`.

    Raises:
        OSError: if the folder cannot be made or written to.

    Example:
        >>> import tempfile
        >>> task = Task("study", "line", "mlp", 3, print)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = Store(folder)
        ...     before = store.load(task)
        ...     store.save(task, Outcome({"nll": 1.0}))
        ...     before, store.load(task).scores
        (None, {'nll': 1.0})
    """

    def __init__(self, path: str | Path, *, code: str | None = None) -> None:
        self.folder = OutputFolder(path)
        self.code = code_version() if code is None else code
        self.rejected: dict[str, str] = {}

    def save(self, task: Task, outcome: Outcome, seconds: float = math.nan) -> None:
        """Keep what a run measured, and how long it took."""
        content = {
            "identity": task.identity,
            "code": self.code,
            "made": {"date": str(date.today()), "seconds": seconds, **environment()},
            "outcome": {
                "scores": outcome.scores,
                "tables": {k: _columns(frame) for k, frame in outcome.tables.items()},
                "failure": outcome.failure,
            },
        }
        self.folder.write(self._name(task), _json({**content, "digest": _digest(content)}, 1))

    def load(self, task: Task) -> Outcome | None:
        """What a finished run measured; None if it is to be computed.

        Why a file that is there was not used is kept in ``rejected``, by its name.
        """
        name = self._name(task)
        try:
            content = json.loads((self.folder.path / name).read_text(encoding="utf-8"))
            digest = content.pop("digest")
            if digest != _digest(content):
                raise _NotUsable("was changed after it was written")
            if content["identity"] != json.loads(_json(task.identity)):
                raise _NotUsable("is of another run")
            if content["code"] != self.code:
                raise _NotUsable("was computed by another version of the code")
            found = content["outcome"]
            tables = {k: pd.DataFrame(dict(pairs)) for k, pairs in found["tables"].items()}
            return Outcome(found["scores"], tables, found["failure"], content["made"])
        except FileNotFoundError:
            return None
        except _NotUsable as reason:
            self.rejected[name] = str(reason)
        except (ValueError, KeyError, TypeError, AttributeError):
            self.rejected[name] = "is damaged"
        return None

    @staticmethod
    def _name(task: Task) -> str:
        words = "-".join((task.setting, task.model, str(task.seed)))
        readable = "".join(c if c.isalnum() or c in "-." else "_" for c in words)
        return f"{readable}-{_digest(task.identity)[:12]}.json"


# What decides numbers. Pages, figures and commands may change without a run's being redone.
_NUMERIC = (
    "_checks.py",
    "nn",
    "infer",
    "metrics",
    "data",
    "diagnostics",
    "experiments/models.py",
    "experiments/protocol.py",
    "experiments/studies",
)
# The arguments of runs are part of what identifies them: the lists of tasks need not count.
_WORDS = (
    "/plots/",
    "/page.py",
    "/claims.py",
    "/published.py",
    "/energy/figures.py",
    "/energy/method.py",
    "/tasks.py",
    "/attribution/text/",  # not data/text
    "/language/text/",
)


@cache
def code_version() -> str:
    """Digest of the code that decides numbers, and the versions of what it is built on.

    It sees the syntax tree without docstrings: comments and wording change nothing. Modules that
    only write reports are left out.

    Example:
        >>> len(code_version())
        16
    """
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for part in _NUMERIC:
        path = root / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            name = file.relative_to(root).as_posix()
            if not any(word in name for word in _WORDS):
                digest.update(f"{name}\n{_code_of(file)}\n".encode())
    for package in ("torch", "pyro-ppl", "numpy", "scipy"):
        digest.update(f"{package} {version(package)}\n".encode())
    return digest.hexdigest()[:16]


def _code_of(file: Path) -> str:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree)


def _plain(value: Any) -> Any:
    """A value as what JSON can hold, classes by their names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"class": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    raise TypeError(
        f"arguments of a task must be numbers, strings, tuples, dicts or dataclasses, got {value!r}"
    )


def _columns(frame: pd.DataFrame) -> list[list[Any]]:
    """Names and values in their order; JSON keeps all digits of a float."""
    return [[str(name), column.tolist()] for name, column in frame.items()]


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, sort_keys=True, indent=indent)


def _digest(value: Any) -> str:
    return hashlib.sha256(_json(value).encode()).hexdigest()
