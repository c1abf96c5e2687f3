"""Training a byte-level BPE tokenizer, once for each text and vocabulary size."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator

from eve_pyro._checks import check_int
from eve_pyro.data.table import DataError
from eve_pyro.data.text.corpus import check_documents, content_digest, hashed
from eve_pyro.data.text.files import text_cache, writing
from eve_pyro.data.text.tokenizer import END_OF_TEXT, Tokenizer, tokenizers_library

_METHOD = "byte-level BPE/1"
_MIN_VOCAB = 257  # 256 bytes and END_OF_TEXT


def train_tokenizer(
    documents: Iterable[str],
    vocab_size: int = 4096,
    *,
    cache: str | os.PathLike[str] | None = None,
) -> Tokenizer:
    """Train a byte-level BPE tokenizer, or take it from the cache.

    The documents are read twice, once for the name of the cached file, which holds a hash of
    their text and of the settings, and once to train. The same documents give the same tokenizer.

    Arguments:
        documents: the training part of a ``Corpus``, or another iterable of strings.
        vocab_size: number of tokens >= 257: ``<|endoftext|>``, the 256 bytes, and the merges.
            A small text may have fewer pairs to merge; ``Tokenizer.vocab_size`` has the number.
        cache: folder for the trained tokenizer; default: the user's cache folder. A damaged file
            there is trained anew.

    Raises:
        ImportError: without the package ``tokenizers``.
        ValueError: if ``vocab_size`` is not as above.
        DataError: if the documents hold no text, or change between the passes, or the cache
            cannot be written to.

    References:
        R. Sennrich, B. Haddow and A. Birch, Neural machine translation of rare words with subword
        units, ACL 2016.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     train_tokenizer(["a whale, a white whale"], 260, cache=folder).vocab_size
    260
    """
    tokenizers_library()
    check_int("vocab_size", vocab_size, _MIN_VOCAB)
    check_documents("documents", documents)
    digest = content_digest(documents)
    settings = json.dumps([_METHOD, END_OF_TEXT, int(vocab_size)])
    key = hashlib.sha256(f"{digest} {settings}".encode()).hexdigest()
    path = text_cache(cache) / f"tokenizer-{vocab_size}-{key[:16]}.json"
    if path.is_file():
        try:
            return Tokenizer.load(path)
        except DataError:
            pass  # damaged, so it is trained anew
    with writing(path) as part:  # before the long work, for a cache that cannot be written to
        tokenizer = _train(documents, int(vocab_size), digest)
        tokenizer.save(part)
    return tokenizer


def check_unchanged(first: str, second: str) -> None:
    """Raise a ``DataError`` if two passes over the documents had other digests.

    >>> check_unchanged("ab", "ab")
    """
    if first != second:
        raise DataError(
            "documents must be the same in every pass, "
            f"got other text in the second (SHA-256 {first[:12]}, then {second[:12]})"
        )


def _train(documents: Iterable[str], vocab_size: int, digest: str) -> Tokenizer:
    library = tokenizers_library()
    core = library.Tokenizer(library.models.BPE())
    core.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    hasher = hashlib.sha256()
    core.train_from_iterator(_some_text(hashed(documents, hasher)), trainer)
    check_unchanged(digest, hasher.hexdigest())
    return Tokenizer(core.to_str())


def _some_text(documents: Iterable[str]) -> Iterator[str]:
    count = characters = 0
    for text in documents:
        count, characters = count + 1, characters + len(text)
        yield text
    if not characters:
        raise DataError(f"documents must hold some text, got {count} documents without any")
