"""The figures of the page."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

# Okabe and Ito's colours, which most eyes can tell apart.
COLORS = {
    "det-cell": "#000000",
    "stoch-hetero": "#D55E00",
    "eve-elbo": "#E69F00",
    "eve-mc-4": "#56B4E9",
    "eve-mc-32": "#0072B2",
    "eve-closed": "#009E73",
    "eve-head": "#CC79A7",
}
INSIDE = ("eve-elbo", "eve-mc-4", "eve-mc-32", "eve-closed", "eve-head")
OUTSIDE = ("det-cell", "stoch-hetero", "eve-mc-4", "eve-mc-32", "eve-closed", "eve-head")


def curves(frame: pd.DataFrame) -> Figure:
    """What the neuron's sigma and the prediction's spread are at every x, mean over seeds.

    Arguments:
        frame: the runs' tables ``curve``.
    """
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for ax, column, models in ((left, "spread", INSIDE), (right, "predictive_sd", OUTSIDE)):
        truth = frame.groupby("x")["true_scale"].mean()
        ax.plot(truth.index, truth, color="gray", linestyle="--", linewidth=3, label="s(x)")
        for model in models:
            own = frame[frame.model == model]
            if column in own and own[column].notna().any():
                mean = own.groupby("x")[column].mean()
                ax.plot(mean.index, mean, color=COLORS[model], label=model)
        ax.set(xlabel="x")
        ax.legend(fontsize=7, ncols=2, loc="upper center")
    # Once all is drawn: the two share their limits. Above the curves is room for the legends.
    left.set(ylim=(0, 1.3 * left.get_ylim()[1]))
    left.set(ylabel="units of y", title="inside: √(Σ w² σ(x)²)")
    right.set(title="at the output: predictive standard deviation")
    return figure


def gaps(sweep: pd.DataFrame, levels: dict[str, float]) -> Figure:
    """NLL above the oracle's against S.

    Arguments:
        sweep: one row per S, seed and score: columns ``S``, ``score`` and ``gap``.
        levels: mean gap of NLL of models without an S, by name.
    """
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    ax: Any = figure.subplots()
    styles = {"NLL": ("#0072B2", "-"), "MC-NLL": ("#56B4E9", "--")}
    for score, own in sweep.groupby("score"):
        color, line = styles[str(score)]
        by_s = own.groupby("S")["gap"]
        mean, sd = by_s.mean(), by_s.std().fillna(0.0)
        ax.errorbar(mean.index, mean, sd, color=color, linestyle=line, marker="o", label=score)
    for name, level in levels.items():
        ax.axhline(level, color=COLORS.get(name, "gray"), linestyle=":", label=f"{name}, NLL")
    ax.axhline(0.0, color="gray", linewidth=0.8)
    ax.set(xlabel="S, draws per training step", ylabel="nats above the oracle", xscale="log")
    if len(ticks := sorted(sweep.S.unique())):
        ax.set_xticks(ticks, [str(s) for s in ticks])
    ax.minorticks_off()
    ax.legend(fontsize=7)
    return figure
