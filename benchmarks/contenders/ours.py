"""Our own forms: a program compiled without a schedule, called whole or with the matrix bound."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import spcomp
from benchmarks import programs
from benchmarks.contenders import OURS, MissingError, Prepared, contender
from benchmarks.elementwise import spelled
from spcomp.codegen import cpu
from spcomp.compiler.variants import facts, inner_extents, row_pointers
from spcomp.errors import SpcompError
from spcomp.ir.program import PosFunc
from spcomp.ir.specialize import specialize
from spcomp.knobs import knobs_of
from spcomp.schedule.default.cpu import default_steps
from spcomp.schedule.default.facts import Facts
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.step import Trace
from spcomp.target import target as parse_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.problem import Problem


@dataclass(frozen=True, slots=True)
class Form:
    """A program, the arguments that stay (what ``bind`` takes), and the others."""

    source: str
    fixed: Callable[[Problem], dict[str, Any]]
    rest: Callable[[Problem], dict[str, Any]]


def _tensor(problem: Problem) -> dict[str, Any]:
    t = problem.sparse
    levels = (
        None,
        ("compressed", t.indptr_j, t.indices_j),
        ("compressed", t.indptr_k, t.indices_k),
    )
    return {"A": spcomp.Tensor(t.shape, levels, t.values)}


def _rows(problem: Problem, *, ragged: bool) -> dict[str, Any]:
    csr, x = problem.sparse, problem.dense["X"]
    level = ("ragged", csr.indptr) if ragged else ("compressed", csr.indptr, csr.indices)
    return {"X": spcomp.Tensor((*csr.shape, x.shape[1]), (None, level, None), x)}


def _matrix(problem: Problem) -> dict[str, Any]:
    return {"A": problem.sparse}


def _dense(**names: str) -> Callable[[Problem], dict[str, Any]]:
    return lambda problem: {ours: problem.dense[its] for ours, its in names.items()}


FORMS = {
    "spmm": Form(programs.SPMM, _matrix, _dense(B="B")),
    "spmm_hub": Form(programs.SPMM, _matrix, _dense(B="B")),
    "spmm_max": Form(programs.SPMM_MAX, _matrix, _dense(B="B")),
    "spmm_mean": Form(programs.SPMM_MEAN, _matrix, _dense(B="B", W="W")),
    "spmv": Form(programs.SPMV, _matrix, _dense(X="B")),
    "csrmm_t": Form(programs.CSRMM_T, _matrix, _dense(X="X")),
    "sddmm": Form(programs.SDDMM, lambda p: {"J": p.sparse}, _dense(A="X", B="Y")),
    "mttkrp": Form(programs.MTTKRP, _tensor, _dense(B="B", C="C")),
    "segment_ragged": Form(programs.SEGMENT_RAGGED, partial(_rows, ragged=True), _dense()),
    "segment_csr": Form(programs.SEGMENT_CSR, partial(_rows, ragged=False), _dense()),
    "segment_coo": Form(programs.SEGMENT_COO, _dense(rows="S"), _dense(X="X")),
}
ASSEMBLED = {
    "spadd": Form(programs.SPADD, _matrix, _dense(B="B")),
    "hadamard": Form(programs.HADAMARD, _matrix, _dense(B="B")),
}  # the pattern of their results is found by the call


def set_threads(count: int) -> None:
    """Let our parallel loops use *count* threads."""
    spcomp.set_num_threads(count)


def compiled(problem: Problem) -> Any:
    """Return the Kernel for *problem*; raises MissingError if it does not compile."""
    try:
        return spcomp.compile(_program(problem))
    except SpcompError as error:
        raise MissingError(f"does not compile: {error}") from error


def scheduled(problem: Problem, trace: Trace) -> Any:
    """Return the Kernel with those steps of *trace* that are legal; raises MissingError.

    Its extents are compiled in, as they are by default.
    """
    try:
        return spcomp.compile(_schedule(problem).replay(trace, skip=True))
    except SpcompError as error:
        raise MissingError(f"does not compile: {error}") from error


def default_trace(problem: Problem, known: Facts = Facts()) -> Trace:  # noqa: B008 (frozen)
    """Return the steps that run by default with the extents of *problem* where *known* holds."""
    func = _schedule(problem).func
    assert isinstance(func, PosFunc)
    machine = cpu.resolve(parse_target("cpu"))
    return Trace().extend(func.name, default_steps(func, machine, known))


def known_facts(problem: Problem) -> Facts:
    """Return what a call finds out about the rows of *problem*."""
    names, knobs = row_pointers(_program(problem)), knobs_of(parse_target("cpu"))
    narrow = problem.case.feat <= knobs.narrow_operations
    arrays = {name: getattr(problem.sparse, name, None) for name in names}
    return facts(names, arrays, knobs, hubs=True, narrow=narrow)


def _schedule(problem: Problem) -> Schedule:
    program = _program(problem)
    extents = dict.fromkeys(inner_extents(program), problem.case.feat)
    return Schedule(specialize(program, extents) if extents else program).lower_sparse_iter()


def bound_call(problem: Problem, kernel: Any) -> Callable[[], object]:
    """Return a call of *kernel* with the sparse operand bound."""
    if (form := ASSEMBLED.get(problem.case.operator)) is not None:
        return partial(kernel.bind(**form.fixed(problem), **form.rest(problem)))
    form = FORMS[problem.case.operator]
    bound = kernel.bind(**form.fixed(problem))
    return partial(bound, **form.rest(problem), out=problem.out)


@contender("spcomp", *FORMS, library=OURS)
def _whole(problem: Problem) -> Callable[[], object]:
    form = FORMS[problem.case.operator]
    arguments = {**form.fixed(problem), **form.rest(problem)}
    return partial(compiled(problem), **arguments, out=problem.out)


@contender("spcomp_bound", *FORMS, library=OURS, handle=True)
def _bound(problem: Problem) -> Callable[[], object]:
    return bound_call(problem, compiled(problem))


@contender("spcomp", *ASSEMBLED, library=OURS)
def _assembled(problem: Problem) -> Prepared:
    form = ASSEMBLED[problem.case.operator]
    arguments = {**form.fixed(problem), **form.rest(problem)}
    return Prepared(partial(compiled(problem), **arguments), spelled)


@contender("spcomp_bound", *ASSEMBLED, library=OURS, handle=True)
def _assembled_bound(problem: Problem) -> Prepared:
    return Prepared(bound_call(problem, compiled(problem)), spelled)


@contender("spcomp_rows", "spmm_hub", library=OURS, handle=True)
def _by_rows(problem: Problem) -> Callable[[], object]:
    """The same for matrices without hub rows: a row is never shared by two threads."""
    return bound_call(problem, scheduled(problem, default_trace(problem)))


@contender("spcomp_bound", "spmv_compressed", library=OURS, handle=True)
def _compressed(problem: Problem) -> Callable[[], object]:
    """SpMV over diagonal segments, converted beforehand as MKL's inspector does."""
    program = programs.parse(programs.SPMV, problem.case.dtype)
    try:
        kernel = spcomp.decompose(program, A=spcomp.formats.sliced_diagonal()).compile()
    except SpcompError as error:
        raise MissingError(f"does not compile: {error}") from error
    return partial(kernel.bind(A=problem.sparse), X=problem.dense["B"], out=problem.out)


def _program(problem: Problem) -> Any:
    form = (FORMS | ASSEMBLED)[problem.case.operator]
    return programs.parse(form.source, problem.case.dtype)
