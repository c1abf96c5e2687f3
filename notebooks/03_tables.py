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
# # Tables: what EVE gains, and what it does not
#
# Concrete strength from its mixture and age (1,030 rows, eight features): EVE beside the models one
# would otherwise use, all under one protocol. Same splits, same order of rows, same trunk of
# 2 x 64 units, best epoch by validation NLL, a temperature for *every* model.

# %%
import os

# The one switch: EVE_PYRO_SMOKE=1 runs everything in seconds, on too few steps to learn much.
SMOKE = os.environ.get("EVE_PYRO_SMOKE") == "1"
EPOCHS = 2 if SMOKE else 300
SEEDS = (100, 101) if SMOKE else (100, 101, 102, 103)  # a split and an initialisation each
DRAWS = 8 if SMOKE else 64

# %%
from dataclasses import asdict

import matplotlib.pyplot as plt
import pandas as pd

from eve_pyro.data import load_concrete
from eve_pyro.experiments import MODELS, Protocol, fit, score, summarise
from eve_pyro.infer import TrainingConfig

table = load_concrete()
protocol = Protocol(TrainingConfig(epochs=EPOCHS, progress=False), num_samples=DRAWS)
names = ("mlp", "hetero-mlp", "mc-dropout", "eve")
table

# %% [markdown]
# A model is a configuration. Settings were chosen on seeds 0 to 3, which are not used below.

# %%
settings = ["unit", "hidden", "head", "objective", "particles", "unit_options"]
pd.DataFrame({name: asdict(MODELS[name]) for name in names}).T[settings]

# %%
fits = {(name, seed): fit(table, MODELS[name], seed, protocol) for seed in SEEDS for name in names}
scores = pd.DataFrame(
    {"model": name, "seed": seed, **score(result, table, protocol)}
    for (name, seed), result in fits.items()
)

# %% [markdown]
# ## Scores
#
# Means over the seeds. NLL in nats per datum, RMSE and CRPS in MPa, *raw* as trained and
# *calibrated* after the temperature.

# %%
columns = {
    "raw_mc_nll_unit": "NLL raw",
    "calibrated_mc_nll_unit": "NLL calibrated",
    "calibrated_crps_unit": "CRPS",
    "calibrated_rmse_unit": "RMSE",
    "raw_coverage": "90 % raw",
    "calibrated_coverage": "90 % calibrated",
    "temperature": "temperature",
    "parameters": "parameters",
    "seconds": "training, s",
}
means = summarise(scores, "mlp")["mean"].unstack("score").loc[list(names)]
means[list(columns)].rename(columns=columns).round(3)

# %% [markdown]
# Differences from the plain MLP, seed by seed; negative is better.

# %%
pairs = summarise(scores, "mlp").drop("mlp", level="model")
compared = ["calibrated_mc_nll_unit", "calibrated_crps_unit", "calibrated_rmse_unit"]
rows = pairs.loc[(slice(None), compared), ["difference", "difference_sd", "wins", "seeds"]]
rows.rename(index=columns, level="score").round(3)

# %% [markdown]
# What four seeds show, and what they do not:
#
# - **MC-dropout is the model to beat.** It has the best mean NLL, CRPS and RMSE, at half of EVE's
#   parameters and training time, and needs hardly any temperature.
# - EVE improves on the plain MLP as trained: in likelihood, and by intervals that hold closer to
#   90 %. After both had their temperature the difference is smaller than its own spread over seeds,
#   and the RMSE is the same. EVE has twice the parameters here and trains three times as long.
# - The heteroscedastic MLP over-fits: a scale for every row invites certainty that does not hold.
# - Splits differ more than models do: no difference here wins on all seeds. Compare on more of them
#   before you conclude (`eve-pyro demo --seeds 20`).
#
# ## Calibration, before and after
#
# Coverage of central intervals on the test rows of the first seed.

# %%
from eve_pyro.diagnostics import plot_calibration

first = {name: fits[name, SEEDS[0]] for name in names}
test = first["mlp"].data.test  # one seed, one split: the same rows for all

figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.6), layout="constrained")
for ax, calibrated in zip(axes, (False, True), strict=True):
    curves = {n: f.predict(test.x, calibrated=calibrated) for n, f in first.items()}
    plot_calibration(curves, test.y, ax=ax)
    ax.set_title("after the temperature" if calibrated else "as trained")
axes[1].set_ylabel("")
plt.show()

# %% [markdown]
# The probability integral transform says *how* a prediction is off: a U for intervals too narrow,
# a hump for too wide, a slope for a bias.

# %%
from eve_pyro.diagnostics import plot_pit

figure, axes = plt.subplots(2, 2, figsize=(9.5, 6), sharex=True, layout="constrained")
for row, name in zip(axes, ("hetero-mlp", "eve"), strict=True):
    for ax, calibrated in zip(row, (False, True), strict=True):
        plot_pit(first[name].predict(test.x, calibrated=calibrated), test.y, bins=10, ax=ax)
        state = "after the temperature" if calibrated else "as trained"
        ax.set(title=f"{name}, {state}", ylim=(0, 2.5))
        ax.label_outer()
plt.show()

# %% [markdown]
# ## Predictions in the target's own unit

# %%
from eve_pyro.diagnostics import plot_predictions

target = first["eve"].data.target
shift, scale = float(target.shift), float(target.scale)
y_unit = shift + scale * test.y
in_units = {name: f.predict(test.x).affine(shift, scale) for name, f in first.items()}
plot_predictions(in_units["eve"], y_unit, unit="MPa").figure

# %% [markdown]
# ## Does the uncertainty find the errors?
#
# Leave out the rows whose predictive standard deviation is largest: how large is the mean error of
# those that stay? The plain MLP has one standard deviation for all rows and can rank nothing.
# Two questions, two answers: the right end of a curve is the model's error, its slope how well its
# uncertainty ranks errors. On this split MC-dropout errs least and ranks worst.

# %%
from eve_pyro.diagnostics import plot_risk_coverage, risk_coverage

curves = {}
for name, y_hat in in_units.items():
    curves[name] = risk_coverage(y_hat.stddev, (y_hat.mean - y_unit).abs())
plot_risk_coverage(curves, risk_label="mean |error| of the rows kept (MPa)").figure

# %% [markdown]
# Signals from inside the network compete on the same terms. `aurc` is the area under such a curve
# (lower is better), `auroc` the probability that an error out of the largest tenth has a larger
# signal than one that is not; `oracle` is the best possible ranking, `random` none.

# %%
from eve_pyro.diagnostics import decision_table, posterior_statistics

eve = first["eve"]
stats = posterior_statistics(eve.networks[0], eve.guides[0], test.x, seed=0)
decision_table(in_units["eve"], y_unit, stats).round(3)

# %% [markdown]
# ## Noise, or disagreement of draws?
#
# The predictive variance is the mean variance within a draw (*aleatoric*) plus the variance of the
# draws' means (*epistemic*). Test rows in the order of their predictive variance, in MPa²:

# %%
from eve_pyro.diagnostics import plot_uncertainty_split

figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True, layout="constrained")
for ax, name in zip(axes, ("mc-dropout", "eve"), strict=True):
    plot_uncertainty_split(in_units[name], unit="MPa", ax=ax)
    ax.set_title(name)
axes[0].set_ylim(0, max(ax.get_ylim()[1] for ax in axes))
axes[1].set_ylabel("")
plt.show()

# %% [markdown]
# Both have one output scale, so all that changes from row to row is the disagreement of draws.
# For EVE, whose objective scores the average over draws, it stands in for noise as well (see [one
# neuron](02_one_neuron.ipynb)): the names are those of the decomposition, not a verdict on what
# more data would remove.
#
# ## Keep the model
#
# In the table's own units, with scalers and temperature, in one file without executable code:

# %%
from tempfile import TemporaryDirectory

from eve_pyro.experiments import TabularModel

with TemporaryDirectory() as folder:
    TabularModel.from_fit(eve, table).save(f"{folder}/concrete.pt")
    model = TabularModel.load(f"{folder}/concrete.pt")
y_hat = model.predict(table.X[:3])
lower, upper = y_hat.interval(0.9)
pd.DataFrame(
    {"observed": table.y[:3], "mean": y_hat.mean, "lower": lower, "upper": upper}, dtype=float
).round(1)
