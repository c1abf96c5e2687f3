"""The tensors that make up a model and its guide, by name."""

from typing import Any

import torch
from torch import Tensor, nn

State = dict[str, Tensor]


def named_state(model: nn.Module, guide: Any = None) -> State:
    """The live parameters and buffers by name: the model's, then the guide's own.

    Names are those of ``model.state_dict()``; the guide's carry the prefix ``guide.``.

    Example:
        >>> list(named_state(nn.Linear(3, 1), guide=nn.Linear(2, 1, bias=False)))
        ['weight', 'bias', 'guide.weight']
    """
    state: State = model.state_dict(keep_vars=True)
    seen = {id(tensor) for tensor in state.values()}
    own = guide.state_dict(prefix="guide.", keep_vars=True) if isinstance(guide, nn.Module) else {}
    for name, tensor in own.items():
        if id(tensor) not in seen:
            if name in state:
                raise ValueError(f"{name!r} names a tensor of the model and one of the guide")
            state[name] = tensor
    return {k: v for k, v in state.items() if isinstance(v, Tensor)}


def named_parameters(model: nn.Module, guide: Any = None) -> dict[str, nn.Parameter]:
    """Those of :func:`named_state` that can be trained.

    Example:
        >>> list(named_parameters(nn.BatchNorm1d(3)))
        ['weight', 'bias']
    """
    state = named_state(model, guide)
    return {k: p for k, p in state.items() if isinstance(p, nn.Parameter) and p.requires_grad}


def clone_state(live: State) -> State:
    """A copy that training does not change."""
    return {name: tensor.detach().clone() for name, tensor in live.items()}


def copy_state(saved: State, live: State) -> None:
    """Copy tensors into the live ones of the same names, which stay the objects they are."""
    with torch.no_grad():
        for name, tensor in saved.items():
            live[name].copy_(tensor)
