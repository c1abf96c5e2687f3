"""Transformers that read books: distributional feed-forward blocks against their controls."""

from functools import partial

from eve_pyro.experiments.studies.language.tasks import CORPORA, large_tasks, tasks
from eve_pyro.experiments.studies.language.text.page import write
from eve_pyro.experiments.study import Study

TITLES = {
    "mobydick": "Moby-Dick",
    "wikitext2": "WikiText-2",
    "writingprompts": "WritingPrompts",
    "pg19": "PG-19",
}
STUDIES = {
    name: Study(
        name,
        TITLES[name],
        partial(tasks, name),
        partial(write, name),
        partial(large_tasks, name),
    )
    for name in CORPORA
}
