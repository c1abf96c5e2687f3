"""The streaming predictor: posterior draws in bounded memory, kept as a mixture."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pyro
import torch
from pyro.distributions import Distribution, MixtureSameFamily
from pyro.poutine.guide import GuideMessenger
from pyro.poutine.runtime import _PYRO_STACK
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal
from tqdm.auto import tqdm

from eve_pyro._checks import check_choice, check_int
from eve_pyro.infer._sites import check_guides_model
from eve_pyro.infer.compiled.draws import DrawPrograms
from eve_pyro.infer.compiled.tracing import BACKENDS
from eve_pyro.infer.guide import EVEGuide, local_parameters
from eve_pyro.infer.mixtures import CategoricalMixture, GaussianMixture, Mixture
from eve_pyro.infer.rng import seeded

# A batch of draws: the parameters of one family, draws first, then rows.
Draws = tuple[Tensor, ...]
_CACHE_SIZE = 8  # full and ragged chunks of rows times full and ragged batches of draws, twice


class StreamingPredictive:
    """Predictive distribution of a model's target, from posterior draws of its latents.

    Each draw of the latents gives a distribution of the target; the prediction is their
    mixture. Pyro's ``Predictive`` keeps every latent of every draw; here draws and rows pass in
    chunks, several draws in one run, and only the target's distribution is kept: memory is
    bounded by the chunk, not by ``num_samples``.

    The model is called as ``model(*args, **kwargs)`` without its target, in eval mode and
    without gradients. A model without latents is run once. Latents outside the rows' plate
    (random weights, say) are drawn anew for each chunk of rows: each row's predictive is right,
    but one draw is not one function of all rows unless they fit a chunk.

    With ``compile``, a chunk's run is recorded once as a graph of tensor operations, checked
    against an eager run of the same seed, and then used for all chunks of that shape, in later
    calls too; weights may change in between. The last chunk of rows, and of draws, has a shape of
    its own and a graph of its own: noise is then the same as without ``compile``. Eight graphs
    are kept, so call it with few numbers of rows. What a graph freezes is as for
    :class:`~eve_pyro.infer.CompiledELBO`; under a Pyro handler nothing is compiled.

    Arguments:
        model: a Pyro model whose target site is Normal, Categorical, or a mixture of Normals.
        guide: an :class:`~eve_pyro.infer.EVEGuide` (the default is a new one), or a guide for
            the model's other latents.
        num_samples: S, posterior draws. Default 64.
        site: name of the target site. Default: the last sample site of the model.
        chunk_size: rows times draws in one run. Default 2048.
        vectorize: run a chunk's draws together (default), which needs a model that accepts a
            leading dim of draws; else one by one.
        progress: show a progress bar. Default False.
        compile: False (default); ``"eager"`` for a recorded graph, whose predictions are those
            without it; True or ``"inductor"`` for compiled code, equal to rounding.

    Raises:
        ValueError: for num_samples or chunk_size below 1, an unknown compile, or a guide of
            another model; when called, for arguments without rows, a site that is missing, or a
            target whose first dim is not the rows.
        TypeError: when called, for a target distribution of another family.
        TraceError: when called with ``compile``, if the model cannot be traced.

    Example:
        >>> from eve_pyro import EVEModule
        >>> net = nn.Sequential(EVEModule(3, 4), nn.Linear(4, 1))
        >>> def model(x, y=None):
        ...     with pyro.plate("data", len(x)):
        ...         return pyro.sample("y", dist.Normal(net(x).squeeze(-1), 0.1), obs=y)
        >>> predictive = StreamingPredictive(model, num_samples=100)
        >>> y = predictive(torch.randn(5, 3), seed=0)
        >>> y.loc.shape, y.mean.shape
        (torch.Size([100, 5]), torch.Size([5]))
    """

    def __init__(
        self,
        model: Callable,
        guide: Any = None,
        num_samples: int = 64,
        *,
        site: str | None = None,
        chunk_size: int = 2048,
        vectorize: bool = True,
        progress: bool = False,
        compile: bool | str = False,
    ) -> None:
        self.model = model
        self.guide = guide if isinstance(guide, GuideMessenger) else EVEGuide(model, guide)
        check_guides_model(model, self.guide)
        self.num_samples = check_int("num_samples", num_samples)
        self.site = site
        self.chunk_size = check_int("chunk_size", chunk_size)
        self.vectorize = vectorize
        self.progress = progress
        self._draw = partial(draw, self.guide)
        self._programs = None
        if compile is not False:
            backend = check_choice("compile", "inductor" if compile is True else compile, BACKENDS)
            self._programs = DrawPrograms(self._draw, model, self.guide, backend, _CACHE_SIZE)

    @property
    def traces(self) -> int:
        """Number of traces made so far; 0 without ``compile``."""
        return self._programs.traces if self._programs else 0

    def __call__(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Mixture:
        """Predict for rows of data.

        Arguments:
            args, kwargs: the model's, without its target. Tensors among ``args`` are split by
                rows (their first dim), everything else is passed on as it is.
            seed: of the draws; the global random number generator if None. One seed gives one
                prediction for one chunk_size.
        """
        run = self._draw if self._programs is None or _PYRO_STACK else self._programs
        with _inference(self.model, self.guide):
            rows = _num_rows(args)
            site, depth, stochastic = find_target(self.guide, self.site, args, kwargs)
            step = min(rows, self.chunk_size)
            at_once = max(1, self.chunk_size // step) if self.vectorize else 1

            def draw_chunk(count: int, size: int, chunk: tuple[Any, ...]) -> Draws:
                return run(site, depth if self.vectorize else None, count, size, chunk, kwargs)

            with _seeded(seed, args):
                draws = self.num_samples if stochastic else 1
                return predict(draw_chunk, args, draws, step, at_once, self.progress)


def find_target(guide: Any, site: str | None, args: Any, kwargs: Any) -> tuple[str, int, bool]:
    """The target site, the depth of the model's batch dims, and whether draws differ."""
    with seeded(0):  # a look at the sites, which is to cost the caller's draws no noise
        guide(*_slice(args, 0, 2), **kwargs)
    sites = {
        name: node
        for name, node in guide.trace.nodes.items()
        if node["type"] == "sample" and not site_is_subsample(node)
    }
    if site is not None and site not in sites:
        raise ValueError(f"site must be one of {list(sites)}, got {site!r}")
    if not sites:
        raise ValueError("model must have a sample site for its target, got none")
    site = site or list(sites)[-1]
    depths = [len(node["fn"].batch_shape) for node in sites.values()]
    frames = [f for node in sites.values() for f in node["cond_indep_stack"]]
    depths += [-f.dim for f in frames if f.dim is not None]
    latents = [n for n, node in sites.items() if n != site and not node["is_observed"]]
    return site, max(depths), bool(latents)


def draw(
    guide: Any, site: str, depth: int | None, count: int, rows: int, args: Any, kwargs: Any
) -> Draws:
    """Draws of the target's parameters in one run, (count, rows, ...) each.

    Below a plate of draws if the model's depth is given, else a single one.
    """
    plate: Any = nullcontext()
    if depth is not None:
        plate = pyro.plate("_num_predictive_samples", count, dim=-depth - 1)
    with plate:
        guide(*args, **kwargs)
    draws = _parameters(site, guide.trace.nodes[site]["fn"])
    guide.trace = Trace()  # lets go of the latents
    if depth is None:
        draws = tuple(p.unsqueeze(0) for p in draws)
    if draws[0].shape[:2] != (count, rows):
        raise ValueError(
            f"the first dim of site {site!r} must be the {rows} rows of the input, got shape "
            f"{tuple(draws[0].shape[1:])} for one draw"
        )
    return draws


@contextmanager
def _inference(model: Any, guide: Any) -> Iterator[None]:
    """Eval mode, no gradients, no argument checks, and no other model's parameters."""
    modules = [m for m in (model, guide) if isinstance(m, nn.Module)]
    training = [(m, m.training) for top in modules for m in top.modules()]
    for module in modules:
        module.eval()
    try:
        with torch.no_grad(), local_parameters(), pyro.validation_enabled(False):
            yield
    finally:
        for module, mode in training:
            module.training = mode


@contextmanager
def _seeded(seed: int | None, args: Any) -> Iterator[None]:
    if seed is None:
        yield
        return
    devices = {a.device for a in args if isinstance(a, Tensor) and a.is_cuda}
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


def predict(
    draw: Callable[[int, int, tuple[Any, ...]], Draws],
    args: tuple[Any, ...],
    draws: int,
    step: int,
    at_once: int,
    progress: bool = False,
) -> Mixture:
    """Draw chunk by chunk into one mixture.

    Arguments:
        draw: from a number of draws, a number of rows and those rows of the arguments to a batch
            of draws.
        args: the arguments; tensors among them are split by rows.
        draws: S, the draws in all.
        step, at_once: the rows and the draws of one chunk.
        progress: show a progress bar. Default False.
    """
    rows = _num_rows(args)
    kept: Draws = ()
    with tqdm(total=rows * draws, unit="draw", disable=not progress) as bar:
        for start in range(0, rows, step):
            chunk = _slice(args, start, start + step)
            size = min(step, rows - start)
            for first in range(0, draws, at_once):
                count = min(at_once, draws - first)
                new = draw(count, size, chunk)
                # One buffer made up front: pieces kept one by one would lie scattered
                # among the freed activations and keep their memory from reuse.
                kept = kept or tuple(p.new_empty(draws, rows, *p.shape[2:]) for p in new)
                for whole, part in zip(kept, new, strict=True):
                    whole[first : first + count, start : start + size] = part
                bar.update(count * size)
    return _mixture(kept)


def _num_rows(args: Any) -> int:
    sizes = {len(a) for a in args if isinstance(a, Tensor) and a.dim()}
    if len(sizes) != 1 or sizes == {0}:
        raise ValueError(
            "the model's positional arguments must hold tensors with one common number of rows "
            ">= 1, got "
            f"{[tuple(a.shape) for a in args if isinstance(a, Tensor)]}"
        )
    return sizes.pop()


def _slice(args: Any, start: int, stop: int) -> tuple[Any, ...]:
    return tuple(a[start:stop] if isinstance(a, Tensor) and a.dim() else a for a in args)


def _parameters(site: str, fn: Distribution) -> Draws:
    """The parameters that define a target: (loc, scale), (logits,) or (loc, scale, weights)."""
    while isinstance(fn, Independent):
        fn = fn.base_dist
    if isinstance(fn, Normal):
        return fn.loc, fn.scale
    if isinstance(fn, Categorical):
        return (fn.logits,)
    if isinstance(fn, MixtureSameFamily) and isinstance(fn.component_distribution, Normal):
        components = fn.component_distribution
        weights = fn.mixture_distribution.logits.log_softmax(-1)
        return components.loc, components.scale, weights.expand_as(components.loc)
    raise TypeError(
        f"site {site!r} must be Normal, Categorical or a mixture of Normals, got {fn}; name the "
        "target with site= if it is another one"
    )


def _mixture(draws: Draws) -> Mixture:
    if len(draws) == 1:
        return CategoricalMixture(draws[0])
    if len(draws) == 2:
        return GaussianMixture(*draws)
    count = len(draws[0])
    loc, scale, log_weights = (p.movedim(-1, 1).flatten(0, 1) for p in draws)
    return GaussianMixture(loc, scale, log_weights, num_draws=count)
