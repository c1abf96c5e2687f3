"""Checks of arguments, worded alike everywhere: the name, what was given, what is accepted."""

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any, TypeVar

T = TypeVar("T")


def check_int(name: str, value: Any, minimum: int = 1) -> int:
    """Return ``value`` as an int, or raise a ``ValueError`` that names ``name``.

    >>> check_int("latent_dim", 2)
    2
    >>> check_int("latent_dim", 0)
    Traceback (most recent call last):
    ...
    ValueError: latent_dim must be an integer >= 1, got 0
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise ValueError(f"{name} must be an integer >= {minimum}, got {value!r}")
    return int(value)


def check_real(
    name: str,
    value: Any,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    *,
    exclusive: bool = False,
) -> float:
    """Return ``value`` as a finite float in [minimum, maximum] (open if ``exclusive``).

    >>> check_real("beta", 0.5, 0.0)
    0.5
    >>> check_real("beta", -1.0, 0.0)
    Traceback (most recent call last):
    ...
    ValueError: beta must be a finite number in [0, inf), got -1.0
    """
    ok = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if ok:
        ok = minimum < value < maximum if exclusive else minimum <= value <= maximum
    if not ok:
        left = "(" if exclusive or minimum == -math.inf else "["
        right = ")" if exclusive or maximum == math.inf else "]"
        accepted = f"{left}{minimum:g}, {maximum:g}{right}"
        raise ValueError(f"{name} must be a finite number in {accepted}, got {value!r}")
    return float(value)


def check_choice(name: str, value: T, choices: Collection[T]) -> T:
    """Return ``value`` if it is one of ``choices``.

    >>> check_choice("sigma", "unit", ("input", "unit", "layer"))
    'unit'
    >>> check_choice("sigma", "row", ("input", "unit", "layer"))
    Traceback (most recent call last):
    ...
    ValueError: sigma must be one of 'input', 'unit', 'layer', got 'row'
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value
