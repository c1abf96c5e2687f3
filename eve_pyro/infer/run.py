"""One training run: its state, its steps and its epochs."""

import copy
import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from eve_pyro.infer import checkpoint as files
from eve_pyro.infer.history import History
from eve_pyro.infer.optimizer import cosine_decay, make_optimizer, scale_rates
from eve_pyro.infer.probe import Recorder, first_non_finite, is_finite
from eve_pyro.infer.rng import random_state, seeded, set_random_state
from eve_pyro.infer.schedule import BetaSchedule, constant
from eve_pyro.infer.state import clone_state, copy_state, named_parameters, named_state
from eve_pyro.nn.module import eve_modules

if TYPE_CHECKING:
    from eve_pyro.infer.trainer import Trainer

Batch = list[Tensor]


class Run:
    """The state of one call of ``Trainer.fit``, and what moves it.

    Between epochs every beta has its full value; the schedule acts within an epoch. So the
    scores of all epochs compare, and no state that is kept or restored holds a half-way beta.

    Arguments:
        trainer: whose model, guide, objective and configuration to use.
        data: tensors of equal length.
        validation: tensors likewise (perhaps none), or a function to score by.
        kwargs: of the model.
        callback: called after every step with the number of steps so far.
    """

    def __init__(
        self,
        trainer: "Trainer",
        data: Sequence[Tensor],
        validation: Sequence[Tensor] | Callable[[nn.Module, Any], float],
        kwargs: dict[str, Any],
        callback: Callable[[int], None] | None = None,
    ) -> None:
        self.callback = callback
        self.config, self.elbo, self.kwargs = trainer.config, trainer.elbo, kwargs
        self.model, self.guide, self.loss = trainer.model, trainer.guide, trainer.loss
        device = next((p.device for p in self.model.parameters()), None)
        self.data = [tensor.to(device) for tensor in data]
        self.score = validation if callable(validation) else None
        self.validation = [] if callable(validation) else [t.to(device) for t in validation]
        self.rows = len(data[0])
        self.batch_size = min(self.config.batch_size, self.rows)
        self.weights: dict[int, float] = {}
        self._initialise()
        self.tensors = named_state(self.model, self.guide)
        self.parameters = named_parameters(self.model, self.guide)
        config = self.config
        self.optimizer = make_optimizer(
            self.parameters, config.learning_rate, config.lr_multipliers, config.weight_decay
        )
        steps = config.epochs * math.ceil(self.rows / self.batch_size)
        self.lr_schedule = cosine_decay(steps) if config.lr_schedule == "cosine" else constant()
        self.beta = BetaSchedule(self.model, trainer.beta_schedule)
        self._set_full_beta()
        self.shuffle = torch.Generator().manual_seed(self.config.seed)
        self.epoch = 0
        self.history: list[tuple] = []
        self.best: dict[str, Any] | None = None

    def train(self, path: files.FilePath | None, every: int, resume: bool) -> History:
        """Run all epochs that are left, keeping a checkpoint at ``path`` if there is one."""
        if path is not None:
            files.check_writable(path)
            if resume and os.path.exists(path):
                self._resume(path)
        saved, interrupted = self._snapshot(), False
        total, quiet = self.config.epochs, not self.config.progress
        try:
            with tqdm(total=total, initial=self.epoch, unit="epoch", disable=quiet) as bar:
                while self.epoch < total and not self._is_stale():
                    self._train_epoch(saved)
                    saved = self._snapshot()
                    if path is not None and self.epoch % every == 0:
                        self._write(path, saved)
                    shown = {"loss": self.history[-1][1], "validation": self.history[-1][2]}
                    shown["best"] = self.best["score"] if self.best else math.nan
                    bar.set_postfix({k: f"{v:.4g}" for k, v in shown.items()}, refresh=False)
                    bar.update()
        except KeyboardInterrupt:
            self._restore(saved)
            interrupted = True
        finally:
            self._set_full_beta()
            self.optimizer.zero_grad()
        if path is not None:
            self._write(path, saved)
        best = self.best or {}
        if best and self.config.restore_best:
            copy_state(best["state"], self.tensors)
        return History(
            self.history,
            best_epoch=best.get("epoch"),
            best_score=best.get("score"),
            stopped_early=self.epoch < total and not interrupted,
            interrupted=interrupted,
        )

    def _is_stale(self) -> bool:
        best = self.best["epoch"] if self.best else 0
        return self.config.patience is not None and self.epoch - best >= self.config.patience

    # Start

    def _initialise(self) -> None:
        """Evaluate the loss once for every size of batch there will be.

        This makes the parameters that a guide makes on its first call, shows the objective the
        model's plates, and finds the weight of a batch. None of it is left to a step, where a
        resumed run would do it at another time. In evaluation mode, so that running statistics
        do not see it.
        """
        self.loss.eval()
        for part in (self.data, self.validation):
            for size in map(len, part[0].split(self.batch_size) if part else ()):
                if size not in self.weights:
                    self.weights[size] = size * self._scale([t[:size] for t in part])

    def _scale(self, batch: Batch) -> float:
        """N/B of the model's subsampled plates, or an error if the model cannot be trained."""

        def loss() -> Tensor:
            with torch.no_grad(), seeded(self.config.seed):
                return self.loss(*batch, **self.kwargs)

        recorder = Recorder()
        try:
            with recorder:
                if not is_finite(loss()):
                    raise FloatingPointError("the loss is not finite")
        except Exception as error:
            self._blame(loss, "at the start of training", error)
            raise
        own = named_state(self.model, self.guide).values()
        if foreign := recorder.foreign_parameters(own):
            raise ValueError(
                f"parameter {foreign[0]!r} belongs to no module: the trainer trains what the model "
                "and the guide own; make it an nn.Parameter or PyroParam of one, or use SVI"
            )
        return recorder.likelihood_scale()

    # Epochs and steps

    def _train_epoch(self, saved: dict[str, Any]) -> None:
        started, step = time.perf_counter(), self.beta.count
        rate = self.config.learning_rate * self.lr_schedule(step)
        factor = self.beta.schedule(step)
        losses: list[Tensor] = []
        try:
            for batch in self._batches():
                losses.append(self._backward(batch) * len(batch[0]))
                self._update()
                if self.callback is not None:
                    self.callback(self.beta.count)
            # The one transfer from the device. A gradient that is not finite shows in the norm.
            loss = torch.stack(losses).sum() / self.rows
            norm = nn.utils.get_total_norm(self.parameters.values()).to(loss)
            values = torch.stack([loss, norm]).tolist()
            if not all(map(math.isfinite, values)):
                raise FloatingPointError(f"the loss of epoch {self.epoch + 1} is not finite")
        except Exception as error:
            # Also where Pyro's validation met the number first, with an error of its own.
            self._replay(saved, len(losses) + 1, error)
            raise
        self.epoch += 1
        score = self._validate()
        seconds = time.perf_counter() - started
        self.history.append((self.epoch, values[0], score, rate, factor, seconds))
        if score < (self.best["score"] if self.best else math.inf):
            self.best = {"score": score, "epoch": self.epoch, "state": clone_state(self.tensors)}

    def _batches(self) -> Iterator[Batch]:
        self.loss.train()
        self.beta.load_state_dict(self.beta.state_dict())  # from full beta to where it was
        order = torch.randperm(self.rows, generator=self.shuffle).to(self.data[0].device)
        for rows in order.split(self.batch_size):
            yield [tensor[rows] for tensor in self.data]

    def _per_datum(self, batch: Batch) -> Tensor:
        return self.loss(*batch, **self.kwargs) / self.weights[len(batch[0])]

    def _backward(self, batch: Batch) -> Tensor:
        self.optimizer.zero_grad()
        loss = self._per_datum(batch)
        loss.backward()
        return loss.detach()

    def _update(self) -> None:
        if self.config.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters.values(), self.config.clip_norm)
        scale_rates(self.optimizer, self.lr_schedule(self.beta.count))
        self.optimizer.step()
        self.beta.step()

    def _validate(self) -> float:
        """The score, lower is better; NaN where nothing was given to score by."""
        self._set_full_beta()
        if self.score is None and not self.validation:
            return math.nan
        self.loss.eval()
        with seeded(self.config.seed), torch.no_grad():
            if self.score is not None:
                score = float(self.score(self.model, self.guide))
            else:
                parts = (tensor.split(self.batch_size) for tensor in self.validation)
                batches = [list(batch) for batch in zip(*parts, strict=True)]
                losses = [self._per_datum(batch) * len(batch[0]) for batch in batches]
                score = float(torch.stack(losses).sum()) / len(self.validation[0])
        if math.isnan(score):
            raise FloatingPointError(f"the validation score of epoch {self.epoch} is nan")
        return score

    def _set_full_beta(self) -> None:
        for (_, layer), full in zip(eve_modules(self.model), self.beta.full, strict=True):
            layer.set_beta(full)

    # Failure

    def _replay(self, saved: dict[str, Any], steps: int, error: Exception) -> None:
        """Repeat an epoch's first steps, and raise at the first number that is not finite."""
        self._restore(saved)
        where = f"in epoch {self.epoch + 1}; a lower learning_rate or clip_norm may help"
        for batch in islice(self._batches(), steps):
            self._blame(partial(self._backward, batch), where, error)
            self._update()
        self._blame(lambda: torch.zeros(()), where, error)

    def _blame(self, loss: Callable[[], Tensor], where: str, error: Exception | None) -> None:
        culprit = first_non_finite(loss, named_parameters(self.model, self.guide))
        if culprit is not None:
            raise FloatingPointError(f"{culprit} is not finite {where}") from error

    # State

    def _snapshot(self) -> dict[str, Any]:
        return {
            "state": clone_state(self.tensors),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "beta": self.beta.state_dict(),
            "shuffle": self.shuffle.get_state(),
            "random": random_state(),
            "epoch": self.epoch,
            "history": list(self.history),
            "best": self.best,
        }

    def _restore(self, saved: dict[str, Any]) -> None:
        self.beta.load_state_dict(saved["beta"])
        copy_state(saved["state"], self.tensors)  # full betas among them
        # The optimizer would go on with the tensors it is given.
        self.optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))
        self.shuffle.set_state(saved["shuffle"])
        set_random_state(saved["random"])
        self.epoch, self.history, self.best = saved["epoch"], list(saved["history"]), saved["best"]

    def _write(self, path: files.FilePath, saved: dict[str, Any]) -> None:
        settings = self._settings(saved["beta"]["count"])
        files.write(path, "checkpoint", {"settings": settings, **saved})

    def _resume(self, path: files.FilePath) -> None:
        saved = files.read(path, "checkpoint")
        files.check_same_state(path, saved["state"], self.tensors)
        files.check_same_settings(path, saved["settings"], self._settings(saved["beta"]["count"]))
        self._restore(saved)

    def _settings(self, steps: int) -> dict[str, Any]:
        """What decides the numbers of a run after some steps, as far as plain values can tell."""
        # A finished run at a constant rate may go on; what is shown or kept decides nothing.
        free = {"progress", "restore_best", "validate"}
        free |= {"epochs"} if self.config.lr_schedule == "constant" else set()
        # A compiled objective is the one it compiles: a run may go on with or without compiling.
        objective = getattr(self.elbo, "elbo", self.elbo)
        return {
            **{k: v for k, v in dataclasses.asdict(self.config).items() if k not in free},
            "elbo": type(objective).__name__,
            "num_particles": getattr(objective, "num_particles", None),
            "beta": self.beta.full,
            # A function is compared by its values at steps it has seen.
            "beta_schedule": [self.beta.schedule(2**i) for i in range(steps.bit_length())],
            "parameters": list(self.parameters),
            "model_kwargs": {k: v for k, v in self.kwargs.items() if isinstance(v, int | float)},
            **self._data_settings,
        }

    @cached_property
    def _data_settings(self) -> dict[str, list[str]]:
        parts = {"data": self.data, "validation": self.validation}
        return {name: [files.fingerprint(t) for t in part] for name, part in parts.items()}
