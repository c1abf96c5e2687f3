"""torch's global random state: seeded for a while, read and put back."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Context with torch's global generators seeded, and left as they were afterwards.

    Example:
        >>> with seeded(1):
        ...     a = torch.randn(3)
        >>> with seeded(1):
        ...     b = torch.randn(3)
        >>> torch.equal(a, b)
        True
    """
    # Touching a GPU that nobody uses would start it up.
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield


def random_state() -> dict[str, Any]:
    """The states of torch's global generators: the CPU's, and the GPUs' if they are in use."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: dict[str, Any]) -> None:
    """Put back a :func:`random_state`.

    Example:
        >>> state = random_state()
        >>> a = torch.randn(3)
        >>> set_random_state(state)
        >>> torch.equal(a, torch.randn(3))
        True
    """
    torch.set_rng_state(state["cpu"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
