"""Rival: SuiteSparse GraphBLAS; results stay in its own matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.contenders import Prepared, contender, need
from benchmarks.elementwise import spelled

if TYPE_CHECKING:
    from benchmarks.problem import Problem


def set_threads(count: int) -> None:
    """Let GraphBLAS use *count* threads."""
    _module().ss.config["nthreads"] = count


def _module() -> Any:
    need("graphblas.core")
    return need("graphblas")


@contender("graphblas", "spmm", "spmm_hub", "spmm_max", "spmv")
def _product(problem: Problem) -> Prepared:
    gb, csr, b = _module(), problem.sparse, problem.dense["B"]
    a = gb.Matrix.from_csr(csr.indptr, csr.indices, csr.data, ncols=csr.shape[1])
    ring = gb.semiring.max_times if problem.case.operator == "spmm_max" else gb.semiring.plus_times
    vector = b.ndim == 1
    kept: Any = (gb.Vector if vector else gb.Matrix).from_dense(b)
    out = (gb.Vector if vector else gb.Matrix)(a.dtype, *problem.out.shape)

    def call() -> Any:
        out << (a.mxv(kept, ring) if vector else a.mxm(kept, ring))
        out.wait("complete")
        return out

    return Prepared(call, value=lambda result: result.to_dense(fill_value=0))


@contender("graphblas", "spadd", "hadamard", handle=True)
def _elementwise(problem: Problem) -> Prepared:
    gb, adds = _module(), problem.case.operator == "spadd"
    need("graphblas.io")
    a, b = (gb.io.from_scipy_sparse(m) for m in (problem.sparse, problem.dense["B"]))

    def call() -> Any:
        lazy = a.ewise_add(b, gb.binary.plus) if adds else a.ewise_mult(b, gb.binary.times)
        result = lazy.new()
        result.wait("complete")
        return result

    return Prepared(call, lambda result: spelled(gb.io.to_scipy_sparse(result, "csr")))
