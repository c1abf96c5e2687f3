"""The page of the study."""

import math
from collections.abc import Sequence

import pandas as pd

from eve_pyro.experiments.engine import Record, scores_frame, tables_frame
from eve_pyro.experiments.page import Page, change, mean_sd, number
from eve_pyro.experiments.statistics import entry, summarise
from eve_pyro.experiments.studies.energy import figures
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
from eve_pyro.experiments.studies.energy.method import SPLITS, method
from eve_pyro.experiments.studies.energy.tasks import (
    COST,
    DESIGN,
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
    page.text(method(depth))
    page.heading("Verdicts")
    page.text(
        "On the calibrated predictive. Percent are of the size of the baseline's mean; those of "
        "NLL move with the logarithm of the target's unit, so that nats are the number to read."
    )
    page.verdicts(verdicts(scores, layers, cost, depth))
    for setting, text in SPLITS.items():
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
    page.figure("course", figures.course(course), "NLL in nats over epochs, mean over seeds.")
    page.frame("course", course, "training and validation NLL of every run.")


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
        figures.depth(layers, settings),
        "KL per unit, sigma and share of the predictive spread over depth; bands from the lowest "
        "to the highest seed.",
    )
    page.frame("layers", layers, "statistics of every layer of every EVE network.")


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
        figures.sweep(points),
        "Difference in NLL, EVE less the deterministic network, with 95 % intervals: below 0 is "
        "better.",
    )


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
        f"{SLOWER}, of what is not said. Compiling takes a minute or two at full depth, so "
        "compiled steps are compared in shallower networks."
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
