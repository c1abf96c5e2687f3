"""The page of the study."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from eve_pyro.experiments.engine import Record, scores_frame, tables_frame
from eve_pyro.experiments.page import Page, change, mean_sd, number
from eve_pyro.experiments.statistics import entry, summarise
from eve_pyro.experiments.studies.energy.claims import (
    BASELINE,
    EVE,
    NLL,
    SLOWER,
    complete,
    cost_ratio,
    pair,
    signed,
    verdicts,
)
from eve_pyro.experiments.studies.energy.models import BETA, MODELS
from eve_pyro.experiments.studies.energy.tasks import (
    COST,
    DESIGN,
    EVERY,
    PROTOCOL,
    RANDOM,
    sweep_setting,
)

STANDARD_NLL = "calibrated_mc_nll"
# Column -> score, digits. All are of the standardised target.
CALIBRATED: dict[str, tuple[str, int]] = {
    "NLL, nats": (STANDARD_NLL, 3),
    "CRPS": ("calibrated_crps", 4),
    "pinball": ("calibrated_pinball", 4),
    "MSE": ("calibrated_mse", 4),
    "MAE": ("calibrated_mae", 4),
    "90 % coverage": ("calibrated_coverage", 3),
}
RAW: dict[str, tuple[str, int]] = {
    "NLL, nats": ("raw_mc_nll", 3),
    "CRPS": ("raw_crps", 4),
    "pinball": ("raw_pinball", 4),
    "90 % coverage": ("raw_coverage", 3),
    "temperature": ("temperature", 2),
    "sigma_y": ("sigma_y", 3),
}
TRAINING: dict[str, tuple[str, int]] = {
    "best epoch": ("best_epoch", 0),
    "train-validation gap there, nats": ("best_gap", 2),
    "gap at the end": ("final_gap", 2),
    "rise since the best": ("final_rise", 2),
    "parameters": ("parameters", 0),
    "training, s": ("seconds", 0),
}
COMPARED: dict[str, tuple[str, int, bool]] = {
    "NLL, nats": (STANDARD_NLL, 3, False),
    "NLL raw, nats": ("raw_mc_nll", 3, False),
    "CRPS": ("calibrated_crps", 1, True),
    "pinball": ("calibrated_pinball", 1, True),
    "MSE": ("calibrated_mse", 1, True),
    "MAE": ("calibrated_mae", 1, True),
}


def write(page: Page, records: Sequence[Record]) -> None:
    """Fill the page with whatever runs there are."""
    scores = complete(scores_frame(records))
    layers = tables_frame(records, "layers")
    course = tables_frame(records, "course")
    cost = tables_frame(records, "cost")
    depth = _depth(records)
    page.text(_method(depth))
    page.heading("Verdicts")
    page.text(
        "On the calibrated predictive. Percent are of the size of the baseline's mean; those of "
        "NLL move with the logarithm of the target's unit, so that nats are the number to read."
    )
    page.verdicts(verdicts(scores, layers, cost, depth))
    for setting, text in ((RANDOM, _RANDOM), (DESIGN, _DESIGN)):
        frame = scores[scores.setting == setting]
        if len(frame):
            page.heading(setting.capitalize())
            page.text(text)
            _setting(page, frame)
    _course(page, course)
    _layers(page, layers, depth)
    _sweep(page, scores, layers, depth)
    _cost(page, cost)


def _depth(records: Sequence[Record]) -> int:
    """Layers of the deep network, which the smoke run has fewer of."""
    depths = [len(c.hidden) for r in records if (c := r.task.arguments.get("config")) is not None]
    contests = [r.task.arguments["contests"] for r in records if r.task.setting == COST]
    depths += [len(c.hidden) for found in contests for _, m, _ in found for c in m.values()]
    return max(depths)


def _method(depth: int) -> str:
    training, eve = PROTOCOL.training, MODELS[EVE]
    return f"""
Heating load of 768 buildings, 192 designs in 4 orientations each (Tsanas and Xifara 2012). Every
network has {depth} layers of gelu units behind a linear projection to their width, each a
pre-norm residual block, h <- h + unit(LayerNorm(h)) / sqrt(L), and a linear head with one output
scale. Plain chains of this depth did not train in development, neither deterministic nor EVE: the
input fades on its way through them, and they stay at the mean of the target. Residual chains
without the normalisation grew without bound.

Two thirds of the rows are for training, a sixth each for validation and test. A seed decides the
split, the order of rows, the initial weights and the noise, for all models alike: runs of one
seed are paired. Adam, learning rate {training.learning_rate:g} falling to 0 along a cosine,
batches of {training.batch_size}, {training.epochs} epochs, gradients clipped at
{training.clip_norm:g}. The epoch of the best validation NLL is kept, out of every {EVERY}th.

An output scale that has not converged looks like bad uncertainty, and whatever converges it
faster seems to win. So for every model log sigma_y has ten times the learning rate of the
weights, and a temperature on the predictive spread is fitted by NLL on the validation rows; for a
deterministic network this is the closed-form refit of sigma_y. Both are reported.

EVE has the matrix products and parameters of the cell, twice those of the mlp; it is trained with
the {eve.objective} objective and {eve.particles} draws, beta = {BETA:g} / L, and starts at sigma =
{eve.unit_options["sigma_init"]:g}. Training steps run as recorded graphs, for all models alike.
Configurations were chosen on seeds below 100, results are of seeds from 100 on. NLL is that of the
predictive mixture over {PROTOCOL.num_samples} draws, pinball loss the mean over the levels
.05, .10, ..., .95. Scores are of the standardised target. Intervals are Student's at 95 % of the
paired differences over seeds; they treat splits as independent, while splits of one table share
rows: as statements on new data they are too narrow. *n/m* counts the seeds that are better.
"""


_RANDOM = """
Rows are split one by one, the usual protocol, on which the published numbers were most probably
made. A design's other orientations, whose heating load is nearly the same, are then mostly among
the training rows: the test asks for interpolation between near-copies.
"""
_DESIGN = "All orientations of a design are in one part: the test asks for designs never seen."


def _setting(page: Page, frame: pd.DataFrame) -> None:
    frame = frame.drop(columns="setting")
    page.text("Calibrated, mean ± sd over seeds:")
    _scores(page, frame, CALIBRATED)
    page.text("Raw, and what calibrates it:")
    _scores(page, frame, RAW)
    page.text("Training:")
    _scores(page, frame, TRAINING)
    if BASELINE not in set(frame.model) or frame.model.nunique() < 2:
        return
    summary = _summary(frame, [score for score, _, _ in COMPARED.values()])
    page.text(
        f"Difference from **{BASELINE}**: mean over seeds [95 % interval] and the seeds that are "
        "better; percent are of the baseline's mean; calibrated unless said."
    )
    page.table(
        ["model", *COMPARED],
        [
            [model]
            + [
                change(entry(summary, model, score), digits, relative=relative)
                for score, digits, relative in COMPARED.values()
            ]
            for model in _models(frame)
            if model != BASELINE
        ],
    )


def _models(frame: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(frame.model))


def _summary(frame: pd.DataFrame, scores: Sequence[str]) -> pd.DataFrame:
    return summarise(frame[["model", "seed", *dict.fromkeys(scores)]], BASELINE)


def _scores(page: Page, frame: pd.DataFrame, columns: dict[str, tuple[str, int]]) -> None:
    rows = []
    for model in _models(frame):
        own = frame[frame.model == model]
        cells = [model, str(own.seed.nunique())]
        for score, digits in columns.values():
            values = own[score] if score in own else pd.Series(dtype=float)
            sd = math.nan if score == "parameters" else values.std()
            cells.append(mean_sd(values.mean(), sd, digits))
        rows.append(cells)
    page.table(["model", "seeds", *columns], rows)


def _course(page: Page, course: pd.DataFrame) -> None:
    if course.empty:
        return
    page.heading("Does the deterministic network over-fit?")
    page.text(
        "NLL of training and validation rows, raw, over epochs. A gap says that training rows are "
        "learned by heart; a validation NLL that rises, that training goes on for too long."
    )
    page.figure("course", _course_figure(course), "NLL in nats over epochs, mean over seeds.")
    page.frame("course", course, "training and validation NLL of every run.")


def _course_figure(course: pd.DataFrame) -> Figure:
    settings = [s for s in (RANDOM, DESIGN) if s in set(course.setting)]
    settings = settings or list(dict.fromkeys(course.setting))[:1]
    figure = Figure(figsize=(5 * len(settings), 3.6), layout="constrained")
    axes = figure.subplots(1, len(settings), squeeze=False)[0]
    for ax, setting in zip(axes, settings, strict=True):
        own = course[course.setting == setting]
        for i, model in enumerate(_models(own)):
            mean = own[own.model == model].groupby("epoch")[["train_nll", "validation_nll"]].mean()
            ax.plot(mean.index, mean.train_nll, "--", color=f"C{i}", lw=1)
            ax.plot(mean.index, mean.validation_nll, color=f"C{i}", label=model)
        ax.set_title(f"{setting}: validation, and training (dashed)", fontsize=9)
        ax.set_xlabel("epoch")
        ax.set_ylabel("NLL, nats")
        ax.legend(fontsize=8)
    return figure


def _layers(page: Page, layers: pd.DataFrame, depth: int) -> None:
    if layers.empty:
        return
    settings = [s for s in (RANDOM, DESIGN) if s in set(layers.setting)]
    if not settings:
        return
    page.heading(f"The {depth} layers of EVE")
    page.text(
        "Of test rows (the shares of spread: of the first 16), mean over seeds. KL is per unit, in "
        "nats; energy is the mean square of the posterior means. "
        "*Alone* is the share of the predictive variance between draws that is "
        "left when only this layer draws and all others stand at their posterior means; "
        "*removed* is the share that goes when this layer alone stands at its mean. A large sigma "
        "is what the prior wants; a KL that is not near 0 is the evidence that a layer is used."
    )
    own = layers[layers.setting == settings[0]]
    columns = {"KL": "kl", "sigma": "sigma", "energy": "energy", "active units": "active_fraction"}
    mean = own.assign(
        alone=own["alone"] / own["total"], removed=own["removed"] / own["total"]
    ).groupby("number")[[*columns.values(), "alone", "removed"]].mean()  # fmt: skip
    shown = sorted({1, 2, depth} | {max(1, round(depth * k / 8)) for k in range(1, 9)})
    page.table(
        [f"layer ({settings[0]})", *columns, "alone", "removed"],
        [
            [str(row["number"]), *(number(row[c]) for c in columns.values())]
            + [f"{100 * row[c]:.2f} %" for c in ("alone", "removed")]
            for row in mean.reset_index().to_dict("records")
            if row["number"] in shown
        ],
    )
    page.text(
        f"Least KL per unit of any layer and seed: {number(float(own['kl'].min()))} nats "
        f"({settings[0]}). The shares of single layers sum to {100 * float(mean.alone.sum()):.0f} "
        "%: were the output linear in the latents, it would be 100 %."
    )
    page.figure(
        "depth",
        _depth_figure(layers, settings),
        "KL per unit, sigma and share of the predictive spread over depth; bands from the lowest "
        "to the highest seed.",
    )
    page.frame("layers", layers, "statistics of every layer of every EVE network.")


def _depth_figure(layers: pd.DataFrame, settings: Sequence[str]) -> Figure:
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


def _sweep(page: Page, scores: pd.DataFrame, layers: pd.DataFrame, depth: int) -> None:
    found: dict[int, str] = {depth: RANDOM}
    for setting in dict.fromkeys(scores.setting):
        words = setting.removeprefix(f"{RANDOM}, ").split()
        if len(words) == 2 and words[0].isdigit() and setting == sweep_setting(int(words[0])):
            found[int(words[0])] = setting
    rows, points = [], {}
    for layer_count, setting in sorted(found.items()):
        summary = pair(scores, setting)
        if summary.empty:
            continue
        row = signed(entry(summary, EVE, NLL))
        if not row["pairs"]:
            continue
        points[layer_count] = row
        kl = layers[layers.setting == setting]["kl"] if len(layers) else pd.Series(dtype=float)
        rows.append(
            [
                str(layer_count),
                number(float(entry(summary, BASELINE, STANDARD_NLL)["mean"])),
                number(float(entry(summary, EVE, STANDARD_NLL)["mean"])),
                change(row),
                change(entry(summary, EVE, "calibrated_crps"), 1, relative=True),
                number(float(kl.min())) if len(kl) else "-",
            ]
        )
    if not rows:
        return
    page.heading("From shallow to deep")
    page.text(
        "Random split, calibrated; fewer seeds (n in the column of wins) for all but the deepest, "
        "whose runs are those above. beta falls as 1 / L: a residual layer's share of the output, "
        "and with it of the likelihood's pull on its sigma, does."
    )
    page.table(
        [
            "layers",
            f"NLL, {BASELINE}",
            "NLL, EVE",
            "difference, nats",
            "CRPS, difference",
            "least KL per unit",
        ],
        rows,
    )
    page.figure(
        "sweep",
        _sweep_figure(points),
        "Difference in NLL, EVE less the deterministic network, with 95 % intervals: below 0 is "
        "better.",
    )


def _sweep_figure(points: dict[int, pd.Series]) -> Figure:
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


def _cost(page: Page, cost: pd.DataFrame) -> None:
    if cost.empty:
        return
    page.heading("What a training step costs")
    page.text(
        "Zero the gradients, loss with its noise, backward, clipping, fused Adam, on one batch of "
        f"{PROTOCOL.training.batch_size} rows; one torch thread. Models take turns in one process; "
        "medians over turns, with quartiles. *eve* has one draw per row, *eve, as trained* the "
        "study's objective. The cell has EVE's matrix products, the mlp half of them. The "
        "published multiple is "
        f"{SLOWER}, of what is not said. Compiling takes minutes at full depth (time to the first "
        "step), so compiled steps are compared in shallower networks."
    )
    rows = []
    for row in cost.to_dict("records"):
        contest, network = str(row["contest"]), str(row["network"])
        # An empty text comes back from a file as NaN.
        missing = row["missing"] if isinstance(row["missing"], str) else ""
        times = [f"{1e3 * row[k]:.1f}" for k in ("seconds", "low", "high")]
        ratios = [
            f"{number(cost_ratio(cost, contest, network, m), 2)} x" for m in (BASELINE, "cell")
        ]
        rows.append(
            [
                contest,
                network,
                missing or f"{times[0]} ({times[1]} to {times[2]})",
                *ratios,
                number(row["start_up"], 1),
            ]
        )
    page.table(["layers", "model", "ms per step", f"/ {BASELINE}", "/ cell", "first step, s"], rows)
