"""The tokenizer: lossless, repeatable, cached, and safe from damage and from company."""

import json
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eve_pyro.data import DataError, DataNotFoundError, fetch
from eve_pyro.data.text import (
    Corpus,
    Documents,
    Tokenizer,
    load_moby_dick,
    train_tokenizer,
    training,
)

TEXT = [
    "the white whale swam away from the whale boat\n",
    "na\u00efve \u9be8 \U0001f40b\u200d\u2764\ufe0f e\u0301 whale whale\r\n\t",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(scope="module")
def tokenizer(folder):
    return train_tokenizer(TEXT, 280, cache=folder)


@settings(max_examples=300, deadline=None)
@given(text=st.text())
@example("<|endoftext|>")
@example(" leading, trailing  \n\n\r\n ")
@example("\ufeff\x00\u0301")
def test_any_text_survives(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode_batch([text, text]) == [ids, ids]
    assert tokenizer.end_of_text not in ids
    assert all(0 <= number < tokenizer.vocab_size for number in ids)


def test_the_special_token_ends_documents_only(tokenizer):
    assert tokenizer.end_of_text == 0
    assert tokenizer.decode([0]) == "<|endoftext|>"
    ids = tokenizer.encode("a<|endoftext|>b")
    assert 0 not in ids
    assert tokenizer.decode(ids) == "a<|endoftext|>b"


def test_sizes(tokenizer, folder):
    assert tokenizer.vocab_size == 280
    assert train_tokenizer(TEXT, 257, cache=folder).vocab_size == 257
    assert train_tokenizer(["aa"], 4096, cache=folder).vocab_size == 258  # one pair to merge
    for size in (256, 0, 300.0, True):
        with pytest.raises(ValueError, match="vocab_size must be an integer >= 257"):
            train_tokenizer(TEXT, size, cache=folder)


def test_ids_from_elsewhere(tokenizer):
    ids = tokenizer.encode("whale")
    for given_ids in (np.array(ids, np.uint16), torch.tensor(ids), tuple(ids)):
        assert tokenizer.decode(given_ids) == "whale"
    assert tokenizer.decode([]) == ""
    with pytest.raises(DataError, match=r"ids must be integers in \[0, 280\), got 280"):
        tokenizer.decode([1, 280])
    with pytest.raises(DataError, match=r"\[0, 280\), got -1"):
        tokenizer.decode([-1])
    with pytest.raises(DataError, match=r"one dimension, got shape \(1, 1\) of int64"):
        tokenizer.decode([[1]])
    with pytest.raises(DataError, match="of float64"):
        tokenizer.decode([1.5])


def test_text_that_is_none(tokenizer):
    with pytest.raises(DataError, match="text must be a string, got NoneType"):
        tokenizer.encode(None)
    with pytest.raises(DataError, match="text 2 must be text that UTF-8 can hold"):
        tokenizer.encode_batch(["a", "\udfff"])


@pytest.mark.parametrize(
    ("documents", "reason"),
    [
        ([], "hold some text, got 0 documents"),
        (["", ""], "hold some text, got 2 documents"),
        (["a", 3], "document 2 must be a string, got int"),
        ("a whale", "documents must be an iterable of strings .* got str"),
        (Corpus("c", ["a"], ["b"], ["c"]), "got Corpus"),
        ((text for text in TEXT), "read more than once .*, got generator"),
    ],
)
def test_documents_that_cannot_be_learned_from(tmp_path, documents, reason):
    with pytest.raises(DataError, match=reason):
        train_tokenizer(documents, cache=tmp_path)
    assert not list(tmp_path.iterdir())


def test_documents_that_change(tmp_path):
    passes = iter([["a whale"], ["a squid"]])
    with pytest.raises(DataError, match="documents must be the same in every pass"):
        train_tokenizer(Documents("moody", lambda: iter(next(passes))), cache=tmp_path)
    assert not list(tmp_path.iterdir())


# Files and the cache


def test_save_load_pickle(tokenizer, tmp_path):
    path = tmp_path / "new" / "whale.json"
    tokenizer.save(path)
    for copy in (Tokenizer.load(path), pickle.loads(pickle.dumps(tokenizer))):
        assert copy.fingerprint == tokenizer.fingerprint
        assert copy.encode(TEXT[1]) == tokenizer.encode(TEXT[1])
        assert 0 not in copy.encode("<|endoftext|>")
    assert repr(copy) == f"Tokenizer(vocab_size=280, fingerprint={copy.fingerprint[:12]!r})"
    with pytest.raises(DataNotFoundError, match="got no file"):
        Tokenizer.load(tmp_path / "nowhere.json")


def damages(content: bytes) -> dict[str, bytes]:
    merged = json.loads(content)
    merged["tokenizer"]["model"]["merges"].pop()
    return {
        "empty": b"",
        "half": content[: len(content) // 2],
        "no text": b"\xff" + content,
        "a list": b"[]",
        "another format": b'{"format": "eve_pyro.tokenizer/0"}',
        "no tokenizer": content.split(b', "tokenizer"')[0] + b"}",
        "a merge less": json.dumps(merged).encode(),
    }


@pytest.mark.parametrize("damage", list(damages(b'{"tokenizer": {"model": {"merges": [1]}}}')))
def test_damaged_files(tmp_path, damage):
    made = train_tokenizer(TEXT, 280, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damages(whole)[damage])
    with pytest.raises(DataError, match=path.name):
        Tokenizer.load(path)
    assert train_tokenizer(TEXT, 280, cache=tmp_path).fingerprint == made.fingerprint
    assert path.read_bytes() == whole
    assert len(list(tmp_path.iterdir())) == 1


def test_no_specification():
    with pytest.raises(DataError, match="specification must be JSON of the library"):
        Tokenizer("{}")
    plain = pytest.importorskip("tokenizers").Tokenizer
    from tokenizers.models import BPE

    with pytest.raises(DataError, match=r"special token <\|endoftext\|>, got none"):
        Tokenizer(plain(BPE()).to_str())


def test_cached_by_text_and_size(tmp_path, monkeypatch):
    first = train_tokenizer(TEXT, 270, cache=tmp_path)
    sizes = {train_tokenizer(TEXT, size, cache=tmp_path).fingerprint for size in (270, 271)}
    other = train_tokenizer([*TEXT, "squid squid squid"], 270, cache=tmp_path)
    assert len(sizes | {other.fingerprint}) == 3
    assert len(list(tmp_path.iterdir())) == 3
    monkeypatch.setattr(training, "_train", None)  # no more training
    assert train_tokenizer(tuple(TEXT), 270, cache=tmp_path).fingerprint == first.fingerprint


def test_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "cache_folder", lambda: tmp_path)
    train_tokenizer(TEXT, 258)
    assert [path.suffix for path in (tmp_path / "text").iterdir()] == [".json"]


def test_unwritable_cache_is_noticed_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(training, "_train", None)
    with pytest.raises(DataError, match="cannot be written"):
        train_tokenizer(TEXT, 258, cache=tmp_path / "file" / "cache")


def test_two_processes_at_once(tmp_path):
    """Other processes give the same tokenizer, and readers never see half of it."""
    script = (
        "import sys; from eve_pyro.data.text import load_moby_dick, train_tokenizer;"
        "print(train_tokenizer(load_moby_dick().valid, 1000, cache=sys.argv[1]).fingerprint)"
    )

    def run(_: int) -> str:
        command = [sys.executable, "-c", script, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    with ThreadPoolExecutor(2) as pool:
        printed = set(pool.map(run, range(2)))
    (path,) = tmp_path.iterdir()
    assert printed == {Tokenizer.load(path).fingerprint}
    path.unlink()
    here = train_tokenizer(load_moby_dick().valid, 1000, cache=tmp_path)
    assert printed == {here.fingerprint}


def test_without_the_package(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"pip install 'eve-pyro\[text\]'"):
        train_tokenizer(TEXT, cache=tmp_path)
