"""The models of the study as plain values: one Transformer, and what stands in its blocks."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from pyro.infer import TraceMeanField_ELBO
from torch import nn

from eve_pyro._checks import check_choice, check_int, check_real
from eve_pyro.infer import MCNLL_ELBO
from eve_pyro.infer.schedule import Schedule, constant, linear_warmup
from eve_pyro.nn import (
    EVEFeedForward,
    FreeBits,
    LanguageModel,
    LearnedNormal,
    TransformerConfig,
    TransformerLM,
)

# sigma stays above exp(-7) where no floor is asked for, as in an EVEModule.
LOG_SIGMA_BOUNDS = (-7.0, 2.0)


@dataclass(frozen=True)
class Shape:
    """What all models of a setting have in common.

    Arguments:
        d_model, num_layers, num_heads, context: of :class:`~eve_pyro.nn.TransformerConfig`.

    Raises:
        ValueError: for numbers below 1, or a d_model that heads do not divide by an even number.

    Example:
        >>> Shape(d_model=100, num_heads=3)
        Traceback (most recent call last):
        ...
        ValueError: d_model must be num_heads times an even number, got d_model=100, num_heads=3
    """

    d_model: int = 64
    num_layers: int = 2
    num_heads: int = 4
    context: int = 64

    def __post_init__(self) -> None:
        self.transformer(1)

    def transformer(self, vocab_size: int, **options: Any) -> TransformerConfig:
        """The configuration of a Transformer of this shape."""
        return TransformerConfig(
            vocab_size,
            d_model=self.d_model,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            context=self.context,
            **options,
        )


@dataclass(frozen=True)
class BlockConfig:
    """The feed-forward blocks of a model, and the objective that it is trained with.

    Arguments:
        kind: ``"dense"`` (gelu units), ``"glu"`` or ``"eve"``.
        width: units per d_model. Default 4.
        dropout: probability of a dropped element, by masks that are sites of the model: a
            prediction with draws is MC-dropout, one at the means ordinary dropout. Default 0.
        form: of :class:`~eve_pyro.nn.EVEFeedForward`.
        beta: weight of the KL; one number, or one per layer.
        sigma_init: sigma at initialisation, where the floor is not above it.
        sigma_floor: least sigma, one number or one per layer; 0 (default) for that of an EVE
            layer.
        free_nats: KL per unit that costs nothing, see :class:`~eve_pyro.nn.FreeBits`. Default 0.
        warm_up: share of the steps over which beta rises from 0. Default 0.
        balanced: whether betas are shared out anew after every epoch, by the layers' KLs
            (:meth:`~eve_pyro.infer.schedule.BetaSchedule.balance`). Default False.
        learned_prior: whether units have a :class:`~eve_pyro.nn.LearnedNormal` as prior, in
            place of N(0, 1). Default False.
        shared_noise: whether positions share a draw's noise, of EVEFeedForward. Default False.
        particles: S of the objective. Default 1.
        objective: ``"elbo"`` (default) or ``"mc"``, :class:`~eve_pyro.infer.MCNLL_ELBO`.
        elbo_weight: of MCNLL_ELBO.

    Raises:
        ValueError: for a value out of range.

    Example:
        >>> BlockConfig("eve", beta=(1e-3, 0.0, 1e-3)).per_layer("beta", 2)
        Traceback (most recent call last):
        ...
        ValueError: beta must be one number, or one for each of 2 layers, got 3
    """

    kind: Literal["dense", "glu", "eve"] = "dense"
    width: float = 4.0
    dropout: float = 0.0
    form: str = "gate"
    beta: float | tuple[float, ...] = 1e-3
    sigma_init: float = 0.3
    sigma_floor: float | tuple[float, ...] = 0.0
    free_nats: float = 0.0
    warm_up: float = 0.0
    balanced: bool = False
    learned_prior: bool = False
    shared_noise: bool = False
    particles: int = 1
    objective: Literal["elbo", "mc"] = "elbo"
    elbo_weight: float = 0.0

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ("dense", "glu", "eve"))
        check_real("width", self.width, 0.0, exclusive=True)
        for name in ("beta", "sigma_floor"):
            for value in self.per_layer(name, None):
                check_real(name, value, 0.0)
        check_real("free_nats", self.free_nats, 0.0)
        check_real("warm_up", self.warm_up, 0.0, 1.0)
        check_int("particles", self.particles)
        check_choice("objective", self.objective, ("elbo", "mc"))

    @property
    def draws(self) -> bool:
        """Whether a pass of the model draws anything."""
        return self.kind == "eve" or self.dropout > 0

    def per_layer(self, name: str, num_layers: int | None) -> tuple[float, ...]:
        """``beta`` or ``sigma_floor`` of every layer; those that are given, without a number."""
        values: float | tuple[float, ...] = getattr(self, name)
        if not isinstance(values, tuple):
            return (values,) * (num_layers or 1)
        if num_layers is not None and len(values) != num_layers:
            raise ValueError(
                f"{name} must be one number, or one for each of {num_layers} layers, "
                f"got {len(values)}"
            )
        return values

    def model(self, shape: Shape, vocab_size: int) -> LanguageModel:
        """The model, its weights drawn from torch's global generator."""
        d_ff = max(1, round(self.width * shape.d_model))
        kind: Literal["dense", "glu"] = "glu" if self.kind == "glu" else "dense"
        config = shape.transformer(
            vocab_size,
            d_ff=d_ff,
            feed_forward=kind,
            dropout=self.dropout,
            mc_dropout=self.dropout > 0,
        )
        if self.kind != "eve":
            return LanguageModel(TransformerLM(config))
        betas = self.per_layer("beta", shape.num_layers)
        floors = self.per_layer("sigma_floor", shape.num_layers)

        def block(layer: int) -> nn.Module:
            lower, upper = LOG_SIGMA_BOUNDS
            if floors[layer]:
                lower = math.log(floors[layer])
            return EVEFeedForward(
                shape.d_model,
                d_ff,
                form=self.form,
                dropout=self.dropout,
                mc_dropout=self.dropout > 0,
                beta=betas[layer],
                # Away from the bound, however little.
                sigma_init=max(self.sigma_init, 1.01 * floors[layer]),
                log_sigma_bounds=(lower, upper),
                shared_noise=self.shared_noise,
                prior=LearnedNormal(d_ff) if self.learned_prior else None,
                penalties=[FreeBits(self.free_nats)] if self.free_nats else (),
            )

        return LanguageModel(TransformerLM(config, feed_forward=block))

    def elbo(self) -> Any:
        """A new objective."""
        if self.objective == "mc":
            return MCNLL_ELBO(self.particles, elbo_weight=self.elbo_weight, max_plate_nesting=2)
        many = self.particles > 1
        return TraceMeanField_ELBO(self.particles, vectorize_particles=many, max_plate_nesting=2)

    def beta_schedule(self, steps: int) -> Schedule:
        """Factor on every beta as a function of the step."""
        return linear_warmup(max(1, round(self.warm_up * steps))) if self.warm_up else constant()
