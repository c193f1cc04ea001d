"""docs/tuning.md says what each feature is."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from spcomp.tune import CandidateFeatures, MatrixStatistics

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tuning.md").read_text()


@pytest.mark.parametrize("kind", [MatrixStatistics, CandidateFeatures])
def test_the_page_on_tuning_names_every_feature(kind):
    tables = "\n".join(line for line in PAGE.splitlines() if line.startswith("|"))
    for field in fields(kind):
        assert f"`{field.name}`" in tables, field.name
