"""The page of a text's study."""

from collections.abc import Sequence

import pandas as pd

from eve_pyro.experiments.engine import Record, scores_frame, tables_frame
from eve_pyro.experiments.page import Page, change, number
from eve_pyro.experiments.statistics import entry, summarise
from eve_pyro.experiments.studies.language.tasks import (
    COST,
    DEEP,
    DEEP_MODELS,
    FEW,
    LARGE,
    MANY,
    MODELS,
    SHIFTED,
)
from eve_pyro.experiments.studies.language.text import figures
from eve_pyro.experiments.studies.language.text.claims import (
    BASELINE,
    EVE,
    cost_ratio,
    shares,
    verdicts,
)
from eve_pyro.experiments.studies.language.text.predictors import (
    CHOSEN_DROPOUT,
    CHOSEN_EVE,
    CHOSEN_MC,
    at_mean,
    one_draw,
    predictors,
    select,
)

# Column -> score, digits.
MAIN: dict[str, tuple[str, int]] = {
    "CE, nats": ("ce", 3),
    "PPL": ("perplexity", 1),
    "accuracy": ("accuracy", 4),
    "expected CE": ("expected_ce", 3),
    "ECE": ("ece", 3),
    "Brier": ("brier", 4),
    "worst 5 %, nats": ("cvar", 2),
    "MI, nats": ("mutual_information", 4),
    "flips": ("flip_rate", 3),
}
SCALED: dict[str, tuple[str, int]] = {
    "temperature": ("temperature", 2),
    "CE, nats": ("ce", 3),
    "PPL": ("perplexity", 1),
    "ECE": ("ece", 3),
    "Brier": ("brier", 4),
}
RANKING: dict[str, tuple[str, int]] = {
    "1 - max probability": ("auroc_max_probability", 4),
    "entropy": ("auroc_entropy", 4),
    "MI": ("auroc_mutual_information", 4),
    "local KL": ("auroc_kl", 4),
    "max probability and MI": ("auroc_combined", 4),
    "AURC": ("aurc", 4),
}
CURVES = ("plain", "wide", "dropout-0.1", "dropout-0.3", "eve-gate", "eve-floor", "eve-mc")


def write(study: str, page: Page, records: Sequence[Record]) -> None:
    """Fill the page with whatever runs there are.

    Arguments:
        study: name of the corpus's study.
        page: to fill.
        records: of the runs.
    """
    scores = scores_frame([r for r in records if r.task.setting != COST])
    rows = predictors(scores) if len(scores) else predictors(pd.DataFrame())
    layers = tables_frame(records, "layers")
    course = tables_frame(records, "course")
    shift = tables_frame(records, "shift")
    cost = tables_frame(records, "cost")
    settings = [s for s in (MANY, FEW, LARGE, DEEP) if s in set(rows.setting)]
    about = tables_frame(records, "text")
    if len(about):
        page.text(str(about["description"].iloc[0]))
    page.text(_method(records, scores))
    page.heading("Verdicts")
    page.text(
        "*x -> y* is from the plain Transformer (or whom the claim names) to EVE, then the paired "
        "difference: mean over seeds [95 % interval] and the seeds that are better. Published "
        "numbers are of models, texts and sizes that are not ours: the sign and the wins decide, "
        "the sizes stand beside."
    )
    page.verdicts(verdicts(study, rows, layers, cost))
    for setting in settings:
        page.heading(setting.capitalize())
        page.text(_regime(scores[scores.setting == setting]))
        for epoch in ("last", "best"):
            _tables(page, select_all(rows, setting, epoch), epoch)
        _differences(page, rows, setting)
    _curves(page, course, settings)
    _ranking(page, rows, settings)
    _layers(page, layers, settings)
    _shift(page, shift)
    _cost(page, cost)
    if len(rows):
        page.heading("Files")
        page.frame("predictors", rows, "scores of every way to predict, of every run.")
        if len(course):
            page.frame("course", course, "training and validation over epochs.")
        if len(layers):
            page.frame("layers", layers, "statistics of every layer.")


def select_all(rows: pd.DataFrame, setting: str, epoch: str) -> dict[str, pd.DataFrame]:
    """The rows of one setting and epoch by kind."""
    return {kind: select(rows, setting, epoch, kind) for kind in ("raw", "scaled")}


def _method(records: Sequence[Record], scores: pd.DataFrame) -> str:
    found = next((r.task.arguments for r in records if "plan" in r.task.arguments), None)
    if found is None:
        return "No run is finished."
    shape, plan, text, scoring = (found[k] for k in ("shape", "plan", "text", "scoring"))
    vocabulary = _mean(scores, "vocab_size")
    layers = f"{shape.num_layers} layers ({DEEP}: four), {shape.num_heads} heads"
    text_of_text = f"About {text.valid_tokens} validation and {text.test_tokens} test tokens"
    return f"""
Decoder-only Transformers, pre-norm, rotary positions, tied embeddings: width {shape.d_model},
{layers}, context {shape.context}, byte-level BPE of {number(vocabulary, 0)} tokens trained on the
training text. Models differ in their feed-forward blocks alone, and are trained alike: AdamW,
learning rate {plan.learning_rate:g} after a warm-up over {100 * plan.warm_up:g} % of the steps,
then a cosine to 0; weight decay {plan.weight_decay:g} on matrices; batches of {plan.batch_size}
windows; gradients of the loss per token clipped at {plan.clip_norm:g}. A seed decides the initial
weights, the order of windows and the noise: runs of one seed are paired.

{text_of_text} are targets, in windows spread over all of their parts; the same tokens in every
number. Training cross-entropy is of as many training windows as there are validation windows, in
eval mode and predicted the same way: the gap compares like with like. Validation text chooses the
best epoch, the rate of dropout (by run, out of {_rates()}) and the softmax temperature, which
every model has; test text is used for nothing but the tables.

{_blocks()}

An EVE model predicts by the average of the softmax over S = {scoring.num_samples} draws;
*{one_draw("...")}* takes one, *{at_mean("...")}* one pass at the posterior means. EVE's settings
were chosen once, on development seeds of WikiText-2, for all texts; dropout's rate is chosen in
every run. Results are of seeds from 100 on. MI is the mutual information between next token and
draw; flips is the share of tokens whose most probable next token in a draw is not that of the
average. Seeds share their test tokens: intervals are of training, not of the choice of text.
"""


def _blocks() -> str:
    """What stands in the blocks, from the configurations."""
    lines = {
        "plain": "gelu units, 4 per width",
        "wide": "8 per width: the parameters of eve-gate",
        "narrow": "2 per width",
        "glu": "gelu-gated units, the parameters of eve-gate",
        CHOSEN_DROPOUT: "plain, dropout on embeddings, attention and blocks; off in prediction",
        CHOSEN_MC: "the same, averaged over S draws",
        "eve-gate": "EVE's, 4 per width, ELBO with one draw; twice the parameters of plain's block",
        "eve-gelu": "EVE's, gelu(z), as eve-gate; 1.5 x the parameters of plain's block",
        **_beyond(),
        CHOSEN_EVE: "of a run's EVE models (no dropout) that of the least validation CE",
    }
    rows = [f"| {name} | {words} |" for name, words in lines.items()]
    return "\n".join(["| model | feed-forward block |", "|---|---|", *rows])


def _rates() -> str:
    return ", ".join(m.removeprefix("dropout-") for m in MODELS if m.startswith("dropout-"))


def _beyond() -> dict[str, str]:
    """What the other EVE models are."""
    lines = {}
    for name, block in {**MODELS, **DEEP_MODELS}.items():
        if not name.startswith("eve-") or name in (EVE, "eve-gelu"):
            continue
        betas = ", ".join(f"{b:g}" for b in block.per_layer("beta", None))
        said = [f"form {block.form}", f"{block.width:g} units per width", f"beta {betas}"]
        if block.objective == "mc":
            said.append(f"MC-NLL with {block.particles} draws")
        if block.elbo_weight:
            said.append(f"of which {block.elbo_weight:g} outside the logarithm")
        if block.sigma_floor:
            floors = ", ".join(f"{f:g}" for f in block.per_layer("sigma_floor", None))
            said.append(f"sigma at least {floors}")
        if block.free_nats:
            said.append(f"{block.free_nats:g} nats per unit free")
        if block.warm_up:
            said.append(f"beta warmed up over {100 * block.warm_up:g} % of the steps")
        if block.dropout:
            said.append(f"dropout {block.dropout:g}")
        lines[name] = f"EVE's, beyond the paper: {'; '.join(said)}"
    return lines


def _mean(frame: pd.DataFrame, column: str) -> float:
    return float(frame[column].mean()) if column in frame else float("nan")


def _regime(scores: pd.DataFrame) -> str:
    seeds = scores.seed.nunique()
    plain = scores[scores.model == BASELINE]
    text = (
        f"{number(_mean(scores, 'train_tokens'), 0)} training tokens, "
        f"**{number(_mean(scores, 'passes'), 1)} passes per token** in "
        f"{number(_mean(scores, 'epochs'), 0)} epochs, {number(_mean(scores, 'steps'), 0)} steps, "
        f"{seeds} paired seeds."
    )
    if len(plain) and "last_valid" in plain:
        rise = float((plain["last_valid"] - plain["best_valid"]).mean())
        text += (
            f" From its best epoch to the last, the plain Transformer's validation cross-entropy "
            f"rises by {number(rise)} nats: {'it over-fits' if rise > 0.05 else 'no over-fitting'}."
        )
    return text


def _models(frame: pd.DataFrame) -> list[str]:
    """The rows of a table in its order: controls, EVE, then how else EVE may predict."""
    present = list(dict.fromkeys(frame.model))
    controls = [m for m in present if m in MODELS and not m.startswith("eve-")]
    chosen = [m for m in (CHOSEN_DROPOUT, CHOSEN_MC) if m in present]
    eve = [m for m in present if m.startswith("eve-")]
    return [*controls, *chosen, *sorted(eve), *(m for m in (CHOSEN_EVE,) if m in present)]


def _tables(page: Page, kinds: dict[str, pd.DataFrame], epoch: str) -> None:
    raw, scaled = kinds["raw"], kinds["scaled"]
    if raw.empty:
        return
    which = "Last epoch" if epoch == "last" else "Best epoch, by validation cross-entropy"
    page.text(f"**{which}**, test text, raw; mean ± sd over seeds.")
    columns = {**MAIN, "train CE": ("train", 3), "gap": ("gap", 3), "parameters": ("parameters", 0)}
    if epoch == "best":
        columns["epoch"] = ("best_epoch", 1)
    _scores(page, raw, columns)
    page.text(f"{which}, divided by the temperature of the validation text:")
    _scores(page, scaled, SCALED)
    if BASELINE not in set(raw.model) or raw.model.nunique() < 2:
        return
    page.text(
        f"{which}, difference from **{BASELINE}**: mean [95 % interval] and the seeds that are "
        "better; error is 1 - accuracy."
    )
    compared = ["ce", "perplexity", "error", "gap"]
    table = summarise(raw[["model", "seed", *compared]], BASELINE)
    other = scaled[["model", "seed", "ce", "ece"]]
    scaled_table = summarise(other, BASELINE) if BASELINE in set(other.model) else None
    lines = []
    for model in _models(raw):
        if model == BASELINE:
            continue
        cells = [
            change(entry(table, model, score), digits)
            for score, digits in zip(compared, (3, 1, 4, 3), strict=True)
        ]
        known = scaled_table is not None and (model, "ce") in scaled_table.index
        scaled_cell = change(entry(scaled_table, model, "ce")) if known else "-"  # type: ignore[arg-type]
        lines.append([model, *cells, scaled_cell])
    page.table(["model", "CE", "PPL", "error", "gap", "CE, scaled"], lines)


def _scores(page: Page, frame: pd.DataFrame, columns: dict[str, tuple[str, int]]) -> None:
    lines = []
    for model in _models(frame):
        own = frame[frame.model == model]
        cells = [model, str(own.seed.nunique())]
        for score, digits in columns.values():
            values = own[score].astype(float)
            text, sd = number(values.mean(), digits), number(values.std(), digits)
            plain = score == "parameters" or "-" in (text, sd)
            cells.append(text if plain else f"{text} ± {sd}")
        lines.append(cells)
    page.table(["model", "seeds", *columns], lines)


def _differences(page: Page, rows: pd.DataFrame, setting: str) -> None:
    frame = select(rows, setting, "last", "raw")
    frame = frame[frame.model.isin(_models(frame))]
    if BASELINE not in set(frame.model) or frame.model.nunique() < 2:
        return
    summary = summarise(frame[["model", "seed", "ce"]], BASELINE)
    wide = frame.pivot(index="seed", columns="model", values="ce")[_models(frame)]
    page.figure(
        f"differences-{setting.replace(' ', '-')}",
        figures.differences(summary, wide, BASELINE),
        f"{setting.capitalize()}, last epoch: cross-entropy less that of the plain Transformer, "
        "seed by seed, with the mean and its 95 % interval. Left of 0 is better.",
    )


def _curves(page: Page, course: pd.DataFrame, settings: Sequence[str]) -> None:
    shown = [s for s in settings if len(course) and s in set(course.setting)]
    if not shown:
        return
    page.heading("Over-fitting")
    page.figure(
        "course",
        figures.learning_curves(course, shown, CURVES),
        "Cross-entropy and gap over epochs, mean over seeds, predictions averaged over draws.",
    )


def _ranking(page: Page, rows: pd.DataFrame, settings: Sequence[str]) -> None:
    frame = select(rows, settings[0], "last", "raw") if settings else pd.DataFrame()
    if frame.empty:
        return
    page.heading("Which tokens will be wrong?")
    page.text(
        f"{settings[0].capitalize()}, last epoch: the probability that a wrong token has the "
        "larger signal than a right one (AUROC), and the mean error over the most certain tokens "
        "(AURC, lower is better)."
    )
    own = frame[~frame.model.str.endswith(("at the mean", "S = 1"))]
    _scores(page, own, RANKING)


def _layers(page: Page, layers: pd.DataFrame, settings: Sequence[str]) -> None:
    shown = [s for s in settings if len(layers) and s in set(layers.setting)]
    if not shown:
        return
    page.heading("The layers of EVE")
    page.text(
        "Last epoch, test text, mean over seeds. KL is per unit and token. *MI alone* is the "
        "mutual information where this layer draws and all others stand at their means; *share* "
        "is its part of the sum over layers, *of all* its part of the MI where all draw."
    )
    lines = []
    for setting in shown:
        table = shares(layers, setting)
        own = layers[(layers.setting == setting) & (layers.epoch == "last")]
        means = own.groupby(["model", "number"], sort=False).mean(numeric_only=True)
        known = table.groupby("model").mean().to_dict() if len(table) else {}
        for row in means.reset_index().to_dict("records"):
            model, layer = str(row["model"]), int(row["number"])
            share = known.get(layer, {}).get(model, float("nan"))
            cells = [setting, model, str(layer)]
            cells += [number(float(row[c])) for c in ("kl", "sigma", "energy", "active_fraction")]
            cells += [number(float(row["mutual_information"]), 4), number(share, 2)]
            lines.append([*cells, number(float(row["share"]), 2)])
    columns = ["KL, nats", "sigma", "energy", "active", "MI alone, nats", "share", "of all"]
    page.table(["setting", "model", "layer", *columns], lines)


def _shift(page: Page, shift: pd.DataFrame) -> None:
    if shift.empty:
        return
    page.heading("When the text goes wrong")
    page.text(
        "A share of the context's tokens is replaced by others, drawn uniformly; targets are the "
        "author's. Last epoch, predictions over draws; bands from the lowest to the highest seed."
    )
    figure = figures.shift_curves(shift, SHIFTED)
    page.figure("shift", figure, "Losses and uncertainty against the share of replaced tokens.")
    page.frame("shift", shift, "scores and uncertainty at every share.")


def _cost(page: Page, cost: pd.DataFrame) -> None:
    if cost.empty:
        return
    page.heading("What it costs")
    page.text(
        "Models take turns in one process, one torch thread; medians over turns, with quartiles. "
        "A step is zero_grad, loss with its noise, backward, clipping and AdamW; *compiled* by "
        f"CompiledELBO. Ratios are to {BASELINE}, and of predictions to one draw of the model."
    )
    lines = []
    for row in cost.to_dict("records"):
        kind, name = str(row["kind"]), str(row["contestant"])
        missing = row["missing"] if isinstance(row["missing"], str) else ""
        times = [f"{1e3 * row[k]:.1f}" for k in ("seconds", "low", "high")]
        ratio = number(cost_ratio(cost, kind, name, BASELINE), 2)
        single = number(cost_ratio(cost, kind, name, one_draw(name.split(", ")[0])), 2)
        time = missing or f"{times[0]} ({times[1]} to {times[2]})"
        lines.append([kind, name, time, ratio, single, number(float(row["start_up"]), 1)])
    columns = ["ms", f"/ {BASELINE}", "/ one draw", "first step, s"]
    page.table(["what", "model", *columns], lines)
