"""The figure that a plot makes for itself."""

from io import BytesIO

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure that a notebook shows as a cell's last value, without pyplot.

    >>> NotebookFigure(figsize=(1, 1))._repr_png_()[1:4]
    b'PNG'
    """

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()
