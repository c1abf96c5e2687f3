"""The pages of the studies of tables."""

import math
from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from eve_pyro.experiments.engine import Record, scores_frame, tables_frame
from eve_pyro.experiments.page import Page, change, mean_sd, number
from eve_pyro.experiments.statistics import entry, summarise
from eve_pyro.experiments.studies.tables.claims import boston_verdicts, concrete_verdicts, prize
from eve_pyro.experiments.studies.tables.published import PUBLISHED, SOURCES
from eve_pyro.experiments.studies.tables.tasks import (
    BASELINE,
    CONVERGENCE,
    DROPOUT_RATES,
    LITERATURE,
    SPLIT,
)

# Column -> score, digits. All are of the calibrated predictive, the target standardised.
MAIN: dict[str, tuple[str, int]] = {
    "NLL, nats": ("calibrated_mc_nll", 3),
    "CRPS": ("calibrated_crps", 4),
    "MSE": ("calibrated_mse", 4),
    "MAE": ("calibrated_mae", 4),
    "90 % coverage": ("calibrated_coverage", 3),
}
RAW: dict[str, tuple[str, int]] = {
    "NLL, nats, raw": ("raw_mc_nll", 3),
    "90 % coverage, raw": ("raw_coverage", 3),
    "temperature": ("temperature", 2),
    "sigma_y": ("sigma_y", 3),
    "best epoch": ("best_epoch", 0),
    "parameters": ("parameters", 0),
    "training, s": ("seconds", 0),
}
COMPARED: dict[str, tuple[str, int, bool]] = {
    "NLL, nats": ("calibrated_mc_nll", 3, False),
    "NLL": ("calibrated_mc_nll", 1, True),
    "CRPS": ("calibrated_crps", 1, True),
    "MSE": ("calibrated_mse", 1, True),
    "MAE": ("calibrated_mae", 1, True),
}
METHOD = """
Every model has two layers of 64 relu units (the wide MLP has EVE's number of parameters; ensembles
have five networks, and five times the parameters), Adam at 3e-3 with a cosine to 0, batches of 64,
gradients clipped at 5, and a learning rate ten times as high for a global output scale. A seed
decides the split, the order of rows, the initial weights and the noise, for all models alike. The
epoch of the best validation NLL is kept; a temperature on the predictive spread is fitted on the
validation rows, for all models alike; predictions average 64 draws. Configurations were chosen on
seeds 0 to 9, results are of seeds from 100 on. NLL is that of the predictive mixture, in nats of
the standardised target: in the target's unit it is larger by a constant, so that **percent of NLL
depends on the unit**. Intervals are Student's at 95 %, of the paired differences over seeds; they
treat splits as independent, while splits of one table share rows: as statements on new data they
are too narrow (Nadeau and Bengio 2003; the corrected ones are in the summary's columns
`corrected_low` and `corrected_high`).

`mlp` and `wide-mlp` are plain networks, `hetero-mlp` and `mixture-mlp` have a mean-variance head
and a mixture density head of 5 Normals, `bayes-mlp` has mean-field Gaussian weights; `mc-dropout`
has its rate chosen on the validation rows of every split, `ensemble` are 5 plain networks and
`dropout-ensemble` 5 of dropout .1. `eve` has the published form, additive noise with a learned
sigma of every input, trained by the moment-matched objective with 4 draws; `eve-multiplicative`
has log-normal noise of fixed size .5 behind the activation (information dropout, with the
parameters of the plain network), trained half by MC-NLL and half by the ELBO with 2 draws;
`eve-ensemble` are 5 of the latter.

Epochs, batches and rates are equal for all, draws per step are not. Neither was tuning: of `eve`
30 settings were tried on development seeds, of multiplicative and other noise some 35
(docs/beyond.md), of dropout 3 rates per split, of the others none.

*n/m* counts the seeds that are better than the baseline. A claim is *reproduced* if the difference
is clear of 0 and as large and on as many seeds as claimed, *partly* if it is clear of 0, otherwise
*not reproduced*.
"""


def write_concrete(page: Page, records: Sequence[Record]) -> None:
    """The page of the concrete study."""
    _write(page, records, "concrete")


def write_boston(page: Page, records: Sequence[Record]) -> None:
    """The page of the Boston study."""
    page.text(
        "The table is from 1978. One of its columns encodes the share of Black residents by a "
        "formula that rests on a racist assumption; it is used here because the published claim "
        "and the literature use it, and should not be used for anything else."
    )
    _write(page, records, "boston")


def write_judged(page: Page, records: Sequence[Record]) -> None:
    """The page of the tables on which nothing was chosen."""
    scores = scores_frame(records)
    page.text(METHOD)
    page.text(
        "Nothing was chosen on the tables of this page. Energy is split by design; of bike and "
        "protein 12,000 rows are used, for 60 epochs. Two features of bike add up to the count "
        "behind its target. The rate of MC-dropout is chosen on the validation rows."
    )
    tables = {}
    for table in dict.fromkeys(scores.setting):
        frame = scores[scores.setting == table].drop(columns="setting")
        if BASELINE in set(frame.model):
            tables[table] = frame
    page.heading("Verdicts")
    for table, frame in tables.items():
        page.text(f"**{table}**")
        page.verdicts(prize(frame))
    parts = []
    for table, frame in tables.items():
        page.heading(table)
        _scores(page, frame, MAIN)
        for baseline in (BASELINE, "mc-dropout", "ensemble"):
            _comparison(page, frame, baseline)
        parts.append(summarise(frame, BASELINE).reset_index().assign(setting=table))
    page.heading("Files")
    if parts:
        page.frame("summary", pd.concat(parts), "means, differences from the plain MLP, intervals.")


def _write(page: Page, records: Sequence[Record], table: str) -> None:
    scores = scores_frame(records)
    by_setting = {
        str(k): v.drop(columns="setting") for k, v in scores.groupby("setting", sort=False)
    }
    page.text(METHOD)
    main = by_setting.get(SPLIT)
    if main is None or BASELINE not in set(main.model):
        page.text("No run of the main setting is finished.")
        return
    page.heading("Verdicts")
    claims = concrete_verdicts if table == "concrete" else boston_verdicts
    page.verdicts([*claims(main), *prize(main)])
    page.heading("Scores")
    page.text(
        "Split 70/15/15; mean ± sd over seeds, calibrated, the target standardised. Where the "
        "numbers of seeds differ, compare by the paired differences below."
    )
    _scores(page, main, MAIN)
    page.text("The same before calibration, and what the models look like.")
    _scores(page, main, RAW)
    rates = main[main.model == "mc-dropout"]["candidate"].map(lambda i: DROPOUT_RATES[int(i)])
    chosen = ", ".join(f"{p:g} ({n} x)" for p, n in sorted(rates.value_counts().items()))
    page.text(f"Rates of MC-dropout, chosen on the validation rows of each split: {chosen}.")
    for baseline in (BASELINE, "mc-dropout", "ensemble"):
        _comparison(page, main, baseline)
    page.figure(
        "differences",
        _differences(main),
        "Differences from the plain MLP, seed by seed, with the mean and its 95 % interval: left "
        "of 0 is better.",
    )
    layers = tables_frame([r for r in records if r.task.setting == SPLIT], "layers")
    if len(layers):
        page.heading("The layers of EVE")
        _layers(page, layers)
    if LITERATURE in by_setting:
        page.heading("The protocol of the literature")
        _literature(page, by_setting[LITERATURE], table)
    if CONVERGENCE in by_setting:
        page.heading("Is it converged?")
        _convergence(page, main, by_setting[CONVERGENCE])
    page.heading("Files")
    parts = []
    for setting, frame in by_setting.items():
        if BASELINE not in set(frame.model):
            continue
        share = {SPLIT: 0.15 / 0.70, CONVERGENCE: 0.15 / 0.70, LITERATURE: 0.10 / 0.81}[setting]
        part = summarise(frame, BASELINE)
        corrected = summarise(frame, BASELINE, overlap=share)
        part["corrected_low"], part["corrected_high"] = corrected["low"], corrected["high"]
        parts.append(part.reset_index().assign(setting=setting))
    page.frame("summary", pd.concat(parts), "means, differences from the plain MLP, intervals.")


def _models(frame: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(frame.model))


def _summary(frame: pd.DataFrame, baseline: str, scores: Sequence[str]) -> pd.DataFrame:
    return summarise(frame[["model", "seed", *dict.fromkeys(scores)]], baseline)


def _scores(page: Page, frame: pd.DataFrame, columns: dict[str, tuple[str, int]]) -> None:
    summary = _summary(frame, BASELINE, [score for score, _ in columns.values()])
    rows = []
    for model in _models(frame):
        cells = [model, str(frame[frame.model == model].seed.nunique())]
        for score, digits in columns.values():
            row = entry(summary, model, score)
            sd = math.nan if score == "parameters" else row["sd"]
            cells.append(mean_sd(row["mean"], sd, digits))
        rows.append(cells)
    page.table(["model", "seeds", *columns], rows)


def _comparison(page: Page, frame: pd.DataFrame, baseline: str) -> None:
    if baseline not in set(frame.model):
        return
    summary = _summary(frame, baseline, [score for score, _, _ in COMPARED.values()])
    rows = [
        [
            model,
            *(
                change(entry(summary, model, score), digits, relative=relative)
                for score, digits, relative in COMPARED.values()
            ),
        ]
        for model in _models(frame)
        if model != baseline
    ]
    page.text(
        f"Difference from **{baseline}**: mean over seeds [95 % interval] and the seeds that are "
        "better; percent are of the baseline's mean."
    )
    page.table(["model", *COMPARED], rows)


def _differences(frame: pd.DataFrame) -> Figure:
    """One point per seed and model, the mean with its interval above them."""
    models = [m for m in _models(frame) if m != BASELINE][::-1]
    summary = _summary(frame, BASELINE, ["calibrated_mc_nll", "calibrated_crps"])
    figure = Figure(figsize=(10, 0.55 * len(models) + 1.4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    shown = (("calibrated_mc_nll", "NLL, nats"), ("calibrated_crps", "CRPS, sd of the target"))
    for ax, (score, label) in zip(axes, shown, strict=True):
        wide = frame.pivot(index="seed", columns="model", values=score)
        for i, model in enumerate(models):
            row = entry(summary, model, score)
            points = (wide[model] - wide[BASELINE]).dropna()
            ax.plot(points, [i - 0.12] * len(points), ".", color="C0", alpha=0.5)
            ax.plot([row["low"], row["high"]], [i + 0.12] * 2, color="C1", lw=2)
            ax.plot(row["difference"], i + 0.12, "o", color="C1", ms=4)
        ax.axvline(0, color="0.6", lw=1)
        ax.set_xlabel(f"difference in {label}")
        ax.set_yticks(range(len(models)), models)
    return figure


def _layers(page: Page, layers: pd.DataFrame) -> None:
    columns = {"KL, nats per unit": "kl", "sigma": "sigma", "energy": "energy"}
    columns["active units"] = "active_fraction"
    rows = [
        [str(model), str(layer), *(number(float(group[c].mean())) for c in columns.values())]
        for (model, layer), group in layers.groupby(["model", "layer"], sort=False)
    ]
    page.text(
        "On test rows, mean over seeds. Multiplicative noise is the same for all inputs: its KL is "
        "that of its fixed size, it is not priced, and no unit counts as active."
    )
    page.table(["model", "layer", *columns], rows)


def _literature(page: Page, frame: pd.DataFrame, table: str) -> None:
    page.text(
        "20 random splits with 10 % of the rows for the test, as Hernandez-Lobato and Adams 2015 "
        "introduced it; of the other 90 %, one row in ten chooses the epoch and the temperature. "
        "RMSE in the target's unit and NLL in nats, mean ± standard error over splits. The "
        "published rows are of other splits and of one layer of 50 units; their errors are left "
        "out, since the papers do not agree on what they give."
    )
    rows = []
    for model in _models(frame):
        own = frame[frame.model == model]
        cells = [model, str(len(own))]
        for score, digits in (
            ("raw_rmse_unit", 2),
            ("raw_mc_nll_unit", 2),
            ("calibrated_mc_nll_unit", 2),
        ):
            error = own[score].std() / math.sqrt(len(own))
            cells.append(f"{number(own[score].mean(), digits)} ± {number(error, digits)}")
        rows.append(cells)
    for name, (rmse, nll) in PUBLISHED[table].items():
        rows.append([f"{name} ({SOURCES[name]})", "20", f"{rmse:.2f}", f"{nll:.2f}", "-"])
    page.table(["model", "splits", "RMSE", "NLL, raw", "NLL, calibrated"], rows)
    for baseline in (BASELINE, "mc-dropout"):
        _comparison(page, frame, baseline)


def _convergence(page: Page, main: pd.DataFrame, longer: pd.DataFrame) -> None:
    seeds = set(longer.seed)
    rows = []
    for model in _models(longer):
        cells = [model]
        for frame in (main, longer):
            own = frame[(frame.model == model) & frame.seed.isin(seeds)]
            cells += [
                number(own["calibrated_mc_nll"].mean()),
                number(own["calibrated_crps"].mean(), 4),
            ]
        rows.append(cells)
    page.text(
        f"The same {len(seeds)} seeds with the study's number of epochs, and with three times as "
        "many."
    )
    page.table(["model", "NLL, nats", "CRPS", "NLL, three times", "CRPS, three times"], rows)
    page.text("With three times the epochs:")
    for baseline in (BASELINE, "mc-dropout"):
        _comparison(page, longer, baseline)
