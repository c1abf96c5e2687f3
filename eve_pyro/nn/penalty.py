"""Optional terms on a layer's posterior, added to the loss through ``pyro.factor``."""

from pyro.distributions import Distribution
from torch import Tensor, nn
from torch.distributions import kl_divergence

from eve_pyro._checks import check_choice, check_real


class Penalty(nn.Module):
    """Base of the penalties: a module called as ``penalty(posterior, prior, beta)``.

    It returns what one unit adds to the loss, in nats: distributions of batch shape
    (*, units, latent) -> tensor of shape (*, units).

    Example:
        >>> class Small(Penalty):
        ...     def forward(self, posterior, prior, beta):
        ...         return posterior.mean.square().sum(-1)
        >>> import pyro.distributions as dist
        >>> q = dist.Normal(torch.ones(5, 3, 2), 1.0)
        >>> Small()(q, q, torch.tensor(1.0)).shape
        torch.Size([5, 3])
    """

    def forward(self, posterior: Distribution, prior: Distribution, beta: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} must define forward(posterior, prior, beta)")


class FreeBits(Penalty):
    """Leaves the first ``nats`` of every unit's KL free of charge.

    .. math:: \\beta \\, (\\max(KL, \\lambda) - KL)

    Added to the KL term of the ELBO this makes a unit pay beta * max(KL, lambda), which keeps it
    from collapsing onto the prior. Kingma et al. 2016, "Improved Variational Inference with
    Inverse Autoregressive Flow", section C.8; there the maximum is taken after averaging over
    the mini-batch, here per datum, so that data stay conditionally independent.

    Arguments:
        nats: lambda, the free KL per unit, above 0.

    Raises:
        ValueError: if nats is not a positive finite number.

    Example:
        >>> import pyro.distributions as dist
        >>> prior = dist.Normal(torch.zeros(1, 3, 1), 1.0)
        >>> FreeBits(0.5)(prior, prior, torch.tensor(0.1))
        tensor([[0.0500, 0.0500, 0.0500]])
    """

    def __init__(self, nats: float) -> None:
        super().__init__()
        self.nats = check_real("nats", nats, 0.0, exclusive=True)

    def forward(self, posterior: Distribution, prior: Distribution, beta: Tensor) -> Tensor:
        kl = kl_divergence(posterior, prior).sum(-1)
        return beta * (self.nats - kl).clamp(min=0)

    def extra_repr(self) -> str:
        return f"nats={self.nats:g}"


class TargetBand(Penalty):
    """Draws posterior means, or their energy, into the band [lower, upper].

    Quadratic outside the band and zero inside. On ``"mean"`` it is summed over latent dims; on
    ``"energy"`` it acts on the posterior-mean energy (1/d_z) sum_j mu_j^2.

    Arguments:
        lower, upper: the band, lower < upper.
        weight: strength, in nats per squared unit of distance, above 0. Default 1.
        on: ``"mean"`` (default) or ``"energy"``.

    Raises:
        ValueError: if lower >= upper, the weight is not positive, or ``on`` is unknown.

    Example:
        >>> import pyro.distributions as dist
        >>> q = dist.Normal(torch.tensor([[[0.0], [3.0]]]), 1.0)
        >>> TargetBand(-1, 1)(q, q, torch.tensor(1.0))
        tensor([[0., 4.]])
    """

    def __init__(
        self, lower: float, upper: float, *, weight: float = 1.0, on: str = "mean"
    ) -> None:
        super().__init__()
        self.lower, self.upper = check_real("lower", lower), check_real("upper", upper)
        if self.lower >= self.upper:
            raise ValueError(f"lower must be below upper, got lower={lower!r}, upper={upper!r}")
        self.weight = check_real("weight", weight, 0.0, exclusive=True)
        self.on = check_choice("on", on, ("mean", "energy"))

    def forward(self, posterior: Distribution, prior: Distribution, beta: Tensor) -> Tensor:
        value = posterior.mean
        if self.on == "energy":
            value = value.square().mean(-1, keepdim=True)
        outside = value - value.clamp(self.lower, self.upper)
        return self.weight * outside.square().sum(-1)

    def extra_repr(self) -> str:
        return f"lower={self.lower:g}, upper={self.upper:g}, weight={self.weight:g}, on={self.on!r}"
