"""The latent of a layer: its distribution, and how its dims line up with Pyro's plates."""

from typing import Any

import pyro.distributions as dist
import torch
from pyro.poutine.runtime import get_plates
from torch import Tensor

# Plates that repeat the whole program (ELBO particles, predictive draws). Unlike data plates they
# need not be present in a layer's input: the first layer sees plain data, later ones see draws.
PARTICLE_PLATES = frozenset({"num_particles_vectorized", "_num_predictive_samples"})


class LatentNormal(dist.Normal):
    """Normal over (..., units, latent) that draws its noise with units contiguous in memory.

    The latent dim is short (often 1) and the unit dim long, so a layer's tensors are views of
    (..., latent, units) memory: sums over the latent dim then vectorize. Noise in the same layout
    keeps every elementwise operation a single contiguous sweep.

    Arguments:
        loc: mean, of shape (..., units, latent).
        scale: standard deviation, of the same or a broadcastable shape.

    Example:
        >>> q = LatentNormal(torch.zeros(5, 2, 3).mT, torch.ones(5, 2, 3).mT)
        >>> q.rsample().shape
        torch.Size([5, 3, 2])
        >>> q.rsample().mT.is_contiguous()
        True
    """

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        *batch, units, latent = self._extended_shape(torch.Size(sample_shape))
        eps = torch.randn(*batch, latent, units, dtype=self.loc.dtype, device=self.loc.device).mT
        return torch.addcmul(self.loc, eps, self.scale)


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
    depth = max((-f.dim for f in plates if f.name not in PARTICLE_PLATES), default=0)
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
