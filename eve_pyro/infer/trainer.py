"""Trainer: fits a model and its guide with a torch optimizer, reproducibly."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from pyro import validation_enabled
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor, nn

from eve_pyro._checks import check_choice, check_int, check_real
from eve_pyro.infer._sites import check_guides_model
from eve_pyro.infer.checkpoint import FilePath
from eve_pyro.infer.guide import EVEGuide, local_parameters
from eve_pyro.infer.history import History
from eve_pyro.infer.rng import seeded
from eve_pyro.infer.run import Run
from eve_pyro.infer.schedule import Schedule, constant

Score = Callable[[nn.Module, Any], float]


@dataclass(frozen=True)
class TrainingConfig:
    """How to train: plain values, so that a command line and a checkpoint can hold them.

    The defaults suit a table of some thousand rows.

    Arguments:
        epochs: passes over the data. Default 250.
        batch_size: rows per step; the last batch of an epoch may be smaller. Default 64.
        learning_rate: of Adam. Default 3e-3.
        lr_schedule: ``"cosine"`` (default) falls to 0 over all steps, ``"constant"`` stays.
        lr_multipliers: factors on the learning rate by parameter name, as patterns of
            ``fnmatch``; those of all matching patterns multiply. A global output scale wants
            ten times the rate of the weights (``{"log_scale": 10.0}``): one that has not
            converged looks like a bad likelihood. Mind that ``"*log_scale"`` would match the
            encoders' parameters too. Names are those of ``model.named_parameters()``, and
            ``guide.`` before those of the guide's own. Default none.
        weight_decay: decoupled (AdamW), on parameters with two or more dims. Default 0.
        clip_norm: bound on the norm of the gradient of the loss per datum; None for none.
            Default 5.
        patience: epochs without a better validation score before training stops; None (default)
            never stops.
        restore_best: give the model the parameters of its best validation score at the end.
            Default True; without validation the last ones stay.
        seed: of shuffling and noise. Default 0.
        progress: show a progress bar. Default True.
        validate: let Pyro check distributions and traces in every step. Default False: only
            the evaluations ahead of the first step are checked, since the checks take time
            and read values back from the device. Numbers that are not finite end training
            either way.

    Raises:
        ValueError: for a value out of range.

    Example:
        >>> TrainingConfig(epochs=0)
        Traceback (most recent call last):
        ...
        ValueError: epochs must be an integer >= 1, got 0
    """

    epochs: int = 250
    batch_size: int = 64
    learning_rate: float = 3e-3
    lr_schedule: Literal["cosine", "constant"] = "cosine"
    lr_multipliers: dict[str, float] = field(default_factory=dict)
    weight_decay: float = 0.0
    clip_norm: float | None = 5.0
    patience: int | None = None
    restore_best: bool = True
    seed: int = 0
    progress: bool = True
    validate: bool = False

    def __post_init__(self) -> None:
        check_int("epochs", self.epochs)
        check_int("batch_size", self.batch_size)
        check_real("learning_rate", self.learning_rate, 0.0, exclusive=True)
        check_choice("lr_schedule", self.lr_schedule, ("cosine", "constant"))
        for pattern, factor in self.lr_multipliers.items():
            check_real(f"lr_multipliers[{pattern!r}]", factor, 0.0)
        check_real("weight_decay", self.weight_decay, 0.0)
        if self.clip_norm is not None:
            check_real("clip_norm", self.clip_norm, 0.0, exclusive=True)
        if self.patience is not None:
            check_int("patience", self.patience)
        check_int("seed", self.seed, 0)


class Trainer:
    """Minimises an ELBO of a model and its guide with Adam.

    Each step minimises the loss per datum, in nats: the ELBO of the batch, divided by its rows
    and by the N/B of the model's subsampled plates. So learning rates and gradient norms mean
    the same whether or not a model scales its likelihood to the whole data.

    Parameters are taken from the modules, not from Pyro's parameter store: models of one class
    train side by side in one process. The caller's random state stays as it was. A copy of the
    state of training is kept each epoch, for Ctrl-C, checkpoints and the search for an error.

    Arguments:
        model: a module, called as ``model(*batch, **model_kwargs)``.
        guide: its guide, called alike. Default ``EVEGuide(model)``.
        elbo: a Pyro ELBO; give each trainer its own. Default ``TraceMeanField_ELBO()``.
        config: a :class:`TrainingConfig`. Default ``TrainingConfig()``.
        beta_schedule: factor on every layer's beta as a function of the step, such as
            :func:`~eve_pyro.infer.linear_warmup`. Default full beta throughout.

    Raises:
        TypeError: if the model is not a module, the guide cannot be called, or elbo or config are
            something else.
        ValueError: if the guide is one of another model.

    Example:
        >>> from eve_pyro import EVEModule
        >>> class Regressor(pyro.nn.PyroModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = nn.Sequential(EVEModule(2, 8), nn.Linear(8, 1))
        ...         self.log_scale = nn.Parameter(torch.zeros(()))
        ...
        ...     def forward(self, x, y=None):
        ...         with pyro.plate("data", len(x)):
        ...             loc = self.net(x).squeeze(-1)
        ...             return pyro.sample("y", dist.Normal(loc, self.log_scale.exp()), obs=y)
        >>> x = torch.randn(100, 2)
        >>> y = x.sum(-1)
        >>> config = TrainingConfig(epochs=20, lr_multipliers={"log_scale": 10.0}, progress=False)
        >>> trainer = Trainer(Regressor(), config=config)
        >>> history = trainer.fit(x[:80], y[:80], validation=(x[80:], y[80:]))
        >>> first, *_, last = history.frame.train_loss
        >>> last < first
        True
    """

    def __init__(
        self,
        model: nn.Module,
        guide: Any = None,
        elbo: Any = None,
        config: TrainingConfig | None = None,
        *,
        beta_schedule: Schedule | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch module, got {model!r}")
        self.model = model
        self.guide = EVEGuide(model) if guide is None else guide
        if isinstance(self.guide, type) or not callable(self.guide):
            raise TypeError(f"guide must be a guide of the model, got {guide!r}")
        check_guides_model(model, self.guide)
        if isinstance(elbo, type):
            raise TypeError(f"elbo must be an objective, not a class: {elbo.__name__}()")
        if config is not None and not isinstance(config, TrainingConfig):
            raise TypeError(f"config must be a TrainingConfig, got {config!r}")
        self.elbo = TraceMeanField_ELBO() if elbo is None else elbo
        self.config = config or TrainingConfig()
        self.beta_schedule = beta_schedule or constant()
        self.loss = self.elbo(self.model, self.guide)

    def fit(
        self,
        *data: Tensor,
        validation: Sequence[Tensor] | Score | None = None,
        model_kwargs: dict[str, Any] | None = None,
        checkpoint: FilePath | None = None,
        checkpoint_every: int = 10,
        resume: bool = False,
        callback: Callable[[int], None] | None = None,
    ) -> History:
        """Train from the model's current parameters and return the :class:`History`.

        The modules are in training mode in steps and in evaluation mode in validation; at the
        end each mode, and every beta, is as it was. Ctrl-C ends training as its last epoch
        would: the best parameters are restored, and the history says ``interrupted``.

        Arguments:
            data: tensors with one row per datum, moved to the model's device; shuffled batches
                of them are the model's positional arguments.
            validation: tensors like ``data``, scored by the loss per datum at full beta with
                the same noise each epoch; or a function ``score(model, guide)``, lower is
                better, called without gradients and with seeded noise. Default none.
            model_kwargs: the model's other arguments, such as ``{"num_data": len(x)}`` for a
                plate that scales the likelihood to the whole data. Default none.
            checkpoint: file to keep the state of training in. Default none.
            checkpoint_every: epochs between two writes; the end and Ctrl-C write as well.
                Default 10.
            resume: continue from ``checkpoint`` if that file exists, to the numbers that the
                uninterrupted run would have reached (bit for bit on a CPU). Default False: a
                file that exists is overwritten.
            callback: called after every step with the number of steps so far, such as a
                :class:`~eve_pyro.diagnostics.Monitor`. It must leave the model and the random
                state as they are. Default none.

        Raises:
            ValueError: for tensors that do not fit together, are empty or not finite; for a
                pattern in lr_multipliers that matches no parameter; for parameters that are not
                the modules' own (``pyro.param`` in a function): train those with ``SVI``.
            FloatingPointError: if the loss, a gradient or a parameter is no longer finite;
                names the first site or parameter that is not. Losses are read once an epoch, so
                that steps need not wait for the device; on failure the epoch is replayed step
                by step, which leaves the model as it was before the failing step.
            CheckpointError: if the file cannot be written, is damaged, or belongs to another
                architecture, configuration or data; before anything is changed.
        """
        if resume and checkpoint is None:
            raise ValueError("resume=True needs checkpoint=, the file to resume from")
        check_int("checkpoint_every", checkpoint_every)
        _check_tensors("data", data)
        if validation is not None and not callable(validation):
            _check_tensors("validation", validation)
            if len(validation) != len(data):
                raise ValueError(
                    f"validation must hold {len(data)} tensors like data, got {len(validation)}"
                )
        if validation is None and self.config.patience is not None:
            raise ValueError("patience needs validation=, tensors or a function to score by")
        modes = {module: module.training for module in self.loss.modules()}
        try:
            with local_parameters(), seeded(self.config.seed), torch.enable_grad():
                run = Run(self, data, validation or (), model_kwargs or {}, callback)
                checks = nullcontext() if self.config.validate else validation_enabled(False)
                with checks:
                    return run.train(checkpoint, checkpoint_every, resume)
        finally:
            for module, mode in modes.items():
                module.training = mode


def _check_tensors(name: str, tensors: Sequence[Tensor]) -> None:
    """Raise an error unless these are finite tensors with one number of rows, at least 1."""
    if isinstance(tensors, Tensor) or not tensors:
        raise ValueError(f"{name} must be one or more tensors, got {type(tensors).__name__}")
    for i, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}[{i}] must be a tensor, got {type(tensor).__name__}")
    lengths = [len(tensor) if tensor.dim() else 0 for tensor in tensors]
    if min(lengths) != max(lengths) or not lengths[0]:
        raise ValueError(f"{name} must have one number of rows, at least 1, got {lengths}")
    for i, tensor in enumerate(tensors):
        bad = (~torch.isfinite(tensor)).nonzero()
        if len(bad):
            row, *column = bad[0].tolist()
            value = tensor[tuple(bad[0])].item()
            place = f"row {row}" + "".join(f", column {c}" for c in column)
            raise ValueError(f"{name}[{i}] must be finite, got {value} in {place} (from 0)")
