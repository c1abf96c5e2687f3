"""Several processes that train one model: what ``torchrun`` started, or this process alone."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

# The first process scores and measures time while the others wait.
_PATIENCE = timedelta(hours=12)


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together.

    Every process takes its share of each batch, and gradients are averaged: data parallel, as
    ``DistributedDataParallel``, which would not let a compiled objective see the modules.

    Arguments:
        rank: number of this process.
        size: number of processes.
        device: of this process.

    Example:
        >>> alone = Ranks(0, 1, torch.device("cpu"))
        >>> alone.share(torch.arange(4)), alone.first
        (tensor([0, 1, 2, 3]), True)
    """

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process reports."""
        return self.rank == 0

    def share(self, batch: Tensor) -> Tensor:
        """This process's rows of a batch.

        Raises:
            ValueError: for a batch that processes cannot share equally.
        """
        if len(batch) % self.size:
            raise ValueError(
                f"batch_size must be a multiple of the {self.size} processes, got {len(batch)}"
            )
        return batch[self.rank :: self.size]

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by their means over processes."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)
                tensor.div_(self.size)

    def tell(self, value: Any) -> Any:
        """What the first process has, in all of them."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def gradients(self, model: nn.Module) -> list[Tensor]:
        """The gradients there are, in one order in all processes."""
        return [p.grad for p in model.parameters() if p.grad is not None]


@contextmanager
def ranks() -> Iterator[Ranks]:
    """The processes that ``torchrun`` started, joined for the first time if need be.

    Without ``torchrun`` this one process, on the GPU if there is one.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    cuda = torch.cuda.is_available()
    if size == 1:
        yield Ranks(0, 1, torch.device("cuda" if cuda else "cpu"))
        return
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if not dist.is_initialized():  # one task follows the other in the same processes
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=_PATIENCE)
    yield Ranks(rank, size, device)
