"""Rival: scipy.sparse, one thread, allocates its results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.contenders import contender

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.operators import Problem


@contender("scipy", "spmm", "spmm_hub", "spmv", "spmv_compressed")
def _product(problem: Problem) -> Callable[[], object]:
    csr, b = problem.sparse, problem.dense["B"]
    return lambda: csr @ b


@contender("scipy", "csrmm_t")
def _transposed(problem: Problem) -> Callable[[], object]:
    csr, x = problem.sparse, problem.dense["X"]
    return lambda: csr.T @ x
