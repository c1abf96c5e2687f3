"""The page's words on what was run: models, training, settings."""

from collections.abc import Collection, Sequence

import pandas as pd

from eve_pyro.experiments.engine import Record
from eve_pyro.experiments.page import number
from eve_pyro.experiments.studies.language.tasks import COHERENT, DEEP, DEEP_MODELS, MODELS
from eve_pyro.experiments.studies.language.text.predictors import (
    CHOSEN_DROPOUT,
    CHOSEN_EVE,
    CHOSEN_MC,
    at_mean,
    one_draw,
)
from eve_pyro.experiments.studies.language.text.rules import BASELINE, EVE


def method(records: Sequence[Record], scores: pd.DataFrame) -> str:
    """How all models were built, trained and scored."""
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

{_blocks({r.task.model for r in records})}

An EVE model predicts by the average of the softmax over S = {scoring.num_samples} draws;
*{one_draw("...")}* takes one, *{at_mean("...")}* one pass at the posterior means. EVE's settings
were chosen once, on development seeds of WikiText-2, for all texts; dropout's rate is chosen in
every run. Results are of seeds from 100 on. MI is the mutual information between next token and
draw; flips is the share of tokens whose most probable next token in a draw is not that of the
average. Seeds share their test tokens: intervals are of training, not of the choice of text.
"""


def regime(scores: pd.DataFrame) -> str:
    """How long a setting trains, and whether the plain Transformer over-fits there."""
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


def _blocks(run: Collection[str]) -> str:
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
        **_beyond(run),
        CHOSEN_EVE: "of a run's EVE models (no dropout) that of the least validation CE",
    }
    rows = [f"| {name} | {words} |" for name, words in lines.items()]
    return "\n".join(["| model | feed-forward block |", "|---|---|", *rows])


def _rates() -> str:
    return ", ".join(m.removeprefix("dropout-") for m in MODELS if m.startswith("dropout-"))


def _beyond(run: Collection[str]) -> dict[str, str]:
    """What the other EVE models are."""
    larger = {name: block for name, block in COHERENT.items() if name in run}
    lines = {}
    for name, block in {**MODELS, **DEEP_MODELS, **larger}.items():
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
        if block.shared_noise:
            said.append("noise shared along positions")
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
