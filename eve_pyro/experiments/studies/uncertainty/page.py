"""The page of the study."""

from collections.abc import Sequence

import pandas as pd

from eve_pyro.experiments.engine import Record, scores_frame, tables_frame
from eve_pyro.experiments.page import Page, change, number
from eve_pyro.experiments.statistics import entry, summarise
from eve_pyro.experiments.studies.language.text.predictors import (
    CHOSEN_DROPOUT,
    CHOSEN_MC,
    at_mean,
    predictors,
    select,
)
from eve_pyro.experiments.studies.language.text.rules import shares
from eve_pyro.experiments.studies.uncertainty.claims import by_rule, raised, verdicts
from eve_pyro.experiments.studies.uncertainty.tasks import (
    BASE,
    CHOSEN,
    CONTROLS,
    DROPOUT,
    JUDGED,
    MECHANISMS,
    PLAIN,
    TRIED,
)

# Column -> score, digits.
COLUMNS: dict[str, tuple[str, int]] = {
    "MI, nats": ("mutual_information", 4),
    "flips": ("flip_rate", 3),
    "ECE": ("ece", 3),
    "wrong tokens by max probability": ("auroc_max_probability", 3),
    "by MI": ("auroc_mutual_information", 3),
    "by both": ("auroc_combined", 3),
}
_ORDER = (PLAIN, CHOSEN_DROPOUT, CHOSEN_MC, *(m for m in MECHANISMS if m != PLAIN))
TEXT_COLUMNS: dict[str, tuple[str, int]] = {
    "CE, nats": ("ce", 3),
    "entropy": ("entropy", 3),
    "MI, nats": ("mutual_information", 4),
    "told by max probability": ("detect_max_probability", 3),
    "by entropy": ("detect_entropy", 3),
    "by MI": ("detect_mutual_information", 3),
    "by local KL": ("detect_kl", 3),
}


def write(page: Page, records: Sequence[Record]) -> None:
    """Fill the page with whatever runs there are."""
    scores = scores_frame(records)
    rows = predictors(scores)
    layers, texts = tables_frame(records, "layers"), tables_frame(records, "texts")
    page.text(_method(records, scores))
    page.heading("Verdicts")
    page.verdicts(verdicts(rows, layers, texts))
    page.heading("Everything that was tried")
    page.text(
        f"Validation text, development seeds. Differences in cross-entropy are from **{BASE}**; "
        "*share* is the least part that a block has of the mutual information that blocks give "
        "one by one (equal: .25). In the last column: the seeds on which a model has more mutual "
        f"information than {BASE}, and those on which its cross-entropy is not larger. AUROC of "
        "wrong tokens by 1 - max probability, by MI, and by the sum of both ranks."
    )
    _scores(page, rows, layers, TRIED, BASE)
    page.text(_choice(rows, layers))
    page.heading("What was chosen, judged")
    page.text(f"Test text, other seeds. Differences are from **{PLAIN}**.")
    _scores(page, rows, layers, JUDGED, PLAIN)
    _texts(page, texts)
    page.heading("Files")
    page.frame("predictors", rows, "scores of every way to predict, of every run.")
    if len(layers):
        page.frame("layers", layers, "statistics of every layer.")


def _choice(rows: pd.DataFrame, layers: pd.DataFrame) -> str:
    """The rule, whom it chooses by these runs, and who was judged."""
    found = by_rule(rows, layers)
    said = (
        "Rule of choice: of the mechanisms that have more mutual information and no larger "
        "cross-entropy on every development seed, that of the most mutual information, and that "
        f"of the largest least share. By this table: **{', '.join(found) or 'none'}**."
    )
    if found and found != list(CHOSEN):
        said += f" Judged are {', '.join(CHOSEN)}, chosen by other runs of this table."
    return said


def _method(records: Sequence[Record], scores: pd.DataFrame) -> str:
    task = records[0].task
    shape, plan, text = (task.arguments[k] for k in ("shape", "plan", "text"))
    scoring = task.arguments["scoring"]
    tokens, passes = (
        number(float(scores[c].mean()) if c in scores else float("nan"), digits)
        for c, digits in (("train_tokens", 0), ("passes", 1))
    )
    return f"""
Transformers with {shape.num_layers} blocks of width {shape.d_model}, context {shape.context},
trained on {tokens} tokens of the text *{text.corpus}*, {passes} passes per token in {plan.epochs}
epochs. Learning rate, batches and tokenizer are those of the studies of text. Scores are of the
last epoch; predictions average {scoring.num_samples} draws. The rate of dropout is chosen in every
run on validation text, out of {" and ".join(m.removeprefix("dropout-") for m in DROPOUT)};
*{CHOSEN_DROPOUT}* has it off in prediction.

**{BASE}** has EVE's blocks, form glu, half as wide: the parameters of **{PLAIN}**, the same
Transformer with gelu units. It is trained by the ELBO with one draw, beta 1e-4, sigma .3 at the
start. Every other model changes what its name says: *sigma >= 1* is a floor under sigma, where it
also starts; *shared noise* is drawn once per window and unit; *MC-NLL* has four draws; *published*
is form gate, twice as wide (more parameters), beta 1e-3; *prices and floors by layer* have beta
{_tuple("beta")} and floors {_tuple("sigma_floor")}; *KL balancing* starts from beta 1e-3 and shares
it out by KL after every epoch; *free bits* are .1 nats per unit at beta 1e-2; *warm-up of beta*
goes to 1e-2 over half of training; *learned prior* has beta 1e-3.
"""


def _tuple(name: str) -> str:
    block = MECHANISMS["prices and floors by layer"]
    return ", ".join(f"{v:g}" for v in block.per_layer(name, None))


def _scores(
    page: Page, rows: pd.DataFrame, layers: pd.DataFrame, setting: str, baseline: str
) -> None:
    frame = select(rows, setting, "last", "raw")
    models = [m for m in _ORDER if m in set(frame.model)]
    if baseline not in models:
        page.text("No run of the model to compare with is finished.")
        return
    summary = summarise(frame[["model", "seed", "ce"]], baseline)
    table = shares(layers, setting)
    least = table.min(axis=1).groupby("model").mean().to_dict() if len(table) else {}
    lines = []
    for model in models:
        own, mean = frame[frame.model == model], frame[frame.model == at_mean(model)]
        difference = "-" if model == baseline else change(entry(summary, model, "ce"))
        ce_mean = float(mean["ce"].mean()) if len(mean) else float("nan")
        cells = [model, str(own.seed.nunique()), number(float(own["ce"].mean())), difference]
        cells.append(number(ce_mean))
        for score, digits in COLUMNS.values():
            cells.append(number(float(own[score].astype(float).mean()), digits))
        cells.append(number(float(least.get(model, float("nan"))), 2))
        if setting == TRIED:
            more, kept, pairs = raised(frame, model, baseline)
            other = model not in MECHANISMS or model in CONTROLS
            cells.append("-" if other else f"{more} and {kept} of {pairs}")
        lines.append(cells)
    columns = ["model", "seeds", "CE, nats", "difference", "CE at the means", *COLUMNS, "share"]
    page.table([*columns, "more MI, CE kept"] if setting == TRIED else columns, lines)


def _texts(page: Page, texts: pd.DataFrame) -> None:
    if texts.empty:
        return
    page.heading("Other texts")
    page.text(
        "The judged models read the test parts of other corpora in their own tokens; *own* is "
        "their own test text. Means over seeds. How well windows of a text are told from those "
        "of their own: AUROC of window means of 1 - max probability, entropy, mutual information "
        "and local KL, from inputs alone. WikiText-2 is set in a way of its own (spaces around "
        "marks, rare words as one token), which also tells it from other texts; cross-entropies "
        "per token compare down a text's rows, not between texts."
    )
    lines = []
    for (text, model), own in texts.groupby(["text", "model"], sort=False):
        means = own.mean(numeric_only=True)
        cells = [number(float(means[s]), digits) for s, digits in TEXT_COLUMNS.values()]
        lines.append([str(text), str(model), str(own.seed.nunique()), *cells])
    page.table(["text", "model", "seeds", *TEXT_COLUMNS], lines)
    page.frame("texts", texts, "all scores and signals by text.")
