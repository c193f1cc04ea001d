"""What each stage of each program looks like, printed; the files are scripts and parse back."""

from __future__ import annotations

import pytest

from spcomp.ir.printer.program import print_program
from tests.conftest import GOLDEN
from tests.layers import STAGES, stages
from tests.programs import BY_NAME, PROGRAMS


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_a_stage_prints_as_the_golden_file_says(program, stage, golden):
    text = print_program(getattr(stages(program.name, program.dtypes[0]), stage))
    golden(f"{program.name}.{stage}.txt", text)


def test_every_golden_stage_belongs_to_a_program():
    files = [path.name.split(".") for path in GOLDEN.glob("*.txt")]
    staged = {name for name, stage, _ in (f for f in files if len(f) == 3) if stage in STAGES}
    assert staged <= set(BY_NAME)
