"""The corpus: every program that every layer of tests runs, and scripts that must be refused."""

from __future__ import annotations

from tests.corpus_base import CASES, HEADER, Draw, Inputs, Program, fresh, variants
from tests.corpus_blocks import BLOCKS
from tests.corpus_control import CONTROL
from tests.corpus_coo import COO
from tests.corpus_matrix import MATRIX
from tests.corpus_merge import MERGE
from tests.corpus_padded import PADDED
from tests.corpus_relational import RELATIONAL
from tests.corpus_tensor import BMM_PUBLISHED, TENSOR

__all__ = ["BY_NAME", "CASES", "PROGRAMS", "PUBLISHED_BMM", "Draw", "Inputs", "Program"]
__all__ += ["fresh", "variants"]

PROGRAMS: tuple[Program, ...] = (
    *(*MATRIX, *BLOCKS, *TENSOR, *RELATIONAL, *CONTROL, *MERGE, *COO, *PADDED),
)
BY_NAME = {program.name: program for program in PROGRAMS}

# Two variable siblings in one buffer have no addressable layout: a FormatError says so.
PUBLISHED_BMM = HEADER + BMM_PUBLISHED.strip() + "\n"
