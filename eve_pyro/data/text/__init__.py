"""Text for language models: corpora, a tokenizer, token streams, windows and corruption.

>>> from tempfile import TemporaryDirectory
>>> from eve_pyro.data.text import TokenWindows, encode_corpus, load_moby_dick, train_tokenizer
>>> corpus = load_moby_dick()
>>> with TemporaryDirectory() as folder:
...     tokenizer = train_tokenizer(corpus.valid, vocab_size=512, cache=folder)
...     windows = TokenWindows(encode_corpus(corpus.test, tokenizer, cache=folder), context=64)
...     inputs, targets = next(windows.batches(8, seed=0))
>>> inputs.shape, targets.shape
(torch.Size([8, 64]), torch.Size([8, 64]))
"""

from eve_pyro.data.text.corpus import Corpus, Documents, content_digest
from eve_pyro.data.text.corrupt import corrupt_tokens
from eve_pyro.data.text.gutenberg import load_pg19
from eve_pyro.data.text.loaders import available_corpora, load_corpus
from eve_pyro.data.text.moby_dick import load_moby_dick
from eve_pyro.data.text.stream import encode_corpus, load_tokens
from eve_pyro.data.text.tokenizer import Tokenizer
from eve_pyro.data.text.tokens import Tokens
from eve_pyro.data.text.training import train_tokenizer
from eve_pyro.data.text.wikitext import load_wikitext2
from eve_pyro.data.text.windows import TokenWindows
from eve_pyro.data.text.writingprompts import load_writingprompts

__all__ = [
    "Corpus",
    "Documents",
    "TokenWindows",
    "Tokenizer",
    "Tokens",
    "available_corpora",
    "content_digest",
    "corrupt_tokens",
    "encode_corpus",
    "load_corpus",
    "load_moby_dick",
    "load_pg19",
    "load_tokens",
    "load_wikitext2",
    "load_writingprompts",
    "train_tokenizer",
]
