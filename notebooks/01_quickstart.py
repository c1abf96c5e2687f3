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
# # Quickstart
#
# A *distributional neuron* is a hidden unit that does not compute a number but a distribution.
# From its input $h$ it infers a local posterior, draws from it, and emits an activation:
#
# $$q(z \mid h) = N\big(\mu(h), \sigma(h)^2\big), \qquad z \sim q(z \mid h), \qquad a = g(z, h).$$
#
# It pays $\beta \, \mathrm{KL}(q(z \mid h) \,\|\, N(0, 1))$ nats for what it claims to know.
# This notebook builds a network of such units, trains it with Pyro's own `SVI`, predicts, and then
# changes one thing: the objective.

# %%
import os

# The one switch: EVE_PYRO_SMOKE=1 runs everything in seconds, on too few steps to learn much.
SMOKE = os.environ.get("EVE_PYRO_SMOKE") == "1"
EPOCHS = 3 if SMOKE else 150
DRAWS = 16 if SMOKE else 256

# %% [markdown]
# ## Data
#
# A curve whose noise changes along $x$: quiet around $-1.3$, loud around $0.8$.

# %%
import matplotlib.pyplot as plt
import pandas as pd
import pyro
import pyro.distributions as dist
import torch

pyro.set_rng_seed(0)


def noise_scale(x):
    return 0.05 + 0.2 * (1 + torch.sin(1.5 * x + 0.4))


def make(rows):
    x = torch.rand(rows, 1) * 6 - 3
    mean = torch.sin(2 * x) + 0.3 * x
    return x, (mean + noise_scale(x) * torch.randn(rows, 1)).squeeze(-1)


(x, y), validation, (x_test, y_test) = make(1000), make(300), make(1000)

# %% [markdown]
# ## Model
#
# `EVEModule` stands where a `Linear` and its activation stood. Everything around it is an ordinary
# Pyro model: here with one output scale for all inputs.

# %%
from eve_pyro import EVEGuide, EVEModule


class Regressor(pyro.nn.PyroModule):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Sequential(EVEModule(1, 32), EVEModule(32, 32))
        self.loc = torch.nn.Linear(32, 1)
        self.log_scale = torch.nn.Parameter(torch.tensor(-1.0))

    def forward(self, x, y=None):
        with pyro.plate("data", len(x)):
            loc = self.loc(self.hidden(x)).squeeze(-1)
            return pyro.sample("y", dist.Normal(loc, self.log_scale.exp()), obs=y)


pyro.set_rng_seed(1)
model = Regressor()
guide = EVEGuide(model)

# %% [markdown]
# The model reads every latent from its prior. `EVEGuide` runs the same program with each EVE site
# drawn from the layer's posterior; one run gives both traces of an ELBO. Sites are named by the
# layer's path.

# %%
{site: tuple(z.shape) for site, z in guide(x[:5]).items()}

# %% [markdown]
# ## Train with `SVI`

# %%
from pyro.infer import SVI, Trace_ELBO

svi = SVI(model, guide, pyro.optim.Adam({"lr": 5e-3}), Trace_ELBO())
losses = []
for _ in range(EPOCHS):
    for rows in torch.randperm(len(x)).split(100):
        losses.append(svi.step(x[rows], y[rows]) / len(rows))

print(f"{losses[0]:.2f} -> {sum(losses[-10:]) / 10:.2f} nats per datum")

# %% [markdown]
# ## Predict
#
# `StreamingPredictive` draws the latents $S$ times and keeps the mixture of the resulting
# predictions, a distribution like any other: `mean`, `log_prob`, `quantile`, `interval`, `sample`.

# %%
from eve_pyro.diagnostics import plot_predictive_band
from eve_pyro.infer import StreamingPredictive

grid = torch.linspace(-3, 3, 300)
on_grid = StreamingPredictive(model, guide, DRAWS)(grid[:, None], seed=0)
print(on_grid.interval(0.9)[0][:3])  # lower ends

ax = plot_predictive_band(grid, on_grid)
ax.plot(x[:300], y[:300], ".", color="black", markersize=3, alpha=0.5)
ax.figure

# %% [markdown]
# The mean is good. The band is as wide where the data are quiet as where they are loud: one output
# scale carries all the noise, and the units' own spread (hatched) adds the same little everywhere.
# That is no failure of training. It is the optimum of this objective, as
# [the next notebook](02_one_neuron.ipynb) derives in three lines.
#
# ## Another objective
#
# `MCNLL_ELBO` moves the average over draws inside the logarithm,
#
# $$-\sum_n \log \frac1S \sum_s p(y_n \mid z_{ns}) + \beta \, \mathrm{KL},$$
#
# so that draws may differ where the data do. `Trainer` does the rest: shuffled mini-batches, a
# learning rate that falls along a cosine, the best epoch by validation.

# %%
from eve_pyro.diagnostics import plot_training
from eve_pyro.infer import MCNLL_ELBO, Trainer, TrainingConfig

pyro.set_rng_seed(1)
model2 = Regressor()
config = TrainingConfig(epochs=EPOCHS, batch_size=100, learning_rate=5e-3, progress=False)
elbo = MCNLL_ELBO(16, max_plate_nesting=1)  # 1: the plate "data"; else a first run finds out
trainer = Trainer(model2, elbo=elbo, config=config)
history = trainer.fit(x, y, validation=validation)
plot_training(history).figure

# %%
on_grid2 = StreamingPredictive(model2, trainer.guide, DRAWS)(grid[:, None], seed=0)

figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True, layout="constrained")
for ax, title, y_hat in zip(axes, ("Trace_ELBO", "MCNLL_ELBO"), (on_grid, on_grid2), strict=True):
    plot_predictive_band(grid, y_hat, ax=ax)
    ax.plot(x[:300], y[:300], ".", color="black", markersize=3, alpha=0.5)
    ax.set_title(title)
axes[1].set_ylabel("")
plt.show()

# %% [markdown]
# The same network, the same data. Now the units' posteriors widen where the noise does.
#
# Mind the word *epistemic* in the legend: the predictor calls so whatever draws disagree about.
# Under `MCNLL_ELBO` the draws were taught to disagree as much as the data do, so the hatched band
# holds noise, which more data will not remove. The plain ELBO leaves the noise to the output scale.

# %%
from eve_pyro.metrics import evaluate

scores = {
    name: evaluate(StreamingPredictive(m, g, DRAWS)(x_test, seed=0), y_test)
    for name, m, g in (
        ("Trace_ELBO", model, guide),
        ("MCNLL_ELBO", model2, trainer.guide),
    )
}
pd.DataFrame(scores).T[["rmse", "nll", "crps", "coverage", "width"]].round(3)

# %% [markdown]
# Scores are averages over test data; `nll` in nats, `coverage` and `width` of the central 90 %
# interval. The error of the mean is the same. *On average* the first interval holds about 90 % of
# the data, but it holds too many where they are quiet and too few where they are noisy; the second
# follows the noise, and errs on the wide side (its coverage is above 0.9). Likelihood and CRPS see
# the difference. (The true mean and noise would score an NLL of -0.27.)
#
# ## Look inside
#
# A network is an ordinary module, and two handlers run it outside inference: at the posterior
# means, or on a draw.

# %%
from eve_pyro.infer import PosteriorDraw, PosteriorMean

points = torch.tensor([[-1.3], [0.8]])  # quiet, loud
with torch.no_grad():
    with PosteriorMean():
        print("at the means:     ", model2.loc(model2.hidden(points)).flatten())
    with PosteriorDraw():
        draws = torch.stack([model2.loc(model2.hidden(points)).flatten() for _ in range(DRAWS)])
print("spread of draws:  ", draws.std(0))
print("scale of the noise:", noise_scale(points).flatten())

# %% [markdown]
# Next: [one neuron under the microscope](02_one_neuron.ipynb), [tables](03_tables.ipynb),
# [diagnostics and ArviZ](04_diagnostics_and_arviz.ipynb),
# [other latents and parts of your own](05_your_own_parts.ipynb).
