"""Random programs of index notation: interpreted and compiled, against masked numpy."""

from __future__ import annotations

import pytest

from spcomp.compiler.notation import NotationKernel
from spcomp.errors import LoweringError, ScriptError
from tests.random_notation import Case, Writer, interpreted

REFUSED = ("is not known before", "product of sparse operands", "that of a product")
SEEDS = 120
CHUNK = 10


def refusal(kernel: NotationKernel, case: Case) -> str | None:
    """Why the program of *case* is not compiled, if it is not."""
    try:
        kernel.specialize(**case.args)
    except (LoweringError, ScriptError) as error:
        return error.message
    return None


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_machine_code_and_interpreter_compute_what_masked_numpy_does(start):
    refused = 0
    for seed in range(start, start + CHUNK):
        case = Writer(seed).write()
        kernel = case.kernel()
        reason = refusal(kernel, case)
        if reason is None:
            case.check(kernel(**case.args))
            case.check(interpreted(kernel, case.args))
        else:
            refused += 1
            assert any(known in reason for known in REFUSED), f"{case}: {reason}"
    assert refused < CHUNK
