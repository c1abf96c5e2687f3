"""The latent of a layer: its distribution, and how its dims line up with Pyro's plates."""

import math
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.util import broadcast_shape
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _PYRO_STACK, get_plates
from torch import Tensor
from torch.distributions import register_kl

# Plates that repeat the whole program (ELBO particles, predictive draws). Unlike data plates they
# need not be present in a layer's input: the first layer sees plain data, later ones see draws.
PARTICLE_PLATES = frozenset({"num_particles_vectorized", "_num_predictive_samples"})


class LatentNormal(dist.Normal):
    """Normal over (..., units, latent) made for layers: little work per element.

    The latent dim is short (often 1) and the unit dim long, so a layer's tensors are views of
    (..., latent, units) memory: sums over the latent dim then vectorize. Noise in the same layout
    keeps every elementwise operation a single contiguous sweep.

    Plates expand distributions by repetition, a standard normal prior from one number to all
    units and data. What can be is computed before the repetition: the KL between two of these,
    and the logarithms of their scales.

    With :meth:`with_shared_noise` one draw of noise serves all entries of a dim. Every element
    has the law that it has without; together they are no longer independent, and have no joint
    density: means, variances, ``log_prob`` and the KL stay those of single elements.

    Arguments:
        loc: mean, of shape (..., units, latent).
        scale: standard deviation, of the same or a broadcastable shape.
        log_scale: logarithm of ``scale`` where it is at hand; taken here if None (default).

    Attributes:
        shared_dim: dim along which noise is shared, counted from the end; None for none.

    Example:
        >>> q = LatentNormal(torch.zeros(5, 2, 3).mT, torch.ones(5, 2, 3).mT)
        >>> q.rsample().shape
        torch.Size([5, 3, 2])
        >>> q.rsample().mT.is_contiguous()
        True
    """

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor,
        *,
        log_scale: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(loc, scale, validate_args)
        # Kept as they are by expand, unlike loc and scale.
        log_scale = self.scale.log() if log_scale is None else log_scale
        self._given = self.loc, self.scale, log_scale
        self.shared_dim: int | None = None

    def with_shared_noise(self, dim: int) -> "LatentNormal":
        """The same, its noise drawn once for all entries of a dim.

        Arguments:
            dim: of the shape (..., units, latent), counted from its end: -3 or less, since units
                that share noise are not distributional neurons of their own.

        Raises:
            ValueError: if the shape has no such dim.

        Example:
            >>> q = LatentNormal(torch.zeros(2, 5, 4, 1), torch.ones(2, 5, 4, 1))
            >>> z = q.with_shared_noise(-3).rsample()
            >>> z.shape, torch.equal(z[:, 0], z[:, 4])
            (torch.Size([2, 5, 4, 1]), True)
        """
        if not -len(self.batch_shape) <= dim <= -3:
            raise ValueError(
                f"dim must be one of {list(range(-len(self.batch_shape), -2))}, dims ahead of the "
                f"units of a distribution of shape {tuple(self.batch_shape)}, got {dim!r}"
            )
        new = self.expand(self.batch_shape)
        new.shared_dim = dim
        return new

    def expand(self, batch_shape: Any, _instance: Any = None) -> "LatentNormal":
        new = super().expand(batch_shape, self._get_checked_instance(LatentNormal, _instance))
        new._given = self._given
        new.shared_dim = self.shared_dim
        return new

    def noise(self, sample_shape: Any = ()) -> Tensor:
        """Draw what :meth:`at` takes: of the sample's shape, of size 1 where noise is shared."""
        shape = list(self._extended_shape(torch.Size(sample_shape)))
        if self.shared_dim is not None:
            shape[self.shared_dim] = 1
        *batch, units, latent = shape
        return _noise([*batch, latent, units], like=self.loc).mT

    def at(self, noise: Tensor) -> Tensor:
        """The sample for some noise, loc + scale * noise."""
        return torch.addcmul(self.loc, noise, self.scale)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.at(self.noise(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        _, _, log_scale = self._given
        square = ((value - self.loc) / self.scale).square()
        return torch.sub(-0.5 * math.log(2 * math.pi) - log_scale, square, alpha=0.5)


@register_kl(LatentNormal, LatentNormal)
def _kl_latent_normal(q: LatentNormal, p: LatentNormal) -> Tensor:
    (loc, scale, log_scale), (prior_loc, prior_scale, prior_log_scale) = q._given, p._given
    # What depends on the prior alone is most often a few numbers: one factor and one constant.
    square = (loc - prior_loc).square() + scale.square()
    kl = torch.addcmul((prior_log_scale - 0.5) - log_scale, square, 0.5 / prior_scale.square())
    return kl.expand(broadcast_shape(q.batch_shape, p.batch_shape))


class AntitheticDraws(Messenger):
    """Handler under which the particles of a run are drawn in pairs of opposite noise.

    Draws 2s and 2s + 1 of every :class:`LatentNormal` site, in every layer, are

    .. math:: \\mu + \\sigma \\epsilon, \\qquad \\mu' + \\sigma' (-\\epsilon)

    each with its own mean and scale where they depend on layers before. Every draw has exactly
    the law that it has without the handler, so averages over draws, ELBOs among them, stay
    unbiased; two draws of a pair are no longer independent. An odd last draw has no partner.
    Hammersley and Morton 1956, "A new Monte Carlo technique: antithetic variates".

    Averages of what is near linear in the noise gain most: to first order the noise cancels.
    Even functions lose, a square has twice the variance; with sigma large or many layers the gain
    fades. Do not use it where draws must be independent: for standard errors over draws, or for
    variances over few of them, as in :class:`~eve_pyro.infer.MomentMatchedELBO`.

    It acts on the particles of one vectorized run: of an ELBO with ``vectorize_particles=True``,
    of Pyro's parallel ``Predictive``, and of each chunk of ``StreamingPredictive``. Elsewhere,
    and for posteriors of other classes, nothing changes. Around a compiled ELBO it makes calls
    eager, as every handler does; in the model's ``forward`` it is compiled along.

    Example:
        >>> from eve_pyro import EVEGuide, EVEModule
        >>> net = EVEModule(3, 4, emission="identity")
        >>> x = torch.randn(5, 3)
        >>> with AntitheticDraws(), pyro.plate("num_particles_vectorized", 2, dim=-1):
        ...     z = EVEGuide(net)(x)["eve"]
        >>> torch.allclose(z.mean(0), net.posterior(x).mean, atol=1e-6)
        True
    """


def _noise(shape: list[int], like: Tensor) -> Tensor:
    """Standard normal noise, in pairs along the leading dim where those are asked for."""
    draws, *rest = shape
    paired = any(isinstance(h, AntitheticDraws) for h in _PYRO_STACK) and _is_particles(shape)
    drawn = (draws + 1) // 2 if paired else draws
    eps = torch.randn(drawn, *rest, dtype=like.dtype, device=like.device)
    return torch.stack((eps, -eps), 1).flatten(0, 1)[:draws] if paired else eps


def _is_particles(shape: list[int]) -> bool:
    """Whether the leading dim of a site's noise is that of the plate of particles."""
    # That plate is the outermost; units and latent dims come after the plates' dims.
    return any(
        f.name in PARTICLE_PLATES and f.size == shape[0] and len(shape) >= 2 - f.dim
        for f in get_plates()
    )


def data_depth() -> int:
    """Number of batch dims that the active data plates span.

    Example:
        >>> with pyro.plate("data", 5, dim=-2):
        ...     data_depth()
        2
    """
    plates = (f for f in get_plates() if f.dim is not None and f.name not in PARTICLE_PLATES)
    return max((-f.dim for f in plates), default=0)


def position_dims(h: Tensor, hint: int | None) -> int:
    """Number of dims of ``h`` between the active plates and its features.

    A layer's input has shape (*plates, *positions, features). Pyro aligns batch dims with plates
    from the right, so the positions must become event dims of the layer's site; how many there
    are follows from the active plates. Under a plate of particles the input may or may not
    carry the particle dim. Sizes tell which; where they cannot (as many particles as rows, say),
    ``hint``, the number seen outside particle plates, decides.

    Arguments:
        h: the layer's input.
        hint: the number of position dims if it is known, else None.

    Raises:
        ValueError: if the input does not fit the plates, or sizes and hint leave two readings.
    """
    plates = [f for f in get_plates() if f.dim is not None]
    sizes = {f.dim: f.size for f in plates}
    depth = data_depth()
    full_depth = max((-f.dim for f in plates), default=0)
    leading = h.dim() - 1
    fewest, most = min(leading, depth), min(leading, full_depth)
    if fewest == most:
        return leading - fewest

    def fits(plated: int, singletons: bool) -> bool:
        return all(
            size == sizes.get(i - plated, 1) or (singletons and size == 1)
            for i, size in enumerate(h.shape[:plated])
        )

    for singletons in (False, True):
        found = [leading - p for p in range(fewest, most + 1) if fits(p, singletons)]
        if hint in found:
            return hint
        if len(found) == 1:
            return found[0]
        if found:
            break
    what = "fits in more than one way" if found else "does not fit"
    raise ValueError(
        f"input of shape {tuple(h.shape)} {what} the active plates "
        f"{ {f.name: f.size for f in plates} }; "
        "pass position_dims=, the number of dims between the plates and the features"
    )
