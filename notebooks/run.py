"""Run the notebooks from their texts: ``python notebooks/run.py [name ...]``.

Each ``name.py`` is executed in a fresh kernel, in this folder, and written with its outputs to
``name.ipynb``. Names may be given without a suffix; the default is all of them.
"""

import os
import sys
from pathlib import Path
from time import perf_counter

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("[0-9][0-9]_*.py"))


def execute(name: str, *, smoke: bool = False, timeout: int = 600) -> nbformat.NotebookNode:
    """Run the text of a notebook from top to bottom and return it with its outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: if a cell raises an error.
    """
    notebook = jupytext.read(FOLDER / f"{name}.py")
    # One thread, so that outputs do not depend on the machine; figures shown in the notebook,
    # whatever backend the caller's environment asks for.
    given = {"OMP_NUM_THREADS": "1", "EVE_PYRO_SMOKE": str(int(smoke))}
    inherited = {key: value for key, value in os.environ.items() if key != "MPLBACKEND"}
    NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(FOLDER)}},
    ).execute(env={**inherited, **given})
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"  # random ones would change with every run
    # What else the kernel tells of itself belongs to the machine that ran it.
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def main(names: list[str]) -> None:
    for name in [Path(name).stem for name in names] or NAMES:
        start = perf_counter()
        notebook = execute(name)
        nbformat.write(notebook, FOLDER / f"{name}.ipynb")
        print(f"{name}: {perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
