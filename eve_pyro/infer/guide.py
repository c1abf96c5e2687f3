"""EVEGuide: the guide reading of a model, as an effect handler."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyro
from pyro import poutine
from pyro.distributions import Distribution
from pyro.infer.autoguide import AutoGuide
from pyro.poutine.guide import GuideMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _PYRO_STACK
from pyro.poutine.trace_messenger import TraceMessenger
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import prune_subsample_sites, site_is_subsample
from torch import Tensor, nn

from eve_pyro.nn.module import is_eve_site
from eve_pyro.nn.site import name_sites


class StaleParameterError(RuntimeError):
    """Pyro's parameter store trains tensors that are not this model's parameters.

    Example:
        >>> issubclass(StaleParameterError, RuntimeError)
        True
    """


class EVEGuide(GuideMessenger, nn.Module):
    """Guide that draws every EVE site of a model from its local posterior.

    Calling the guide runs the model once with the posteriors in place, and that one run yields
    both traces of an ELBO: the networks are not evaluated a second time. Sites without a
    posterior are left to the prior, or to a guide of yours for them.

    The guide works wherever a Pyro guide does: with ``SVI``, ``Predictive``, every ELBO but those
    that enumerate, as a module in ``elbo(model, guide)``. What runs is the guide's own model, as
    for every effect-handler guide of Pyro: put handlers around that model
    (``EVEGuide(poutine.scale(model, scale=0.1))``) or around the whole call, not around the
    model that an ELBO is given beside the guide.

    Call EVE layers inside the plate of their data. Outside it their KL misses the plate's N/B,
    and under vectorized particles the data would be counted once per particle, which is an error.

    Building it names the EVE sites by module path (:func:`~eve_pyro.nn.name_sites`).

    Arguments:
        model: a module with EVE layers, or a function that calls one (its layers are then named
            by ``name_sites(net)``, which you call yourself).
        guide: optional guide for the model's other latent variables: an ``AutoGuide`` class
            such as ``AutoNormal`` (built here, blind to the EVE sites), or any guide callable
            with the model's arguments.

    Raises:
        TypeError: if the model or guide is not callable.
        StaleParameterError: when called by ``SVI`` while Pyro's parameter store holds other
            tensors under the names of this model's parameters (a second model of one class in
            one process): those would be trained and the model left as it is, without a word.
            Likewise if the store does not know a layer's parameters at all; for other parameters
            of the model that it does not know there is a warning.
        ValueError: when called, if an EVE site occurs twice in one pass; when an ELBO takes the
            traces, if a site has batch dims that no plate covers.

    Example:
        >>> from eve_pyro import EVEModule
        >>> net = nn.Sequential(EVEModule(3, 4), EVEModule(4, 2))
        >>> guide = EVEGuide(net)
        >>> draws = guide(torch.randn(5, 3))
        >>> {name: tuple(z.shape) for name, z in draws.items()}
        {'0': (5, 4, 1), '1': (5, 2, 1)}
    """

    trace: Trace
    args_kwargs: tuple[Any, ...]
    model: Any  # a property of the base class, which nn.Module's attribute access hides

    def __init__(self, model: Callable, guide: Any = None) -> None:
        if not callable(model):
            raise TypeError(f"model must be callable, got {model!r}")
        for name, part in (("model", model), ("guide", guide)):
            if isinstance(poutine.unwrap(part), GuideMessenger):
                raise TypeError(f"{name} must not be an effect-handler guide itself, got {part!r}")
        nn.Module.__init__(self)
        GuideMessenger.__init__(self, model)
        if isinstance(model, nn.Module):
            name_sites(model)
        if isinstance(guide, type) and issubclass(guide, AutoGuide):
            guide = guide(poutine.block(model, hide_fn=is_eve_site))
        if guide is not None and not callable(guide):
            raise TypeError(f"guide must be callable or an AutoGuide class, got {guide!r}")
        self.guide = guide
        self._guide_trace = Trace()
        self._registered = False

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Run the model with its EVE sites drawn from their posteriors.

        Arguments are the model's. Returns the value of every sample site by name.
        """
        self._guide_trace = Trace()
        if self.guide is not None:
            with _Unseen() as recorder:
                self.guide(*args, **kwargs)
            self._guide_trace = recorder.trace
        self.args_kwargs = args, kwargs
        try:
            with self:
                self.model(*args, **kwargs)
        finally:
            del self.args_kwargs
        if not self._registered and _trains_the_store():
            self._check_registered()
        # Not by get_traces, as in the base class: only an ELBO needs the pair, and its checks.
        sites = prune_subsample_sites(self.trace).nodes.items()
        return {name: site["value"] for name, site in sites if site["type"] == "sample"}

    def get_traces(self) -> tuple[Trace, Trace]:
        """The pair (model_trace, guide_trace) of the last call."""
        for name, site in self.trace.nodes.items():
            if site["type"] == "sample" and not site_is_subsample(site):
                _check_plates(name, site)
        model_trace, guide_trace = super().get_traces()
        for name, site in guide_trace.nodes.items():
            if site["infer"].get("left_to_prior"):
                # One distribution object in both: objectives see at once that its KL is zero.
                model_trace.nodes[name]["fn"] = site["fn"]
        for name, site in prune_subsample_sites(self._guide_trace).nodes.items():
            if site["type"] == "sample" and not site["is_observed"]:
                guide_trace.nodes[name] = site  # keeps the order of sites that are there
        return model_trace, guide_trace

    def get_posterior(self, name: str, prior: Distribution) -> Distribution:
        """The distribution of a site that is neither an EVE site nor in the given guide."""
        return prior

    def _pyro_sample(self, msg: Any) -> None:
        name = msg["name"]
        traced = self._guide_trace.nodes.get(name)
        if traced is not None and not msg["is_observed"]:
            msg["value"], msg["done"] = traced["value"], True
            if not site_is_subsample(msg):
                msg["infer"]["prior"] = msg["fn"]
                msg["fn"] = traced["fn"]
        elif is_eve_site(msg) and not msg["is_observed"]:
            if name in self.trace.nodes:
                raise ValueError(
                    f"EVE site {name!r} occurs twice in one pass: a layer was called twice, or "
                    "two layers share a name. Give each call a layer of its own, or layers names "
                    "of their own with name= or name_sites(model)"
                )
            prior = msg["fn"]
            msg["infer"]["prior"] = prior
            posterior = msg["infer"]["posterior"]()
            if posterior.batch_shape != prior.batch_shape:
                posterior = posterior.expand(prior.batch_shape)
            msg["fn"] = posterior
        elif not msg["is_observed"] and not site_is_subsample(msg):
            msg["infer"]["left_to_prior"] = True
            super()._pyro_sample(msg)

    def _pyro_post_param(self, msg: Any) -> None:
        super()._pyro_post_param(msg)
        # pyro.module hands over the module's own Parameter and returns what the store holds.
        given = msg["args"][1] if len(msg["args"]) > 1 else None
        unconstrained = getattr(msg["value"], "unconstrained", None)
        if not isinstance(given, nn.Parameter) or unconstrained is None:
            return
        if unconstrained() is not given and _trains_the_store() and not self._owns(unconstrained()):
            raise StaleParameterError(
                f"Pyro's parameter store holds another tensor under {msg['name']!r}, probably of "
                "a model built before: SVI would train that one and leave this model unchanged. "
                "Call pyro.clear_param_store() before you train a new model with SVI, or train "
                "with eve_pyro.infer.Trainer or elbo(model, guide) and a torch optimizer, which "
                "take the parameters from the model"
            )

    def _check_registered(self) -> None:
        """Whether the store knows the EVE layers that just ran; ``SVI`` trains nothing else."""
        sites = list(self.trace.nodes.values())
        store = {id(site["value"].unconstrained()) for site in sites if site["type"] == "param"}
        for site in sites:
            layer = (site.get("infer") or {}).get("layer")
            for name, p in layer.named_parameters() if layer is not None else ():
                if p.requires_grad and id(p) not in store:
                    raise StaleParameterError(
                        f"parameter {name!r} of the EVE layer {site['name']!r} is not in Pyro's "
                        "parameter store: SVI would leave it unchanged. Make the layer, or the "
                        "plain module that holds it, an attribute of a PyroModule and read it "
                        "there (self.net(x)), or call pyro.module in the model"
                    )
        if isinstance(self.model, nn.Module):
            own = self.model.named_parameters()
            missing = [name for name, p in own if p.requires_grad and id(p) not in store]
            if missing:
                warnings.warn(
                    f"SVI will leave parameters unchanged that the model did not read through a "
                    f"PyroModule: {', '.join(missing)}",
                    stacklevel=2,
                )
        self._registered = True

    def _owns(self, parameter: Tensor) -> bool:
        model = self.model
        return isinstance(model, nn.Module) and any(p is parameter for p in model.parameters())


def _check_plates(name: str, site: dict[str, Any]) -> None:
    """Raise an error if a site has batch dims that are no plate's.

    Pyro checks this only up to the plates' depth. Further left, a vectorized particle dim that
    an input carried past its place would broadcast the data against itself, without a word.
    """
    plates = {f.dim: f.size for f in site["cond_indep_stack"] if f.dim is not None}
    shape = site["fn"].batch_shape
    for dim in range(-len(shape), 0):
        if shape[dim] not in (1, plates.get(dim)):
            raise ValueError(
                f"site {name!r} has batch shape {tuple(shape)}, whose dim {dim} is no plate's; its "
                f"plates are { {f.name: f.size for f in site['cond_indep_stack']} }. Call the "
                "network inside the plate of its data, give targets the shape of the plates, and "
                "make other dims event dims with to_event"
            )


def _trains_the_store() -> bool:
    """Whether somebody collects parameters as ``SVI`` does, from the store by name."""
    return any(getattr(handler, "param_only", False) for handler in _PYRO_STACK)


class _Unseen(TraceMessenger):
    """Traces a guide's sites, which handlers further out (plates apart) are not to see.

    The model is about to sample sites of the same names; a trace around both would hold
    each name twice.
    """

    def _pyro_sample(self, msg: Any) -> None:
        given = msg["infer"] or {}
        msg["infer"] = {**given, "is_auxiliary": True, "_do_not_trace": True, "given": given}

    def _pyro_post_sample(self, msg: Any) -> None:
        self.trace.add_node(msg["name"], **{**msg, "infer": msg["infer"]["given"]})


class PosteriorDraw(Messenger):
    """Handler that makes every EVE layer draw from its posterior, as a guide would.

    For calls of a network outside inference, any number of them.

    Example:
        >>> from eve_pyro import EVEModule
        >>> net = EVEModule(3, 4, emission="identity")
        >>> x = torch.randn(5, 3)
        >>> with PosteriorDraw():
        ...     a, b = net(x), net(x)
        >>> torch.equal(a, b)
        False
    """

    def _pyro_sample(self, msg: Any) -> None:
        if is_eve_site(msg) and not msg["is_observed"] and not msg["done"]:
            posterior = msg["infer"]["posterior"]()
            msg["fn"] = posterior.expand(msg["fn"].batch_shape)


class PosteriorMean(PosteriorDraw):
    """Handler that sets every EVE site to the mean of its posterior.

    One deterministic pass: the network as if its neurons carried no spread.

    Example:
        >>> from eve_pyro import EVEModule
        >>> net = EVEModule(3, 4)
        >>> x = torch.randn(5, 3)
        >>> with PosteriorMean():
        ...     a, b = net(x), net(x)
        >>> torch.equal(a, b)
        True
    """

    def _pyro_sample(self, msg: Any) -> None:
        super()._pyro_sample(msg)
        if is_eve_site(msg) and not msg["is_observed"] and not msg["done"]:
            msg["value"], msg["done"] = msg["fn"].mean, True


@contextmanager
def local_parameters() -> Iterator[None]:
    """Context in which no module finds another module's parameters in Pyro's global store.

    Inside it, models of one class train and predict side by side; the trainer and the predictor
    of this package run in it. Parameters of plain functions (``pyro.param``) stay visible, those
    of modules are hidden and live in their modules.

    Example:
        >>> from eve_pyro import EVEModule
        >>> net = pyro.nn.PyroModule[nn.Sequential](EVEModule(3, 4))
        >>> with local_parameters():
        ...     _ = EVEGuide(net)(torch.randn(5, 3))
        >>> list(pyro.get_param_store())
        []
    """
    store = pyro.get_param_store()
    state = store.get_state()
    # Modules register Parameters, pyro.param in a function makes plain tensors.
    kept = {k: v for k, v in state["params"].items() if not isinstance(v, nn.Parameter)}
    constraints = {k: state["constraints"][k] for k in kept}
    with store.scope({"params": kept, "constraints": constraints}):
        yield
