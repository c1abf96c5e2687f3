"""Drawing parameters anew through a tree of modules."""

from torch import nn


def reset_children(module: nn.Module) -> None:
    """Call ``reset_parameters`` on every part, or where it has none on that part's own parts.

    Example:
        >>> net = nn.Sequential(nn.Sequential(nn.Linear(1, 1)), nn.ReLU())
        >>> before = net[0][0].weight.item()
        >>> reset_children(net)
        >>> net[0][0].weight.item() == before
        False
    """
    for child in module.children():
        reset = getattr(child, "reset_parameters", None)
        if callable(reset):
            reset()
        else:
            reset_children(child)
