"""The page's words on what was run: networks, training, splits."""

from eve_pyro.experiments.studies.energy.claims import EVE
from eve_pyro.experiments.studies.energy.models import BETA, MODELS
from eve_pyro.experiments.studies.energy.tasks import DESIGN, EVERY, PROTOCOL, RANDOM

SPLITS = {
    RANDOM: """
Rows are split one by one, the usual protocol, on which the published numbers were most probably
made. A design's other orientations, whose heating load is nearly the same, are then mostly among
the training rows: the test asks for interpolation between near-copies.
""",
    DESIGN: "All orientations of a design are in one part: the test asks for designs never seen.",
}


def method(depth: int) -> str:
    """How all models were built, trained and scored."""
    training, eve = PROTOCOL.training, MODELS[EVE]
    return f"""
Heating load of 768 buildings, 192 designs in 4 orientations each (Tsanas and Xifara 2012). Every
network has {depth} layers of gelu units behind a linear projection to their width, each a
pre-norm residual block, h <- h + unit(LayerNorm(h)) / sqrt(L), and a linear head with one output
scale. Plain chains of this depth did not train in development, neither deterministic nor EVE: the
input fades on its way through them, and they stay at the mean of the target. Residual chains
without the normalisation grew without bound.

Two thirds of the rows are for training, a sixth each for validation and test. A seed decides the
split, the order of rows, the initial weights and the noise, for all models alike: runs of one
seed are paired. Adam, learning rate {training.learning_rate:g} falling to 0 along a cosine,
batches of {training.batch_size}, {training.epochs} epochs, gradients clipped at
{training.clip_norm:g}. The epoch of the best validation NLL is kept, out of every {EVERY}th.

An output scale that has not converged looks like bad uncertainty, and whatever converges it
faster seems to win. So for every model log sigma_y has ten times the learning rate of the
weights, and a temperature on the predictive spread is fitted by NLL on the validation rows; for a
deterministic network this is the closed-form refit of sigma_y. Both are reported.

EVE has the matrix products and parameters of the cell, twice those of the mlp; it is trained with
the {eve.objective} objective and {eve.particles} draws, beta = {BETA:g} / L, and starts at sigma =
{eve.unit_options["sigma_init"]:g}. Training steps are compiled, for all models alike.
Configurations were chosen on seeds below 100, results are of seeds from 100 on. NLL is that of the
predictive mixture over {PROTOCOL.num_samples} draws, pinball loss the mean over the levels
.05, .10, ..., .95. Scores are of the standardised target. Intervals are Student's at 95 % of the
paired differences over seeds; they treat splits as independent, while splits of one table share
rows: as statements on new data they are too narrow. *n/m* counts the seeds that are better.
"""
