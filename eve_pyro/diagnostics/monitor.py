"""Monitor: the layers' statistics during training."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from eve_pyro._checks import check_int
from eve_pyro.diagnostics.posterior import Band, eve_layers
from eve_pyro.diagnostics.statistics import posterior_statistics
from eve_pyro.diagnostics.summary import LAYER_COLUMNS, Thresholds, layer_table

if TYPE_CHECKING:
    import pandas as pd


class Monitor:
    """Records the table of layers on a fixed batch, every so many steps.

    Call it with the step's number in a training loop, or hand it over as a callback. Every
    record runs on the same rows with the same noise, so that records differ by training alone;
    the random numbers of training are not touched, nor are modes and gradients.

    As a callback it sees steps from 1 on; call :meth:`record` with 0 for the untrained state.

    Arguments:
        model, guide, probe: the arguments ``model``, ``guide`` and ``data`` of
            :func:`posterior_statistics`. Some hundred rows tell enough.
        every: steps between two records. Default 100.
        thresholds: of the flags. Default ``Thresholds()``.
        band, at, seed, model_kwargs: of :func:`posterior_statistics`, seed 0 by default.

    Raises:
        ValueError: for ``every`` below 1 or a model without EVE layers; when called, as
            :func:`posterior_statistics`.

    Example:
        >>> from eve_pyro import EVEModule
        >>> net = nn.Sequential(EVEModule(3, 4), EVEModule(4, 6))
        >>> monitor = Monitor(net, None, torch.randn(50, 3), every=10)
        >>> for step in range(30):
        ...     monitor(step)  # after a step of training
        >>> monitor.frame[["step", "layer", "active_fraction"]].head(3)
           step layer  active_fraction
        0     0     0              1.0
        1     0     1              1.0
        2    10     0              1.0
    """

    def __init__(
        self,
        model: nn.Module,
        guide: Any,
        *probe: Any,
        every: int = 100,
        thresholds: Thresholds | None = None,
        band: Band = (-1.0, 1.0),
        at: str = "draw",
        seed: int = 0,
        model_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        eve_layers(model)
        self.model, self.guide, self.probe = model, guide, probe
        self.every = check_int("every", every)
        self.thresholds = thresholds
        self.options: dict[str, Any] = {
            "band": band,
            "at": at,
            "seed": seed,
            "model_kwargs": model_kwargs,
        }
        self._tables: list[pd.DataFrame] = []

    def __call__(self, step: int) -> None:
        """Record if ``step`` is a multiple of ``every``."""
        if step % self.every == 0:
            self.record(step)

    def record(self, step: int) -> None:
        """Record now, under the number ``step``."""
        stats = posterior_statistics(
            self.model, self.guide, *self.probe, keep="units", **self.options
        )
        table = layer_table(stats, self.thresholds).reset_index()
        table.insert(0, "step", step)
        self._tables.append(table)

    @property
    def frame(self) -> "pd.DataFrame":
        """All records: one row per step and layer, columns as in :func:`layer_table`."""
        import pandas as pd

        if not self._tables:
            return pd.DataFrame(columns=["step", "layer", *LAYER_COLUMNS])
        return pd.concat(self._tables, ignore_index=True)
