"""Small corpora as files, and where the real ones lie."""

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("EVE_PYRO_DATA") or Path(__file__).parents[2] / "shared" / "data")

ARTICLES = [
    f" = Whale {number} = \n \n A mammal of {number} tons , <unk> and all . \n \n = = Life = = \n"
    f" \n It swims at 5 @.@ {number} knots . \n \n"
    for number in range(10)
]
ARTICLES[0] = " \n" + ARTICLES[0]  # the files begin with a blank line
STORIES = [
    (f"[ WP ] Whale {n} .", f"It swam . <newline> <newline> Away it went {n} .") for n in "123"
]


def needs(*names: str) -> pytest.MarkDecorator:
    """Skip a test where the data home lacks one of these files."""
    missing = [name for name in names if not (SHARED / name).exists()]
    return pytest.mark.skipif(bool(missing), reason=f"needs {missing} in the data home {SHARED}")


def write_wikitext(home: Path, parts=("train", "valid", "test"), articles=ARTICLES) -> Path:
    folder = home / "wikitext-2"
    folder.mkdir(parents=True)
    for part in parts:
        (folder / f"{part}.txt").write_text("".join(articles), encoding="utf-8", newline="")
    return folder


def write_stories(home: Path, stories=STORIES) -> Path:
    folder = home / "writingprompts"
    folder.mkdir(parents=True)
    for part in ("train", "valid", "test"):
        for side, lines in zip(("source", "target"), zip(*stories, strict=True), strict=True):
            text = "\n".join(lines) + "\n"
            (folder / f"{part}.wp_{side}").write_text(text, encoding="utf-8", newline="")
    return folder


def write_books(home: Path, names=("1", "2", "3", "4"), folder: str = "pg19") -> Path:
    where = home / folder
    where.mkdir(parents=True, exist_ok=True)
    for name in names:
        (where / f"{name}.txt").write_text(f"Book {name}.\n", encoding="utf-8")
    return where
