"""Calls into ArviZ that read differently in its two lines, 0.2x and 1.x, for the tests."""

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pytest

from eve_pyro.diagnostics.arviz_compat import get_group, is_datatree_line

NEW = is_datatree_line()

# ArviZ 0.2x calls pandas and matplotlib in ways that these are about to drop.
third_party_warnings = [
    pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame"),
    pytest.mark.filterwarnings("ignore:Passing a dict or None as alias_mapping"),
]


def loo(idata, **options):
    """(elpd, its terms, Pareto k)."""
    result = az.loo(idata, pointwise=True, **options)
    if NEW:
        return result.elpd, result.elpd_i.values, result.pareto_k.values
    return result.elpd_loo, result.loo_i.values, result.pareto_k.values


def loo_pit(idata, name="y"):
    return az.loo_pit(idata, var_names=name)[name].values if NEW else az.loo_pit(idata, y=name)


def hdi(idata, name, prob):
    interval = az.hdi(idata, var_names=[name], **{"prob" if NEW else "hdi_prob": prob})
    return np.asarray(interval[name].values)


def compare(models):
    """The models' names by rank, and their elpd."""
    if NEW:
        table = az.compare(models, round_to="none")
        return list(table.index), table["elpd"]
    table = az.compare(models)
    return list(table.index), table["elpd_loo"]


def plot_predictive(idata):
    return az.plot_ppc_dist(idata) if NEW else az.plot_ppc(idata, num_pp_samples=20)


def plot_layers(idata, statistic):
    if NEW:
        return az.plot_forest(idata, group="sample_stats", var_names=[statistic])
    return az.plot_forest(get_group(idata, "sample_stats"), var_names=[statistic])


def plot_trace(idata, name, **coords):
    return az.plot_trace(idata, var_names=[name], coords=coords)


def check_drawn():
    """Something is on every open figure; closes them."""
    figures = [plt.figure(number) for number in plt.get_fignums()]
    assert figures
    for figure in figures:
        figure.canvas.draw()
        assert any(axes.lines or axes.collections or axes.patches for axes in figure.axes)
    plt.close("all")
