"""Regression tables, their splits and their scaling.

>>> from eve_pyro.data import load_concrete, split, standardize
>>> table = load_concrete()
>>> data = standardize(table, split(table, seed=0))
>>> data.train.x.shape, data.train.y.shape
(torch.Size([721, 8]), torch.Size([721]))
"""

from eve_pyro.data.loaders import (
    available_tables,
    load_boston,
    load_concrete,
    load_energy,
    load_table,
)
from eve_pyro.data.scaling import Part, Scaler, Standardized, standardize
from eve_pyro.data.splits import Split, split
from eve_pyro.data.table import DataError, DataNotFoundError, Table

__all__ = [
    "DataError",
    "DataNotFoundError",
    "Part",
    "Scaler",
    "Split",
    "Standardized",
    "Table",
    "available_tables",
    "load_boston",
    "load_concrete",
    "load_energy",
    "load_table",
    "split",
    "standardize",
]
