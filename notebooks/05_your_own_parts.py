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
# # Other latents, and parts of your own
#
# EVE layers are sites of an ordinary Pyro model. Three things follow: other latent variables can
# stand beside them, every part of a layer can be replaced, and the target can be of any kind.

# %%
import os

# The one switch: EVE_PYRO_SMOKE=1 runs everything in seconds, on too few steps to learn much.
SMOKE = os.environ.get("EVE_PYRO_SMOKE") == "1"
STEPS = 10 if SMOKE else 2000
EPOCHS = 2 if SMOKE else 150
DRAWS = 50 if SMOKE else 500

# %%
import matplotlib.pyplot as plt
import pandas as pd
import pyro
import pyro.distributions as dist
import torch
from torch import nn

from eve_pyro import EVEGuide, EVEModule

# %% [markdown]
# ## EVE layers beside a hierarchical model
#
# Eight laboratories measure one curve. Each has a bias of its own, and some measured little. The
# curve is a network's business, the biases a textbook's: a common scale $\tau$, partial pooling.

# %%
LABS, COUNTS = 8, [200, 200, 100, 60, 40, 20, 8, 4]

pyro.set_rng_seed(3)
true_bias = torch.tensor([0.6, -0.5, 0.1, -0.9, 0.4, 0.9, -0.2, -0.4])
lab = torch.arange(LABS).repeat_interleave(torch.tensor(COUNTS))
x = torch.rand(len(lab), 1) * 6 - 3
curve = torch.sin(2 * x) + 0.3 * x
y = curve.squeeze(-1) + true_bias[lab] + 0.3 * torch.randn(len(lab))


class Laboratories(pyro.nn.PyroModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(EVEModule(1, 32), EVEModule(32, 32), nn.Linear(32, 1))
        self.log_scale = nn.Parameter(torch.tensor(-1.0))

    def forward(self, x, lab, y=None):
        tau = pyro.sample("tau", dist.HalfNormal(1.0))
        with pyro.plate("labs", LABS):
            bias = pyro.sample("bias", dist.Normal(0.0, tau))
        with pyro.plate("data", len(x)):
            # [..., lab], not [lab]: draws may stand in front of the laboratories.
            loc = self.net(x).squeeze(-1) + bias[..., lab]
            return pyro.sample("y", dist.Normal(loc, self.log_scale.exp()), obs=y)


# %% [markdown]
# `EVEGuide(model, guide=AutoNormal)` gives EVE sites their own posteriors and all other sites to
# the autoguide, which never sees the EVE sites.

# %%
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal

pyro.set_rng_seed(1)
model = Laboratories()
guide = EVEGuide(model, guide=AutoNormal)
adam = pyro.optim.ClippedAdam({"lr": 5e-3, "lrd": 0.1 ** (1 / STEPS)})
svi = SVI(model, guide, adam, Trace_ELBO())
for _ in range(STEPS):
    svi.step(x, lab, y)

low, median, high = (
    guide.guide.quantiles([p])["bias"].detach().squeeze() for p in (0.05, 0.5, 0.95)
)

# %% [markdown]
# The network has an intercept too, so only differences between laboratories are identified: both
# axes are centred. The fewer rows, the wider q. (With mini-batches, give the data's plate the
# size of all data, as `Network` does with `num_data=`: latents outside that plate then still
# count once.)

# %%
centred = true_bias - true_bias.mean()
middle = median.mean()
figure, ax = plt.subplots(figsize=(5.2, 4.4), layout="constrained")
errors = torch.stack([median - low, high - median])
ax.errorbar(centred, median - middle, errors, fmt="o", capsize=3, label="median and 90 % of q")
for place, value, count in zip(centred, median - middle, COUNTS, strict=True):
    ax.annotate(f"{count} rows", (place, value), (8, -10), textcoords="offset points", fontsize=8)
ax.axline((0, 0), slope=1, color="grey", linestyle="--", linewidth=1, label="truth")
ax.set(xlabel="true bias", ylabel="inferred bias")
ax.margins(x=0.2)
ax.legend()
plt.show()

# %% [markdown]
# These latents are shared by many rows, their posteriors have seen the data, and ArviZ's summaries
# mean what they usually mean (up to $q$ being an approximation):

# %%
import arviz as az

from eve_pyro.diagnostics import to_arviz

idata = to_arviz(model, guide, x, lab, num_samples=DRAWS, latents=["tau", "bias"], seed=0)
az.summary(idata, var_names=["tau", "bias"], kind="stats")

# %% [markdown]
# ## A part of your own: the emission
#
# The emission is how a unit turns its latent into an activation, $a = g(z, h)$. `Emission` brings
# the readout of several latent dims (`pool`); the rest is yours. Here a unit answers with a wave.
#
# ## A part of your own: the prior
#
# A prior is any module from $h$ to a distribution. This one learns a scale per unit. At its optimum
# the gradient of $\mathrm{KL}(q \,\|\, N(0, s_k^2))$ vanishes, which is
# $s_k^2 = \mathrm{E}_x[\mu_k^2 + \sigma_k^2]$: empirical Bayes, and a check.

# %%
from eve_pyro.nn import Emission, GaussianHead, Network


class Wave(Emission):
    def forward(self, z, h):
        return torch.sin(3 * self.pool(z))


class LearnedScale(nn.Module):
    def __init__(self, units, latent_dim=1):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(units, latent_dim))

    def forward(self, h):
        scale = self.log_scale.exp()
        return dist.Normal(torch.zeros_like(scale), scale)


# %%
from eve_pyro.diagnostics import plot_predictive_band, posterior_statistics
from eve_pyro.infer import MCNLL_ELBO, StreamingPredictive, Trainer, TrainingConfig


def make(rows):
    x = torch.rand(rows, 1) * 6 - 3
    noise = (0.05 + 0.1 * (x + 3)) * torch.randn(rows, 1)
    return x, (torch.sin(2 * x) + 0.3 * x + noise).squeeze(-1)


pyro.set_rng_seed(0)
(x, y), (x_test, y_test) = make(1000), make(1000)


def fit_waves(prior):
    pyro.set_rng_seed(1)
    waves = EVEModule(1, 24, emission=Wave, prior=prior, beta=1e-2)
    network = Network(waves, GaussianHead(24, scale_init=0.5))
    config = TrainingConfig(epochs=EPOCHS, learning_rate=1e-2, progress=False)
    trainer = Trainer(network, elbo=MCNLL_ELBO(16, max_plate_nesting=1), config=config)
    trainer.fit(x, y)
    return network, trainer.guide


learned, fixed = fit_waves(LearnedScale(24)), fit_waves(None)

# %%
stats = posterior_statistics(*learned, x)
second_moment = (stats["mean"] ** 2 + stats.variance).mean("obs_id").squeeze()
scale = learned[0].trunk.prior.log_scale.exp().detach().squeeze()

grid = torch.linspace(-3, 3, 300)
figure, (left, right) = plt.subplots(
    1, 2, figsize=(10, 3.8), width_ratios=(1.6, 1), layout="constrained"
)
y_hat = StreamingPredictive(*learned, DRAWS)(grid[:, None], seed=0)
plot_predictive_band(grid, y_hat, ax=left)
left.plot(x[:300], y[:300], ".", color="black", markersize=3, alpha=0.5)
left.set_title("24 waves")
right.plot(second_moment**0.5, scale, "o", markersize=4)
right.axline((1, 1), slope=1, color="grey", linestyle="--", linewidth=1)
right.set(xlabel=r"$\sqrt{\mathrm{E}[\mu^2 + \sigma^2]}$ over inputs", ylabel="learned prior scale")
right.set_title("one dot per unit")
plt.show()

# %% [markdown]
# The dots lie on the diagonal: the priors have found their optimum. Is it a better model? That is
# a question for held-out scores, not for the KL, which a cheaper prior may well let grow:

# %%
from eve_pyro.metrics import evaluate

rows = {}
for name, pair in {"N(0, 1)": fixed, "learned scale": learned}.items():
    row = evaluate(StreamingPredictive(*pair, DRAWS)(x_test, seed=0), y_test)
    row["KL, nats per row"] = float(posterior_statistics(*pair, x_test).kl.sum("unit").mean())
    rows[name] = row
pd.DataFrame(rows).T[["nll", "crps", "rmse", "KL, nats per row"]].round(3)

# %% [markdown]
# ## A categorical target
#
# Three arms of a spiral. Only the head changes; the prediction is a `CategoricalMixture`, whose
# entropy splits into what every draw is unsure of and what draws disagree about (the mutual
# information of label and draw).

# %%
from eve_pyro.nn import MLP, CategoricalHead


def spiral(rows):
    label = torch.arange(rows) % 3
    radius = torch.rand(rows) * 0.9 + 0.1
    angle = 4 * radius + 2 * torch.pi / 3 * label + 0.4 * torch.randn(rows)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], -1), label


pyro.set_rng_seed(0)
train, validation, (x_test, label_test) = spiral(600), spiral(300), spiral(600)
classifier = Network(MLP(2, [32, 32]), CategoricalHead(32, 3))
config = TrainingConfig(epochs=EPOCHS, learning_rate=5e-3, progress=False)
trainer = Trainer(classifier, config=config)
trainer.fit(*train, validation=validation)

predict = StreamingPredictive(classifier, trainer.guide, min(DRAWS, 200))
on_test = predict(x_test, seed=0)
pd.Series(evaluate(on_test, label_test)).round(3)

# %%
ticks = torch.linspace(-1.5, 1.5, 121)
plane = torch.cartesian_prod(ticks, ticks)
on_plane = predict(plane, seed=0)
maps = {
    "entropy (nats)": on_plane.entropy(),
    "of it, disagreement of draws (nats)": on_plane.epistemic,
}
figure, axes = plt.subplots(1, 2, figsize=(10, 4.3), sharey=True, layout="constrained")
for ax, (title, values) in zip(axes, maps.items(), strict=True):
    values = values.reshape(121, 121).T.detach()
    image = ax.pcolormesh(ticks, ticks, values, cmap="cividis", vmin=0, rasterized=True)
    figure.colorbar(image, ax=ax)
    for label, color in enumerate(("white", "#D55E00", "#56B4E9")):
        own = train[0][train[1] == label][:100]
        ax.plot(own[:, 0], own[:, 1], "o", color=color, markersize=3, markeredgewidth=0)
    ax.set(title=title, aspect="equal", xlabel="$x_1$", ylabel="$x_2$" if ax is axes[0] else "")
plt.show()

# %% [markdown]
# Among the data entropy is high where arms meet, as it should be. Outside it says nothing reliable:
# the posterior of a unit is a function of its input and extrapolates like any network, to certainty
# in some directions and to doubt in others. Local posteriors tell of noise and ambiguity that were
# in the data, not that an input is new.

# %%
from eve_pyro.diagnostics import plot_uncertainty_split

plot_uncertainty_split(on_test).figure
