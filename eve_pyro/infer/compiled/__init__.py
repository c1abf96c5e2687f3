"""Compiled inference: Pyro's Python at trace time, Inductor's code at run time."""

from eve_pyro.infer.compiled.elbo import CompiledELBO, CompiledELBOModule
from eve_pyro.infer.compiled.svi import CompiledSVI
from eve_pyro.infer.compiled.tracing import TraceError, best_backend

__all__ = ["CompiledELBO", "CompiledELBOModule", "CompiledSVI", "TraceError", "best_backend"]
