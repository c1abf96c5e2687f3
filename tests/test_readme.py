"""The examples of the README and of the page on Transformers run as they are written there."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("code", EXAMPLES, ids=lambda code: code.splitlines()[0][:30])
def test_example(code, capsys):
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    if "svi" in names:
        assert sum(names["losses"][-10:]) < sum(names["losses"][:10])
    else:
        assert "crps" in capsys.readouterr().out
        assert names["y"].mean.shape == names["data"].test.y.shape


def test_the_readme_has_both_examples():
    assert len(EXAMPLES) == 2


def test_the_page_on_transformers_runs_from_top_to_bottom(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    page = Path(__file__).parent.parent / "docs" / "transformers.md"
    code = "\n".join(
        re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    )
    names: dict = {}
    exec(compile(code, "transformers.md", "exec"), names)
    assert sum(names["losses"][-10:]) < sum(names["losses"][:10])
    assert names["replaced"] == 2
    assert names["text"].tokens.shape == (1, 20)
