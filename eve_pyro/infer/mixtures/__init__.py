"""Predictive distributions: one mixture per datum, with the posterior draws as its components.

A mixture keeps its draws, so it can say how much of its spread is noise that every draw expects
(``aleatoric``) and how much is disagreement between the draws (``epistemic``).
"""

from eve_pyro.infer.mixtures.categorical import CategoricalMixture
from eve_pyro.infer.mixtures.concatenation import Mixture, concatenate
from eve_pyro.infer.mixtures.gaussian import GaussianMixture

__all__ = ["CategoricalMixture", "GaussianMixture", "Mixture", "concatenate"]
