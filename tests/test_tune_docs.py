"""The examples of docs/tuning.md run, and it says what each feature is."""

from __future__ import annotations

import doctest
import re
from dataclasses import fields
from pathlib import Path

import pytest

from spcomp.tune import CandidateFeatures, MatrixStatistics

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tuning.md").read_text()


def test_the_page_on_tuning_says_what_happens(tmp_path):
    """Blocks run in order, as one session after the program of the README."""
    names: dict[str, object] = {}
    program = (ROOT / "examples" / "spmm.py").read_text().split("def main")[0]
    blocks = [("python", program), *re.findall(r"```(python|pycon)\n(.*?)```", PAGE, re.DOTALL)]
    assert len(blocks) > 5
    for number, (kind, text) in enumerate(blocks):
        if kind == "python":
            path = tmp_path / f"block_{number}.py"
            path.write_text(text)
            exec(compile(text, str(path), "exec"), names)
            continue
        test = doctest.DocTestParser().get_doctest(text, names, f"block {number}", None, 0)
        out: list[str] = []
        failed = doctest.DocTestRunner().run(test, out=out.append, clear_globs=False).failed
        assert not failed, "".join(out)
        names = test.globs


@pytest.mark.parametrize("kind", [MatrixStatistics, CandidateFeatures])
def test_the_page_on_tuning_names_every_feature(kind):
    tables = "\n".join(line for line in PAGE.splitlines() if line.startswith("|"))
    for field in fields(kind):
        assert f"`{field.name}`" in tables, field.name
