"""One run of the study: a language model, its course, its scores, and its layers."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyro
import torch

from eve_pyro._checks import check_choice, check_int
from eve_pyro.data.text import TokenWindows
from eve_pyro.data.text.files import text_cache
from eve_pyro.experiments.store import Outcome, _plain, code_version
from eve_pyro.experiments.studies.language.corpora import (
    Text,
    TextConfig,
    load_other,
    load_text,
)
from eve_pyro.experiments.studies.language.evaluation import evaluate
from eve_pyro.experiments.studies.language.memory import keep_freed_memory
from eve_pyro.experiments.studies.language.models import BlockConfig, Shape
from eve_pyro.experiments.studies.language.plan import Plan
from eve_pyro.experiments.studies.language.ranks import ranks
from eve_pyro.experiments.studies.language.shift import (
    response_to_corruption,
    response_to_texts,
)
from eve_pyro.experiments.studies.language.temperature import best_temperature
from eve_pyro.experiments.studies.language.training import Training
from eve_pyro.nn import LanguageModel

# Where the best temperature is none of the usual ones: a network that has hardly learned.
_WIDE = tuple(10 ** (k / 10) for k in range(-20, 21))


@dataclass(frozen=True)
class Scoring:
    """How trained models are scored.

    Arguments:
        num_samples: S, posterior draws of a prediction. Default 4.
        batch_size: windows of a pass. Default 16.
        layer_windows: windows for the table of layers; 0 for none. Default 64.
        rates: shares of corrupted tokens for the table of shifts; none by default.
        best: whether to score the best epoch as well as the last. Default True.
        part: text that is scored, ``"test"`` (default) or ``"valid"``, to choose by; the latter
            without temperatures, which are fitted on it.
        texts: other corpora, for the table of texts; none by default.

    Raises:
        ValueError: for numbers out of range.

    Example:
        >>> Scoring(num_samples=0)
        Traceback (most recent call last):
        ...
        ValueError: num_samples must be an integer >= 1, got 0
    """

    num_samples: int = 4
    batch_size: int = 16
    layer_windows: int = 64
    rates: tuple[float, ...] = ()
    best: bool = True
    part: Literal["test", "valid"] = "test"
    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_int("num_samples", self.num_samples)
        check_int("batch_size", self.batch_size)
        check_int("layer_windows", self.layer_windows, 0)
        check_choice("part", self.part, ("test", "valid"))
        if self.part == "valid" and (self.rates or self.texts):
            raise ValueError("part must be 'test' where rates or texts are given, got 'valid'")


def run_language(
    seed: int, text: TextConfig, shape: Shape, block: BlockConfig, plan: Plan, scoring: Scoring
) -> Outcome:
    """Train one model on a text and score it on the test part, or the one that scoring names.

    Scores are named ``<epoch>_<mode>_<kind>_<score>``: epoch ``last`` or ``best`` (by validation
    cross-entropy), mode ``draws`` (S draws; a network without noise has one pass), ``one`` (one
    draw) or ``mean`` (at the posterior means), kind ``raw`` or ``scaled`` (by the temperature of
    the validation text, ``<epoch>_<mode>_temperature``), score of
    :func:`~eve_pyro.experiments.studies.language.token_scores.token_scores`. Besides
    ``<epoch>_train``, ``<epoch>_valid``, ``<epoch>_valid_mean`` and ``<epoch>_gap`` (cross-entropy
    of validation less that of training text), ``best_epoch``, ``epochs``, ``parameters``,
    ``passes`` (how often a training token was a target), ``train_tokens``, ``steps``, ``seconds``.

    Tables: ``course``, ``text`` (what it is), ``layers`` (EVE layers, last and best epoch),
    ``shift``, and ``texts`` (this text and others).

    A run that was killed goes on from its last checkpoint, in the user's cache folder.

    Arguments:
        seed: of initial weights, order of windows and noise; paired between models.
        text: what to read. Of other texts as many tokens are read as of its test text.
        shape, block: the model.
        plan: how to train.
        scoring: how to score.

    Raises:
        DataError: if the text cannot be used, or is too short.
        FloatingPointError: if training diverges; it names what is not finite.
    """
    keep_freed_memory()
    with ranks() as here:
        read = load_text(text, shape.context)
        # Ahead of training, so that a text that is missing costs none.
        others = {
            name: load_other(name, read.tokenizer, text.test_tokens, shape.context)
            for name in (scoring.texts if here.first else ())
        }
        with torch.random.fork_rng([]):
            pyro.set_rng_seed(seed)
            model = block.model(shape, read.tokenizer.vocab_size)
        model.to(here.device)
        path = _checkpoint(seed, text, shape, block, plan)
        training = Training(model, block, read, plan, seed, here, path)
        training.run()
        found = here.tell(_score(training, read, scoring, others) if here.first else None)
        if here.first:
            path.unlink(missing_ok=True)
        return found


def _score(
    training: Training, text: Text, scoring: Scoring, others: dict[str, TokenWindows]
) -> Outcome:
    model, block, seed = training.model, training.block, training.seed
    course = pd.DataFrame(training.course)
    epochs = {"last": training.plan.epochs}
    if scoring.best:
        epochs["best"] = int(training.best["epoch"])
    trained = training.epoch_steps * training.plan.batch_size * text.train.context
    scores: dict[str, float] = {
        "epochs": training.plan.epochs,
        "best_epoch": training.best["epoch"],
        "parameters": sum(p.numel() for p in training.parameters.values()),
        "steps": training.steps,
        "train_tokens": len(text.train) * text.train.context,
        "passes": training.plan.epochs * trained / (len(text.train) * text.train.context),
        "seconds": float(course["seconds"].sum()),
        "vocab_size": text.tokenizer.vocab_size,
    }
    about = pd.DataFrame({"description": [text.description]})
    tables: dict[str, pd.DataFrame] = {"course": course, "text": about}
    layers: list[pd.DataFrame] = []
    for name, epoch in epochs.items():
        row = course.iloc[epoch - 1]
        scores |= {f"{name}_{c}": float(row[f"{c}_ce"]) for c in ("train", "valid", "valid_mean")}
        scores[f"{name}_gap"] = scores[f"{name}_valid"] - scores[f"{name}_train"]
        if name == "best" and epoch == epochs["last"]:
            same = {k: v for k, v in scores.items() if k.startswith("last_")}
            scores |= {k.replace("last_", "best_", 1): v for k, v in same.items()}
            layers += [frame.assign(epoch="best") for frame in layers]
            continue
        if name == "best":
            training.restore(training.best["state"])
        found, frame = score_model(model, text, scoring, seed, draws=block.draws)
        scores |= {f"{name}_{k}": v for k, v in found.items()}
        if frame is not None:
            layers.append(frame.assign(epoch=name))
        options: dict[str, Any] = {
            "num_samples": scoring.num_samples,
            "batch_size": scoring.batch_size,
            "seed": seed,
        }
        if name == "last" and scoring.rates:
            size = text.tokenizer.vocab_size
            tables["shift"] = response_to_corruption(
                model, text.test, scoring.rates, vocab_size=size, **options
            )
        if name == "last" and others:
            texts = {"own": text.test, **others}
            tables["texts"] = response_to_texts(model, texts, **options)
    if layers:
        tables["layers"] = pd.concat(layers, ignore_index=True)
    return Outcome(scores, tables)


def score_model(
    model: LanguageModel, text: Text, scoring: Scoring, seed: int, *, draws: bool
) -> tuple[dict[str, float], pd.DataFrame | None]:
    """Scores in all modes, raw and scaled, and the table of layers if there are any."""
    read = text.valid if scoring.part == "valid" else text.test
    common: dict[str, Any] = {"batch_size": scoring.batch_size, "seed": seed}
    modes: dict[str, dict[str, Any]] = {"draws": {"num_samples": scoring.num_samples}}
    if draws:
        modes["mean"] = {"num_samples": None, "mean": True}
        modes["one"] = {"num_samples": 1}
    scores: dict[str, float] = {}
    layers = None
    for mode, how in modes.items():
        windows = scoring.layer_windows if mode == "draws" else 0
        raw = evaluate(model, read, layer_windows=windows, **how, **common)
        scores |= {f"{mode}_raw_{k}": v for k, v in raw.scores.items()}
        if raw.layers is not None:
            layers = raw.layers.reset_index()
            layers.insert(0, "number", range(1, len(layers) + 1))
        if mode == "one" or scoring.part == "valid":
            continue
        temperature = _temperature(model, text, {**how, **common})
        scores[f"{mode}_temperature"] = temperature
        scaled = evaluate(model, read, temperature=temperature, **how, **common)
        scores |= {f"{mode}_scaled_{k}": v for k, v in scaled.scores.items()}
    return scores, layers


def _temperature(model: LanguageModel, text: Text, how: dict[str, Any]) -> float:
    try:
        return best_temperature(model, text.valid, **how)
    except ValueError:  # the best is the last of those
        return best_temperature(model, text.valid, temperatures=_WIDE, **how)


def _checkpoint(seed: int, *configs: Any) -> Path:
    """The file of this very run by this very code."""
    words = json.dumps([code_version(), seed, *(_plain(c) for c in configs)])
    folder = text_cache(None).with_name("training")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{hashlib.sha256(words.encode()).hexdigest()[:16]}.pt"
