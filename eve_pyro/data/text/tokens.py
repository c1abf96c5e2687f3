"""A row of token ids, and the tokenizer that they belong to."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eve_pyro._checks import check_int
from eve_pyro.data.table import DataError
from eve_pyro.data.text.tokenizer import Tokenizer

_BLOCK = 1 << 20  # ids that are checked at once


@dataclass(frozen=True, eq=False, repr=False)
class Tokens:
    """A row of token ids, with the tokenizer that they belong to.

    Arguments:
        ids: integers of shape (tokens,) in [0, vocab_size), in memory or mapped from a file.
        vocab_size: number of ids that there are.
        fingerprint: that of the tokenizer; empty if it is not known.
        num_bytes: length of the text in UTF-8; ``None`` if it is not known.

    Raises:
        DataError: if ``ids`` are not as above.

    >>> Tokens(np.array([3, 1, 2]), vocab_size=4)
    Tokens(3 ids, vocab_size=4)
    >>> Tokens(np.array([3, 1, 4]), vocab_size=4)
    Traceback (most recent call last):
    ...
    eve_pyro.data.table.DataError: ids must be integers in [0, 4), got 4 at position 2
    """

    ids: NDArray[np.integer[Any]]
    vocab_size: int
    fingerprint: str = ""
    num_bytes: int | None = None

    def __post_init__(self) -> None:
        check_int("vocab_size", self.vocab_size)
        ids = as_ids("ids", self.ids)
        object.__setattr__(self, "ids", ids)
        for start in range(0, len(ids), _BLOCK):  # in blocks, for a mapped file may be long
            block = ids[start : start + _BLOCK]
            wrong = np.flatnonzero((block < 0) | (block >= self.vocab_size))
            if wrong.size:
                raise DataError(
                    f"ids must be integers in [0, {self.vocab_size}), "
                    f"got {block[wrong[0]]} at position {start + wrong[0]}"
                )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def bytes_per_token(self) -> float:
        """Bytes of text per token, the end-of-text tokens counted as tokens.

        A loss of L nats per token is L / (ln 2 * bytes_per_token) bits per byte, a number that
        compares between tokenizers.

        Raises:
            DataError: if ``num_bytes`` is not known, or there are no tokens.
        """
        if self.num_bytes is None or not len(self):
            raise DataError(
                "bytes_per_token must come from num_bytes and at least 1 token, "
                f"got num_bytes {self.num_bytes} and {len(self)} tokens"
            )
        return self.num_bytes / len(self)

    def bits_per_byte(self, nats_per_token: float) -> float:
        """A loss in nats per token, as bits per byte of text.

        >>> Tokens(np.array([3, 1]), vocab_size=4, num_bytes=4).bits_per_byte(math.log(4.0))
        1.0
        """
        return nats_per_token / (math.log(2.0) * self.bytes_per_token)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise a ``DataError`` unless these tokens are that tokenizer's."""
        if tokenizer.fingerprint != self.fingerprint:
            raise DataError(
                f"tokenizer must be that of these tokens ({self.fingerprint[:12] or 'unknown'}), "
                f"got another ({tokenizer.fingerprint[:12]})"
            )

    def __repr__(self) -> str:
        return f"Tokens({len(self)} ids, vocab_size={self.vocab_size})"


def as_ids(name: str, ids: ArrayLike) -> NDArray[np.integer[Any]]:
    """Return ``ids`` as integers of shape (tokens,), or raise a ``DataError``.

    >>> as_ids("tokens", [3, 1])
    array([3, 1])
    """
    array = np.asanyarray(ids)  # a mapped file stays one
    if array.shape == (0,):
        array = array.astype(np.int64)  # of an empty list numpy makes floats
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise DataError(
            f"{name} must be integers of shape (tokens,), "
            f"got shape {array.shape} of {array.dtype.name}"
        )
    return array
