"""Training of a language model that can be stopped at any step and goes on as if it had not."""

import dataclasses
import math
import os
import warnings
from collections.abc import Iterator
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np
import pyro
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from eve_pyro.data import DataError
from eve_pyro.diagnostics import layer_table, posterior_statistics
from eve_pyro.experiments.studies.language.corpora import Text
from eve_pyro.experiments.studies.language.models import BlockConfig
from eve_pyro.experiments.studies.language.passes import Passes, Windows
from eve_pyro.experiments.studies.language.plan import Plan
from eve_pyro.experiments.studies.language.ranks import Ranks
from eve_pyro.infer import CompiledELBO, EVEGuide, best_backend
from eve_pyro.infer import checkpoint as files
from eve_pyro.infer.guide import local_parameters
from eve_pyro.infer.probe import first_non_finite
from eve_pyro.infer.rng import seeded
from eve_pyro.infer.schedule import BetaSchedule
from eve_pyro.infer.state import State, clone_state, copy_state, named_parameters, named_state
from eve_pyro.nn import LanguageModel, eve_modules, weight_decay_groups


class Training:
    """One training run. What it does in a step depends on the seed, the step and the state alone.

    The noise of a step is seeded by its number, so a run that goes on from a checkpoint gives
    the numbers of one that was never stopped, bit for bit on a CPU. The caller's random state
    stays as it was.

    Arguments:
        model: to train, on the device of ``ranks``.
        block: its configuration, for the objective.
        text: what to read.
        plan: how.
        seed: of the order of windows and the noise.
        ranks: the processes that train together.
        path: file to keep the state in, and to go on from if it is there; None for none.

    Attributes:
        course: per epoch ``epoch``, ``objective`` (mean loss of the steps, nats per token),
            ``train_ce`` and ``valid_ce`` (cross-entropy in eval mode on as many windows of
            either, predictions as ``plan.num_samples`` says), ``valid_mean_ce`` (at the
            posterior means) and ``seconds`` of its steps.
        best: ``epoch`` and ``state`` of the least ``valid_ce``.

    Raises:
        DataError: if the training text does not fill a batch.
    """

    def __init__(
        self,
        model: LanguageModel,
        block: BlockConfig,
        text: Text,
        plan: Plan,
        seed: int,
        ranks: Ranks,
        path: files.FilePath | None = None,
    ) -> None:
        self.model, self.block, self.text, self.plan = model, block, text, plan
        self.seed, self.ranks, self.path = seed, ranks, path
        self.epoch_steps = len(text.train) // plan.batch_size
        if not self.epoch_steps:
            raise DataError(
                f"the training text must fill a batch of {plan.batch_size} windows of "
                f"{text.train.context} tokens, got {len(text.train)} windows"
            )
        self.steps = plan.epochs * self.epoch_steps
        elbo = block.elbo()
        if plan.backend is not None:
            elbo = CompiledELBO(elbo, backend=best_backend(plan.backend))
        self.loss = elbo(model, EVEGuide(model))
        self.parameters = named_parameters(model)
        self.tensors = named_state(model)
        groups = weight_decay_groups(model, plan.weight_decay)
        self.optimizer = torch.optim.AdamW(groups, lr=plan.learning_rate, fused=True)
        self.beta = BetaSchedule(model, block.beta_schedule(self.steps))
        self.step, self.seconds = 0, 0.0
        self.losses: list[float] = []
        self.course: list[dict[str, float]] = []
        self.best: dict[str, Any] = {"epoch": 0, "valid_ce": math.inf, "state": {}}

    def run(self) -> None:
        """Take all steps that are left."""
        with (
            local_parameters(),
            pyro.validation_enabled(False),
            seeded(self.seed),
            warnings.catch_warnings(),
        ):
            # Pyro warns of a loss that is NaN; here it ends training.
            warnings.filterwarnings("ignore", "Encountered NaN")
            self._resume()
            self._rehearse()
            bar = tqdm(
                total=self.steps,
                initial=self.step,
                unit="step",
                disable=not (self.plan.progress and self.ranks.first),
            )
            with bar:
                while self.step < self.steps:
                    for inputs, targets in self._batches():
                        self._step(inputs, targets)
                        bar.update()
                        if self.step % self.plan.checkpoint_every == 0:
                            self._write()
                    self._look()
                    self._write()
                    shown = self.course[-1]
                    bar.set_postfix(train=shown["train_ce"], valid=shown["valid_ce"])

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """What is left of the epoch, or the next one."""
        epoch, done = divmod(self.step, self.epoch_steps)
        if done == 0 and len(self.course) < epoch:  # stopped ahead of the look
            return
        batches = self.text.train.batches(self.plan.batch_size, seed=self.seed, epoch=epoch)
        for inputs, targets in islice(batches, done, self.epoch_steps):
            mine = (self.ranks.share(t).to(self.ranks.device) for t in (inputs, targets))
            yield tuple(mine)  # type: ignore[misc]

    def _rehearse(self) -> None:
        """The first call of a compiled loss is eager, and records: not in a step, of which a run
        that goes on has other ones.
        """
        self.model.train()
        inputs, targets = self.text.train[0]
        rows = self.plan.batch_size // self.ranks.size or 1
        batch = (t.expand(rows, -1).contiguous().to(self.ranks.device) for t in (inputs, targets))
        with seeded(self.seed):
            self.loss(*batch)

    def _step(self, inputs: Tensor, targets: Tensor) -> None:
        started = perf_counter()
        self.beta.load_state_dict({"count": self.step, "full": self.beta.full})
        loss = self._backward(inputs, targets)
        self.ranks.average(self.ranks.gradients(self.model))
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip_norm)
        value, size = torch.stack([loss, norm]).tolist()
        if not (math.isfinite(value) and math.isfinite(size)):
            self._blame(inputs, targets)
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.rate(self.step, self.steps)
        self.optimizer.step()
        self.losses.append(value)
        self.step += 1
        self.seconds += perf_counter() - started

    def _backward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss in nats per token, and its gradients."""
        words = (self.seed, self.step, self.ranks.rank)
        torch.manual_seed(int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 1))
        self.model.train()
        self.optimizer.zero_grad()
        loss = self.loss(inputs, targets) / targets.numel()
        loss.backward()
        return loss.detach()

    def _blame(self, inputs: Tensor, targets: Tensor) -> None:
        """Name what is not finite, before the step that it would spoil is taken."""

        def evaluate() -> Tensor:
            if isinstance(self.loss, nn.Module) and self.plan.backend is None:
                return self._backward(inputs, targets)
            kept, self.loss = self.loss, self.block.elbo()(self.model, EVEGuide(self.model))
            try:
                return self._backward(inputs, targets)
            finally:
                self.loss = kept

        culprit = first_non_finite(evaluate, self.parameters) or "the loss or its gradient"
        raise FloatingPointError(
            f"{culprit} is not finite in step {self.step + 1} of {self.steps}; a lower "
            "learning_rate or clip_norm may help"
        )

    def _look(self) -> None:
        """Score training and validation text after an epoch, on equal terms."""
        epoch = self.step // self.epoch_steps
        row: dict[str, float] = {"epoch": epoch}
        if self.ranks.first:
            row["objective"] = float(np.mean(self.losses))
            row["train_ce"] = self._cross_entropy(self.text.look)
            row["valid_ce"] = self._cross_entropy(self.text.valid)
            row["valid_mean_ce"] = row["valid_ce"]
            if self.block.draws:
                row["valid_mean_ce"] = self._cross_entropy(self.text.valid, mean=True)
            row["seconds"] = self.seconds
        row = self.ranks.tell(row)
        self.course.append(row)
        if self.block.balanced:
            self.beta.balance(self.ranks.tell(self._kls() if self.ranks.first else None))
        self.losses, self.seconds = [], 0.0
        if row["valid_ce"] < self.best["valid_ce"]:
            state = clone_state(self.tensors)
            self.best = {"epoch": epoch, "valid_ce": row["valid_ce"], "state": state}

    def _cross_entropy(self, windows: Windows, *, mean: bool = False) -> float:
        samples, size = self.plan.num_samples, self.plan.batch_size
        run = Passes(self.model, windows, samples, size, self.seed, 1.0, mean)
        return float(run.losses((1.0,))[0])

    def _kls(self) -> list[float]:
        """Every EVE layer's KL per unit, on a batch of training text."""
        inputs, targets = next(self.text.look.batches(self.plan.batch_size, seed=0, shuffle=False))
        batch = inputs.to(self.ranks.device), targets.to(self.ranks.device)
        guide = EVEGuide(self.model)
        statistics = posterior_statistics(
            self.model, guide, *batch, at="draw", keep="units", seed=self.seed
        )
        kls = layer_table(statistics)["kl"].clip(lower=0.0)  # rounding about an exact 0
        return [float(kls[layer.site]) for _, layer in eve_modules(self.model)]

    # State

    def _write(self) -> None:
        if self.path is None or not self.ranks.first:
            return
        content = {
            "settings": self._settings,
            "state": clone_state(self.tensors),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "losses": self.losses,
            "seconds": self.seconds,
            "course": self.course,
            "best": self.best,
            "beta": self.beta.full,
        }
        files.write(self.path, "language training", content)

    def _resume(self) -> None:
        if self.path is None or not os.path.exists(self.path):
            return
        saved = files.read(self.path, "language training")
        files.check_same_settings(self.path, saved["settings"], self._settings)
        files.check_same_state(self.path, saved["state"], self.tensors)
        copy_state(saved["state"], self.tensors)
        self.optimizer.load_state_dict(saved["optimizer"])
        for name in ("step", "losses", "seconds", "course", "best"):
            setattr(self, name, saved[name])
        self.beta.load_state_dict({"count": self.step, "full": saved["beta"]})

    @property
    def _settings(self) -> dict[str, Any]:
        """What decides the numbers, as far as plain values can tell."""
        plan = dataclasses.asdict(self.plan)
        decisive = {k: v for k, v in plan.items() if k not in ("progress", "checkpoint_every")}
        return {
            **decisive,
            **dataclasses.asdict(self.block),
            "seed": self.seed,
            "tokenizer": self.text.tokenizer.fingerprint,
            "windows": len(self.text.train),
            "processes": self.ranks.size,
        }

    def restore(self, state: State) -> None:
        """Give the model the parameters of a state, such as that of the best epoch."""
        copy_state(state, self.tensors)
