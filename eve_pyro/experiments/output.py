"""Where results go: a folder of whole files, and the versions they were made with."""

import os
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class OutputFolder:
    """A folder for results, in which a file is either whole or not there.

    Arguments:
        path: the folder; made if it does not exist.

    Raises:
        OSError: if it cannot be made or written to, before any work is spent.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     out = OutputFolder(folder)
        ...     out.write("note.txt", "hello")
        ...     sorted(p.name for p in out.path.iterdir())
        ['note.txt']
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise OSError(f"out must be a folder that can be written to: {error}") from error

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file under a temporary name, then move it into place."""
        data = content.encode() if isinstance(content, str) else content
        if not name or (self.path / name).is_dir():
            raise OSError(f"out must be a file, got the folder {self.path / name}")
        with tempfile.NamedTemporaryFile(dir=self.path, delete=False) as file:
            file.write(data)
        try:
            os.chmod(file.name, 0o644)
            os.replace(file.name, self.path / name)
        except OSError:
            os.unlink(file.name)
            raise

    def write_frame(self, name: str, frame: pd.DataFrame, *, index: bool = False) -> None:
        """Write a CSV file with all digits."""
        self.write(name, frame.to_csv(index=index))

    def write_figure(self, name: str, figure: "Figure") -> None:
        """Write a PNG file."""
        import io

        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=150, bbox_inches="tight")
        self.write(name, buffer.getvalue())


def environment() -> dict[str, Any]:
    """Versions and machine, to be kept beside every result."""
    packages = ("eve_pyro", "torch", "pyro-ppl", "numpy", "arviz")
    return {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        **{name: version(name.replace("_", "-")) for name in packages},
    }
