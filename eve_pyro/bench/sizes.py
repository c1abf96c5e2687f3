"""Sizes: how large the work is, and how long it is watched, in each mode."""

from dataclasses import dataclass, replace
from typing import Any, Literal

Mode = Literal["full", "quick", "smoke"]
Backend = Literal["inductor", "eager"]


@dataclass(frozen=True)
class Work:
    """A network and its data: what one step works on.

    Arguments:
        layers, units: hidden layers and units of each.
        batch: rows.
        latent_dim: k, latent dims per unit.
        particles: S, posterior draws per row.
        residual: whether layers are residual.
        in_features: columns of the data.

    Example:
        >>> str(Work(layers=2, units=16, batch=32))
        '2 x 16, batch 32'
    """

    layers: int = 8
    units: int = 128
    batch: int = 256
    latent_dim: int = 1
    particles: int = 1
    residual: bool = False
    in_features: int = 8

    def __str__(self) -> str:
        return f"{self.layers} x {self.units}, batch {self.batch}"

    def but(self, **changes: Any) -> "Work":
        """The same work with some sizes changed."""
        return replace(self, **changes)


@dataclass(frozen=True)
class Sweep:
    """One size that grows while the others stay.

    Arguments:
        axis: field of :class:`Work`.
        values: in increasing order; the base work's own is among them.
        expected: log-log slope of the cost where matrix products dominate it.
    """

    axis: str
    values: tuple[int, ...]
    expected: float


@dataclass(frozen=True)
class Sizes:
    """A mode of the benchmark.

    Arguments:
        work: of the comparisons.
        deep: of the comparison of very deep networks, or None to leave it out.
        latent_dim: k of the comparison with several latent dims.
        particles: S of the comparison of an averaged likelihood.
        draws: S of the predictions.
        rounds: turns of each contestant.
        turn: least seconds of a turn.
        processes: rounds of what needs a process of its own.
        sweeps: what grows.
        sweep_backend: ``"eager"`` sweeps the traced graph, which takes no compile time.
        backend: of compiled contestants.
    """

    work: Work
    deep: Work | None
    latent_dim: int
    particles: int
    draws: int
    rounds: int
    turn: float
    processes: int
    sweeps: tuple[Sweep, ...]
    sweep_backend: Backend
    backend: Backend = "inductor"


def _sweeps(*values: tuple[int, ...]) -> tuple[Sweep, ...]:
    axes = {"batch": 1.0, "units": 2.0, "layers": 1.0, "latent_dim": 1.0, "particles": 1.0}
    return tuple(Sweep(a, v, s) for (a, s), v in zip(axes.items(), values, strict=True))


MODES: dict[Mode, Sizes] = {
    "full": Sizes(
        work=Work(),
        deep=Work(layers=128, batch=64, residual=True),
        latent_dim=4,
        particles=8,
        draws=64,
        rounds=30,
        turn=0.1,
        processes=9,
        sweeps=_sweeps((64, 256, 1024), (64, 128, 256), (4, 8, 16), (1, 2, 4), (1, 2, 4)),
        sweep_backend="inductor",
    ),
    "quick": Sizes(
        work=Work(),
        deep=None,
        latent_dim=4,
        particles=8,
        draws=64,
        rounds=10,
        turn=0.03,
        processes=3,
        sweeps=_sweeps((256, 1024), (128, 256), (4, 8), (1, 4), (1, 4)),
        sweep_backend="eager",
    ),
    # For tests: every line of code, no compiler, no number worth reading.
    "smoke": Sizes(
        work=Work(layers=2, units=4, batch=5, in_features=3),
        deep=Work(layers=3, units=4, batch=5, in_features=3, residual=True),
        latent_dim=2,
        particles=2,
        draws=3,
        rounds=2,
        turn=0.0,
        processes=1,
        sweeps=_sweeps((5, 10), (4, 8), (2, 4), (1, 2), (1, 2)),
        sweep_backend="eager",
        backend="eager",
    ),
}
