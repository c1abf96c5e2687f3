"""The figures of the page."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from eve_pyro.experiments.studies.energy.tasks import DESIGN, RANDOM


def course(course: pd.DataFrame) -> Figure:
    """NLL over epochs, training and validation rows."""
    settings = [s for s in (RANDOM, DESIGN) if s in set(course.setting)]
    settings = settings or list(dict.fromkeys(course.setting))[:1]
    figure = Figure(figsize=(5 * len(settings), 3.6), layout="constrained")
    axes = figure.subplots(1, len(settings), squeeze=False)[0]
    for ax, setting in zip(axes, settings, strict=True):
        own = course[course.setting == setting]
        for i, model in enumerate(dict.fromkeys(own.model)):
            mean = own[own.model == model].groupby("epoch")[["train_nll", "validation_nll"]].mean()
            ax.plot(mean.index, mean.train_nll, "--", color=f"C{i}", lw=1)
            ax.plot(mean.index, mean.validation_nll, color=f"C{i}", label=model)
        ax.set_title(f"{setting}: validation, and training (dashed)", fontsize=9)
        ax.set_xlabel("epoch")
        ax.set_ylabel("NLL, nats")
        ax.legend(fontsize=8)
    return figure


def depth(layers: pd.DataFrame, settings: Sequence[str]) -> Figure:
    """KL, sigma and share of the spread over depth."""
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    shares = layers.assign(share=100 * layers["alone"] / layers["total"])
    panels = (
        ("kl", "KL per unit, nats"),
        ("sigma", "sigma"),
        ("share", "spread of this layer alone, %"),
    )
    for ax, (column, label) in zip(figure.subplots(1, 3), panels, strict=True):
        for i, setting in enumerate(settings):
            by = shares[shares.setting == setting].groupby("number")[column]
            ax.plot(by.mean(), color=f"C{i}", label=setting, lw=1.2)
            ax.fill_between(by.min().index, by.min(), by.max(), color=f"C{i}", alpha=0.2, lw=0)
        if column == "kl":
            ax.axhline(0.1, color="0.5", ls=":", lw=1)
            ax.set_yscale("log")
        ax.set_xlabel("layer")
        ax.set_ylabel(label)
    ax.legend(fontsize=8)
    return figure


def sweep(points: dict[int, pd.Series]) -> Figure:
    """Difference in NLL by number of layers."""
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    ax = figure.subplots()
    frame = pd.DataFrame(points).T.astype(float)
    below, above = frame.difference - frame.low, frame.high - frame.difference
    ax.errorbar(frame.index, frame.difference, np.nan_to_num([below, above]), fmt="o-", capsize=3)
    ax.axhline(0, color="0.6", lw=1)
    ax.set_xscale("log", base=2)
    ax.set_xticks(list(frame.index), [str(n) for n in frame.index])
    ax.set_xlabel("layers")
    ax.set_ylabel("difference in NLL, nats")
    return figure
