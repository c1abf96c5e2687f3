"""Shifts of text data: tokens that were replaced by others."""

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from eve_pyro._checks import check_int, check_real
from eve_pyro.data.table import DataError


def corrupt_tokens(
    tokens: Tensor | ArrayLike, rate: float, vocab_size: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Replace a share of tokens by others, drawn uniformly from the other ids.

    Exactly ``rate`` of all tokens, rounded to a whole number, are replaced, at places drawn
    uniformly without replacement. No token is replaced by itself.

    Arguments:
        tokens: integer ids of any shape in [0, vocab_size); an array does as well.
        rate: the share, in [0, 1].
        vocab_size: number of ids that there are, >= 2.
        seed: integer >= 0; the same seed gives the same places and tokens, on every device.

    Returns:
        The tokens, int64, and a bool mask that is true where one was replaced, both of the shape
        and on the device of ``tokens``, which stay as they are.

    Raises:
        ValueError: if an argument is not as above.

    >>> tokens = torch.zeros(2, 5, dtype=torch.long)
    >>> corrupted, mask = corrupt_tokens(tokens, 0.3, vocab_size=100, seed=0)
    >>> int(mask.sum()), bool((corrupted[mask] != 0).all()), bool((corrupted[~mask] == 0).all())
    (3, True, True)
    """
    share = check_real("rate", rate, 0.0, 1.0)
    check_int("vocab_size", vocab_size, 2)
    check_int("seed", seed, 0)
    # np.array copies: torch warns of arrays that it may not write to, such as mapped files.
    given = tokens if isinstance(tokens, Tensor) else torch.from_numpy(np.array(tokens))
    if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        raise DataError(f"tokens must be integers, got {given.dtype}")
    flat = given.reshape(-1).to(torch.int64, copy=True)
    if flat.numel() and not 0 <= flat.min() <= flat.max() < vocab_size:
        raise DataError(
            f"tokens must be integers in [0, {vocab_size}), "
            f"got {int(flat.min())} to {int(flat.max())}"
        )
    # Drawn on the CPU, whose generator gives the same numbers on every machine.
    generator = torch.Generator().manual_seed(seed)
    count = round(share * flat.numel())
    places = torch.randperm(flat.numel(), generator=generator)[:count].to(flat.device)
    others = torch.randint(vocab_size - 1, (count,), generator=generator).to(flat.device)
    # Ids from the old one on move up by one: uniform over all the others.
    flat[places] = others + (others >= flat[places])
    mask = torch.zeros_like(flat, dtype=torch.bool)
    mask[places] = True
    return flat.view(given.shape), mask.view(given.shape)
