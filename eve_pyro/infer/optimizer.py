"""Adam with a learning rate of its own for parameters named by patterns."""

import fnmatch
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from eve_pyro.infer.schedule import Schedule


def make_optimizer(
    parameters: Mapping[str, nn.Parameter],
    learning_rate: float,
    multipliers: Mapping[str, float],
    weight_decay: float,
) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization"), fused where
    torch can.

    Arguments:
        parameters: by name.
        learning_rate: of parameters that no pattern matches.
        multipliers: factors on it by ``fnmatch`` pattern; those of all matching patterns multiply.
        weight_decay: of parameters with two or more dims; biases and scales do not decay.

    Raises:
        ValueError: if there are no parameters or a pattern matches none.

    Example:
        >>> net = nn.Linear(3, 1)
        >>> adam = make_optimizer(dict(net.named_parameters()), 0.1, {"b*": 10.0}, 0.0)
        >>> [group["lr"] for group in adam.param_groups]
        [0.1, 1.0]
    """
    if not parameters:
        raise ValueError("the model and the guide have no parameters to train")
    for pattern in multipliers:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in parameters):
            raise ValueError(
                f"lr_multipliers: {pattern!r} matches none of the parameters {list(parameters)}"
            )
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in parameters.items():
        factors = (f for pattern, f in multipliers.items() if fnmatch.fnmatchcase(name, pattern))
        lr = learning_rate * math.prod(factors)
        decay = weight_decay if parameter.dim() > 1 else 0.0
        new: dict[str, Any] = {"params": [], "lr": lr, "full_lr": lr, "weight_decay": decay}
        groups.setdefault((lr, decay), new)["params"].append(parameter)
    try:
        return torch.optim.AdamW(list(groups.values()), fused=True)
    except RuntimeError:  # no fused kernel for this device or dtype
        return torch.optim.AdamW(list(groups.values()))


def scale_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set every learning rate to its full value times ``factor``."""
    for group in optimizer.param_groups:
        group["lr"] = factor * group["full_lr"]


def cosine_decay(steps: int) -> Schedule:
    """From 1 to 0 in ``steps`` steps along half a cosine (Loshchilov and Hutter 2017, "SGDR").

    Example:
        >>> [round(cosine_decay(4)(step), 3) for step in (0, 1, 2, 4)]
        [1.0, 0.854, 0.5, 0.0]
    """
    return lambda step: 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
