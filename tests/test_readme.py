"""The examples of the README run as they are written there."""

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
