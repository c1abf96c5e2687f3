"""Splits and scaling."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eve_pyro.data import DataError, Scaler, Table, load_concrete, split, standardize


def line(rows: int) -> Table:
    return Table("line", np.arange(rows, dtype=float)[:, None], np.arange(rows), ("x",), "y")


# Splits


@st.composite
def tables_and_groups(draw):
    rows = draw(st.integers(20, 200))
    labels = st.integers(0, draw(st.integers(30, 60)))
    groups = draw(st.none() | st.lists(labels, min_size=rows, max_size=rows))
    if groups is not None:
        groups[:20] = range(20)  # enough groups for three parts
    return line(rows), groups


@settings(deadline=None)  # the machine may be busy
@given(case=tables_and_groups(), seed=st.integers(0, 2**63))
def test_split_partitions_the_rows(case, seed):
    table, groups = case
    parts = split(table, seed=seed, groups=groups)
    rows = np.concatenate([parts.train, parts.validation, parts.test])
    np.testing.assert_array_equal(np.sort(rows), np.arange(len(table)))
    assert min(len(parts.train), len(parts.validation), len(parts.test)) > 0
    again = split(table, seed=seed, groups=groups)
    np.testing.assert_array_equal(parts.test, again.test)
    labels = np.arange(len(table)) if groups is None else np.array(groups)
    kinds = [set(labels[part]) for part in (parts.train, parts.validation, parts.test)]
    count = len(set(labels))
    assert sum(map(len, kinds)) == count
    for kind, share in zip(kinds, (0.70, 0.15, 0.15), strict=True):
        assert abs(len(kind) - share * count) <= 1.0


def test_split_depends_on_the_seed_alone():
    first, second = split(line(100), seed=1), split(line(100), seed=2)
    assert not np.array_equal(first.test, second.test)
    labels = np.array([f"design {i // 4}" for i in range(100)])
    parts = split(line(100), seed=0, groups=labels)
    assert not set(labels[parts.train]) & set(labels[parts.test])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": -1}, "seed must be an integer >= 0, got -1"),
        ({"fractions": (0.5, 0.5)}, "fractions must be 3 numbers"),
        ({"fractions": (0.8, 0.2, 0.0)}, r"fractions must be a finite number in \(0, 1\), got 0"),
        ({"fractions": (0.5, 0.5, 0.5)}, "fractions must sum to 1, got .* with sum 1.5"),
        ({"groups": [1, 2]}, "groups must have one label per row"),
        ({"groups": [0, 0, 1, 1, 1]}, "of the 2 groups of line, got none for test at 0.15"),
        ({"fractions": (0.1, 0.45, 0.45)}, "of the 5 rows of line, got none for train at 0.1"),
    ],
)
def test_bad_splits(arguments, message):
    with pytest.raises(ValueError, match=message):
        split(line(5), **{"seed": 0, **arguments})


# Scaling


def test_statistics_come_from_the_training_rows():
    table = load_concrete()
    parts = split(table, seed=3)
    data = standardize(table, parts, dtype=torch.float64)
    np.testing.assert_allclose(data.features.shift, table.X[parts.train].mean(axis=0))
    np.testing.assert_allclose(data.target.scale, table.y[parts.train].std())
    assert data.train.x.mean(0).abs().max() < 1e-12
    assert (data.train.x.std(0, correction=0) - 1).abs().max() < 1e-12
    assert data.test.y.mean().abs() > 1e-6

    held_out = np.concatenate([parts.validation, parts.test])
    y = table.y.copy()
    y[held_out] = 1e6
    moved = standardize(dataclasses.replace(table, y=y), parts, dtype=torch.float64)
    torch.testing.assert_close(moved.train.y, data.train.y, rtol=0, atol=0)


def test_standardized_parts_and_the_way_back():
    table = load_concrete()
    parts = split(table, seed=3)
    data = standardize(table, parts)
    for part, rows in ((data.train, parts.train), (data.validation, parts.validation)):
        x, y = part
        assert x.dtype == y.dtype == torch.float32
        assert x.shape == (len(rows), 8)
        assert y.shape == (len(rows),)
        np.testing.assert_allclose(data.target.inverse(y), table.y[rows], rtol=1e-5)
        np.testing.assert_allclose(data.features.inverse(x), table.X[rows], rtol=1e-4, atol=1e-3)
    draws = data.target.inverse(torch.zeros(5, 2, 3))  # any shape goes back
    np.testing.assert_allclose(draws, np.full((5, 2, 3), data.target.shift))


def test_split_of_another_table_is_refused():
    with pytest.raises(DataError, match="split must fit the 20 rows of line, got row"):
        standardize(line(20), split(line(100), seed=0))


@settings(deadline=None)  # the machine may be busy
@given(
    columns=st.lists(
        st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4), min_size=1, max_size=3
    ),
    held=st.floats(-1e6, 1e6),
)
def test_scaler_round_trip(columns, held):
    values = np.array(columns).T
    scaler = Scaler.fit(values)
    assert (scaler.scale > 0).all()
    assert np.isfinite(scaler.transform(values)).all()
    np.testing.assert_allclose(
        scaler.inverse(scaler.transform(values)), values, rtol=1e-9, atol=1e-9
    )
    constant = Scaler.fit(np.full((3, 1), held))
    assert constant.transform([[held]]) == 0.0
    assert constant.scale == 1.0


def test_scaler_checks():
    for bad in ([], 1.0, [1.0, np.nan], np.ones((0, 2))):
        with pytest.raises(DataError, match="values must be finite with at least 1 row"):
            Scaler.fit(bad)
    scaler = Scaler.fit(np.eye(3))
    for shape in ((3, 1), (2,), ()):
        with pytest.raises(DataError, match="values must end with 3 columns, got shape"):
            scaler.transform(np.ones(shape))
    assert scaler.transform(np.ones((4, 5, 3))).shape == (4, 5, 3)
