"""History: what a training run went through, epoch by epoch."""

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("epoch", "train_loss", "validation", "learning_rate", "beta_factor", "seconds")


@dataclass
class History:
    """The course of one training run.

    Attributes:
        rows: per epoch a tuple of ``epoch`` (from 1), ``train_loss`` (mean over the epoch's
            steps, nats per datum), ``validation`` (the score after the epoch, NaN without one),
            ``learning_rate`` and ``beta_factor`` (at the epoch's first step) and ``seconds``
            (wall clock, validation included).
        best_epoch: the epoch of the lowest validation score; None without validation.
        best_score: that score; None without validation.
        stopped_early: whether patience ran out before the last epoch.
        interrupted: whether Ctrl-C ended the run.

    Example:
        >>> History([(1, 0.9, 0.8, 0.01, 1.0, 0.2)], best_epoch=1, best_score=0.8).frame
           epoch  train_loss  validation  learning_rate  beta_factor  seconds
        0      1         0.9         0.8           0.01          1.0      0.2
    """

    rows: list[tuple] = field(default_factory=list, repr=False)
    best_epoch: int | None = None
    best_score: float | None = None
    stopped_early: bool = False
    interrupted: bool = False

    @property
    def frame(self) -> "pd.DataFrame":
        """The rows as a data frame."""
        import pandas as pd  # half a second that training itself can do without

        return pd.DataFrame(self.rows, columns=list(COLUMNS))

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the rows to a CSV file, without an index column."""
        self.frame.to_csv(path, index=False)
