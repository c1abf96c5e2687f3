"""The named tables: what they hold, where they come from, and the digest of their numbers."""

from dataclasses import dataclass

_UCI = "UCI Machine Learning Repository"
_CC_BY = "CC BY 4.0"
_PREPARED = "https://github.com/treforevans/uci_datasets"


@dataclass(frozen=True)
class Source:
    """A named table, before it is read.

    Arguments:
        name: what the user asks for.
        file: file name in the package (``bundled``), the data home or the cache.
        columns: every column in the file's order; the targets come last.
        targets: names of the columns that may be the target, the default first.
        target_unit: unit of every target.
        digest: SHA-256 of the values as little-endian float64, row by row. It vouches for the
            numbers, whichever file format, line ending or decimal notation carried them.
        description: attribution and warnings.
        licence: terms of use.
        origin: where a user gets the file by hand.
        url: where the package gets the file; empty if it does not.
        bundled: whether the file is part of the package.
        varies_in_group: rows that differ only in this feature form a group.
    """

    name: str
    file: str
    columns: tuple[str, ...]
    targets: tuple[str, ...]
    target_unit: str
    digest: str
    description: str
    licence: str = _CC_BY
    origin: str = "the eve-pyro package (install it again)"
    url: str = ""
    bundled: bool = False
    varies_in_group: str = ""


def _prepared(
    name: str, features: int, target: str, unit: str, digest: str, description: str
) -> Source:
    """A table as prepared in treforevans/uci_datasets: centred, no header, target last."""
    return Source(
        name=name,
        file=f"{name}.csv.gz",
        columns=(*(f"x{i}" for i in range(1, features + 1)), target),
        targets=(target,),
        target_unit=unit,
        digest=digest,
        description=f"{description}; {_UCI}, centred as in treforevans/uci_datasets.",
        origin=f"{_PREPARED} ({name}/data.csv.gz, saved as {name}.csv.gz)",
    )


_CONCRETE = Source(
    name="concrete",
    file="concrete.csv",
    columns=(
        *("cement", "blast_furnace_slag", "fly_ash", "water", "superplasticizer"),
        *("coarse_aggregate", "fine_aggregate", "age", "compressive_strength"),
    ),
    targets=("compressive_strength",),
    target_unit="MPa",
    digest="d0e2d2f0f50277624d7d00b98c4e8b66465e8d5f2f51738500552b8b10a4689b",
    description=(
        "Compressive strength of concrete from its mixture (kg/m3) and age (days). I-C. Yeh, "
        "Modeling of strength of high-performance concrete using artificial neural networks, "
        f"Cement and Concrete Research 28 (1998) 1797-1808; {_UCI}."
    ),
    bundled=True,
)

_BOSTON = Source(
    name="boston",
    file="boston.csv",
    columns=(
        *("crim", "zn", "indus", "chas", "nox", "rm", "age", "dis", "rad", "tax"),
        *("ptratio", "black", "lstat", "medv"),
    ),
    targets=("medv",),
    target_unit="k$",
    digest="832e894115c56dd24ec63848d4a3d9bd921d268d0be1bee2a8f4ee5ea318f5f7",
    description=(
        "Median house values of 506 census tracts of Boston, 1970, capped at 50 k$. D. Harrison "
        "and D. L. Rubinfeld, Hedonic prices and the demand for clean air, Journal of "
        "Environmental Economics and Management 5 (1978) 81-102. Ethical concern: the column "
        "'black' encodes the racial composition of a tract under the assumption that segregation "
        "raises prices. Use the table only to compare with published results."
    ),
    licence="none stated by the authors; distributed with R's MASS (GPL-2 | GPL-3)",
    bundled=True,
)

_ENERGY = Source(
    name="energy",
    file="energy_efficiency.csv",
    columns=("X1", "X2", "X3", "X4", "X5", "X6", "X7", "X8", "Y1", "Y2"),
    targets=("Y1", "Y2"),
    target_unit="kWh/m2",
    digest="ad936b2955910b98b0a86daadfe901c14439be85f69307d964b987ddfb8d2745",
    description=(
        "Heating load (Y1) and cooling load (Y2) of 192 simulated building designs in 4 "
        "orientations (X6). A. Tsanas and A. Xifara, Accurate quantitative estimation of energy "
        "performance of residential buildings using statistical machine learning tools, Energy "
        f"and Buildings 49 (2012) 560-567; {_UCI}."
    ),
    origin=(
        "https://archive.ics.uci.edu/dataset/242/energy+efficiency "
        "(save its sheet as CSV with the columns X1 to X8, Y1, Y2)"
    ),
    # A copy as CSV, since UCI serves a spreadsheet. Its host vouches for nothing: the digest of
    # the numbers, computed from UCI's table, does.
    url=(
        "https://raw.githubusercontent.com/pharmbio/SCPRegression/"
        "f32106a7da6eac3eab00616f3f2cbe97f7bae59e/data/ENB2012_data.csv"
    ),
    varies_in_group="X6",
)

_YACHT = _prepared(
    "yacht",
    6,
    "log_resistance",
    "",
    "f13822902e831998942d8fa538cf43d4ea6278d0d49ee5515567a1a540037a10",
    "Yacht Hydrodynamics: log of the residuary resistance of sailing yachts",
)

_AIRFOIL = _prepared(
    "airfoil",
    5,
    "sound_pressure_level",
    "dB",
    "9d8a0d6fe2096c7cbe67fc4d64da556328935398d3225603011d3dc2fecd099a",
    "Airfoil Self-Noise: scaled sound pressure level",
)

_WINE = _prepared(
    "wine",
    11,
    "alcohol",
    "% vol",
    "d4ee74010d506a216e04f592623d641c085c9a83cb84e2da5e1c8824dbe2e03b",
    "Wine Quality, red wines: the last column is the alcohol content, quality is feature x11",
)

_BIKE = _prepared(
    "bike",
    17,
    "log_count",
    "",
    "0a72d7f3b0f7f3bd934fa4d95021db67fbc3e30a536e7b25f34b07a92e4302b1",
    "Bike Sharing, hourly: log of the rentals. Features x16 and x17 add up to the count itself, "
    "so the target is almost a function of the features",
)

_PROTEIN = _prepared(
    "protein",
    9,
    "log1p_rmsd",
    "",
    "6211d3e29ed563faf9ec6fe25f460a667728073b4d65db71a297a0318acfa63f",
    "Physicochemical Properties of Protein Tertiary Structure: log(1 + RMSD in angstrom)",
)

SOURCES = {
    source.name: source
    for source in (_CONCRETE, _BOSTON, _ENERGY, _YACHT, _AIRFOIL, _WINE, _BIKE, _PROTEIN)
}
