"""The figures of the page."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure


def learning_curves(course: pd.DataFrame, settings: Sequence[str], models: Sequence[str]) -> Figure:
    """Cross-entropy over epochs, training and validation text, and the gap between them."""
    figure = Figure(figsize=(5 * len(settings), 6), layout="constrained")
    grid = figure.subplots(2, len(settings), squeeze=False, sharex="col")
    for (top, bottom), setting in zip(grid.T, settings, strict=True):
        own = course[course.setting == setting]
        for i, model in enumerate(m for m in models if m in set(own.model)):
            columns = ["train_ce", "valid_ce"]
            mean = own[own.model == model].groupby("epoch")[columns].mean()
            top.plot(mean.index, mean.train_ce, ".--", color=f"C{i}", lw=1, ms=3)
            top.plot(mean.index, mean.valid_ce, ".-", color=f"C{i}", ms=4, label=model)
            bottom.plot(mean.index, mean.valid_ce - mean.train_ce, ".-", color=f"C{i}", ms=4)
        top.set_title(f"{setting}: validation, and training (dashed)", fontsize=9)
        top.set_ylabel("cross-entropy, nats per token")
        bottom.set_ylabel("gap, nats per token")
        bottom.set_xlabel("epoch")
    grid[0, 0].legend(fontsize=7)
    return figure


def shift_curves(shift: pd.DataFrame, models: Sequence[str]) -> Figure:
    """What corrupted tokens in the context do to losses and to what a model says of itself."""
    panels = (
        ("ce", "cross-entropy, nats per token"),
        ("mutual_information", "mutual information, nats"),
        ("entropy", "entropy, nats"),
        ("detect_mutual_information", "corrupted windows told by MI, AUROC"),
    )
    figure = Figure(figsize=(13, 3.2), layout="constrained")
    for ax, (column, label) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for i, model in enumerate(m for m in models if m in set(shift.model)):
            by = shift[shift.model == model].groupby("rate")[column]
            ax.plot(by.mean(), "o-", ms=3, color=f"C{i}", label=model)
            ax.fill_between(by.min().index, by.min(), by.max(), color=f"C{i}", alpha=0.15, lw=0)
        ax.set_xlabel("share of tokens replaced")
        ax.set_ylabel(label)
    ax.legend(fontsize=7)
    return figure


def differences(summary: pd.DataFrame, wide: pd.DataFrame, baseline: str) -> Figure:
    """One point per seed and model, the mean with its interval above them."""
    models = [m for m in wide.columns if m != baseline][::-1]
    figure = Figure(figsize=(7, 0.32 * len(models) + 1.2), layout="constrained")
    ax = figure.subplots()
    for i, model in enumerate(models):
        row = summary.loc[(model, "ce"), :]
        points = (wide[model] - wide[baseline]).dropna()
        ax.plot(points, [i - 0.15] * len(points), ".", color="C0", alpha=0.5)
        ax.plot([row["low"], row["high"]], [i + 0.15] * 2, color="C1", lw=2)
        ax.plot(row["difference"], i + 0.15, "o", color="C1", ms=4)
    ax.axvline(0, color="0.6", lw=1)
    ax.set_xlabel("difference in cross-entropy, nats per token")
    ax.set_yticks(range(len(models)), models, fontsize=8)
    return figure
