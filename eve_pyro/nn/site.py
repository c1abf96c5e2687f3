"""Layers with a ``pyro.sample`` site of their own: its name, and its dims under plates."""

from itertools import count

from torch import Tensor, nn

from eve_pyro._checks import check_int
from eve_pyro.nn.latent import data_depth, position_dims

_unnamed = count()


class PositionDims:
    """Counts the dims of a layer's input between the active plates and the features.

    Calls :func:`~eve_pyro.nn.latent.position_dims` with the last count under data plates of the
    same depth as its hint.

    Arguments:
        fixed: the count where it is known, else None (default).

    Raises:
        ValueError: if fixed is negative or no integer, and when called on an input that does
            not fit the plates.

    Example:
        >>> count_positions = PositionDims()
        >>> with pyro.plate("data", 5):
        ...     count_positions(torch.randn(5, 3)), count_positions(torch.randn(5, 7, 3))
        (0, 1)
    """

    def __init__(self, fixed: int | None = None) -> None:
        self.fixed = fixed if fixed is None else check_int("position_dims", fixed, 0)
        # By the depth of the data plates: without plates every dim is a position.
        self._seen: dict[int, int] = {}

    def __call__(self, h: Tensor) -> int:
        if self.fixed is not None:
            return self.fixed
        depth = data_depth()
        self._seen[depth] = position_dims(h, self._seen.get(depth))
        return self._seen[depth]


class SiteModule(nn.Module):
    """Base of layers that draw from one ``pyro.sample`` site, called ``self.site``.

    The site is named by the layer's path in the model once :func:`name_sites` (which an
    ``EVEGuide`` calls) has seen the model; before that it has a name of its own. All dims of the
    site that plates do not cover must be event dims; ``self.position_dims(h)`` counts those
    before the features.

    Arguments:
        position_dims: number of input dims between plates and features, inferred from the
            active plates if None (default).
        name: fixed site name; the module path if None (default).

    Raises:
        ValueError: if position_dims is negative or no integer.
        TypeError: if name is no string.

    Example:
        >>> class Noise(SiteModule):
        ...     def forward(self, h):
        ...         prior = dist.Normal(torch.zeros_like(h), 1.0)
        ...         return h + pyro.sample(self.site, prior.to_event(self.position_dims(h) + 1))
        >>> net = nn.Sequential(nn.Linear(3, 4), Noise())
        >>> name_sites(net)
        >>> net[1].site
        '1'
    """

    def __init__(self, *, position_dims: int | None = None, name: str | None = None) -> None:
        super().__init__()
        self.position_dims = PositionDims(position_dims)
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name must be a string, got {name!r}")
        self.fixed_name = name
        self.site = name or f"eve_{next(_unnamed)}"


def name_sites(model: nn.Module) -> None:
    """Name every site by its layer's path in ``model``; ``EVEGuide(model)`` does this.

    Layers built with ``name=`` keep that name. A model that is itself a layer is named "eve".

    Raises:
        ValueError: if two layers would share a name.

    Example:
        >>> from eve_pyro import EVEModule
        >>> net = nn.Sequential(EVEModule(3, 4), nn.Linear(4, 1))
        >>> name_sites(net)
        >>> net[0].site
        '0'
    """
    names: dict[str, str] = {}
    for path, layer in model.named_modules():
        if not isinstance(layer, SiteModule):
            continue
        name = layer.fixed_name or path or "eve"
        if name in names:
            raise ValueError(
                f"the layers at {names[name]!r} and {path!r} share the site name {name!r}; "
                "give one of them another name="
            )
        names[name] = path
        layer.site = name
