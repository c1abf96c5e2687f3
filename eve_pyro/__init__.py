"""eve_pyro: distributional neurons for Pyro.

Public names are loaded on first use, so ``import eve_pyro`` stays light and the parts that do
not need torch (the ArviZ conversion, say) can be imported without it.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0.dev0"

_EXPORTS = {
    "EVEGuide": "eve_pyro.infer",
    "EVEModule": "eve_pyro.nn",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'eve_pyro' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
