"""Products of a sparse matrix with itself: ours and those of the rivals."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sps

import spcomp
from benchmarks.contenders import OURS, Prepared, contender, need
from benchmarks.products import values_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.problem import Array, Problem

UNORDERED = "dense,compressed(unordered)"


def _ours(problem: Problem) -> tuple[Any, dict[str, Any]]:
    csr = problem.sparse
    match problem.case.operator:
        case "triangles":
            text = "n = L[i, k] * L[k, j] * L[i, j]"
            return spcomp.compile(text, semiring="plus_pair"), {"L": csr}
        case "spgemm_masked":
            text = "C[i, j] = (A[i, k] * B[k, j]) if M[i, j]"
            return spcomp.compile(text), {"A": csr, "B": csr, "M": csr}
        case operator:
            formats = {"C": "csr" if operator == "spgemm" else UNORDERED}
            text = "C[i, j] = A[i, k] * B[k, j]"
            return spcomp.compile(text, formats=formats), {"A": csr, "B": csr}


def _value(problem: Problem) -> Callable[[Any], Array]:
    if problem.case.operator == "triangles":
        return lambda count: np.atleast_1d(np.asarray(count))
    return partial(values_of, problem)


@contender("spcomp", "spgemm", "spgemm_unordered", "spgemm_masked", "triangles", library=OURS)
def _spcomp(problem: Problem) -> Prepared:
    kernel, arguments = _ours(problem)
    return Prepared(partial(kernel, **arguments), _value(problem))


@contender("scipy", "spgemm", "spgemm_unordered")
def _scipy(problem: Problem) -> Prepared:
    csr, ordered = sps.csr_array(problem.sparse), problem.case.operator == "spgemm"

    def call() -> Any:
        product = csr @ csr
        if ordered:
            product.sort_indices()
        return product

    return Prepared(call, _value(problem))


@contender("mkl_sparse_dot", "spgemm", "spgemm_unordered")
def _mkl(problem: Problem) -> Prepared:
    dot = need("sparse_dot_mkl").dot_product_mkl
    csr, ordered = problem.sparse, problem.case.operator == "spgemm"
    return Prepared(lambda: dot(csr, csr, reorder_output=ordered), _value(problem))


def _graphblas(problem: Problem) -> tuple[Any, Any]:
    """Return the module, and the operand in it."""
    need("graphblas.core")
    gb, csr = need("graphblas"), problem.sparse
    return gb, gb.Matrix.from_csr(csr.indptr, csr.indices, csr.data, ncols=csr.shape[1])


@contender("graphblas", "spgemm", "spgemm_unordered", "spgemm_masked")
def _multiplied(problem: Problem) -> Prepared:
    gb, a = _graphblas(problem)
    mask = a.S if problem.case.operator == "spgemm_masked" else None

    def call() -> Any:
        made = a.mxm(a, gb.semiring.plus_times).new(mask=mask)
        if problem.case.operator == "spgemm":
            made.ss.export("csr", sort=True)
        made.wait("complete")
        return made

    return Prepared(call, lambda made: values_of(problem, gb.io.to_scipy_sparse(made)))


def _counted(problem: Problem, *, transposed: bool) -> Prepared:
    gb, lower = _graphblas(problem)
    ones = lower.apply(gb.unary.one).new(dtype="INT64")
    other = ones.T.new().T if transposed else ones

    def call() -> Any:
        return ones.mxm(other, gb.semiring.plus_pair).new(mask=ones.S).reduce_scalar().value

    return Prepared(call, np.atleast_1d)


@contender("graphblas", "triangles")
def _by_rows(problem: Problem) -> Prepared:
    """As LAGraph counts them by the Sandia method, L times L."""
    return _counted(problem, transposed=False)


@contender("graphblas_dots", "triangles", library="graphblas")
def _by_dots(problem: Problem) -> Prepared:
    """The same with the transpose of the upper triangle, by rows of which it takes products."""
    return _counted(problem, transposed=True)
