"""Windows of a token stream: what a language model reads, and what it predicts."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.data import Dataset

from eve_pyro._checks import check_int
from eve_pyro.data.table import DataError
from eve_pyro.data.text.tokens import Tokens, as_ids


class TokenWindows(Dataset[tuple[Tensor, Tensor]]):
    """Windows of context + 1 tokens, as inputs and targets of shape (context,), int64.

    Window i begins at token i * stride; its targets are its inputs moved on by one token. With
    stride = context every token but the first is a target once, and windows share one token.

    Arguments:
        tokens: ``Tokens``, or integers of shape (tokens,).
        context: number of inputs of a window.
        stride: tokens from the start of a window to the next one's; default: ``context``. With
            less, windows overlap and a token is a target several times, with different contexts.
        keep_tail: whether the tokens that are left after the last whole stride get one more
            window. It ends with the last token and overlaps the one before; default: they are
            dropped.

    Raises:
        ValueError: if ``context`` or ``stride`` is not an integer >= 1.
        DataError: if there are fewer than context + 1 tokens, or they are no integers.

    >>> windows = TokenWindows(np.arange(10), context=4)
    >>> len(windows), windows[1]
    (2, (tensor([4, 5, 6, 7]), tensor([5, 6, 7, 8])))
    >>> TokenWindows(np.arange(10), context=4, keep_tail=True)[-1]
    (tensor([5, 6, 7, 8]), tensor([6, 7, 8, 9]))
    >>> TokenWindows(np.arange(4), context=4)
    Traceback (most recent call last):
    ...
    eve_pyro.data.table.DataError: tokens must be at least context + 1 = 5 ids, got 4
    """

    def __init__(
        self,
        tokens: Tokens | ArrayLike,
        context: int,
        stride: int | None = None,
        *,
        keep_tail: bool = False,
    ) -> None:
        self.context = check_int("context", context)
        self.stride = self.context if stride is None else check_int("stride", stride)
        self._ids = tokens.ids if isinstance(tokens, Tokens) else as_ids("tokens", tokens)
        spare = len(self._ids) - (self.context + 1)
        if spare < 0:
            raise DataError(
                f"tokens must be at least context + 1 = {self.context + 1} ids, "
                f"got {len(self._ids)}"
            )
        self._last_start = spare
        self._tail = bool(keep_tail) and spare % self.stride > 0
        self._length = spare // self.stride + 1 + self._tail

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be in [{-len(self)}, {len(self)}), got {index}")
        inputs, targets = self._gather(np.array([index % len(self)]))
        return inputs[0], targets[0]

    @property
    def passes_per_token(self) -> float:
        """How often a token is a target in an epoch: context / stride.

        The first and the last tokens of the stream are targets less often, those of a kept tail
        up to once more.
        """
        return self.context / self.stride

    def batches(
        self, batch_size: int, *, seed: int, epoch: int = 0, shuffle: bool = True
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """All windows in batches: inputs and targets of shape (batch, context), int64.

        Arguments:
            batch_size: windows of a batch; the last batch may have fewer.
            seed: integer >= 0; the same seed and epoch give the same order.
            epoch: integer >= 0; each epoch has an order of its own, so that a run can go on with
                an epoch without the ones before.
            shuffle: whether to shuffle; otherwise the windows come in the order of the text.

        >>> windows = TokenWindows(np.arange(9), context=2)
        >>> [inputs.tolist() for inputs, _ in windows.batches(3, seed=0)]
        [[[4, 5], [0, 1], [2, 3]], [[6, 7]]]
        """
        check_int("batch_size", batch_size)
        check_int("seed", seed, 0)
        check_int("epoch", epoch, 0)
        return self._batches(batch_size, seed, epoch, shuffle)

    def _batches(
        self, batch_size: int, seed: int, epoch: int, shuffle: bool
    ) -> Iterator[tuple[Tensor, Tensor]]:
        order = np.arange(len(self))
        if shuffle:
            order = np.random.default_rng([seed, epoch]).permutation(order)
        for start in range(0, len(order), batch_size):
            yield self._gather(order[start : start + batch_size])

    def _gather(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        # Only a kept tail would begin behind the last start.
        starts = np.minimum(indices * self.stride, self._last_start)
        block = np.stack([self._ids[start : start + self.context + 1] for start in starts])
        windows = torch.from_numpy(block.astype(np.int64))
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def __repr__(self) -> str:
        return f"TokenWindows({len(self)} windows, context={self.context}, stride={self.stride})"
