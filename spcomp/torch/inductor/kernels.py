"""At a call of compiled code: the kernels of programs along edges."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from spcomp.kernels.compile import compile as compile_program
from spcomp.script.parse import parse

if TYPE_CHECKING:
    from spcomp.kernels.kernel import Kernel


@cache
def kernel(program: str) -> Kernel:
    """Return the kernel of *program*, a text in the script language."""
    made: Kernel = compile_program(parse(program))
    return made


@cache
def sorted_inputs(program: str) -> frozenset[str]:
    """Return the names of the inputs of *program* that have a number for each edge, by place."""
    found = re.findall(
        r"^ *(A\d+) = T.match_sparse_buffer\(a\d+, \(I, J[,)]", program, re.MULTILINE
    )
    return frozenset(found)
