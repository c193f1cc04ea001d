"""What each stage of each program looks like, printed; the files are scripts and parse back."""

from __future__ import annotations

import pytest

from tests.layers import STAGES, stages
from tests.programs import PROGRAMS


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_a_stage_prints_as_the_golden_file_says(program, stage, golden):
    from spcomp.ir.printer import print_program

    text = print_program(getattr(stages(program.name, program.dtypes[0]), stage))
    golden(f"{program.name}.{stage}.txt", text)
