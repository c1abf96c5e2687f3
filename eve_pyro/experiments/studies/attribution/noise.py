"""Data of one input whose noise is known at every point: its laws, its scale, the best scores."""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from eve_pyro._checks import check_choice, check_int

LIMIT = 3.0  # x is uniform on [-LIMIT, LIMIT]


def true_mean(x: Tensor) -> Tensor:
    """f(x) = sin 2x + 0.3 x.

    Example:
        >>> true_mean(torch.zeros(1))
        tensor([0.])
    """
    return torch.sin(2 * x) + 0.3 * x


def true_scale(x: Tensor) -> Tensor:
    """s(x) = 0.05 + 0.2 (1 + sin(1.5 x + 0.4)), the standard deviation of the noise.

    Example:
        >>> s = true_scale(torch.linspace(-3, 3, 601))
        >>> round(s.min().item(), 2), round(s.max().item(), 2)
        (0.05, 0.45)
    """
    return 0.05 + 0.2 * (1 + torch.sin(1.5 * x + 0.4))


class Noise(Protocol):
    """A law of noise e of mean 0 and variance 1; the data's noise is s(x) e."""

    @property
    def formula(self) -> str:
        """The law, in words."""
        ...

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw e, (count,)."""
        ...

    def log_prob(self, e: Tensor) -> Tensor:
        """The log density of e, (*) -> (*)."""
        ...

    def crps(self, e: Tensor) -> Tensor:
        """The continuous ranked probability score of the law itself at e, (*) -> (*)."""
        ...


@dataclass(frozen=True)
class TwoModes:
    """Two equally likely Normals about +m and -m; one standard Normal for m = 0.

    .. math:: e \\sim \\tfrac12 N(-m, 1 - m^2) + \\tfrac12 N(m, 1 - m^2)

    Arguments:
        m: distance of the modes from 0, in [0, 1).

    Example:
        >>> TwoModes(0.95).formula
        'e ~ 1/2 N(-0.95, 0.312²) + 1/2 N(0.95, 0.312²)'
    """

    m: float = 0.0

    @property
    def sd(self) -> float:
        """Standard deviation within a mode: what leaves a variance of 1 in all."""
        return math.sqrt(1 - self.m**2)

    @property
    def formula(self) -> str:
        if self.m == 0:
            return "e ~ N(0, 1)"
        mode = f"{self.m:g}, {self.sd:.3f}²"
        return f"e ~ 1/2 N(-{mode}) + 1/2 N({mode})"

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        sign = 2.0 * torch.randint(2, (count,), generator=generator) - 1
        return self.m * sign + self.sd * torch.randn(count, generator=generator)

    def log_prob(self, e: Tensor) -> Tensor:
        mode = torch.distributions.Normal(0.0, self.sd)
        both = torch.logaddexp(mode.log_prob(e - self.m), mode.log_prob(e + self.m))
        return both - math.log(2)

    def crps(self, e: Tensor) -> Tensor:
        # E|X - e| - E|X - X'| / 2; two modes meet each other half of the time.
        first = (_mean_abs(e - self.m, self.sd) + _mean_abs(e + self.m, self.sd)) / 2
        far = 2 * self.m * torch.ones_like(e)
        sd = math.sqrt(2) * self.sd
        second = (_mean_abs(0 * far, sd) + _mean_abs(far, sd)) / 2
        return first - second / 2


def _mean_abs(loc: Tensor, sd: float) -> Tensor:
    """E|X| of N(loc, sd^2)."""
    normal = torch.distributions.Normal(0.0, 1.0)
    z = loc / sd
    return 2 * sd * normal.log_prob(z).exp() + loc * (2 * normal.cdf(z) - 1)


@dataclass(frozen=True)
class Skewed:
    """A Gamma variable of shape 2, centred and scaled: e = (G - 2) / sqrt 2, of skewness sqrt 2.

    Its density is G exp(-G) sqrt 2 where G = 2 + e sqrt 2 > 0.

    Example:
        >>> Skewed().log_prob(torch.tensor([-2.0, 0.0]))
        tensor([   -inf, -0.9603])
    """

    @property
    def formula(self) -> str:
        return "e = (G - 2) / √2 with G ~ Gamma(2, 1)"

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        # The sum of two exponentials; 1 - u is never 0.
        u = torch.rand(2, count, generator=generator)
        return (-torch.log1p(-u).sum(0) - 2) / math.sqrt(2)

    def log_prob(self, e: Tensor) -> Tensor:
        g = (2 + math.sqrt(2) * e).clamp(min=0)
        return g.log() - g + math.log(2) / 2

    def crps(self, e: Tensor) -> Tensor:
        # Scheuerer and Moeller 2015, "Probabilistic wind speed forecasting on a grid based on
        # ensemble model output statistics", for shape 2 and scale 1: 1 / B(1/2, 2) is 3/4.
        g = 2 + math.sqrt(2) * e
        inside = g.clamp(min=0)
        two = 1 - (1 + inside) * torch.exp(-inside)
        three = two - inside.square() / 2 * torch.exp(-inside)
        return (g * (2 * two - 1) - 2 * (2 * three - 1) - 0.75) / math.sqrt(2)


NOISES: dict[str, Noise] = {
    "gaussian": TwoModes(),
    "bimodal": TwoModes(0.95),
    "skewed": Skewed(),
}


class Part(NamedTuple):
    """Inputs (rows, 1), targets (rows,) and the noise e that is in them, (rows,)."""

    x: Tensor
    y: Tensor
    e: Tensor


class Data(NamedTuple):
    """The parts of one data set."""

    train: Part
    validation: Part
    test: Part


def make_data(noise: str, train: int, validation: int, test: int, seed: int) -> Data:
    """Draw y = f(x) + s(x) e at x ~ U(-3, 3), the parts independently of each other's size.

    Arguments:
        noise: one of :data:`NOISES`.
        train, validation, test: numbers of rows.
        seed: of the data.

    Raises:
        ValueError: for an unknown noise or numbers of rows below 1.

    Example:
        >>> data = make_data("skewed", 5, 3, 4, seed=0)
        >>> data.train.x.shape, data.test.y.shape
        (torch.Size([5, 1]), torch.Size([4]))
    """
    law = NOISES[check_choice("noise", noise, NOISES)]
    parts = []
    sizes = {"train": train, "validation": validation, "test": test}
    for number, (name, rows) in enumerate(sizes.items()):
        check_int(name, rows)
        (state,) = np.random.SeedSequence((seed, number)).generate_state(1)
        generator = torch.Generator().manual_seed(int(state))
        x = LIMIT * (2 * torch.rand(rows, generator=generator) - 1)
        e = law.sample(rows, generator)
        parts.append(Part(x[:, None], true_mean(x) + true_scale(x) * e, e))
    return Data(*parts)


def oracle(noise: str, part: Part) -> dict[str, float]:
    """Scores of the law itself, by the names of :func:`~eve_pyro.metrics.evaluate`.

    No model is better on average over data: ``mse`` of f; ``nll`` of a Gaussian with the true
    mean and scale; ``mc_nll``, minus the true log density; ``crps`` of the true law.

    Raises:
        ValueError: for an unknown noise.

    Example:
        >>> scores = oracle("skewed", make_data("skewed", 1, 1, 2000, seed=0).test)
        >>> scores["mc_nll"] < scores["nll"]
        True
    """
    law = NOISES[check_choice("noise", noise, NOISES)]
    x, _, e = part
    s = true_scale(x[:, 0])
    gaussian = torch.distributions.Normal(0.0, 1.0)
    return {
        "mse": (s * e).square().mean().item(),
        "nll": (s.log() - gaussian.log_prob(e)).mean().item(),
        "mc_nll": (s.log() - law.log_prob(e)).mean().item(),
        "crps": (s * law.crps(e)).mean().item(),
    }
