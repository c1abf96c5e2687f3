"""The comparisons: who is measured beside whom, and the bound that each ratio should keep."""

from functools import partial

from eve_pyro.bench.growth import growth_comparison
from eve_pyro.bench.harness import Comparison, Goal, Timer
from eve_pyro.bench.meters import import_time, parameters, peak_memory, returned
from eve_pyro.bench.peers import auto_normal, bayesian_torch, mc_dropout, torchbnn
from eve_pyro.bench.sizes import Sizes, Work
from eve_pyro.bench.steps import (
    ACTIVATION,
    cell,
    eve,
    eve_network,
    plain,
    plain_trunk,
    single_passes,
    streaming,
    svi,
)
from eve_pyro.infer import MCNLL_ELBO
from eve_pyro.nn import Dense

# sigma_rank of the encoder whose parameters should hardly outnumber a plain layer's.
LOW_RANK = {"sigma_rank": 8}

dense = partial(Dense, activation=ACTIVATION)


def comparisons(sizes: Sizes) -> list[Comparison]:
    """All comparisons of a mode, in the order in which they run.

    Example:
        >>> from eve_pyro.bench.sizes import MODES
        >>> [c.name for c in comparisons(MODES["quick"])][:2]
        ['8 x 128, batch 256, k = 1', '8 x 128, batch 256, k = 4']
    """
    found = [
        _steps(sizes),
        _latents(sizes),
        _averaged_likelihood(sizes),
        _plain_network(sizes),
        _parameters(sizes.work),
        _peers(sizes),
        _prediction(sizes),
        _memory(sizes),
        _imports(sizes),
        growth_comparison(sizes),
    ]
    return found if sizes.deep is None else [*found, _deep(sizes, sizes.deep)]


def _steps(sizes: Sizes) -> Comparison:
    work = sizes.work
    return Comparison(
        f"{work}, k = {work.latent_dim}",
        {
            "cell eager": partial(plain, work, cell(work)),
            "cell compiled": partial(plain, work, cell(work), sizes.backend),
            "EVE compiled": partial(eve, work, sizes.backend),
            "EVE eager": partial(eve, work),
            "SVI": partial(svi, work),
            "SVI, with checks": partial(svi, work, checked=True),
        },
        (
            Goal("EVE compiled", "cell compiled", 1.15),
            Goal("EVE compiled", "cell eager", 1.0),
            Goal("EVE eager", "cell eager", 1.6),
            Goal("SVI", "cell eager", 2.5),
            Goal("SVI, with checks", "cell eager"),
        ),
        Timer(sizes.turn),
        sizes.rounds,
    )


def _latents(sizes: Sizes) -> Comparison:
    work = sizes.work.but(latent_dim=sizes.latent_dim)
    return Comparison(
        f"{work}, k = {work.latent_dim}",
        {
            "cell eager": partial(plain, work, cell(work)),
            "cell compiled": partial(plain, work, cell(work), sizes.backend),
            "EVE compiled": partial(eve, work, sizes.backend),
        },
        (
            Goal("EVE compiled", "cell compiled", 1.25),
            Goal("EVE compiled", "cell eager", 1.0),
        ),
        Timer(sizes.turn),
        sizes.rounds,
    )


def _averaged_likelihood(sizes: Sizes) -> Comparison:
    work, particles = sizes.work, sizes.particles
    return Comparison(
        f"averaged likelihood, S = {particles} draws",
        {
            "cell compiled": partial(plain, work, cell(work), sizes.backend),
            "MC-NLL compiled": partial(
                eve, work, sizes.backend, MCNLL_ELBO(particles, max_plate_nesting=1)
            ),
        },
        # S draws are S times the matrix products of the cell.
        (Goal("MC-NLL compiled", "cell compiled", 1.15 * particles),),
        Timer(sizes.turn),
        sizes.rounds,
    )


def _plain_network(sizes: Sizes) -> Comparison:
    work = sizes.work
    return Comparison(
        f"plain MLP, {work}",
        {
            "MLP eager": partial(plain, work, dense),
            "MLP compiled": partial(plain, work, dense, sizes.backend),
            "EVE eager": partial(eve, work),
            "EVE compiled": partial(eve, work, sizes.backend),
            "low-rank compiled": partial(eve, work, sizes.backend, **LOW_RANK),
        },
        (
            # Mean and sigma are two matrix products where a plain layer has one.
            Goal("EVE compiled", "MLP eager", 2.0),
            Goal("EVE compiled", "MLP compiled"),
            Goal("EVE eager", "MLP eager"),
            Goal("low-rank compiled", "MLP compiled", 1.3),
        ),
        Timer(sizes.turn),
        sizes.rounds,
    )


def _parameters(work: Work) -> Comparison:
    return Comparison(
        "hidden layers' parameters",
        {
            "MLP": lambda: parameters(plain_trunk(work, dense)),
            "EVE": lambda: parameters(eve_network(work).trunk),
            "low-rank": lambda: parameters(eve_network(work, **LOW_RANK).trunk),
        },
        (Goal("EVE", "MLP"), Goal("low-rank", "MLP", 1.15)),
        meter=returned,
        rounds=1,
        unit="",
    )


def _peers(sizes: Sizes) -> Comparison:
    work = sizes.work
    return Comparison(
        f"peers, {work}",
        {
            "EVE compiled": partial(eve, work, sizes.backend),
            "bayesian-torch": partial(bayesian_torch, work),
            "torchbnn": partial(torchbnn, work),
            "AutoNormal + SVI": partial(auto_normal, work),
            "MC-dropout": partial(mc_dropout, work),
        },
        (
            Goal("EVE compiled", "bayesian-torch", 0.75),
            Goal("EVE compiled", "torchbnn", 0.85),
            Goal("EVE compiled", "AutoNormal + SVI", 0.35),
            Goal("EVE compiled", "MC-dropout"),
        ),
        Timer(sizes.turn),
        sizes.rounds,
    )


def _prediction(sizes: Sizes) -> Comparison:
    work, draws = sizes.work, sizes.draws
    return Comparison(
        f"predictive distribution, {work.batch} rows",
        {
            f"{draws} passes": partial(single_passes, work, draws),
            f"S = {draws} at once": partial(streaming, work, draws),
        },
        (Goal(f"S = {draws} at once", f"{draws} passes", 1 / 3),),
        Timer(sizes.turn),
        sizes.rounds,
    )


def _memory(sizes: Sizes) -> Comparison:
    work = sizes.work
    return Comparison(
        f"peak memory, {work}",
        {
            "EVE eager": partial(eve, work),
            "EVE compiled": partial(eve, work, sizes.backend),
            "cell eager": partial(plain, work, cell(work)),
        },
        (Goal("EVE compiled", "EVE eager", 1.0), Goal("EVE compiled", "cell eager")),
        peak_memory,
        rounds=5,
        unit="B",
    )


def _imports(sizes: Sizes) -> Comparison:
    # The package alone loads nothing; its layer and guide are what every user imports.
    names = "import pyro; from eve_pyro import EVEGuide, EVEModule"
    return Comparison(
        "import in a fresh process",
        {
            "pyro": partial(import_time, "import pyro"),
            "pyro and EVEModule": partial(import_time, names),
        },
        (Goal("pyro and EVEModule", "pyro", 0.2, "difference"),),
        returned,
        sizes.processes,
    )


def _deep(sizes: Sizes, work: Work) -> Comparison:
    return Comparison(
        f"residual MLP, {work}",
        {
            "MLP eager": partial(plain, work, dense),
            "MLP compiled": partial(plain, work, dense, sizes.backend),
            "cell eager": partial(plain, work, cell(work)),
            "cell compiled": partial(plain, work, cell(work), sizes.backend),
            "EVE compiled": partial(eve, work, sizes.backend),
        },
        (
            Goal("EVE compiled", "MLP compiled", 1.2),
            Goal("EVE compiled", "MLP eager", 0.8),
            Goal("EVE compiled", "cell compiled"),
            Goal("EVE compiled", "cell eager"),
            Goal("EVE compiled", at_most=90.0, quantity="start-up"),
        ),
        Timer(sizes.turn),
        sizes.rounds,
    )
