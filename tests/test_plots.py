"""Plots: what they draw equals what they were given, on axes of their own or of the caller."""

import subprocess
import sys
from itertools import islice

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from scipy.stats import binom

from eve_pyro import EVEModule, diagnostics
from eve_pyro.diagnostics import plots
from eve_pyro.diagnostics.plots._common import PALETTE, line_styles
from eve_pyro.infer import CategoricalMixture, GaussianMixture, History
from eve_pyro.metrics import calibration_curve, coverage, pit

N = 60


def prediction(n=N, draws=8):
    return GaussianMixture(torch.randn(draws, n), 0.5 + torch.rand(draws, n))


def layer_frame(count):
    sigma = np.linspace(0.2, 0.8, count)
    columns = {"kl": 1 / sigma, "sigma": sigma, "sigma_min": sigma / 2, "sigma_max": 2 * sigma}
    return pd.DataFrame(columns, index=[f"layer{i}" for i in range(count)])


def evolution_frame(layers, steps=3):
    step = np.repeat(10 * np.arange(steps), layers)
    names = [f"layer{i}" for i in range(layers)] * steps
    return pd.DataFrame({"step": step, "layer": names, "kl": np.arange(layers * steps) / 7})


def history_frame(epochs=20):
    epoch = np.arange(1, epochs + 1)
    validation = 1.0 + 0.01 * (epoch - 13.0) ** 2
    return pd.DataFrame({"epoch": epoch, "train_loss": 9 / epoch, "validation": validation})


def line(ax, label):
    (found,) = (each for each in ax.get_lines() if each.get_label() == label)
    return found


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


EVERY = {
    "predictions": lambda ax: plots.plot_predictions(prediction(), torch.randn(N), ax=ax),
    "band": lambda ax: plots.plot_predictive_band(
        torch.randn(N), prediction(), torch.randn(N), ax=ax
    ),
    "split": lambda ax: plots.plot_uncertainty_split(prediction(), ax=ax),
    "calibration": lambda ax: plots.plot_calibration({"a": prediction()}, torch.randn(N), ax=ax),
    "pit": lambda ax: plots.plot_pit(prediction(), torch.randn(N), ax=ax),
    "risk": lambda ax: plots.plot_risk_coverage({"a": ([0.5, 1.0], [1.0, 2.0])}, ax=ax),
    "layers": lambda ax: plots.plot_layers(layer_frame(2), ax=ax),
    "neurons": lambda ax: plots.plot_neurons(torch.rand(N, 5), torch.randn(N), ax=ax),
    "sigma": lambda ax: plots.plot_sigma_vs_scale(torch.rand(N), torch.rand(N), ax=ax),
    "tokens": lambda ax: plots.plot_tokens(
        ["Call", " me", " Ish", "mael", ".\n", "Some"], torch.rand(6), marked=[0, 1] * 3, ax=ax
    ),
    "training": lambda ax: plots.plot_training(history_frame(), ax=ax),
    "evolution": lambda ax: plots.plot_evolution(evolution_frame(9), "kl", ax=ax),
}


@pytest.mark.parametrize("plot", EVERY.values(), ids=EVERY)
class TestEveryPlot:
    def test_makes_a_figure_that_pyplot_does_not_know_and_notebooks_show(self, plot):
        before = dict(plt.rcParams)
        ax = plot(None)
        assert ax.figure._repr_png_().startswith(b"\x89PNG")
        assert plt.get_fignums() == []
        assert dict(plt.rcParams) == before

    def test_draws_on_the_axes_it_is_given(self, plot):
        figure = Figure()
        left, right = figure.subplots(1, 2)
        assert plot(right) is right
        assert right.figure is figure
        assert right.has_data()
        assert not left.has_data()

    def test_labels_its_axes(self, plot):
        axes = plot(None).figure.axes
        assert all(ax.get_ylabel() for ax in axes)
        assert any(ax.get_xlabel() for ax in axes)

    def test_keeps_its_writing_inside_the_figure(self, plot):
        figure = plot(None).figure
        figure.canvas.draw()
        frame = figure.bbox.padded(1)
        for ax in figure.axes:
            box = ax.get_tightbbox()
            assert frame.x0 <= box.x0
            assert frame.y0 <= box.y0
            assert box.x1 <= frame.x1
            assert box.y1 <= frame.y1


class TestTokens:
    TEXT = ("Call", " me", " Ish", "mael", ".\n", " ", "$5", "$6")

    def draw(self, **options):
        return plots.plot_tokens(self.TEXT, np.arange(8.0), **options)

    def test_lines_break_between_tokens_and_where_the_text_does(self):
        ax = self.draw(width=8)
        boxes = {(patch.get_y(), patch.get_x()): patch for patch in ax.patches}
        lines: dict[float, list[str]] = {}
        for (top, _), patch in sorted(boxes.items()):
            lines.setdefault(top, []).append(patch.get_label())
        assert list(lines.values()) == [
            ["Call", " me"],
            [" Ish", "mael"],
            [".\n"],
            [" ", "$5", "$6"],
        ]
        assert [tick.get_text() for tick in ax.get_yticklabels()] == ["1", "3", "5", "6"]
        one = self.draw(width=1)
        assert len({patch.get_y() for patch in one.patches}) == 8

    def test_colours_follow_the_values_between_the_limits(self):
        colours = [p.get_facecolor() for p in self.draw(limits=(0, 7)).patches]
        red, green, _, _ = zip(*colours, strict=True)
        assert list(green) == sorted(green, reverse=True)
        assert len(set(green)) == 8
        assert (red[0], green[0]) == (1, 1)
        clipped = [p.get_facecolor() for p in self.draw(limits=(2, 5)).patches]
        assert clipped[0] == clipped[2]
        assert clipped[5] == clipped[7]

    def test_frames(self):
        frames = [p.get_edgecolor()[3] for p in self.draw(marked=[0, 1, 0, 0, 0, 0, 0, 1]).patches]
        assert frames == [0, 1, 0, 0, 0, 0, 0, 1]

    def test_dollars_are_no_formula_and_constants_have_a_colour(self):
        ax = plots.plot_tokens(["$x$ ", "$"], [1.0, 1.0])
        ax.figure.canvas.draw()
        assert ax.patches[0].get_label() == "$x$ "

    def test_errors(self):
        with pytest.raises(ValueError, match="tokens and values and marked must have the same"):
            plots.plot_tokens(["a", "b"], [1.0])
        with pytest.raises(ValueError, match="values must be a non-empty 1-d array"):
            plots.plot_tokens([], [])
        with pytest.raises(ValueError, match="limits must rise, got"):
            self.draw(limits=(1.0, 1.0))
        with pytest.raises(ValueError, match="width must be an integer >= 1, got 0"):
            self.draw(width=0)


class TestData:
    @pytest.mark.parametrize(
        "convert",
        [
            lambda t: t.tolist(),
            lambda t: t.numpy(),
            lambda t: t.clone().requires_grad_(),
            lambda t: pd.Series(t.numpy()),
            lambda t: pytest.importorskip("xarray").DataArray(t.numpy(), dims="obs"),
        ],
        ids=["list", "numpy", "tensor with gradient", "pandas", "xarray"],
    )
    def test_comes_in_any_form(self, convert):
        predictive, y = prediction(), torch.randn(N)
        heights = [b.get_height() for b in plots.plot_pit(predictive, y).containers[0]]
        ax = plots.plot_pit(predictive, convert(y))
        assert [b.get_height() for b in ax.containers[0]] == heights
        ax = plots.plot_sigma_vs_scale(convert(y.abs()), convert(y.abs()))
        assert legend(ax) == ["r = 1.000"]

    def test_may_be_bfloat16(self):
        ax = plots.plot_neurons(torch.rand(4, 3, dtype=torch.bfloat16))
        assert ax.images[0].get_array().shape == (3, 4)

    def test_is_loaded_without_torch_and_matplotlib(self):
        code = (
            "import sys, eve_pyro.diagnostics.plots; "
            "assert not {'torch', 'matplotlib', 'scipy', 'pandas'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_plots_are_exported_by_diagnostics(self):
        for name in plots.__all__:
            assert getattr(diagnostics, name) is getattr(plots, name)

    def test_lines_are_told_apart_beyond_the_palette(self):
        styles = [(s["linestyle"], s["color"]) for s in islice(line_styles(), 28)]
        assert len(set(styles)) == 28
        assert len(set(PALETTE)) == 7


class TestPredictions:
    def test_bars_are_the_intervals_at_the_means(self):
        predictive, y = prediction(), torch.randn(N)
        ax = plots.plot_predictions(predictive, y, levels=(0.9, 0.5), unit="kW")
        order = predictive.mean.argsort()
        for bars, level in zip(ax.collections, (0.5, 0.9), strict=True):
            lower, upper = predictive.interval(level)
            wanted = torch.stack([lower, upper], 1)[order]
            segments = np.array(bars.get_segments())
            np.testing.assert_allclose(segments[:, :, 1], wanted, rtol=1e-6)
            np.testing.assert_allclose(segments[:, 0, 0], predictive.mean[order], rtol=1e-6)
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("predicted mean (kW)", "observed (kW)")

    def test_marks_and_counts_what_lies_outside(self):
        predictive, y = prediction(), 2 * torch.randn(N)
        ax = plots.plot_predictions(predictive, y, levels=[0.5])
        outside = round((1 - coverage(predictive, y, 0.5)).item() * N)
        label = legend(ax)[-1]
        assert label == f"outside 50 %: {100 * outside / N:.3g} % of {N}"
        assert len(line(ax, label).get_xdata()) == outside
        assert len(line(ax, "observed").get_xdata()) == N - outside

    def test_draws_at_most_so_many_points(self):
        ax = plots.plot_predictions(prediction(), torch.randn(N), max_points=10)
        assert "observed (10 of 60)" in legend(ax)
        assert len(ax.collections[0].get_segments()) == 10

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"y": torch.zeros(3)}, "predictive and y must have the same length, got 60 and 3"),
            ({"y": torch.zeros(N, 1)}, "y must be a non-empty 1-d array"),
            ({"y": torch.full((N,), torch.nan)}, "y must be finite"),
            ({"levels": []}, "levels must hold at least one"),
            ({"levels": [1.0]}, "levels must be a finite number"),
            ({"max_points": 0}, "max_points must be an integer >= 1"),
        ],
    )
    def test_refuses(self, change, message):
        arguments = {"predictive": prediction(), "y": torch.zeros(N), **change}
        with pytest.raises(ValueError, match=message):
            plots.plot_predictions(**arguments)


class TestPredictiveBand:
    def test_bands_are_the_intervals_in_the_order_of_x(self):
        predictive, x = prediction(), torch.randn(N)
        ax = plots.plot_predictive_band(x, predictive, torch.randn(N), x_label="t (s)")
        order = x.argsort()
        np.testing.assert_allclose(line(ax, "mean").get_ydata(), predictive.mean[order], rtol=1e-6)
        assert ax.get_xlabel() == "t (s)"
        assert legend(ax)[0] == "90 % of observations"
        wide, narrow, epistemic = (band.get_paths()[0].get_extents() for band in ax.collections)
        for box, level in ((wide, 0.9), (narrow, 0.5)):
            lower, upper = predictive.interval(level)
            np.testing.assert_allclose((box.y0, box.y1), (lower.min(), upper.max()), rtol=1e-6)
        reach = (predictive.mean + 1.6448536 * predictive.epistemic.sqrt()).max()
        np.testing.assert_allclose(epistemic.y1, reach, rtol=1e-5)

    def test_needs_no_observations(self):
        assert "observed" not in legend(plots.plot_predictive_band(torch.randn(N), prediction()))

    def test_refuses_what_does_not_match(self):
        with pytest.raises(ValueError, match="x and predictive must have the same length"):
            plots.plot_predictive_band(torch.zeros(3), prediction())
        with pytest.raises(ValueError, match="x and y must have the same length"):
            plots.plot_predictive_band(torch.randn(N), prediction(), [1.0])


class TestUncertaintySplit:
    def areas(self, ax):
        return [band.get_paths()[0].get_extents() for band in ax.collections]

    def test_stacks_the_parts_to_the_whole(self):
        predictive = prediction()
        ax = plots.plot_uncertainty_split(predictive, unit="kW")
        epistemic, aleatoric = self.areas(ax)
        np.testing.assert_allclose(epistemic.y1, predictive.epistemic.max(), rtol=1e-6)
        np.testing.assert_allclose(aleatoric.y1, predictive.variance.max(), rtol=1e-6)
        assert ax.get_ylabel() == "predictive variance (kW²)"
        shares = [float(text.split("(")[1].split(" %")[0]) for text in legend(ax)]
        assert sum(shares) == pytest.approx(100, abs=0.2)

    def test_labels_the_axis_by_the_key(self):
        ax = plots.plot_uncertainty_split(prediction(), -torch.arange(N), order_label="t (s)")
        assert ax.get_xlabel() == "observations, by t (s)"
        labels = [text.get_text() for text in ax.get_xticklabels()]
        assert (labels[0], labels[-1]) == ("−59", "0")

    def test_averages_groups_of_many(self):
        predictive = prediction()
        ax = plots.plot_uncertainty_split(predictive, max_points=2)
        halves = predictive.variance.sort().values.reshape(2, -1).mean(1)
        np.testing.assert_allclose(self.areas(ax)[1].y1, halves[1], rtol=1e-6)

    def test_of_labels_is_entropy(self):
        ax = plots.plot_uncertainty_split(CategoricalMixture(torch.randn(8, N, 3)))
        assert ax.get_ylabel() == "predictive entropy (nats)"

    def test_refuses_another_length(self):
        with pytest.raises(ValueError, match="predictive and order must have the same length"):
            plots.plot_uncertainty_split(prediction(), [1.0, 2.0])


class TestCalibration:
    def test_draws_the_curves_of_metrics(self):
        predictives = {"one": prediction(), "two": prediction()}
        y, levels = torch.randn(N), [0.1, 0.5, 0.9]
        ax = plots.plot_calibration(predictives, y, levels=levels)
        for name, predictive in predictives.items():
            expected, observed = calibration_curve(predictive, y, levels)
            np.testing.assert_allclose(line(ax, name).get_xdata(), expected, rtol=1e-6)
            np.testing.assert_allclose(line(ax, name).get_ydata(), observed, rtol=1e-6)
        assert "95 % range (N = 60)" in legend(ax)

    def test_takes_finished_curves(self):
        ax = plots.plot_calibration({"one": ([0.5, 0.9], torch.tensor([0.25, 0.75]))})
        assert line(ax, "one").get_ydata().tolist() == [0.25, 0.75]
        assert not ax.collections

    @pytest.mark.parametrize(
        ("curves", "y", "message"),
        [
            ({}, None, "curves must be a non-empty mapping"),
            ([([0.5], [0.5])], None, "curves must be a non-empty mapping"),
            ({"one": ([0.5], [0.5, 0.6])}, None, "curve 'one' must be a pair of one length"),
            ({"one": ([0.5],)}, None, "curve 'one' must be a pair, got 1 items"),
            ({"one": prediction()}, None, "y must be given with predictives such as 'one'"),
            ({"one": prediction()}, torch.zeros(3), "y must have the predictive's shape"),
        ],
    )
    def test_refuses(self, curves, y, message):
        with pytest.raises(ValueError, match=message):
            plots.plot_calibration(curves, y)


class TestPIT:
    def test_heights_are_the_density_of_the_transform(self):
        predictive, y = prediction(), torch.randn(N)
        ax = plots.plot_pit(predictive, y, bins=7)
        heights = np.array([bar.get_height() for bar in ax.containers[0]])
        wanted = np.histogram(pit(predictive, y), bins=7, range=(0, 1), density=True)[0]
        np.testing.assert_allclose(heights, wanted, rtol=1e-6)
        assert heights.sum() == pytest.approx(7)
        assert heights.max() < ax.get_ylim()[1]

    def test_band_holds_a_calibrated_bar_in_95_percent(self):
        ax = plots.plot_pit(prediction(), torch.randn(N), bins=10)
        (band,) = (p for p in ax.patches if p not in set(ax.containers[0]))
        counts = np.array([band.get_y(), band.get_y() + band.get_height()]) * N / 10
        assert counts == pytest.approx([2, 11])
        assert binom.cdf(11, N, 0.1) - binom.cdf(1, N, 0.1) >= 0.95

    def test_takes_any_shape(self):
        predictive = GaussianMixture(torch.randn(8, 5, 4), torch.ones(8, 5, 4))
        ax = plots.plot_pit(predictive, torch.randn(5, 4), bins=2)
        assert sum(bar.get_height() for bar in ax.containers[0]) == pytest.approx(2)

    def test_refuses(self):
        with pytest.raises(ValueError, match="y must have the predictive's shape"):
            plots.plot_pit(prediction(), torch.zeros(3))
        with pytest.raises(ValueError, match="bins must be an integer >= 1"):
            plots.plot_pit(prediction(), torch.zeros(N), bins=0)


class TestRiskCoverage:
    def test_draws_the_curves_and_the_risk_of_all(self):
        curves = {"one": ([0.5, 1.0], [0.1, 0.4]), "two": ([0.5, 1.0], [0.3, 0.4])}
        ax = plots.plot_risk_coverage(curves, risk_label="RMSE (kW)")
        assert line(ax, "one").get_ydata().tolist() == [0.1, 0.4]
        assert line(ax, "no ranking").get_ydata() == [0.4, 0.4]
        assert ax.get_ylabel() == "RMSE (kW)"

    def test_of_different_models_have_no_common_reference(self):
        ax = plots.plot_risk_coverage({"one": ([1.0], [0.1]), "two": ([1.0], [0.3])})
        assert legend(ax) == ["one", "two"]

    def test_refuses(self):
        with pytest.raises(ValueError, match="curves must be a non-empty mapping"):
            plots.plot_risk_coverage({})
        with pytest.raises(ValueError, match="curve 'one' must be a pair of one length"):
            plots.plot_risk_coverage({"one": ([1.0], [0.1, 0.2])})


class TestLayers:
    @pytest.mark.parametrize("count", [1, 2, 8, 9, 128])
    def test_draws_kl_above_sigma(self, count):
        table = layer_frame(count)
        upper = plots.plot_layers(table)
        lower = upper.figure.axes[1]
        assert upper.get_lines()[0].get_ydata().tolist() == table["kl"].tolist()
        assert line(lower, "mean").get_ydata().tolist() == table["sigma"].tolist()
        assert upper.get_xlim() == lower.get_xlim()
        upper.figure.canvas.draw()
        assert upper.get_position().y0 > lower.get_position().y1
        labels = [text.get_text() for text in lower.get_xticklabels()]
        assert (labels == list(table.index)) == (count <= 8)
        spread = lower.collections[0].get_datalim(lower.transData)
        assert spread.y0 == pytest.approx(table["sigma_min"].min())
        assert spread.y1 == pytest.approx(table["sigma_max"].max())

    def test_takes_the_table_of_layers(self):
        net = torch.nn.Sequential(EVEModule(3, 4), EVEModule(4, 6))
        stats = diagnostics.posterior_statistics(net, None, torch.randn(N, 3))
        table = diagnostics.layer_table(stats)
        ax = plots.plot_layers(table)
        assert ax.get_lines()[0].get_ydata().tolist() == table["kl"].tolist()
        units = stats.kl.sel(layer="0").dropna("unit")
        assert plots.plot_neurons(units).images[0].get_array().shape == (4, N)

    def test_refuses(self):
        with pytest.raises(ValueError, match="table must have the columns \\['sigma'\\]"):
            plots.plot_layers(layer_frame(2).drop(columns="sigma"))
        with pytest.raises(ValueError, match="table must have at least one row"):
            plots.plot_layers(layer_frame(2).iloc[:0])
        with pytest.raises(ValueError, match="ax must be a subplot"):
            plots.plot_layers(layer_frame(2), ax=Figure().add_axes((0, 0, 1, 1)))


class TestNeurons:
    def test_orders_observations_by_the_key_and_units_by_their_mean(self):
        values = torch.tensor([[5.0, 0.0], [7.0, 1.0], [6.0, 2.0]])
        ax = plots.plot_neurons(values, [3, 1, 2], label="KL (nats)", order_label="x (m)")
        assert ax.images[0].get_array().tolist() == [[1.0, 2.0, 0.0], [7.0, 6.0, 5.0]]
        assert [text.get_text() for text in ax.get_xticklabels()] == ["1", "2", "3"]
        assert ax.get_xlabel() == "observations, by x (m)"
        assert ax.figure.axes[1].get_ylabel() == "KL (nats)"

    def test_keeps_the_order_without_a_key(self):
        ax = plots.plot_neurons([[2.0], [1.0]])
        assert ax.images[0].get_array().tolist() == [[2.0, 1.0]]
        assert ax.get_xlabel() == "observations, as given"

    def test_refuses(self):
        with pytest.raises(ValueError, match="values must be a non-empty 2-d array"):
            plots.plot_neurons(torch.zeros(3))
        with pytest.raises(ValueError, match="values and order must have the same length"):
            plots.plot_neurons(torch.zeros(3, 2), [1.0])


class TestSigmaVsScale:
    def test_annotates_the_correlation_and_fits_a_line(self):
        scale = torch.rand(N, dtype=torch.float64)
        sigma = 1 + scale + 0.3 * torch.rand(N)
        ax = plots.plot_sigma_vs_scale(sigma, scale)
        points, fit = ax.get_lines()
        assert points.get_ydata().tolist() == sigma.tolist()
        assert legend(ax) == [f"r = {np.corrcoef(sigma, scale)[0, 1]:.3f}"]
        wanted = np.polyval(np.polyfit(scale, sigma, 1), fit.get_xdata())
        np.testing.assert_allclose(fit.get_ydata(), wanted)

    def test_says_that_a_constant_sigma_has_no_correlation(self):
        ax = plots.plot_sigma_vs_scale([0.3, 0.3, 0.3], [1, 2, 3])
        assert legend(ax) == ["no r: constant"]

    def test_refuses(self):
        with pytest.raises(ValueError, match="sigma and scale must have the same length"):
            plots.plot_sigma_vs_scale([1, 2], [1, 2, 3])
        with pytest.raises(ValueError, match="scale must vary"):
            plots.plot_sigma_vs_scale([1, 2], [1, 1])


class TestTraining:
    def test_draws_both_curves_and_the_best_epoch(self):
        frame = history_frame()
        ax = plots.plot_training(frame)
        assert line(ax, "training").get_ydata().tolist() == frame["train_loss"].tolist()
        assert line(ax, "validation").get_ydata().tolist() == frame["validation"].tolist()
        best = line(ax, "best: epoch 13")
        assert (best.get_xdata(), best.get_ydata()) == ([13], [1.0])

    def test_leaves_out_the_first_tenth_alone(self):
        frame = history_frame()
        _, top = plots.plot_training(frame).get_ylim()
        assert frame["train_loss"][2] < top < frame["train_loss"][1]

    def test_overlays_models_in_one_colour_each(self):
        history = History([(1, 0.9, 0.8, 0.01, 1.0, 0.2), (2, 0.7, 0.6, 0.01, 1.0, 0.2)])
        ax = plots.plot_training({"EVE": history, "MLP": history_frame()})
        colours = [to_hex(line(ax, f"{name}, training").get_color()) for name in ("EVE", "MLP")]
        assert colours == [c.lower() for c in PALETTE[:2]]
        assert legend(ax)[:3] == ["EVE, training", "EVE, validation", "EVE, best: epoch 2"]

    @pytest.mark.parametrize("epochs", [1, 2])
    def test_needs_no_validation(self, epochs):
        frame = history_frame(epochs).assign(validation=np.nan)
        assert legend(plots.plot_training(frame)) == ["training"]
        assert legend(plots.plot_training(frame.drop(columns="validation"))) == ["training"]

    def test_refuses(self):
        with pytest.raises(ValueError, match="history must have the columns"):
            plots.plot_training(history_frame().drop(columns="train_loss"))
        with pytest.raises(ValueError, match="EVE must have at least one row"):
            plots.plot_training({"EVE": History()})
        with pytest.raises(ValueError, match="history must be a non-empty mapping"):
            plots.plot_training({})


class TestEvolution:
    def test_draws_one_line_per_layer(self):
        frame = evolution_frame(3)
        ax = plots.plot_evolution(frame.sample(frac=1, random_state=0), "kl", label="KL (nats)")
        for layer, rows in frame.groupby("layer"):
            assert line(ax, layer).get_xdata().tolist() == rows["step"].tolist()
            assert line(ax, layer).get_ydata().tolist() == rows["kl"].tolist()
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("step", "KL (nats)")

    def test_takes_the_records_of_a_monitor(self):
        net = torch.nn.Sequential(EVEModule(3, 4), EVEModule(4, 6))
        monitor = diagnostics.Monitor(net, None, torch.randn(N, 3), every=10)
        for step in range(30):
            monitor(step)
        ax = plots.plot_evolution(monitor.frame, "sigma")
        assert [each.get_xdata().tolist() for each in ax.get_lines()] == [[0, 10, 20]] * 2

    def test_colours_many_layers_by_depth(self):
        ax = plots.plot_evolution(evolution_frame(40), "kl")
        assert ax.get_legend() is None
        assert len({to_hex(each.get_color()) for each in ax.get_lines()}) == 40
        scale = ax.figure.axes[1]
        assert scale.get_ylabel() == "layer (of 40)"
        assert scale.get_ylim() == (1, 40)

    def test_refuses(self):
        with pytest.raises(ValueError, match="frame must have the columns \\['sigma'\\]"):
            plots.plot_evolution(evolution_frame(2), "sigma")
        with pytest.raises(ValueError, match="kl must be finite"):
            plots.plot_evolution(evolution_frame(2).assign(kl=np.nan), "kl")
