"""The notebooks run from top to bottom, in smoke mode, and their two halves say the same."""

import importlib.util
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("[0-9][0-9]_*.py"))


def load_runner():
    spec = importlib.util.spec_from_file_location("run_notebooks", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(name, suffix):
    path = FOLDER / f"{name}{suffix}"
    return jupytext.read(path) if suffix == ".py" else nbformat.read(path, as_version=4)


def figures(notebook):
    """The numbers of the cells that show pictures."""
    return [
        number
        for number, cell in enumerate(notebook.cells)
        if any("image/png" in output.get("data", {}) for output in cell.get("outputs", []))
    ]


def complaints(notebook):
    """What cells said on stderr, and errors."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]


def test_there_are_six():
    assert [name[:2] for name in NAMES] == ["01", "02", "03", "04", "05", "06"]


@pytest.mark.parametrize("name", NAMES)
def test_runs_in_smoke_mode(name, monkeypatch):
    # ArviZ 0.2x tells of 1.x at its first import of a day, which is not this notebook's doing.
    monkeypatch.setenv("PYTHONWARNINGS", "ignore::FutureWarning:arviz")
    executed = load_runner().execute(name, smoke=True, timeout=120)
    assert not complaints(executed)
    # Every cell that shows a picture in the committed notebook shows one here.
    assert figures(executed) == figures(read(name, ".ipynb"))


@pytest.mark.parametrize("name", NAMES)
def test_text_and_notebook_agree(name):
    text, notebook = read(name, ".py"), read(name, ".ipynb")
    assert [(c.cell_type, c.source) for c in text.cells] == [
        (c.cell_type, c.source) for c in notebook.cells
    ], f"run: python notebooks/run.py {name}"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_committed(name):
    path, notebook = FOLDER / f"{name}.ipynb", read(name, ".ipynb")
    assert path.stat().st_size < 600_000
    assert len(figures(notebook)) >= 3
    assert not complaints(notebook)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1)), "run on a fresh kernel"
    assert notebook.metadata.kernelspec.name == "python3"
    # Nothing of the machine: folders, the kernel's process, colours of a terminal.
    text = path.read_text(encoding="utf-8")
    folders = (str(FOLDER.parent), str(Path.home()), sys.prefix, "site-packages")
    for trace in (*folders, "ipykernel_", "\\u001b", "\\r"):
        assert trace not in text
