# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     notebook_metadata_filter: jupytext,kernelspec,-jupytext.text_representation.jupytext_version
#     cell_metadata_filter: -all
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A language model that says where it is unsure
#
# A small Transformer with distributional feed-forward blocks reads Moby-Dick. Then a passage that
# it has not seen: which tokens is it unsure of, is that the text's doing or its own, and in which
# layer does it arise? Do such numbers find the model's errors, and garbled text? Last, generation
# that stops where the model does not know how to go on.

# %%
import os

# The one switch: EVE_PYRO_SMOKE=1 runs everything in seconds, on too few steps to learn much.
SMOKE = os.environ.get("EVE_PYRO_SMOKE") == "1"
STEPS = 4 if SMOKE else 900
DRAWS = 4 if SMOKE else 16
WINDOWS = 4 if SMOKE else 96  # of validation and of test text that is scored
PASSAGE = 0 if SMOKE else 81  # the window at which the passage begins that is shown

# %% [markdown]
# ## Text and model
#
# Chapters whose number ends in 5 are for validation, those whose number ends in 0 for testing, the
# others for training. A byte-level BPE of 1,024 tokens makes short words one token each.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from eve_pyro.data.text import TokenWindows, encode_corpus, load_moby_dick, train_tokenizer

CONTEXT, VOCABULARY = 64, 1024
corpus = load_moby_dick()
tokenizer = train_tokenizer(corpus.train, VOCABULARY)
train = TokenWindows(encode_corpus(corpus.train, tokenizer), CONTEXT)
valid, test = (
    TokenWindows(encode_corpus(part, tokenizer).ids[: WINDOWS * CONTEXT + 1], CONTEXT)
    for part in (corpus.valid, corpus.test)
)
print(f"{len(train)} windows of {CONTEXT} tokens to train on")

# %% [markdown]
# Each block has 128 units $z \sim N(\mu, \sigma^2)$ with $\sigma$ above 1/2. Without a floor,
# training would rather silence the noise, and the draws would soon all say the same.

# %%
from eve_pyro import EVEGuide
from eve_pyro.nn import EVEFeedForward, LanguageModel, TransformerConfig, TransformerLM


def block(layer):
    return EVEFeedForward(
        64, 128, form="glu", beta=1e-3, sigma_init=0.55, log_sigma_bounds=(np.log(0.5), 2.0)
    )


torch.manual_seed(0)
config = TransformerConfig(VOCABULARY, d_model=64, num_layers=3, context=CONTEXT)
model = LanguageModel(TransformerLM(config, feed_forward=block))
guide = EVEGuide(model)

# %% [markdown]
# MC-NLL rewards noise where it helps the average over draws, token by token. Its graph is recorded
# once (`CompiledELBO`; `backend="inductor"` would compile it too, which pays in longer runs).

# %%
from eve_pyro.infer import MCNLL_ELBO, CompiledELBO
from eve_pyro.nn import weight_decay_groups

loss = CompiledELBO(MCNLL_ELBO(2, max_plate_nesting=2), backend="eager")(model, guide)
optimizer = torch.optim.AdamW(weight_decay_groups(model, 0.1), lr=3e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, STEPS, pct_start=0.1)
losses = []
while len(losses) < STEPS:
    for inputs, targets in train.batches(16, seed=0, epoch=len(losses) // (len(train) // 16)):
        if len(losses) == STEPS or len(inputs) < 16:
            break
        optimizer.zero_grad()
        value = loss(inputs, targets) / targets.numel()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(value.item())

figure, ax = plt.subplots(figsize=(6.4, 2.8), layout="constrained")
ax.plot(pd.Series(losses).rolling(20, min_periods=1).mean())
ax.set(xlabel="step", ylabel="training loss (nats per token)")
plt.show()

# %% [markdown]
# ## Every token's uncertainty
#
# `evaluate` averages the next token's distribution over posterior draws. Its entropy splits into
# the mean entropy of a draw, and the rest: the mutual information (MI) between the token and the
# draw. The first part is the text's own openness, as the model sees it; MI is what the draws do
# not agree on.

# %%
from eve_pyro.experiments.studies.language.evaluation import evaluate

result = evaluate(model, test, num_samples=DRAWS, layer_windows=WINDOWS // 4)
names = ["ce", "perplexity", "accuracy", "ece", "entropy", "mutual_information", "flip_rate"]
pd.Series(result.scores)[names].round(3)

# %% [markdown]
# Three windows of the test text. A token's colour is of the prediction *before* it was read.

# %%
from eve_pyro.diagnostics import plot_tokens

passage = result.tokens[result.tokens.window.between(PASSAGE, PASSAGE + 2)]
words = [tokenizer.decode([token]) for token in passage.target]
plot_tokens(words, passage.entropy, label="entropy (nats)").figure

# %%
plot_tokens(words, passage.mutual_information, label="MI (nats)").figure

# %% [markdown]
# Entropy is high almost everywhere, around 4.7 nats of the 6.9 of a blind guess: this is a small
# model after a minute of training. MI is a few hundredths of a nat at most. Nearly all that the
# model does not know, its draws agree on not knowing; the floor under $\sigma$ keeps them apart,
# not very far. And the two are not one signal in two sizes: inside words entropy is lower and MI
# is higher. Over all of the test text:

# %%
tokens = result.tokens
inside = tokens.target.map(lambda token: tokenizer.decode([token])[0].isalpha())
kind = inside.map({True: "inside a word", False: "begins a word, or a sign"}).rename("token")
tokens.groupby(kind)[["entropy", "expected_entropy", "mutual_information", "correct"]].mean().round(
    3
)

# %% [markdown]
# ## Layer by layer
#
# KL and $\sigma$ of a layer's units at every token, and the part of MI that arises when this layer
# alone draws and the others stand at their means (`layer_epistemic`), as a share of all.

# %%
from eve_pyro.diagnostics import layer_epistemic, posterior_statistics

inputs, targets = (t.unsqueeze(0) for t in test[PASSAGE])
stats = posterior_statistics(model, guide, inputs, targets, seed=0)
found = layer_epistemic(model, guide, inputs, num_samples=4 * DRAWS, seed=0)
panels = {
    "KL (nats per token)": stats.kl.sum("unit").isel(obs_id=0),
    "σ, mean over units": stats.sigma.mean(["unit", "latent"]).isel(obs_id=0),
    "share of MI": (found.alone / found.total).isel(obs_id=0),
}
figure, axes = plt.subplots(3, 1, figsize=(11, 5.4), sharex=True, layout="constrained")
for ax, (label, values) in zip(axes, panels.items(), strict=True):
    image = ax.imshow(values.transpose("layer", "position"), aspect="auto", cmap="cividis")
    figure.colorbar(image, label=label)
    ax.set_yticks(range(3), ["1", "2", "3"])
    ax.set_ylabel("layer")
shown = [tokenizer.decode([token]).replace("\n", "↵") for token in inputs[0]]
axes[-1].set_xticks(range(CONTEXT), shown, rotation=90, fontsize="small")
plt.show()

# %%
result.layers.reset_index(drop=True)[
    ["kl", "sigma", "active_fraction", "mutual_information", "share"]
].round(4)

# %% [markdown]
# All three layers are in use, and none accounts for the doubt alone. Which one is unsure changes
# from token to token: this is what an uncertainty inside the network shows and one at its output
# cannot. Shares of single layers need not sum to 1. A KL that stands out is a token on which units
# say something definite; $\sigma$ close to 1 that they mostly pass the prior's noise on.
#
# ## Does it know its errors?
#
# A wrong token is one that was not the most probable. A risk-coverage curve keeps the tokens that
# a signal is surest of, and counts the wrong ones among them.

# %%
from eve_pyro.diagnostics import aurc, auroc, plot_risk_coverage, risk_coverage

wrong = 1 - tokens.correct
signals = {
    "1 - max probability": 1 - tokens.max_probability,
    "entropy": tokens.entropy,
    "MI": tokens.mutual_information,
    "KL of all layers": tokens.kl,
}
curves = {name: risk_coverage(values, wrong) for name, values in signals.items()}
plot_risk_coverage(curves, risk_label="share of wrong tokens").figure

# %%
pd.DataFrame(
    {
        name: {"AUROC": auroc(values, wrong == 1), "AURC": aurc(values, wrong)}
        for name, values in signals.items()
    }
).T.round(3)

# %% [markdown]
# The plain maximum of the averaged probabilities is best, entropy next. MI is hardly better than
# no ranking, KL is none at all. Most of this model's errors are forks in the text, where all draws
# see the same many ways to go on; that is no disagreement, and MI does not count it. To know which
# token will be wrong, ask for the probability.
#
# ## Garbled text
#
# A share of the context's tokens is replaced by random ones. Below, these are framed, and a
# token's colour is MI *after* it was read, about the token to come.

# %%
from eve_pyro.data.text import corrupt_tokens
from eve_pyro.infer import StreamingPredictive

garbled, replaced = corrupt_tokens(inputs, 0.1, VOCABULARY, seed=1)
predict = StreamingPredictive(model, guide, 4 * DRAWS)
clean, dirty = (predict(each, seed=0).epistemic[0] for each in (inputs, garbled))
limits = (0.0, float(torch.cat((clean, dirty)).quantile(0.99)))
words = [tokenizer.decode([token]) for token in garbled[0]]
plot_tokens(words, dirty, label="MI (nats)", limits=limits, marked=replaced[0]).figure

# %%
from eve_pyro.experiments.studies.language.shift import response_to_corruption

rates = [0.1, 0.2, 0.4]
shift = response_to_corruption(model, valid, rates, vocab_size=VOCABULARY, num_samples=DRAWS)
signals = ["max_probability", "entropy", "mutual_information", "kl"]
shift[["rate", "ce", "accuracy", "entropy", "mutual_information"]].round(3)

# %%
figure, ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
for name in signals:
    ax.plot(shift.rate, shift[f"detect_{name}"], marker="o", label=name.replace("_", " "))
ax.axhline(0.5, color="grey", linestyle="--", linewidth=1)
ax.set(xlabel="share of replaced tokens", ylabel="AUROC, garbled against clean")
ax.legend()
plt.show()

# %% [markdown]
# The curves say how well a window of 64 tokens is known to be garbled from a signal's mean over
# it, without its targets. Losses rise steeply, but the entropy of the predictions stays what it
# was: on nonsense the model is as sure as ever or more so, and max probability and entropy err to
# the wrong side of 0.5. MI goes the other way: a poor witness of single errors, it is the better
# one of text that is not like the training text. How good differs between trainings: with two
# other seeds its AUROC at a share of 0.4 was 0.91 and 0.68, that of entropy 0.39 and 0.37. One
# small model of one book: no more than that.
#
# ## Generation that stops
#
# Thresholds are chosen on validation text: at the least certain tenth of its tokens. `generate`
# tells entropy and MI of every token before it is drawn, so to stop is to cut at the first one
# above the threshold. First, what the thresholds are worth on test text:

# %%
validation = evaluate(model, valid, num_samples=DRAWS).tokens
thresholds = validation[["entropy", "mutual_information"]].quantile(0.9)
rows = {}
for name, threshold in thresholds.items():
    above = tokens[name] > threshold
    rows[name] = {
        "threshold (nats)": threshold,
        "share above": above.mean(),
        "wrong among these": wrong[above].mean(),
        "wrong among the rest": wrong[~above].mean(),
    }
pd.DataFrame(rows).T.round(3)

# %% [markdown]
# Now text of the model's own. Framed tokens are those at which it would not have gone on.

# %%
from eve_pyro.infer import generate

prompt = "The whale"
start = torch.tensor([tokenizer.encode(prompt)])
text = generate(model, start, CONTEXT - start.shape[1], num_samples=DRAWS, top_k=20, seed=3)
pieces = [tokenizer.decode([token]) for token in text.tokens[0]]
unsure = text.mutual_information[0] > thresholds["mutual_information"]
plot_tokens(pieces, text.mutual_information[0], label="MI (nats)", marked=unsure).figure

# %%
open_ended = text.entropy[0] > thresholds["entropy"]
for name, above in {"entropy": open_ended, "MI": unsure}.items():
    stop = int(above.int().argmax()) if above.any() else len(above)
    print(f"by {name}: {int(above.sum())} of {len(above)} tokens above the threshold")
    print(f"  {prompt}{tokenizer.decode(text.tokens[0, :stop])} [...]")

# %% [markdown]
# Entropy's threshold is worth something on test text: above it, nearly all is wrong. MI's hardly
# is, as the risk-coverage curves said. What MI stops at is mostly the middle of words that the
# model has half made up, entropy at the openings. Which of them to stop at is a question of what
# for: by probability or entropy to avoid errors, by MI to notice ground that the model does not
# know.
#
# The blocks here draw anew at every token. With `shared_noise=True` a draw is one reading of the
# whole text: see [docs/transformers.md](../docs/transformers.md), which also has Transformers that
# you did not build with this package.
