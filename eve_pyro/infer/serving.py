"""Predictors as files: a trained model that predicts where its Python code is not."""

import io
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from eve_pyro.infer.checkpoint import CheckpointError, FilePath, check_writable, read, write
from eve_pyro.infer.compiled.assumptions import Call
from eve_pyro.infer.compiled.draws import ADVICE, DrawPrograms
from eve_pyro.infer.compiled.programs import Program
from eve_pyro.infer.compiled.tracing import TraceError
from eve_pyro.infer.mixtures import Mixture
from eve_pyro.infer.predictive import (
    Draws,
    StreamingPredictive,
    _inference,
    _num_rows,
    draw,
    find_target,
    predict,
)
from eve_pyro.infer.rng import seeded

_KIND = "predictor"


def export_predictor(
    path: FilePath,
    model: Any,
    guide: Any,
    example: Tensor,
    num_samples: int = 64,
    *,
    site: str | None = None,
    chunk_size: int = 2048,
) -> None:
    """Write a file that predicts without the model's code, see :func:`load_predictor`.

    The model's run on the example is recorded as a graph of tensor operations with the weights
    of now (a ``torch.export`` program), and compared with an eager run of the same seed. The file
    appears whole or not at all.

    Arguments:
        path: the file; an existing one is replaced. Its folder must exist.
        model: a Pyro model, called as ``model(x)``, whose target site is Normal, Categorical, or
            a mixture of Normals. One row's target must not depend on other rows.
        guide: as for :class:`~eve_pyro.infer.StreamingPredictive`: None for a new ``EVEGuide``.
        example: rows of data, (N, \\*features), of which the file keeps the shape alone. The
            predictor takes any number of rows, N at a time.
        num_samples: S, posterior draws. Default 64.
        site: name of the target site. Default: the last sample site of the model.
        chunk_size: rows times draws in one run, at most (but always one draw of N rows).
            Default 2048. The draws of a run are a divisor of S.

    Raises:
        CheckpointError: if the file cannot be written.
        TraceError: if the model cannot be traced, see :class:`~eve_pyro.infer.CompiledELBO`.
        TypeError: if the example is no tensor, or for a target of another family.
        ValueError: as :class:`~eve_pyro.infer.StreamingPredictive` does.

    Example:
        >>> import tempfile
        >>> from eve_pyro import EVEModule
        >>> net = nn.Sequential(EVEModule(3, 4), nn.Linear(4, 1))
        >>> def model(x, y=None):
        ...     with pyro.plate("data", len(x)):
        ...         return pyro.sample("y", dist.Normal(net(x).squeeze(-1), 0.1), obs=y)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     export_predictor(f"{folder}/net.pt", model, None, torch.randn(8, 3))
        ...     predictor = load_predictor(f"{folder}/net.pt")
        >>> y = predictor(torch.randn(5, 3), seed=0)
        >>> y.loc.shape, y.mean.shape
        (torch.Size([64, 5]), torch.Size([5]))
    """
    if not isinstance(example, Tensor):
        raise TypeError(f"example must be a tensor of rows, got {type(example).__name__}")
    example = example.detach().contiguous()
    check_writable(path)
    predictive = StreamingPredictive(model, guide, num_samples, site=site, chunk_size=chunk_size)
    guide = predictive.guide
    with _inference(model, guide):
        rows = _num_rows((example,))
        site, depth, stochastic = find_target(guide, site, (example,), {})
        draws = predictive.num_samples if stochastic else 1
        at_once = _largest_divisor(draws, predictive.chunk_size // rows)
        programs = DrawPrograms(partial(draw, guide), model, guide, "eager", size=1)
        call, program = programs.program(site, depth, at_once, rows, (example,), {})
        exported = _export(program, call)
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    content = torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8)
    settings = {"shape": (*example.shape,), "dtype": example.dtype, "device": str(example.device)}
    write(path, _KIND, {"program": content, "draws": (draws, at_once), **settings})


class Predictor:
    """Predictive distribution from a file; made by :func:`load_predictor`.

    Rows pass in chunks of the example's N; a last, smaller chunk is filled up with copies of its
    last row, whose results are dropped. For N rows the prediction is, seed by seed, that of
    ``StreamingPredictive(..., chunk_size=predictor.chunk_size)`` when the file was written; for
    other numbers of rows noise falls on rows in another order, and the distribution is the same.

    Arguments:
        run: from (N, \\*features) to a batch of draws.
        shape: of the example, (N, \\*features).
        dtype, device: of the example.
        num_samples: S, the draws of a prediction.
        at_once: the draws of one run, a divisor of S.

    Example:
        >>> run = lambda x: (x.sum(-1).expand(2, -1), torch.ones(2, len(x)))
        >>> predictor = Predictor(run, (4, 3), torch.float32, torch.device("cpu"), 6, 2)
        >>> predictor(torch.zeros(5, 3)).loc.shape
        torch.Size([6, 5])
    """

    def __init__(
        self,
        run: Callable[[Tensor], Sequence[Tensor]],
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        num_samples: int,
        at_once: int,
    ) -> None:
        self._rows, *features = shape
        self._features, self._dtype, self._device = tuple(features), dtype, device
        self._run, self._at_once = run, at_once
        self.num_samples = num_samples

    @property
    def chunk_size(self) -> int:
        """Rows times draws in one run."""
        return self._rows * self._at_once

    def __call__(self, x: Tensor, seed: int | None = 0) -> Mixture:
        """Predict for rows of data.

        Arguments:
            x: rows, (M, \\*features) for any M >= 1, in the example's dtype and on its device.
            seed: of the draws, which leaves the global generators as they are; None draws from
                these. Default 0.

        Raises:
            TypeError: if x is no tensor.
            ValueError: for rows of another shape, dtype or device.
        """
        self._check(x)
        with torch.no_grad(), nullcontext() if seed is None else seeded(seed):
            return predict(self._draw, (x,), self.num_samples, self._rows, self._at_once)

    def _draw(self, count: int, rows: int, args: tuple[Any, ...]) -> Draws:
        (x,) = args
        if rows < self._rows:
            x = torch.cat((x, x[-1:].expand(self._rows - rows, *self._features)))
        return tuple(p[:, :rows] for p in self._run(x.contiguous()))

    def _check(self, x: Tensor) -> None:
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a tensor of rows, got {type(x).__name__}")
        if x.dim() != 1 + len(self._features) or x.shape[1:] != self._features or not len(x):
            wanted = ", ".join(map(str, ("rows >= 1", *self._features)))
            raise ValueError(f"x must have shape ({wanted}), got {tuple(x.shape)}")
        for name, there, here in (
            ("dtype", self._dtype, x.dtype),
            ("device", self._device, x.device),
        ):
            if there != here:
                raise ValueError(f"x must have the {name} {there} of the example, got {here}")


def load_predictor(path: FilePath) -> Predictor:
    """Read a file of :func:`export_predictor`.

    It needs this package and torch, not the code that defined the model, and the kind of device
    that the model was on. Load files of sources that you trust only.

    Raises:
        CheckpointError: if the file cannot be read, is damaged, is no predictor, or is of another
            version of torch.
    """
    saved = read(path, _KIND)
    try:
        program = torch.export.load(io.BytesIO(saved["program"].numpy().tobytes()))
        device = torch.device(saved["device"])
        run = program.module().to(device)
        return Predictor(run, saved["shape"], saved["dtype"], device, *saved["draws"])
    except Exception as error:  # whatever another torch, or one without that device, makes of it
        cause = next(iter(str(error).splitlines()), type(error).__name__)
        message = f"{path} cannot be loaded by torch {torch.__version__} ({cause})"
        raise CheckpointError(message) from error


class _Draw(nn.Module):
    """A recorded draw with the tensors that it reads as its buffers."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        recorded: Any = program.run  # of the backend "eager", so an fx.GraphModule
        # A copy has none of the tensors that the graph held while it was recorded.
        self.recorded = fx.GraphModule(recorded, recorded.graph)
        self.names = [f"captured_{i}" for i in range(len(program.captured))]
        for name, tensor in zip(self.names, program.captured, strict=True):
            self.register_buffer(name, tensor.detach())

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.recorded(*(getattr(self, name) for name in self.names), x))


def _export(program: Program, call: Call) -> torch.export.ExportedProgram:
    """The program as an exported one, once that has been seen to give the same draws."""
    try:
        # The file keeps the example that it is made with, which is to be nobody's data.
        blank = tuple(map(torch.zeros_like, call.tensors))
        exported = torch.export.export(_Draw(program), blank, strict=False)
        with seeded(0):
            expected = program(call)
        with seeded(0):
            found = exported.module()(*call.tensors)
    except Exception as error:
        raise TraceError(f"torch.export failed ({error})", ADVICE) from error
    if not all(map(torch.equal, expected, found)):
        raise TraceError("the exported program does not draw as the model does", ADVICE)
    return exported


def _largest_divisor(number: int, bound: int) -> int:
    """The largest divisor of a number that does not exceed the bound; at least 1."""
    return next((d for d in range(min(number, bound), 1, -1) if number % d == 0), 1)
