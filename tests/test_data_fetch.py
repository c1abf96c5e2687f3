"""Where tables come from: data home, cache and download, offline and tampered."""

import dataclasses
import http.server
import threading
from pathlib import Path

import numpy as np
import pooch
import pytest
import requests

from eve_pyro.data import (
    DataError,
    DataNotFoundError,
    fetch,
    load_energy,
    load_table,
    split,
)
from eve_pyro.data.sources import Source

SHARED = Path(__file__).parents[2] / "shared" / "data"
needs_shared = pytest.mark.skipif(
    not (SHARED / "uci" / "energy_efficiency.csv").is_file(),
    reason="needs the data home ../shared/data beside the checkout",
)
NUMBERS = np.array([[1.0, 10.0], [2.0, 20.5], [3.0, 30.0]])
CONTENT = b"1,10\n2,20.50\n3,30\n"  # other notation than NUMBERS', the same values


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, and no data home in the environment."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(fetch, "cache_folder", lambda: folder)
    monkeypatch.delenv(fetch.DATA_HOME, raising=False)
    return folder


@pytest.fixture
def offline(cache, monkeypatch):
    def refuse(*args, **kwargs):
        raise requests.ConnectionError("no route to host\n" * 100)

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", refuse)
    return cache


def source(url: str = "", **changes) -> Source:
    """A small table with a real digest, so that no test of fetching needs a network."""
    made = Source(
        name="lever",
        file="lever.csv",
        columns=("arm", "force"),
        targets=("force",),
        target_unit="N",
        digest=fetch.digest(NUMBERS),
        description="made for this test",
        origin="https://example.org/lever",
        url=url,
    )
    return dataclasses.replace(made, **changes)


@pytest.fixture
def serve(monkeypatch):
    """Serve one body over HTTP on this machine; yields a function from body to URL."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    servers = []

    def serve(body: bytes, status: int = 200) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}/lever.csv"

    yield serve
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


# The energy table


@needs_shared
def test_energy_by_argument_and_environment(offline, monkeypatch):
    heating = load_energy(data_home=SHARED)
    assert heating.X.shape == (768, 8)
    assert (heating.target_name, heating.target_unit) == ("Y1", "kWh/m2")
    assert load_energy(data_home=str(SHARED / "uci")).y[0] == heating.y[0] == 15.55
    monkeypatch.setenv(fetch.DATA_HOME, str(SHARED))
    cooling = load_energy(target="Y2")
    assert cooling.y[0] == 21.33
    assert cooling.feature_names == tuple(f"X{i}" for i in range(1, 9))


@needs_shared
def test_energy_groups_are_designs():
    table = load_energy(data_home=SHARED)
    designs, rows = np.unique(table.groups, return_counts=True)
    assert len(designs) == 192
    assert set(rows) == {4}
    orientation = table.feature_names.index("X6")
    for design in designs:
        assert sorted(table.X[table.groups == design, orientation]) == [2, 3, 4, 5]
    parts = split(table, seed=0, groups=table.groups)
    seen = [set(table.groups[rows]) for rows in (parts.train, parts.validation, parts.test)]
    assert sum(map(len, seen)) == 192


@needs_shared
def test_energy_survives_another_notation(cache):
    """The download is a file without a header and without trailing zeros."""
    rows = (SHARED / "uci" / "energy_efficiency.csv").read_text().splitlines()[1:]
    cache.mkdir()
    text = "\r\n".join(",".join(f"{float(cell):g}" for cell in row.split(",")) for row in rows)
    (cache / "energy_efficiency.csv").write_text(text)
    assert load_energy().y[0] == 15.55


# Fetching


def test_download_is_verified_and_cached(cache, serve):
    wanted = source(serve(CONTENT))
    np.testing.assert_array_equal(fetch.fetch(wanted), NUMBERS)
    assert [path.name for path in cache.iterdir()] == ["lever.csv"]
    unreachable = source("http://127.0.0.1:9/lever.csv")
    np.testing.assert_array_equal(fetch.fetch(unreachable), NUMBERS)  # from the cache


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (CONTENT.replace(b"20.50", b"20.51"), 200, "the download must hold the published table"),
        (CONTENT[:8], 200, "the download must hold the published table"),
        (b"<html>log in</html>\n", 200, "row 1 of lever.csv must have 2 cells, got 1"),
        (CONTENT, 404, "HTTPError: 404"),
    ],
)
def test_bad_download_leaves_nothing_behind(cache, serve, body, status, reason):
    with pytest.raises(DataNotFoundError) as caught:
        fetch.fetch(source(serve(body, status)))
    assert reason in str(caught.value)
    assert not list(cache.iterdir())


def test_interrupted_download_leaves_nothing_behind(cache, monkeypatch):
    def interrupt(self, url, path, owner):
        Path(path).write_bytes(CONTENT[:5])
        raise KeyboardInterrupt

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch.fetch(source("http://127.0.0.1:9/lever.csv"))
    assert not list(cache.iterdir())


def test_offline_error_says_what_to_do(offline):
    with pytest.raises(OSError, match="get it from") as caught:
        load_energy()
    message = str(caught.value)
    for part in (str(offline), fetch.DATA_HOME, "archive.ics.uci.edu", "energy_efficiency.csv"):
        assert part in message
    assert "\n" not in message
    assert caught.value.__context__ is None  # no traceback of the downloader
    assert isinstance(caught.value, DataError)


def test_unwritable_cache_is_a_clear_error(tmp_path, cache, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(fetch, "cache_folder", lambda: tmp_path / "file" / "cache")
    with pytest.raises(DataNotFoundError, match="could not be downloaded"):
        fetch.fetch(source("http://127.0.0.1:9/lever.csv"))


def test_table_without_url_says_where_it_comes_from(cache):
    with pytest.raises(DataNotFoundError, match="treforevans/uci_datasets"):
        load_table("yacht")


def test_tampered_table_is_refused(cache, tmp_path):
    path = tmp_path / "lever.csv"
    path.write_text("arm,force\n1,10\n2,20.5\n3,30\n")
    np.testing.assert_array_equal(fetch.fetch(source(), tmp_path), NUMBERS)
    path.write_text("arm,force\n1,10\n2,20.5\n3,30.000000001\n")
    with pytest.raises(DataError, match="must hold the published table 'lever'"):
        fetch.fetch(source(), tmp_path)


def test_data_home_must_exist(cache, tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"data_home must be an existing folder, got '.*nowhere'"):
        load_energy(data_home=tmp_path / "nowhere")
    monkeypatch.setenv(fetch.DATA_HOME, str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="EVE_PYRO_DATA must be an existing folder"):
        load_energy()
