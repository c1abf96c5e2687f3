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
# # Diagnostics and ArviZ
#
# What the units of a network do: statistics of their posteriors on data, tables and pictures of
# layers, a record of training. Then the same network's draws in ArviZ, and what its numbers mean
# for a variational posterior.

# %%
import os

# The one switch: EVE_PYRO_SMOKE=1 runs everything in seconds, on too few steps to learn much.
SMOKE = os.environ.get("EVE_PYRO_SMOKE") == "1"
EPOCHS = 2 if SMOKE else 80
DRAWS = 50 if SMOKE else 500

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyro

from eve_pyro.data import load_concrete, split, standardize
from eve_pyro.infer import MCNLL_ELBO, StreamingPredictive, Trainer, TrainingConfig
from eve_pyro.metrics import nll, rmse
from eve_pyro.nn import MLP, DropoutUnit, GaussianHead, Network

table = load_concrete()
data = standardize(table, split(table, seed=0))

# %% [markdown]
# ## A network of three residual layers
#
# Each block adds its units' emission to what it was given. `Monitor` records the table of layers on
# a fixed probe batch every so many steps: as the trainer's callback, or called in a loop of yours.

# %%
from eve_pyro.diagnostics import Monitor


def build(seed=0, **options):
    pyro.set_rng_seed(seed)
    return Network(MLP(8, [32] * 3, residual=True, **options), GaussianHead(32, scale_init=0.5))


def train(network, elbo=None, *, seed=0):
    """Train, by the plain ELBO unless another is given; return the guide and the monitor."""
    config = TrainingConfig(epochs=EPOCHS, seed=seed, progress=False)
    trainer = Trainer(network, elbo=elbo, config=config)
    monitor = Monitor(network, trainer.guide, data.validation.x, every=20)
    monitor.record(0)
    trainer.fit(*data.train, validation=data.validation, callback=monitor)
    return trainer.guide, monitor


network = build()
guide, monitor = train(network)

# %% [markdown]
# ## Every unit on every input
#
# `posterior_statistics` is one guide pass; the result is an `xarray.Dataset`.

# %%
from eve_pyro.diagnostics import layer_table, posterior_statistics, unit_table

stats = posterior_statistics(network, guide, data.test.x, seed=0)
print(stats)

# %% [markdown]
# Reductions are xarray's. The layer's KL per input, in nats:

# %%
stats.kl.sum("unit").mean("obs_id").to_series().round(2)

# %% [markdown]
# `layer_table` does the usual reductions at once, and raises flags; `unit_table` has a row per
# unit.

# %%
layers = layer_table(stats)
shown = ["kl", "kl_effective", "sigma", "sigma_min", "sigma_max", "energy", "active_fraction"]
layers[[*shown, "collapsed", "saturated"]].round(3)

# %%
units = unit_table(stats)
units.loc["trunk.layer2.unit", ["kl", "sigma", "energy", "activity", "active"]].head().round(3)

# %%
from eve_pyro.diagnostics import plot_layers, plot_neurons

plot_layers(layers).figure

# %% [markdown]
# A heat map has a row per unit and a column per observation, here ordered by the concrete's age.
# Blocks are rows on which the same units are unsure together; at the right edge those of old
# concrete.

# %%
age = table.X[split(table, seed=0).test, table.feature_names.index("age")]
first = stats.sigma.sel(layer="trunk.layer0.unit").squeeze("latent").dropna("unit")
plot_neurons(first, age, order_label="age (days)").figure

# %% [markdown]
# ## A layer that collapsed
#
# The same network, but the second layer's information is priced out of the market: $\beta = 30$
# there, $10^{-3}$ elsewhere.

# %%
network2 = build()
network2.trunk.layer1.unit.set_beta(30.0)
guide2, monitor2 = train(network2)

scores = {}
for name, pair in {"healthy": (network, guide), "collapsed": (network2, guide2)}.items():
    y_hat = StreamingPredictive(*pair, DRAWS)(data.test.x, seed=0)
    scores[name] = {"nll": nll(y_hat, data.test.y).item(), "rmse": rmse(y_hat, data.test.y).item()}
pd.DataFrame(scores).T.round(3)

# %% [markdown]
# The skip connection carries the input past the dead layer, so the network still predicts, only
# worse. Scores do not say why; the table does.

# %%
layer_table(posterior_statistics(network2, guide2, data.test.x, seed=0))[
    ["beta", "kl", "sigma", "active_fraction", "dead_fraction", "collapsed"]
].round(4)

# %% [markdown]
# KL near zero is the sign, with $\sigma = 1$: the posterior *is* the prior, whatever the input, and
# the layer passes on noise. A large $\sigma$ alone would be what the prior wants anyway. The record
# of training shows when it happened:

# %%
from eve_pyro.diagnostics import plot_evolution

figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
for ax, title, record in zip(
    axes, ("healthy", "collapsed"), (monitor.frame, monitor2.frame), strict=True
):
    plot_evolution(record, "kl", label="KL per unit (nats)", ax=ax)
    ax.set(title=title, yscale="symlog", ylim=(0, 10))
axes[1].set_ylabel("")
plt.show()

# %% [markdown]
# ## The draws in ArviZ
#
# `to_arviz` runs a *probe batch* of held-out rows, its target given as `observed`. (ArviZ has two
# lines, 0.2x and 1.x. The calls that differ between them are those that ask for `NEW`.)

# %%
import warnings

import arviz as az

from eve_pyro.diagnostics import get_group, group_names, to_arviz
from eve_pyro.diagnostics.arviz_compat import is_datatree_line

NEW = is_datatree_line()
# ArviZ 0.2x calls pandas in a way that pandas is about to drop.
warnings.filterwarnings("ignore", "The inplace keyword in DataFrame", module="arviz")

x, y = data.test.x[:100], data.test.y[:100]
idata = to_arviz(network, guide, x, observed=y, num_samples=DRAWS, seed=0)
group_names(idata)

# %% [markdown]
# Latents are called by their site. Four units of the last layer, on one input:

# %%
last = "trunk.layer2.unit"
az.summary(idata, var_names=[last], coords={"obs_id": 0, "unit": [0, 1, 2, 3]}, kind="stats")

# %%
ess = az.ess(get_group(idata, "posterior")[[last]])[last]
low, middle, high = np.quantile(ess, [0.05, 0.5, 0.95])
print(f"ESS of {DRAWS} draws: median {middle:.0f}, nine in ten from {low:.0f} to {high:.0f}")

# %% [markdown]
# **What ESS and R-hat mean here.** The draws are independent draws of $q$; there is no chain. ESS
# is the number of draws up to the noise of its estimate: it says how well the *draws* pin down
# $q$, not that training has converged, nor that $q$ is right. A $q$ that is wrong everywhere has
# a perfect ESS. R-hat compares chains, and one model is one chain: there is nothing to compare
# until there are several models, below.
#
# The posterior predictive check compares the distribution of the 100 targets with that of 100 drawn
# ones, again and again:

# %%
if NEW:
    az.plot_ppc_dist(idata)
else:
    az.plot_ppc(idata, num_pp_samples=50, random_seed=0, figsize=(7, 3.2))
plt.show()

# %% [markdown]
# ## EVE against a control, by LOO
#
# The control is the same trunk with MC-dropout. (A network without random variables has no draws,
# hence no LOO: compare it by `eve_pyro.metrics`.)

# %%
# That some Pareto k are large is no surprise here; the table below looks at them.
warnings.filterwarnings("ignore", "Estimated shape parameter of Pareto", UserWarning)

dropout = build(unit=DropoutUnit, p=0.1)
config = TrainingConfig(epochs=EPOCHS, progress=False)
trainer = Trainer(dropout, config=config)
trainer.fit(*data.train, validation=data.validation)
control = to_arviz(dropout, trainer.guide, x, observed=y, num_samples=DRAWS, seed=0)
print(az.loo(idata))

# %%
az.compare({"eve": idata, "dropout": control})

# %% [markdown]
# **What this estimates.** PSIS-LOO undoes what a datum has done to the posterior, by weighting
# draws with $1 / p(y_n \mid z)$. But the latents of a row, $q(z_n \mid x_n)$, have not seen
# $y_n$: there is nothing to undo. On held-out rows the score is $\log \frac1S \sum_s p(y_n \mid
# z_s)$. `az.loo` puts the harmonic mean in place of the arithmetic one, which is lower the more
# draws disagree about $y_n$; `p_loo` is the gap, not a number of parameters. So set the
# predictive score beside it, here with a third model: the same EVE network trained by MC-NLL,
# whose draws disagree by design.

# %%
network3 = build()
guide3, _ = train(network3, MCNLL_ELBO(8, max_plate_nesting=1))
idata3 = to_arviz(network3, guide3, x, observed=y, num_samples=DRAWS, seed=0)

rows = {}
for name, draws in {"eve": idata, "dropout": control, "eve, MC-NLL": idata3}.items():
    log_p = get_group(draws, "log_likelihood")["y"].values[0]  # (draws, rows)
    loo = az.loo(draws, pointwise=True)
    rows[name] = {
        "predictive": float((np.logaddexp.reduce(log_p, 0) - np.log(len(log_p))).sum()),
        "az.loo": float(loo.elpd if NEW else loo.elpd_loo),
        "k > 0.7": float((loo.pareto_k > 0.7).mean()),
    }
pd.DataFrame(rows).T.round(2)

# %% [markdown]
# Sums over 100 rows, in nats. The two columns rank the models differently: `az.loo` charges a model
# for every disagreement of its draws, the predictive score only for a wrong average. For MC-NLL the
# estimate has broken down, as half of its Pareto k say. For latents of a row, rank by the
# predictive score (`eve_pyro.metrics.nll`); `az.loo` is right for latents that all rows share, such
# as random weights or those of [the next notebook](05_your_own_parts.ipynb).

# %% [markdown]
# ## Several models as chains
#
# Models of one architecture, trained from other seeds, become chains. Now R-hat compares what
# different trainings arrived at. Below, each line is one model.

# %%
others = [build(seed) for seed in (1, 2)]
networks = [network, *others]
guides = [guide, *(train(other, seed=seed)[0] for seed, other in zip((1, 2), others, strict=True))]
chains = to_arviz(
    networks, guides, x, observed=y, num_samples=DRAWS, seed=0, coords={"chain": [0, 1, 2]}
)

# %%
views = {
    "latents of the last layer, one input": ("posterior", last, {"obs_id": [0], "unit": range(6)}),
    "predictions, six inputs": ("posterior_predictive", "y", {"obs_id": range(6)}),
}
for title, (group, name, coords) in views.items():
    options = {"var_names": [name], "coords": {k: list(v) for k, v in coords.items()}}
    if NEW:
        az.plot_forest(chains, group=group, combined=False, **options)
    else:
        az.plot_forest(get_group(chains, group), figsize=(7, 3.2), textsize=9, **options)
    plt.title(title)
    plt.show()

# %%
rhat = {
    "latents of the last layer": az.rhat(get_group(chains, "posterior")[[last]]),
    "KL of the layers": az.rhat(get_group(chains, "sample_stats")[["kl"]].isel(layer=[1, 2])),
    "predictions": az.rhat(get_group(chains, "posterior_predictive")),
}
pd.Series({name: float(r.to_array().median()) for name, r in rhat.items()}).round(2)

# %% [markdown]
# The median R-hat of each kind. Unit 3 of one network is not unit 3 of another, so the latents do
# not agree, and need not. Nor does the KL of a layer, whose draws hardly vary within one model.
# What networks share are predictions: near 1, the seeds agree.
