"""Objectives beyond the stock ELBOs: the same traces, another likelihood term.

All numbers are sums in nats. The likelihood term of a mini-batch is scaled by N/B by the
subsampled plate, and so is the KL of its local latents; beta weighs the KL alone. Dividing a
loss by N gives nats per datum.
"""

import logging
import math
from typing import Any, ClassVar

import torch
from pyro import poutine
from pyro.infer.elbo import ELBO
from pyro.infer.util import is_validation_enabled
from pyro.poutine.messenger import Messenger
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import prune_subsample_sites
from pyro.util import check_model_guide_match, warn_if_nan
from torch import Tensor

from eve_pyro._checks import check_int
from eve_pyro.infer._sites import check_guides_model, check_value, observed_sites, total_kl

Traces = list[tuple[Trace, Trace]]


class PathwiseELBO(ELBO):
    """Base of objectives of the form -(likelihood term) + KL, differentiated by the pathwise rule.

    The KL of every latent site is analytic where Pyro knows it, else the sampled log q - log p,
    averaged over particles and scaled as its site is (plates, beta). ``pyro.factor`` terms are
    averaged over particles too. Subclasses define :meth:`log_likelihood`.

    Arguments:
        num_particles: S, posterior draws per datum.
        vectorize_particles: draw all particles in one run (default); the model must then accept
            a leading dim of particles, as Pyro asks of any vectorized model.
        max_plate_nesting: depth of the model's plates, guessed by a first run if not given. The
            guess is kept: use an objective for one model.

    Raises:
        ValueError: for fewer particles than the objective needs, and when called on a model
            whose guide has a latent without reparameterized sampling.
    """

    min_particles: ClassVar[int] = 1

    def __init__(
        self,
        num_particles: int = 1,
        *,
        vectorize_particles: bool = True,
        max_plate_nesting: float = math.inf,
        **kwargs: Any,
    ) -> None:
        check_int("num_particles", num_particles, self.min_particles)
        super().__init__(
            num_particles=num_particles,
            # One particle needs no plate, and no first run to find the plate's dim.
            vectorize_particles=vectorize_particles and num_particles > 1,
            max_plate_nesting=max_plate_nesting,
            **kwargs,
        )

    def log_likelihood(self, traces: Traces) -> Tensor:
        """The likelihood term, summed over data, from (model_trace, guide_trace) pairs."""
        raise TypeError(f"{type(self).__name__} must define log_likelihood(traces)")

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        """The loss as a 0-dim tensor whose gradient is the gradient estimate."""
        check_guides_model(model, guide)
        traces = list(self._get_traces(model, guide, args, kwargs))
        regulariser = sum(total_kl(*pair) for pair in traces) / self._runs
        return regulariser - self.log_likelihood(traces)

    def loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """The loss as a float."""
        with torch.no_grad():
            loss = self.differentiable_loss(model, guide, *args, **kwargs).item()
        warn_if_nan(loss, "loss")
        return loss

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """The loss as a float, its gradients added to the parameters; what ``SVI`` calls."""
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        if loss.requires_grad:
            loss.backward(retain_graph=self.retain_graph)
        value = loss.item()
        warn_if_nan(value, "loss")
        return value

    def _guess_max_plate_nesting(self, model: Any, guide: Any, args: Any, kwargs: Any) -> None:
        # Pyro announces its guess on the console, in the middle of a user's output.
        logger = logging.getLogger("pyro.infer.elbo")
        level = logger.level
        logger.setLevel(logging.WARNING)
        try:
            super()._guess_max_plate_nesting(model, guide, args, kwargs)
        finally:
            logger.setLevel(level)

    @property
    def _runs(self) -> int:
        """Number of program runs per loss; in one vectorized run, sums span the particles."""
        return self.num_particles

    @property
    def _particle_dim(self) -> int | None:
        """The dim of the plate of particles, or None where particles are separate runs."""
        return -int(self.max_plate_nesting) if self.vectorize_particles else None

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> tuple[Trace, Trace]:
        # As Pyro's get_importance_trace, less the log probabilities of the latents, which an
        # analytic KL does not need.
        unwrapped = poutine.unwrap(guide)
        if isinstance(unwrapped, Messenger):
            guide(*args, **kwargs)
            model_trace, guide_trace = unwrapped.get_traces()
        else:
            guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
            replayed = poutine.replay(model, trace=guide_trace)
            model_trace = poutine.trace(replayed).get_trace(*args, **kwargs)
        model_trace, guide_trace = map(prune_subsample_sites, (model_trace, guide_trace))
        if is_validation_enabled():
            check_model_guide_match(model_trace, guide_trace, self.max_plate_nesting)
            for name, site in observed_sites(model_trace).items():
                check_value(name, site)
        return model_trace, guide_trace
