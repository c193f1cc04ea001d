"""Random programs of index notation against masked numpy: interpreted, and compiled."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import spcomp
from spcomp.errors import SpcompError, SpcompWarning
from spcomp.ir.printer.program import print_program
from spcomp.ir.structural import structural_equal
from spcomp.kernels.kernel import Kernel
from spcomp.kernels.notation.kernel import NotationKernel
from spcomp.kernels.notation.planned import Planned
from spcomp.script.parse import parse_source
from tests.interpreted_notation import interpreted
from tests.notation_oracle import SEMIRINGS
from tests.random_notation import Case, Writer
from tests.random_operands import LEVELS, SCIPY

DOCS = Path(__file__).resolve().parent.parent / "docs" / "notation.md"
INTERPRETED, COMPILED = 5000, 500
CHUNK, CHUNK_COMPILED = 250, 20
MOST_REFUSED = 0.02

# What a refusal says, and the number of the rule in the documentation that it follows.
RULES = {
    "present everywhere, but is to be stored": 3,
    "by itself": 5,
    "is not written, and": 8,
    "which is sparse, is": 9,
}


def rule(error: SpcompError) -> int | None:
    """The number of the documented rule that *error* follows, if it follows one."""
    return next((n for text, n in RULES.items() if text in error.message), None)


def run(seed: int, *, compiled: bool, writer: type[Writer] = Writer) -> bool:
    """Check the program that *writer* makes of *seed*; False: it is refused, by a rule."""
    case = writer(seed).write()
    if case.unclear:
        refuses(case, seed)
        return True
    kernel = case.kernel()
    try:
        results = interpreted(kernel, case.arguments())
    except SpcompError as error:
        if rule(error) is None:
            raise AssertionError(f"seed {seed}: {error}\n{case}") from error
        return False
    case.check(results, kernel)
    if compiled:
        made = kernel(**case.arguments())
        case.check(made, kernel)
        out = None
        if isinstance(made, np.ndarray) and made.ndim and "+=" not in case.text:
            out = np.full_like(made, 7)
        case.check(kernel(**case.arguments(), out=out), kernel)  # as learnt by the first call
        if seed % 4 == 1:
            args = case.arguments()
            first = next(iter(args))
            if first != "C":
                case.check(kernel.bind(**{first: args.pop(first)})(**args), kernel)
        if seed % 4 == 0:
            stage = ("coordinate", "position", "flat")[seed % 3]
            case.check(interpreted(kernel, case.arguments(), stage), kernel)
            prints(kernel, case, stage)
    return True


def refuses(case: Case, seed: int) -> None:
    """A reduction that could stand in two places is refused, and where it stands is shown."""
    try:
        interpreted(case.kernel(), case.arguments())
    except SpcompError as error:
        assert rule(error) == 8, f"seed {seed}: {error}\n{case}"  # noqa: PT017
        assert error.span is not None, f"seed {seed}"  # noqa: PT017
    else:
        raise AssertionError(f"seed {seed}: it is not refused\n{case}")


def prints(kernel: NotationKernel, case: Case, stage: str) -> None:
    """What is printed at *stage* is parsed to the same, and compiled again."""
    planned = kernel.planned(case.args)
    if isinstance(planned, Planned):
        stages = Kernel.of(planned.func, kernel.options)._compiled.stages
        module = getattr(stages, stage)
        text = print_program(module.funcs[0] if module.is_single else module)
        again = parse_source(text, "printed.py")[0]
        whole = module.funcs[0] if module.is_single else module
        assert structural_equal(again, whole), f"{case}\n{text}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SpcompWarning)  # loops that are not proved parallel
            spcomp.compile(again)


@pytest.mark.parametrize("start", range(0, INTERPRETED, CHUNK))
@pytest.mark.sample(16, long=5)
def test_the_interpreter_computes_what_masked_numpy_does(start):
    done = [run(seed, compiled=False) for seed in range(start, start + CHUNK)]
    assert done.count(False) <= MOST_REFUSED * CHUNK


@pytest.mark.parametrize("start", range(INTERPRETED, INTERPRETED + COMPILED, CHUNK_COMPILED))
@pytest.mark.sample(16, long=5)
def test_machine_code_computes_what_masked_numpy_does(start):
    done = [run(seed, compiled=True) for seed in range(start, start + CHUNK_COMPILED)]
    assert done.count(False) <= 1 + MOST_REFUSED * CHUNK_COMPILED


def test_refusals_follow_at_most_ten_documented_rules():
    section = DOCS.read_text(encoding="utf-8").split("## What is refused")[1].split("\n## ")[0]
    documented = [int(n) for n in re.findall(r"^(\d+)\. ", section, re.MULTILINE)]
    assert documented == list(range(1, len(documented) + 1))
    assert len(documented) <= 10
    assert {*RULES.values()} <= {*documented}


PARTS = (
    *("if", "else", "where(", "exp(", "maximum(", "fkeep(", "ffill(", "alpha", "0.5", "**", "//"),
    *(" and ", " or ", " > ", "float32(", "i <=", "+=", "C =", "W["),
    *("A[i, i]", "(1, ", "A[i]", "[i, j]", "[j, i]", "[i, k, j]", "[l, k, j, i]", "[-1, "),
)


def _format(arg: object) -> str:
    return str(getattr(arg, "format", type(arg).__name__))


def _kind(case: Case) -> tuple[object, ...]:
    formats = tuple((name, _format(arg)) for name, arg in case.args.items())
    return case.program, case.semiring, formats, tuple(case.formats.items())


def test_the_programs_differ_and_have_all_that_there_is():
    cases = [Writer(seed).write() for seed in range(INTERPRETED)]
    assert len({_kind(case) for case in cases}) > 0.97 * INTERPRETED
    texts = "\n".join(case.program for case in cases)
    for part in (*("sum(", "prod(", "max(", "min(", "any(", "all(", "argmax(", "argmin("), *PARTS):
        assert texts.count(part) > 10, part
    assert {case.semiring for case in cases} == {*SEMIRINGS}
    formats = " ".join(_format(arg) for case in cases for arg in case.args.values())
    for name in (*LEVELS, *SCIPY):
        assert formats.count(name) > 20, name
