"""Rival: scipy.sparse, one thread, allocates its results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.contenders import Prepared, contender
from benchmarks.elementwise import spelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.problem import Problem


@contender("scipy", "spmm", "spmm_hub", "spmv", "spmv_compressed")
def _product(problem: Problem) -> Callable[[], object]:
    csr, b = problem.sparse, problem.dense["B"]
    return lambda: csr @ b


@contender("scipy", "csrmm_t")
def _transposed(problem: Problem) -> Callable[[], object]:
    csr, x = problem.sparse, problem.dense["X"]
    return lambda: csr.T @ x


@contender("scipy", "spadd", "hadamard")
def _elementwise(problem: Problem) -> Prepared:
    a, b = problem.sparse, problem.dense["B"]
    if problem.case.operator == "spadd":
        return Prepared(lambda: a + b, spelled)
    return Prepared(lambda: a.multiply(b), lambda result: spelled(result.tocsr()))
