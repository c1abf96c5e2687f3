"""Token streams and their windows."""

import json
import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from text_data import SHARED, needs
from torch.utils.data import DataLoader

from eve_pyro.data import DataError, DataNotFoundError
from eve_pyro.data.text import (
    Documents,
    Tokens,
    TokenWindows,
    encode_corpus,
    load_pg19,
    load_tokens,
    load_wikitext2,
    stream,
    train_tokenizer,
)

TEXT = ["the white whale\n", "", "na\u00efve \U0001f40b whales, and the <|endoftext|> of it"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return train_tokenizer(TEXT, 270, cache=tmp_path_factory.mktemp("tokenizer"))


def in_memory(documents, tokenizer) -> np.ndarray:
    return np.array([i for text in documents for i in [*tokenizer.encode(text), 0]])


# Streams


@settings(max_examples=30, deadline=None)
@given(documents=st.lists(st.text(max_size=30), min_size=1, max_size=20), batch=st.integers(1, 100))
def test_streaming_equals_in_memory(tokenizer, tmp_path_factory, documents, batch):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "_BATCH", batch)
        tokens = encode_corpus(documents, tokenizer, cache=tmp_path_factory.mktemp("stream"))
    np.testing.assert_array_equal(tokens.ids, in_memory(documents, tokenizer))
    assert tokens.num_bytes == sum(len(text.encode()) for text in documents)
    assert (tokens.ids == 0).sum() == len(documents)
    assert tokenizer.decode(tokens.ids) == "".join(text + "<|endoftext|>" for text in documents)


def test_the_file_is_mapped_and_cached(tokenizer, tmp_path, monkeypatch):
    tokens = encode_corpus(TEXT, tokenizer, cache=tmp_path)
    assert isinstance(tokens.ids, np.memmap)
    assert tokens.ids.dtype == np.uint16
    assert not tokens.ids.flags.writeable
    tokens.check_tokenizer(tokenizer)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size == 1024 + 2 * len(tokens)
    monkeypatch.setattr(stream, "_write", None)  # no more writing
    again = encode_corpus(tuple(TEXT), tokenizer, cache=tmp_path)
    np.testing.assert_array_equal(again.ids, tokens.ids)
    monkeypatch.undo()
    other = train_tokenizer(TEXT, 260, cache=tmp_path / "tokenizer")
    encode_corpus(TEXT, other, cache=tmp_path)
    encode_corpus(TEXT[:2], tokenizer, cache=tmp_path)
    assert len(list(tmp_path.glob("*.bin"))) == 3


def test_memory_does_not_grow_with_the_corpus(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "_BATCH", 1 << 12)

    def peak(repeats: int) -> int:
        part = Documents("whales", lambda: ("the white whale " * 20 for _ in range(repeats)))
        tracemalloc.start()
        try:
            encode_corpus(part, tokenizer, cache=tmp_path)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    monkeypatch.setattr(stream, "_BLOCK", 1 << 12)
    monkeypatch.setattr("eve_pyro.data.text.tokens._BLOCK", 1 << 12)
    peak(10)  # imports
    assert peak(1600) < 1.2 * peak(200)


def test_large_vocabularies_take_four_bytes(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer, "vocab_size", 65_537)
    tokens = encode_corpus(TEXT, tokenizer, cache=tmp_path)
    assert tokens.ids.dtype == np.uint32
    np.testing.assert_array_equal(tokens.ids, in_memory(TEXT, tokenizer))


@pytest.mark.parametrize(
    ("documents", "reason"),
    [
        ([], "documents must be at least 1 document, got none"),
        (["a", None], "document 2 must be a string, got NoneType"),
        (iter(["a"]), "read more than once"),
    ],
)
def test_documents_that_cannot_be_encoded(tokenizer, tmp_path, documents, reason):
    with pytest.raises(DataError, match=reason):
        encode_corpus(documents, tokenizer, cache=tmp_path)
    assert not list(tmp_path.iterdir())


def test_documents_that_change(tokenizer, tmp_path):
    passes = iter([["a whale"], ["a squid"]])
    with pytest.raises(DataError, match="documents must be the same in every pass"):
        encode_corpus(Documents("moody", lambda: iter(next(passes))), tokenizer, cache=tmp_path)
    assert not list(tmp_path.iterdir())


DAMAGES = {
    "empty": lambda content: b"",
    "half a header": lambda content: content[:500],
    "no ids": lambda content: content[:1024],
    "an id less": lambda content: content[:-2],
    "another id": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "other bytes": lambda content: content.replace(b'"num_bytes": ', b'"num_bytes": 1', 1),
    "no JSON": lambda content: b"x" * len(content),
    "another format": lambda content: content.replace(b"tokens/1", b"tokens/0"),
    "a list": lambda content: b"[]".ljust(1024) + content[1024:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files(tokenizer, tmp_path, damage):
    wanted = np.array(encode_corpus(TEXT, tokenizer, cache=tmp_path).ids)
    (path,) = tmp_path.iterdir()
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(DataError, match=path.name):
        load_tokens(path)
    np.testing.assert_array_equal(encode_corpus(TEXT, tokenizer, cache=tmp_path).ids, wanted)
    assert len(list(tmp_path.iterdir())) == 1


def test_tokens_of_another_tokenizer(tokenizer, tmp_path):
    encode_corpus(TEXT, tokenizer, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    assert len(load_tokens(path, tokenizer)) == len(load_tokens(path))
    other = train_tokenizer(["squid"], 259, cache=tmp_path)
    with pytest.raises(DataError) as caught:
        load_tokens(path, other)
    for part in (tokenizer.fingerprint[:12], other.fingerprint[:12]):
        assert part in str(caught.value)
    with pytest.raises(DataError, match=r"that of these tokens \(unknown\)"):
        Tokens(np.arange(3), 259).check_tokenizer(other)
    with pytest.raises(DataNotFoundError, match="got no file"):
        load_tokens(tmp_path / "nowhere.bin")


def test_ids_must_be_in_the_vocabulary():
    with pytest.raises(DataError, match=r"in \[0, 5\), got 5 at position 3"):
        Tokens(np.array([1, 2, 3, 5]), 5)
    with pytest.raises(DataError, match=r"in \[0, 5\), got -1 at position 0"):
        Tokens([-1], 5)
    with pytest.raises(DataError, match=r"shape \(1, 1\) of int64"):
        Tokens([[1]], 5)
    with pytest.raises(DataError, match="of float64"):
        Tokens([0.5], 5)
    with pytest.raises(ValueError, match="vocab_size must be an integer >= 1"):
        Tokens([1], 0)


def test_bits_per_byte(tokenizer, tmp_path):
    """A loss of ln 256 nats per byte is 8 bits per byte, however the bytes are cut."""
    tokens = encode_corpus(TEXT, tokenizer, cache=tmp_path)
    assert tokens.bytes_per_token == tokens.num_bytes / len(tokens)
    total = tokens.num_bytes * math.log(256.0)
    assert tokens.bits_per_byte(total / len(tokens)) == pytest.approx(8.0)
    with pytest.raises(DataError, match="got num_bytes None and 1 tokens"):
        Tokens([1], 5).bytes_per_token  # noqa: B018
    with pytest.raises(DataError, match="got num_bytes 0 and 0 tokens"):
        Tokens([], 5, num_bytes=0).bytes_per_token  # noqa: B018


# Windows


@settings(deadline=None)
@given(
    context=st.integers(1, 12),
    stride=st.integers(1, 15),
    spare=st.integers(0, 60),
    keep_tail=st.booleans(),
    batch_size=st.integers(1, 9),
    seed=st.integers(0, 2**32),
)
def test_windows(context, stride, spare, keep_tail, batch_size, seed):
    length = context + 1 + spare
    ids = np.arange(length, dtype=np.uint16)  # an id is its position
    windows = TokenWindows(ids, context, stride, keep_tail=keep_tail)
    starts = list(range(0, length - context, stride))
    if keep_tail and starts[-1] + context + 1 < length:
        starts.append(length - context - 1)
    assert len(windows) == len(starts)
    for (inputs, targets), start in zip(windows, starts, strict=True):
        assert inputs.dtype == targets.dtype == torch.int64
        assert inputs.tolist() == list(range(start, start + context))
        assert torch.equal(targets, inputs + 1)
    batches = list(windows.batches(batch_size, seed=seed, epoch=3))
    assert {len(inputs) for inputs, _ in batches[:-1]} <= {batch_size}
    assert sorted(i for inputs, _ in batches for i in inputs[:, 0].tolist()) == starts
    assert all(torch.equal(targets, inputs + 1) for inputs, targets in batches)
    assert all(inputs.is_contiguous() and targets.is_contiguous() for inputs, targets in batches)
    ordered = [i for inputs, _ in windows.batches(2, seed=0, shuffle=False) for i in inputs[:, 0]]
    assert ordered == starts


@pytest.mark.parametrize(
    ("stride", "passes"), [(None, 1.0), (8, 1.0), (4, 2.0), (2, 4.0), (16, 0.5)]
)
def test_passes_per_token(stride, passes):
    """In the middle of the stream the share of targets is context / stride, counted one by one."""
    windows = TokenWindows(np.arange(401), 8, stride)
    assert windows.passes_per_token == passes
    targets = torch.cat([targets for _, targets in windows])
    counts = torch.bincount(targets, minlength=401)[41:361]
    assert counts.double().mean() == passes
    if passes >= 1:
        assert (counts == passes).all()


def test_all_tokens_but_the_first_are_a_target_once():
    windows = TokenWindows(np.arange(33), 8)
    assert sorted(t for _, targets in windows for t in targets.tolist()) == list(range(1, 33))


def test_orders_repeat_by_seed_and_epoch():
    windows = TokenWindows(np.arange(1001), 10)

    def order(seed: int, epoch: int) -> list[int]:
        batches = windows.batches(7, seed=seed, epoch=epoch)
        return [int(i) for inputs, _ in batches for i in inputs[:, 0]]

    state = torch.get_rng_state()
    assert order(0, 0) == order(0, 0)
    assert torch.equal(torch.get_rng_state(), state)
    orders = {tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    assert sorted(order(0, 0)) != order(0, 0)


def test_too_few_tokens(tokenizer, tmp_path):
    tokens = encode_corpus(["a"], tokenizer, cache=tmp_path)
    with pytest.raises(DataError, match=r"tokens must be at least context \+ 1 = 65 ids, got 2"):
        TokenWindows(tokens, 64)
    with pytest.raises(DataError, match=r"context \+ 1 = 2 ids, got 0"):
        TokenWindows([], 1)
    assert len(TokenWindows(tokens, 1)) == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"context": 0}, "context must be an integer >= 1, got 0"),
        ({"context": 2.0}, "context must be an integer >= 1, got 2.0"),
        ({"context": 2, "stride": 0}, "stride must be an integer >= 1, got 0"),
        ({"context": 2, "tokens": [[1, 2, 3]]}, r"got shape \(1, 3\) of int64"),
        ({"context": 2, "tokens": [0.5, 1.0, 2.0]}, "got shape .* of float64"),
    ],
)
def test_windows_that_cannot_be(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        TokenWindows(**{"tokens": [1, 2, 3], **arguments})


@pytest.mark.parametrize("name", ["batch_size", "seed", "epoch"])
def test_batches_that_cannot_be(name):
    """The error comes with the call, not with the first batch."""
    windows = TokenWindows([1, 2, 3], 2)
    with pytest.raises(ValueError, match=f"{name} must be an integer >= [01], got -1"):
        windows.batches(**{"batch_size": 2, "seed": 0, name: -1})


def test_index_out_of_range():
    windows = TokenWindows(range(10), 4)
    assert torch.equal(windows[-1][0], windows[1][0])
    for index in (2, -3):
        with pytest.raises(IndexError, match=rf"index must be in \[-2, 2\), got {index}"):
            windows[index]
    assert repr(windows) == "TokenWindows(2 windows, context=4, stride=4)"


def test_a_loader_of_torch_reads_windows(tokenizer, tmp_path):
    windows = TokenWindows(encode_corpus(TEXT, tokenizer, cache=tmp_path), 4)
    inputs, targets = next(iter(DataLoader(windows, batch_size=3)))
    assert inputs.shape == targets.shape == (3, 4)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


# The real files


@needs("wikitext-2/valid.txt", "wikitext-2/test.txt")
def test_real_text_from_file_to_batch(tmp_path):
    corpus = load_wikitext2(SHARED, split_valid=True)
    tokenizer = train_tokenizer(corpus.valid, 1024, cache=tmp_path)
    tokens = encode_corpus(corpus.valid, tokenizer, cache=tmp_path)
    np.testing.assert_array_equal(tokens.ids, in_memory(corpus.valid, tokenizer))
    assert 2.0 < tokens.bytes_per_token < 5.0
    windows = TokenWindows(tokens, context=128)
    inputs, _ = next(windows.batches(4, seed=0))
    assert inputs.shape == (4, 128)
    text = tokenizer.decode(inputs[0])
    assert text.strip("\ufffd") in "<|endoftext|>".join([*corpus.valid, ""])


@needs("pg19/1342.txt")
def test_a_real_book_survives(tmp_path):
    corpus = load_pg19(SHARED)
    tokenizer = train_tokenizer(corpus.test, 512, cache=tmp_path)
    tokens = encode_corpus(corpus.valid, tokenizer, cache=tmp_path)
    assert tokenizer.decode(tokens.ids) == "<|endoftext|>".join([*corpus.valid, ""])
    (path,) = tmp_path.glob("*.bin")
    assert json.loads(path.read_bytes()[:1024])["tokens"] == len(tokens)
