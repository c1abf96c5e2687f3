"""Token streams: a part of a corpus as one long row of ids, in a file that is mapped, not read."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from eve_pyro.data.table import DataError, DataNotFoundError
from eve_pyro.data.text.corpus import check_documents, content_digest, hashed, to_utf8
from eve_pyro.data.text.files import text_cache, writing
from eve_pyro.data.text.tokenizer import Tokenizer
from eve_pyro.data.text.tokens import Tokens
from eve_pyro.data.text.training import check_unchanged

_FORMAT = "eve_pyro.tokens/1"
_HEADER = 1024  # bytes of JSON and blanks in front of the ids
_BATCH = 1 << 20  # characters that are encoded at once
_BLOCK = 1 << 20  # bytes that are checked at once


def encode_corpus(
    documents: Iterable[str],
    tokenizer: Tokenizer,
    *,
    cache: str | os.PathLike[str] | None = None,
) -> Tokens:
    """The ids of a part of a corpus, each document ended by ``<|endoftext|>``, in a mapped file.

    The ids are written as they come, so that memory does not grow with the corpus but with its
    longest document only. The file's name holds a hash of the text and of the tokenizer: the next
    call for the same text reads it (and the text, to know it). A damaged file is made anew.

    Arguments:
        documents: one part of a ``Corpus``, or another iterable of strings.
        tokenizer: the tokenizer.
        cache: folder for the file; default: the user's cache folder.

    Returns:
        ``Tokens`` whose ids are uint16, or uint32 for more than 65,536 tokens, mapped read-only.

    Raises:
        DataError: if there are no documents, or they change between the passes, or the cache
            cannot be written to.

    >>> from tempfile import TemporaryDirectory
    >>> from eve_pyro.data.text import train_tokenizer
    >>> with TemporaryDirectory() as folder:
    ...     tokenizer = train_tokenizer(["a whale"], 257, cache=folder)
    ...     tokens = encode_corpus(["a whale", "a sea"], tokenizer, cache=folder)
    ...     tokens, tokens.ids.dtype.name, tokenizer.decode(tokens.ids)
    (Tokens(14 ids, vocab_size=257), 'uint16', 'a whale<|endoftext|>a sea<|endoftext|>')
    """
    check_documents("documents", documents)
    digest = content_digest(documents)
    key = hashlib.sha256(f"{_FORMAT} {digest} {tokenizer.fingerprint}".encode()).hexdigest()
    path = text_cache(cache) / f"tokens-{key[:16]}.bin"
    if path.is_file():
        try:
            return load_tokens(path, tokenizer)
        except DataError:
            pass  # damaged, so it is made anew
    with writing(path) as part:
        _write(part, documents, digest, tokenizer)
    return load_tokens(path, tokenizer)


def load_tokens(path: str | os.PathLike[str], tokenizer: Tokenizer | None = None) -> Tokens:
    """Map a file that ``encode_corpus`` has written.

    The file is 1,024 bytes of JSON, padded with blanks, and the ids, little-endian. It is checked
    against the SHA-256 in it, of the ids and the rest of the JSON.

    Arguments:
        path: the file.
        tokenizer: if given, it must be the one of the file.

    Raises:
        DataNotFoundError: an ``OSError``, if there is no such file.
        DataError: if the file is damaged or something else, or belongs to another tokenizer.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(_HEADER))
            if not isinstance(header, dict) or header.get("format") != _FORMAT:
                raise DataError(f"{path} must be a token file of format {_FORMAT}, got another")
            found = hashlib.sha256()
            while block := file.read(_BLOCK):
                found.update(block)
    except FileNotFoundError:
        raise DataNotFoundError(f"path must be a token file, got no file {str(path)!r}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path} must be a token file: {error}") from None
    wanted = header.pop("sha256", None)
    found.update(_canonical(header))
    if found.hexdigest() != wanted:
        raise DataError(f"{path} must hold what was written, got a damaged file")
    ids = np.memmap(path, header["dtype"], "r", offset=_HEADER, shape=(header["tokens"],))
    tokens = Tokens(ids, header["vocab_size"], header["fingerprint"], header["num_bytes"])
    if tokenizer is not None:
        tokens.check_tokenizer(tokenizer)
    return tokens


def _write(path: Path, documents: Iterable[str], digest: str, tokenizer: Tokenizer) -> None:
    dtype = "<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4"
    text_hash, file_hash = hashlib.sha256(), hashlib.sha256()
    num_tokens = num_bytes = 0
    with path.open("wb") as file:
        file.write(b" " * _HEADER)
        for batch in _batches(hashed(documents, text_hash)):
            num_bytes += sum(len(to_utf8(text, "document")) for text in batch)
            for ids in tokenizer.encode_batch(batch):
                content = np.array([*ids, tokenizer.end_of_text], dtype).tobytes()
                file.write(content)
                file_hash.update(content)
                num_tokens += len(ids) + 1
        check_unchanged(digest, text_hash.hexdigest())
        if not num_tokens:
            raise DataError("documents must be at least 1 document, got none")
        header: dict[str, Any] = {
            "format": _FORMAT,
            "dtype": dtype,
            "tokens": num_tokens,
            "num_bytes": num_bytes,
            "vocab_size": tokenizer.vocab_size,
            "fingerprint": tokenizer.fingerprint,
        }
        file_hash.update(_canonical(header))
        header["sha256"] = file_hash.hexdigest()
        file.seek(0)
        file.write(json.dumps(header).encode().ljust(_HEADER - 1) + b"\n")


def _canonical(header: dict[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True).encode()


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    """Documents in lists of about ``_BATCH`` characters: enough to keep all processors busy."""
    batch: list[str] = []
    size = 0
    for text in documents:
        batch.append(text)
        size += len(text) + 1
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
